"""One claim on one shard of a queue, and what claims would give. Flows only, no I/O.

Promises that `limit` is never exceeded, that a waiter is registered by the same script that found no job, and that a
claim whose answer was lost is asked for again before the next claim on its queue shard.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pinlater._core as _core
from pinlater.model.clocks import boot_s
from pinlater.model.errors import OutcomeUnknown, PinLaterError, ServerReplyError
from pinlater.model.jobs import Job
from pinlater.model.queue_config import QueueConfig, check_integer
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.operations.home import where_jobs_are
from pinlater.operations.inspect import DEQUEUE_BYTES, REPLY_BYTES
from pinlater.operations.leases import release
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.operations.shard_quotas import PATIENCE_S, check_coverage, covered, peek_all, share_out, those_that_answer
from pinlater.store.effects import Argument, Flow, together
from pinlater.store.requests import CommonKeys, ScriptArguments, StartedWrite, read, start_write, write
from pinlater.store.shards import QueueShard, Session

#: A claim takes at most this many jobs: they share a lease, and a lease that runs out is ended by one call.
CLAIM_JOBS: Final = 500
#: After this many simple jobs, claimed one by one, the client sends the script for one simple job. A single one could
#: have been the only one.
SIMPLE_RUN: Final = 2
#: The lease of a claim that waited at the server, until its worker confirms it: until then the worker may stand still.
UNCONFIRMED_MS: Final = 5_000
#: Elements of the reply of a claim that returned a simple job: sequence, h, and the rest in one string.
_SIMPLE_REPLY: Final = 3
_START_MS: Final = int(time.time() * 1000)
_HOST: Final = socket.gethostname().replace(":", "_")


def claim_at(
    session: Session,
    queue_shard: QueueShard,
    limit: int,
    quota: Sequence[int] | None,
    wait: bool,
    source: str,
    deadline_s: float,
    *,
    blocking_list: bytes = b"",
    has_tokens: bool = False,
) -> Flow[_core.Claim]:
    """One claim on one queue shard.

    quota: the most jobs of each priority; None: any; all zero: claim nothing.
    wait: register the client as a waiter if there is no job.
    blocking_list: the server carries out the claim once this list has an element, and its lease is unconfirmed; b"": at
    once.
    has_tokens: the caller has a token for each job. Without them a queue that has a rate gives nothing, also if it got
    the rate after the claim was sent.
    """
    if queue_shard.lost_claims.pending and not blocking_list:
        lost = yield from queue_shard.lost_claims.ask(deadline_s)
        if lost is not None and lost.count:
            if queue_shard.lost_claims.is_of(source, lost.token):
                return lost
            yield from _release(session, queue_shard, lost, deadline_s)
    descriptor = _claim_descriptor(session, source)
    waiter = queue_shard.waiter if wait else b""

    def arguments(config: QueueConfig) -> list[Argument]:
        given = quota if has_tokens or config.rate is None else [0]
        quotas = b"" if given is None else _pack_quotas(given, config.priorities)
        asked: list[Argument] = [descriptor, max(1, min(limit, CLAIM_JOBS)), quotas, waiter, REPLY_BYTES]
        return [*asked, UNCONFIRMED_MS] if blocking_list else asked

    def simple_arguments(config: QueueConfig) -> list[Argument]:
        return CommonKeys([descriptor], config.priorities) if config.rate is None else arguments(config)

    if limit == 1 and quota is None and queue_shard.simple_claims >= SIMPLE_RUN and not blocking_list:
        claim = yield from _claim(queue_shard, simple_arguments, deadline_s, source)
        if claim.count:
            return claim
    return (yield from _claim(queue_shard, arguments, deadline_s, source, blocking_list))


def start_claim(session: Session, queue_shard: QueueShard, limit: int, source: str) -> StartedWrite:
    """A claim without a wait and without tokens, before its answer is there. The configuration of the queue shard is
    known, and has no rate.

    `claims_of` makes Claims of answers, `known_if_lost` of the flow that goes on behind an answer that is no reply.
    """
    descriptor = _claim_descriptor(session, source)

    def arguments(config: QueueConfig) -> list[Argument]:
        # it got a rate after the claim was sent: it gives nothing
        quotas = b"" if config.rate is None else _pack_quotas([0], config.priorities)
        return [descriptor, min(limit, CLAIM_JOBS), quotas, b"", REPLY_BYTES]

    return start_write(queue_shard, "claim", arguments)


def claims_of(
    queue_shard: QueueShard, started: Sequence[StartedWrite], answers: list[Any]
) -> list[_core.Claim | ValueError | None]:
    """The claims of the answers to started claims. ValueError: the reply is malformed. None: it was no reply."""
    sequences = [each.sequence for each in started]
    highest, claims = _core.read_claims(answers, sequences, queue_shard.queue, queue_shard.shard.name)
    queue_shard.highest_id = max(queue_shard.highest_id, highest)
    for each, claim in zip(started, claims, strict=True):
        if claim is not None:
            each.drop()
    for claim in claims:
        if isinstance(claim, _core.Claim):
            _remember(queue_shard, claim)
    return claims


def _claim_descriptor(session: Session, source: str) -> str:
    """`host:port:start ms:source:counter`, as PinLater writes it."""
    session.claims += 1
    return f"{_HOST}:{session.port}:{_START_MS}:{source}:{session.claims}"


def _pack_quotas(quota: Sequence[int], priorities: int) -> bytes:
    """A u16 for each priority of the queue. Priorities that the caller does not know yet get 0."""
    known = [min(n, MAX_BATCH) for n in quota[:priorities]]
    return struct.pack(f">{priorities}H", *known, *[0] * (priorities - len(known)))


def _claim(
    queue_shard: QueueShard, arguments: ScriptArguments, deadline_s: float, source: str, blocking_list: bytes = b""
) -> Flow[_core.Claim]:
    sent_s = boot_s()
    flow = write(queue_shard, "claim", arguments, deadline_s, blocking_list=blocking_list)
    return (yield from known_if_lost(queue_shard, flow, sent_s, source))


def known_if_lost(queue_shard: QueueShard, flow: Flow[list[Any]], sent_s: float, source: str) -> Flow[_core.Claim]:
    """The claim of a reply. If the reply is lost, its OutcomeUnknown leads to a Claim too."""
    decode = partial(claim_of, queue_shard)
    try:
        reply = yield from flow
    except OutcomeUnknown as error:
        raise queue_shard.lost_claims.answered_late(error, decode, sent_s, source) from None
    return decode(reply)


def claim_of(queue_shard: QueueShard, reply: list[Any]) -> _core.Claim:
    """The claim of a reply."""
    try:
        claim = _core.decode_claim(reply, queue_shard.queue, queue_shard.shard.name)
    except ValueError as error:
        raise ServerReplyError(f"{queue_shard}: {error}") from error
    queue_shard.simple_claims = queue_shard.simple_claims + 1 if claim.count and len(reply) == _SIMPLE_REPLY else 0
    _remember(queue_shard, claim)
    return claim


def _remember(queue_shard: QueueShard, claim: _core.Claim) -> None:
    """The queue shard remembers how many jobs are left, and how large they are."""
    left = claim.left
    if left:
        queue_shard.left = left
        queue_shard.left_at_s = time.monotonic()
    if claim.count:
        queue_shard.job_bytes = claim.size // claim.count


def release_lost(session: Session, queue: str, deadline_s: float) -> Flow[None]:
    """Releases the jobs of claims whose answers were lost, on each shard that answers now."""
    for queue_shard in session.queue_shards(queue):
        while queue_shard.lost_claims.pending:
            try:
                lost = yield from queue_shard.lost_claims.ask(deadline_s)
            except OutcomeUnknown as error:
                queue_shard.lost_claims.keep(error)
                break
            if lost is not None and lost.count:
                yield from _release(session, queue_shard, lost, deadline_s)


def _release(session: Session, queue_shard: QueueShard, claim: _core.Claim, deadline_s: float) -> Flow[None]:
    """Releases the jobs of a late answer: whoever asked for them is no longer there."""
    queue_shard.lost_claims.take_sent_s(claim.token, 0.0)
    with suppress(PinLaterError):  # then they run when their lease ends
        yield from release(session, claim.jobs, None, deadline_s)


def dry_run(session: Session, queue: str, limit: int, deadline_s: float, coverage: float = 1.0) -> Flow[list[Job]]:
    """The jobs that a dequeue would claim now, by priority. Their tokens are empty.

    limit: 0 to 2^31 - 1. It ends after DEQUEUE_BYTES of bodies too.
    coverage: as of a dequeue.
    """
    check_integer("limit", limit, 0, 2**31 - 1)
    check_coverage(coverage)
    known = yield from known_queue_shards(session, queue, deadline_s)
    if limit == 0:
        return []
    queue_shards = those_that_answer(covered(where_jobs_are(session, known), coverage, random.random()))
    lines = yield from _dry_lines(queue_shards, limit, deadline_s)
    while going := [line for line in lines if line.is_going]:
        budget = min(REPLY_BYTES, DEQUEUE_BYTES // len(going))
        results = yield from together([line.read(budget, deadline_s) for line in going])
        errors = [result for result in results if isinstance(result, PinLaterError)]
        if len(errors) == len(lines):
            raise errors[0]
        if sum(len(job.body) for line in lines for job in line.jobs) >= DEQUEUE_BYTES:
            break
    # a line that the bytes ended may have more of this priority: those below it would come later
    lowest = min((line.priority for line in lines if line.is_going), default=_core.MAX_PRIORITY)
    jobs = [job for line in lines for job in line.jobs if job.priority <= lowest]
    return sorted(jobs, key=lambda job: job.priority)


def _dry_lines(queue_shards: list[QueueShard], limit: int, deadline_s: float) -> Flow[list[_DryLine]]:
    """What to show of each queue shard. They share the limit as those of a claim do."""
    if len(queue_shards) == 1:
        return [_DryLine(queue_shards[0], limit)]
    yield from peek_all(queue_shards, min(deadline_s, time.monotonic() + PATIENCE_S))
    quotas = share_out([queue_shard.left for queue_shard in queue_shards], limit)
    # the quota of a queue shard is the beginning of its line: only of the last priority it may not have all
    return [_DryLine(queue_shard, sum(quota)) for queue_shard, quota in zip(queue_shards, quotas, strict=True)]


class _DryLine:
    """The first due jobs of a queue shard, as they are read page by page. One that does not answer has ended."""

    def __init__(self, queue_shard: QueueShard, limit: int) -> None:
        self._queue_shard, self._limit = queue_shard, limit
        self._after = b""
        self._ended = False
        self.jobs: list[Job] = []

    @property
    def is_going(self) -> bool:
        return not self._ended and len(self.jobs) < self._limit

    @property
    def priority(self) -> int:
        """That of the last job that was looked at."""
        return self._after[0]

    def read(self, budget: int, deadline_s: float) -> Flow[None]:
        most = min(MAX_BATCH, self._limit - len(self.jobs))
        self._ended = True
        reply = yield from read(self._queue_shard, "dry_run", [most, budget, self._after], deadline_s)
        sequence, h, self._after, *claim = reply
        found = _core.decode_claim([sequence, h, *claim], self._queue_shard.queue, self._queue_shard.shard.name)
        self.jobs += found.jobs
        self._ended = not self._after
