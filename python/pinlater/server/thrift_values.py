"""Values of the model as a Thrift client sends them, and answers as values of the model. No I/O.

Promises that a wrong argument raises InvalidArgument, and one that the interface lacks NotOnThrift, before anything is
sent. Risks: the wire has times, not delays, so a delay counts from this machine's clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, NotOnThrift, ServerReplyError, checked
from pinlater.model.jobs import Ack, Checkpoint, Job, JobInfo, NewJob, State
from pinlater.model.queue_config import check_integer
from pinlater.server.interface import structs

#: The token of a job that came over Thrift.
NO_TOKEN: Final = bytes(8)
#: Advice for features that only a direct Redis client has. With a part of the shards it would act on a part of a queue.
ON_REDIS: Final = "use a client of all its Redis servers, pinlater.connect('1=redis://a:6379,2=redis://b:6379')"
_STATES: Final = {state.code: state for state in State}


@dataclass(frozen=True, slots=True)
class Item:
    """A job that a call is for: what the caller passed, and what is sent.

    - queue: of the job.
    - size: bytes of its texts and its body.
    """

    given: Any
    queue: str
    wire: Any
    size: int
    succeeded: bool = False


def new_job(given: bytes | NewJob) -> Any:
    """A job to enqueue."""
    job: NewJob = given if isinstance(given, NewJob) else checked(NewJob, given)
    if job.key is not None:
        raise NotOnThrift("the key of a job", ON_REDIS)
    return structs.PinLaterJob(
        body=job.body,
        priority=job.priority,
        runAfterTimestampMillis=time_of(job.run_after_ms, job.delay_ms),
        numAttemptsAllowed=job.attempts,
        customStatus=job.status,
    )


def size_of_job(job: Any) -> int:
    """Bytes of a job to enqueue."""
    return len(job.body) + len(job.customStatus)


def time_of(at_ms: int | None, delay_ms: int | None) -> int | None:
    """When a job may run (ms since 1970); None: now."""
    return at_ms or (int(time.time() * 1000) + delay_ms if delay_ms else None)


def end_of(given: Any, *, succeeded: bool) -> Item:
    """The end of a running job. given: a Job, a descriptor alone or with a token, or an Ack."""
    ack = given if isinstance(given, Ack) else Ack(given)
    descriptor, queue = _named(ack.job)
    checked(NewJob, b"", status=ack.status)  # the limits of a new job
    check_integer("delay_ms", ack.delay_ms, 0, _core.MAX_TIME_MS)
    wire = structs.PinLaterJobAckInfo(descriptor, ack.status, ack.delay_ms)
    return Item(given, queue, wire, len(descriptor) + len(ack.status.encode()), succeeded)


def checkpoint_of(given: Checkpoint) -> Item:
    """The progress of a running job."""
    descriptor, queue = _named(given.job)
    if not given.move_to_pending and (given.run_after_ms, given.delay_ms) != (None, None):
        raise InvalidArgument("checkpoint: run_after_ms and delay_ms have a meaning only with move_to_pending=True")
    # the limits are those of a new job
    attempts = 1 if given.attempts is None else given.attempts
    times = {"run_after_ms": given.run_after_ms, "delay_ms": given.delay_ms}
    job: NewJob = checked(NewJob, given.body or b"", attempts=attempts, status=given.status, **times)
    wire = structs.PinLaterCheckpointJobRequest(
        jobDescriptor=descriptor,
        newBody=None if given.body is None else job.body,
        moveToPending=given.move_to_pending,
        runAfterTimestampMillis=time_of(job.run_after_ms, job.delay_ms),
        numOfAttemptsAllowed=given.attempts,
        prependCustomStatus=given.status,
    )
    return Item(given, queue, wire, len(descriptor) + len(job.body) + len(job.status))


def _named(job: Any) -> tuple[str, str]:
    """The descriptor of a job, and its queue."""
    named = job.descriptor if isinstance(job, Job) else job[0] if isinstance(job, tuple) and job else job
    return named, str(checked(_core.parse_descriptor, named)[0])


def descriptors_of(named: Iterable[Any]) -> list[str]:
    """Each descriptor once."""
    found = list(dict.fromkeys(named))
    for descriptor in found:
        checked(_core.parse_descriptor, descriptor)
    return found


def claimed_jobs(response: Any) -> list[Job]:
    """The jobs of a dequeue."""
    metadata = response.jobMetadata or {}
    return [_job(each, body, metadata.get(each)) for each, body in (response.jobs or {}).items()]


def _job(descriptor: str, body: bytes, metadata: Any) -> Job:
    """A job. An old server says nothing of its attempts: then this may be the only one."""
    allowed, remaining = 1, 1
    if metadata is not None:
        allowed, remaining = metadata.attemptsAllowed or 1, metadata.attemptsRemaining or 0
    try:
        return Job(*_core.parse_descriptor(descriptor), body, NO_TOKEN, allowed, remaining)
    except (ValueError, OverflowError) as error:
        raise ServerReplyError(f"dequeueJobs: expected jobs, got {descriptor!r:.120}: {error}") from None


def job_info(info: Any) -> JobInfo:
    """A looked-up job. The wire does not say how often its worker crashed."""
    descriptor, state = info.jobDescriptor, _STATES[info.jobState]
    try:
        _, _, priority, _ = _core.parse_descriptor(descriptor)
    except ValueError as error:
        raise ServerReplyError(f"expected the descriptor of a job, got {descriptor!r:.120}: {error}") from None
    unfinished = state in (State.PENDING, State.IN_PROGRESS)
    return JobInfo(
        descriptor=descriptor,
        state=state,
        priority=priority,
        attempts_allowed=info.attemptsAllowed,
        attempts_remaining=info.attemptsRemaining,
        status=info.customStatus,
        created_ms=info.createdAtTimestampMillis,
        run_after_ms=(info.runAfterTimestampMillis or None) if unfinished else None,
        updated_ms=info.updatedAtTimestampMillis or info.createdAtTimestampMillis,
        crashes=0,
        claim=(info.claimDescriptor or "") if state is State.IN_PROGRESS else "",
        body=info.body,
    )
