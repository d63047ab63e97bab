"""The clients of an app: a blocking one, and one for each event loop that produces, made when they are first used.

Promises that threads, loops and forked children each get one that is theirs to use. Risks: a loop that ends before its
client was closed leaves the connections to the garbage collector.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from pinlater.client import settings_file as toml_file
from pinlater.client.async_client import AsyncClient
from pinlater.client.client import Client
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import QueueConfig
from pinlater.tasks.middleware import EnqueueHook


class ClientProvider(Protocol):
    """Where clients come from instead: for producers in sync and in async code, and for workers. in_loops: whether
    blocking calls may be made where an event loop runs.
    """

    in_loops: bool = False

    def url(self) -> str:
        """Of its store, for the app in another process."""

    def sync(self) -> Client:
        """A blocking client."""

    def of_loop(self) -> AsyncClient:
        """A client for what the running loop's code puts in line."""

    def new(self) -> AsyncClient:
        """A client for a worker."""

    def close(self) -> None:
        """Closes what it keeps between calls of sync code; the next one makes it anew."""
        return

    async def aclose(self) -> None:
        """Closes what it keeps for the code of the running loop."""
        return

    def loops(self) -> Iterable[asyncio.AbstractEventLoop]:
        """Where it keeps something for that."""
        return ()

    def deferring(self, *, blocking: bool) -> bool:
        """Whether what the caller puts in line can not run before it returns. blocking: it would block its loop."""
        return False


class UrlProvider(ClientProvider):
    """Clients of a store, by its URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self) -> str:
        """See Source."""
        return self._url

    def sync(self) -> Client:
        """See Source."""
        return Client(self._url)

    def of_loop(self) -> AsyncClient:
        """See Source."""
        return self.new()

    def new(self) -> AsyncClient:
        """See Source."""
        return AsyncClient(self._url)


class AppClients:
    """url, shards, timeout_s: as of Client; PINLATER_URL, or the TOML file, is read when a client is made.
    queue_config: how a queue is made that is not there yet, for a task and a priority. source: where the clients come
    from instead of the URL, if it is set.
    """

    def __init__(
        self,
        url: str | None,
        shards: Mapping[str, str] | None,
        timeout_s: float,
        queue_config: Callable[[str, str, int], QueueConfig],
    ) -> None:
        self._url, self._shards, self._timeout_s = url, shards, timeout_s
        self.queue_config = queue_config
        self.provider: ClientProvider | None = None
        #: Of the app's middleware; every producer has this list.
        self.enqueue_hooks: list[EnqueueHook] = []
        #: Those of the app's raw tasks.
        self.raw_queues: set[str] = set()
        self._sync: Client | None = None
        self._lock = threading.Lock()
        self._async: dict[asyncio.AbstractEventLoop, AsyncClient] = {}

    @property
    def named(self) -> bool:
        """Whether the app itself says which servers are its."""
        return self.provider is not None or self._url is not None or self._shards is not None

    def deferring(self, *, blocking: bool) -> bool:
        """Whether what the caller puts in line can not run before it returns."""
        return self.provider is not None and self.provider.deferring(blocking=blocking)

    def blocking(self, call: str) -> Client:
        """The blocking client, for this call. InvalidArgument where an event loop runs, which it would stop: in a
        worker it may wait for what that loop has to do.
        """
        if asyncio._get_running_loop() is not None and (self.provider is None or not self.provider.in_loops):
            raise InvalidArgument(
                f"{call}: it would block the event loop that runs in this thread; expected `await ….a{call}(…)` here"
            )
        client = self._sync
        return self.sync() if client is None else client

    def sync(self) -> Client:
        """The blocking client."""
        if self._sync is None:
            with self._lock:
                if self._sync is None:
                    self._sync = self._new_sync()
        return self._sync

    def of_loop(self) -> AsyncClient:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        client = self._async.get(loop)
        if client is None:
            with self._lock:
                self._async = {old: kept for old, kept in self._async.items() if not old.is_closed()}
                client = self._async[loop] = self.provider.of_loop() if self.provider else self.new()
        return client

    def new(self) -> AsyncClient:
        """One more client, its caller's own to close."""
        if self.provider is not None:
            return self.provider.new()
        url, shards = toml_file.servers(self._url, self._shards)
        return AsyncClient(url, shards=shards, timeout_s=self._timeout_s)

    def _new_sync(self) -> Client:
        if self.provider is not None:
            return self.provider.sync()
        url, shards = toml_file.servers(self._url, self._shards)
        return Client(url, shards=shards, timeout_s=self._timeout_s)

    @contextmanager
    def redirected(self, provider: ClientProvider) -> Iterator[None]:
        """For the block every client comes from another source; those of before are there again after it.

        What async code used is closed behind it: at once, if its loop rests; if that runs, as soon as it can.
        """
        before = self.provider, self._sync, self._async
        self.provider, self._sync, self._async = provider, None, {}
        try:
            yield
        finally:
            self.close()
            self._let_go(provider)
            self.provider, self._sync, self._async = before

    def _let_go(self, provider: ClientProvider) -> None:
        here = asyncio._get_running_loop()
        for loop in {*self._async, *provider.loops()}:
            if loop.is_closed():
                continue
            close = partial(_close, loop, self._async.get(loop), provider)
            if loop is here:
                close()
            elif loop.is_running():
                loop.call_soon_threadsafe(close)
            elif here is None:
                loop.run_until_complete(close())

    def close(self) -> None:
        """Closes the blocking client; the next use makes another."""
        with self._lock:
            client, self._sync = self._sync, None
        if client is not None:
            client.close()
        if self.provider is not None:
            self.provider.close()

    async def aclose(self) -> None:
        """Closes the running loop's client."""
        with self._lock:  # a loop of another thread may be adding its own
            client = self._async.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        if self.provider is not None:
            await self.provider.aclose()


def _close(loop: asyncio.AbstractEventLoop, client: AsyncClient | None, provider: ClientProvider) -> asyncio.Task[None]:
    """Closes what a loop's code used of a source."""

    async def close() -> None:
        if client is not None:
            await client.close()
        await provider.aclose()

    return loop.create_task(close())
