"""One process of the demo of the archive: `python -m pinlater.cli.demo.archive_process archiver|worker QUEUE [FILE]`.

The servers are in PINLATER_URL and PINLATER_ARCHIVE_URL. A worker appends the number of each job that it runs to FILE.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import sys
from pathlib import Path
from typing import Final

from pinlater.client.async_client import AsyncClient
from pinlater.model.jobs import Job
from pinlater.running.monitor_command import run_monitor
from pinlater.store.shards import resolve_shards
from pinlater.worker.worker import Worker, WorkerConfig

#: How a job begins: its number.
NUMBER: Final = struct.Struct(">Q")
#: The archiver looks so often, so that the demo shows in seconds what takes longer by default.
TICK_S: Final = 0.5


async def work(queue: str, file: Path) -> None:
    """Runs jobs until it is killed."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def note(job: Job) -> None:
        os.write(descriptor, job.body[: NUMBER.size])

    async with AsyncClient() as client, Worker(client, queue, note, WorkerConfig(monitor=False)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    if sys.argv[1] == "archiver":
        sys.exit(run_monitor([sys.argv[2]], shards=resolve_shards(None, None), tick_s=TICK_S))
    asyncio.run(work(sys.argv[2], Path(sys.argv[3])))
