"""`pinlater archive`: what each command says and does, on a real Valkey and a real MariaDB."""

# ruff: noqa: F811 (fixtures are parameters)
from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from pinlater import Client
from pinlater.archive.batches import Range, withdraw
from pinlater.archive.incarnations import incarnation_of
from pinlater.cli.command_base import DONE, INTERRUPTED, NO, SERVER, USAGE
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store import archive_schema
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.statements import Migration, load_migrations
from tests.archive.rig import EVERYSEC
from tests.conftest import FreshServer
from tests.support.cli_runs import Run, run  # noqa: F401
from tests.support.servers import wait_until

Fill = Callable[[int], None]
#: Much less than the time after which a silent MySQL is given up.
DEADLINE_S = 15.0


@pytest.fixture
def url(fresh_server: FreshServer, mysql_url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a server with a queue `mail`. The environment names it and an archive with tables."""
    server = fresh_server(config=EVERYSEC)
    monkeypatch.setenv("PINLATER_URL", server.url)
    monkeypatch.setenv("PINLATER_ARCHIVE_URL", mysql_url)
    assert run("archive", "migrate").out == "the archive's tables are of version 1\n"
    assert run("queue", "create", "mail").code == DONE
    return server.url


@pytest.fixture
def fill(url: str) -> Fill:
    def enqueue(count: int) -> None:
        with Client(url) as client:
            client.enqueue_many("mail", [b"job %d" % number for number in range(count)])

    return enqueue


def started(*arguments: str) -> subprocess.Popen[str]:
    """`pinlater archive` in a process of its own, which SIGINT interrupts."""
    return subprocess.Popen(
        [sys.executable, "-m", "pinlater", "archive", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_a_backlog_leaves_and_comes_back(run: Run, fill: Fill) -> None:
    fill(1_200)
    assert run("archive", "spill", "mail", "--keep", "200", "--dry-run").out == "1,000 jobs would move to the archive\n"
    spilled = run("archive", "spill", "mail", "--keep", "200")
    assert (spilled.out, spilled.err) == ("1,000 jobs moved to the archive\n", "back: pinlater archive restore mail\n")
    assert run("queue", "ls", "--json").document[0]["pending"] == 1_200
    [status] = run("archive", "status", "--json").document
    assert (status["queue"], status["archived"], status["due"], status["batches"]) == ("mail", 1_000, 1_000, 0)
    assert run("archive", "verify", "mail").out == "queue mail: 1,000 jobs in the archive, 0 findings\n"
    assert run("archive", "restore", "mail", "--limit", "10").out == "10 jobs came back from the archive\n"
    assert run("archive", "restore", "mail", "--dry-run").out == "990 jobs would come back from the archive\n"
    assert run("archive", "restore", "mail", "--json").document == {
        "queue": "mail",
        "moved": 990,
        "dry_run": False,
        "interrupted": False,
    }
    assert run("archive", "status").out == "no queue has archived jobs\n"
    assert run("archive", "status", "mail").out.splitlines()[1].split() == ["mail", "0", "0", "-", "0", "0", "0"]


def test_what_leaves_can_be_chosen(run: Run, fill: Fill, url: str) -> None:
    with Client(url) as client:
        client.enqueue("mail", b"later", delay_ms=2 * 3_600_000)
        client.enqueue("mail", b"soon", delay_ms=60_000)
        client.enqueue("mail", b"low", priority=3)
        client.enqueue("mail", b"old", run_after_ms=1)
    assert run("archive", "spill", "mail", "--later-than", "1h").out == "1 job moved to the archive\n"
    assert run("archive", "spill", "mail", "--priority", "3").out == "1 job moved to the archive\n"
    assert run("archive", "spill", "mail", "--older-than", "1h").out == "1 job moved to the archive\n"
    assert run("archive", "spill", "mail", "--limit", "5").out == "1 job moved to the archive\n"
    assert run("archive", "spill", "mail").out == "0 jobs moved to the archive\n"


def test_jobs_of_a_deleted_queue_are_purged(run: Run, fill: Fill) -> None:
    fill(30)
    run("archive", "spill", "mail")
    assert run("queue", "rm", "mail", "--yes").code == DONE
    assert run("archive", "status").out == "no queue has archived jobs\n"
    assert run("archive", "purge").out == "30 jobs of deleted queues removed\n"
    assert run("archive", "purge", "--json").document == {"removed": 0}


def test_the_marks_are_settings_of_the_queue(run: Run, url: str) -> None:
    out = run("queue", "set", "mail", "--spill-above", "5M", "--restore-below", "500k", "--horizon", "24h").out
    assert out == "queue mail: spill_above = 5000000, restore_below = 500000, horizon_ms = 86400000\n"
    assert re.findall(r"^archive +(.+)", run("queue", "info", "mail").out, re.M) == [
        "spill above 5,000,000, restore below 500,000, horizon 1 day"
    ]
    wrong = run("queue", "set", "mail", "--spill-above", "5X")
    assert (wrong.code, "expected a number such as 5M, 500k or 1000, got '5X'" in wrong.err) == (USAGE, True)
    assert run("queue", "set", "mail", "--horizon", "none").code == DONE
    assert run("queue", "info", "mail", "--json").document["config"]["horizon_ms"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("spill", "nope"), NO, "queue 'nope': not found"),
        (("spill", "mail", "--older-than", "1h", "--later-than", "1h"), USAGE, "expected one of them"),
        (("spill", "mail", "--limit", "0"), USAGE, "--limit"),
        (("restore", "mail", "--limit", "-1"), USAGE, "--limit"),
        (("status", "--archive", "mysql://nobody:secret@127.0.0.1:1/none"), SERVER, "archive mysql://***@127.0.0.1:1"),
        (
            ("status", "--archive", "postgres://x"),
            USAGE,
            "a URL that begins with mysql://, such as mysql://db/pinlater",
        ),
    ],
)
def test_what_is_refused(run: Run, url: str, arguments: tuple[str, ...], code: int, message: str) -> None:
    ran = run("archive", *arguments)
    assert (ran.code, message in ran.err) == (code, True), ran.err
    assert "secret" not in ran.err


def test_without_an_archive_it_says_how_to_name_one(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PINLATER_ARCHIVE_URL")
    for verb in (["migrate"], ["spill", "mail"], ["restore", "mail"], ["status"], ["verify", "mail"], ["purge"]):
        ran = run("archive", *verb)
        assert (ran.code, "no archive is named" in ran.err) == (USAGE, True), verb


def test_tables_that_are_missing(run: Run, fresh_server: FreshServer, mysql_url: str) -> None:
    ran = run("archive", "status", "--archive", mysql_url)
    assert (ran.code, "run `pinlater archive migrate`" in ran.err) == (SERVER, True)


def test_a_migration_may_take_longer_than_other_statements(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Migration(2, 1, ["DO SLEEP(2)"])
    monkeypatch.setattr(archive_schema, "load_migrations", lambda: [*load_migrations(), slow])
    defaults = ArchiveDatabase.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "read_timeout_s", 1.0)
    assert run("archive", "migrate", "--json").document == {"version": 2, "applied": [2]}


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("verb", ["spill", "restore"])
def test_an_interrupt_ends_what_is_open(run: Run, fill: Fill, verb: str) -> None:
    for _ in range(10):
        fill(2_000)
    if verb == "restore":
        run("archive", "spill", "mail")

    def moves() -> bool:
        [status] = run("archive", "status", "mail", "--json").document
        return bool(status["batches"] or status["restores"])

    with started(verb, "mail", "--json") as process:
        wait_until(moves, "the first batches")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert '"interrupted":true' in out, err
    assert process.returncode == INTERRUPTED
    [status] = run("archive", "status", "mail", "--json").document
    assert (status["batches"], status["restores"], status["committed"]) == (0, 0, 0)
    assert run("archive", "verify", "mail").code == DONE


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once_while_mysql_is_silent(
    url: str, monkeypatch: pytest.MonkeyPatch, second: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PINLATER_ARCHIVE_URL", f"mysql://127.0.0.1:{silent.getsockname()[1]}/none")
        with started("spill", "mail") as process:
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert process.stderr.readline() == "ending what is open; a second signal stops at once\n"
            process.send_signal(second)
            try:
                assert process.wait(DEADLINE_S) == INTERRUPTED  # MySQL is given up later than that
            finally:
                process.kill()
            connection.close()


def test_a_spill_names_the_jobs_of_open_batches(url: str, run: Run, fill: Fill) -> None:
    fill(3)
    with Client(url, archive=os.environ["PINLATER_ARCHIVE_URL"]) as client:
        [queue_shard] = client.run(lambda end: known_queue_shards(client.session, "mail", end))
        assert client.settings.database is not None
        database = client.settings.database
        incarnation = client.run(lambda end: incarnation_of(database, queue_shard, end))
        client.run(lambda end: withdraw(queue_shard, incarnation, Range(1, "ready"), 2, end))
    spilled = run("archive", "spill", "mail")
    assert spilled.out == "1 job moved to the archive\n"
    expected = "2 jobs in open batches: another archiver moves them, or a spill in 10 s ends them\n"
    assert spilled.err.endswith(expected)


def test_without_the_archive_the_numbers_say_what_they_leave_out(
    run: Run, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(20)
    run("queue", "create", "other")
    run("archive", "spill", "mail", "--keep", "5")
    assert run("queue", "ls").err == ""
    monkeypatch.delenv("PINLATER_ARCHIVE_URL")
    expected = "without their archived jobs: mail; --archive URL counts them too\n"
    assert run("queue", "ls").err == expected
    shown = run("queue", "info", "mail")
    assert (shown.err, re.findall(r"^all +(\d+)", shown.out, re.M)) == (expected, ["5"])
