"""Claims over all shards of a queue, higher priority first, and waiting for jobs. Flows only, no I/O.

Promises that `limit` is never exceeded, and that no job of a higher priority is passed over on a shard that was peeked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError, ServerUnavailable
from pinlater.model.jobs import Job
from pinlater.model.queue_config import check_integer
from pinlater.model.times import Seconds, as_seconds
from pinlater.operations.claim import claim_at
from pinlater.operations.leases import release
from pinlater.operations.queue_shards import ASK_AGAIN_S, known_queue_shards
from pinlater.operations.shard_quotas import refresh_hints, share_out
from pinlater.store.effects import AwaitNotification, Flow, Listen, completed, together
from pinlater.store.requests import write
from pinlater.store.shards import QueueShard, Session

#: A waiter claims this often without a notification, in case one was lost or the holder of the timer died. Jittered, so
#: that idle workers do not all claim at once.
SAFETY_S: Final = (10.0, 15.0)
#: A dequeue ends after this many bytes of bodies, although it has fewer jobs than asked, so that it fits into memory.
DEQUEUE_BYTES: Final = 4 * 1024 * 1024
#: Claims over several shards wait this long for a silent one.
PATIENCE_S: Final = 2.0


class _Waiter:
    """A dequeue that waits. The waiters of one client share its channels, so each queue shard lists them."""

    def __init__(self) -> None:
        self.queue_shards: dict[QueueShard, None] = {}
        #: The server expects this client to claim when the next scheduled job is due.
        self.holds_timer = False

    def wait_at(self, queue_shards: list[QueueShard]) -> None:
        self.queue_shards |= dict.fromkeys(queue_shards)
        for queue_shard in queue_shards:
            queue_shard.waiters.add(self)

    def end(self) -> None:
        for queue_shard in self.queue_shards:
            queue_shard.waiters.discard(self)


def dequeue(
    session: Session, queue: str, limit: int, wait: Seconds | None, source: str, timeout_s: float
) -> Flow[list[Job]]:
    """Claims up to `limit` due jobs.

    wait: how long to wait for the first jobs, in seconds or as a timedelta; None or 0: do not wait.
    timeout_s: seconds for each call on the servers.
    """
    check_integer("limit", limit, 0, 2**31 - 1)
    wait_s = _check_wait(wait)
    until_s = time.monotonic() + wait_s
    waiter = _Waiter()
    try:
        while True:
            deadline_s = time.monotonic() + timeout_s
            queue_shards = yield from known_queue_shards(session, queue, deadline_s)
            if limit == 0:
                return []
            waiting = bool(wait_s) and time.monotonic() < until_s
            if waiting:
                waiter.wait_at(queue_shards)
            since = (yield Listen([(each.shard.server, each.channel) for each in queue_shards])) if waiting else 0
            try:
                claims = yield from claim_round(session, queue_shards, limit, waiting, source, deadline_s)
            except OutcomeUnknown as error:
                raise completed(error, lambda claim: _jobs_of(session, queue, [claim])) from None
            if any(claim.jobs for claim in claims) or not waiting:
                break
            waiter.holds_timer = any(claim.due_in_ms for claim in claims)
            yield AwaitNotification(_pause_s(claims, until_s), since)
    finally:
        waiter.end()
    jobs = _jobs_of(session, queue, claims)
    yield from _release_surplus(session, jobs, limit, deadline_s)
    yield from _stop_waiting(session, waiter, jobs, deadline_s)
    return jobs


def _check_wait(wait: Seconds | None) -> float:
    """Seconds of a wait. Raises InvalidArgument."""
    wait_s = 0.0 if wait is None else as_seconds(wait)
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s < float("inf"):
        raise InvalidArgument(f"wait: expected seconds or a timedelta, 0 or more, got {wait!r}")
    return float(wait_s)


def _pause_s(claims: Sequence[_core.Claim], until_s: float) -> float:
    """How long to wait for a notification: until the next scheduled job, the safety claim or the end of the wait."""
    due_s = [claim.due_in_ms / 1000 for claim in claims if claim.due_in_ms]
    return max(0.0, min([until_s - time.monotonic(), random.uniform(*SAFETY_S), *due_s]))


def _jobs_of(session: Session, queue: str, claims: list[_core.Claim]) -> list[Job]:
    """The jobs of claims, by priority."""
    for claim in claims:
        if claim.jobs:
            session.queue_shard(queue, claim.jobs[0].shard).lost_claims.take_sent_s(claim.token, 0.0)
    jobs = [job for claim in claims for job in claim.jobs]
    if len(claims) > 1:
        jobs.sort(key=lambda job: job.priority)  # those of one claim are sorted already
    return jobs


def _release_surplus(session: Session, jobs: list[Job], limit: int, deadline_s: float) -> Flow[None]:
    """Releases jobs past the limit: an earlier claim whose answer was lost asked for more than this one."""
    if len(jobs) > limit:
        with suppress(PinLaterError):  # then they run when their lease ends; the caller still gets the others
            yield from release(session, jobs[limit:], "", deadline_s)
        del jobs[limit:]


def _stop_waiting(session: Session, waiter: _Waiter, jobs: list[Job], deadline_s: float) -> Flow[None]:
    # a notification has removed its waiter from the shard's list already
    notified = set() if waiter.holds_timer else {job.shard for job in jobs}
    left = [queue_shard for queue_shard in waiter.queue_shards if queue_shard.shard.name not in notified]
    yield from leave(session, left, deadline_s)


def leave(session: Session, queue_shards: Sequence[QueueShard], deadline_s: float) -> Flow[None]:
    """Says that the client no longer waits at these queue shards: its notifications and its timers go to other waiters.

    If that fails, the safety claims of other waiters and the monitor find the jobs.
    """
    deadline_s = min(deadline_s, time.monotonic() + PATIENCE_S)
    yield from together(
        [
            write(queue_shard, "pass_on", [queue_shard.waiter], deadline_s, patient=False)
            for queue_shard in queue_shards
            if not queue_shard.waiters
        ]
    )


def claim_round(
    session: Session,
    queue_shards: list[QueueShard],
    limit: int,
    wait: bool,
    source: str,
    deadline_s: float,
    *,
    keep: bool = False,
) -> Flow[list[_core.Claim]]:
    """Claims over the shards of one queue.

    wait: register the client as a waiter if there is no job.
    keep: with a single shard too, its next claim asks for a claim whose answer was lost. With several it always does.
    """
    now_s = time.monotonic()
    answering = [queue_shard for queue_shard in queue_shards if queue_shard.silent_until_s <= now_s] or queue_shards
    if len(answering) > 1:
        # one shard's jobs must not wait long for a silent one; the next claim asks for its answer again
        return (
            yield from _claim_over_shards(session, answering, limit, wait, source, min(deadline_s, now_s + PATIENCE_S))
        )
    try:
        return (yield from _claim_at_one(session, answering[0], limit, wait, source, deadline_s))
    except OutcomeUnknown as error:
        if keep:
            answering[0].lost_claims.keep(error)
        raise


def _claim_at_one(
    session: Session, queue_shard: QueueShard, limit: int, wait: bool, source: str, deadline_s: float
) -> Flow[list[_core.Claim]]:
    """Claims until it has enough, or nothing is left: a claim takes at most CLAIM_JOBS and REPLY_BYTES."""
    claims = [(yield from claim_at(session, queue_shard, limit, None, wait, source, deadline_s))]
    while _may_have_more(claims, limit):
        want = limit - _taken(claims)
        try:
            claim = yield from claim_at(session, queue_shard, want, None, False, source, deadline_s)
        except PinLaterError as error:
            if isinstance(error, OutcomeUnknown):
                queue_shard.lost_claims.keep(error)
            break
        claims.append(claim)
    return claims


def _may_have_more(claims: Sequence[_core.Claim], limit: int) -> bool:
    """Whether the last claim left jobs of those that the caller asked for."""
    last = claims[-1]
    if not last.jobs or _taken(claims) >= limit or not any(last.left):
        return False
    return sum(len(job.body) for claim in claims for job in claim.jobs) < DEQUEUE_BYTES


def _claim_over_shards(
    session: Session, queue_shards: list[QueueShard], limit: int, wait: bool, source: str, deadline_s: float
) -> Flow[list[_core.Claim]]:
    claims: list[_core.Claim] = []
    try:
        rounds, more = 0, True
        while more or rounds < 2:  # by hints or peeks, then once more for what is missing
            chosen = yield from _choose(queue_shards, limit - _taken(claims), deadline_s)
            if not chosen:
                break
            found = yield from _survivors(
                list(chosen),
                [
                    claim_at(session, queue_shard, sum(quota), quota, False, source, deadline_s)
                    for queue_shard, quota in chosen.items()
                ],
            )
            claims += found
            rounds, more = rounds + 1, any(_may_have_more([*claims, claim], limit) for claim in found)
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
    return sum(len(claim.jobs) for claim in claims)


def _survivors(queue_shards: list[QueueShard], flows: list[Flow[_core.Claim]]) -> Flow[list[_core.Claim]]:
    """The claims that were answered. Raises an error only if none was. Each queue shard keeps its claim whose answer
    was lost.
    """
    results = yield from together(flows)
    claims = [result for result in results if not isinstance(result, PinLaterError)]
    errors = [result for result in results if isinstance(result, PinLaterError)]
    for queue_shard, result in zip(queue_shards, results, strict=True):
        if isinstance(result, ServerUnavailable | OutcomeUnknown):
            queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
        if isinstance(result, OutcomeUnknown):
            queue_shard.lost_claims.keep(result)
    certain = [error for error in errors if not isinstance(error, OutcomeUnknown)]
    if certain and not claims:
        raise certain[0]
    return claims
