"""The monitor of a supervisor: on the supervisor's loop, where no handler can hold it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager

from pinlater.client.async_client import AsyncClient
from pinlater.worker.failed_jobs import OnFailed
from pinlater.worker.monitor import Monitor


@asynccontextmanager
async def monitoring(
    new_client: Callable[[], AsyncClient],
    queues: Callable[[], Iterable[str]],
    must_exist: Collection[str],
    tick_s: float,
    on_failed: OnFailed,
) -> AsyncIterator[Monitor]:
    """Runs a monitor beside the block. queues: gives their names at each look. must_exist, on_failed: see Monitor."""
    async with new_client() as client:
        monitor = Monitor(client, queues, must_exist=must_exist, tick_s=tick_s, on_failed=on_failed)
        await monitor.start()
        try:
            yield monitor
        finally:
            await monitor.stop()
