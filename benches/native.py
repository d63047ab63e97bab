"""What each piece of `pinlater._core` saves: its time compared with its Python twin's, in the same run.

    python benches/native.py [--only NAME] [--rounds 7] [--quick] [--json FILE]

Promises one table of medians over interleaved rounds, a line a piece: the ratio is the twin's time over the native
time. Exit code 1 if a ratio is below the bar. Risks: a twin checks as much as the native piece, but it is not the
fastest possible Python. The sides of a round run one after the other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches.support import BODY, Figure, Options, figure, interleave, print_table, ratios, write_json
from pinlater import _core
from tests.support import twins

#: Jobs a call: what a busy worker claims and acks at once.
BATCH = 500
#: Seconds of one side in a round: long compared with the clock's step, short compared with a turn of the scheduler.
SIDE_S = 0.1
QUICK_SIDE_S = 0.01
#: A piece with a smaller ratio is not worth its Rust.
BAR = 1.5
#: The median of fewer rounds is not stable.
LEAST_ROUNDS = 5

TOKEN = (7 << 19).to_bytes(8, "big")
FIRST_ID = 1_700_000_000_000 << 19


class Piece(NamedTuple):
    """A call of each side that does the same work on `jobs` jobs."""

    name: str
    jobs: int
    native: Callable[[], Any]
    twin: Callable[[], Any]


def pieces() -> Iterator[Piece]:
    """Every piece, in the order in which a job needs them."""
    yield from _enqueue_pieces()
    yield from _claim_pieces()
    yield from _ack_pieces()
    yield from _descriptor_pieces()
    yield from _single_pieces()


def measure(piece: Piece, rounds: int, side_s: float) -> Figure:
    """The median of the rounds' ratios."""
    sides = {
        name: lambda call=call: _call_us(call, side_s)
        for name, call in (("native", piece.native), ("twin", piece.twin))
    }
    found = interleave(sides, rounds)
    native_us = min(found["native"]) / piece.jobs
    note = f"native {native_us:.3f} µs a job"
    return figure(piece.name, "-", ratios(found["twin"], found["native"]), BAR, None, at_least=True, note=note)


