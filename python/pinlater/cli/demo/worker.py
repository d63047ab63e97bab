"""One worker process of the demo: `python -m pinlater.cli.demo.worker LOG`, its servers in PINLATER_URL."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pinlater.cli.demo.thumbnails import app, make_thumbnail
from pinlater.running.app_worker import worker_of
from pinlater.running.worker_run import Work, WorkerRun
from pinlater.tasks.app import parts_of
from pinlater.worker.worker import Worker, WorkerConfig

#: A short tick, so that the demo shows in seconds what takes half a minute by default.
CONFIG = WorkerConfig(concurrency=4, prefetch=4, tick_s=0.5)


@asynccontextmanager
async def open_worker(config: WorkerConfig) -> AsyncIterator[Worker]:
    """The worker of the demo's app."""
    async with app, worker_of(app, config=config) as worker:
        yield worker


if __name__ == "__main__":
    logging.basicConfig(filename=sys.argv[1], level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    queue = make_thumbnail.queue
    clients = parts_of(app).clients
    servers = str(clients.settings.servers())
    work = Work(
        queues=[queue],
        summary=queue,
        servers=servers,
        config=CONFIG,
        new_client=clients.new,
        open=open_worker,
    )
    sys.exit(WorkerRun(work).run())
