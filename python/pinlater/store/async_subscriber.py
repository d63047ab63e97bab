"""The subscriptions of an asyncio client: its own channels on each server, and channels of single calls.

Promises:
- A notification that comes after `listen` returned ends every wait on the client's own channels.
- A message that comes after `subscribe` returned ends the wait of every subscription to its channel.
- A lost subscription ends the waits on it. The caller then subscribes again, and looks for jobs or results itself.

Each server gets two connections at most: one for the client's own channels, one that all calls share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from pinlater.model.errors import ClientClosed, PinLaterError
from pinlater.store.async_connection import PubSubConnection
from pinlater.store.servers import Server
from pinlater.store.sync_subscriber import LISTEN_AGAIN_S, subscription_refused

#: A server that does not confirm a subscription within this time counts as down.
CONFIRM_S: Final = 5.0

T = TypeVar("T")


class AsyncSubscriber:
    """The client's own channels on each server, and subscriptions of single calls.

    - connect: makes a redis-py connection, or raises ServerError.
    - on_message: called with the channel and each message of the own channels.
    - on_lost: called with the server whose subscriptions to own channels were lost.
    """

    def __init__(self, connect: Callable[[Server], Awaitable[Any]]) -> None:
        self._connect = connect
        self._listening: dict[Server, PubSubConnection] = {}
        self._channels: dict[Server, set[bytes]] = {}
        self._calls: dict[Server, asyncio.Future[_CallConnection]] = {}
        self.waiters: set[asyncio.Future[None]] = set()
        self.on_message: Callable[[bytes, bytes], None] | None = None
        self.on_lost: Callable[[Server], None] | None = None
        self._notifications = 0
        self._missing = self._closed = False

    # the client's own channels

    def hears(self, server: Server, channel: bytes) -> bool:
        """Whether an own channel is subscribed."""
        return server in self._listening and channel in self._channels[server]

    async def listen(self, channels: Sequence[tuple[Server, bytes]]) -> int:
        """Subscribes to those of the client's own channels that are not subscribed yet, and skips a server that does
        not answer. Returns the number of notifications so far. Raises ServerRefused if the user lacks the right.
        """
        missing: dict[Server, list[bytes]] = {}
        for server, channel in channels:
            if not self.hears(server, channel):
                missing.setdefault(server, []).append(channel)
        if missing:
            await asyncio.gather(*(_answered(self._listen_to, server, *names) for server, names in missing.items()))
        self._missing = not all(self.hears(server, channel) for server, channel in channels)
        return self._notifications

    async def wait(self, seconds: float, since: int) -> None:
        """Returns after the notification number `since`, when a subscription is lost, or after `seconds`."""
        if self._notifications != since:
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

    async def _listen_to(self, server: Server, *channels: bytes) -> None:
        moves, connection = server.moves, self._listening.get(server)
        if connection is None:
            connection = PubSubConnection(await self._connect(server), self._on_message)
            try:
                await _confirmed(connection, channels)
            except BaseException:
                connection.close()
                raise
            if self._closed or connection.ended or moves != server.moves:
                connection.close()
                return
            if server not in self._listening:
                self._listening[server], self._channels[server] = connection, set(channels)
                connection.on_lost = partial(self._on_lost, server)
                return
            connection.close()  # another call was faster
            connection = self._listening[server]
        await _confirmed(connection, channels)
        if self._listening.get(server) is connection:
            self._channels[server].update(channels)

    def _on_lost(self, server: Server) -> None:
        self._listening.pop(server, None)
        self._notify()
        if self.on_lost is not None:
            self.on_lost(server)

    def _on_message(self, channel: bytes, message: bytes) -> None:
        self._notify()
        if self.on_message is not None:
            self.on_message(channel, message)

    def _notify(self) -> None:
        self._notifications += 1
        for future in self.waiters:
            if not future.done():
                future.set_result(None)
        self.waiters.clear()

    # channels of single calls

    async def subscribe(self, server: Server, channel: bytes, seconds: float) -> AsyncSubscription | None:
        """A subscription to a channel; None if the server does not answer within `seconds`. Raises ServerRefused if the
        user lacks the right.
        """
        return await _answered(partial(self._subscribe, seconds), server, channel)

    async def _subscribe(self, seconds: float, server: Server, channel: bytes) -> AsyncSubscription:
        async with asyncio.timeout(seconds):
            connection = await self._call_connection(server)
            return await connection.subscribe(channel)

    async def _call_connection(self, server: Server) -> _CallConnection:
        """The connection that calls share; concurrent callers wait for the same one."""
        opening = self._calls.get(server)
        if opening is None or (opening.done() and _has_ended(opening)):
            opening = self._calls[server] = asyncio.ensure_future(self._open(server))
        await asyncio.wait([opening])  # close() cancels `opening`, which must not cancel this caller
        if opening.cancelled():
            raise ClientClosed("the client was closed during the call")
        return opening.result()

    async def _open(self, server: Server) -> _CallConnection:
        moves = server.moves
        connection = _CallConnection(await self._connect(server))
        if moves != server.moves:
            connection.lose()
        return connection

    # both

    def leave(self, server: Server) -> None:
        """Ends the subscriptions on a server that the driver left. Waits on them end."""
        listening, opening = self._listening.get(server), self._calls.get(server)
        if listening is not None:
            listening.lose()
        if opening is not None and opening.done() and not _has_ended(opening):
            opening.result().lose()

    def close(self) -> None:
        """Ends every subscription. Waiting calls return."""
        self._closed = True
        listening, self._listening = self._listening, {}
        for connection in listening.values():
            connection.close()
        self._notify()
        calls, self._calls = self._calls, {}
        for opening in calls.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().close()
            else:
                opening.cancel()


async def _confirmed(connection: PubSubConnection, channels: Sequence[bytes]) -> None:
    async with asyncio.timeout(CONFIRM_S):
        await connection.subscribe(*channels)


async def _answered(subscribe: Callable[..., Awaitable[T]], server: Server, *channels: bytes) -> T | None:
    """None if the server does not answer. Raises ServerRefused if the user lacks the right."""
    try:
        return await subscribe(server, *channels)
    except PermissionError as error:
        raise subscription_refused(server, str(error)) from None
    except (PinLaterError, OSError, TimeoutError):
        return None


def _has_ended(opening: asyncio.Future[_CallConnection]) -> bool:
    return opening.cancelled() or opening.exception() is not None or opening.result().ended


class _CallConnection:
    """The connection to one server on which single calls subscribe to their channels."""

    def __init__(self, connection: Any) -> None:
        self._connection = PubSubConnection(connection, self._on_message)
        self._connection.on_lost = self._on_lost
        self._subscriptions: dict[bytes, set[AsyncSubscription]] = {}
        self._confirmed: dict[bytes, asyncio.Future[None]] = {}

    @property
    def ended(self) -> bool:
        return self._connection.ended

    async def subscribe(self, channel: bytes) -> AsyncSubscription:
        subscription = AsyncSubscription(self, channel)
        subscriptions = self._subscriptions.get(channel)
        if subscriptions is None:
            subscriptions = self._subscriptions[channel] = set()
            self._confirmed[channel] = self._connection.subscribe(channel)
        subscriptions.add(subscription)
        try:
            async with asyncio.timeout(CONFIRM_S):
                await asyncio.shield(self._confirmed[channel])
        except BaseException:
            subscription.close()
            raise
        return subscription

    def unsubscribe(self, subscription: AsyncSubscription) -> None:
        """Unsubscribes from the channel with its last subscription."""
        channel = subscription.channel
        subscriptions = self._subscriptions.get(channel, set())
        subscriptions.discard(subscription)
        if not subscriptions and self._subscriptions.pop(channel, None) is not None:
            del self._confirmed[channel]
            self._connection.unsubscribe(channel)

    def close(self) -> None:
        self._connection.close()
        self._on_lost()

    def lose(self) -> None:
        self._connection.lose()

    def _on_message(self, channel: bytes, _: bytes) -> None:
        for subscription in self._subscriptions.get(channel, ()):
            subscription.notify()

    def _on_lost(self) -> None:
        by_channel, self._subscriptions, self._confirmed = self._subscriptions, {}, {}
        for subscriptions in by_channel.values():
            for subscription in subscriptions:
                subscription.lost = True
                subscription.notify()


class AsyncSubscription:
    """A subscription of one call to one channel. lost: no message comes any more."""

    def __init__(self, connection: _CallConnection, channel: bytes) -> None:
        self._connection = connection
        self.channel = channel
        self.lost = False
        self._notified = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Returns at a message, when the subscription is lost, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._notified.wait()
        except TimeoutError:
            return
        self._notified.clear()

    def notify(self) -> None:
        """Ends the wait."""
        self._notified.set()

    def close(self) -> None:
        """Ends the subscription. A second call does nothing."""
        self.lost = True
        self._connection.unsubscribe(self)
