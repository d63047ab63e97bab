"""Jobs from the queue shards of a client.

Promises that it claims only where it is subscribed, and that a claim whose answer was lost is asked for: other workers
see its jobs only when its lease ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from pinlater._core import Claim
from pinlater.client.async_client import AsyncClient
from pinlater.model.clocks import boot_s
from pinlater.model.errors import OutcomeUnknown, PinLaterError, QueueNotFound
from pinlater.model.jobs import Ack, Checkpoint, Job
from pinlater.model.limits import CLAIM_LIMITS, Limit, Rest
from pinlater.model.pauses import Pauses
from pinlater.model.queue_config import QueueConfig
from pinlater.operations import leases, limits, results
from pinlater.operations.claim_round import claim_round
from pinlater.operations.dequeue import leave
from pinlater.operations.queue_shards import ASK_AGAIN_S, agreed_queue_shards, known_queue_shards
from pinlater.operations.queues import recreate_lost
from pinlater.operations.shard_quotas import PATIENCE_S
from pinlater.store.requests import write
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard
from pinlater.worker.blocking_claim import BlockingClaims
from pinlater.worker.job_source import JobEvents
from pinlater.worker.subscriptions import Subscriptions

log: Final = logging.getLogger("pinlater.worker")


class QueueShardSource:
    """The JobSource of a worker; see there.

    config_of: as for Worker.
    """

    def __init__(
        self, client: AsyncClient, queues: Sequence[str], config_of: Callable[[str], QueueConfig | None] | None = None
    ) -> None:
        self._client, self._queues, self._config_of = client, queues, config_of
        self._blocking_claims = BlockingClaims(client, queues)
        self._subscriptions = Subscriptions(client, queues)

    # waiting

    @property
    def ready(self) -> bool:
        return all(map(self._subscriptions.hears, self._queue_shards()))

    def open(self, events: JobEvents, *, blocking: bool) -> None:
        self._blocking_claims.open(events.on_blocking_claim, blocking)
        self._subscriptions.open(
            events.on_notification,
            events.on_removed,
            lambda server: events.on_subscribed(lambda job: self._server_of(job) is server),
            events.on_limits_changed,
            events.on_pause,
        )

    def stop(self) -> None:
        self._subscriptions.stop()

    async def close(self) -> None:
        await self._subscriptions.close()
        await self._blocking_claims.close()

    def notify_others(self, queue: str) -> list[Coroutine[Any, Any, None]]:
        return [self._notify_another(queue_shard) for queue_shard in self._client.session.queue_shards(queue)]

    async def _notify_another(self, queue_shard: QueueShard) -> None:
        try:
            await self._client.run(lambda end: write(queue_shard, "pass_on", [b""], end, patient=False))
        except PinLaterError as error:
            log.debug("%s: no other worker was notified: %s", queue_shard, error)

    async def end_waits(self, take: Callable[[str, Claim], None]) -> None:
        await self._leave()
        lost, _ = await asyncio.gather(self._ask_for_all_lost(take), self._blocking_claims.end())
        if lost or await self._ask_for_all_lost(take):
            await self._leave()

    async def _leave(self) -> None:
        session = self._client.session
        queue_shards = [queue_shard for queue_shard in self._queue_shards() if queue_shard.stored is not None]
        await self._client.run(lambda end: leave(session, queue_shards, end))
        for queue in self._queues:
            await self._client.run(lambda end, queue=queue: limits.return_tokens(session, queue, end))  # type: ignore[misc]

    # claiming

    async def claim(self, queue: str, limit: int, *, wait: bool) -> list[Claim] | None:
        try:
            queue_shards = await self._known(queue)
            return await (self._claim_or_wait if wait else self._claim)(queue_shards, limit)
        except QueueNotFound:
            await self._create(queue)
            raise

    async def _claim_or_wait(self, queue_shards: list[QueueShard], limit: int) -> list[Claim] | None:
        queue_shards = self._subscriptions.heard(queue_shards)
        if not queue_shards:
            return None
        stored = queue_shards[0].stored
        waits = stored is not None and stored.config.rate is None  # a claim that waits at a server has no token
        if waits:
            self._blocking_claims.register(queue_shards)
        claims = await self._claim(queue_shards, limit, wait=True)
        if waits and not any(claim.jobs for claim in claims):
            self._blocking_claims.start(queue_shards)
        return claims

    def rest(self, queue: str, claims: Sequence[Claim]) -> Rest | None:
        if (rest := limits.rest_of(self._client.session, queue)) is not None:
            return rest
        now_s, config = time.monotonic(), self._client.session.known_config(queue)
        if not claims:  # no shard answered, or a rest has just ended
            return Rest(Limit.RATE, now_s) if config is not None and config.rate is not None else None
        found = [CLAIM_LIMITS[claim.limited] for claim in claims]
        # the server notifies this worker when it ends
        return None if found[0] is None or None in found else Rest(found[0], now_s)

    def end_rest(self, queue: str) -> None:
        limits.end_rest(self._client.session, queue)

    async def pause(self, queue: str, pause_ms: int, reason: str) -> None:
        session, by_s = self._client.session, time.monotonic() + PATIENCE_S
        by = f"{self._client.settings.source}: {reason}"
        await self._client.run(lambda end: limits.pause_for(session, queue, pause_ms / 1000, by, min(end, by_s)))

    async def _claim(self, queue_shards: list[QueueShard], limit: int, wait: bool = False) -> list[Claim]:
        session, claimer = self._client.session, self._client.settings.source
        # keep: jobs of an answer that was lost are asked for later
        return await self._client.run(
            lambda end: claim_round(session, queue_shards, limit, wait, claimer, end, keep=True)
        )

    async def _known(self, queue: str) -> list[QueueShard]:
        session = self._client.session
        return agreed_queue_shards(session, queue) or await self._client.run(
            lambda end: known_queue_shards(session, queue, end)
        )

    async def _create(self, queue: str) -> None:
        """Creates a queue again that was lost."""
        session, config = self._client.session, None if self._config_of is None else self._config_of(queue)
        if config is None:
            return
        with suppress(PinLaterError):  # the next claim reports it
            await self._client.run(lambda end: recreate_lost(session, queue, config, end))

    # claims whose answers were lost

    def ask_again_s(self, queue: str) -> float:
        lost = [one for one in self._client.session.queue_shards(queue) if one.lost_claims.pending]
        return min([queue_shard.silent_until_s for queue_shard in lost], default=float("inf"))

    async def ask_for_lost(self, queue: str) -> list[tuple[Claim, float]]:
        lost = [one for one in self._client.session.queue_shards(queue) if one.lost_claims.pending]
        found = await asyncio.gather(*map(self._ask_soon, lost))
        now_s = boot_s()
        return [
            (claim, queue_shard.lost_claims.take_sent_s(claim.token, now_s))
            for queue_shard, claim in zip(lost, found, strict=True)
            if claim is not None and claim.jobs
        ]

    async def _ask_soon(self, queue_shard: QueueShard) -> Claim | None:
        """Asks for one lost answer, for as long as a claim over several shards would wait."""
        by_s = time.monotonic() + PATIENCE_S
        try:
            return await self._client.run(lambda end: queue_shard.lost_claims.ask(min(end, by_s)))
        except OutcomeUnknown as error:
            queue_shard.lost_claims.keep(error)
            queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
        except PinLaterError as error:
            log.warning("queue %s: a claim whose answer was lost: %s", queue_shard.queue, error)
        return None

    async def _ask_for_all_lost(self, take: Callable[[str, Claim], None]) -> bool:
        """Whether there were any."""
        lost = [queue_shard for queue_shard in self._queue_shards() if queue_shard.lost_claims.pending]
        await asyncio.gather(*(self._ask_for(queue_shard, take) for queue_shard in lost))
        return bool(lost)

    async def _ask_for(self, queue_shard: QueueShard, take: Callable[[str, Claim], None]) -> None:
        pauses = Pauses()
        while queue_shard.lost_claims.pending:
            try:
                claim = await self._client.run(queue_shard.lost_claims.ask)
            except OutcomeUnknown as error:
                log.warning("queue %s: it is not known yet what a claim gave: %s", queue_shard.queue, error)
                queue_shard.lost_claims.keep(error)
                await asyncio.sleep(pauses.take())
            except PinLaterError as error:
                log.warning("queue %s: a claim whose answer was lost: %s", queue_shard.queue, error)
            else:
                if claim is not None:
                    take(queue_shard.queue, claim)

    # ending

    async def ack(self, succeeded: list[Job], failed: list[Ack]) -> list[Any]:
        session = self._client.session
        return await self._client.run(lambda end: leases.ack(session, succeeded, failed, None, False, end))

    async def checkpoint(self, checkpoints: list[Checkpoint]) -> list[Any]:
        session = self._client.session
        return await self._client.run(lambda end: leases.checkpoint(session, checkpoints, None, end))

    async def store_results(self, kept: list[tuple[Job, bytes, int]]) -> list[Job]:
        session = self._client.session
        return await self._client.run(lambda end: results.store(session, kept, end))

    async def notify_failed(self, descriptors: list[str]) -> None:
        session = self._client.session
        await self._client.run(lambda end: results.notify(session, descriptors, end))

    async def release(self, jobs: Sequence[Job]) -> list[Any]:
        session = self._client.session
        return await self._client.run(lambda end: leases.release(session, jobs, None, end))

    async def renew(self, jobs: Sequence[Job]) -> list[Job]:
        session = self._client.session
        return await self._client.run(lambda end: leases.renew(session, jobs, False, end))

    async def existing(self, jobs: Sequence[Job]) -> set[str]:
        return set(await self._client.lookup([job.descriptor for job in jobs]))

    def _queue_shards(self) -> list[QueueShard]:
        return [queue_shard for queue in self._queues for queue_shard in self._client.session.queue_shards(queue)]

    def _server_of(self, job: Job) -> Server:
        return self._client.session.queue_shard(job.queue, job.shard).shard.server
