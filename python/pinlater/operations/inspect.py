"""Looking at jobs: lookup, count, peek, scan. Flows only, no I/O; nothing changes.

Promises that a job which stays where it is comes exactly once in a scan. Risks: counts of several shards are not of one
moment.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Final

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, checked
from pinlater.model.jobs import CountsByState, JobInfo, State
from pinlater.model.queue_config import check_integer
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Argument, Flow, all_of
from pinlater.store.requests import read
from pinlater.store.shards import QueueShard, Session

#: A claim, lookup or scan page returns at most so many bytes of records (one job always).
REPLY_BYTES: Final = 4 * 1024 * 1024


def lookup(
    session: Session, descriptors: Iterable[str], with_body: bool, deadline_s: float
) -> Flow[dict[str, JobInfo]]:
    """What is known of jobs, by descriptor; unknown ones are left out."""
    groups = checked(_core.group_descriptors, list(descriptors))
    flows = [
        _lookup_at(session.queue_shard(queue, shard), priorities, ids, with_body, deadline_s)
        for queue, shard, priorities, ids, _ in groups
    ]
    found = yield from all_of(flows, lambda parts: [info for part in parts for info in part])
    return {info.descriptor: info for info in found}


def _lookup_at(
    queue_shard: QueueShard, priorities: bytes, ids: list[bytes], with_body: bool, deadline_s: float
) -> Flow[list[JobInfo]]:
    infos: list[JobInfo] = []
    done = 0
    while done < len(ids):
        arguments: list[Argument] = [int(with_body), REPLY_BYTES, priorities[done:], *ids[done:]]
        reply = yield from read(queue_shard, "lookup", arguments, deadline_s)
        infos += [JobInfo.unpack(queue_shard.queue, queue_shard.shard.name, packed) for packed in reply[2:] if packed]
        done += len(reply) - 2
    return infos


def count(session: Session, queue: str, priority: int | None, deadline_s: float) -> Flow[CountsByState]:
    """How many jobs a queue has, over all shards."""
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    check_priority(priority, queue_shards)
    replies = yield from all_of([read(queue_shard, "count", [], deadline_s) for queue_shard in queue_shards], list)
    total = CountsByState()
    for reply in replies:
        priorities = CountsByState.unpack(reply[2])
        for counts in priorities if priority is None else priorities[priority - 1 : priority]:
            total += counts
    return total


def peek(session: Session, queue: str, deadline_s: float) -> Flow[dict[int, int]]:
    """How many jobs are due now, by priority, over all shards."""
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    yield from all_of([peek_at(queue_shard, deadline_s) for queue_shard in queue_shards], list)
    return {
        priority: sum(queue_shard.left[priority - 1] for queue_shard in queue_shards)
        for priority in range(1, len(queue_shards[0].left) + 1)
    }


def peek_at(queue_shard: QueueShard, deadline_s: float) -> Flow[None]:
    """Brings up to date what is known of a place's due jobs."""
    reply = yield from read(queue_shard, "peek", [], deadline_s)
    queue_shard.left = (
        list(struct.unpack(f">{len(reply[2]) // 4}I", reply[2])) if reply[3] == b"0" else [0] * (len(reply[2]) // 4)
    )
    queue_shard.left_at_s = time.monotonic()


def scan_page(
    session: Session,
    queue: str,
    state: State | str,
    priority: int | None,
    future: bool,
    with_body: bool,
    limit: int,
    cursor: str,
    deadline_s: float,
) -> Flow[tuple[list[JobInfo], str]]:
    """One page of a scan and where to go on: "" at first and at the end. Shard by shard, level by level, latest time
    first.
    """
    wanted = State.of(state)
    if future and wanted is not State.PENDING:
        raise InvalidArgument(f"future: expected with pending jobs, got {wanted.value} ones")
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    priorities = check_priority(priority, queue_shards)
    check_integer("limit", limit, 1, MAX_BATCH)
    shard, priority, position = _read_cursor(cursor, queue_shards[0].shard.name, priorities[0])
    order = [(queue_shard, at) for queue_shard in queue_shards for at in priorities]
    here = next(
        (i for i, (queue_shard, at) in enumerate(order) if (queue_shard.shard.name, at) == (shard, priority)), None
    )
    if here is None:
        raise InvalidArgument(f"cursor: expected one of an earlier page of this scan, got {cursor!r}")
    queue_shard = order[here][0]
    arguments: list[Argument] = [wanted.code, priority, int(future), position, limit, int(with_body), REPLY_BYTES]
    reply = yield from read(queue_shard, "scan", arguments, deadline_s)
    infos = [JobInfo.unpack(queue, queue_shard.shard.name, packed) for packed in reply[3:]]
    if reply[2]:
        return infos, f"{shard}.{priority}.{reply[2].hex()}"
    if here + 1 == len(order):
        return infos, ""
    following, at = order[here + 1]
    return infos, f"{following.shard.name}.{at}."


def _read_cursor(cursor: str, first_shard: str, first_priority: int) -> tuple[str, int, bytes]:
    if not cursor:
        return first_shard, first_priority, b""
    try:
        shard, priority, position = cursor.split(".")
        return shard, int(priority), bytes.fromhex(position)
    except (ValueError, AttributeError, TypeError):
        raise InvalidArgument(f"cursor: expected one of an earlier page of this scan, got {cursor!r}") from None


def check_priority(priority: int | None, queue_shards: list[QueueShard]) -> list[int]:
    """The levels meant: one, or all."""
    assert queue_shards[0].stored is not None
    priorities = queue_shards[0].stored.config.priorities
    if priority is None:
        return list(range(1, priorities + 1))
    if isinstance(priority, bool) or not isinstance(priority, int) or not 1 <= priority <= priorities:
        raise InvalidArgument(
            f"priority: expected 1 to {priorities} (the queue has {priorities} levels), got {priority!r}"
        )
    return [priority]
