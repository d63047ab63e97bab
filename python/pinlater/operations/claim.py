"""One claim on one shard of a queue. Flows only, no I/O.

Promises that `limit` is never exceeded, that a waiter is registered by the same script that found no job, and that a
claim whose answer was lost is asked for again before the next claim on its queue shard.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

import pinlater._core as _core
from pinlater.model.clocks import boot_s
from pinlater.model.errors import OutcomeUnknown, PinLaterError
from pinlater.model.jobs import Job
from pinlater.model.queue_config import QueueConfig, check_integer
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.operations.inspect import REPLY_BYTES
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Argument, Flow, together
from pinlater.store.requests import CommonKeys, ScriptArguments, read, write
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
        if lost is not None and lost.jobs:
            return lost
    descriptor, waiter = _claim_descriptor(session, source), queue_shard.waiter if wait else b""

    def arguments(config: QueueConfig) -> list[Argument]:
        given = quota if has_tokens or config.rate is None else [0]
        quotas = b"" if given is None else _pack_quotas(given, config.priorities)
        asked: list[Argument] = [descriptor, max(1, min(limit, CLAIM_JOBS)), quotas, waiter, REPLY_BYTES]
        return [*asked, UNCONFIRMED_MS] if blocking_list else asked

    def simple_arguments(config: QueueConfig) -> list[Argument]:
        return CommonKeys([descriptor], config.priorities) if config.rate is None else arguments(config)

    if limit == 1 and quota is None and queue_shard.simple_claims >= SIMPLE_RUN and not blocking_list:
        claim = yield from _claim(queue_shard, simple_arguments, deadline_s)
        if claim.jobs:
            return claim
    return (yield from _claim(queue_shard, arguments, deadline_s, blocking_list))


def _claim_descriptor(session: Session, source: str) -> str:
    """`host:port:start ms:source:counter`, as PinLater writes it. A client has no port."""
    session.claims += 1
    return f"{_HOST}:0:{_START_MS}:{source}:{session.claims}"


def _pack_quotas(quota: Sequence[int], priorities: int) -> bytes:
    """A u16 for each priority of the queue. Priorities that the caller does not know yet get 0."""
    known = [min(n, MAX_BATCH) for n in quota[:priorities]]
    return struct.pack(f">{priorities}H", *known, *[0] * (priorities - len(known)))


def _claim(
    queue_shard: QueueShard, arguments: ScriptArguments, deadline_s: float, blocking_list: bytes = b""
) -> Flow[_core.Claim]:
    sent_s = boot_s()

    def decode(reply: list[Any]) -> _core.Claim:
        claim = _core.decode_claim(claim_parts(reply), queue_shard.queue, queue_shard.shard.name)
        queue_shard.simple_claims = queue_shard.simple_claims + 1 if claim.jobs and len(reply) == _SIMPLE_REPLY else 0
        if claim.left:
            queue_shard.left = claim.left
            queue_shard.left_at_s = time.monotonic()
        return claim

    try:
        reply = yield from write(queue_shard, "claim", arguments, deadline_s, blocking_list=blocking_list)
    except OutcomeUnknown as error:
        raise queue_shard.lost_claims.answered_late(error, decode, sent_s) from None
    return decode(reply)


def claim_parts(reply: list[Any]) -> list[Any]:
    """A claim's reply as `decode_claim` takes it: token, jobs block, left, due in and limited as separate elements,
    records in lists.

    Raises IndexError for a reply that is too short.
    """
    sequence, h, head, *records = reply
    if not head:  # a claim of one simple job that found none
        return [sequence, h, b"", b"", b"", bytes(6), b"0"]
    if not records and any(head[:8]):  # a claim that returned one simple job
        block = head[:1] + b"\0\1" + head[1:9] + b"\0\0"
        return [sequence, h, head[9:17], block, b"", bytes(6), b"0", [head[17:]]]
    block = 16 + 4 * head[15]
    token = head[:8] if any(head[:8]) else b""
    return [sequence, h, token, head[block:], head[16:block], head[8:14], b"%d" % head[14], *records]


def dry_run(session: Session, queue: str, limit: int, deadline_s: float) -> Flow[list[Job]]:
    """The jobs that a dequeue would claim now. Their tokens are empty."""
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
