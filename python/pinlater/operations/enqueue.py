"""Enqueuing jobs. Flows only, no I/O.

Promises:
    All jobs are checked before the first one is sent.
    Each part of a large call is atomic.
    A job is sent to a second shard only if the first one certainly did not take it.
    A shard that is dequeue-only when the call chooses gets none.
Risks: some parts of a large call can fail. Then the call raises PartialEnqueue.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import (
    DequeueOnly,
    NoHealthyShards,
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
from pinlater.operations.queue_shards import (
    agreed_queue_shards,
    is_passed_over,
    known_queue_shards,
    newest_of,
    pass_over,
)
from pinlater.store.effects import Argument, Flow, complete, together
from pinlater.store.requests import CommonKeys, start_write, write
from pinlater.store.servers import Server
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

#: Jobs as a script takes them: spec, statuses and records.
PackedJobs: TypeAlias = tuple[bytes, bytes, _core.Records]
#: A configuration, and the jobs that were packed for it.
_Packed: TypeAlias = tuple[QueueConfig, PackedJobs]


def enqueue(session: Session, queue: str, job: NewJob, deadline_s: float) -> Flow[str]:
    """Enqueues one job. Returns its descriptor."""
    queue_shards = agreed_queue_shards(session, queue)
    if len(queue_shards) == 1 and not queue_shards[0].shard.dequeue_only:
        return _enqueue_at(queue_shards[0], _SinglePart([job]), deadline_s, True)
    return complete(enqueue_many(session, queue, [job], deadline_s), lambda descriptors: descriptors[0])


def enqueue_many(session: Session, queue: str, jobs: list[Any], deadline_s: float) -> Flow[list[str]]:
    """Enqueues jobs. Returns their descriptors in order. Checks all of them first; then each part is atomic."""
    queue_shards = agreed_queue_shards(session, queue) or (yield from known_queue_shards(session, queue, deadline_s))
    if not jobs:
        return []
    sizes, packed = _validate(jobs, queue_shards)
    queue_shards = _takers(session, queue_shards, packed[0])
    if len(session.shards) == 1 and len(jobs) <= MAX_BATCH and sum(sizes) <= PART_BYTES:
        found: list[str] = yield from _enqueue_at(queue_shards[0], _Part(jobs, packed), deadline_s, True)
        return found
    parts = [
        (candidates, part)
        for candidates, chosen in _by_queue_shard(session, queue_shards, jobs, packed[0])
        for part in _parts(sizes, chosen)
    ]
    if len(parts) == 1:
        found = yield from _enqueue_part(session, parts[0][0], _Part(jobs, packed), deadline_s)
        return found
    flows = [
        _enqueue_part(session, candidates, _Part([jobs[position] for position in part]), deadline_s)
        for candidates, part in parts
    ]
    results: list[Any] = []
    for first in range(0, len(flows), PARTS_AT_ONCE):
        results += yield from together(flows[first : first + PARTS_AT_ONCE])
    return _in_order(len(jobs), [part for _, part in parts], results)


def enqueue_packed(
    session: Session, queue: str, pack: Callable[[QueueConfig], PackedJobs], deadline_s: float
) -> Flow[tuple[str, int]]:
    """Enqueues jobs that fit one script call, on any shard. Returns the name of the shard and the id of the first job;
    the ids of the others follow it.

    pack: packs the jobs for a configuration. Raises InvalidArgument.
    """
    queue_shards = agreed_queue_shards(session, queue) or (yield from known_queue_shards(session, queue, deadline_s))
    assert queue_shards[0].stored is not None
    config = queue_shards[0].stored.config
    part = _PackedPart(pack, (config, pack(config)))
    candidates = shuffled(_takers(session, queue_shards, config))
    found: tuple[str, int] = yield from _enqueue_part(session, candidates, part, deadline_s)
    return found


class StartedEnqueue:
    """Packed jobs for the only shard of a queue, before the answer is there.

    Its owner sends `command` to `server` once. Then it calls `result`, and `go_on` if that returns None; or `drop`.
    Results are those of enqueue_packed.
    """

    __slots__ = ("_part", "_queue_shard", "_started", "command", "drop")

    def __init__(self, queue_shard: QueueShard, part: _Part) -> None:
        self._queue_shard, self._part = queue_shard, part
        self._started = start_write(queue_shard, "enqueue", part.arguments)
        self.command, self.drop = self._started.command, self._started.drop

    @property
    def server(self) -> Server:
        """Where to send the command."""
        return self._queue_shard.shard.server

    def result(self, answer: Any) -> tuple[str, int] | None:
        """None: the answer is no reply."""
        reply = self._started.reply(answer)
        found: tuple[str, int] | None = self._part.result(self._queue_shard, reply) if reply else None
        return found

    def go_on(self, answer: Any, deadline_s: float) -> Flow[tuple[str, int]]:
        """The result, behind an answer that is no reply."""
        return complete(self._started.go_on(answer, deadline_s), partial(self._part.result, self._queue_shard))


def start_packed(session: Session, queue: str, pack: Callable[[QueueConfig], PackedJobs]) -> StartedEnqueue | None:
    """As enqueue_packed, for a queue on one shard without max_running. None: it is another one, or not known, or its
    shard takes no jobs now; enqueue_packed finds out.
    """
    config = session.known_config(queue)
    if config is None or config.max_running is not None or len(session.shards) != 1:
        return None
    [queue_shard] = session.queue_shards(queue)
    shard = queue_shard.shard
    if not queue_shard.is_known or shard.dequeue_only or shard.server.outage is not None:
        return None
    return StartedEnqueue(queue_shard, _PackedPart(pack, (config, pack(config))))


def _takers(session: Session, queue_shards: list[QueueShard], config: QueueConfig) -> list[QueueShard]:
    """Those that new jobs may go to now: the home shard of a queue with max_running, else all that take new jobs and
    are healthy. Those on suspect servers are left out if there are others.
    """
    queue = queue_shards[0].queue
    if config.max_running is not None:
        return [_taking_home(session, queue, config)]
    if not session.taking:
        names = ", ".join(session.shards)
        raise DequeueOnly(f"queue {queue!r}: expected a shard that takes new jobs, each one ({names}) is dequeue-only")
    taking = [queue_shard for queue_shard in queue_shards if not queue_shard.shard.dequeue_only]
    if not taking:
        raise ServerUnavailable(
            f"queue {queue!r}: no answer from shard {', '.join(session.taking)}; the others take none"
        )
    if healthy := [queue_shard for queue_shard in taking if queue_shard.shard.server.outage is None]:
        return [queue_shard for queue_shard in healthy if not queue_shard.shard.server.suspect] or healthy
    raise NoHealthyShards(f"queue {queue!r}: no shard that takes new jobs is healthy: {', '.join(session.taking)}")


def _taking_home(session: Session, queue: str, config: QueueConfig) -> QueueShard:
    """The home shard of a queue with max_running. Raises DequeueOnly if it takes no new jobs."""
    home = home_of(session, queue, config)
    if home.shard.dequeue_only:
        advice = f"pinlater queue set {queue} --home {session.taking[0]}" if session.taking else "add a shard"
        raise DequeueOnly(
            f"queue {queue!r} has max_running, so its jobs live on shard {config.home!r}, which is dequeue-only: "
            f"expected another home; once the queue is empty: {advice}"
        )
    return home


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
        sizes += packed[2].sizes()
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

    A job with a key has one candidate, of the shards that take new jobs. Jobs without a key have all of `queue_shards`,
    in random order. All jobs of a queue with max_running go to its home shard, the only one of `queue_shards` then.
    """
    keyed: dict[str, list[int]] = {}
    free: list[int] = []
    if len(session.taking) == 1 or config.max_running is not None:
        return [(queue_shards, list(range(len(jobs))))]
    names = session.taking
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
    in_random_order = random.sample(queue_shards, len(queue_shards))
    return sorted(in_random_order, key=lambda queue_shard: is_passed_over(queue_shard, now_s))


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


