"""Moves jobs that reached the crash limit to the quarantine queue. Flows only, no I/O.

Promises:
    A job never returns to a queue that it was moved from.
    A job is moved once, even if a monitor dies during the move. Before the move, the job gets a reservation: an id of
    the other queue. A reservation can be loaded only once, and ends with its queue: the job then gets a reservation of
    the queue that the configuration names.
    A job that cannot be moved delays no other job.
Risks: in two cases it is unknown whether a job was loaded. Its reservation is over an hour old; or a monitor died after
it loaded the job, and the job ended before the next look. In these cases the job stays failed in its queue. If a
monitor died after it loaded the job, and the other queue was deleted before the next look, the job is moved twice.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from typing import Final

from pinlater._core import MAX_STATUS_BYTES, format_descriptor
from pinlater.model.errors import (
    EnqueueRefused,
    FormatUnsupported,
    InvalidArgument,
    OutcomeUnknown,
    PinLaterError,
    QueueError,
    QueueFull,
    QueueNotFound,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
)
from pinlater.model.jobs import JobInfo, NewJob, State
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.enqueue import PackedJobs, pack_jobs
from pinlater.operations.home import check_at_home
from pinlater.operations.inspect import lookup
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Flow
from pinlater.store.requests import read, write
from pinlater.store.shards import QueueShard, Session

log: Final = logging.getLogger("pinlater.monitor")

_STAYS, _RESERVATION, _MOVED, _WITHDRAWN = 0, 1, 2, 3
_NO_RESERVATION: Final = bytes(8)
_FROM: Final = "moved from "
#: Errors that the next jobs would meet too: all of them, or those that move to the same queue.
_OF_SERVER: Final = (ServerUnavailable, ServerFull, OutcomeUnknown)
_OF_QUEUE: Final = (QueueNotFound, EnqueueRefused, QueueFull, FormatUnsupported, ServerRefused)


@dataclass(frozen=True, slots=True)
class _Quarantined:
    """A job that reached the crash limit.

    descriptor: its name here.
    reservation, queue: what it has of another queue, or zeros and "".
    """

    descriptor: str
    priority: int
    id: bytes
    reservation: bytes
    queue: str

    @classmethod
    def unpack(cls, packed: bytes, queue_shard: QueueShard) -> _Quarantined:
        priority, id_ = packed[0], packed[1:9]
        number = int.from_bytes(id_, "big")
        descriptor = format_descriptor(queue_shard.queue, queue_shard.shard.name, priority, number)
        return cls(descriptor, priority, id_, packed[9:17] or _NO_RESERVATION, packed[17:].decode())


def _was_in(queue: str, info: JobInfo) -> bool:
    """Whether the job was moved from that queue before."""
    return f"\n{_FROM}{queue}:" in f"\n{info.status}"


def _in_other_queue(info: JobInfo, priorities: int) -> NewJob:
    """The job to load in the other queue. priorities: of that queue."""
    assert info.body is not None
    status = f"{info.status}{_FROM}{info.descriptor}\n".encode()[-MAX_STATUS_BYTES:].decode("utf-8", "ignore")
    return NewJob(
        info.body, priority=min(info.priority, priorities), attempts=max(1, info.attempts_allowed), status=status
    )


def move_quarantined(session: Session, queue_shard: QueueShard, cursor: bytes, deadline_s: float) -> Flow[bytes]:
    """Moves a page of jobs. One that cannot be moved yet is reported and left for the next look.

    cursor: b"0" at first. Returns the next one; b"0" at the end.
    """
    reply = yield from read(queue_shard, "quarantined", [cursor], deadline_s)
    assert queue_shard.stored is not None
    configured = queue_shard.stored.config.quarantine_queue
    closed: dict[str, PinLaterError] = {}
    for packed in reply[3:]:
        job = _Quarantined.unpack(packed, queue_shard)
        queue = job.queue or configured
        if queue not in closed:
            try:
                yield from _move(session, queue_shard, job, queue, deadline_s)
            except _OF_SERVER:
                raise
            except PinLaterError as error:
                log.warning("job %s: not moved to queue %s yet: %s", job.descriptor, queue, error)
                if isinstance(error, _OF_QUEUE):
                    closed[queue] = error
        if job.queue and isinstance(closed.get(job.queue), QueueNotFound):
            yield from _step(queue_shard, job, _WITHDRAWN, job.reservation, job.queue, deadline_s)
    next_cursor: bytes = reply[2]
    return next_cursor


def _move(session: Session, queue_shard: QueueShard, job: _Quarantined, queue: str, deadline_s: float) -> Flow[None]:
    """Moves a job, if that is still to be done."""
    info = (yield from lookup(session, [job.descriptor], True, deadline_s)).get(job.descriptor)
    if info is None or info.state is not State.FAILED or not queue or _was_in(queue, info):
        yield from _step(queue_shard, job, _STAYS, _NO_RESERVATION, "", deadline_s)
    else:
        yield from _Move(session, queue_shard, job, info, queue, deadline_s).run()


class _Move:
    """The move of one job to another queue, on the same shard."""

    def __init__(
        self,
        session: Session,
        queue_shard: QueueShard,
        job: _Quarantined,
        info: JobInfo,
        queue: str,
        deadline_s: float,
    ) -> None:
        self._session, self._queue_shard, self._job, self._info = session, queue_shard, job, info
        self._queue, self._deadline_s = queue, deadline_s

    def run(self) -> Flow[None]:
        """Ends early if the job stays here, or if another monitor moves it. Raises if it cannot be moved yet."""
        other, config = yield from self._other()
        try:
            packed = pack_jobs([_in_other_queue(self._info, config.priorities)], config)
        except InvalidArgument as error:
            yield from self._keep_here("it can not be moved", error)
            return
        reservation = self._job.reservation
        if reservation == _NO_RESERVATION:
            reservation = yield from self._reserve(other)
        if reservation == _NO_RESERVATION or not (yield from self._load(other, config, reservation, packed)):
            return
        yield from _step(self._queue_shard, self._job, _MOVED, _NO_RESERVATION, "", self._deadline_s)
        log.warning("job %s reached its crash limit and was moved to queue %s", self._job.descriptor, self._queue)

    def _other(self) -> Flow[tuple[QueueShard, QueueConfig]]:
        """The other queue on this shard."""
        name = self._queue_shard.shard.name
        for queue_shard in (yield from known_queue_shards(self._session, self._queue, self._deadline_s)):
            if queue_shard.shard.name == name and queue_shard.stored is not None:
                check_at_home(queue_shard, queue_shard.stored.config)
                return queue_shard, queue_shard.stored.config
        raise QueueNotFound(f"queue {self._queue!r}: not found on shard {name}; it is the quarantine queue of a job")

    def _reserve(self, other: QueueShard) -> Flow[bytes]:
        """Gets a reservation from the other queue, and stores it with the job."""
        drawn: bytes = (yield from write(other, "prepare", [1], self._deadline_s))[2]
        kept = yield from _step(self._queue_shard, self._job, _RESERVATION, drawn, self._queue, self._deadline_s)
        return drawn if kept == (drawn, self._queue) else _NO_RESERVATION  # another monitor moves the job

    def _load(self, other: QueueShard, config: QueueConfig, reservation: bytes, packed: PackedJobs) -> Flow[bool]:
        """Loads the job in the other queue. Returns False if it is unknown whether it was loaded before."""
        spec, statuses, records = packed
        try:
            yield from write(other, "load", [reservation, spec, statuses, records], self._deadline_s)
        except QueueError as error:
            if type(error) is not QueueError:  # the error concerns the queue, not the reservation
                raise
            if not (yield from self._was_loaded(other, config, reservation)):
                yield from self._keep_here("it is not known whether it was moved", error)
                return False
        return True

    def _was_loaded(self, other: QueueShard, config: QueueConfig, reservation: bytes) -> Flow[bool]:
        """Whether the reservation was loaded, and its job still exists."""
        priority, number = min(self._info.priority, config.priorities), int.from_bytes(reservation, "big")
        descriptor = format_descriptor(other.queue, other.shard.name, priority, number)
        return bool((yield from lookup(self._session, [descriptor], False, self._deadline_s)))

    def _keep_here(self, why: str, error: PinLaterError) -> Flow[None]:
        """Ends the move of the job: it stays failed here."""
        log.error("job %s stays failed: %s to queue %s: %s", self._job.descriptor, why, self._queue, error)
        yield from _step(self._queue_shard, self._job, _STAYS, _NO_RESERVATION, "", self._deadline_s)


def _step(
    queue_shard: QueueShard, job: _Quarantined, what: int, reservation: bytes, queue: str, deadline_s: float
) -> Flow[tuple[bytes, str]]:
    """One step of the move of a job. Returns the reservation that the job has then, and its queue."""
    item = struct.pack(">B8sB8s", job.priority, job.id, what, reservation)
    reply = yield from write(queue_shard, "leave_quarantine", [queue, item], deadline_s)
    return reply[2][:8], reply[2][8:].decode()
