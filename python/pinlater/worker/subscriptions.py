"""The subscriptions of a worker: one on each server.

Promises that a lost subscription is logged once, and that the worker subscribes again until it succeeds or stops.
Risk: if a connection dies silently, only TCP keepalive probes notice.
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
    """The subscriptions of one worker."""

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
        """Sets the callbacks. From now on a lost subscription is made again.

        notified: called with the key `meta` of the queue shard that has work.
        removed: called with the channel and the ids of running jobs that were removed.
        made: called with the server of each new subscription.
        """
        self._stopped, self._made = False, made
        subscriber = self._client.driver.subscriber
        subscriber.on_notification, subscriber.on_lost = notified, self._on_lost
        subscriber.add_channels(self._cancel_channels, removed)

    def stop(self) -> None:
        """Makes no subscription again."""
        self._stopped = True
        self._client.driver.subscriber.on_lost = None

    async def close(self) -> None:
        """Removes the callbacks, and cancels subscriptions that are still being made."""
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
        """Returns the queue shards whose servers have a subscription. Starts to subscribe to the other servers."""
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
        """Subscribes. Returns '' on success, else the reason of the failure."""
        subscriber = self._client.driver.subscriber
        try:
            await subscriber.listen([server])
        except ServerRefused as error:
            return str(error)
        return "" if subscriber.listening(server) else f"server {server} does not answer"


def _ignore(_: Server) -> None:
    """Stands in for the callback `made` before open()."""
