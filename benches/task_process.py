"""The workers that benches/worker.py starts, each in its own process, as `pinlater run` makes them.

    python benches/task_process.py drain|pace|sleep|memory URL QUEUE COUNT [NUMBER…]

Promises one JSON line on stdout after COUNT tasks.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches.worker_process import CONCURRENCY, cpu_us, gather_us
from pinlater import PinLater, WorkerConfig
from pinlater.running.app_worker import worker_of

QUEUE: Final = "bench"
#: The no-op task, and the arguments of its calls.
TASK: Final = "bench.nothing"
CALL: Final = (1, "a")
SLEEPERS: Final = "bench.sleep"


class Countdown:
    """Counts the tasks that are left. The last one sets `over`."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.over = asyncio.Event()

    def one(self) -> None:
        """Counts one task."""
        self.left -= 1
        if self.left == 0:
            self.over.set()


async def work(app: PinLater, over: asyncio.Event, config: WorkerConfig, count: int) -> None:
    """Runs a worker from its start to its stop, after `count` tasks."""
    async with worker_of(app, config=config) as worker:
        await worker.start()
        await over.wait()
        await worker.stop()
        assert worker.stats.succeeded == count, worker.stats


async def drain(app: PinLater, count: int) -> dict[str, float]:
    """µs of CPU a task, from before the first claim to after the last ack; and µs of a gathered task, measured before
    and after.
    """
    countdown = Countdown(count)

    @app.task(name=TASK, queue=QUEUE)
    async def nothing(x: int, y: str) -> None:
        countdown.one()

    before_us = await gather_us(count)
    started_us = cpu_us()
    await work(app, countdown.over, WorkerConfig(concurrency=CONCURRENCY), count)
    job_us = (cpu_us() - started_us) / count
    return {"job_us": job_us, "task_us": (before_us + await gather_us(count)) / 2}


async def pace(app: PinLater, count: int, *settings: int) -> float:
    """Tasks a second, from before the first claim to after the last ack.

    settings: the concurrency, and the prefetch; by default those of a worker.
    """
    countdown = Countdown(count)

    @app.task(name=TASK, queue=QUEUE)
    async def nothing(x: int, y: str) -> None:
        countdown.one()

    config = WorkerConfig(concurrency=settings[0], prefetch=settings[1]) if settings else WorkerConfig()
    started_s = time.monotonic()
    await work(app, countdown.over, config, count)
    return count / (time.monotonic() - started_s)


async def sleep(app: PinLater, count: int) -> float:
    """Seconds from the first start to the last end of `count` concurrent tasks that sleep one second."""
    countdown = Countdown(count)
    times_s: list[float] = []

    @app.task(name=SLEEPERS, queue=QUEUE)
    async def sleeper() -> None:
        times_s.append(time.monotonic())
        await asyncio.sleep(1)
        times_s.append(time.monotonic())
        countdown.one()

    await work(app, countdown.over, WorkerConfig(concurrency=count), count)
    return max(times_s) - min(times_s)


async def memory(app: PinLater, count: int, few: int) -> dict[str, int]:
    """Bytes of RSS after `few` tasks and after `count`."""
    countdown = Countdown(count)
    found: dict[str, int] = {}

    @app.task(name=TASK, queue=QUEUE)
    async def nothing(x: int, y: str) -> None:
        countdown.one()
        if countdown.left in (count - few, 0):
            found["many" if countdown.left == 0 else "few"] = _rss()

    await work(app, countdown.over, WorkerConfig(concurrency=CONCURRENCY), count)
    return found


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    role, url, queue, *numbers = sys.argv[1:]
    roles: dict[str, Any] = {"drain": drain, "pace": pace, "sleep": sleep, "memory": memory}
    print(json.dumps(uvloop.run(roles[role](PinLater(url), *map(int, numbers)))))
