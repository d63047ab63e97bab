"""What goes over the wire to the scripts and back, packed and taken apart by hand (docs/design.md §4).

Promises: uses `struct` alone, no code of the product. It checks no values, so that tests can send wrong ones.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

NOW, ABSOLUTE, DELAY = 0, 1, 2
PENDING, RUNNING, SUCCEEDED, FAILED = b"0", b"1", b"2", b"3"
NO_TOKEN: Final = bytes(8)
NO_CONFIG_VERSION: Final = b""
CLAIM: Final = b"host:1:0:worker:1"  # host, port, start, source, counter
BUDGET_BYTES: Final = 4 << 20
HOUR_MS: Final = 3_600_000
FAR_MS: Final = (1 << 44) - 1
#: Flags of a configuration.
HAS_MAX_RUNNING, PAUSED_FOR_A_TIME, HAS_REFUSE_ABOVE = 8, 16, 64


class Job(NamedTuple):
    """A job to enqueue."""

    body: bytes = b"body"
    priority: int = 1
    kind: int = NOW
    ms: int = 0
    allowed: int = 10
    status: bytes = b""


#: Added to the index of a job whose last run ended in a crash.
SUSPECT = 32768


class Taken(NamedTuple):
    """A job as a claim gives it; `left` is None when it has all its attempts.

    suspect: its last run ended in a crash.
    """

    priority: int
    id: bytes
    left: int | None
    record: bytes
    suspect: bool = False

    @property
    def body(self) -> bytes:
        return self.record[4:]


class Claimed(NamedTuple):
    """The reply of a claim or a dry run."""

    token: bytes
    jobs: list[Taken]
    left: list[int]
    due_in_ms: int
    limited: int

    @property
    def bodies(self) -> list[bytes]:
        return [job.body for job in self.jobs]


class End(NamedTuple):
    """One job of an ack."""

    priority: int
    id: bytes
    token: bytes
    failed: bool = False
    delay_ms: int = 0
    status: bytes = b""


class Info(NamedTuple):
    """Job info (lookup, scan)."""

    state: int
    priority: int
    id: bytes
    allowed: int
    remaining: int
    run_after_ms: int
    updated_ms: int
    crashes: int
    status: bytes
    claim: bytes
    body: bytes | None


class Grant(NamedTuple):
    """The reply of grant. wait_ms: 0: ask again at once; NO_TIME: not before the rate changes."""

    tokens: int
    valid_ms: int
    wait_ms: int
    processes: int


NO_TIME: Final = (1 << 48) - 1


class Moved(NamedTuple):
    """A job as read_batch gives it. score: decimal digits. extras: b"" for none."""

    id: bytes
    score: bytes
    record: bytes
    extras: bytes = b""


def pack_moved(jobs: Iterable[Moved]) -> bytes:
    """The argument `jobs` of restore."""
    packed = b""
    for job in jobs:
        sixteenths = round(float(job.score) * 16)
        packed += job.record[3:4] + job.id + (sixteenths // 16).to_bytes(6, "big") + bytes([sixteenths % 16])
        packed += struct.pack(">H", len(job.extras)) + job.extras
    return packed


class Moves(NamedTuple):
    """The reply of moves. closed: the highest closed restore. restores: number -> ms. batches: name -> ms, priority,
    jobs.
    """

    epoch: int
    closed: int
    cursor: bytes
    restores: dict[int, int]
    batches: dict[bytes, tuple[int, int, int]]


def unpack_moves(reply: Sequence[bytes]) -> Moves:
    restores = {number(one[:8]): number(one[8:]) for one in reply[3:] if len(one) == 14}
    batches = {one[:16]: (number(one[16:22]), one[22], number(one[23:])) for one in reply[3:] if len(one) == 27}
    assert len(restores) + len(batches) == len(reply) - 3
    return Moves(int(reply[0]), number(reply[1]), reply[2], restores, batches)


class Account(NamedTuple):
    """The account of a rate, in the field `account` of the key `meta`."""

    refilled_ms: int
    units: int
    line_ms: int = 0
    since_ms: int = 0
    granted: int = 0
    granted_before: int = 0

    def pack(self) -> bytes:
        times = b"".join(each.to_bytes(6, "big") for each in self[:4])
        return times + struct.pack(">II", *self[4:])

    @classmethod
    def unpack(cls, packed: bytes) -> Account:
        times = (int.from_bytes(packed[at : at + 6], "big") for at in range(0, 24, 6))
        return cls(*times, *struct.unpack_from(">II", packed, 24))


class LimitsSeen(NamedTuple):
    """The reply of limits."""

    home: int
    tokens: int
    granted: int
    processes: int
    running: int
    begin_ms: int
    end_ms: int
    now_ms: int
    by: bytes


class Expiry(NamedTuple):
    """The reply of expire."""

    active: int
    rests: int
    more: int
    now_ms: int
    leases: int
    retried: int
    failed: int
    next_look_ms: int
    next_sweep: bytes
    failed_jobs: list[tuple[int, bytes]]


def settings(
    *,
    lease_ms: int = 30_000,
    flags: int = 0,
    priorities: int = 3,
    keep: int = 0,
    succeeded_s: int = 3600,
    failed_s: int = 7200,
    body_bytes: int = 1 << 20,
    crash_limit: int | None = None,
    quarantine: bytes = b"",
    rate: bytes = b"",
    max_running: int | None = None,
    home: bytes = b"",
    refuse_above: int | None = None,
    later: Sequence[bytes] = (),
) -> bytes:
    """Settings as `create` and `configure` take them.

    crash_limit: None for no tail, as of a client that knows none of its settings, unless there are later ones.
    rate: count, ms and burst (u32 each). max_running, refuse_above: their flags are set too. later: what a newer client
    adds. Marks of the archive: none.
    """
    if max_running is not None:
        flags |= HAS_MAX_RUNNING
    if refuse_above is not None:
        flags |= HAS_REFUSE_ABOVE
    packed = struct.pack(">BBIIIII", flags, priorities, lease_ms, keep, succeeded_s, failed_s, body_bytes)
    limits = [rate, b"" if max_running is None else struct.pack(">I", max_running), home, b"\0"]
    hard_mark = b"" if refuse_above is None else refuse_above.to_bytes(6, "big")
    more = [*limits, b"", hard_mark, *later] if any(limits[:3]) or hard_mark or later else []
    tail = [] if crash_limit is None and not more else [struct.pack(">H", crash_limit or 0), quarantine]
    tail += more
    return packed + b"".join(bytes([len(entry)]) + entry for entry in tail)


class Config(NamedTuple):
    """A packed configuration, taken apart; settings: as `settings` packs them."""

    format: int
    flags: int
    priorities: int
    version: bytes
    generation: int
    epoch: int
    settings: bytes


def unpack_config(packed: bytes) -> Config:
    head = struct.Struct(">BBB8sII")
    form, flags, priorities, version, generation, epoch = head.unpack_from(packed)
    return Config(form, flags, priorities, version, generation, epoch, packed[1:3] + packed[head.size :])


def record(job: Job) -> bytes:
    """What the key `jobs` holds for a job."""
    return struct.pack(">BHB", 1, job.allowed, job.priority) + job.body


def number(id_: bytes) -> int:
    """An id, token or version as a number."""
    return int.from_bytes(id_, "big")


def created_ms(id_: bytes) -> int:
    return number(id_) >> 19


def pack_statuses(texts: Iterable[bytes]) -> bytes:
    """The non-empty statuses, by position."""
    return b"".join(struct.pack(">HH", i, len(text)) + text for i, text in enumerate(texts) if text)


def pack_specs(jobs: Sequence[Job]) -> bytes:
    runs = itertools.groupby((job.priority, job.kind, job.ms) for job in jobs)
    return b"".join(
        struct.pack(">BB6sH", priority, kind, ms.to_bytes(6, "big"), len(list(run)))
        for (priority, kind, ms), run in runs
    )


def pack_runs(tokens: Iterable[bytes]) -> bytes:
    runs = [(token, len(list(run))) for token, run in itertools.groupby(tokens)]
    return b"".join(token + struct.pack(">H", n) for token, n in runs)


def unpack_positions(refused: bytes) -> list[int]:
    return list(struct.unpack(f">{len(refused) // 2}H", refused))


def unpack_claim(reply: Sequence[Any]) -> Claimed:
    """Takes `[head, [records…]…]` apart. head: token, due in, limited, priorities, left, jobs block.

    The reply for one job may be `[priority, id, token, record]` in one string, or nothing.
    """
    head, *lists = reply
    if not head:
        return Claimed(b"", [], [], 0, False)
    if not lists and any(head[:8]):
        return Claimed(head[9:17], [Taken(head[0], head[1:9], None, head[17:])], [], 0, False)
    token, due_in, limited, priorities = head[:8] if any(head[:8]) else b"", head[8:14], head[14], head[15]
    left, block = head[16 : 16 + 4 * priorities], head[16 + 4 * priorities :]
    records = iter([one for part in lists for one in part])
    jobs, at = [], 0
    while at < len(block):
        priority, n = struct.unpack_from(">BH", block, at)
        ids = [block[at + 3 + 8 * i : at + 11 + 8 * i] for i in range(n)]
        at += 3 + 8 * n
        (m,) = struct.unpack_from(">H", block, at)
        lefts = dict(struct.unpack_from(">HH", block, at + 2 + 4 * i) for i in range(m))
        at += 2 + 4 * m
        for i, id_ in enumerate(ids):
            suspect = i + SUSPECT in lefts
            left_over = lefts.get(i + SUSPECT if suspect else i)
            jobs.append(Taken(priority, id_, left_over, next(records), suspect))
    assert next(records, None) is None, "more records than ids"
    counts = list(struct.unpack(f">{len(left) // 4}I", left))
    return Claimed(token, jobs, counts, int.from_bytes(due_in, "big"), limited)


def unpack_info(packed: bytes) -> Info:
    state, priority, id_, allowed, remaining = struct.unpack_from(">BB8sHH", packed)
    run_after_ms, updated_ms = (int.from_bytes(packed[at : at + 6], "big") for at in (14, 20))
    crashes, length = struct.unpack_from(">HH", packed, 26)
    status, at = packed[30 : 30 + length], 30 + length
    (length,) = struct.unpack_from(">H", packed, at)
    claim, at = packed[at + 2 : at + 2 + length], at + 2 + length
    body = packed[at + 1 :] if packed[at] else None
    head = (state, priority, id_, allowed, remaining, run_after_ms, updated_ms, crashes)
    return Info(*head, status, claim, body)


def source_number(number: int) -> bytes:
    """What stands for the token of a job that names a source instead."""
    return number.to_bytes(8, "big")


def pack_more(
    statuses: bytes, sources: Sequence[bytes] = (), tombstones: bool = False, any_source: bool = False
) -> bytes:
    """The argument `more` of an ack."""
    options, block = tombstones + 2 * any_source, b"".join(bytes([len(source)]) + source for source in sources)
    return struct.pack(">BH", options, len(block)) + block + statuses if statuses or block or options else b""


def pack_checkpoint(
    end: End,
    body: bool = False,
    *,
    move: tuple[int, int] | None = None,
    attempts: int | None = None,
    own: bool = False,
) -> bytes:
    what = body + 2 * (move is not None) + 4 * (attempts is not None) + 8 * bool(end.status) + 16 * own
    kind, ms = move or (NOW, 0)
    head = struct.pack(">B8s8sBB", end.priority, end.id, end.token, what, kind)
    return head + ms.to_bytes(6, "big") + struct.pack(">H", attempts or 0) + bytes(7)


def ends(claimed: Claimed, **words: Any) -> list[End]:
    """The jobs of a claim as an ack names them."""
    return [End(job.priority, job.id, claimed.token, **words) for job in claimed.jobs]
