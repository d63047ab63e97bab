"""`pinlater archive`: moves pending jobs of a queue to MySQL and back.

Promises that each command may be interrupted at any moment, and run twice at once: what one leaves open, the next one
ends. Ctrl-C ends the open batches and restores first; a second one stops at once, whatever MySQL does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final, TypeVar

import click
from rich.console import Console

from pinlater.archive.archiver import SWITCH_S, Archiver, Selection
from pinlater.archive.purge import purge as purge_flow
from pinlater.archive.status import ArchiveStatus, archived_queues
from pinlater.archive.status import status as status_flow
from pinlater.archive.verify import verify as verify_flow
from pinlater.cli.command_base import DONE, INTERRUPTED, NO, Group, usage
from pinlater.cli.output import count, duration, jobs, print_json, print_table, remark, say
from pinlater.cli.progress import moving
from pinlater.cli.settings import Settings
from pinlater.cli.times import MILLISECONDS
from pinlater.client.async_client import AsyncClient
from pinlater.client.client import Client
from pinlater.operations.audit import audit
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.archive_schema import check_schema, schema_of
from pinlater.store.archive_schema import migrate as migrate_database

T = TypeVar("T")

#: A statement of a migration may take so long.
MIGRATION_S: Final = 24 * 3600.0
_NO_ARCHIVE: Final = (
    "no archive is named: --archive mysql://HOST/DATABASE, PINLATER_ARCHIVE_URL, or archive in pinlater.toml"
)
_HEADINGS: Final = ("queue", "#archived", "#due", "late", "#in open batches", "#open batches", "#open restores")


@click.group("archive", cls=Group)
def archive() -> None:
    """The MySQL archive: migrate, spill, restore, status, verify, purge."""


@archive.verb("migrate")
def migrate(settings: Settings) -> int:
    """Make or update the tables of the archive. Programs may use it meanwhile."""
    if (url := settings.archive()) is None:
        usage(_NO_ARCHIVE)
    database = ArchiveDatabase(url, read_timeout_s=MIGRATION_S)
    try:
        applied = migrate_database(database)
        version = schema_of(database).version
    finally:
        database.close()
    if settings.as_json:
        print_json({"version": version, "applied": applied})
    else:
        say(f"the archive's tables are of version {version}" + ("" if applied else ", as before"))
    return DONE


@archive.verb("spill")
@click.argument("name")
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Leave so many of them in Redis. [default: 0]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Move at most so many jobs.")
@click.option("--priority", type=click.IntRange(1, 100), metavar="N", help="Only jobs of this priority.")
@click.option("--older-than", type=MILLISECONDS, metavar="TIME", help="Only jobs that have been due for so long.")
@click.option("--later-than", type=MILLISECONDS, metavar="TIME", help="Only jobs that are due in so long, or later.")
@click.option("--dry-run", is_flag=True, help="Say how many jobs would move, and change nothing.")
def spill(
    settings: Settings,
    name: str,
    keep: int | None,
    limit: int | None,
    priority: int | None,
    older_than: int | None,
    later_than: int | None,
    dry_run: bool,
) -> int:
    """Move pending jobs to the archive: the latest-due and lowest-priority ones first."""
    if older_than is not None and later_than is not None:
        usage("--older-than and --later-than: expected one of them")
    selection = Selection(limit=limit, keep=keep or 0, priority=priority, older_ms=older_than, later_ms=later_than)

    async def work(archiver: Archiver) -> tuple[int, int]:
        shares = await archiver.shares(name, selection)
        if dry_run:
            return sum(shares.values()), 0
        with moving(f"queue {name}", sum(shares.values()), hidden=settings.as_json) as archiver.progress:
            moved = await archiver.spill(name, selection)
        found = await archiver.run(lambda end: status_flow(archiver.session, archiver.database, name, end))
        return moved, found.withdrawn

    (moved, left_open), stopped = _run(settings, work)
    if settings.as_json:
        print_json({"queue": name, "moved": moved, "dry_run": dry_run, "interrupted": stopped})
    elif dry_run:
        say(f"{jobs(moved)} would move to the archive")
    else:
        say(f"{jobs(moved)} moved to the archive")
        if moved:
            remark(f"back: pinlater archive restore {name}")
        if left_open:
            remark(f"{jobs(left_open)} in open batches: another archiver moves them, or a spill in 10 s ends them")
    return INTERRUPTED if stopped else DONE


@archive.verb("restore")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Bring back at most so many jobs.")
@click.option("--dry-run", is_flag=True, help="Say how many jobs would come back, and change nothing.")
def restore(settings: Settings, name: str, limit: int | None, dry_run: bool) -> int:
    """Bring archived jobs back: those of the highest priority and the earliest run-after first."""

    async def work(archiver: Archiver) -> int:
        found = await archiver.run(lambda end: status_flow(archiver.session, archiver.database, name, end))
        total = found.archived if limit is None else min(limit, found.archived)
        if dry_run:
            return total
        with moving(f"queue {name}", total, hidden=settings.as_json) as archiver.progress:
            return await archiver.restore(name, limit)

    moved, stopped = _run(settings, work)
    if settings.as_json:
        print_json({"queue": name, "moved": moved, "dry_run": dry_run, "interrupted": stopped})
    else:
        say(f"{jobs(moved)} {'would come' if dry_run else 'came'} back from the archive")
    return INTERRUPTED if stopped else DONE


@archive.verb("status")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def status(settings: Settings, names: tuple[str, ...]) -> int:
    """Show what the archive has of queues, and what moves. Without names: of each queue that has archived jobs."""
    with _ready(settings) as client:
        database = _database(client)
        chosen = list(names) or client.run(lambda _: archived_queues(database))
        found = {
            name: client.run(lambda end, name=name: status_flow(client.session, database, name, end))  # type: ignore[misc]
            for name in chosen
        }
    if settings.as_json:
        print_json([{"queue": name, **asdict(each)} for name, each in found.items()])
    elif not found:
        say("no queue has archived jobs")
    else:
        print_table(_HEADINGS, [_row(name, each) for name, each in found.items()])
    return DONE


def _row(name: str, found: ArchiveStatus) -> tuple[str, ...]:
    numbers = (found.withdrawn, found.batches, found.restores)
    late = duration(found.late_ms) if found.late_ms else "-"
    return name, count(found.archived), count(found.due), late, *map(count, numbers)


@archive.verb("verify")
@click.argument("name")
def verify(settings: Settings, name: str) -> int:
    """Prove that each job of a queue is in one store, and there in one state. Exit code 1 if one is not."""
    with _ready(settings) as client:
        database = _database(client)
        report = client.run(lambda end: audit(client.session, name, end))
        findings = [
            *report.findings,
            *client.run(lambda end: verify_flow(client.session, database, name, end)),
        ]
        found = client.run(lambda end: status_flow(client.session, database, name, end))
    if settings.as_json:
        shown = [asdict(finding) for finding in findings]
        print_json({"queue": name, "ok": not findings, "archived": found.archived, "findings": shown})
    else:
        for finding in findings:
            say(str(finding))
        say(f"queue {name}: {jobs(found.archived)} in the archive, {count(len(findings))} findings")
    return NO if findings else DONE


@archive.verb("purge")
def purge(settings: Settings) -> int:
    """Remove what the archive has of queues that were deleted."""
    with _ready(settings) as client:
        database = _database(client)
        removed = client.run(lambda _: purge_flow(database))
    if settings.as_json:
        print_json({"removed": removed})
    else:
        say(f"{jobs(removed)} of deleted queues removed")
    return DONE


def _client(settings: Settings) -> Client:
    if settings.archive() is None:
        usage(_NO_ARCHIVE)
    return settings.client()


def _ready(settings: Settings) -> Client:
    """A client whose archive has the tables of this program."""
    client = _client(settings)
    try:
        check_schema(_database(client))
    except BaseException:
        client.close()
        raise
    return client


def _database(client: Client | AsyncClient) -> ArchiveDatabase:
    assert client.settings.database is not None
    return client.settings.database


def _run(settings: Settings, work: Callable[[Archiver], Awaitable[T]]) -> tuple[T, bool]:
    """Runs an archiver until it has done its work. Returns the result, and whether Ctrl-C or SIGTERM ended it."""
    if settings.archive() is None:
        usage(_NO_ARCHIVE)

    async def run() -> tuple[T, bool]:
        async with AsyncClient(
            shards=settings.servers(), timeout_s=settings.timeout_s, archive=settings.archive()
        ) as client:
            database = _database(client)
            archiver = Archiver(client.run, client.session, database)
            _stop_at_signals(archiver.stopping)
            await asyncio.to_thread(check_schema, database)
            return await work(archiver), archiver.stopping.is_set()

    sys.setswitchinterval(SWITCH_S)
    return asyncio.run(run())


def _stop_at_signals(stopping: asyncio.Event) -> None:
    """The first signal ends the work in order, the second one at once: also while a thread waits for MySQL."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            Console(stderr=True).show_cursor()  # the progress bar hid it
            os._exit(INTERRUPTED)
        remark("ending what is open; a second signal stops at once")
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
