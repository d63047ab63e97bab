"""Each piece of `pinlater._core` in simple Python: the reference of its tests and its bench.

Promises: the same values, and the same error type for the same bad input; the formats are read from
docs/design.md, not from the Rust. Risks: slow; messages differ, so they are tested by themselves.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Any, NamedTuple

MAX_STATUS_BYTES = 3_000
MAX_PRIORITY = 100
MAX_ATTEMPTS = 65_535
MAX_TIME_MS = 2**44 - 1
MAX_BATCH = 1_000
MAX_POSITIONS = 65_536  # a status names its job's position in two bytes
MAX_ID = 2**63 - 1
NO_TOKEN = bytes(8)

_DESCRIPTOR = re.compile(
    r"([A-Za-z0-9_]{1,255}):s([A-Za-z0-9_-]{1,32}):p([1-9][0-9]{0,2}):([1-9][0-9]{0,18})", re.ASCII
)


class NewJob(NamedTuple):
    """A job to enqueue; made by `new_job`."""

    body: bytes
    priority: int
    run_after_ms: int | None
    delay_ms: int | None
    attempts: int
    status: str
    key: bytes | None

    def with_body(self, body: Any) -> NewJob:
        """As `NewJob.with_body`."""
        return self._replace(body=_bytes_like(body))


class Job(NamedTuple):
    """A claimed job."""

    queue: str
    shard: str
    priority: int
    id: int
    body: bytes
    token: bytes
    attempts_allowed: int
    attempts_remaining: int
    crashed: bool = False


class Claim(NamedTuple):
    """The result of one dequeue."""

    token: bytes
    jobs: list[Job]
    left: list[int]
    due_in_ms: int
    limited: int
    crashed: bool


class AckBatch(NamedTuple):
    """At most 1,000 acks or releases of one shard."""

    queue: str
    shard: str
    flags: bytes
    groups: bytes
    sources: bytes
    statuses: bytes
    ids: list[bytes]
    positions: list[int]
    tokenless: bool
    fails: bool


class AckCall(NamedTuple):
    """A call of ackDequeuedJobs. acks: kind, descriptor, status, delay_ms. named: all shards."""

    source: str
    queue: str
    acks: list[tuple[int, str, str, int]]
    named: list[str]


class _Ack(NamedTuple):
    queue: str
    shard: str
    priority: int
    kind: int
    id: int
    token: bytes
    delay_ms: int
    status: str
    position: int
    source: str = ""


def new_job(
    body: Any,
    *,
    priority: Any = 1,
    run_after_ms: Any = None,
    delay_ms: Any = None,
    attempts: Any = 2,
    status: Any = "",
    key: Any = None,
) -> NewJob:
    """As `NewJob`."""
    for time_ms in (run_after_ms, delay_ms):
        if time_ms is not None:
            _integer(time_ms, 0, MAX_TIME_MS)
    if run_after_ms is not None and delay_ms is not None:
        raise ValueError("both")
    return NewJob(
        _bytes_like(body),
        _integer(priority, 1, MAX_PRIORITY),
        run_after_ms,
        delay_ms,
        _integer(attempts, 1, MAX_ATTEMPTS),
        _status(status),
        None if key is None else _key(key),
    )


def format_descriptor(queue: str, shard: str, priority: int, id: int) -> str:
    """As `format_descriptor`."""
    parse_descriptor(f"{queue}:s{shard}:p1:1")
    return f"{queue}:s{shard}:p{_integer(priority, 1, MAX_PRIORITY)}:{_integer(id, 1, MAX_ID)}"


def format_descriptors(queue: str, shard: str, priorities: bytes | int, first_id: int, count: int) -> list[str]:
    """As `format_descriptors`."""
    parse_descriptor(f"{queue}:s{shard}:p1:1")
    _integer(count, 0, MAX_POSITIONS)
    _integer(first_id, 1, MAX_ID - max(count - 1, 0))
    if not isinstance(priorities, bytes):
        priorities = bytes([_integer(priorities, 1, MAX_PRIORITY)]) * count
    if len(priorities) != count or any(not 1 <= priority <= MAX_PRIORITY for priority in priorities):
        raise ValueError("priorities")
    return [f"{queue}:s{shard}:p{priority}:{first_id + i}" for i, priority in enumerate(priorities)]


def parse_descriptor(text: str) -> tuple[str, str, int, int]:
    """As `parse_descriptor`."""
    if not isinstance(text, str):
        raise TypeError("descriptor")
    match = _DESCRIPTOR.fullmatch(text)
    if match is None or int(match[3]) > MAX_PRIORITY or int(match[4]) > MAX_ID:
        raise ValueError("descriptor")
    return match[1], match[2], int(match[3]), int(match[4])


def group_descriptors(descriptors: Sequence[str]) -> list[tuple[str, str, bytes, list[bytes], list[int]]]:
    """As `group_descriptors`."""
    shards: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for position, text in enumerate(descriptors):
        queue, shard, priority, id = parse_descriptor(text)
        shards.setdefault((queue, shard), []).append((priority, id, position))
    groups = []
    for (queue, shard), items in shards.items():
        for chunk in _chunks(items, MAX_BATCH):
            ids = [id.to_bytes(8, "big") for _, id, _ in chunk]
            groups.append((queue, shard, bytes(p for p, _, _ in chunk), ids, [at for _, _, at in chunk]))
    return groups


def pack_jobs(jobs: Iterable[Any], body_limit: int, priorities: int) -> tuple[bytes, bytes, list[bytes]]:
    """As `pack_jobs`; a job is a `NewJob` of this file or of `_core`, or bytes-like."""
    entries: list[tuple[int, int, int]] = []
    statuses = bytearray()
    records = []
    for position, item in enumerate(jobs):
        job = item if hasattr(item, "attempts") else NewJob(_bytes_like(item), 1, None, None, 2, "", None)
        if job.priority > priorities or len(job.body) > body_limit or position >= MAX_POSITIONS:
            raise ValueError("job")
        kind = 1 if job.run_after_ms else 2 if job.delay_ms else 0
        entries.append((job.priority, kind, job.run_after_ms or job.delay_ms or 0))
        statuses += _status_run(position, job.status)
        records.append(struct.pack(">BHB", 1, job.attempts, job.priority) + job.body)
    runs = [(entry, len(list(run))) for entry, run in groupby(entries)]
    spec = b"".join(struct.pack(">BBHIH", p, kind, ms >> 32, ms & 0xFFFFFFFF, n) for (p, kind, ms), n in runs)
    return spec, bytes(statuses), records


class CommandHead:
    """As `CommandHead`."""

    def __init__(self, arguments: Iterable[bytes | str | int]) -> None:
        self._arguments = tuple(arguments)
        pack_commands([self._arguments])  # refuses what cannot be packed

    def command(self, arguments: Iterable[bytes | str | int]) -> bytes:
        """As `CommandHead.command`."""
        return pack_commands([(*self._arguments, *arguments)])


def pack_commands(commands: Iterable[tuple[bytes | str | int, ...] | bytes]) -> bytes:
    """RESP arrays of bulk strings. A command that is bytes is packed already."""
    packed = b""
    for command in commands:
        if isinstance(command, bytes):
            packed += command
            continue
        packed += b"*%d\r\n" % len(command)
        for argument in command:
            if isinstance(argument, bool) or not isinstance(argument, bytes | str | int):
                raise TypeError(f"argument: expected bytes, str or int, got {type(argument).__name__}")
            data = argument if isinstance(argument, bytes) else str(argument).encode()
            packed += b"$%d\r\n%b\r\n" % (len(data), data)
    return packed


def unpack_record(record: bytes) -> tuple[int, int, bytes]:
    """As `unpack_record`."""
    if len(record) < 4 or record[0] != 1:
        raise ValueError("record")
    attempts, priority = struct.unpack_from(">HB", record, 1)
    return attempts, priority, record[4:]


def decode_claim(reply: list[Any], queue: str, shard: str) -> Claim:
    """As `decode_claim`."""
    if len(reply) < 3 or not isinstance(reply[2], bytes) or not all(isinstance(part, list) for part in reply[3:]):
        raise ValueError("reply")
    head, records = reply[2], [record for part in reply[3:] for record in part]
    if not head:
        head = bytes(16)
    elif len(reply) == 3 and any(head[:8]):  # a simple job
        if len(head) < 17:
            raise ValueError("head")
        records, head = [head[17:]], head[9:17] + bytes(8) + head[:1] + b"\0\1" + head[1:9] + b"\0\0"
    if len(head) < 16 or head[14] > 4 or len(head) < 16 + 4 * head[15]:
        raise ValueError("head")
    token, counts = head[:8].strip(b"\0") and head[:8], list(struct.unpack_from(f">{head[15]}I", head, 16))
    taken = list(_read_ids(head[16 + 4 * head[15] :]))
    if len(records) != len(taken) or not all(isinstance(record, bytes) for record in records):
        raise ValueError("records")
    jobs = []
    for (priority, id, remaining, crashed), record in zip(taken, records, strict=True):
        allowed, _, body = unpack_record(record)
        left_over = allowed if remaining is None else remaining
        jobs.append(Job(queue, shard, priority, id, body, token or NO_TOKEN, allowed, left_over, crashed))
    due_in_ms = int.from_bytes(head[8:14], "big")
    return Claim(token, jobs, counts, due_in_ms, head[14], any(job.crashed for job in jobs))


def group_acks(succeeded: Sequence[Any], failed: Sequence[Any], tombstone: bool = False) -> list[AckBatch]:
    """As `group_acks`; a job is anything that has a `Job`'s attributes."""
    items = [(0, item) for item in succeeded] + [(1, item) for item in failed]
    acks = [_read_ack(item, kind, position) for position, (kind, item) in enumerate(items)]
    return [_pack_acks(chunk, bytes([tombstone]), False) for chunk in _ack_chunks(acks)]


