"""Dequeues of the Thrift server: it calls for many clients, and never waits for jobs. Flows only, no I/O.

Acks that ride on dequeues leave in the same packet.

Promises that `limit` is never exceeded, and that a claim whose answer is lost stays in `lost_claims`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import pinlater._core as _core
from pinlater.model.clocks import boot_s
from pinlater.model.errors import OutcomeUnknown, PinLaterError
from pinlater.model.jobs import Job
from pinlater.model.limits import CLAIM_LIMITS, Limit
from pinlater.operations.claim import CLAIM_JOBS, claims_of, known_if_lost, start_claim
from pinlater.operations.claim_round import claim_more, claim_round, may_have_more
from pinlater.operations.dequeue import jobs_of, release_surplus
from pinlater.operations.home import where_jobs_are
from pinlater.operations.inspect import DEQUEUE_BYTES, REPLY_BYTES
from pinlater.operations.leases import (
    NONE_REFUSED,
    RefusedAcks,
    ack_arguments,
    ack_calls,
    batches_of,
    outcomes_of,
    refused_of,
)
from pinlater.operations.limits import rest_of
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.operations.shard_quotas import covered, those_that_answer
from pinlater.store.effects import Command, Flow, complete, together
from pinlater.store.requests import StartedWrite, start_write
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard, Session

#: Claimed jobs, and what keeps others from being claimed, as far as the caller knows.
Dequeued: TypeAlias = tuple[list[Job], Limit | None]


def dequeue_now(
    session: Session, queue: str, limit: int, source: str, coverage: float, deadline_s: float
) -> Flow[Dequeued]:
    """Claims up to `limit` due jobs. coverage: as of `dequeue`."""
    known = yield from known_queue_shards(session, queue, deadline_s)
    queue_shards = known if coverage >= 1 else covered(where_jobs_are(session, known), coverage, random.random())
    if limit == 0:
        return [], None
    claims = yield from claim_round(session, queue_shards, limit, False, source, deadline_s, keep=True)
    return (yield from _dequeued(session, queue, claims, limit, deadline_s))


class FoundTogether(NamedTuple):
    """What became of a dequeue that left with others.

    - jobs: or the error of their claims. limit: what keeps other jobs from being claimed.
    - refused: of the acks that rode on it, or their error.
    """

    jobs: list[Job] | PinLaterError
    limit: Limit | None
    refused: RefusedAcks | PinLaterError

    @property
    def jobs_and_limit(self) -> Dequeued | PinLaterError:
        """As `dequeue_now` returns or raises it."""
        return self.jobs if isinstance(self.jobs, PinLaterError) else (self.jobs, self.limit)


def dequeue_together(
    session: Session,
    queue: str,
    limits: Sequence[int],
    sources: Sequence[str],
    acks: Sequence[_core.AckCall | None],
    any_source: bool,
    deadline_s: float,
) -> Flow[list[FoundTogether]]:
    """Dequeues of one queue, of any number of shards, and the acks that ride on them. The acks of a shard are sent
    before its claims. Dequeues of one source share their claims.

    limits, sources, acks: of the dequeues. The acks are of the same queue.
    """
    riding = [each for each in acks if each is not None]
    job_bytes = max(each.job_bytes for each in session.queue_shards(queue))
    shares = _shares(limits, sources, min(CLAIM_JOBS, DEQUEUE_BYTES // max(1, job_bytes)))
    flows: list[Flow[Any]] = [ack_calls(session, riding, any_source, deadline_s)] if riding else []
    for source, numbers in shares:
        flows.append(_dequeue_shared(session, queue, [limits[number] for number in numbers], source, deadline_s))
    results = yield from together(flows)
    outcomes = results.pop(0) if riding else []
    refused = iter([outcomes] * len(riding) if isinstance(outcomes, PinLaterError) else outcomes)
    each_refused = [NONE_REFUSED if ack is None else next(refused) for ack in acks]
    found: list[Any] = [None] * len(limits)
    for (_, numbers), result in zip(shares, results, strict=True):
        for at, number in enumerate(numbers):
            jobs, limit = (result, None) if isinstance(result, PinLaterError) else result[at]
            found[number] = FoundTogether(jobs, limit, each_refused[number])
    return found


def _dequeue_shared(
    session: Session, queue: str, limits: Sequence[int], source: str, deadline_s: float
) -> Flow[list[Dequeued]]:
    """Dequeues of one source, which share their claims."""
    jobs, limit = yield from dequeue_now(session, queue, sum(limits), source, 1.0, deadline_s)
    parts = [(jobs[end - most : end], limit) for most, end in zip(limits, accumulate(limits), strict=True)]
    if jobs and any(any(queue_shard.left) for queue_shard in session.queue_shards(queue)):
        for number, most in enumerate(limits):
            if not parts[number][0]:  # those before it took all that these claims had room for
                with suppress(PinLaterError):  # the others have their jobs
                    parts[number] = yield from dequeue_now(session, queue, most, source, 1.0, deadline_s)
    return parts


def _dequeued(
    session: Session, queue: str, claims: Sequence[_core.Claim], limit: int, deadline_s: float
) -> Flow[Dequeued]:
    jobs = jobs_of(session, queue, claims)
    yield from release_surplus(session, jobs, limit, deadline_s)
    rest = rest_of(session, queue)
    limits = [CLAIM_LIMITS[claim.limited] for claim in claims] if rest is None else [rest.limit]
    config = session.known_config(queue)
    if config is not None and config.is_stopped:  # shards that show no job were not asked for one
        limits.append(Limit.PAUSE)
    return jobs, next(filter(None, limits), None)


class StartedDequeues:
    """Dequeues of one queue shard, and the acks that ride on them, as commands of one packet: the acks come first.

    Dequeues of one source share a claim, as far as a reply has room for the jobs of all. Its owner sends `commands` to
    `server` once, then calls `take` with the answers, runs `finish`, and calls `share_out`; or `drop`.

    limits, sources: of the dequeues.
    """

    def __init__(
        self,
        session: Session,
        queue_shard: QueueShard,
        limits: Sequence[int],
        sources: Sequence[str],
        acks: Sequence[_core.AckCall],
        any_source: bool,
    ) -> None:
        self._session, self._queue_shard, self._limits, self._sources = session, queue_shard, limits, sources
        self._ack_calls, self._batches = acks, batches_of([queue_shard], acks, any_source) if acks else []
        self._sent_s = boot_s()
        most = min(CLAIM_JOBS, REPLY_BYTES // max(1, queue_shard.job_bytes))
        self._shares = _shares(limits, sources, most)
        self._acks: list[StartedWrite] = []
        self._claims: list[StartedWrite] = []
        try:
            for batch in self._batches:
                self._acks.append(start_write(queue_shard, "ack", ack_arguments(batch)))
            for source, numbers in self._shares:
                limit = sum([limits[number] for number in numbers])
                self._claims.append(start_claim(session, queue_shard, limit, source))
        except BaseException:
            self.drop()
            raise
        self._answers: list[Any] = []
        #: Of acks the positions of those that were refused, and what became of claims. None: the answer was no reply.
        self._refused: list[list[int] | PinLaterError | None] = []
        self._found: list[_core.Claim | PinLaterError | ValueError | None] = []
        #: Of each dequeue the claim that it shares, its part of it, or its error.
        self._parts: list[tuple[_core.Claim, _core.Claim] | PinLaterError | ValueError] = []

    @property
    def server(self) -> Server:
        """Where to send the commands."""
        return self._queue_shard.shard.server

    @property
    def commands(self) -> list[Command]:
        """What to send."""
        return [started.command for started in (*self._acks, *self._claims)]

    def drop(self) -> None:
        """Frees the request slots. For an owner that will not read the answers."""
        for started in (*self._acks, *self._claims):
            started.drop()

    def take(self, answers: list[Any]) -> None:
        """Takes the answers to the commands."""
        self._answers = answers
        for batch, started, answer in zip(self._batches, self._acks, answers, strict=False):
            reply = started.reply(answer)
            self._refused.append(refused_of(batch, reply) if reply else None)
        self._found = [*claims_of(self._queue_shard, self._claims, answers[len(self._acks) :])]

    @property
    def is_finished(self) -> bool:
        """Whether each answer was a reply; then `finish` has nothing to do."""
        return None not in self._refused and None not in self._found

    def finish(self, deadline_s: float) -> Flow[None]:
        """Asks again where the answer was no reply. A claim that stays unknown is kept in `lost_claims`."""
        acks, claims = _unknown(self._refused), _unknown(self._found)
        flows: list[Flow[Any]] = []
        for number in acks:
            flow = self._acks[number].go_on(self._answers[number], deadline_s)
            flows.append(complete(flow, partial(refused_of, self._batches[number])))
        for number in claims:
            flow = self._claims[number].go_on(self._answers[len(self._acks) + number], deadline_s)
            flows.append(known_if_lost(self._queue_shard, flow, self._sent_s, self._shares[number][0]))
        results = yield from together(flows)
        for number, refused in zip(acks, results, strict=False):
            self._refused[number] = refused
        for number, claim in zip(claims, results[len(acks) :], strict=True):
            self._found[number] = claim
            if isinstance(claim, OutcomeUnknown):
                self._queue_shard.lost_claims.keep(claim)

    @property
    def acks(self) -> list[RefusedAcks | PinLaterError]:
        """Of each call how many of its acks were refused, or its error; after `finish`."""
        known = [each for each in self._refused if each is not None]
        return outcomes_of(self._ack_calls, self._batches, known)

    @property
    def claims(self) -> list[_core.Claim]:
        """The claims that are known."""
        return [claim for claim in self._found if isinstance(claim, _core.Claim)]

    def share_out(self) -> list[_core.Claim | None]:
        """Of each dequeue its part of a claim; after `finish`. None: it needs more; call `jobs`."""
        parts: list[Any] = [None] * len(self._limits)
        for claim, (_, numbers) in zip(self._found, self._shares, strict=True):
            if isinstance(claim, _core.Claim):
                limits = [self._limits[number] for number in numbers]
                for number, part in zip(numbers, claim.split(limits), strict=True):
                    parts[number] = claim, part
            else:
                for number in numbers:
                    parts[number] = claim
        self._parts = parts
        return [
            each[1] if isinstance(each, tuple) and _is_whole(*each, limit) else None
            for each, limit in zip(self._parts, self._limits, strict=True)
        ]

    def jobs(self, number: int, deadline_s: float) -> Flow[Dequeued]:
        """The jobs of a dequeue; after `share_out`. number: of the dequeue."""
        session, queue_shard = self._session, self._queue_shard
        limit, source = self._limits[number], self._sources[number]
        found = self._parts[number]
        if not isinstance(found, tuple):
            raise found.with_traceback(None)  # several dequeues raise it
        claim, part = found
        if claim.count and not part.count:  # those before it took all that the claim gave
            return (yield from dequeue_now(session, queue_shard.queue, limit, source, 1.0, deadline_s))
        claims = [part]
        yield from claim_more(session, queue_shard, claims, limit, source, deadline_s)
        return (yield from _dequeued(session, queue_shard.queue, claims, limit, deadline_s))


def _shares(limits: Sequence[int], sources: Sequence[str], most: int) -> list[tuple[str, list[int]]]:
    """What shares a claim: a source, and the numbers of its dequeues. most: jobs of several dequeues together."""
    shares: list[tuple[str, list[int]]] = []
    last: dict[str, list[int]] = {}
    room: dict[str, int] = {}
    for number, (limit, source) in enumerate(zip(limits, sources, strict=True)):
        if room.get(source, 0) < limit:
            last[source], room[source] = [], most
            shares.append((source, last[source]))
        last[source].append(number)
        room[source] -= limit
    return shares


def _unknown(found: Sequence[object]) -> list[int]:
    return [number for number, each in enumerate(found) if each is None]


def _is_whole(claim: _core.Claim, part: _core.Claim, limit: int) -> bool:
    """Whether a dequeue of so many jobs needs nothing but its part of a claim."""
    count = part.count
    if count == limit:
        return True
    if count:
        return not may_have_more([part], limit)
    return not (any(claim.left) if claim.count else claim.limited)


def shared_shards(session: Session, queue: str) -> list[str]:
    """The names of the shards on which dequeues of a queue can share claims. Empty: they leave alone, because the queue
    has limits, or there is something to do first.
    """
    if not _is_unlimited(session, queue):
        return []
    if len(session.shards) > 1:
        return [each.shard.name for each in those_that_answer(session.queue_shards(queue))]
    queue_shard = only_queue_shard(session, queue)
    return [] if queue_shard is None else [queue_shard.shard.name]


def _is_unlimited(session: Session, queue: str) -> bool:
    """Whether the queue is known, and without limits."""
    config = session.known_config(queue)
    return config is not None and not (config.is_limited or config.is_stopped)


def only_queue_shard(session: Session, queue: str) -> QueueShard | None:
    """The queue shard of a queue that StartedDequeues is for: it is known, on one shard, and without limits. None: the
    queue is of another kind, or there is something to do first.
    """
    if len(session.shards) != 1 or not _is_unlimited(session, queue):
        return None
    [queue_shard] = session.queue_shards(queue)
    if not queue_shard.is_known or queue_shard.lost_claims.pending or queue_shard.shard.server.outage is not None:
        return None
    return queue_shard
