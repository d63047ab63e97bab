"""Dequeues, from bytes to bytes, with the acks that ride on them.

Promises:
- The acks that ride on a dequeue are sent before its claims, in the same packet. If they fail, its jobs are released.
- Dequeues that arrive together leave in one packet.
- Jobs that nobody got are released: of a lost answer, and of a client that left.
Risks: a Redis server that has just started does not know the script of acks yet, and carries out the claims first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import pinlater._core as _core
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError, QueueNotFound
from pinlater.model.jobs import Claimed, Job
from pinlater.model.limits import Limit
from pinlater.operations import leases
from pinlater.operations.claim import CLAIM_JOBS, dry_run, release_lost
from pinlater.operations.dequeue_now import (
    Dequeued,
    FoundTogether,
    StartedDequeues,
    dequeue_now,
    dequeue_together,
    shared_shards,
)
from pinlater.operations.inspect import DEQUEUE_BYTES
from pinlater.operations.leases import NONE_REFUSED, RefusedAcks
from pinlater.server.ack_calls import AckCalls
from pinlater.server.answer_room import AnswerRoom
from pinlater.server.calls import Call, Calls, Lost
from pinlater.server.errors import ErrorCode, Refused, WrongCall
from pinlater.server.stats import first_wait_ms
from pinlater.server.wire_values import may_exist
from pinlater.store.call_batches import Coalescer, make_room
from pinlater.store.effects import Flow, together

T = TypeVar("T")

#: So large is a job of a queue that has given none yet, until more is known.
UNKNOWN_JOB_BYTES: Final = 1024 * 1024
#: Of a larger answer only the names of its jobs are kept while its client reads it.
LARGE_BYTES: Final = 64 * 1024

#: Makes the flow of the acks of a dequeue, which returns how many were refused, or of its claims. None: it has none.
MakeAcks: TypeAlias = Callable[[float], Flow[RefusedAcks]] | None
MakeClaims: TypeAlias = Callable[[float], Flow[Dequeued]] | None

#: What a dequeue is answered with DEQUEUE_RATE_LIMITED for. A queue with all its places taken just gives no jobs.
_RATE_LIMITS: Final = (Limit.RATE, Limit.PAUSE, Limit.HOME)


class DequeueCalls:
    """The dequeues of a process."""

    def __init__(self, client: AsyncClient, acks: AckCalls, calls: Calls, room: AnswerRoom) -> None:
        self.client, self.session, self.acks, self.room = client, client.session, acks, room
        self.stats, self.start, self._tasks = calls.stats, calls.start, calls.tasks
        self._coalescers: dict[str, Coalescer[_Dequeue]] = {}

    def answer(self, call: Call, request: _core.DequeueCall) -> None:
        """Carries out a call of dequeueJobs."""
        size = self._most_bytes(request)
        self.room.take(size, partial(self._start, _Dequeue(self, call, request, size)))

    def _most_bytes(self, request: _core.DequeueCall) -> int:
        """How many bytes of bodies its answer may have, as far as is known."""
        queue, limit = request.queue, request.limit
        if limit <= 0 or not (queue in self._coalescers or may_exist(queue)):
            return 0
        job_bytes = max([each.job_bytes for each in self.session.queue_shards(queue)]) or UNKNOWN_JOB_BYTES
        return min(limit * job_bytes, DEQUEUE_BYTES)

    def _start(self, dequeue: _Dequeue) -> None:
        request, coalescer = dequeue.request, self._coalescers.get(dequeue.queue)
        if coalescer is None or coalescer.is_empty:  # else the first one in it has looked at the queue just now
            coalescer = self._coalescer_of(dequeue.queue)
        if coalescer is None:
            dequeue.leave_alone()
        else:
            coalescer.add(dequeue, request.size, jobs=request.jobs, receiver=dequeue)

    def _coalescer_of(self, queue: str) -> Coalescer[_Dequeue] | None:
        """Where dequeues of a queue wait for others. None: they leave alone."""
        coalescer = self._coalescers.get(queue)
        if (coalescer is None and not may_exist(queue)) or not shared_shards(self.session, queue):
            return None
        if coalescer is None:
            make_room(self._coalescers)
            together = partial(self._together, queue)
            coalescer = self._coalescers[queue] = Coalescer(together, self._tasks, patient=True, most=CLAIM_JOBS)
        return coalescer

    async def _together(self, queue: str, dequeues: list[_Dequeue]) -> list[_Found]:
        """Carries out dequeues that arrived together. Those that cannot share a claim leave alone, at once."""
        shards = shared_shards(self.session, queue)
        joined = [dequeue.request for dequeue in dequeues if shards and dequeue.request.is_of(shards, CLAIM_JOBS)]
        carry_out = self._in_packet if len(self.session.shards) == 1 else self._over_shards
        if len(joined) == len(dequeues):
            return await carry_out(queue, joined)
        together = set(map(id, joined))
        for dequeue in dequeues:
            if id(dequeue.request) not in together:
                dequeue.leave_alone()
        found = iter(await carry_out(queue, joined)) if joined else iter(())
        return [next(found) if id(dequeue.request) in together else None for dequeue in dequeues]

    async def _over_shards(self, queue: str, requests: list[_core.DequeueCall]) -> list[_Found]:
        """Carries out dequeues of several shards."""
        acks = [request.acks for request in requests]
        limits, sources = [request.limit for request in requests], [request.source for request in requests]
        flow = partial(dequeue_together, self.session, queue, limits, sources, acks, self.acks.any_source)
        try:
            each = await self.client.run(flow)
        finally:
            self.release_lost_of(queue)
        riding = [(ack, one.refused) for ack, one in zip(acks, each, strict=True) if ack is not None]
        self.acks.count([ack for ack, _ in riding], [refused for _, refused in riding])
        found = [_found_of(one) for one in each]
        given = [jobs for jobs in found if isinstance(jobs, list) and jobs]
        self.stats.dequeued(queue, sum(map(len, given)), map(first_wait_ms, given))
        return found

    async def _in_packet(self, queue: str, requests: list[_core.DequeueCall]) -> list[_Found]:
        """Carries out dequeues of the only shard in one packet."""
        [queue_shard] = self.session.queue_shards(queue)
        acks = [request.acks for request in requests]
        riding = [each for each in acks if each is not None]
        limits, sources = [request.limit for request in requests], [request.source for request in requests]
        started = StartedDequeues(self.session, queue_shard, limits, sources, riding, self.acks.any_source)
        deadline_s = self.client.settings.deadline_s()
        try:
            answers = await self.client.driver.send(started.server, started.commands, deadline_s)
        except BaseException:
            started.drop()
            raise
        try:
            started.take(answers)
            if not started.is_finished:
                await self.client.driver.drive(started.finish(deadline_s))
        except Exception:
            for claim in started.claims:
                self.start(self.release(claim.jobs))
            raise
        self.release_lost_of(queue)
        outcomes = started.acks
        self.acks.count(riding, outcomes)
        parts = started.share_out()
        found: list[_Found] = [*parts]
        if None in parts or outcomes.count(NONE_REFUSED) < len(outcomes):
            refused = iter(outcomes)
            each = [NONE_REFUSED if ack is None else next(refused) for ack in acks]
            for number, (part, outcome) in enumerate(zip(parts, each, strict=True)):
                if part is None or isinstance(outcome, PinLaterError):
                    found[number] = _Rest(partial(started.jobs, number), outcome)
        claims = [each for each in found if isinstance(each, _core.Claim)]
        count = sum([claim.count for claim in claims])
        self.stats.dequeued(queue, count, [claim.first_wait_ms for claim in claims])
        return found

    def release_lost_of(self, queue: str) -> None:
        """Releases the jobs of claims whose answers were lost, beside what goes on, if there are such claims."""
        if any(each.lost_claims.pending for each in self.session.queue_shards(queue)):
            self.start(self.release_lost(queue))

    async def release_lost(self, queue: str) -> None:
        """Releases the jobs of claims whose answers were lost: no client knows of them."""
        with suppress(PinLaterError):  # the next dequeue tries again; then their leases end
            await self.client.run(partial(release_lost, self.session, queue))

    async def release(self, jobs: Sequence[Claimed]) -> None:
        """Releases jobs that nobody got."""
        with suppress(PinLaterError):  # then they run when their lease ends
            await self.client.run(partial(leases.release, self.session, jobs, None))


class _Rest(NamedTuple):
    """A dequeue that is not answered yet: the flow of its jobs, and what became of its acks."""

    jobs: Callable[[float], Flow[Dequeued]]
    refused: RefusedAcks | PinLaterError


#: What a dequeue gets that left with others: its jobs, or what is left to do. None: it left alone.
_Found: TypeAlias = _core.Claim | list[Job] | _Rest | None


def _found_of(one: FoundTogether) -> _Found:
    """Its jobs, or what is left to do: an error to raise, or jobs to release."""
    jobs = one.jobs
    if isinstance(jobs, list) and isinstance(one.refused, RefusedAcks) and (jobs or one.limit not in _RATE_LIMITS):
        return jobs
    return _Rest(partial(_known, one.jobs_and_limit), one.refused)


class _Dequeue:
    """One call of dequeueJobs. If it leaves in a packet, it receives its part of the answers."""

    __slots__ = ("_call", "_calls", "_left_alone", "_size", "queue", "request")

    def __init__(self, calls: DequeueCalls, call: Call, request: _core.DequeueCall, size: int) -> None:
        self._calls, self._call, self.request, self.queue = calls, call, request, request.queue
        self._size, self._left_alone = size, False

    # of store.call_batches.Receiver

    def done(self) -> bool:
        """Whether it left alone: then it wants nothing of the others' answers. That its client left does not matter."""
        return self._left_alone

    def set_result(self, found: _Found) -> None:
        """Answers with the jobs of a packet."""
        if isinstance(found, _core.Claim):
            try:
                frame = _core.claim_answer(self._call.sequence, found)
            except Exception as error:
                self._nobody_got(found)
                self._fail(error)
            else:
                if len(frame) > LARGE_BYTES:
                    self._end(frame, self._if_lost(found.jobs, frame))
                else:
                    self._end(frame, partial(self._nobody_got, found) if found.count else None)
        elif isinstance(found, list):
            self._give(found)
        elif found is not None:
            make_acks = None if self.request.acks is None else partial(_known, found.refused)
            self._calls.start(self._answer(self._claim(make_acks, found.jobs)))

    def set_exception(self, error: Exception) -> None:
        """Answers with the error of a packet."""
        self._fail(error)

    def _end(self, frame: bytes, lost: Lost | None) -> None:
        self._calls.room.give(self._size)
        self._call.end(frame, lost)

    def _fail(self, error: Exception) -> None:
        self._calls.room.give(self._size)
        self._call.fail(error)

    def _nobody_got(self, claim: _core.Claim) -> None:
        self._calls.start(self._calls.release(claim.jobs))

    # of a dequeue that leaves alone, or needs more than its packet

    def leave_alone(self) -> None:
        """Answers with the jobs of this dequeue alone."""
        self._left_alone = True
        self._calls.start(self._answer(self._shown_jobs() if self.request.dry_run else self._jobs()))

    async def _answer(self, finding: Coroutine[Any, Any, list[Job]]) -> None:
        try:
            jobs = await finding
        except Exception as error:
            self._fail(error)
        else:
            self._give(jobs)

    def _give(self, jobs: list[Job]) -> None:
        """Answers with these jobs."""
        try:
            frame = _core.dequeue_answer(self._call.sequence, jobs)
        except Exception as error:
            if not self.request.dry_run:
                self._calls.start(self._calls.release(jobs))
            self._fail(error)
        else:
            self._end(frame, None if self.request.dry_run else self._if_lost(jobs, frame))

    def _if_lost(self, jobs: list[Job], frame: bytes) -> Lost | None:
        """What releases the jobs of an answer. It does not keep large bodies in memory."""
        calls, named = self._calls, list[Claimed](jobs)
        if len(frame) > LARGE_BYTES:
            named = [(job.descriptor, job.token) for job in jobs]
        return (lambda: calls.start(calls.release(named))) if named else None

    async def _jobs(self) -> list[Job]:
        calls, request, acks = self._calls, self.request, self._checked_acks()
        make_acks = None if acks is None else partial(self._ack, acks)
        if not may_exist(self.queue):
            return await self._claim(make_acks, None)
        claims = partial(dequeue_now, calls.session, self.queue, request.limit, request.source, request.coverage)
        return await self._claim(make_acks, claims)

    def _ack(self, acks: _core.AckCall, deadline_s: float) -> Flow[RefusedAcks]:
        calls = self._calls.acks
        refused = yield from leases.ack_call(self._calls.session, acks, calls.any_source, deadline_s)
        calls.count([acks], [refused])
        return refused

    def _checked_acks(self) -> _core.AckCall | None:
        """The acks that ride on it; None: there are none that can be carried out.

        Raises WrongCall, and Refused for acks of a shard that is not there.
        """
        _check(self.request)
        acks = self.request.acks
        if acks is None:
            return None
        self._calls.acks.check_shards(acks)
        return acks if acks.count and may_exist(acks.queue) else None

    async def _claim(self, make_acks: MakeAcks, make_claims: MakeClaims) -> list[Job]:
        """Acks, then claims: both in one packet for each server."""
        calls, queue = self._calls, self.queue
        try:
            jobs, limit = await calls.client.run(partial(self._acks_and_claims, make_acks, make_claims))
        finally:
            if make_claims:
                calls.release_lost_of(queue)
        if limit in _RATE_LIMITS and not jobs:
            calls.stats.add(queue, "dequeue_requests_rate_limited")
            raise Refused(ErrorCode.DEQUEUE_RATE_LIMITED, f"queue {queue!r}: gives no jobs now because of its {limit}")
        calls.stats.dequeued(queue, len(jobs), [first_wait_ms(jobs)] if jobs else [])
        return jobs

    def _acks_and_claims(self, make_acks: MakeAcks, make_claims: MakeClaims, deadline_s: float) -> Flow[Dequeued]:
        """Carries out the acks and the claims. If the acks fail, the claimed jobs are released."""
        flows: list[Flow[Any]] = [make(deadline_s) for make in (make_acks, make_claims) if make is not None]
        results = yield from together(flows)
        claimed: Any = results.pop() if make_claims is not None else ([], None)
        refused: Any = results.pop() if make_acks is not None else None
        if isinstance(claimed, QueueNotFound):
            claimed = [], None
        if isinstance(claimed, PinLaterError):
            raise claimed
        if isinstance(refused, PinLaterError) and not isinstance(refused, QueueNotFound):
            with suppress(PinLaterError):  # then they run when their lease ends
                yield from leases.release(self._calls.session, claimed[0], None, deadline_s)
            raise refused
        found: Dequeued = claimed
        return found

    async def _shown_jobs(self) -> list[Job]:
        """The jobs of a dry run. Its acks are carried out."""
        request, calls, acks = self.request, self._calls, self._checked_acks()
        if acks is not None:
            await calls.acks.carry_out(acks)
        if may_exist(self.queue):
            with suppress(QueueNotFound):
                return await calls.client.run(
                    lambda end: dry_run(calls.session, self.queue, request.limit, end, request.coverage)
                )
        return []


def _known(outcome: T | PinLaterError, _: float) -> Flow[T]:
    """The flow of what is known already."""
    if isinstance(outcome, PinLaterError):
        raise outcome
    return outcome
    yield  # makes this a generator


def _check(request: _core.DequeueCall) -> None:
    """Raises WrongCall."""
    if not request.queue:
        raise WrongCall("queueName: expected the name of a queue, got ''")
    if request.limit < 0:
        raise WrongCall(f"limit: expected 0 or more, got {request.limit}")
    if not request.coverage >= 0:
        raise WrongCall(f"coverage: expected a share of the shards, 0 or more, got {request.coverage}")