def _enqueue_part(session: Session, candidates: list[QueueShard], part: _Part, deadline_s: float) -> Flow[Any]:
    """Enqueues on the first candidate that takes the jobs. Tries the next only if it certainly did not take them."""
    try:
        return (yield from _enqueue_on_first(candidates, part, deadline_s))
    except NotAtHome:  # the queue got max_running after this client chose the candidates
        queue = candidates[0].queue
        newest = newest_of(queue_shard.stored for queue_shard in session.queue_shards(queue))
        if newest is None or newest.config.home not in session.shards:
            raise
        home = _taking_home(session, queue, newest.config)
        home.stored = None  # what this client knows of it may be older, and name another home
    return (yield from _enqueue_at(home, part, deadline_s, True))


def _enqueue_on_first(candidates: list[QueueShard], part: _Part, deadline_s: float) -> Flow[Any]:
    for queue_shard in candidates[:-1]:
        try:
            return (yield from _enqueue_at(queue_shard, part, deadline_s, False))
        except (ServerUnavailable, ServerFull, OutcomeUnknown) as error:
            pass_over(queue_shard, error)
            if isinstance(error, OutcomeUnknown):
                raise
        except QueueFull:
            pass  # of this shard; it still gives jobs, so it is not silent
    return (yield from _enqueue_at(candidates[-1], part, deadline_s, True))


