"""What async code hears: a watch is one channel; all of an event loop's share one subscription a server.

Promises that a message that comes after `watch` returned is heard by every watch of its channel, and that a lost
subscription ends their waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pinlater.model.errors import ClientClosed, PinLaterError
from pinlater.store.async_connection import Subscription
from pinlater.store.servers import Server
from pinlater.store.sync_waker import CONFIRM_S, refused


class AsyncWatcher:
    """connect: gives a redis-py connection."""

    def __init__(self, connect: Callable[[Server], Awaitable[Any]]) -> None:
        self._connect = connect
        self._posts: dict[Server, asyncio.Future[_Post]] = {}

    async def watch(self, server: Server, channel: bytes) -> AsyncWatch | None:
        """Subscribes; None if the server does not answer. Raises ServerRefused where this user may not subscribe."""
        try:
            post = await self._post(server)
            return await post.watch(channel)
        except PermissionError as error:
            raise refused(server, str(error)) from None
        except (PinLaterError, OSError, TimeoutError):
            return None

    def close(self) -> None:
        """Ends every subscription; those who wait return."""
        posts, self._posts = self._posts, {}
        for opening in posts.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().close()
            else:
                opening.cancel()

    async def _post(self, server: Server) -> _Post:
        """The post of a server, opened once for all who ask meanwhile."""
        opening = self._posts.get(server)
        if opening is None or (opening.done() and _ended(opening)):
            opening = self._posts[server] = asyncio.ensure_future(self._open(server))
        await asyncio.wait([opening])  # its end by close() is not the caller's own
        if opening.cancelled():
            raise ClientClosed("the client was closed meanwhile")
        return opening.result()

    async def _open(self, server: Server) -> _Post:
        return _Post(await self._connect(server))


def _ended(opening: asyncio.Future[_Post]) -> bool:
    return opening.cancelled() or opening.exception() is not None or opening.result().ended


class _Post:
    """The subscription on one server, and who hears what on it."""

    def __init__(self, connection: Any) -> None:
        self._subscription = Subscription(connection, self._on_message)
        self._subscription.on_lost = self._lost
        self._watches: dict[bytes, set[AsyncWatch]] = {}
        self._confirmed: dict[bytes, asyncio.Future[None]] = {}

    @property
    def ended(self) -> bool:
        return self._subscription.ended

    async def watch(self, channel: bytes) -> AsyncWatch:
        watch = AsyncWatch(self, channel)
        watches = self._watches.get(channel)
        if watches is None:
            watches = self._watches[channel] = set()
            self._confirmed[channel] = self._subscription.add(channel)
        watches.add(watch)
        try:
            async with asyncio.timeout(CONFIRM_S):
                await asyncio.shield(self._confirmed[channel])
        except BaseException:
            watch.close()
            raise
        return watch

    def leave(self, watch: AsyncWatch) -> None:
        watches = self._watches.get(watch.channel, set())
        watches.discard(watch)
        if not watches and self._watches.pop(watch.channel, None) is not None:
            del self._confirmed[watch.channel]
            self._subscription.remove(watch.channel)

    def close(self) -> None:
        self._subscription.close()
        self._lost()

    def _on_message(self, channel: bytes, _: bytes) -> None:
        for watch in self._watches.get(channel, ()):
            watch.hear()

    def _lost(self) -> None:
        watches, self._watches, self._confirmed = self._watches, {}, {}
        for each in watches.values():
            for watch in each:
                watch.lost = True
                watch.hear()


class AsyncWatch:
    """One who hears a channel. lost: nothing is heard any more."""

    def __init__(self, post: _Post, channel: bytes) -> None:
        self._post = post
        self.channel = channel
        self.lost = False
        self._heard = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Returns at a message, at the end of the subscription, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        except TimeoutError:
            return
        self._heard.clear()

    def hear(self) -> None:
        """There was a message."""
        self._heard.set()

    def close(self) -> None:
        """Hears no more; twice is fine."""
        self.lost = True
        self._post.leave(self)