def group_ack_calls(calls: Sequence[AckCall], any_source: bool, most: int) -> list[AckBatch]:
    """As `group_ack_calls`."""
    items = [(call, *ack) for call in calls for ack in call.acks]
    acks = [
        _Ack(*_target(item, kind), delay_ms, status, position, "" if any_source else call.source)
        for position, (call, kind, item, status, delay_ms) in enumerate(items)
    ]
    longest = 0 if any_source else max((len(call.source.encode()) for call in calls), default=0)
    batches = []
    for chunk in _ack_chunks(acks, max(1, min(most, MAX_BATCH, 65_535 // (1 + longest)))):
        sources = [] if any_source else list(dict.fromkeys(items[ack.position][0].source for ack in chunk))
        numbers = [sources.index(items[ack.position][0].source) if sources else 0 for ack in chunk]
        named = [ack._replace(token=number.to_bytes(8, "big")) for ack, number in zip(chunk, numbers, strict=True)]
        block = b"".join(bytes([len(name.encode())]) + name.encode() for name in sources)
        packed = _pack_acks(named, bytes([2 * any_source]), False)
        batches.append(packed._replace(sources=block, tokenless=True))
    return batches


def group_releases(jobs: Sequence[Any]) -> list[AckBatch]:
    """As `group_releases`."""
    acks = [_Ack(*_target(job, 0), 0, "", position) for position, job in enumerate(jobs)]
    return [_pack_acks(chunk, b"\0", True) for chunk in _ack_chunks(acks)]


def unpack_info(info: bytes) -> tuple[int, int, int, int, int, int, int, int, str, str, bytes | None]:
    """As `unpack_info`."""
    try:
        state, priority, id, allowed, left, after_high, after, up_high, up, crashes = struct.unpack_from(
            ">BBQHHHIHIH", info
        )
        status, at = _sized(info, struct.calcsize(">BBQHHHIHIH"))
        claim, at = _sized(info, at)
        has_body = info[at]
    except (struct.error, IndexError) as error:
        raise ValueError("info") from error
    body = info[at + 1 :]
    if state > 3 or has_body > 1 or (body and not has_body):
        raise ValueError("info")
    texts = (status.decode(errors="replace"), claim.decode(errors="replace"))
    times = (after_high << 32 | after, up_high << 32 | up)
    return state, priority, id, allowed, left, *times, crashes, *texts, body if has_body else None


class TokenBucket:
    """As `TokenBucket`."""

    def __init__(self) -> None:
        self._tokens: int | Fraction = 0
        self._most = 0
        self._until_ms: int | None = 0  # None: it flows
        self._count, self._per_ms = 0, 1
        self._latest_ms = 0

    @property
    def held(self) -> int:
        """Whole tokens."""
        return math.floor(self._tokens)

    def grant(self, n: int, until_ms: int) -> None:
        """As `TokenBucket.grant`."""
        n, until_ms = _integer(n, 0, MAX_ID), _integer(until_ms, 0, MAX_ID)
        self._tokens = self._most = n
        self._until_ms = until_ms
        self._pass(0)

    def flow(self, count: int, per_ms: int, burst: int, now_ms: int) -> None:
        """As `TokenBucket.flow`."""
        count, per_ms = _integer(count, 0, 2**32 - 1), _integer(per_ms, 1, 2**32 - 1)
        burst, now_ms = _integer(burst, 1, 1_000_000), _integer(now_ms, 0, MAX_ID)
        self._pass(now_ms)
        kept = self._tokens if self._until_ms is None else 0
        self._tokens = min(Fraction(math.floor(kept * per_ms), per_ms), Fraction(burst))
        self._count, self._per_ms, self._most, self._until_ms = count, per_ms, burst, None

    def take(self, n: int, now_ms: int) -> int:
        """As `TokenBucket.take`."""
        n, now_ms = _integer(n, 0, MAX_ID), _integer(now_ms, 0, MAX_ID)
        self._pass(now_ms)
        taken = 0 if self._is_paused() else min(n, self.held)
        self._tokens -= taken
        return taken

    def give_back(self, n: int) -> None:
        """As `TokenBucket.give_back`."""
        self._tokens = min(self._tokens + _integer(n, 0, MAX_ID), self._most)

    def empty(self, now_ms: int) -> int:
        """As `TokenBucket.empty`."""
        self._pass(_integer(now_ms, 0, MAX_ID))
        taken = self.held
        self._tokens -= taken
        if self._until_ms is not None:
            self._most -= taken
        return taken

    def wait_ms(self, n: int, now_ms: int) -> int | None:
        """As `TokenBucket.wait_ms`."""
        n, now_ms = _integer(n, 0, MAX_ID), _integer(now_ms, 0, MAX_ID)
        self._pass(now_ms)
        if n == 0 or (n <= self._tokens and not self._is_paused()):
            return 0
        if self._until_ms is not None or self._is_paused() or n > self._most:
            return None
        return self._latest_ms - now_ms + math.ceil((n - self._tokens) / Fraction(self._count, self._per_ms))

    def _is_paused(self) -> bool:
        return self._until_ms is None and self._count == 0

    def _pass(self, now_ms: int) -> None:
        passed_ms = max(now_ms - self._latest_ms, 0)
        self._latest_ms += passed_ms
        if self._until_ms is None:
            self._tokens = min(self._tokens + Fraction(self._count * passed_ms, self._per_ms), Fraction(self._most))
        elif self._latest_ms >= self._until_ms:
            self._tokens = self._most = 0


def _integer(value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("integer")
    if not low <= value <= high:
        raise ValueError("range")
    return value


def _bytes_like(value: Any) -> bytes:
    return bytes(memoryview(value))


def _key(key: Any) -> bytes:
    packed = key.encode() if isinstance(key, str) else _bytes_like(key)
    if 1 <= len(packed) <= 1024:
        return packed
    raise ValueError("key")


def _status(status: Any) -> str:
    if not isinstance(status, str):
        raise TypeError("status")
    if len(status.encode()) > MAX_STATUS_BYTES:
        raise ValueError("status")
    return status


def _status_run(position: int, status: str) -> bytes:
    packed = status.encode()
    return struct.pack(">HH", position, len(packed)) + packed if status else b""


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _read_ids(block: bytes) -> Iterator[tuple[int, int, int | None, bool]]:
    at = 0
    while at < len(block):
        try:
            priority, count = struct.unpack_from(">BH", block, at)
            ids = struct.unpack_from(f">{count}Q", block, at + 3)
            at += 3 + 8 * count
            exceptions = struct.unpack_from(">H", block, at)[0]
            pairs = struct.unpack_from(f">{2 * exceptions}H", block, at + 2)
            at += 2 + 4 * exceptions
        except struct.error as error:
            raise ValueError("jobs block") from error
        if not 1 <= priority <= MAX_PRIORITY:
            raise ValueError("priority")
        attempts: list[int | None] = [None] * count
        crashed = [False] * count
        for marked, left in zip(pairs[::2], pairs[1::2], strict=True):
            index = marked % 32768
            if index >= count:
                raise ValueError("index")
            attempts[index], crashed[index] = left, marked >= 32768
        yield from zip([priority] * count, ids, attempts, crashed, strict=True)


def _target(item: Any, kind: int) -> tuple[str, str, int, int, int, bytes]:
    """queue, shard, priority, kind, id, token"""
    if hasattr(item, "attempts_remaining"):
        return item.queue, item.shard, item.priority, kind, item.id, item.token
    if isinstance(item, tuple) and len(item) != 2:
        raise TypeError("target")
    text, token = item if isinstance(item, tuple) else (item, None)
    token = NO_TOKEN if token is None else _bytes_like(token)
    if len(token) != 8:
        raise ValueError("token")
    queue, shard, priority, id = parse_descriptor(text)
    return queue, shard, priority, kind, id, token


def _read_ack(item: Any, kind: int, position: int) -> _Ack:
    status, delay_ms = "", 0
    if isinstance(item, tuple) and len(item) == 3:
        item, status, delay_ms = item
        _integer(delay_ms, 0, 0 if kind == 0 else MAX_TIME_MS)
    return _Ack(*_target(item, kind), delay_ms, _status(status), position)


def _ack_chunks(acks: list[_Ack], most: int = MAX_BATCH) -> Iterator[list[_Ack]]:
    seen: dict[tuple[str, str, int, int], set[tuple[bytes, str]]] = {}
    shards: dict[tuple[str, str], list[_Ack]] = {}
    for ack in acks:
        shard = shards.setdefault((ack.queue, ack.shard), [])
        claims = seen.setdefault((ack.queue, ack.shard, ack.priority, ack.id), set())
        claim = ack.token, ack.source
        if claim not in claims and all((token == NO_TOKEN) is (ack.token == NO_TOKEN) for token, _ in claims):
            claims.add(claim)
            shard.append(ack)
    for shard in shards.values():
        yield from _chunks(shard, most)


def _pack_acks(chunk: list[_Ack], flags: bytes, release: bool) -> AckBatch:
    chunk = sorted(chunk, key=lambda ack: (ack.priority, ack.kind, ack.token))
    groups, statuses = bytearray(), bytearray()
    for (priority, kind), members in groupby(chunk, key=lambda ack: (ack.priority, ack.kind)):
        group = list(members)
        groups += bytes([priority] if release else [priority, kind]) + struct.pack(">H", len(group))
        for token, run in groupby(group, key=lambda ack: ack.token):
            groups += token + struct.pack(">H", len(list(run)))
        if kind == 1 and not release:
            groups += b"".join(ack.delay_ms.to_bytes(6, "big") for ack in group)
    for position, ack in enumerate(chunk):
        statuses += _status_run(position, ack.status)
    ids = [ack.id.to_bytes(8, "big") for ack in chunk]
    at, tokenless = [ack.position for ack in chunk], any(ack.token == NO_TOKEN for ack in chunk)
    fails = any(ack.kind == 1 for ack in chunk)
    return AckBatch(*chunk[0][:2], flags, bytes(groups), b"", bytes(statuses), ids, at, tokenless, fails)


def _sized(packed: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">H", packed, at)
    end = at + 2 + length
    if end > len(packed):
        raise ValueError("length")
    return packed[at + 2 : end], end
