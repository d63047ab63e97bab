"""The subscriptions of a worker to its channels and to those of queues, made again when they are lost.

Promises that a lost subscription is logged once, and its return once too, and that the worker subscribes again until
it succeeds or stops.
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
from pinlater.store.keys import cancel_channel, limits_channel
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
        #: The channels of notifications, and their queues.
        self._wake_channels: dict[bytes, str] = {}
        #: The server subscribes to all channels of a call: where one of these is heard, notifications are too.
        self._cancel_channels: dict[QueueShard, bytes] = {}
        self._limits_channels: dict[bytes, QueueShard] = {}

    def open(
        self,
        notified: Callable[[str], None],
        removed: Callable[[bytes, bytes], None],
        made: Callable[[Server], None],
        limits_changed: Callable[[str], None],
        pause: Callable[[str], None],
    ) -> None:
        """Sets the callbacks. From now on a lost subscription is made again.

        notified: gets the queue of each notification.
        removed: gets the channel of a cancellation, and the ids.
        made: gets the server of a subscription that was made.
        limits_changed: gets the queue whose limits changed.
        pause: gets the queue whose claims pause for a time.
        """
        self._stopped, self._made = False, made
        session, subscriber = self._client.session, self._client.driver.subscriber
        for queue in self._queues:
            for queue_shard in session.queue_shards(queue):
                self._add(queue_shard)

        def on_message(channel: bytes, message: bytes) -> None:
            if (queue := self._wake_channels.get(channel)) is not None:
                notified(queue)
            elif (queue_shard := self._limits_channels.get(channel)) is not None:
                (pause if message else limits_changed)(queue_shard.queue)
            else:
                removed(channel, message)

        subscriber.on_message, subscriber.on_lost = on_message, self._on_lost

    def _add(self, queue_shard: QueueShard) -> None:
        queue, shard = queue_shard.queue, queue_shard.shard.name
        self._wake_channels[queue_shard.channel] = queue
        self._cancel_channels[queue_shard] = cancel_channel(queue, shard)
        self._limits_channels[limits_channel(queue, shard)] = queue_shard

    def stop(self) -> None:
        """Makes no subscription again."""
        self._stopped = True
        self._client.driver.subscriber.on_lost = None

    async def close(self) -> None:
        """Removes the callbacks, and cancels subscriptions that are still being made."""
        subscriber = self._client.driver.subscriber
        subscriber.on_message = None
        making = list(self._making.values())
        if making:
            await asyncio.wait(making, timeout=FIRST_RETRY_S)
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)

    def _channels(self, server: Server) -> list[tuple[Server, bytes]]:
        there = {one: cancels for one, cancels in self._cancel_channels.items() if one.shard.server is server}
        limits = [channel for channel, one in self._limits_channels.items() if one in there]
        return [(server, channel) for channel in (*(one.channel for one in there), *limits, *there.values())]

    def heard(self, queue_shards: list[QueueShard]) -> list[QueueShard]:
        """Those whose servers are heard; meanwhile the others are subscribed to."""
        heard = [queue_shard for queue_shard in queue_shards if self.hears(queue_shard)]
        if len(heard) < len(queue_shards):
            for queue_shard in queue_shards:
                if queue_shard not in heard:
                    self._add(queue_shard)  # its shard may have been added just now
                    self._on_lost(queue_shard.shard.server)
        return heard

    def hears(self, queue_shard: QueueShard) -> bool:
        """Whether notifications and cancellations from there are heard."""
        channel = self._cancel_channels.get(queue_shard, b"")
        return self._client.driver.subscriber.hears(queue_shard.shard.server, channel)

    def _on_lost(self, server: Server) -> None:
        if server not in self._making and not self._stopped and server.is_used:
            self._making[server] = asyncio.get_running_loop().create_task(self._make(server))

    async def _make(self, server: Server) -> None:
        pauses = Pauses()
        try:
            while (why := await self._listen(server)) and not self._stopped and server.is_used:
                if pauses.is_first:
                    log.warning("%s, trying again", why)
                await asyncio.sleep(pauses.take())
            if not why and not pauses.is_first:
                log.info("server %s answers again", server)
        finally:
            self._making.pop(server, None)
        self._made(server)

    async def _listen(self, server: Server) -> str:
        """Why the subscription does not stand; '' if it does."""
        subscriber, channels = self._client.driver.subscriber, self._channels(server)
        try:
            await subscriber.listen(channels)
        except ServerRefused as error:
            return str(error)
        return "" if subscriber.hears(*channels[-1]) else f"server {server} does not answer"


def _ignore(_: Server) -> None:
    """Stands in for the callback `made` before open()."""
