"""The claim loop of a worker: one loop over all its queues, on all their shards, woken by rings.

Promises that a claim is only made where the wake channel is subscribed, that an idle worker sends nothing but
a safety claim, that a ring or a due scheduled job that finds the worker full is passed on to another, and so
are timers at a stop. Risks: where this process dies between a ring and its claim, the safety claims of others
find the job, 10 to 15 s later.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pinlater._core import Claim
from pinlater.client.async_client import AsyncClient
from pinlater.model.backoff import FIRST_RETRY_S, Pauses
from pinlater.model.errors import OutcomeUnknown, PinLaterError, QueueNotFound
from pinlater.model.jobs import Job
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.dequeue import SAFETY_S, claim_round, leave
from pinlater.operations.leases import release
from pinlater.operations.queue_shards import agreed_queue_shards, known_queue_shards
from pinlater.operations.queues import recreate_lost
from pinlater.store.requests import write
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard
from pinlater.worker.blocking_claim import BlockingClaims
from pinlater.worker.cancellations import find_missed
from pinlater.worker.queue_order import QueueOrder, QueueTurns
from pinlater.worker.subscriptions import Subscriptions

log: Final = logging.getLogger("pinlater.worker")

_NEVER_S: Final = float("inf")


@dataclass(slots=True)
class QueuePoll:
    """A queue to claim from. Times are monotonic seconds.

    empty: the last claim was answered and found nothing. hungry: it may have due jobs. rung: somebody must claim,
    this worker or another. safety_s: claim then though nobody rang. timer_s: a scheduled job is due then, and nobody
    else looks. not_before_s: a claim failed, no other one until then. off_list: a bell rang, so this worker is not
    registered as waiting until its next claim.
    """

    queue: str
    empty: bool = False
    hungry: bool = True
    rung: bool = False
    off_list: bool = False
    safety_s: float = 0.0
    timer_s: float = _NEVER_S
    not_before_s: float = 0.0
    retries: Pauses = field(default_factory=Pauses)

    def next_s(self) -> float:
        """When to claim from it next, if there is room."""
        return max(self.not_before_s, 0.0 if self.hungry else min(self.safety_s, self.timer_s))


class Fetcher:
    """room: how many jobs may be claimed now. take: gets a queue, claims with jobs (none: an answer all
    the same), when they were sent. removed: gets the channel (keys.gone_channel) and the ids, joined, of running jobs
    that were removed. held: jobs that are claimed and have not ended. max_jobs: so many are claimed, and no more.
    """

    def __init__(
        self,
        client: AsyncClient,
        queues: Sequence[str],
        room: Callable[[], int],
        take: Callable[[str, list[Claim], float], None],
        removed: Callable[[bytes, bytes], None],
        held: Callable[[], Iterable[Job]],
        order: QueueOrder | None = None,
        max_jobs: int | None = None,
    ) -> None:
        self._client = client
        #: How many more jobs may be claimed ever.
        self.left = sys.maxsize if max_jobs is None else max_jobs
        self._room = room if max_jobs is None else lambda: min(room(), self.left)
        self._take = take
        self._removed, self._held = removed, held
        self._polls = {queue: QueuePoll(queue) for queue in queues}
        self._turns = QueueTurns(queues, order or QueueOrder())
        self._pausing: asyncio.Future[None] | None = None
        self._stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Of bells' claims, while another one was under way: the queue, what it gave, when it was sent.
        self._given: list[tuple[QueuePoll, Claim, float]] = []
        self._blocking_claims = BlockingClaims(client, queues, self._on_blocking_claim)
        self._subscriptions = Subscriptions(client, queues, self._background, self._stands)
        #: How queues are made that are not there, and were not deleted; None: they are waited for.
        self.config_of: Callable[[str], QueueConfig] | None = None
        #: Claim calls answered.
        self.claims = 0
        #: `: ` and why the last one that failed did.
        self.told = ""
        #: Removals of what was claimed before that may not have been heard (monotonic s): see check().
        self.heard_since_s = 0.0

    def open(self, *, blocking: bool) -> None:
        """Rings are heard from now on; what came before is found by a claim. bells: with claims that wait on the
        servers, too.
        """
        self._stopping = False
        self._blocking_claims.open(blocking)
        for source in self._polls.values():
            source.hungry, source.empty = True, False
        self._subscriptions.open(self._on_notification, self._removed)

    async def close(self) -> None:
        """Passes unanswered rings on, for a moment; then nothing of it is left running."""
        self.stop()
        for source in self._polls.values():
            self._pass_on_if_rung(source)
        self._subscriptions.forget()
        await self._blocking_claims.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FIRST_RETRY_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """Ends run() once it is known what every claim gave; rings are passed on from now on."""
        self._stopping = True
        self._subscriptions.close()
        self.wake()

    def wake(self) -> None:
        """There may be room again, or something else changed."""
        if self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)

    def look_again(self) -> None:
        """Claims from every queue, though nobody rang."""
        for source in self._polls.values():
            source.hungry, source.empty = True, False
        self.wake()

    @property
    def ready(self) -> bool:
        """The wake channel is subscribed on every server, claims are answered, and the last of no queue failed."""
        subscriber = self._client.driver.subscriber
        servers = {shard.server for shard in self._client.session.shards.values()}
        failing = any(source.not_before_s for source in self._polls.values())
        return self.claims > 0 and not failing and all(map(subscriber.listening, servers))

    def rank(self, job: Job) -> tuple[int, int]:
        """Of jobs that wait for a slot: the first is the next to run."""
        return self._turns.rank(job.queue), job.priority

    @property
    def empty(self) -> bool:
        """Nothing was due in any queue when it was last asked, and nobody rang since; or no more may be claimed."""
        return self.left <= 0 or all(source.empty and not source.hungry for source in self._polls.values())

    async def run(self) -> None:
        """Claims until stop(); then asks for claims whose answer was lost, and leaves waiting to others."""
        while not self._stopping:
            if self._given:
                self._take_given()
            room = self._room()
            wanting = self._wanting(room)
            if room <= 0 or not wanting:
                await self._pause()
            else:
                queue, share = self._turns.next([source.queue for source in wanting], room)
                await self._try_claim(self._polls[queue], share)
        self._take_given()
        await self._leave()
        lost, _ = await asyncio.gather(self._ask_for_lost(), self._blocking_claims.end())
        if lost or await self._ask_for_lost():
            await self._leave()

    async def claim_once(self, queue: str, limit: int) -> None:
        """Claims what is due now, without waiting for more."""
        source = self._polls[queue]
        await self._claim(source, limit, await self._queue_shards(source), wait=False)

    def _wanting(self, room: int) -> list[QueuePoll]:
        now_s = time.monotonic()
        for source in self._polls.values():
            if source.timer_s <= now_s:
                source.timer_s, source.hungry, source.rung = _NEVER_S, True, True
            if room <= 0:
                self._pass_on_if_rung(source)
        return [source for source in self._polls.values() if source.next_s() <= now_s]

    async def _pause(self) -> None:
        """Until something changed, or it is time for the next claim; a full worker still keeps its timers."""
        full = self._room() <= 0
        next_s = min(source.timer_s if full else source.next_s() for source in self._polls.values())
        loop = asyncio.get_running_loop()
        pausing = self._pausing = loop.create_future()
        timer = None if next_s == _NEVER_S else loop.call_at(_loop_time(next_s), self.wake)
        try:
            await pausing
        finally:
            self._pausing = None
            if timer is not None:
                timer.cancel()

    async def _try_claim(self, source: QueuePoll, limit: int) -> None:
        try:
            queue_shards = self._subscriptions.heard(await self._queue_shards(source))
            if queue_shards:
                self._blocking_claims.name(queue_shards)
                await self._claim(source, limit, queue_shards, wait=True)
            else:
                # the subscription wakes us
                source.hungry, source.safety_s = False, time.monotonic() + SAFETY_S[0]
                return
        except PinLaterError as error:
            self._put_off(source, error)
            if isinstance(error, QueueNotFound) and self.config_of is not None:
                await self._make(source.queue, self.config_of(source.queue))
        else:
            if source.not_before_s:
                log.info("queue %s: claims work again", source.queue)
                source.not_before_s, self.told = 0.0, ""
                source.retries.reset()

    async def _make(self, queue: str, config: QueueConfig) -> None:
        session = self._client.session
        with suppress(PinLaterError):  # the next claim tells
            await self._client.run(lambda end: recreate_lost(session, queue, config, end))

    async def _queue_shards(self, source: QueuePoll) -> list[QueueShard]:
        session = self._client.session
        return agreed_queue_shards(session, source.queue) or await self._client.run(
            lambda end: known_queue_shards(session, source.queue, end)
        )

    async def _claim(self, source: QueuePoll, limit: int, queue_shards: list[QueueShard], *, wait: bool) -> None:
        """wait: for a ring, if there is nothing."""
        session, named = self._client.session, self._client.settings.source
        source.rung = source.off_list = False
        sent_s = time.monotonic()
        # an answer that was lost may have given us jobs that nobody else will see before their lease ends: it is kept
        claims = await self._client.run(
            lambda end: claim_round(session, queue_shards, limit, wait, named, end, keep=True)
        )
        self._answered(source, claims, sent_s)
        if wait and source.empty:
            self._blocking_claims.hang(queue_shards)
        if not any(any(claim.left) for claim in claims):
            await asyncio.sleep(0)  # what it gave starts before the next claim, which will find nothing

    def _answered(self, source: QueuePoll, claims: list[Claim], sent_s: float) -> None:
        self.claims += len(claims)
        full = [claim for claim in claims if claim.jobs]
        count = sum([len(claim.jobs) for claim in full])
        self.left -= count
        self._turns.took(source.queue, count)
        source.empty = not full
        if full:
            self._take(source.queue, full, sent_s)
            source.hungry = True
            return
        now_s = time.monotonic()
        source.safety_s = now_s + random.uniform(*SAFETY_S)
        # an answer was lost: the jobs it may have given are asked for as soon as its server may be back
        lost = [
            queue_shard
            for queue_shard in self._client.session.queue_shards(source.queue)
            if queue_shard.unknown_claim is not None
        ]
        for queue_shard in lost:
            source.safety_s = min(source.safety_s, max(now_s + FIRST_RETRY_S, queue_shard.silent_until_s))
        source.timer_s = min((now_s + claim.due_in_ms / 1000 for claim in claims if claim.due_in_ms), default=_NEVER_S)
        source.hungry = source.rung or source.off_list or any(any(claim.left) for claim in claims)
        self._take(source.queue, [], sent_s)

    def _put_off(self, source: QueuePoll, error: PinLaterError) -> None:
        """A claim failed: try again later, and say so once."""
        if not source.not_before_s:
            log.warning("queue %s: claim failed, trying again: %s", source.queue, error)
        self.told = f": {error}"
        source.hungry = True
        source.not_before_s = time.monotonic() + source.retries.take()

    # rings

    def _on_notification(self, message: bytes) -> None:
        """message: the key `meta` of the queue and shard that rang."""
        queue = message.partition(b"{")[2].partition(b"/")[0].decode()
        source = self._polls.get(queue)
        if source is None:
            return
        source.hungry = source.rung = True
        self.wake()
        if self._stopping:
            self._pass_on_if_rung(source)

    def _on_blocking_claim(self, queue: str, answer: Claim | PinLaterError, sent_s: float) -> None:
        """A bell rang, and the claim behind it was answered: it gave a job at most."""
        source = self._polls[queue]
        source.off_list = True
        if isinstance(answer, Claim) and answer.jobs:
            self._given.append((source, answer, sent_s))
            if self._pausing is not None or self._stopping:
                self._take_given()
        source.hungry = True
        self.wake()

    def _take_given(self) -> None:
        """What bells' claims gave; what there is no room for, as a claim under way took it, is given back."""
        given, self._given = self._given, []
        for source, claim, sent_s in given:
            if self._stopping or self._room() > 0:
                self._answered(source, [claim], sent_s)
            else:
                self._background(self._give_back(claim.jobs))

    async def _give_back(self, jobs: Sequence[Job]) -> None:
        session = self._client.session
        with suppress(PinLaterError):  # then they come back when their lease ends
            await self._client.run(lambda end: release(session, jobs, "", end))

    def _pass_on_if_rung(self, source: QueuePoll) -> None:
        """Another worker may have room."""
        if not source.rung:
            return
        source.rung = False
        for queue_shard in self._client.session.queue_shards(source.queue):
            self._background(self._wake_another(queue_shard))

    async def _wake_another(self, queue_shard: QueueShard) -> None:
        try:
            await self._client.run(lambda end: write(queue_shard, "wake", [b""], end, patient=False))
        except PinLaterError as error:
            log.debug("%s: a ring was not passed on: %s", queue_shard, error)

    # stopping

    async def _leave(self) -> None:
        """Others are to wait from now on, and one of them is to hold the timers this client held."""
        session = self._client.session
        queue_shards = [
            queue_shard
            for queue in self._polls
            for queue_shard in session.queue_shards(queue)
            if queue_shard.stored is not None
        ]
        await self._client.run(lambda end: leave(session, queue_shards, end))

    async def _ask_for_lost(self) -> bool:
        """Asks for claims whose answer was lost, until it is known what they gave; False if there are none."""
        queue_shards = [
            queue_shard for queue in self._polls for queue_shard in self._client.session.queue_shards(queue)
        ]
        lost = [
            (queue_shard, queue_shard.unknown_claim)
            for queue_shard in queue_shards
            if queue_shard.unknown_claim is not None
        ]
        await asyncio.gather(*(self._ask_for(queue_shard, unknown) for queue_shard, unknown in lost))
        return bool(lost)

    async def _ask_for(self, queue_shard: QueueShard, unknown: OutcomeUnknown) -> None:
        queue_shard.unknown_claim, pauses = None, Pauses()
        while True:
            try:
                claim = await self._client.run(unknown.resume)
            except OutcomeUnknown as error:
                log.warning("queue %s: it is not known yet what a claim gave: %s", queue_shard.queue, error)
                unknown = error
            except PinLaterError as error:
                log.warning("queue %s: a claim whose answer was lost: %s", queue_shard.queue, error)
                return
            else:
                self._answered(self._polls[queue_shard.queue], [claim], queue_shard.unknown_sent_s)
                return
            await asyncio.sleep(pauses.take())

    # subscriptions

    def _stands(self, server: Server) -> None:
        """Its subscription stands again: what came meanwhile is claimed, and what was removed is found."""
        for source in self._polls.values():
            # rung: a claim under way may be answered for a moment before the subscription stood
            source.hungry = source.rung = True
        self.wake()
        self.heard_since_s = time.monotonic()
        session = self._client.session
        self.check([job for job in self._held() if session.queue_shard(job.queue, job.shard).shard.server is server])

    def check(self, jobs: Sequence[Job], there: Callable[[set[str]], None] | None = None) -> None:
        """Those of them that were removed while nothing was heard are told of as if it had been heard. there: gets
        descriptors of the others.
        """
        if jobs:
            self._background(find_missed(self._client, jobs, self._removed, there))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _loop_time(monotonic_s: float) -> float:
    """The same moment by the running loop's clock."""
    return asyncio.get_running_loop().time() + monotonic_s - time.monotonic()
