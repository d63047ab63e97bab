"""Carries out effects on an event loop: redis-py's asyncio connections, one checked out an exchange.

Promises that an exchange once begun is read to its end or its connection is dropped, whoever is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

import pinlater._core as _core
from pinlater.model.errors import ClientClosed, PinLaterError, ServerUnavailable
from pinlater.store.async_connection import Connection
from pinlater.store.async_waker import AsyncWaker
from pinlater.store.async_watcher import AsyncWatcher
from pinlater.store.coalescer import Coalescer
from pinlater.store.effects import (
    AwaitMessage,
    AwaitNotification,
    Effect,
    Flow,
    Joined,
    Listen,
    NoAnswer,
    Send,
    Sleep,
    T,
    Watch,
)
from pinlater.store.servers import Server
from pinlater.store.sync_driver import MAX_FREE, connect_error


class AsyncDriver:
    """Drives flows. connect_timeout_s, read_timeout_s: for one connect, one exchange."""

    def __init__(self, channel: bytes, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._timeouts = (connect_timeout_s, read_timeout_s)
        self.free: dict[Server, list[Connection]] = {}
        self._pools: dict[Server, tuple[str, redis.asyncio.ConnectionPool]] = {}
        self.waker, self._watcher = AsyncWaker(channel, self.connect), AsyncWatcher(self.connect)
        self._joined: dict[Hashable, Coalescer[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocking: set[Connection] = set()
        self._inherited: tuple[Any, ...] = ()
        self._closed = False

    async def drive(self, flow: Flow[T]) -> T:
        """Runs a flow to its end and returns its result. Raises ClientClosed if it has not begun, or only waits."""
        result: Any = None
        try:
            self._check_open()
            while True:
                effect = flow.send(result)
                if type(effect) is list and len(effect) == 1:  # as most are
                    result = [await self._exchange(effect[0])]
                else:
                    result = await self._perform(effect)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def after_fork(self, channel: bytes) -> None:
        """In a forked child: leaves the parent's connections alone. They are kept, for their end in the child would
        take them off the poll of the parent's loop too: the two processes share it.
        """
        self._inherited = self._inherited, self.free, self._pools, self.waker, self._watcher
        self.free, self._pools, self._joined, self._tasks = {}, {}, {}, set()
        self.waker, self._watcher = AsyncWaker(channel, self.connect), AsyncWatcher(self.connect)

    def stop_blocking(self) -> None:
        """Blocking exchanges get no more answers: what was sent is uncertain."""
        for connection in self._blocking:
            connection.close()

    async def close(self) -> None:
        """Closes every connection; calls under way end, those that wait for a job at once. Twice is fine."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await self.waker.close()
        self._watcher.close()
        free, self.free = self.free, {}
        for links in free.values():
            for connection in links:
                connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("expected an open client, this one is closed")

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case list():
                return await asyncio.gather(*map(self._exchange, effect))
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Listen(servers):
                return await self._while_open(self.waker.listen(servers))
            case AwaitNotification(seconds, since):
                await self._while_open(self.waker.wait(seconds, since))
            case Watch(server, channel):
                return await self._while_open(self._watcher.watch(server, channel))
            case AwaitMessage(watch, seconds):
                await self._while_open(watch.wait(seconds))
            case Joined():
                try:
                    return await self._join(effect)
                except PinLaterError:
                    self._check_open()
                    raise
        return None

    async def _while_open(self, wait: Coroutine[Any, Any, T]) -> T:
        """A wait, which close() ends, and which does not begin after it."""
        try:
            self._check_open()
            result = await wait
        finally:
            wait.close()
        self._check_open()
        return result

    def _join(self, effect: Joined) -> asyncio.Future[Any]:
        joined = self._joined.get(effect.key)
        if joined is None:
            make = effect.make
            joined = self._joined[effect.key] = Coalescer(lambda items: self.drive(make(items)), self._tasks)
        return joined.add(effect.item, 0)

    async def _exchange(self, effect: Send) -> list[Any]:
        server = effect.server
        connection = self._take(server)
        if connection is None:
            try:
                connection = Connection(await self.connect(server, effect.wait_s(sum(self._timeouts))))
            except PinLaterError as error:
                return [NoAnswer(False, error)] * len(effect.commands)
        if effect.blocking:
            self._blocking.add(connection)
        try:
            answers, why = await connection.exchange(
                _core.pack_commands(effect.commands), len(effect.commands), effect.wait_s(self._timeouts[1])
            )
        except BaseException:
            connection.close()
            raise
        finally:
            self._blocking.discard(connection)
        if why is not None:
            connection.close()
            lost = NoAnswer(True, ServerUnavailable(f"server {server}: {why}"))
            return answers + [lost] * (len(effect.commands) - len(answers))
        free = self.free.setdefault(server, [])
        if len(free) < MAX_FREE and not self._closed:
            free.append(connection)
        else:
            connection.close()
        return answers

    def _take(self, server: Server) -> Connection | None:
        """A free connection that is still open, if there is one."""
        free = self.free.get(server)
        while free:
            connection = free.pop()
            if connection.is_open():
                return connection
            connection.close()
        return None

    async def connect(self, server: Server, within_s: float = float("inf")) -> Any:
        """A connected redis-py connection to a server of a known good version, within so long. Raises ServerError."""
        url, arguments = await asyncio.to_thread(server.connection_arguments, *self._timeouts)
        # an exchange has one timeout as a whole; a second one a read would cost as much as the read
        arguments["socket_timeout"] = None
        known = self._pools.get(server)
        if known is None or known[0] != url:
            known = (url, redis.asyncio.ConnectionPool.from_url(url, **arguments))
            self._pools[server] = known
        connection = known[1].connection_class(**known[1].connection_kwargs)
        try:
            async with asyncio.timeout(min(within_s, sum(self._timeouts))):
                await connection.connect()  # type: ignore[no-untyped-call]
                if server.version is None:
                    await connection.send_command("INFO", "server", check_health=False)
                    server.check_version((await connection.read_response(disable_decoding=True)).decode())
        except (RedisError, OSError, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            server.restart_embedded()
            raise connect_error(server, error) from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        server.contacted = True
        return connection
