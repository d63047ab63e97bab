"""The subscriptions of a worker's wake channel, one a server, which are made again when they are lost.

Promises that a lost one is tried again until it stands or the worker stops, and told once. Risks: one that dies without
a word is noticed by TCP's probes only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from pinlater.client.async_client import AsyncClient
from pinlater.model.backoff import Pauses
from pinlater.model.errors import ServerRefused
from pinlater.store.keys import cancel_channel
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")


class Subscriptions:
    """background: runs what makes one. stands: told of the server of one that was made."""

    def __init__(
        self,
        client: AsyncClient,
        queues: Sequence[str],
        background: Callable[[Coroutine[Any, Any, None]], None],
        stands: Callable[[Server], None],
    ) -> None:
        self._client, self._queues = client, queues
        self._background, self._stands = background, stands
        self._making: set[Server] = set()
        self._closed = True

    def open(self, rang: Callable[[bytes], None], removed: Callable[[bytes, bytes], None]) -> None:
        """They are kept up from now on. rang: told of each ring (the key m of its place); removed: of a channel where
        jobs are told that were removed, and of their ids.
        """
        self._closed = False
        subscriber = self._client.driver.subscriber
        subscriber.on_notification, subscriber.on_lost = rang, self._on_lost
        subscriber.add_channels(self._cancel_channels, removed)

    def close(self) -> None:
        """None is made again."""
        self._closed = True
        self._client.driver.subscriber.on_lost = None

    def forget(self) -> None:
        """What they hear is not told any more."""
        subscriber = self._client.driver.subscriber
        subscriber.on_notification = subscriber.on_other = None

    def _cancel_channels(self, server: Server) -> list[bytes]:
        shards = self._client.session.shards.values()
        return [
            cancel_channel(queue, shard.name) for shard in shards if shard.server is server for queue in self._queues
        ]

    def heard(self, queue_shards: list[QueueShard]) -> list[QueueShard]:
        """The places whose server rings us; the others are subscribed meanwhile."""
        listening = self._client.driver.subscriber.listening
        heard = [queue_shard for queue_shard in queue_shards if listening(queue_shard.shard.server)]
        if len(heard) < len(queue_shards):
            for queue_shard in queue_shards:
                self._on_lost(queue_shard.shard.server)
        return heard

    def _on_lost(self, server: Server) -> None:
        if server not in self._making and not self._client.driver.subscriber.listening(server) and not self._closed:
            self._making.add(server)
            self._background(self._make(server))

    async def _make(self, server: Server) -> None:
        pauses = Pauses()
        try:
            while (why := await self._listen(server)) and not self._closed:
                if pauses.is_first:
                    log.warning("%s, trying again", why)
                await asyncio.sleep(pauses.take())
        finally:
            self._making.discard(server)
        self._stands(server)

    async def _listen(self, server: Server) -> str:
        """Why the subscription does not stand; '' if it does."""
        subscriber = self._client.driver.subscriber
        try:
            await subscriber.listen([server])
        except ServerRefused as error:
            return str(error)
        return "" if subscriber.listening(server) else f"server {server} does not answer"
