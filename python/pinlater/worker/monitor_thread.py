"""The monitor of a worker without a supervisor: on a thread and an event loop of its own.

Promises that handlers that keep the worker's loop busy do not delay it.
Risk: a handler that holds the GIL holds this thread too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pinlater.client.async_client import AsyncClient
from pinlater.worker.failed_jobs import OnFailed, log_failed
from pinlater.worker.loop_thread import LoopThread
from pinlater.worker.monitor import LOOK_S, Monitor


class MonitorThread:
    """Runs a Monitor between start() and stop().

    client: the monitor gets a client of its own with the same settings. queues, tick_s: see Monitor.
    on_failed: see Monitor; called on the loop of start().
    """

    def __init__(self, client: AsyncClient, queues: Iterable[str], on_failed: OnFailed, *, tick_s: float) -> None:
        self._settings, self._queues, self._tick_s = client.settings, list(queues), tick_s
        self._on_failed = on_failed
        self._client, self._monitor = self._new()
        self._earlier = 0
        self._thread = LoopThread("pinlater-monitor", 2 * LOOK_S)

    @property
    def redelivered(self) -> int:
        """See Monitor; of all runs."""
        return self._earlier + self._monitor.redelivered

    async def start(self) -> None:
        """Runs in the background until stop()."""
        if self._thread.started:
            return
        self._earlier = self.redelivered
        self._client, self._monitor = client, monitor = self._new()
        self._worker_loop = asyncio.get_running_loop()
        await self._thread.start(lambda stopping: self._watch(client, monitor, stopping))

    async def stop(self) -> None:
        """Ends the background run; unstarted or twice is fine."""
        await self._thread.stop()

    async def _watch(self, client: AsyncClient, monitor: Monitor, stopping: asyncio.Event) -> None:
        async with client:
            await monitor.start()
            await stopping.wait()
            await monitor.stop()

    def _pass_on(self, descriptors: list[str], error: Exception | None) -> None:
        try:
            self._worker_loop.call_soon_threadsafe(self._on_failed, descriptors, error)
        except RuntimeError:  # that loop is closed
            log_failed(descriptors, error)

    def _new(self) -> tuple[AsyncClient, Monitor]:
        settings = self._settings
        connect_timeout_s, read_timeout_s = settings.timeouts
        client = AsyncClient(
            shards=settings.chosen,
            source=settings.source,
            timeout_s=settings.timeout_s,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            archive=None if settings.database is None else settings.database.url,
        )
        return client, Monitor(client, self._queues, tick_s=self._tick_s, on_failed=self._pass_on)
