"""Read operations on jobs: lookup, count, peek, scan. Flows only, no I/O.

Promises to change nothing. A scan returns each job that keeps its state exactly once. Risks: counts of several shards
are not from one moment. A scan shows a job twice that leaves for the backlog meanwhile, and misses one that comes back.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, checked, from_reply
from pinlater.model.jobs import CountsByState, JobInfo, State
from pinlater.model.queue_config import check_integer
from pinlater.operations.backlog import Backlog
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Argument, Flow, NoAnswer, ReplyError, all_of, send
from pinlater.store.requests import read
from pinlater.store.shards import QueueShard, Session, Shard

#: A call of a script reads at most this many bytes of records and statuses, but always one job.
REPLY_BYTES: Final = 1024 * 1024

#: A scan goes through these one by one: the name of a shard, and a priority.
_Step: TypeAlias = tuple[str, int]
#: Begins the position of a scan behind the jobs that Redis has. A position in Redis begins with an id or a digit.
_IN_BACKLOG: Final = b"\0"


def lookup(
    session: Session, descriptors: Iterable[str], with_body: bool, deadline_s: float
) -> Flow[dict[str, JobInfo]]:
    """The JobInfo of each job, by descriptor. Unknown jobs are left out."""
    flows = [
        _lookup_everywhere(session, session.queue_shard(queue, shard), priorities, ids, with_body, deadline_s)
        for queue, shard, priorities, ids, _ in checked(_core.group_descriptors, list(descriptors))
    ]
    found = yield from all_of(flows, lambda parts: [info for part in parts for info in part])
    return {info.descriptor: info for info in found}


def _lookup_everywhere(
    session: Session, queue_shard: QueueShard, priorities: bytes, ids: list[bytes], with_body: bool, deadline_s: float
) -> Flow[list[JobInfo]]:
    """Those of these jobs that are in Redis or in the backlog."""
    infos = yield from _lookup_at(queue_shard, priorities, ids, with_body, deadline_s)
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
        infos += archived
        if now_seen == seen:
            break
        seen = now_seen
        infos += yield from _lookup_at(queue_shard, *rest, with_body, deadline_s)
    return list({info.descriptor: info for info in infos}.values())


def _format_each(queue_shard: QueueShard, priorities: bytes, ids: list[bytes]) -> list[str]:
    """The descriptors of jobs of a queue shard."""
    queue, shard = queue_shard.queue, queue_shard.shard.name
    return [
        _core.format_descriptor(queue, shard, priority, int.from_bytes(id_, "big"))
        for priority, id_ in zip(priorities, ids, strict=True)
    ]


def _lookup_at(
    queue_shard: QueueShard, priorities: bytes, ids: list[bytes], with_body: bool, deadline_s: float
) -> Flow[list[JobInfo]]:
    infos: list[JobInfo] = []
    done, ask = 0, MAX_BATCH
    while done < len(ids):
        chosen = slice(done, done + ask)
        arguments: list[Argument] = [int(with_body), REPLY_BYTES, priorities[chosen], *ids[chosen]]
        reply = yield from read(queue_shard, "lookup", arguments, deadline_s)
        infos += [JobInfo.unpack(queue_shard.queue, queue_shard.shard.name, packed) for packed in reply[2:] if packed]
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
    """The number of jobs in each state, over all shards."""
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    check_priority(priority, queue_shards)
    count_of = count_at if session.backlog is None else session.backlog.count
    parts = yield from all_of([count_of(queue_shard, deadline_s) for queue_shard in queue_shards], list)
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
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    yield from all_of([peek_at(queue_shard, deadline_s) for queue_shard in queue_shards], list)
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
    """One page of a scan, and the cursor of the next page ("" at the end). Shard by shard, priority by priority, latest
    time first; behind those in Redis the jobs in the backlog.

    cursor: "" for the first page.
    """
    wanted = State.of(state)
    if future and wanted is not State.PENDING:
        raise InvalidArgument(f"future: expected with pending jobs, got {wanted.value} ones")
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    priorities = check_priority(priority, queue_shards)
    check_integer("limit", limit, 1, MAX_BATCH)
    steps = {(queue_shard.shard.name, at): queue_shard for queue_shard in queue_shards for at in priorities}
    step, position = _read_cursor(cursor, list(steps))
    queue_shard = steps[step]
    backlog = session.backlog if wanted is State.PENDING else None
    if backlog is not None and position.startswith(_IN_BACKLOG):
        behind = position.removeprefix(_IN_BACKLOG)
        infos, behind = yield from backlog.scan(queue_shard, step[1], future, with_body, limit, behind, deadline_s)
        position = _IN_BACKLOG + behind if behind else b""
    else:
        arguments: list[Argument] = [wanted.code, step[1], int(future), position, limit, int(with_body), REPLY_BYTES]
        reply = yield from read(queue_shard, "scan", arguments, deadline_s)
        infos = [JobInfo.unpack(queue, queue_shard.shard.name, packed) for packed in reply[3:]]
        position = reply[2] or (b"" if backlog is None else _IN_BACKLOG)
    return infos, _next_cursor(list(steps), step, position)


def _read_cursor(cursor: str, steps: list[_Step]) -> tuple[_Step, bytes]:
    """The step that a cursor names, and the position within it."""
    if not cursor:
        return steps[0], b""
    with suppress(ValueError, AttributeError, TypeError):
        shard, priority, position = cursor.split(".")
        if (step := (shard, int(priority))) in steps:
            return step, bytes.fromhex(position)
    raise InvalidArgument(f"cursor: expected one of an earlier page of this scan, got {cursor!r}")


def _next_cursor(steps: list[_Step], step: _Step, position: bytes) -> str:
    """The cursor of the next page. position: the start of the page in this step; b"": the step has no more jobs."""
    if position:
        return f"{step[0]}.{step[1]}.{position.hex()}"
    following = steps.index(step) + 1
    return f"{steps[following][0]}.{steps[following][1]}." if following < len(steps) else ""


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
