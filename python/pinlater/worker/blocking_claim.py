"""Claims of an idle worker that wait on the server: each is sent behind a BLPOP of a list, the bell of a place, and is
carried out once that rings. So a job is on its way to an idle worker as soon as it was put in line, in one trip.

Promises that no more than MAX_PLACES connections are held for it, that each such claim takes one job at most, and that
what it gave is told, also at the end. Risks: a worker that stands still is given one job a place, if that comes within
16 s of its last claim; it comes back when its lease ends, as one that a worker died with.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from pinlater._core import Claim
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError
from pinlater.operations.claim import PATIENCE_S, claim_at
from pinlater.store.effects import Flow, NoAnswer, Send
from pinlater.store.keys import blocking_list_key
from pinlater.store.requests import write
from pinlater.store.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")

#: Who works on more queues and shards than this waits for messages on its channel alone, and claims then.
MAX_QUEUE_SHARDS: Final = 8
#: What is left of a bell that nobody waits at goes after so long; as in lib/notify_waiter.lua.
_LEFT_MS: Final = 60_000
#: An answer to a bell's claim is on its way for so long at most.
_ANSWER_S: Final = 1.0
_NEVER_S: Final = float("inf")


class BlockingClaims:
    """rang: gets the queue, what the claim gave or why there is no answer, and when it was sent (monotonic s)."""

    def __init__(
        self, client: AsyncClient, queues: Sequence[str], rang: Callable[[str, Claim | PinLaterError, float], None]
    ) -> None:
        self._client = client
        self._few = len(queues) * len(client.session.shards) <= MAX_QUEUE_SHARDS
        self._rang = rang
        self._wanted = False
        self._named: set[QueueShard] = set()
        self._waiting: dict[QueueShard, asyncio.Task[None]] = {}

    def open(self, wanted: bool) -> None:
        """wanted: there are to be bells, if there are few enough places."""
        self._wanted = wanted and self._few
        for queue_shard in self._named:
            queue_shard.blocking_list = b""
        self._named.clear()

    def name(self, queue_shards: Iterable[QueueShard]) -> None:
        """Claims that find nothing there register this worker by its bell from now on."""
        for queue_shard in queue_shards if self._wanted else ():
            if queue_shard not in self._named:
                queue_shard.blocking_list = blocking_list_key(
                    queue_shard.queue, queue_shard.shard.name, self._client.session.channel
                )
                self._named.add(queue_shard)

    def hang(self, queue_shards: Iterable[QueueShard]) -> None:
        """At each of these places where this worker is registered by its bell a claim waits from now on."""
        for queue_shard in queue_shards if self._wanted else ():
            if queue_shard.blocking_list and queue_shard not in self._waiting:
                self._waiting[queue_shard] = asyncio.get_running_loop().create_task(
                    self._claim(queue_shard, queue_shard.blocking_list)
                )

    async def end(self) -> None:
        """Rings every bell, until what each claim gave is known: where no answer comes, by asking for it. Not where the
        server does not answer: what was claimed there comes back when its lease ends.
        """
        self._wanted = False
        while queue_shards := list(self._waiting):
            reached = await asyncio.gather(*map(self._ring, queue_shards))
            for queue_shard, there in zip(queue_shards, reached, strict=True):
                if not there and queue_shard in self._waiting:
                    self._waiting.pop(queue_shard).cancel()
            if tasks := list(self._waiting.values()):
                await asyncio.wait(tasks, timeout=_ANSWER_S)
            self._client.driver.stop_blocking()

    async def close(self) -> None:
        """Without asking: what a claim gives now comes back when its lease ends. There are no bells any more."""
        tasks = list(self._waiting.values())
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.open(False)

    async def _claim(self, queue_shard: QueueShard, blocking_list: bytes) -> None:
        client = self._client
        session, source, sent_s = client.session, client.settings.source, time.monotonic()
        answer: Claim | PinLaterError
        try:
            # without a deadline: a server that went away is waited for, to be asked what it gave
            answer = await client.run(
                lambda _: claim_at(session, queue_shard, 1, None, False, source, _NEVER_S, blocking_list=blocking_list)
            )
        except PinLaterError as error:
            log.debug("%s: no answer to a claim behind a bell: %s", queue_shard, error)
            answer = error
        finally:
            self._waiting.pop(queue_shard, None)
        if not queue_shard.blocking_list:
            await self._do_without(queue_shard, blocking_list)
        self._rang(queue_shard.queue, answer, sent_s)

    async def _do_without(self, queue_shard: QueueShard, blocking_list: bytes) -> None:
        """Blocking is refused: this worker is rung by messages from now on."""
        if self._wanted:
            log.info("%s: BLPOP is refused, jobs are waited for by messages (docs/acl.md)", queue_shard.shard)
        self.open(False)
        with suppress(PinLaterError):
            await self._client.run(lambda end: write(queue_shard, "wake", [blocking_list], end, patient=False))

    async def _ring(self, queue_shard: QueueShard) -> bool:
        """Whether the server answered."""
        blocking_list = blocking_list_key(queue_shard.queue, queue_shard.shard.name, self._client.session.channel)
        commands = ("RPUSH", blocking_list, b""), ("PEXPIRE", blocking_list, _LEFT_MS)

        def ring(end_s: float) -> Flow[bool]:
            answers = (yield [Send(queue_shard.shard.server, commands, min(end_s, time.monotonic() + PATIENCE_S))])[0]
            return not any(isinstance(answer, NoAnswer) for answer in answers)

        return await self._client.run(ring)
