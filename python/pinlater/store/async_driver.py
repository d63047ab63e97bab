"""Carries out effects on an event loop.

Each request has a connection of its own while it runs. Promises:
- A started request is read to its end, or its connection is dropped, also if the caller is cancelled. A started
  transaction of the archive goes on to its end, or to that of the process.
- A node that is no primary any more, or does not answer in time, is left: its free connections, its subscriptions and
  the connections of blocking requests are closed, and its name is resolved anew. Other requests are read to their end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

import pinlater._core as _core
from pinlater.model.errors import ClientClosed, PinLaterError, ServerUnavailable
from pinlater.store.archive_threads import ArchiveThreads
from pinlater.store.async_connection import Connection
from pinlater.store.async_subscriber import AsyncSubscriber
from pinlater.store.call_batches import Coalescer, make_room
from pinlater.store.effects import (
    AwaitMessage,
    AwaitNotification,
    Coalesce,
    Command,
    Effect,
    Flow,
    Leave,
    Listen,
    NoAnswer,
    Send,
    Sleep,
    Subscribe,
    T,
    Transaction,
    Transactions,
    resume,
)
from pinlater.store.keys import WRITE_NOTHING
from pinlater.store.servers import Server
from pinlater.store.sync_driver import MAX_FREE, connect_error, refuses_subscriptions, timed_out


class AsyncDriver:
    """Runs flows.

    connect_timeout_s: for one connect. read_timeout_s: for one request.
    """

    def __init__(self, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._timeouts = (connect_timeout_s, read_timeout_s)
        self.free: dict[Server, list[Connection]] = {}
        self._pools: dict[Server, tuple[str, redis.asyncio.ConnectionPool]] = {}
        self.subscriber = AsyncSubscriber(self.connect_to_primary)
        self._coalescers: dict[Hashable, Coalescer[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocking: dict[Connection, Server] = {}
        self._inherited: tuple[Any, ...] = ()
        self._threads: ArchiveThreads | None = None
        self._closed = False

    async def drive(self, flow: Flow[T]) -> T:
        """Runs a flow to its end and returns its result.

        Raises ClientClosed if the client is closed before the flow starts, or while it waits for something other than
        an answer.
        """
        result: Any = None
        try:
            self._check_open()
            while True:
                effect = flow.send(result)
                while type(effect) is Transaction:
                    effect = resume(flow, await self._transact(effect))
                if type(effect) is list and len(effect) == 1:  # as most are
                    result = [await self._send(effect[0])]
                else:
                    result = await self._perform(effect)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    async def send(self, server: Server, commands: Sequence[Command], deadline_s: float) -> list[Any]:
        """Sends commands in one packet, outside of any flow. Arguments and answers are those of Send."""
        self._check_open()
        return await self._send(Send(server, commands, deadline_s))

    def after_fork(self) -> None:
        """In a forked child: starts without connections.

        Keeps the parent's objects alive. Closing them here would remove them from the epoll set of the parent's loop,
        which the two processes share.
        """
        self._inherited = self._inherited, self.free, self._pools, self.subscriber, self._threads
        self._threads = None
        self.free, self._pools, self._coalescers, self._tasks = {}, {}, {}, set()
        self.subscriber = AsyncSubscriber(self.connect_to_primary)

    def stop_blocking(self) -> None:
        """Drops the connections of blocking requests. Their outcomes are unknown."""
        for connection in self._blocking:
            connection.close()

    async def close(self) -> None:
        """Closes every connection. Running calls end; a call that waits for a job ends at once. A second call does
        nothing.
        """
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self.subscriber.close()
        if self._threads is not None:
            self._threads.close()
        free, self.free = self.free, {}
        for connections in free.values():
            for connection in connections:
                connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("expected an open client, this one is closed")

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case list():
                return await asyncio.gather(*map(self._send, effect))
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Listen(channels):
                return await self._while_open(self.subscriber.listen(channels))
            case AwaitNotification(seconds, since):
                await self._while_open(self.subscriber.wait(seconds, since))
            case Subscribe(server, channel, seconds):
                return await self._while_open(self.subscriber.subscribe(server, channel, seconds))
            case AwaitMessage(subscription, seconds):
                await self._while_open(subscription.wait(seconds))
            case Coalesce():
                try:
                    return await self._coalesce(effect)
                except PinLaterError:
                    self._check_open()
                    raise
            case Leave(server):
                self._leave(server, server.moves)
            case Transactions(each):
                return await asyncio.gather(*map(self._transact, each))
        return None

    async def _transact(self, transaction: Transaction) -> Any:
        """Runs a transaction in a thread. It goes on to its end if the caller is cancelled."""
        self._check_open()
        if self._threads is None:
            self._threads = ArchiveThreads()
        return await self._threads.start(transaction.outcome)

    async def _while_open(self, wait: Coroutine[Any, Any, T]) -> T:
        """Runs a wait that close() ends. Raises ClientClosed if the client is closed before or after it."""
        try:
            self._check_open()
            result = await wait
        finally:
            wait.close()
        self._check_open()
        return result

    def _coalesce(self, effect: Coalesce) -> asyncio.Future[Any]:
        coalescer = self._coalescers.get(effect.key)
        if coalescer is None:
            make_room(self._coalescers)
            make = effect.make
            coalescer = self._coalescers[effect.key] = Coalescer(lambda items: self.drive(make(items)), self._tasks)
        future: asyncio.Future[Any] = coalescer.add(effect.item, 0)
        return future

    async def _send(self, effect: Send) -> list[Any]:
        server = effect.server
        if server.outage is not None and not effect.ping:
            return [NoAnswer(False, server.outage())] * len(effect.commands)
        connection = self._take(server)
        if connection is None:
            moves = server.moves  # before its name is resolved
            try:
                connection = Connection(await self.connect(server, effect.wait_s(sum(self._timeouts))), moves)
            except PinLaterError as error:
                return [NoAnswer(False, error)] * len(effect.commands)
        if effect.blocking:
            self._blocking[connection] = server
        try:
            answers, why = await connection.request(
                _core.pack_commands(effect.commands), len(effect.commands), effect.wait_s(self._timeouts[1])
            )
        except BaseException:
            connection.close()
            raise
        finally:
            self._blocking.pop(connection, None)
        if why is not None:
            connection.close()
            if connection.errors.leave or isinstance(why, TimeoutError):
                self._leave(server, connection.moves)
            lost = NoAnswer(True, ServerUnavailable(f"server {server.with_origin}: {why}"))
            return answers + [lost] * (len(effect.commands) - len(answers))
        self._release(server, connection)
        return answers

    def _release(self, server: Server, connection: Connection) -> None:
        if connection.errors.leave:
            self._leave(server, connection.moves)
        free = self.free.setdefault(server, [])
        is_current = server.is_used and connection.moves == server.moves
        if len(free) < MAX_FREE and not self._closed and is_current:
            free.append(connection)
        else:
            connection.close()

    def _leave(self, server: Server, moves: int) -> None:
        """Leaves the node that connections with this `moves` lead to, unless it was left before. Then no free or
        blocking connection and no subscription stays.
        """
        if moves != server.moves:
            return
        server.moves += 1
        blocking = [connection for connection, where in self._blocking.items() if where is server]
        for connection in self.free.pop(server, []) + blocking:
            connection.close()
        self.subscriber.leave(server)

    def _take(self, server: Server) -> Connection | None:
        """A free connection that is still open, or None."""
        free = self.free.get(server)
        while free:
            connection = free.pop()
            if connection.is_open():
                return connection
            connection.close()
        return None

    async def connect(self, server: Server, within_s: float = float("inf")) -> Any:
        """Connects to a server and checks its node. Returns a redis-py connection. Raises ServerError.

        within_s: time for the connect and the check.
        """
        moves, pool = server.moves, await self._pool(server)
        connection = pool.connection_class(**pool.connection_kwargs)
        try:
            async with asyncio.timeout(min(within_s, sum(self._timeouts))):
                await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_command("INFO", "server", check_health=False)
                if server.check_node((await connection.read_response(disable_decoding=True)).decode()):
                    self._leave(server, moves)
        except (RedisError, OSError, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            server.restart_embedded()
            if timed_out(error):
                self._leave(server, moves)
            raise connect_error(server, error) from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        server.contacted = True
        return connection

    async def connect_to_primary(self, server: Server) -> Any:
        """As connect, but also raises ServerUnavailable for an unhealthy server, and for a replica: a subscription
        there would stay silent.
        """
        if server.outage is not None:
            raise server.outage()
        connection = await self.connect(server)
        try:
            async with asyncio.timeout(self._timeouts[1]):
                await connection.send_command(*WRITE_NOTHING, check_health=False)
                await connection.read_response(disable_decoding=True)
        except (RedisError, OSError, TimeoutError) as error:
            if refuses_subscriptions(error):
                await connection.disconnect(nowait=True)
                raise connect_error(server, error) from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _pool(self, server: Server) -> redis.asyncio.ConnectionPool:
        """The pool that knows the arguments of connections. An embedded server may have another URL after a restart."""
        url, arguments = await asyncio.to_thread(server.connection_arguments, *self._timeouts)
        # a request has one timeout; a timeout a read would cost as much as the read itself
        arguments["socket_timeout"] = None
        known = self._pools.get(server)
        if known is None or known[0] != url:
            known = self._pools[server] = (url, redis.asyncio.ConnectionPool.from_url(url, **arguments))
        return known[1]
