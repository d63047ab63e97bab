"""Read operations on jobs: lookup, count, peek. Flows only, no I/O.

Promises to change nothing. Risks: counts of several shards are not from one moment.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, checked, from_reply
from pinlater.model.jobs import CountsByState, JobInfo
from pinlater.operations.backlog import Backlog
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.operations.queue_shards import every_queue_shard, naming
from pinlater.store.effects import Argument, Flow, NoAnswer, ReplyError, all_of, send
from pinlater.store.requests import read
from pinlater.store.shards import QueueShard, Session, Shard

#: A call of a script reads at most this many bytes of records and statuses, but always one job.
REPLY_BYTES: Final = 1024 * 1024
#: A dequeue, a dry run or a page of a merged scan ends after this many bytes of bodies, although it has fewer jobs than
#: asked, so that it fits into memory.
DEQUEUE_BYTES: Final = 4 * 1024 * 1024


#: Takes jobs as they are found. What it raises ends the lookup.
TakeFound: TypeAlias = Callable[[list[JobInfo]], None]


def lookup(
    session: Session,
    descriptors: Iterable[str],
    with_body: bool,
    deadline_s: float,
    *,
    take: TakeFound = lambda _: None,
) -> Flow[dict[str, JobInfo]]:
    """The JobInfo of each job, by descriptor. Unknown jobs are left out."""
    flows = [
        _lookup_everywhere(session, session.queue_shard(queue, shard), priorities, ids, with_body, deadline_s, take)
        for queue, shard, priorities, ids, _ in checked(_core.group_descriptors, list(descriptors))
    ]
    found = yield from all_of(flows, lambda parts: [info for part in parts for info in part])
    return {info.descriptor: info for info in found}


def _lookup_everywhere(
    session: Session,
    queue_shard: QueueShard,
    priorities: bytes,
    ids: list[bytes],
    with_body: bool,
    deadline_s: float,
    take: TakeFound,
) -> Flow[list[JobInfo]]:
    """Those of these jobs that are in Redis or in the backlog."""
    infos = yield from _lookup_at(queue_shard, priorities, ids, with_body, deadline_s, take)
    backlog: Backlog | None = session.backlog
    seen = None
    while backlog is not None and len(infos) < len(ids):
        found = {info.descriptor for info in infos}
        names = _format_each(queue_shard, priorities, ids)
        missing = [at for at, name in enumerate(names) if name not in found]
        if not missing:
            break
        rest = bytes(priorities[at] for at in missing), [ids[at] for at in missing]
        archived, now_seen = yield from backlog.lookup(queue_shard, *rest, with_body, deadline_s)
        take(archived)
        infos += archived
        if now_seen == seen:
            break
        seen = now_seen
        infos += yield from _lookup_at(queue_shard, *rest, with_body, deadline_s, take)
    return list({info.descriptor: info for info in infos}.values())


def _format_each(queue_shard: QueueShard, priorities: bytes, ids: list[bytes]) -> list[str]:
    """The descriptors of jobs of a queue shard."""
    queue, shard = queue_shard.queue, queue_shard.shard.name
    return [
        _core.format_descriptor(queue, shard, priority, int.from_bytes(id_, "big"))
        for priority, id_ in zip(priorities, ids, strict=True)
    ]


def _lookup_at(
    queue_shard: QueueShard, priorities: bytes, ids: list[bytes], with_body: bool, deadline_s: float, take: TakeFound
) -> Flow[list[JobInfo]]:
    infos: list[JobInfo] = []
    done, ask = 0, MAX_BATCH
    while done < len(ids):
        chosen = slice(done, done + ask)
        arguments: list[Argument] = [int(with_body), REPLY_BYTES, priorities[chosen], *ids[chosen]]
        reply = yield from read(queue_shard, "lookup", arguments, deadline_s)
        found = [JobInfo.unpack(queue_shard.queue, queue_shard.shard.name, packed) for packed in reply[2:] if packed]
        take(found)
        infos += found
        given = len(reply) - 2
        done, ask = done + given, min(MAX_BATCH, 2 * given)  # as many as the reply can have, most likely
    return infos


def server_time_ms(shard: Shard, deadline_s: float) -> Flow[int]:
    """TIME of a shard's server. Unlike ids, it goes back with the server's clock."""
    answer = (yield from send(shard.server, ("TIME",), deadline_s=deadline_s))[0]
    if isinstance(answer, ReplyError):
        raise from_reply(answer.text, f"TIME of {shard}")
    if isinstance(answer, NoAnswer):
        raise answer.error
    seconds, microseconds = map(int, answer)
    return seconds * 1000 + microseconds // 1000


def count(session: Session, queue: str, priority: int | None, deadline_s: float) -> Flow[CountsByState]:
    """The number of jobs in each state, over all shards. Raises ServerUnavailable that names a missing one."""
    queue_shards = yield from every_queue_shard(session, queue, deadline_s)
    check_priority(priority, queue_shards)
    count_of = count_at if session.backlog is None else session.backlog.count
    flows = [naming(queue_shard, count_of(queue_shard, deadline_s)) for queue_shard in queue_shards]
    parts = yield from all_of(flows, list)
    total = CountsByState()
    for priorities in parts:
        for counts in priorities if priority is None else priorities[priority - 1 : priority]:
            total += counts
    return total


def count_at(queue_shard: QueueShard, deadline_s: float) -> Flow[list[CountsByState]]:
    """The number of jobs in Redis in each state, by priority."""
    return CountsByState.unpack((yield from read(queue_shard, "count", [], deadline_s))[2])


def peek(session: Session, queue: str, deadline_s: float) -> Flow[dict[int, int]]:
    """The number of jobs that are due now, by priority, over all shards."""
    queue_shards = yield from every_queue_shard(session, queue, deadline_s)
    yield from all_of([naming(queue_shard, peek_at(queue_shard, deadline_s)) for queue_shard in queue_shards], list)
    return {
        priority: sum(queue_shard.left[priority - 1] for queue_shard in queue_shards)
        for priority in range(1, len(queue_shards[0].left) + 1)
    }


def peek_at(queue_shard: QueueShard, deadline_s: float) -> Flow[None]:
    """Reads the due jobs of a queue shard into its `left`. They are 0 while the queue is paused."""
    reply = yield from read(queue_shard, "peek", [], deadline_s)
    priorities, paused = len(reply[2]) // 4, reply[3] != b"0"
    queue_shard.left = [0] * priorities if paused else list(struct.unpack(f">{priorities}I", reply[2]))
    queue_shard.left_at_s = time.monotonic()


def check_priority(priority: int | None, queue_shards: list[QueueShard]) -> list[int]:
    """The priorities that a call covers: the given one, or all."""
    assert queue_shards[0].stored is not None
    priorities = queue_shards[0].stored.config.priorities
    if priority is None:
        return list(range(1, priorities + 1))
    if isinstance(priority, bool) or not isinstance(priority, int) or not 1 <= priority <= priorities:
        raise InvalidArgument(
            f"priority: expected 1 to {priorities} (the queue has {priorities} priorities), got {priority!r}"
        )
    return [priority]
