"""Moves jobs that reached the crash limit to the quarantine queue. Flows only, no I/O.

Promises:
    A job never returns to a queue that it was moved from.
    A job is moved once, even if a monitor dies during the move. Before the move, the job gets a reservation: an id of
    the other queue. A reservation can be loaded only once.
Risks: in two cases it is unknown whether a job was loaded. Its reservation is over an hour old; or a monitor died after
it loaded the job, and the job ended before the next look. In these cases the job stays failed in its queue.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import Final

from pinlater._core import MAX_STATUS_BYTES, format_descriptor
from pinlater.model.errors import InvalidArgument, QueueError, QueueNotFound
from pinlater.model.jobs import NewJob
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.enqueue import pack_jobs
from pinlater.operations.inspect import lookup
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Flow
from pinlater.store.requests import read, write
from pinlater.store.shards import QueueShard, Session

log: Final = logging.getLogger("pinlater.monitor")

#: One look of the monitor moves at most this many jobs.
PAGE: Final = 50
_STAYS, _RESERVATION, _MOVED = 0, 1, 2
_NO_RESERVATION: Final = bytes(8)
_FROM: Final = "moved from "
_HEADER: Final = struct.Struct(">BHB")


@dataclass(frozen=True, slots=True)
class _Quarantined:
    """A job that reached the crash limit.

    queue: the queue of its reservation, or "".
    """

    priority: int
    id: bytes
    still_failed: bool
    reservation: bytes
    queue: str
    status: str
    record: bytes

    @classmethod
    def unpack(cls, packed: bytes) -> _Quarantined:
        priority, id_, still_failed, reservation, length = struct.unpack_from(">B8sB8sB", packed)
        queue, rest = packed[19 : 19 + length], packed[19 + length :]
        end = 2 + int.from_bytes(rest[:2], "big")
        return cls(priority, id_, bool(still_failed), reservation, queue.decode(), rest[2:end].decode(), rest[end:])

    def was_in(self, queue: str) -> bool:
        """Whether it was moved from that queue before."""
        return f"\n{_FROM}{queue}:" in f"\n{self.status}"

    def job(self, descriptor: str, priorities: int) -> NewJob:
        """The job to load in the other queue.

        descriptor: the job's name in this queue.
        priorities: the number of priorities of the other queue.
        """
        _, allowed, _ = _HEADER.unpack_from(self.record)
        status = f"{self.status}{_FROM}{descriptor}\n".encode()[-MAX_STATUS_BYTES:].decode("utf-8", "ignore")
        return NewJob(
            self.record[_HEADER.size :],
            priority=min(self.priority, priorities),
            attempts=max(1, allowed),
            status=status,
        )


def move_quarantined(session: Session, queue_shard: QueueShard, deadline_s: float) -> Flow[int]:
    """Moves up to PAGE jobs. Returns how many."""
    reply = yield from read(queue_shard, "quarantined", [PAGE], deadline_s)
    moved = 0
    for job in map(_Quarantined.unpack, reply[2:]):
        assert queue_shard.stored is not None
        queue = job.queue or queue_shard.stored.config.quarantine_queue
        if not job.still_failed or not queue or job.was_in(queue):
            yield from _keep_here(queue_shard, job, deadline_s)
        elif (yield from _Move(session, queue_shard, job, queue, deadline_s).run()):
            moved += 1
    return moved


class _Move:
    """The move of one job to another queue, on the same shard."""

    def __init__(
        self, session: Session, queue_shard: QueueShard, job: _Quarantined, queue: str, deadline_s: float
    ) -> None:
        self._session, self._queue_shard, self._job, self._queue = session, queue_shard, job, queue
        self._deadline_s = deadline_s
        number = int.from_bytes(job.id, "big")
        self._descriptor = format_descriptor(queue_shard.queue, queue_shard.shard.name, job.priority, number)

    def run(self) -> Flow[bool]:
        """Returns False if the job stays here, or if another monitor moves it. Raises if it cannot be moved yet."""
        other, config = yield from self._other()
        reservation = self._job.reservation
        if reservation == _NO_RESERVATION:
            reservation = yield from self._reserve(other, config)
        if reservation == _NO_RESERVATION or not (yield from self._load(other, config, reservation)):
            return False
        yield from _step(self._queue_shard, self._job, _MOVED, _NO_RESERVATION, "", self._deadline_s)
        log.warning("job %s reached its crash limit and was moved to queue %s", self._descriptor, self._queue)
        return True

    def _other(self) -> Flow[tuple[QueueShard, QueueConfig]]:
        """The other queue on this shard."""
        name = self._queue_shard.shard.name
        for queue_shard in (yield from known_queue_shards(self._session, self._queue, self._deadline_s)):
            if queue_shard.shard.name == name and queue_shard.stored is not None:
                return queue_shard, queue_shard.stored.config
        raise QueueNotFound(f"queue {self._queue!r}: not found on shard {name}; it is the quarantine queue of a job")

    def _reserve(self, other: QueueShard, config: QueueConfig) -> Flow[bytes]:
        """Gets a reservation from the other queue, and stores it with the job."""
        try:
            pack_jobs([self._job.job(self._descriptor, config.priorities)], config)
        except InvalidArgument as error:
            log.error("job %s can not be moved to queue %s and stays failed: %s", self._descriptor, self._queue, error)
            yield from _keep_here(self._queue_shard, self._job, self._deadline_s)
            return _NO_RESERVATION
        drawn: bytes = (yield from write(other, "prepare", [1], self._deadline_s))[2]
        kept = yield from _step(self._queue_shard, self._job, _RESERVATION, drawn, self._queue, self._deadline_s)
        return drawn if kept == (drawn, self._queue) else _NO_RESERVATION  # another monitor moves the job

    def _load(self, other: QueueShard, config: QueueConfig, reservation: bytes) -> Flow[bool]:
        """Loads the job in the other queue. Returns False if it is unknown whether it was loaded before."""
        spec, statuses, records = pack_jobs([self._job.job(self._descriptor, config.priorities)], config)
        try:
            yield from write(other, "load", [reservation, spec, statuses, *records], self._deadline_s)
        except QueueError as error:
            if type(error) is not QueueError:  # the error concerns the queue, not the reservation
                raise
            if not (yield from self._was_loaded(other, config, reservation)):
                log.error(
                    "job %s stays failed: it is not known whether it was moved to queue %s",
                    self._descriptor,
                    self._queue,
                )
                yield from _keep_here(self._queue_shard, self._job, self._deadline_s)
                return False
        return True

    def _was_loaded(self, other: QueueShard, config: QueueConfig, reservation: bytes) -> Flow[bool]:
        """Whether the reservation was loaded, and its job still exists."""
        priority, number = min(self._job.priority, config.priorities), int.from_bytes(reservation, "big")
        descriptor = format_descriptor(other.queue, other.shard.name, priority, number)
        return bool((yield from lookup(self._session, [descriptor], False, self._deadline_s)))


def _keep_here(queue_shard: QueueShard, job: _Quarantined, deadline_s: float) -> Flow[None]:
    """Ends the move of a job: it stays failed here."""
    yield from _step(queue_shard, job, _STAYS, _NO_RESERVATION, "", deadline_s)


def _step(
    queue_shard: QueueShard, job: _Quarantined, what: int, reservation: bytes, queue: str, deadline_s: float
) -> Flow[tuple[bytes, str]]:
    """One step of the move of a job. Returns the reservation that the job has then, and its queue."""
    item = struct.pack(">B8sB8s", job.priority, job.id, what, reservation)
    reply = yield from write(queue_shard, "leave_quarantine", [queue, item], deadline_s)
    return reply[2][:8], reply[2][8:].decode()
