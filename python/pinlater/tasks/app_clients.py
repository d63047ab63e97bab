"""The clients of an app: a blocking one, and one for each event loop that enqueues, made at their first use.

Promises that each thread, event loop and forked process gets a client that it may use. Risks: a loop that ends before
its client is closed leaves the connections to the garbage collector.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from pinlater.client import settings_file
from pinlater.client.async_client import AsyncClient
from pinlater.client.base import check_seconds
from pinlater.client.client import Client
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import QueueConfig
from pinlater.store.shards import ChosenShards, NamedShards
from pinlater.tasks.middleware import EnqueueHook


class ClientProvider(Protocol):
    """Where an app's clients come from, if not from its servers: for tests and immediate mode.

    in_loops: whether blocking calls may be made where an event loop runs.
    limited: whether limits of queues hold jobs back.
    """

    in_loops: bool = False
    limited: bool = True

    def url(self) -> str:
        """The URL of its store, for the app in another process."""

    def sync(self) -> Client:
        """A new blocking client."""

    def of_loop(self) -> AsyncClient:
        """A new client for code on the running loop that enqueues."""

    def new(self) -> AsyncClient:
        """A new client for a worker."""

    def close(self) -> None:
        """Closes what it keeps between calls of sync code. The next call makes it anew."""
        return

    async def aclose(self) -> None:
        """Closes what it keeps for the running loop."""
        return

    def loops(self) -> Iterable[asyncio.AbstractEventLoop]:
        """The loops it keeps something for."""
        return ()

    def deferring(self, *, blocking: bool) -> bool:
        """Whether a job that the caller enqueues can not run before the caller returns.

        blocking: whether the caller blocks its event loop meanwhile.
        """
        return False


class UrlProvider(ClientProvider):
    """Clients of the store with this URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self) -> str:
        """See ClientProvider."""
        return self._url

    def sync(self) -> Client:
        """See ClientProvider."""
        return Client(self._url)

    def of_loop(self) -> AsyncClient:
        """See ClientProvider."""
        return self.new()

    def new(self) -> AsyncClient:
        """See ClientProvider."""
        return AsyncClient(self._url)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How an app's clients are made. url, shards, timeout_s: see Client.

    PINLATER_URL or the TOML file is read when a client is made. Raises InvalidArgument for another timeout_s.
    """

    url: str | None = field(repr=False)
    shards: NamedShards | None = field(repr=False)
    timeout_s: float

    def __post_init__(self) -> None:
        check_seconds("timeout_s", self.timeout_s)

    def new(self) -> AsyncClient:
        """A new client. The caller closes it."""
        return AsyncClient(shards=self.servers(), timeout_s=self.timeout_s, archive=settings_file.archive())

    def new_sync(self) -> Client:
        """A new blocking client."""
        return Client(shards=self.servers(), timeout_s=self.timeout_s, archive=settings_file.archive())

    def servers(self) -> ChosenShards:
        """The servers, and where their choice came from."""
        return settings_file.servers(self.url, self.shards)


class AppClients:
    """The clients of one app.

    url, shards, timeout_s: see ClientOptions.
    queue_config: the configuration of a queue that is created: takes the queue, a task's name and a priority.
    provider: where clients come from instead, if it is set.
    """

    def __init__(
        self,
        url: str | None,
        shards: NamedShards | None,
        timeout_s: float,
        queue_config: Callable[[str, str, int], QueueConfig],
    ) -> None:
        self._settings = ClientOptions(url=url, shards=shards, timeout_s=timeout_s)
        self.queue_config = queue_config
        self.provider: ClientProvider | None = None
        #: The on_enqueue methods of the app's middleware. Every producer shares this list.
        self.enqueue_hooks: list[EnqueueHook] = []
        #: The queues of the app's raw tasks.
        self.raw_queues: set[str] = set()
        self._sync: Client | None = None
        self._lock = threading.Lock()
        self._async: dict[asyncio.AbstractEventLoop, AsyncClient] = {}

    @property
    def named(self) -> bool:
        """Whether the app itself names its servers."""
        return self.provider is not None or (self._settings.url, self._settings.shards) != (None, None)

    @property
    def limited(self) -> bool:
        """Whether limits of queues hold jobs back."""
        return self.provider is None or self.provider.limited

    @property
    def settings(self) -> ClientOptions:
        """How its clients are made, also in another process."""
        own = self._settings
        return own if self.provider is None else replace(own, url=self.provider.url(), shards=None)

    def deferring(self, *, blocking: bool) -> bool:
        """See ClientProvider."""
        return self.provider is not None and self.provider.deferring(blocking=blocking)

    def blocking(self, call: str, timeout_s: float | None = None) -> Client:
        """The blocking client.

        call: the method that needs it, for the error.
        timeout_s: its time limit of a call; None: that of the app.

        Raises InvalidArgument where an event loop runs: the call would block that loop, and might wait for something
        that the loop itself has to do.
        """
        if asyncio._get_running_loop() is not None and (self.provider is None or not self.provider.in_loops):
            raise InvalidArgument(
                f"{call}: it would block the event loop that runs in this thread; expected `await ….a{call}(…)` here"
            )
        client = self.sync()
        return client if timeout_s is None else client.within(timeout_s)

    def sync(self) -> Client:
        """The blocking client."""
        client = self._sync
        if client is None:
            with self._lock:
                client = self._sync
                if client is None:
                    client = self._sync = self._new_sync()
        return client  # not self._sync: another thread may have closed it by now

    def of_loop(self, timeout_s: float | None = None) -> AsyncClient:
        """The client of the running loop. timeout_s: see blocking."""
        loop = asyncio.get_running_loop()
        client = self._async.get(loop)
        if client is None:
            with self._lock:
                self._async = {old: kept for old, kept in self._async.items() if not old.is_closed()}
                client = self._async[loop] = self.provider.of_loop() if self.provider else self.new()
        return client if timeout_s is None else client.within(timeout_s)

    def new(self) -> AsyncClient:
        """A new client. The caller closes it."""
        if self.provider is not None:
            return self.provider.new()
        return self._settings.new()

    def _new_sync(self) -> Client:
        if self.provider is not None:
            return self.provider.sync()
        return self._settings.new_sync()

    @contextmanager
    def redirected(self, provider: ClientProvider) -> Iterator[None]:
        """Takes all clients from a provider for the block. Afterwards the app has its former clients again.

        At the end the clients of the block are closed. Those of a loop that runs in another thread, or in this one, are
        closed as soon as that loop can.
        """
        before = self.provider, self._sync, self._async
        self.provider, self._sync, self._async = provider, None, {}
        try:
            yield
        finally:
            self.close()
            self._close_on_loops(provider)
            self.provider, self._sync, self._async = before

    def _close_on_loops(self, provider: ClientProvider) -> None:
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
        """Closes the blocking client. The next use makes a new one."""
        with self._lock:
            client, self._sync = self._sync, None
        if client is not None:
            client.close()
        if self.provider is not None:
            self.provider.close()

    async def aclose(self) -> None:
        """Closes the running loop's client."""
        with self._lock:  # another thread may be adding the client of its loop
            client = self._async.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
        if self.provider is not None:
            await self.provider.aclose()


def _close(loop: asyncio.AbstractEventLoop, client: AsyncClient | None, provider: ClientProvider) -> asyncio.Task[None]:
    """Closes a loop's client, and what the provider keeps for that loop. It runs on the loop."""

    async def close() -> None:
        if client is not None:
            await client.close()
        await provider.aclose()

    return loop.create_task(close())
