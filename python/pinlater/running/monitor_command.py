"""`pinlater monitor`: a monitor in this process.

Promises that a stop signal ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import uvloop

from pinlater.client import settings_file
from pinlater.client.async_client import AsyncClient
from pinlater.model.jobs import Job
from pinlater.store.shards import NamedShards, resolve_shards
from pinlater.tasks.late_failures import LateFailures
from pinlater.worker.executor import ThreadPool
from pinlater.worker.monitor import TICK_S, Monitor
from pinlater.worker.stop_signals import StopSignals

log: Final = logging.getLogger("pinlater.worker")


def run_monitor(queues: Sequence[str] | None, *, shards: NamedShards, tick_s: float = TICK_S) -> int:
    """Monitors queues (None: all) until a signal. Returns the exit code."""

    async def work() -> None:
        async with AsyncClient(shards=shards, archive=settings_file.archive()) as client:
            # without an app it only logs them
            failures = LateFailures(client, _no_task, ThreadPool(1, asyncio.get_running_loop()))
            monitor = Monitor(client, queues, tick_s=tick_s, on_failed=failures.report)
            signals.connect(monitor.request_stop)
            await monitor.run()
            await failures.close()

    log.info("servers: %s", resolve_shards(None, shards))
    with StopSignals(0.0) as signals:
        uvloop.run(work())
    return 0


def _no_task(_: Job) -> None:
    pass
