"""The wake channel of an asyncio client: one subscription a server.

Promises that a ring that comes after `listen` returned ends the next `wait` of everybody who waits, and that a lost
subscription ends it too (the caller then listens and claims again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from pinlater.model.errors import PinLaterError
from pinlater.store.async_connection import Subscription
from pinlater.store.servers import Server
from pinlater.store.sync_waker import CONFIRM_S, LISTEN_AGAIN_S, refused


class AsyncWaker:
    """Subscriptions of one channel. `on_ring`, if set, is called with each message (the key m of the queue and shard
    that rang). `also`, if set, names further channels of a server, whose messages go to `on_other`, with the channel.
    """

    def __init__(self, channel: bytes, connect: Callable[[Server], Awaitable[Any]]) -> None:
        self._channel = channel
        self._connect = connect
        self._subscriptions: dict[Server, Subscription] = {}
        self.waiters: set[asyncio.Future[None]] = set()
        self.on_notification: Callable[[bytes], None] | None = None
        self.on_lost: Callable[[Server], None] | None = None
        self.also: Callable[[Server], Sequence[bytes]] = _nothing
        self.on_other: Callable[[bytes, bytes], None] | None = None
        self._rings = 0
        self._missing = self._closed = False

    def hear(self, also: Callable[[Server], Sequence[bytes]], on_other: Callable[[bytes, bytes], None]) -> None:
        """Other channels from now on, of subscriptions that stand too. on_other: gets a channel and its message."""
        self.also, self.on_other = also, on_other
        for server, subscription in self._subscriptions.items():
            subscription.add(*also(server))

    def listening(self, server: Server) -> bool:
        """Whether the subscription on a server stands."""
        return server in self._subscriptions

    async def listen(self, servers: Sequence[Server]) -> int:
        """Subscribes where that is not done yet; a server that is down is left for later. Returns how often it rang so
        far. Raises ServerRefused where this user may not subscribe.
        """
        missing = [server for server in servers if server not in self._subscriptions]
        if missing:
            await asyncio.gather(*map(self._subscribe, missing))
        self._missing = any(server not in self._subscriptions for server in servers)
        return self._rings

    async def wait(self, seconds: float, since: int) -> None:
        """Returns when it rang more often than `since`, when a subscription is lost, or after so many seconds."""
        if self._rings != since:
            return
        future = asyncio.get_running_loop().create_future()
        self.waiters.add(future)
        try:
            async with asyncio.timeout(min(seconds, LISTEN_AGAIN_S) if self._missing else seconds):
                await future
        except TimeoutError:
            pass
        finally:
            self.waiters.discard(future)

    async def close(self) -> None:
        """Ends every subscription; those who wait return."""
        self._closed = True
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.close()
        self._tell()

    async def _subscribe(self, server: Server) -> None:
        try:
            connection = await self._connect(server)
        except PinLaterError:
            return
        subscription = Subscription(connection, self._on_message)
        try:
            async with asyncio.timeout(CONFIRM_S):
                await subscription.add(self._channel, *self.also(server))
        except PermissionError as error:
            subscription.close()
            raise refused(server, str(error)) from None
        except (OSError, TimeoutError):
            subscription.close()
            return
        except BaseException:
            subscription.close()
            raise
        if self._closed or server in self._subscriptions or subscription.ended:
            subscription.close()
            return
        self._subscriptions[server] = subscription
        subscription.on_lost = partial(self._lost, server)

    def _lost(self, server: Server) -> None:
        self._subscriptions.pop(server, None)
        self._tell()
        if self.on_lost is not None:
            self.on_lost(server)

    def _on_message(self, channel: bytes, message: bytes) -> None:
        if channel != self._channel:
            if self.on_other is not None:
                self.on_other(channel, message)
            return
        self._tell()
        if self.on_notification is not None:
            self.on_notification(message)

    def _tell(self) -> None:
        self._rings += 1
        for future in self.waiters:
            if not future.done():
                future.set_result(None)
        self.waiters.clear()


def _nothing(_: Server) -> Sequence[bytes]:
    return ()
