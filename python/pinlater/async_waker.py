"""The wake channel of an asyncio client: one subscription a server, read by one task each.

Promises that a ring that comes after `listen` returned ends the next `wait` of everybody who waits, and that a lost
subscription ends it too (the caller then listens and claims again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import hiredis
from redis.exceptions import RedisError

from pinlater.errors import PinLaterError
from pinlater.servers import READ_BYTES, Server
from pinlater.sync_waker import LISTEN_AGAIN_S

#: A server that does not confirm a subscription within so long is taken for down.
CONFIRM_S: Final = 5.0


class AsyncWaker:
    """Subscriptions of one channel. `on_ring`, if set, is called with each message (the key m of the queue and shard
    that rang).
    """

    def __init__(self, channel: bytes, connect: Callable[[Server], Awaitable[Any]]) -> None:
        self._channel = channel
        self._connect = connect
        self._readers: dict[Server, asyncio.Task[None]] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        self.on_ring: Callable[[bytes], None] | None = None
        self.on_lost: Callable[[Server], None] | None = None
        self._rings = 0
        self._missing = False

    def listening(self, server: Server) -> bool:
        """Whether the subscription on a server stands."""
        return server in self._readers

    async def listen(self, servers: Sequence[Server]) -> int:
        """Subscribes where that is not done yet; a server that is down is left for later. Returns how often it rang so
        far.
        """
        missing = [server for server in servers if server not in self._readers]
        if missing:
            await asyncio.gather(*map(self._subscribe, missing))
        self._missing = any(server not in self._readers for server in servers)
        return self._rings

    async def wait(self, seconds: float, since: int) -> None:
        """Returns when it rang more often than `since`, when a subscription is lost, or after so many seconds."""
        if self._rings != since:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        try:
            await asyncio.wait_for(future, min(seconds, LISTEN_AGAIN_S) if self._missing else seconds)
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(future)

    async def close(self) -> None:
        """Ends every subscription; those who wait return."""
        tasks, self._readers = list(self._readers.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tell()

    async def _subscribe(self, server: Server) -> None:
        try:
            connection = await self._connect(server)
        except PinLaterError:
            return
        try:
            async with asyncio.timeout(CONFIRM_S):
                await connection.send_command("SUBSCRIBE", self._channel, check_health=False)
                await connection.read_response(disable_decoding=True)
        except (RedisError, OSError, TimeoutError):
            await connection.disconnect(nowait=True)
            return
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if server in self._readers:
            await connection.disconnect(nowait=True)
            return
        self._readers[server] = asyncio.create_task(self._read(server, connection), name=f"pinlater-waker {server}")

    async def _read(self, server: Server, connection: Any) -> None:
        reader = hiredis.Reader()
        try:
            while data := await connection._reader.read(READ_BYTES):
                reader.feed(data)
                while (message := reader.gets()) is not False:
                    self._on_message(message)
        except (RedisError, OSError, hiredis.ProtocolError):
            pass
        finally:
            await connection.disconnect(nowait=True)
        # closed by the server, or lost; close() cancels this task and does not come here
        self._readers.pop(server, None)
        self._tell()
        if self.on_lost is not None:
            self.on_lost(server)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, list) and message[0] == b"message":
            self._tell()
            if self.on_ring is not None:
                self.on_ring(message[2])

    def _tell(self) -> None:
        self._rings += 1
        for future in self._waiters:
            if not future.done():
                future.set_result(None)
        self._waiters.clear()
