"""Dequeues: claims that wait for jobs. Flows only, no I/O.

Promises that `limit` is never exceeded, and that a waiter which ends lets another one take its notification.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError
from pinlater.model.jobs import Job
from pinlater.model.limits import Rest
from pinlater.model.queue_config import check_integer
from pinlater.model.times import Seconds, as_seconds
from pinlater.operations.claim_round import claim_round
from pinlater.operations.home import where_jobs_are
from pinlater.operations.leases import release
from pinlater.operations.limits import end_rest, rest_of
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.operations.shard_quotas import PATIENCE_S, check_coverage, covered
from pinlater.store.effects import AwaitNotification, Flow, Listen, completed, together
from pinlater.store.keys import limits_channel
from pinlater.store.requests import write
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard, Session

#: A waiter claims this often without a notification, in case one was lost or the holder of the timer died. Jittered, so
#: that idle workers do not all claim at once.
SAFETY_S: Final = (10.0, 15.0)


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
    session: Session, queue: str, limit: int, wait: Seconds | None, source: str, timeout_s: float, coverage: float = 1.0
) -> Flow[list[Job]]:
    """Claims up to `limit` due jobs.

    wait: how long to wait for the first jobs, in seconds or as a timedelta; None or 0: do not wait.
    timeout_s: seconds for each call on the servers.
    coverage: the share of the shards to look at, chosen at random, at least one shard; above 1: all. A queue with
    max_running ignores it.
    """
    check_integer("limit", limit, 0, 2**31 - 1)
    wait_s = _check_wait(wait)
    check_coverage(coverage)
    until_s = time.monotonic() + wait_s
    waiter, rest, heard, draw = _Waiter(), None, 0, 0.0 if coverage >= 1 else random.random()
    try:
        while True:
            deadline_s = time.monotonic() + timeout_s
            known = yield from known_queue_shards(session, queue, deadline_s)
            queue_shards = known if coverage >= 1 else covered(where_jobs_are(session, known), coverage, draw)
            if limit == 0:
                return []
            waiting = bool(wait_s) and time.monotonic() < until_s
            if waiting:
                waiter.wait_at(queue_shards)
            since = (yield Listen(_channels(queue_shards))) if waiting else heard
            if rest is not None and since != heard:
                end_rest(session, queue)  # the limits may have changed
            heard = since
            try:
                claims = yield from claim_round(session, queue_shards, limit, waiting, source, deadline_s)
            except OutcomeUnknown as error:
                raise completed(error, lambda claim: jobs_of(session, queue, [claim])) from None
            if any(claim.count for claim in claims) or not waiting:
                break
            waiter.holds_timer = any(claim.due_in_ms for claim in claims)
            rest = rest_of(session, queue)
            yield AwaitNotification(_pause_s(claims, until_s, rest), since)
    finally:
        waiter.end()
    jobs = jobs_of(session, queue, claims)
    yield from release_surplus(session, jobs, limit, deadline_s)
    yield from _stop_waiting(session, waiter, jobs, deadline_s)
    return jobs


def _check_wait(wait: Seconds | None) -> float:
    """Seconds of a wait. Raises InvalidArgument."""
    wait_s = 0.0 if wait is None else as_seconds(wait)
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s < float("inf"):
        raise InvalidArgument(f"wait: expected seconds or a timedelta, 0 or more, got {wait!r}")
    return float(wait_s)


def _channels(queue_shards: list[QueueShard]) -> list[tuple[Server, bytes]]:
    """Where a waiter hears of jobs, and of other limits if the queue has some."""
    stored = queue_shards[0].stored
    channels = [(each.shard.server, each.channel) for each in queue_shards]
    if stored is not None and stored.config.is_limited:
        channels += [(each.shard.server, limits_channel(each.queue, each.shard.name)) for each in queue_shards]
    return channels


def _pause_s(claims: Sequence[_core.Claim], until_s: float, rest: Rest | None) -> float:
    """How long to wait for a notification: until the next scheduled job, the end of a limit, the safety claim or the
    end of the wait.
    """
    ends_s = [claim.due_in_ms / 1000 for claim in claims if claim.due_in_ms]
    if rest is not None:
        ends_s.append(rest.until_s - time.monotonic())
    return max(0.0, min([until_s - time.monotonic(), random.uniform(*SAFETY_S), *ends_s]))


def jobs_of(session: Session, queue: str, claims: Sequence[_core.Claim]) -> list[Job]:
    """The jobs of claims, by priority."""
    for claim in claims:
        if claim.count:
            session.queue_shard(queue, claim.shard).lost_claims.take_sent_s(claim.token, 0.0)
    jobs = [job for claim in claims for job in claim.jobs]
    if len(claims) > 1:
        jobs.sort(key=lambda job: job.priority)  # those of one claim are sorted already
    return jobs


def release_surplus(session: Session, jobs: list[Job], limit: int, deadline_s: float) -> Flow[None]:
    """Releases jobs past the limit: an earlier claim whose answer was lost asked for more than this one."""
    if len(jobs) > limit:
        with suppress(PinLaterError):  # then they run when their lease ends; the caller still gets the others
            yield from release(session, jobs[limit:], None, deadline_s)
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
