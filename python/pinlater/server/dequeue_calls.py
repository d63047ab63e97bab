"""Dequeues, from bytes to bytes, with the acks that ride on them.

Promises:
- The acks that ride on a dequeue are sent before its claims, in the same packet. If they fail, its jobs are released.
- Dequeues that arrive together leave in one packet.
- Jobs that nobody got are released: of a lost answer, and of a client that left.
Risks: a Redis server that has just started does not know the script of acks yet, and carries out the claims first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import pinlater._core as _core
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError, QueueNotFound
from pinlater.model.jobs import Job
from pinlater.model.limits import Limit
from pinlater.operations import leases
from pinlater.operations.claim import CLAIM_JOBS, dry_run, release_lost
from pinlater.operations.dequeue_now import Dequeued, StartedDequeues, dequeue_now, is_whole, only_queue_shard
from pinlater.operations.leases import NONE_REFUSED, RefusedAcks
from pinlater.server.ack_calls import AckCalls
from pinlater.server.calls import Call
from pinlater.server.errors import ErrorCode, Refused, WrongCall
from pinlater.server.stats import ServerStats, first_wait_ms
from pinlater.server.wire_values import may_exist
from pinlater.store.call_batches import PATIENT_TURNS, Coalescer, make_room
from pinlater.store.effects import Flow, together

#: Makes the flow of the acks of a dequeue, which returns how many were refused, or of its claims. None: it has none.
MakeAcks: TypeAlias = Callable[[float], Flow[RefusedAcks]] | None
MakeClaims: TypeAlias = Callable[[float], Flow[Dequeued]] | None

#: What a dequeue is answered with DEQUEUE_RATE_LIMITED for. A queue with all its places taken just gives no jobs.
_RATE_LIMITS: Final = (Limit.RATE, Limit.PAUSE, Limit.HOME)


class DequeueCalls:
    """The dequeues of a process. start: runs a coroutine. tasks: holds the running tasks."""

    def __init__(
        self,
        client: AsyncClient,
        acks: AckCalls,
        stats: ServerStats,
        start: Callable[[Coroutine[Any, Any, None]], None],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self.client, self.session, self.acks, self.stats, self.start = client, client.session, acks, stats, start
        self._tasks = tasks
        self._coalescers: dict[str, Coalescer[_Dequeue]] = {}

    def answer(self, call: Call, request: _core.DequeueCall) -> None:
        """Carries out a call of dequeueJobs."""
        _check(request)
        queue, acks, limit = request.queue, request.acks, request.limit
        is_name = queue in self._coalescers or may_exist(queue)
        queue_shard = only_queue_shard(self.session, queue) if is_name and 0 < limit <= CLAIM_JOBS else None
        if (
            queue_shard is not None
            and (acks is None or acks.is_of(queue, queue_shard.shard.name))
            and request.coverage >= 1
            and not request.dry_run
        ):
            dequeue = _Dequeue(self, call, request, acks)
            jobs, size = (limit, 0) if acks is None else (max(limit, acks.count), acks.size)
            self._coalescer_of(queue).add(dequeue, size, jobs=jobs, receiver=dequeue)
            return
        if acks is not None:
            self.acks.check_shards(acks)
            acks = acks if acks.count and may_exist(acks.queue) else None
        self.start(_Dequeue(self, call, request, acks).answer_alone())

    def _coalescer_of(self, queue: str) -> Coalescer[_Dequeue]:
        coalescer = self._coalescers.get(queue)
        if coalescer is None:
            make_room(self._coalescers)
            coalescer = self._coalescers[queue] = Coalescer(
                partial(self._together, queue), self._tasks, turns=PATIENT_TURNS
            )
        return coalescer

    async def _together(self, queue: str, dequeues: list[_Dequeue]) -> list[_Packed | None]:
        """Carries out dequeues in one packet. None: the queue is not as only_queue_shard wants it any more."""
        queue_shard = only_queue_shard(self.session, queue)
        if queue_shard is None:
            return [None] * len(dequeues)
        asked = [(dequeue.limit, dequeue.source) for dequeue in dequeues]
        acks = [dequeue.acks for dequeue in dequeues if dequeue.acks is not None]
        started = StartedDequeues(self.session, queue_shard, asked, acks, self.acks.any_source)
        try:
            answers = await self.client.driver.send(started.server, started.commands)
        except BaseException:
            started.drop()
            raise
        started.take(answers)
        outcomes = iter(await self.client.run(started.acks))
        return [
            (started, number, NONE_REFUSED if dequeue.acks is None else next(outcomes))
            for number, dequeue in enumerate(dequeues)
        ]

    async def release_lost(self, queue: str) -> None:
        """Releases the jobs of claims whose answers were lost: no client knows of them."""
        with suppress(PinLaterError):  # the next dequeue tries again; then their leases end
            await self.client.run(partial(release_lost, self.session, queue))

    async def release(self, jobs: list[Job]) -> None:
        """Releases jobs that nobody got."""
        with suppress(PinLaterError):  # then they run when their lease ends
            await self.client.run(partial(leases.release, self.session, jobs, None))


#: The packet of a dequeue, the number of the dequeue in it, and how many of its acks were refused, or their error.
_Packed: TypeAlias = tuple[StartedDequeues, int, RefusedAcks | PinLaterError]


class _Dequeue:
    """One call of dequeueJobs. If it leaves in a packet, it receives its part of the answers."""

    __slots__ = ("_call", "_calls", "_queue", "_request", "acks", "limit", "source")

    def __init__(self, calls: DequeueCalls, call: Call, request: _core.DequeueCall, acks: _core.AckCall | None) -> None:
        self._calls, self._call, self._request, self.acks = calls, call, request, acks
        self._queue, self.limit, self.source = request.queue, request.limit, request.source

    # of store.call_batches.Receiver

    #: Returns False: a call is answered even if its client has left.
    done = staticmethod(bool)

    def set_result(self, packed: _Packed | None) -> None:
        """Answers with the jobs of a packet."""
        if packed is None:
            self._calls.start(self.answer_alone())
            return
        started, number, refused = packed
        claim = started.claims[number]
        if not isinstance(claim, _core.Claim) or isinstance(refused, PinLaterError) or not is_whole(claim, self.limit):
            make_acks = None if self.acks is None else partial(_known, refused)
            self._calls.start(self._answer(make_acks, partial(started.jobs, number)))
            return
        if self.acks is not None:
            self._calls.acks.count(self.acks, refused)
        try:
            frame = _core.claim_answer(self._call.sequence, claim)
        except Exception as error:
            self._call.fail(error)
            return
        if claim.count:
            self._calls.stats.dequeued(self._queue, claim.count, claim.first_wait_ms)
            self._call.end(frame, partial(self._nobody_got, claim))
        else:
            self._call.end(frame)

    def set_exception(self, error: Exception) -> None:
        """Answers with the error of a packet."""
        self._call.fail(error)

    def _nobody_got(self, claim: _core.Claim) -> None:
        self._calls.start(self._calls.release(claim.jobs))

    async def answer_alone(self) -> None:
        """Answers with the jobs of this dequeue alone."""
        if self._request.dry_run:
            await self._dry_run()
        else:
            await self._answer(self._make_acks(), self._make_claims() if may_exist(self._queue) else None)

    # of a dequeue that leaves alone, or needs more than its packet

    def _make_acks(self) -> MakeAcks:
        calls = self._calls
        if self.acks is None:
            return None
        return partial(leases.ack_call, calls.session, self.acks, calls.acks.any_source)

    def _make_claims(self) -> MakeClaims:
        request = self._request
        return partial(dequeue_now, self._calls.session, self._queue, self.limit, self.source, request.coverage)

    async def _answer(self, make_acks: MakeAcks, make_claims: MakeClaims) -> None:
        calls = self._calls
        try:
            jobs = await self._claim(make_acks, make_claims)
            frame = _core.dequeue_answer(self._call.sequence, jobs)
        except Exception as error:
            self._call.fail(error)
        else:
            self._call.end(frame, (lambda: calls.start(calls.release(jobs))) if jobs else None)

    async def _claim(self, make_acks: MakeAcks, make_claims: MakeClaims) -> list[Job]:
        """Acks, then claims: both in one packet for each server."""
        calls, queue = self._calls, self._queue
        try:
            jobs, limit = await calls.client.run(partial(self._acks_and_claims, make_acks, make_claims))
        finally:
            if make_claims and any(each.lost_claims.pending for each in calls.session.queue_shards(queue)):
                calls.start(calls.release_lost(queue))
        if limit in _RATE_LIMITS and not jobs:
            calls.stats.add(queue, "dequeue_requests_rate_limited")
            raise Refused(ErrorCode.DEQUEUE_RATE_LIMITED, f"queue {queue!r}: gives no jobs now because of its {limit}")
        if jobs:
            calls.stats.dequeued(queue, len(jobs), first_wait_ms(jobs))
        return jobs

    def _acks_and_claims(self, make_acks: MakeAcks, make_claims: MakeClaims, deadline_s: float) -> Flow[Dequeued]:
        """Carries out the acks and the claims. If the acks fail, the claimed jobs are released."""
        flows: list[Flow[Any]] = [make(deadline_s) for make in (make_acks, make_claims) if make is not None]
        results = yield from together(flows)
        claimed: Any = results.pop() if make_claims is not None else ([], None)
        refused: Any = results.pop() if make_acks is not None else None
        if self.acks is not None and isinstance(refused, RefusedAcks):
            self._calls.acks.count(self.acks, refused)
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

    # of a dry run

    async def _dry_run(self) -> None:
        try:
            if self.acks is not None:
                await self._calls.acks.carry_out(self.acks)
            frame = _core.dequeue_answer(self._call.sequence, await self._shown_jobs())
        except Exception as error:
            self._call.fail(error)
        else:
            self._call.end(frame)

    async def _shown_jobs(self) -> list[Job]:
        request, calls = self._request, self._calls
        if may_exist(self._queue):
            with suppress(QueueNotFound):
                return await calls.client.run(
                    lambda end: dry_run(calls.session, self._queue, self.limit, end, request.coverage)
                )
        return []


def _known(refused: RefusedAcks | PinLaterError, _: float) -> Flow[RefusedAcks]:
    """The flow of acks whose outcome is known."""
    if isinstance(refused, PinLaterError):
        raise refused
    return refused
    yield  # makes this a generator


def _check(request: _core.DequeueCall) -> None:
    """Raises WrongCall."""
    if not request.queue:
        raise WrongCall("queueName: expected the name of a queue, got ''")
    if request.limit < 0:
        raise WrongCall(f"limit: expected 0 or more, got {request.limit}")
    if not request.coverage >= 0:
        raise WrongCall(f"coverage: expected a share of the shards, 0 or more, got {request.coverage}")
