"""`pinlater job enqueue`: enqueues bodies from the command line, a file or stdin.

Promises that each body has exactly the given bytes (--lines drops the end of the line). If a long input fails half-way,
the error names the line to continue at. Risks: without --lines a file is one job, and the command reads all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from pinlater.cli.command_base import DONE, Command, CommandFailed, explain, usage
from pinlater.cli.output import jobs, print_json, say
from pinlater.cli.progress import counting
from pinlater.cli.settings import AnyClient, Settings, common_options, json_option
from pinlater.cli.times import FUTURE, MILLISECONDS
from pinlater.client.client import Client
from pinlater.model.errors import PartialEnqueue, PinLaterError, checked
from pinlater.model.jobs import NewJob

#: Lines in one call: as many jobs as one script call takes.
LINES_A_CALL: Final = 1000


@click.command("enqueue", cls=Command)
@click.argument("queue")
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@click.option("--file", "path", metavar="PATH", help="Read the body from this file; - is stdin.")
@click.option("--lines", is_flag=True, help="A job for each line that is not empty.")
@click.option("--priority", type=int, default=1, help="1 is first. [default: 1]")
@click.option(
    "--delay", "delay_ms", type=MILLISECONDS, metavar="TIME", help="Run not before this has passed: 30s, 5m, 2h, 1d."
)
@click.option(
    "--at", "run_after_ms", type=FUTURE, metavar="WHEN", help="Run not before this time: '2026-11-23 08:00', or 08:00."
)
@click.option("--attempts", type=int, default=2, help="How often a job may be tried. [default: 2]")
@click.option("--status", default="", metavar="TEXT", help="Custom status.")
@click.option("--key", metavar="TEXT", help="Jobs with the same key go to the same shard.")
@common_options(hidden=True)
@json_option
@click.pass_obj
def enqueue(
    settings: Settings, /, queue: str, bodies: tuple[str, ...], path: str | None, lines: bool, **options: Any
) -> int:
    """Enqueue jobs: one for each BODY, or one from a file or stdin. Prints their descriptors."""
    file = _input_file(bodies, path, lines)
    with settings.either_client(*["--key"] * (options["key"] is not None)) as client:
        if lines:
            assert file is not None
            with file:
                return _enqueue_lines(client, settings, queue, file, options)
        if file is None:
            return _enqueue_bodies(client, settings, queue, [_bytes(body) for body in bodies], options)
        with file:
            return _enqueue_bodies(client, settings, queue, [file.read()], options)


def _input_file(bodies: tuple[str, ...], path: str | None, lines: bool) -> BinaryIO | None:
    """The file or stdin with the bodies. None if they are on the command line."""
    if bodies:
        if path is not None or lines:
            usage("expected a BODY or --file or --lines, got both")
        return None
    if path is None and sys.stdin.isatty():
        usage("expected a BODY, --file PATH, or a body on stdin")
    if path is None or path == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False) if _has_descriptor() else sys.stdin.buffer
    try:
        return Path(path).open("rb")
    except OSError as error:
        usage(f"--file: expected a file to read at {path}, got: {error.strerror}")


def _has_descriptor() -> bool:
    try:
        sys.stdin.fileno()
    except OSError:
        return False
    return True


def _bytes(text: str) -> bytes:
    """The bytes that the user typed, even if they are not UTF-8."""
    return text.encode(errors="surrogateescape")


def _enqueue_bodies(
    client: AnyClient, settings: Settings, queue: str, bodies: list[bytes], options: dict[str, Any]
) -> int:
    try:
        descriptors = client.enqueue_many(queue, [checked(NewJob, body, **options) for body in bodies])
    except PartialEnqueue as error:
        _show(settings, [result for result in error.results if isinstance(result, str)])
        raise
    _show(settings, descriptors)
    return DONE


def _show(settings: Settings, descriptors: Iterable[str]) -> None:
    for descriptor in descriptors:
        if settings.as_json:
            print_json({"descriptor": descriptor})
        else:
            say(descriptor)


def _enqueue_lines(client: AnyClient, settings: Settings, queue: str, file: BinaryIO, options: dict[str, Any]) -> int:
    if isinstance(client, Client):
        client.queue_config(queue)  # an unknown queue is an error before anything is read
    done, last_line = 0, 0
    with counting(f"enqueueing in {queue}") as enqueued:
        for numbered in _batches(_numbered(file)):
            try:
                found = client.enqueue_many(queue, [checked(NewJob, body, **options) for _, body in numbered])
            except PinLaterError as error:
                raise _stopped(error, done, last_line + 1, numbered[-1][0]) from error
            if settings.as_json:
                _show(settings, found)
            done, last_line = done + len(found), numbered[-1][0]
            enqueued(done)
    if not settings.as_json:
        say(f"queue {queue}: {jobs(done)} enqueued")
    return DONE


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Numbers and content of the lines that are not empty."""
    for number, line in enumerate(file, 1):
        body = line.removesuffix(b"\n").removesuffix(b"\r")
        if body:
            yield number, body


def _batches(numbered: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    while batch := list(islice(numbered, LINES_A_CALL)):
        yield batch


def _stopped(error: PinLaterError, done: int, first: int, last: int) -> CommandFailed:
    message, code = explain(error)
    return CommandFailed(
        f"{message}; {jobs(done)} enqueued before; not enqueued, or uncertain: lines {first:,} to {last:,}", code
    )
