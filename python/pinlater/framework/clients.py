"""The clients of an app: a blocking one, and one for each event loop that produces, made when they are first used.

Promises that threads, loops and forked children each get one that is theirs to use. Risks: a loop that ends before its
client was closed leaves the connections to the garbage collector.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

from pinlater.async_client import AsyncClient
from pinlater.client import Client
from pinlater.config import QueueConfig
from pinlater.framework.middleware import EnqueueHook


class AppClients:
    """url, shards, timeout_s: as of Client; PINLATER_URL is read when a client is made. queue_config: how a queue is
    made that is not there yet.
    """

    def __init__(
        self,
        url: str | None,
        shards: Mapping[str, str] | None,
        timeout_s: float,
        queue_config: Callable[[str], QueueConfig],
    ) -> None:
        self._url, self._shards, self._timeout_s = url, shards, timeout_s
        self.queue_config = queue_config
        #: Of the app's middleware; every producer has this list.
        self.enqueue_hooks: list[EnqueueHook] = []
        self._sync: Client | None = None
        self._lock = threading.Lock()
        self._async: dict[asyncio.AbstractEventLoop, AsyncClient] = {}

    @property
    def named(self) -> bool:
        """Whether the app itself says which servers are its."""
        return self._url is not None or self._shards is not None

    def sync(self) -> Client:
        """The blocking client."""
        if self._sync is None:
            with self._lock:
                if self._sync is None:
                    self._sync = Client(self._url, shards=self._shards, timeout_s=self._timeout_s)
        return self._sync

    def of_loop(self) -> AsyncClient:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        client = self._async.get(loop)
        if client is None:
            with self._lock:
                self._async = {old: kept for old, kept in self._async.items() if not old.is_closed()}
                client = self._async[loop] = self.new()
        return client

    def new(self) -> AsyncClient:
        """One more client, its caller's own to close."""
        return AsyncClient(self._url, shards=self._shards, timeout_s=self._timeout_s)

    def close(self) -> None:
        """Closes the blocking client; the next use makes another."""
        with self._lock:
            client, self._sync = self._sync, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Closes the running loop's client."""
        client = self._async.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
