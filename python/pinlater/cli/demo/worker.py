"""One worker process of the demo: `python -m pinlater.cli.demo.worker LOG`, its servers in PINLATER_URL."""

from __future__ import annotations

import logging
import sys

import uvloop

from pinlater.cli.demo.thumbnails import app
from pinlater.running.app_worker import worker_of
from pinlater.worker.stop_signals import StopSignals
from pinlater.worker.worker import WorkerConfig

#: A short tick, so that the demo shows in seconds what takes half a minute by default.
CONFIG = WorkerConfig(concurrency=4, prefetch=4, tick_s=0.5)


async def _work(signals: StopSignals) -> None:
    async with app, worker_of(app, config=CONFIG) as worker:
        signals.connect(worker.request_stop)
        await worker.run()


if __name__ == "__main__":
    logging.basicConfig(filename=sys.argv[1], level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    with StopSignals(CONFIG.stop_timeout_s) as stop_signals:
        uvloop.run(_work(stop_signals))
