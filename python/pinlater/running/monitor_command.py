"""`pinlater monitor`: a monitor in this process.

Promises that a stop signal ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import uvloop

from pinlater.client.async_client import AsyncClient
from pinlater.worker.monitor import TICK_S, Monitor
from pinlater.worker.stop_signals import StopSignals


def run_monitor(queues: Sequence[str] | None, *, shards: Mapping[str, str], tick_s: float = TICK_S) -> int:
    """Monitors queues (None: all) until a signal. Returns the exit code."""

    async def work() -> None:
        async with AsyncClient(shards=shards) as client:
            monitor = Monitor(client, queues, tick_s=tick_s)
            signals.connect(monitor.request_stop)
            await monitor.run()

    with StopSignals(0.0) as signals:
        uvloop.run(work())
    return 0
