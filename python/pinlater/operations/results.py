"""Results of jobs: the worker that holds a job stores its result, and a program waits for it. Flows only, no I/O.

Promises that only the holder of a claim stores a result, and that a wait misses no result: it looks, subscribes, and
looks again. Risks: no message comes if a lease runs out or a job is removed. A wait sees such an end up to SAFETY_S
later.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import JobUnknown, ResultGone, ResultTimeout, ServerUnavailable, TaskFailed, checked
from pinlater.model.jobs import Job, State
from pinlater.operations.inspect import REPLY_BYTES, lookup
from pinlater.operations.parts import in_parts
from pinlater.store.effects import (
    Argument,
    AwaitMessage,
    Coalesce,
    Command,
    Flow,
    NoAnswer,
    Send,
    Sleep,
    Subscribe,
    all_of,
    complete,
)
from pinlater.store.keys import result_channel
from pinlater.store.requests import check_primary, read, write
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard, Session

#: A wait looks this often without a message, and checks that its server is still the primary.
SAFETY_S: Final = 5.0
#: A wait that cannot subscribe looks this often.
LOOK_AGAIN_S: Final = 0.5

_ITEM: Final = struct.Struct(">B8s8s6s")
_NEITHER, _ANSWER, _FAILED, _NOT_ENDED = b"\0", b"\1", b"\2", b"\3"

#: A job, its result, and how long to keep it (ms).
Kept: TypeAlias = tuple[Job, bytes, int]


def store(session: Session, kept: Sequence[Kept], deadline_s: float) -> Flow[list[Job]]:
    """Stores results of running jobs of one queue shard. Returns the jobs that the caller does not hold."""
    queue_shard = session.queue_shard(kept[0][0].queue, kept[0][0].shard)
    parts = in_parts(kept, lambda one: len(one[1]))
    flows = [_store_part(queue_shard, part, deadline_s) for part in parts]
    return (
        yield from all_of(
            flows, lambda refused: [job for part in refused for job in part], lambda index: [*parts[index]]
        )
    )


def _store_part(queue_shard: QueueShard, part: list[Kept], deadline_s: float) -> Flow[list[Job]]:
    items = b"".join(
        _ITEM.pack(job.priority, job.id.to_bytes(8, "big"), job.token, ms.to_bytes(6, "big")) for job, _, ms in part
    )
    channel = result_channel(queue_shard.queue, queue_shard.shard.name)
    arguments: list[Argument] = [channel, items, *(result for _, result, _ in part)]

    def refused(reply: list[Any]) -> list[Job]:
        return [part[position][0] for (position,) in struct.iter_unpack(">H", reply[2])]

    return (yield from complete(write(queue_shard, "store_results", arguments, deadline_s), refused))


def notify(session: Session, descriptors: Sequence[str], deadline_s: float) -> Flow[None]:
    """Makes the waits for these jobs look again. If that fails, they look after SAFETY_S."""
    commands: dict[Server, list[Command]] = {}
    for descriptor in descriptors:
        queue_shard, _, id_ = _parsed(session, descriptor)
        commands.setdefault(queue_shard.shard.server, []).append(("PUBLISH", _channel(queue_shard, id_), b""))
    if commands:
        yield [Send(server, to_send, deadline_s) for server, to_send in commands.items()]


def wait_for(session: Session, descriptor: str, wait_s: float, deadline_s: float) -> Flow[bytes]:
    """Waits for the result of a job. Raises TaskFailed, ResultGone or ResultTimeout; ServerUnavailable if no server
    answers until the end.

    wait_s: the longest wait.
    deadline_s: the deadline of the first look, if the wait is not over before. A later look is repeated until the wait
        ends.
    """
    queue_shard, priority, id_ = _parsed(session, descriptor)
    end_s = time.monotonic() + wait_s
    deadline_s = min(deadline_s, end_s)
    subscription: Any = None
    try:
        while True:
            outcome: bytes | NoAnswer = yield Coalesce(
                queue_shard, (priority, id_, deadline_s), partial(_look, queue_shard)
            )
            if isinstance(outcome, NoAnswer):  # until the first deadline of the waits that looked together
                if not queue_shard.shard.server.may_answer or time.monotonic() + LOOK_AGAIN_S >= deadline_s:
                    raise outcome.error
                continue
            if outcome == _NEITHER and session.backlog is not None:
                outcome = yield from _outcome_in_backlog(session, descriptor, deadline_s)
            if outcome[:1] == _ANSWER:
                return outcome[1:]
            _raise_end(descriptor, outcome)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise ResultTimeout(f"job {descriptor}: no result within {wait_s:g} s")
            deadline_s = end_s
            if subscription is None or subscription.lost:
                subscription = yield Subscribe(queue_shard.shard.server, _channel(queue_shard, id_), left_s)
                if subscription is None:
                    yield Sleep(max(0.0, min(end_s - time.monotonic(), LOOK_AGAIN_S)))
            else:
                yield AwaitMessage(subscription, min(left_s, SAFETY_S))
                if left_s - (end_s - time.monotonic()) >= SAFETY_S:  # no message came
                    server = queue_shard.shard.server
                    yield Coalesce((server, "primary"), end_s, partial(_check_primary, server))
    finally:
        if subscription is not None:
            subscription.close()


def state_of(session: Session, descriptor: str, deadline_s: float) -> Flow[State | None]:
    """The state of a job; None if it is not there any more. A removed job counts as succeeded while its result exists.

    Raises JobUnknown if its queue shard has not given its id yet: ids only grow.
    """
    found = yield from lookup(session, [descriptor], False, deadline_s)
    if descriptor in found:
        return found[descriptor].state
    queue_shard, priority, id_ = _parsed(session, descriptor)
    _, last_id, outcome = yield from read(queue_shard, "outcome", [REPLY_BYTES, bytes([priority]), id_], deadline_s)
    if outcome[:1] == _ANSWER:
        return State.SUCCEEDED
    if id_ > last_id:
        raise JobUnknown(
            f"job {descriptor}: {queue_shard} has not given this id yet; expected a descriptor of its jobs (another "
            "server, or data that it lost?)"
        )
    return None


def _look(queue_shard: QueueShard, asked: list[tuple[int, bytes, float]]) -> Flow[list[bytes | NoAnswer]]:
    """The outcomes of up to 1,000 jobs of one queue shard. NoAnswer: the server gave none until the first deadline.

    asked: priority, id and deadline of each.
    """
    priorities, ids = bytes(priority for priority, _, _ in asked), [id_ for _, id_, _ in asked]
    deadline_s = min(deadline_s for _, _, deadline_s in asked)
    found: list[bytes | NoAnswer] = []
    while (done := len(found)) < len(ids):
        try:
            reply = yield from read(queue_shard, "outcome", [REPLY_BYTES, priorities[done:], *ids[done:]], deadline_s)
        except ServerUnavailable as error:
            return found + [NoAnswer(False, error)] * (len(ids) - done)
        found += reply[2:]
    return found


def _outcome_in_backlog(session: Session, descriptor: str, deadline_s: float) -> Flow[bytes]:
    """The outcome of a job that Redis did not have: the backlog has it, or it came back meanwhile."""
    if (yield from lookup(session, [descriptor], False, deadline_s)):
        return _NOT_ENDED
    queue_shard, priority, id_ = _parsed(session, descriptor)
    reply = yield from read(queue_shard, "outcome", [REPLY_BYTES, bytes([priority]), id_], deadline_s)
    outcome: bytes = reply[2]
    return outcome


def _check_primary(server: Server, ends_s: list[float]) -> Flow[list[None]]:
    yield from check_primary(server, max(ends_s))
    return [None for _ in ends_s]


def _raise_end(descriptor: str, outcome: bytes) -> None:
    """Raises the error of a job that has ended. Returns if the job has not ended yet."""
    if outcome[:1] == _FAILED:
        raise TaskFailed(descriptor, outcome[1:].decode("utf-8", "replace"))
    if outcome != _NOT_ENDED:
        raise ResultGone(
            f"job {descriptor}: there is no result: the job was removed, its result expired, or it kept no result"
        )


def _parsed(session: Session, descriptor: str) -> tuple[QueueShard, int, bytes]:
    queue, shard, priority, number = checked(_core.parse_descriptor, descriptor)
    return session.queue_shard(queue, shard), priority, number.to_bytes(8, "big")


def _channel(queue_shard: QueueShard, id_: bytes) -> bytes:
    return result_channel(queue_shard.queue, queue_shard.shard.name) + id_.hex().encode()
