"""What worker processes say of themselves, and what metrics show of a queue. Flows only, no I/O.

Promises that a process which says nothing is shown for a minute after its last word, and no longer. Each queue shard
has what concerns it alone: a user who may read one queue learns nothing of the jobs of another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, Final

import orjson

from pinlater.model.errors import PinLaterError
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Flow, together
from pinlater.store.requests import read
from pinlater.store.shards import QueueShard, Session

_MEASURED: Final = struct.Struct(">IIII6s")
_SINCE_BYTES: Final = 6
#: The fields of the JSON of a process, and of a job in it.
_RECORD: Final[Mapping[str, type | UnionType]] = {
    **dict.fromkeys(("host", "version"), str),
    **dict.fromkeys(("process", "concurrency", "started_ms", "running"), int),
    "jobs": list,
}
_JOB: Final[Mapping[str, type | UnionType]] = {
    "descriptor": str,
    "task": str | None,
    "attempt": int,
    "claimed_ms": int,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a process runs. claimed_ms: when it was claimed, by the clock of its server."""

    descriptor: str
    task: str | None
    attempt: int
    claimed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """A worker process, as it was at its last beat.

    source: its name in its claims.
    queues: those of its queues that were asked for.
    running: how many jobs of these queues it runs. jobs: the oldest of them.
    started_ms: by the clock of its host.
    silent_ms: time since its last beat.
    """

    source: str
    host: str
    process: int
    version: str
    concurrency: int
    started_ms: int
    silent_ms: int
    queues: list[str]
    running: int
    jobs: list[RunningJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMeasures:
    """The jobs of a queue shard by state, and how long the oldest due job has waited. pending: the due ones."""

    pending: int
    scheduled: int
    running: int
    failed: int
    oldest_due_ms: int


def beat(queue_shard: QueueShard, source: str, record: bytes, sweep: bytes, deadline_s: float) -> Flow[bytes]:
    """Keeps a process's record on a queue shard, for a minute. Returns the sweep of its next call.

    record: JSON. b"": the process has ended.
    sweep: b"0" in the first call.
    """
    reply = yield from read(queue_shard, "beat", [source, record, sweep], deadline_s)
    return bytes(reply[2])


def measure(queue_shard: QueueShard, reader: bytes, hold_ms: int, deadline_s: float) -> Flow[QueueMeasures | None]:
    """What metrics show of a queue shard. None: another process reads it.

    reader: 8 bytes that name the caller. hold_ms: the time from now for which nobody else reads it.
    """
    reply = yield from read(queue_shard, "measure", [reader, hold_ms], deadline_s)
    if not reply[2]:
        return None
    pending, scheduled, running, failed, oldest_ms = _MEASURED.unpack(reply[2])
    return QueueMeasures(
        pending=pending,
        scheduled=scheduled,
        running=running,
        failed=failed,
        oldest_due_ms=int.from_bytes(oldest_ms, "big"),
    )


def worker_processes(session: Session, queues: Iterable[str], deadline_s: float) -> Flow[list[WorkerProcess]]:
    """The worker processes of queues, by host and process. Raises the first error if no queue shard answers."""
    queue_shards: list[QueueShard] = []
    for queue in queues:
        queue_shards += yield from known_queue_shards(session, queue, deadline_s)
    results = yield from together([_processes(queue_shard, deadline_s) for queue_shard in queue_shards])
    errors = [result for result in results if isinstance(result, PinLaterError)]
    if errors and len(errors) == len(results):
        raise errors[0]
    by_source: dict[str, WorkerProcess] = {}
    for result in results:
        for process in [] if isinstance(result, PinLaterError) else result:
            known = by_source.get(process.source)
            by_source[process.source] = process if known is None else _merged(known, process)
    return sorted(by_source.values(), key=lambda process: (process.host, process.process, process.source))


def _processes(queue_shard: QueueShard, deadline_s: float) -> Flow[list[WorkerProcess]]:
    """The processes of one queue shard, with its jobs alone."""
    found: dict[bytes, WorkerProcess] = {}
    cursor = b""
    while cursor != b"0":
        reply = yield from read(queue_shard, "list_workers", [cursor or b"0"], deadline_s)
        cursor, entries = bytes(reply[2]), iter(reply[3:])
        for source, entry in zip(entries, entries, strict=True):
            # a user who may write the key may write anything
            with suppress(ValueError, TypeError, KeyError):
                found[source] = _unpack(queue_shard.queue, source, entry)
    return list(found.values())


def _unpack(queue: str, source: bytes, entry: bytes) -> WorkerProcess:
    """Raises ValueError, TypeError or KeyError for what is no record. Fields of a later version are left out."""
    record = _checked(orjson.loads(entry[_SINCE_BYTES:]), _RECORD)
    jobs = [RunningJob(**_checked(job, _JOB)) for job in record.pop("jobs")]
    return WorkerProcess(
        source=source.decode("utf-8", "replace"),
        silent_ms=int.from_bytes(entry[:_SINCE_BYTES], "big"),
        queues=[queue],
        jobs=jobs,
        **record,
    )


def _checked(record: Any, types: Mapping[str, type | UnionType]) -> dict[str, Any]:
    """The fields that have a type."""
    for name, kind in types.items():
        if not isinstance(record[name], kind):
            raise TypeError(f"{name}: expected {kind}, got {record[name]!r:.80}")
    return {name: record[name] for name in types}


def _merged(one: WorkerProcess, other: WorkerProcess) -> WorkerProcess:
    """One process, from what it says on two queue shards."""
    return replace(
        min(one, other, key=lambda process: process.silent_ms),
        queues=list(dict.fromkeys([*one.queues, *other.queues])),
        running=one.running + other.running,
        jobs=sorted([*one.jobs, *other.jobs], key=lambda job: job.claimed_ms),
    )
