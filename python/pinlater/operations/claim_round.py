"""One round of claims over the shards of a queue, within its limits. Flows only, no I/O.

Promises that `limit` is never exceeded, that no job of a higher priority is passed over on a shard that was peeked, and
that a queue with a rate gives a client no more jobs than it has tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pinlater._core as _core
from pinlater.model.errors import OutcomeUnknown, PinLaterError, ServerUnavailable
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.claim import claim_at
from pinlater.operations.home import home_of, where_jobs_are
from pinlater.operations.inspect import DEQUEUE_BYTES
from pinlater.operations.limits import allowance_of, return_tokens, take_tokens
from pinlater.operations.queue_shards import known_queue_shards, load_all, pass_over
from pinlater.operations.shard_quotas import PATIENCE_S, refresh_hints, share_out, those_that_answer
from pinlater.store.effects import Flow, together
from pinlater.store.shards import QueueShard, Session


def claim_round(
    session: Session,
    queue_shards: list[QueueShard],
    limit: int,
    wait: bool,
    source: str,
    deadline_s: float,
    *,
    keep: bool = False,
    again: bool = False,
) -> Flow[list[_core.Claim]]:
    """Claims over the shards of one queue.

    wait: register the client as a waiter if there is no job.
    keep: with a single shard too, its next claim asks for a claim whose answer was lost. With several it always does.
    again: the limits changed during a first try.
    """
    stored = queue_shards[0].stored
    config = None if stored is None or not stored.config.is_limited else stored.config
    if config is not None and config.home not in session.shards and not again:
        # the home may have moved since: without it nothing is sent, so no answer would say so
        yield from load_all(queue_shards, deadline_s)
        known = yield from known_queue_shards(session, queue_shards[0].queue, deadline_s)
        return (yield from claim_round(session, known, limit, wait, source, deadline_s, keep=keep, again=True))
    queue_shards = where_jobs_are(session, queue_shards)
    answering = those_that_answer(queue_shards)
    try:
        if config is not None and config.rate is not None:
            claims = yield from _limited_round(session, config, answering, limit, wait, source, deadline_s)
            if claims is not None or again:
                return claims or []
        elif len(answering) > 1:
            # one shard's jobs must not wait long for a silent one; the next claim asks for its answer again
            by_s = min(deadline_s, time.monotonic() + PATIENCE_S)
            return (yield from _claim_over_shards(session, answering, limit, wait, source, by_s))
        else:
            return (yield from _claim_at_one(session, answering[0], limit, wait, source, deadline_s))
    except OutcomeUnknown as error:
        if keep and len(answering) == 1:
            answering[0].lost_claims.keep(error)
        raise
    yield from known_queue_shards(session, queue_shards[0].queue, deadline_s)
    once_more = claim_round(session, queue_shards, limit, wait, source, deadline_s, keep=keep, again=True)
    return (yield from once_more)


def _limited_round(
    session: Session,
    config: QueueConfig,
    answering: list[QueueShard],
    limit: int,
    wait: bool,
    source: str,
    deadline_s: float,
) -> Flow[list[_core.Claim] | None]:
    """Claims as many jobs as there are tokens. A client that rests sends nothing. One asks for tokens only if it has
    seen a job: on one shard at its last claim, on several just now, as the job of the highest priority comes first.
    None: the limits changed between the look at them and the request for tokens.
    """
    home = home_of(session, answering[0].queue, config)
    allowance = allowance_of(home)
    if allowance.rests:
        return []
    by_s = min(deadline_s, time.monotonic() + PATIENCE_S)
    alone = len(answering) == 1
    if not (alone and any(answering[0].left)):
        yield from refresh_hints(answering, by_s)
    sighted = sum(map(sum, (queue_shard.left for queue_shard in answering)))
    tokens = 0
    if sighted:
        tokens = yield from take_tokens(session, home, config, min(limit, sighted), sighted, deadline_s)
        if not tokens:
            if allowance.rest is not None:
                return []
            for queue_shard in answering:
                queue_shard.left = []  # the queue may be paused by now, which a peek shows
            return None
    if alone and tokens:
        claims = yield from _claim_at_one(session, answering[0], tokens, wait, source, deadline_s, has_tokens=True)
    else:
        claims = yield from _claim_over_shards(session, answering, tokens, wait, source, by_s, has_tokens=True)
    if not any(queue_shard.lost_claims.pending for queue_shard in answering):
        allowance.bucket.give_back(max(0, tokens - _taken(claims)))
    if any(claim.limited for claim in claims) and not _taken(claims):
        allowance.rest = None  # another limit holds the jobs back, and it lasts longer than the rate's next token
    if not any(any(queue_shard.left) for queue_shard in answering):
        yield from return_tokens(session, home.queue, deadline_s)
    return claims


def _claim_at_one(
    session: Session,
    queue_shard: QueueShard,
    limit: int,
    wait: bool,
    source: str,
    deadline_s: float,
    *,
    has_tokens: bool = False,
) -> Flow[list[_core.Claim]]:
    """Claims until it has enough, or nothing is left: a claim takes at most CLAIM_JOBS and REPLY_BYTES.

    has_tokens: see claim_at.
    """
    claims = [(yield from claim_at(session, queue_shard, limit, None, wait, source, deadline_s, has_tokens=has_tokens))]
    yield from claim_more(session, queue_shard, claims, limit, source, deadline_s, has_tokens=has_tokens)
    return claims


def claim_more(
    session: Session,
    queue_shard: QueueShard,
    claims: list[_core.Claim],
    limit: int,
    source: str,
    deadline_s: float,
    *,
    has_tokens: bool = False,
) -> Flow[None]:
    """Adds to claims of one queue shard until there are enough, or nothing is left."""
    while may_have_more(claims, limit):
        want = limit - _taken(claims)
        try:
            claim = yield from claim_at(
                session, queue_shard, want, None, False, source, deadline_s, has_tokens=has_tokens
            )
        except PinLaterError as error:
            if isinstance(error, OutcomeUnknown):
                queue_shard.lost_claims.keep(error)
            break
        claims.append(claim)


def may_have_more(claims: Sequence[_core.Claim], limit: int) -> bool:
    """Whether the last claim left jobs of those that the caller asked for."""
    last = claims[-1]
    if not last.count or _taken(claims) >= limit or not any(last.left):
        return False
    return sum(len(job.body) for claim in claims for job in claim.jobs) < DEQUEUE_BYTES


def _claim_over_shards(
    session: Session,
    queue_shards: list[QueueShard],
    limit: int,
    wait: bool,
    source: str,
    deadline_s: float,
    *,
    has_tokens: bool = False,
) -> Flow[list[_core.Claim]]:
    """has_tokens: see claim_at."""
    claims: list[_core.Claim] = []
    try:
        rounds, more = 0, True
        # by hints or peeks, then once more for what is missing; old hints may name shards that are empty by now
        while more or rounds < 2 or (not _taken(claims) and rounds < len(queue_shards)):
            chosen = yield from _choose(queue_shards, limit - _taken(claims), deadline_s)
            if not chosen:
                break
            found = yield from _survivors(
                list(chosen),
                [
                    claim_at(session, queue_shard, sum(quota), quota, False, source, deadline_s, has_tokens=has_tokens)
                    for queue_shard, quota in chosen.items()
                ],
                others=len(chosen) < len(queue_shards),
            )
            claims += found
            # whether one of them left jobs; may_have_more looks at the last one
            more = any(
                may_have_more([*(each for each in claims if each is not claim), claim], limit) for claim in found
            )
            rounds += 1
            if _taken(claims) >= limit:
                return claims
    except PinLaterError:
        if not _taken(claims):
            raise
        return claims
    if not _taken(claims) and wait:
        flows = [claim_at(session, queue_shard, 1, [0], True, source, deadline_s) for queue_shard in queue_shards]
        claims = yield from _survivors(queue_shards, flows)
    return claims


def _choose(queue_shards: list[QueueShard], limit: int, deadline_s: float) -> Flow[dict[QueueShard, list[int]]]:
    """The queue shards to claim from, and the quota of each."""
    yield from refresh_hints(queue_shards, deadline_s)
    quotas = share_out([queue_shard.left for queue_shard in queue_shards], limit)
    return {
        queue_shard: quota
        for queue_shard, quota in zip(queue_shards, quotas, strict=True)
        if any(quota) or queue_shard.lost_claims.pending
    }


def _taken(claims: Sequence[_core.Claim]) -> int:
    return sum(claim.count for claim in claims)


def _survivors(
    queue_shards: list[QueueShard], flows: list[Flow[_core.Claim]], *, others: bool = False
) -> Flow[list[_core.Claim]]:
    """The claims that were answered. Raises an error only if none was. Each queue shard keeps its claim whose answer
    was lost.

    others: the queue has more shards, where no job was seen: so those without a server's answer raise nothing.
    """
    results = yield from together(flows)
    claims = [result for result in results if not isinstance(result, PinLaterError)]
    errors = [result for result in results if isinstance(result, PinLaterError)]
    for queue_shard, result in zip(queue_shards, results, strict=True):
        if isinstance(result, ServerUnavailable | OutcomeUnknown):
            pass_over(queue_shard, result)
            queue_shard.left = []
        if isinstance(result, OutcomeUnknown):
            queue_shard.lost_claims.keep(result)
    certain = [error for error in errors if not isinstance(error, OutcomeUnknown)]
    passed_over = others and all(isinstance(error, ServerUnavailable) for error in certain)
    if certain and not claims and not passed_over:
        raise certain[0]
    return claims