def _enqueue_at(queue_shard: QueueShard, part: _Part, deadline_s: float, patient: bool) -> Flow[Any]:
    """Enqueues a part on one queue shard. Returns the result of the part."""
    finish = partial(part.result, queue_shard)
    return write(queue_shard, "enqueue", part.arguments, deadline_s, patient=patient, finish=finish)


class _Part:
    """Jobs of one script call: its arguments, and the descriptors from its reply.

    packed: the jobs, if they are packed already.
    """

    __slots__ = ("_jobs", "_packed", "_spec")

    def __init__(self, jobs: list[Any], packed: _Packed | None = None) -> None:
        self._jobs, self._packed = jobs, packed
        self._spec = b""

    def arguments(self, config: QueueConfig) -> list[Argument]:
        """The arguments of the script."""
        packed = self._packed
        if packed is not None and (packed[0] is config or packed[0] == config):
            self._spec, statuses, records = packed[1]
        else:
            self._spec, statuses, records = self.pack(config)
        spec = self._spec
        given: list[Argument] = [spec, statuses, records]
        # one run of jobs: one priority, due now
        return CommonKeys(given, spec[0]) if not statuses and len(spec) == _RUN.size and spec[1] == 0 else given

    def pack(self, config: QueueConfig) -> PackedJobs:
        """The jobs for a configuration."""
        return pack_jobs(self._jobs, config)

    def result(self, queue_shard: QueueShard, reply: list[Any]) -> Any:
        """The descriptors: the reply has the first id, and the others follow it."""
        spec = self._spec
        one = len(spec) == _RUN.size
        priorities = spec[0] if one else b"".join(bytes([priority]) * n for priority, n in _RUN.iter_unpack(spec))
        first = int.from_bytes(reply[2], "big")
        queue, shard = queue_shard.queue, queue_shard.shard.name
        return _core.format_descriptors(queue, shard, priorities, first, len(self._jobs))


class _SinglePart(_Part):
    """One job. The result is its descriptor."""

    __slots__ = ()

    def result(self, queue_shard: QueueShard, reply: list[Any]) -> Any:
        return super().result(queue_shard, reply)[0]


class _PackedPart(_Part):
    """Jobs that their owner packs. The result is the name of the shard and the id of the first job."""

    __slots__ = ("_pack",)

    def __init__(self, pack: Callable[[QueueConfig], PackedJobs], packed: _Packed) -> None:
        super().__init__([], packed)
        self._pack = pack

    def pack(self, config: QueueConfig) -> PackedJobs:
        return self._pack(config)

    def result(self, queue_shard: QueueShard, reply: list[Any]) -> Any:
        return queue_shard.shard.name, int.from_bytes(reply[2], "big")


def pack_jobs(jobs: Sequence[Any], config: QueueConfig) -> PackedJobs:
    """The spec, statuses and records of jobs. Raises InvalidArgument with the number of the wrong job."""
    packed: PackedJobs = checked(_core.pack_jobs, jobs, config.body_limit, config.priorities)
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