def main() -> int:
    """Prints the table. Returns 1 if a ratio is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only pieces whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds: expected {LEAST_ROUNDS} or more, got {given.rounds}")
    side_s = QUICK_SIDE_S if given.quick else SIDE_S
    figures = [measure(piece, given.rounds, side_s) for piece in pieces() if given.only in piece.name]
    if not figures:
        parser.error(f"--only: expected part of a piece's name, got {given.only!r}")
    print_table(figures)
    if given.json:
        write_json(given.json, figures, Options(given.rounds, given.quick), {})
    return int(any(each.is_met is False for each in figures))


def _call_us(call: Callable[[], Any], side_s: float) -> float:
    """Microseconds a call, over as many calls as fit `side_s`."""
    started = time.perf_counter()
    call()
    calls = max(1, int(side_s / max(time.perf_counter() - started, 1e-7)))
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - started) / calls


def _enqueue_pieces() -> Iterator[Piece]:
    bodies = [BODY] * BATCH
    yield Piece(
        "pack_jobs: bodies",
        BATCH,
        lambda: _core.pack_jobs(bodies, 1 << 20, 3),
        lambda: twins.pack_jobs(bodies, 1 << 20, 3),
    )
    options: dict[str, Any] = {"priority": 2, "delay_ms": 1000, "status": "sent by hand"}
    native_jobs, twin_jobs = [_core.NewJob(BODY, **options)] * BATCH, [twins.new_job(BODY, **options)] * BATCH
    yield Piece(
        "pack_jobs: NewJobs with delay and status",
        BATCH,
        lambda: _core.pack_jobs(native_jobs, 1 << 20, 3),
        lambda: twins.pack_jobs(twin_jobs, 1 << 20, 3),
    )
    yield Piece("NewJob", 1, lambda: _core.NewJob(BODY, **options), lambda: twins.new_job(BODY, **options))


def _claim_pieces() -> Iterator[Piece]:
    for count in (1, BATCH):
        ids = b"".join((FIRST_ID + i).to_bytes(8, "big") for i in range(count))
        block = b"\1" + count.to_bytes(2, "big") + ids + b"\0\0"
        _, _, records = _core.pack_jobs([BODY] * count, 1 << 20, 3)
        reply: list[Any] = [b"s", b"h", TOKEN + bytes(7) + b"\3" + bytes(12) + block, list(records)]
        yield Piece(
            f"decode_claim: {count}",
            count,
            lambda reply=reply: _core.decode_claim(reply, "mail", "1"),  # type: ignore[misc]
            lambda reply=reply: twins.decode_claim(reply, "mail", "1"),  # type: ignore[misc]
        )


def _ack_pieces() -> Iterator[Piece]:
    parts = [("mail", "1", 1 + i % 2, FIRST_ID + i, BODY, TOKEN, 2, 2) for i in range(BATCH)]
    native_jobs, twin_jobs = [_core.Job(*part) for part in parts], [twins.Job(*part) for part in parts]
    pairs = [(job.descriptor, job.token) for job in native_jobs]
    native_failed = [(job, "timed out", 1000) for job in native_jobs]
    twin_failed = [(job, "timed out", 1000) for job in twin_jobs]
    yield Piece(
        "group_acks: 1 Job",
        1,
        lambda: _core.group_acks(native_jobs[:1], []),
        lambda: twins.group_acks(twin_jobs[:1], []),
    )
    yield Piece(
        "group_acks: Jobs", BATCH, lambda: _core.group_acks(native_jobs, []), lambda: twins.group_acks(twin_jobs, [])
    )
    yield Piece(
        "group_acks: descriptors", BATCH, lambda: _core.group_acks(pairs, []), lambda: twins.group_acks(pairs, [])
    )
    yield Piece(
        "group_acks: failed, with status and delay",
        BATCH,
        lambda: _core.group_acks([], native_failed),
        lambda: twins.group_acks([], twin_failed),
    )
    yield Piece(
        "group_releases: Jobs",
        BATCH,
        lambda: _core.group_releases(native_jobs),
        lambda: twins.group_releases(twin_jobs),
    )


def _descriptor_pieces() -> Iterator[Piece]:
    texts = _core.format_descriptors("mail", "1", 1, FIRST_ID, BATCH)
    yield Piece(
        "format_descriptors",
        BATCH,
        lambda: _core.format_descriptors("mail", "1", 1, FIRST_ID, BATCH),
        lambda: twins.format_descriptors("mail", "1", 1, FIRST_ID, BATCH),
    )
    yield Piece(
        "group_descriptors", BATCH, lambda: _core.group_descriptors(texts), lambda: twins.group_descriptors(texts)
    )
    yield Piece(
        "format_descriptor",
        1,
        lambda: _core.format_descriptor("mail", "1", 1, FIRST_ID),
        lambda: twins.format_descriptor("mail", "1", 1, FIRST_ID),
    )
    yield Piece(
        "parse_descriptor", 1, lambda: _core.parse_descriptor(texts[0]), lambda: twins.parse_descriptor(texts[0])
    )


def _single_pieces() -> Iterator[Piece]:
    bodies = [BODY] * BATCH
    yield Piece(
        "new_jobs",
        BATCH,
        lambda: _core.new_jobs(bodies, attempts=5),
        lambda: [twins.new_job(body, attempts=5) for body in bodies],
    )
    native_job, twin_job = _core.NewJob(BODY), twins.new_job(BODY)
    record = _core.pack_jobs([BODY], 1 << 20, 3)[2][0]
    yield Piece("unpack_record", 1, lambda: _core.unpack_record(record), lambda: twins.unpack_record(record))
    command: tuple[bytes | str | int, ...] = ("EVALSHA", "x" * 40, 10, *[b"pl:{mail/1}:meta"] * 10, *[record] * BATCH)
    yield Piece("NewJob.with_body", 1, lambda: native_job.with_body(BODY), lambda: twin_job.with_body(BODY))
    yield Piece("pack_commands", BATCH, lambda: _core.pack_commands([command]), lambda: twins.pack_commands([command]))
    native_head, twin_head = _core.CommandHead(command[:13]), twins.CommandHead(command[:13])
    yield Piece(
        "CommandHead.command",
        BATCH,
        lambda: native_head.command(command[13:]),
        lambda: twin_head.command(command[13:]),
    )
    text = b"timed out"
    info = b"\0\1" + bytes(8) + b"\0\2\0\1" + bytes(14) + len(text).to_bytes(2, "big") + text + b"\0\0" + b"\1" + BODY
    yield Piece("unpack_info", 1, lambda: _core.unpack_info(info), lambda: twins.unpack_info(info))
    native, twin = _core.TokenBucket(), twins.TokenBucket()
    native.grant(10**18, 10**6)
    twin.grant(10**18, 10**6)
    yield Piece("TokenBucket.take", 1, lambda: native.take(1, 5000), lambda: twin.take(1, 5000))


if __name__ == "__main__":
    sys.exit(main())
