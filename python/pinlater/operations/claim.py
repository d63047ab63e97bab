"""Claims: one queue's due jobs over its shards, higher priority first, and waiting for them. Flows only, no I/O.

Promises that `limit` is never exceeded, that a job of a higher priority is not passed over on another shard that was
peeked, and that a waiting client is registered in the same script that found nothing. Risks: a hint up to 50 ms old can
cost an empty claim.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError, ServerUnavailable
from pinlater.model.jobs import Job
from pinlater.model.queue_config import QueueConfig, check_integer
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.operations.inspect import REPLY_BYTES, peek_at
from pinlater.operations.leases import release
from pinlater.operations.queue_shards import ASK_AGAIN_S, known_queue_shards
from pinlater.store.effects import Argument, AwaitNotification, Flow, Listen, completed, together
from pinlater.store.requests import Arguments, read, write
from pinlater.store.shards import QueueShard, Session

#: A waiter claims once in so long though nobody rang: covers a lost ring, and a dead holder of the timer. Jittered, so
#: that idle workers do not come all at once.
SAFETY_S: Final = (10.0, 15.0)
#: What a script said of a queue is trusted for so long before it is peeked again.
HINT_S: Final = 0.05
#: After so many plain jobs one by one the next one is asked for as a plain one: one alone may have been all.
PLAIN_RUN: Final = 2
#: Elements of the reply of a claim that gave a plain job: sequence, h, and all else in one string.
_PLAIN_REPLY: Final = 3
#: Claims over several shards wait this long for a silent one.
PATIENCE_S: Final = 2.0
_START_MS: Final = int(time.time() * 1000)
_HOST: Final = socket.gethostname().replace(":", "_")


def claim_descriptor(session: Session, source: str) -> str:
    """`host:port:start ms:source:counter`, as PinLater writes it; a client has no port."""
    session.claims += 1
    return f"{_HOST}:0:{_START_MS}:{source}:{session.claims}"


def dequeue(
    session: Session, queue: str, limit: int, wait_s: float | None, source: str, timeout_s: float
) -> Flow[list[Job]]:
    """Claims up to `limit` due jobs.

    wait_s: None or 0: return at once; else return on the first jobs found, or with none after so many seconds.
    timeout_s: for each call on the servers.
    """
    check_integer("limit", limit, 0, 2**31 - 1)
    until_s = time.monotonic() + _check_wait(wait_s)
    waiter, waited, timer = object(), dict[QueueShard, None](), False
    try:
        while True:
            deadline_s = time.monotonic() + timeout_s
            queue_shards = yield from known_queue_shards(session, queue, deadline_s)
            if limit == 0:
                return []
            waiting = bool(wait_s) and time.monotonic() < until_s
            if waiting:
                waited |= dict.fromkeys(queue_shards)
                for queue_shard in queue_shards:
                    queue_shard.waiters.add(waiter)
            since = (yield Listen([queue_shard.shard.server for queue_shard in queue_shards])) if waiting else 0
            try:
                claims = yield from claim_round(session, queue_shards, limit, waiting, source, deadline_s)
            except OutcomeUnknown as error:
                raise completed(error, lambda claim: claim.jobs) from None  # as the dequeue would have
            jobs = [job for claim in claims for job in claim.jobs]
            if jobs or not waiting:
                break
            timer = any(claim.due_in_ms for claim in claims)
            yield AwaitNotification(_pause_s(claims, until_s), since)
        for claim in claims:
            if claim.jobs:
                session.queue_shard(queue, claim.jobs[0].shard).late_claims.pop(claim.token, None)
    finally:
        for queue_shard in waited:
            queue_shard.waiters.discard(waiter)
    if len(claims) > 1:
        jobs.sort(key=lambda job: job.priority)  # each shard's own are in order already
    if len(jobs) > limit:
        # an earlier claim whose answer was lost gave more than is wanted now
        with suppress(PinLaterError):  # then they run when their lease ends; the others are not lost for it
            yield from release(session, jobs[limit:], "", deadline_s)
        del jobs[limit:]
    rang = set() if timer else {job.shard for job in jobs}  # a ring takes its waiter off the list
    yield from leave(session, [queue_shard for queue_shard in waited if queue_shard.shard.name not in rang], deadline_s)
    return jobs


def leave(session: Session, queue_shards: Sequence[QueueShard], deadline_s: float) -> Flow[None]:
    """The client waits at these places no longer: rings it would not answer, and the timers it held, go to others.
    Where that fails, the safety claims of others and the monitor's look have to do.
    """
    deadline_s = min(deadline_s, time.monotonic() + PATIENCE_S)
    left = [
        queue_shard for queue_shard in queue_shards if not queue_shard.waiters
    ]  # threads and tasks of a client share its channel
    yield from together(
        [
            write(queue_shard, "wake", [queue_shard.blocking_list or session.channel], deadline_s, patient=False)
            for queue_shard in left
        ]
    )


def _check_wait(wait_s: float | None) -> float:
    if wait_s is None:
        return 0.0
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s < float("inf"):
        raise InvalidArgument(f"wait: expected seconds, 0 or more, got {wait_s!r}")
    return float(wait_s)


def _pause_s(claims: Sequence[_core.Claim], until_s: float) -> float:
    """How long to wait for a ring: to the next scheduled job, the safety claim or the deadline, whichever is first."""
    due_s = [claim.due_in_ms / 1000 for claim in claims if claim.due_in_ms]
    return max(0.0, min([until_s - time.monotonic(), random.uniform(*SAFETY_S), *due_s]))


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
    """Claims over the places of one queue. wait: where a claim gives no jobs, the client is registered as waiting.
    keep: a claim whose answer was lost is kept by its place, where the caller had only this one, too.
    """
    now_s = time.monotonic()
    answering = [queue_shard for queue_shard in queue_shards if queue_shard.silent_until_s <= now_s] or queue_shards
    if len(answering) == 1:
        try:
            if limit <= MAX_BATCH:
                return [(yield from claim_at(session, answering[0], limit, None, wait, source, deadline_s))]
            return (yield from _claim_alone(session, answering[0], limit, wait, source, deadline_s))
        except OutcomeUnknown as error:
            if keep:
                answering[0].unknown_claim = error
            raise
    # what one shard gave must not wait long for another that is silent; its answer is asked for again by the next claim
    deadline_s = min(deadline_s, now_s + PATIENCE_S)
    claims: list[_core.Claim] = []
    try:
        for _ in range(2):  # once by hints or peeks, and topped up once
            yield from _refresh_hints(answering, deadline_s)
            quotas = share_out([queue_shard.left for queue_shard in answering], limit - _taken(claims))
            chosen = [
                (queue_shard, quota)
                for queue_shard, quota in zip(answering, quotas, strict=True)
                if any(quota) or queue_shard.unknown_claim is not None
            ]
            if not chosen:
                break
            flows = [
                claim_at(session, queue_shard, sum(quota), quota, False, source, deadline_s)
                for queue_shard, quota in chosen
            ]
            claims += yield from _survivors([queue_shard for queue_shard, _ in chosen], flows)
            if _taken(claims) >= limit:
                return claims
    except PinLaterError:
        if not _taken(claims):
            raise
        return claims
    if not _taken(claims) and wait:
        flows = [claim_at(session, queue_shard, 1, [0], True, source, deadline_s) for queue_shard in answering]
        claims = yield from _survivors(answering, flows)
    return claims


def _claim_alone(
    session: Session, queue_shard: QueueShard, limit: int, wait: bool, source: str, deadline_s: float
) -> Flow[list[_core.Claim]]:
    """A limit over 1,000 takes several claims; the first one that finds less than it asked for is the last."""
    claims: list[_core.Claim] = []
    while (want := limit - _taken(claims)) > 0:
        try:
            claim = yield from claim_at(session, queue_shard, min(want, MAX_BATCH), None, wait, source, deadline_s)
        except PinLaterError as error:
            if not claims:
                raise
            queue_shard.unknown_claim = error if isinstance(error, OutcomeUnknown) else None
            break
        claims.append(claim)
        if not claim.jobs or not any(claim.left):
            break
        wait = False
    return claims


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
) -> Flow[_core.Claim]:
    """One claim on one place. quota: jobs a level, or None for any; all zero: nothing is taken. wait: if it gives no
    jobs, the client is registered as waiting. bell: it is carried out once that rings.
    """
    if queue_shard.unknown_claim is not None and not blocking_list:
        earlier, queue_shard.unknown_claim = queue_shard.unknown_claim, None
        claim: _core.Claim = yield from earlier.resume(deadline_s)
        if claim.jobs:
            queue_shard.late_claims[claim.token] = queue_shard.unknown_sent_s
            return claim
    descriptor = claim_descriptor(session, source)
    if limit == 1 and quota is None and queue_shard.plain_claims >= PLAIN_RUN and not blocking_list:
        claim = yield from _claim("claim_one", queue_shard, [descriptor], deadline_s)
        if claim.jobs:
            return claim
    waiter = (queue_shard.blocking_list or session.channel) if wait else b""

    def arguments(config: QueueConfig) -> list[Argument]:
        quotas = b"" if quota is None else _pack_quotas(quota, config.priorities)
        return [max(1, min(limit, MAX_BATCH)), quotas, descriptor, waiter, REPLY_BYTES]

    return (yield from _claim("claim", queue_shard, arguments, deadline_s, blocking_list))


def _claim(
    verb: str, queue_shard: QueueShard, arguments: Arguments, deadline_s: float, blocking_list: bytes = b""
) -> Flow[_core.Claim]:
    sent_s = time.monotonic()

    def decode(reply: list[Any]) -> _core.Claim:
        claim = _core.decode_claim(claim_parts(reply), queue_shard.queue, queue_shard.shard.name)
        queue_shard.plain_claims = queue_shard.plain_claims + 1 if claim.jobs and len(reply) == _PLAIN_REPLY else 0
        if claim.left:
            queue_shard.left = claim.left
            queue_shard.left_at_s = time.monotonic()
        return claim

    try:
        reply = yield from write(queue_shard, verb, arguments, deadline_s, blocking_list=blocking_list)
    except OutcomeUnknown as error:
        queue_shard.unknown_sent_s = sent_s
        raise completed(error, decode) from None
    return decode(reply)


def claim_parts(reply: list[Any]) -> list[Any]:
    """A claim's reply as `decode_claim` takes it: token, jobs block, left, due in and paused apart, records in lists.

    Raises IndexError for what is too short.
    """
    sequence, h, head, *records = reply
    if not head:  # a claim of one plain job that found none
        return [sequence, h, b"", b"", b"", bytes(6), b"0"]
    if not records and any(head[:8]):  # one job's
        block = head[:1] + b"\0\1" + head[1:9] + b"\0\0"
        return [sequence, h, head[9:17], block, b"", bytes(6), b"0", [head[17:]]]
    block = 16 + 4 * head[15]
    if not any(head[:8]):
        return [sequence, h, b"", head[block:], head[16:block], head[8:14], b"%d" % head[14], *records]
    return [sequence, h, head[:8], head[block:], head[16:block], head[8:14], b"%d" % head[14], *records]


def _pack_quotas(quota: Sequence[int], priorities: int) -> bytes:
    """A u16 a level; levels the caller does not know of yet get none."""
    known = [min(n, MAX_BATCH) for n in quota[:priorities]]
    return struct.pack(f">{priorities}H", *known, *[0] * (priorities - len(known)))


def dry_run(session: Session, queue: str, limit: int, deadline_s: float) -> Flow[list[Job]]:
    """What a dequeue would give now, without taking it. Tokens are empty."""
    check_integer("limit", limit, 0, MAX_BATCH)
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    if limit == 0:
        return []
    replies = yield from together(
        [read(queue_shard, "dry_run", [limit, REPLY_BYTES], deadline_s) for queue_shard in queue_shards]
    )
    errors = [reply for reply in replies if isinstance(reply, PinLaterError)]
    if len(errors) == len(replies):
        raise errors[0]
    jobs = [
        job
        for queue_shard, reply in zip(queue_shards, replies, strict=True)
        if not isinstance(reply, PinLaterError)
        for job in _core.decode_claim(claim_parts(reply), queue, queue_shard.shard.name).jobs
    ]
    return sorted(jobs, key=lambda job: job.priority)[:limit]


def _taken(claims: Sequence[_core.Claim]) -> int:
    return sum(len(claim.jobs) for claim in claims)


def _refresh_hints(queue_shards: list[QueueShard], deadline_s: float) -> Flow[None]:
    """Peeks at every place, one pipeline a server, if any hint is too old, or if by the hints there is nothing."""
    now_s = time.monotonic()
    if all(now_s - queue_shard.left_at_s <= HINT_S for queue_shard in queue_shards) and any(
        any(queue_shard.left) for queue_shard in queue_shards
    ):
        return
    results = yield from together([peek_at(queue_shard, deadline_s) for queue_shard in queue_shards])
    failed = [result for result in results if isinstance(result, PinLaterError)]
    for queue_shard, result in zip(queue_shards, results, strict=True):
        if isinstance(result, PinLaterError):
            queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
            queue_shard.left = []
    if len(failed) == len(queue_shards):
        raise failed[0]


def _survivors(queue_shards: list[QueueShard], flows: list[Flow[_core.Claim]]) -> Flow[list[_core.Claim]]:
    """The claims that came; an error is raised only if none did. A claim whose answer was lost is kept by its place."""
    results = yield from together(flows)
    claims = [result for result in results if not isinstance(result, PinLaterError)]
    errors = [result for result in results if isinstance(result, PinLaterError)]
    for queue_shard, result in zip(queue_shards, results, strict=True):
        if isinstance(result, ServerUnavailable | OutcomeUnknown):
            queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
        if isinstance(result, OutcomeUnknown):
            queue_shard.unknown_claim = result
    certain = [error for error in errors if not isinstance(error, OutcomeUnknown)]
    if certain and not claims:
        raise certain[0]
    return claims


def share_out(left: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """How many jobs to claim from each place and level: level by level, evenly over the places that have some.

    left: due jobs a level, for each place (an empty list: nothing is known to be there).
    """
    priorities = max((len(counts) for counts in left), default=0)
    quotas = [[0] * priorities for _ in left]
    for priority in range(priorities):
        open_ = [i for i, counts in enumerate(left) if priority < len(counts) and counts[priority] > 0]
        random.shuffle(open_)
        while open_ and limit > 0:
            share = max(1, limit // len(open_))
            for i in list(open_):
                n = min(share, left[i][priority] - quotas[i][priority], limit)
                quotas[i][priority] += n
                limit -= n
                if quotas[i][priority] == left[i][priority]:
                    open_.remove(i)
    return quotas
