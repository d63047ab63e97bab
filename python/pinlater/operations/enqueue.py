"""Enqueuing jobs. Flows only, no I/O.

Promises:
    All jobs are checked before the first one is sent.
    Each part of a large call is atomic.
    A job is sent to a second shard only if the first one certainly did not take it.
Risks: some parts of a large call can fail. Then the call raises PartialEnqueue.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import (
    NotAtHome,
    OutcomeUnknown,
    PartialEnqueue,
    PinLaterError,
    QueueFull,
    ServerFull,
    ServerUnavailable,
    checked,
)
from pinlater.model.jobs import NewJob
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.home import home_of
from pinlater.operations.queue_shards import ASK_AGAIN_S, agreed_queue_shards, known_queue_shards, newest_of
from pinlater.store.effects import Argument, Flow, complete, together
from pinlater.store.requests import CommonKeys, write
from pinlater.store.shards import QueueShard, Session, shard_for_key

MAX_BATCH: Final = _core.MAX_BATCH
#: A call that reads and writes statuses takes at most this many jobs, so that it does not block a server for long.
CALL_JOBS: Final = 250
#: A part of an enqueue carries at most this many bytes of records and statuses, but always one job.
PART_BYTES: Final = 1024 * 1024
#: A large call sends at most this many parts at a time.
PARTS_AT_ONCE: Final = 8
# the fields of one run of a spec that the client reads: priority and number of jobs
_RUN: Final = struct.Struct(">B7xH")
# what stands before a status: the position of its job, and its length
_STATUS: Final = struct.Struct(">HH")

#: A configuration, and jobs that `_core.pack_jobs` packed for it.
_Packed: TypeAlias = tuple[QueueConfig, tuple[bytes, bytes, list[bytes]]]


def enqueue(session: Session, queue: str, job: NewJob, deadline_s: float) -> Flow[str]:
    """Enqueues one job. Returns its descriptor."""
    queue_shards = agreed_queue_shards(session, queue)
    if len(queue_shards) == 1:
        return _enqueue_at(queue_shards[0], [job], deadline_s, True, None, alone=True)
    return complete(enqueue_many(session, queue, [job], deadline_s), lambda descriptors: descriptors[0])


def enqueue_many(session: Session, queue: str, jobs: list[bytes | NewJob], deadline_s: float) -> Flow[list[str]]:
    """Enqueues jobs. Returns their descriptors in order. Checks all of them first; then each part is atomic."""
    queue_shards = agreed_queue_shards(session, queue) or (yield from known_queue_shards(session, queue, deadline_s))
    if not jobs:
        return []
    sizes, packed = _validate(jobs, queue_shards)
    if packed[0].max_running is not None:
        queue_shards = [home_of(session, queue, packed[0])]
    if len(session.shards) == 1 and len(jobs) <= MAX_BATCH and sum(sizes) <= PART_BYTES:
        found: list[str] = yield from _enqueue_at(queue_shards[0], jobs, deadline_s, True, packed)
        return found
    parts = [
        (candidates, part)
        for candidates, chosen in _by_queue_shard(session, queue_shards, jobs, packed[0])
        for part in _parts(sizes, chosen)
    ]
    if len(parts) == 1:
        return (yield from _enqueue_part(session, parts[0][0], jobs, deadline_s, packed))
    flows = [
        _enqueue_part(session, candidates, [jobs[position] for position in part], deadline_s)
        for candidates, part in parts
    ]
    results: list[Any] = []
    for first in range(0, len(flows), PARTS_AT_ONCE):
        results += yield from together(flows[first : first + PARTS_AT_ONCE])
    return _in_order(len(jobs), [part for _, part in parts], results)


def _validate(jobs: list[Any], queue_shards: list[QueueShard]) -> tuple[list[int], _Packed]:
    """Checks every job before any is sent: a bad job in the last part must not leave the first parts enqueued.

    Returns the sizes of all jobs in bytes, with their statuses, and up to 1,000 packed jobs: all, if they fit one part.
    """
    assert queue_shards[0].stored is not None
    config = queue_shards[0].stored.config
    sizes: list[int] = []
    limits = config.body_limit, config.priorities
    for first in range(0, len(jobs), MAX_BATCH):
        packed = checked(_core.pack_jobs, jobs[first : first + MAX_BATCH], *limits, first, len(jobs))
        sizes += map(len, packed[2])
        for position, length in status_sizes(packed[1]):
            sizes[first + position] += length
    return sizes, (config, packed)


def status_sizes(statuses: bytes) -> Iterator[tuple[int, int]]:
    """Position and bytes of each packed status."""
    at = 0
    while at < len(statuses):
        position, length = _STATUS.unpack_from(statuses, at)
        yield position, length
        at += _STATUS.size + length


def _by_queue_shard(
    session: Session, queue_shards: list[QueueShard], jobs: list[Any], config: QueueConfig
) -> list[tuple[list[QueueShard], list[int]]]:
    """Groups of jobs: the candidate queue shards of a group, and the positions of its jobs.

    A job with a key has one candidate. Jobs without a key have all queue shards, in random order. All jobs of a queue
    with max_running go to its home shard, the only one of `queue_shards` then.
    """
    keyed: dict[str, list[int]] = {}
    free: list[int] = []
    if len(session.shards) == 1 or config.max_running is not None:
        return [(queue_shards, list(range(len(jobs))))]
    names = list(session.shards)
    for position, job in enumerate(jobs):
        key = job.key if isinstance(job, NewJob) else None
        (free if key is None else keyed.setdefault(shard_for_key(key, names), [])).append(position)
    groups = [([session.queue_shard(queue_shards[0].queue, name)], positions) for name, positions in keyed.items()]
    if free:
        groups.append((shuffled(queue_shards), free))
    return groups


def shuffled(queue_shards: list[QueueShard]) -> list[QueueShard]:
    """The queue shards in random order. Those that did not answer last time come last."""
    now_s = time.monotonic()
    return sorted(
        random.sample(queue_shards, len(queue_shards)), key=lambda queue_shard: queue_shard.silent_until_s > now_s
    )


def _parts(sizes: list[int], positions: list[int]) -> list[list[int]]:
    """The positions in parts of at most 1,000 jobs and PART_BYTES."""
    if len(positions) <= MAX_BATCH and sum(sizes) <= PART_BYTES:
        return [positions]
    parts: list[list[int]] = [[]]
    total = 0
    for position in positions:
        if len(parts[-1]) == MAX_BATCH or (parts[-1] and total + sizes[position] > PART_BYTES):
            parts.append([])
            total = 0
        parts[-1].append(position)
        total += sizes[position]
    return parts


def _enqueue_part(
    session: Session, candidates: list[QueueShard], jobs: list[Any], deadline_s: float, packed: _Packed | None = None
) -> Flow[list[str]]:
    """Enqueues on the first candidate that takes the jobs. Tries the next only if it certainly did not take them."""
    found: list[str]
    try:
        found = yield from _enqueue_on_first(candidates, jobs, deadline_s, packed)
    except NotAtHome:  # the queue got max_running after this client chose the candidates
        queue = candidates[0].queue
        newest = newest_of(queue_shard.stored for queue_shard in session.queue_shards(queue))
        if newest is None or newest.config.home not in session.shards:
            raise
        home = session.queue_shard(queue, newest.config.home)
        home.stored = None  # what this client knows of it may be older, and name another home
        found = yield from _enqueue_at(home, jobs, deadline_s, True, None)
    return found


def _enqueue_on_first(
    candidates: list[QueueShard], jobs: list[Any], deadline_s: float, packed: _Packed | None
) -> Flow[list[str]]:
    for queue_shard in candidates[:-1]:
        try:
            found: list[str] = yield from _enqueue_at(queue_shard, jobs, deadline_s, False, packed)
            return found
        except (ServerUnavailable, ServerFull):
            queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
        except QueueFull:
            pass  # of this shard; it still gives jobs, so it is not silent
    found = yield from _enqueue_at(candidates[-1], jobs, deadline_s, True, packed)
    return found


def _enqueue_at(
    queue_shard: QueueShard,
    jobs: list[Any],
    deadline_s: float,
    patient: bool,
    packed: _Packed | None,
    *,
    alone: bool = False,
) -> Flow[Any]:
    """Enqueues jobs on one queue shard. Returns their descriptors; with `alone` the descriptor of the only job."""
    part = _Part(queue_shard, jobs, packed, alone)
    return write(queue_shard, "enqueue", part.arguments, deadline_s, patient=patient, finish=part.descriptors)


class _Part:
    """The arguments of one call on one queue shard, and the descriptors from its reply."""

    __slots__ = ("_alone", "_jobs", "_packed", "_queue_shard", "_spec")

    def __init__(self, queue_shard: QueueShard, jobs: list[Any], packed: _Packed | None, alone: bool) -> None:
        self._queue_shard, self._jobs, self._packed, self._alone = queue_shard, jobs, packed, alone
        self._spec = b""

    def arguments(self, config: QueueConfig) -> list[Argument]:
        """The arguments of the script."""
        packed = self._packed
        if packed is not None and (packed[0] is config or packed[0] == config):
            self._spec, statuses, records = packed[1]
        else:
            self._spec, statuses, records = pack_jobs(self._jobs, config)
        spec = self._spec
        given: list[Argument] = [spec, statuses, *records]
        # one run of jobs: one priority, due now
        return CommonKeys(given, spec[0]) if not statuses and len(spec) == _RUN.size and spec[1] == 0 else given

    def descriptors(self, reply: list[Any]) -> Any:
        """The descriptors: the reply has the first id, and the others follow it."""
        spec, queue_shard = self._spec, self._queue_shard
        one = len(spec) == _RUN.size
        priorities = spec[0] if one else b"".join(bytes([priority]) * n for priority, n in _RUN.iter_unpack(spec))
        first = int.from_bytes(reply[2], "big")
        found = _core.format_descriptors(queue_shard.queue, queue_shard.shard.name, priorities, first, len(self._jobs))
        return found[0] if self._alone else found


def pack_jobs(jobs: Sequence[Any], config: QueueConfig) -> tuple[bytes, bytes, list[bytes]]:
    """The spec, statuses and records of jobs. Raises InvalidArgument with the number of the wrong job."""
    packed: tuple[bytes, bytes, list[bytes]] = checked(_core.pack_jobs, jobs, config.body_limit, config.priorities)
    return packed


def _in_order(count: int, parts: list[list[int]], results: list[Any]) -> list[str]:
    ordered: list[Any] = [None] * count
    for positions, result in zip(parts, results, strict=True):
        for offset, position in enumerate(positions):
            ordered[position] = result if isinstance(result, PinLaterError) else result[offset]
    errors = [result for result in results if isinstance(result, PinLaterError)]
    if not errors:
        return ordered
    if len(errors) == len(results) and not any(isinstance(error, OutcomeUnknown) for error in errors):
        raise errors[0]
    raise PartialEnqueue(ordered)


def when(run_after_ms: int | None, delay_ms: int | None) -> tuple[int, int]:
    """The kind of a run-after time and its milliseconds, as the scripts take them."""
    if run_after_ms:
        return 1, run_after_ms
    return (2, delay_ms) if delay_ms else (0, 0)
