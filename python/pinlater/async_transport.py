"""Carries out effects on an event loop: redis-py's asyncio connections, one checked out an exchange.

Promises that an exchange once begun is read to its end or its connection is dropped, whoever is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import select
from typing import Any

import hiredis
import redis.asyncio
from redis.exceptions import RedisError

from pinlater.async_waker import AsyncWaker
from pinlater.errors import PinLaterError, ServerUnavailable
from pinlater.flows import AwaitRing, Effect, Failure, Flow, Listen, ReplyError, Send, Sleep, T
from pinlater.servers import READ_BYTES, Server
from pinlater.sync_transport import MAX_FREE, connect_error, pack_commands


class AsyncTransport:
    """Drives flows. connect_timeout_s, read_timeout_s: for one connect, one exchange."""

    def __init__(self, channel: bytes, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._timeouts = (connect_timeout_s, read_timeout_s)
        self._free: dict[Server, list[_Link]] = {}
        self._pools: dict[Server, tuple[str, redis.asyncio.ConnectionPool]] = {}
        self.waker = AsyncWaker(channel, self.connect)
        self._inherited: tuple[Any, ...] = ()

    async def drive(self, flow: Flow[T]) -> T:
        """Runs a flow to its end and returns its result."""
        result: Any = None
        try:
            while True:
                result = await self._perform(flow.send(result))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def after_fork(self, channel: bytes) -> None:
        """In a forked child: leaves the parent's connections alone. They are kept, for their end in the child would
        take them off the poll of the parent's loop too: the two processes share it.
        """
        self._inherited = self._inherited, self._free, self._pools, self.waker
        self._free, self._pools = {}, {}
        self.waker = AsyncWaker(channel, self.connect)

    async def close(self) -> None:
        """Closes every connection; twice is fine."""
        await self.waker.close()
        free, self._free = self._free, {}
        for links in free.values():
            for link in links:
                await link.close()

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case [single]:
                return [await self._exchange(single)]
            case list():
                return await asyncio.gather(*map(self._exchange, effect))
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case Listen(servers):
                return await self.waker.listen(servers)
            case AwaitRing(seconds, since):
                await self.waker.wait(seconds, since)
        return None

    async def _exchange(self, effect: Send) -> list[Any]:
        server = effect.server
        try:
            link = await self._take(server)
        except PinLaterError as error:
            return [Failure(False, error)] * len(effect.commands)
        answers: list[Any] = []
        wait_s = effect.wait_s(self._timeouts[1])
        try:
            async with asyncio.timeout(wait_s):
                await link.send(pack_commands(effect.commands))
                for _ in effect.commands:
                    answers.append(await link.receive())
        except (OSError, hiredis.ProtocolError, TimeoutError) as error:
            await link.close()
            why = f"no answer within {wait_s:.3g} s" if isinstance(error, TimeoutError) else f"no answer: {error}"
            lost = Failure(True, ServerUnavailable(f"server {server}: {why}"))
            return answers + [lost] * (len(effect.commands) - len(answers))
        except BaseException:
            await link.close()
            raise
        free = self._free.setdefault(server, [])
        if len(free) < MAX_FREE:
            free.append(link)
        else:
            await link.close()
        return answers

    async def _take(self, server: Server) -> _Link:
        free = self._free.get(server)
        while free:
            link = free.pop()
            if link.is_open():
                return link
            await link.close()
        return _Link(await self.connect(server))

    async def connect(self, server: Server) -> Any:
        """A connected redis-py connection to a server of a known good version. Raises ServerError."""
        url, arguments = await asyncio.to_thread(server.connection_arguments, *self._timeouts)
        # an exchange has one timeout as a whole; a second one a read would cost as much as the read
        arguments["socket_timeout"] = None
        known = self._pools.get(server)
        if known is None or known[0] != url:
            known = (url, redis.asyncio.ConnectionPool.from_url(url, **arguments))
            self._pools[server] = known
        connection = known[1].connection_class(**known[1].connection_kwargs)
        try:
            async with asyncio.timeout(sum(self._timeouts)):
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


class _Link:
    """A connection that redis-py made, spoken to directly: its own sending and reading cost ten times as much."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._stream: asyncio.StreamReader = connection._reader
        self._writer: asyncio.StreamWriter = connection._writer
        self._poll = select.poll()
        self._poll.register(self._writer.get_extra_info("socket").fileno(), select.POLLIN)
        self._reader = hiredis.Reader(replyError=ReplyError)  # type: ignore[arg-type]  # any callable does

    async def send(self, packed: bytes) -> None:
        """Raises OSError."""
        self._writer.write(packed)
        if len(packed) > READ_BYTES:
            await self._writer.drain()

    async def receive(self) -> Any:
        """The next reply; an error reply as ReplyError. Raises OSError, or hiredis.ProtocolError."""
        answer = self._reader.gets()
        while answer is False:
            data = await self._stream.read(READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
            answer = self._reader.gets()
        return answer

    def is_open(self) -> bool:
        """Whether the server has not closed it while it was free; nothing was sent on it, so another one can be taken.

        The socket is asked too: the loop may not have come to read its end yet, and what is sent on a closed one is
        uncertain.
        """
        return not self._stream.at_eof() and not self._writer.is_closing() and not self._poll.poll(0)

    async def close(self) -> None:
        """Drops it; an answer still under way is never read."""
        await self._connection.disconnect(nowait=True)
