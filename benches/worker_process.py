"""The processes of figures 7 to 9: a worker that drains, workers that note when handlers start, a subscriber.

    python benches/worker_process.py drain|stamp|idle|subscribe URL NAME COUNT

Promises one JSON line on stdout at its end: `stamp` and `idle` end when stdin closes, `subscribe` after COUNT messages.
Stamps are CLOCK_MONOTONIC, the same clock in every process of a machine.
"""

from __future__ import annotations

import asyncio
import json
import resource
import struct
import sys
import time
from urllib.parse import urlsplit

import hiredis
import uvloop

from pinlater import AsyncClient, Job
from pinlater.worker.worker import Worker, WorkerConfig

STAMP = struct.Struct(">Q")
GATHERED = 1_000
CONCURRENCY = 128


def cpu_us() -> float:
    """CPU of this process with its threads and ended children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return 1e6 * sum(each.ru_utime + each.ru_stime for each in used)


async def drain(url: str, queue: str, count: int) -> dict[str, float]:
    """µs of CPU a job, from before the first claim to after the last ack; and µs of a gathered task, measured before
    and after.
    """
    left, empty = count, asyncio.Event()

    async def handler(_: Job) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            empty.set()

    before_us = await gather_us(count)
    async with AsyncClient(url) as client:
        started_us = cpu_us()
        worker = Worker(client, [queue], handler, WorkerConfig(concurrency=CONCURRENCY, monitor=True))
        await worker.start()
        await empty.wait()
        await worker.stop()
        job_us = (cpu_us() - started_us) / count
    assert worker.stats.succeeded == count, worker.stats
    return {"job_us": job_us, "task_us": (before_us + await gather_us(count)) / 2}


async def gather_us(count: int) -> float:
    """µs of CPU a task, in gathers of 1,000 no-op tasks."""

    async def nothing() -> None:
        pass

    started_us = cpu_us()
    for _ in range(count // GATHERED):
        await asyncio.gather(*(nothing() for _ in range(GATHERED)))
    return (cpu_us() - started_us) / (count // GATHERED * GATHERED)


async def stamp(url: str, queue: str, count: int) -> list[tuple[int, float]]:
    """Runs `count` idle workers, each with its own connections. Returns the stamp (ns) of each body, and the µs from it
    to the start of the handler.
    """
    found: list[tuple[int, float]] = []

    async def handler(job: Job) -> None:
        now_ns = time.monotonic_ns()
        (sent_ns,) = STAMP.unpack_from(job.body)
        found.append((sent_ns, (now_ns - sent_ns) / 1000))

    clients = [AsyncClient(url) for _ in range(count)]
    config = WorkerConfig(concurrency=CONCURRENCY, monitor=True)
    workers = [Worker(client, [queue], handler, config) for client in clients]
    await asyncio.gather(*(worker.start() for worker in workers))
    await _end_of_stdin()
    await asyncio.gather(*(worker.stop() for worker in workers))
    await asyncio.gather(*(client.close() for client in clients))
    return found


async def subscribe(url: str, channel: str, count: int) -> list[float]:
    """Reads `count` messages on a raw connection. Returns the µs from the stamp of each to its arrival."""
    server, found, parser = urlsplit(url), list[float](), hiredis.Reader()
    reader, writer = await asyncio.open_connection(server.hostname, server.port)
    writer.write(b"SUBSCRIBE %b\r\n" % channel.encode())

    while len(found) < count and (data := await reader.read(65_536)):
        now_ns = time.monotonic_ns()
        parser.feed(data)
        while (message := parser.gets()) is not False:
            if message[0] == b"message":
                found.append((now_ns - STAMP.unpack_from(message[2])[0]) / 1000)
    writer.close()
    return found


async def _end_of_stdin() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    role, url, name, count = sys.argv[1:]
    work = {"drain": drain, "stamp": stamp, "idle": stamp, "subscribe": subscribe}[role]
    print(json.dumps(uvloop.run(work(url, name, int(count)))))
