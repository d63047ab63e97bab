"""The clients of an app: a blocking one, and one for each event loop that produces, made when they are first used.

Promises that threads, loops and forked children each get one that is theirs to use. Risks: a loop that ends before its
client was closed leaves the connections to the garbage collector.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from pinlater.async_client import AsyncClient
from pinlater.client import Client
from pinlater.config import QueueConfig


class Source(Protocol):
    """Where an app's clients come from: for producers in sync and in async code, and for workers."""

    named: bool

    def sync(self) -> Client:
        """A blocking client."""

    def of_loop(self) -> AsyncClient:
        """A client for what the running loop's code puts in line."""

    def new(self) -> AsyncClient:
        """A client for a worker."""


class Servers:
    """Clients of servers: url, shards, timeout_s as of Client; PINLATER_URL is read when a client is made."""

    def __init__(self, url: str | None, shards: Mapping[str, str] | None, timeout_s: float) -> None:
        self._url, self._shards, self._timeout_s = url, shards, timeout_s
        self.named = url is not None or shards is not None

    def sync(self) -> Client:
        """See Source."""
        return Client(self._url, shards=self._shards, timeout_s=self._timeout_s)

    def new(self) -> AsyncClient:
        """See Source."""
        return AsyncClient(self._url, shards=self._shards, timeout_s=self._timeout_s)

    of_loop = new


class AppClients:
    """source: where they come from. queue_config: how a queue is made that is not there yet."""

    def __init__(self, source: Source, queue_config: Callable[[str], QueueConfig]) -> None:
        self._source = source
        self.queue_config = queue_config
        self._sync: Client | None = None
        self._lock = threading.Lock()
        self._async: dict[asyncio.AbstractEventLoop, AsyncClient] = {}

    @property
    def named(self) -> bool:
        """Whether the app itself says which servers are its."""
        return self._source.named

    def sync(self) -> Client:
        """The blocking client."""
        if self._sync is None:
            with self._lock:
                if self._sync is None:
                    self._sync = self._source.sync()
        return self._sync

    def of_loop(self) -> AsyncClient:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        client = self._async.get(loop)
        if client is None:
            with self._lock:
                self._async = {old: kept for old, kept in self._async.items() if not old.is_closed()}
                client = self._async[loop] = self._source.of_loop()
        return client

    def new(self) -> AsyncClient:
        """One more client, its caller's own to close."""
        return self._source.new()

    @contextmanager
    def redirected(self, source: Source) -> Iterator[None]:
        """For the block every client comes from another source; those of before are there again after it."""
        before = self._source, self._sync, self._async
        self._source, self._sync, self._async = source, None, {}
        try:
            yield
        finally:
            self.close()
            self._source, self._sync, self._async = before

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
