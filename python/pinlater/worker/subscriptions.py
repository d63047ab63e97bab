"""The subscriptions of a worker's wake channel, one a server, made again when they are lost.

Promises that a lost one is tried again until it stands or the worker stops, and logged once.
Risk: a connection that dies without a word is noticed by TCP's probes only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import ServerRefused
from pinlater.model.pauses import FIRST_RETRY_S, Pauses
from pinlater.store.keys import cancel_channel
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")


class Subscriptions:
    """Those of one worker."""

    def __init__(self, client: AsyncClient, queues: Sequence[str]) -> None:
        self._client, self._queues = client, queues
        self._making: dict[Server, asyncio.Task[None]] = {}
        self._made: Callable[[Server], None] = _ignore
        self._stopped = True

    def open(
        self,
        notified: Callable[[bytes], None],
        removed: Callable[[bytes, bytes], None],
        made: Callable[[Server], None],
    ) -> None:
        """Keeps them up from now on.

        notified: gets each notification: the key `meta` of its queue shard.
        removed: gets the channel and the ids of running jobs that were removed.
        made: gets the server of a subscription that was made.
        """
        self._stopped, self._made = False, made
        subscriber = self._client.driver.subscriber
        subscriber.on_notification, subscriber.on_lost = notified, self._on_lost
        subscriber.add_channels(self._cancel_channels, removed)

    def stop(self) -> None:
        """Makes none again."""
        self._stopped = True
        self._client.driver.subscriber.on_lost = None

    async def close(self) -> None:
        """Reports nothing more."""
        subscriber = self._client.driver.subscriber
        subscriber.on_notification = subscriber.on_other = None
        making = list(self._making.values())
        if making:
            await asyncio.wait(making, timeout=FIRST_RETRY_S)
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)

    def _cancel_channels(self, server: Server) -> list[bytes]:
        shards = self._client.session.shards.values()
        return [
            cancel_channel(queue, shard.name) for shard in shards if shard.server is server for queue in self._queues
        ]

    def heard(self, queue_shards: list[QueueShard]) -> list[QueueShard]:
        """Those whose servers are heard; meanwhile the others are subscribed to."""
        listening = self._client.driver.subscriber.listening
        heard = [queue_shard for queue_shard in queue_shards if listening(queue_shard.shard.server)]
        if len(heard) < len(queue_shards):
            for queue_shard in queue_shards:
                self._on_lost(queue_shard.shard.server)
        return heard

    def _on_lost(self, server: Server) -> None:
        if server not in self._making and not self._client.driver.subscriber.listening(server) and not self._stopped:
            self._making[server] = asyncio.get_running_loop().create_task(self._make(server))

    async def _make(self, server: Server) -> None:
        pauses = Pauses()
        try:
            while (why := await self._listen(server)) and not self._stopped:
                if pauses.is_first:
                    log.warning("%s, trying again", why)
                await asyncio.sleep(pauses.take())
        finally:
            self._making.pop(server, None)
        self._made(server)

    async def _listen(self, server: Server) -> str:
        """Why the subscription does not stand; '' if it does."""
        subscriber = self._client.driver.subscriber
        try:
            await subscriber.listen([server])
        except ServerRefused as error:
            return str(error)
        return "" if subscriber.listening(server) else f"server {server} does not answer"


def _ignore(_: Server) -> None:
    """Before open()."""
