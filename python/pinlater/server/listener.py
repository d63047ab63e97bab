"""The port of a server process: its connections, their limits and their end.

Promises that a stop takes no new connection, answers the calls under way, and ends at its deadline.
Risks: a connection counts towards max_connections after its TLS handshake. Before that, only a time limits it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from time import monotonic
from typing import Final

from pinlater.server.connection import FRAME_S, Connection, Serve
from pinlater.server.settings import ServerSettings
from pinlater.server.sockets import BACKLOG

log: Final = logging.getLogger("pinlater.server")

#: How often connections are looked at that took too long.
SWEEP_S: Final = 1.0
#: At a stop, connections without a call stay open for so long: a call may be on its way.
GRACE_S: Final = 0.5
#: Connections that were cut off have so long to end. TLS clients have as long for their close message: idle ones send
#: none.
CLOSE_S: Final = 1.0


class Listener:
    """The connections of a process."""

    def __init__(self, settings: ServerSettings, serve: Serve) -> None:
        self.settings = settings
        self._serve = serve
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        #: All connections ended, or a stop shall wait no longer.
        self._woken = asyncio.Event()
        self._refuses = self._hurries = False
        #: Bytes that all connections hold, and those that wait for room.
        self._held_bytes = 0
        self._held_back: set[Connection] = set()

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accepts connections."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self, self._serve),
            sock=listening,
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else FRAME_S,
            ssl_shutdown_timeout=None if tls is None else CLOSE_S,
        )
        self._sweeping = loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Accepts no more connections, and ends those there are: each behind its next answer, or if no call comes."""
        self._refuses = True
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.last_call()
        await self._end_of_all(min(GRACE_S, self.settings.stop_s))
        for connection in list(self.connections):
            connection.end()
        await self._end_of_all(self.settings.stop_s)
        for connection in list(self.connections):
            connection.close("the server stops, and the call took too long")
        self._hurries = False
        await self._end_of_all(CLOSE_S)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def hurry(self) -> None:
        """Lets a stop wait no longer for calls under way."""
        self._hurries = True
        self._woken.set()

    async def _end_of_all(self, wait_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.connections and not self._hurries:
                    self._woken.clear()
                    await self._woken.wait()

    def add(self, connection: Connection) -> bool:
        """Whether there is room for a connection."""
        if self._refuses or len(self.connections) >= self.settings.max_connections:
            return False
        self.connections.add(connection)
        return True

    def remove(self, connection: Connection) -> None:
        """A connection ended."""
        self.connections.discard(connection)
        self._held_back.discard(connection)
        if not self.connections:
            self._woken.set()

    def hold_back(self, connection: Connection) -> None:
        """A connection waits for room."""
        self._held_back.add(connection)

    def room(self) -> None:
        """There is room for calls again."""
        waiting, self._held_back = self._held_back, set()
        for connection in waiting:
            connection.room()

    def hold(self, change: int) -> None:
        """The connections hold more bytes, or fewer. Past the bound, those that hold the most are closed."""
        self._held_bytes += change
        while change > 0 and self._held_bytes > self.settings.max_buffered:
            largest = max(self.connections, key=lambda connection: connection.held_bytes)
            largest.close("this server holds too many bytes of calls, and it the most of all")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = monotonic()
            for connection in [each for each in self.connections if each.until_s < now_s]:
                connection.close("its frame did not come, or it was idle for too long")
