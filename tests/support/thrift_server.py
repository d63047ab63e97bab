"""A server process of the Thrift service inside the process of a test, on a loop of its own in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

import uvloop

from pinlater import AsyncClient
from pinlater.server.server_process import ServerProcess
from pinlater.server.settings import ServerSettings
from pinlater.server.sockets import bind

T = TypeVar("T")
CALL_S = 60.0


class ThriftServer:
    """Runs until it is stopped. timeout_s: of a call on the shards. settings: fields of ServerSettings."""

    def __init__(self, shards: dict[str, str], *, timeout_s: float = 10.0, **settings: Any) -> None:
        self.settings = ServerSettings(**{"host": "127.0.0.1", "port": 0, "stop_s": 5, **settings})
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="thrift-server")
        self._thread.start()
        self._listening = bind(self.settings)
        self.port: int = self._listening.getsockname()[1]
        self.run(self._start(shards, timeout_s))

    async def _start(self, shards: dict[str, str], timeout_s: float) -> None:
        self.client = AsyncClient(shards=shards, timeout_s=timeout_s)
        self.process = ServerProcess(self.client, self.settings)
        await self.process.start(self._listening, self.settings.tls_context())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.run(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._listening.close()

    async def _stop(self) -> None:
        await self.process.stop()
        await self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
