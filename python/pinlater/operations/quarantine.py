"""Moves jobs that reached the crash limit to their queue's quarantine queue. Flows only, no I/O.

Promises that a job is never moved to a queue that it was moved from, and is moved once, whoever dies on the way: its
ticket (an id of the other queue) is kept with it before it is loaded there, and a ticket can be loaded once. Risks:
where a monitor died after it had loaded a job, and the job ended there before the next look, or where the ticket is
older than an hour, nobody can tell the two apart: the job stays failed here, and is not removed.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import Final

from pinlater._core import MAX_STATUS_BYTES, format_descriptor
from pinlater.model.errors import InvalidArgument, QueueError, QueueNotFound
from pinlater.model.jobs import NewJob
from pinlater.operations.enqueue import pack_jobs
from pinlater.operations.inspect import lookup
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Flow
from pinlater.store.requests import read, write
from pinlater.store.shards import QueueShard, Session

log: Final = logging.getLogger("pinlater.monitor")

#: Jobs a look.
PAGE: Final = 50
_STAYS, _RESERVATION, _MOVED = 0, 1, 2
_NO_RESERVATION: Final = bytes(8)
_FROM: Final = "moved from "
_HEADER: Final = struct.Struct(">BHB")


@dataclass(frozen=True, slots=True)
class _Quarantined:
    """there: it is still failed. ticket: of which queue, if it has one."""

    priority: int
    id: bytes
    there: bool
    reservation: bytes
    queue: str
    status: str
    record: bytes

    @classmethod
    def unpack(cls, packed: bytes) -> _Quarantined:
        priority, id_, there, reservation, length = struct.unpack_from(">B8sB8sB", packed)
        queue, rest = packed[19 : 19 + length], packed[19 + length :]
        end = 2 + int.from_bytes(rest[:2], "big")
        return cls(priority, id_, bool(there), reservation, queue.decode(), rest[2:end].decode(), rest[end:])

    def was_in(self, queue: str) -> bool:
        """Whether it was moved from there before, and would go round."""
        return f"\n{_FROM}{queue}:" in f"\n{self.status}"

    def job(self, came_from: str, priorities: int) -> NewJob:
        """As it is put in line in the other queue."""
        _, allowed, _ = _HEADER.unpack_from(self.record)
        told = f"{self.status}{_FROM}{came_from}\n".encode()[-MAX_STATUS_BYTES:].decode("utf-8", "ignore")
        return NewJob(
            self.record[_HEADER.size :], priority=min(self.priority, priorities), attempts=max(1, allowed), status=told
        )


def move_quarantined(session: Session, queue_shard: QueueShard, deadline_s: float) -> Flow[int]:
    """Moves up to PAGE jobs; returns how many."""
    reply = yield from read(queue_shard, "quarantined", [PAGE], deadline_s)
    moved = 0
    for job in map(_Quarantined.unpack, reply[2:]):
        assert queue_shard.stored is not None
        queue = job.queue or queue_shard.stored.config.quarantine_queue
        if not job.there or not queue or job.was_in(queue):
            yield from _step(queue_shard, job, _STAYS, _NO_RESERVATION, "", deadline_s)
            continue
        told = format_descriptor(queue_shard.queue, queue_shard.shard.name, job.priority, int.from_bytes(job.id, "big"))
        if (yield from _move(session, queue_shard, job, queue, told, deadline_s)):
            moved += 1
            log.warning("job %s reached its crash limit and was moved to queue %s", told, queue)
    return moved


def _move(
    session: Session, queue_shard: QueueShard, job: _Quarantined, queue: str, told: str, deadline_s: float
) -> Flow[bool]:
    """False if it stays where it is for good. Raises what keeps it there for now."""
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    other = next((each for each in queue_shards if each.shard.name == queue_shard.shard.name), None)
    if other is None or other.stored is None:
        raise QueueNotFound(
            f"queue {queue!r}: not found on shard {queue_shard.shard.name}, to which a job is to be moved"
        )
    config = other.stored.config
    reservation = job.reservation
    if reservation == _NO_RESERVATION:
        try:
            pack_jobs([job.job(told, config.priorities)], config)
        except InvalidArgument as error:
            log.error("job %s can not be moved to queue %s and stays failed: %s", told, queue, error)
            yield from _step(queue_shard, job, _STAYS, _NO_RESERVATION, "", deadline_s)
            return False
        drawn = (yield from write(other, "prepare", [1], deadline_s))[2]
        reservation, of = yield from _step(queue_shard, job, _RESERVATION, drawn, queue, deadline_s)
        if reservation != drawn or of != queue:
            return False  # another monitor is at it
    spec, statuses, records = pack_jobs([job.job(told, config.priorities)], config)
    try:
        yield from write(other, "load", [reservation, spec, statuses, *records], deadline_s)
    except QueueError as error:
        if type(error) is not QueueError:  # not for want of the ticket
            raise
        if not (yield from _is_there(session, other, job, reservation, config.priorities, deadline_s)):
            log.error("job %s: it is not known whether it was moved to queue %s; it stays failed", told, queue)
            yield from _step(queue_shard, job, _STAYS, _NO_RESERVATION, "", deadline_s)
            return False
    yield from _step(queue_shard, job, _MOVED, _NO_RESERVATION, "", deadline_s)
    return True


def _is_there(
    session: Session, other: QueueShard, job: _Quarantined, reservation: bytes, priorities: int, deadline_s: float
) -> Flow[bool]:
    """Whether the ticket was loaded, and its job is still there."""
    number = int.from_bytes(reservation, "big")
    descriptor = format_descriptor(other.queue, other.shard.name, min(job.priority, priorities), number)
    return bool((yield from lookup(session, [descriptor], False, deadline_s)))


def _step(
    queue_shard: QueueShard, job: _Quarantined, what: int, reservation: bytes, queue: str, deadline_s: float
) -> Flow[tuple[bytes, str]]:
    """One step of a job; returns the ticket it has then, and of which queue."""
    item = struct.pack(">B8sB8s", job.priority, job.id, what, reservation)
    reply = yield from write(queue_shard, "leave_quarantine", [queue, item], deadline_s)
    return reply[2][:8], reply[2][8:].decode()
