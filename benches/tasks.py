"""What the framework adds to the core, in CPU: `task.enqueue` to `client.enqueue`, a no-op task to the bare handler.

    python benches/tasks.py

Promises both sides in one process, by turns, on one server, and medians of the rounds. Risks: it is the CPU
of this process alone; the server does the same for both.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches.support import serving
from pinlater import AsyncClient, Job, PinLater, Worker, WorkerConfig
from pinlater.running.app_worker import worker_of
from pinlater.tasks.meters import Meter
from pinlater.tasks.runner import TaskRunner

ROUNDS, CALLS, DRAINED, CONCURRENCY, TOGETHER = 21, 1_000, 10_000, 128, 50
QUEUE = "default"

Side = Callable[[], float]


def _cpu_us() -> float:
    return time.process_time() * 1e6


def _by_turns(name: str, bare: Side, ours: Side) -> None:
    found: dict[Side, list[float]] = {bare: [], ours: []}
    for number in range(ROUNDS + 1):
        for side in (bare, ours) if number % 2 else (ours, bare):
            used_us = side()
            if number:  # the first round is cold
                found[side].append(used_us)
    below, above = statistics.median(found[bare]), statistics.median(found[ours])
    print(f"{name:<38} bare {below:7.2f} us   task {above:7.2f} us   {above / below:.2f} x   (+{above - below:.2f} us)")


def _calling(count: int, call: Callable[[], object]) -> Side:
    def side() -> float:
        began_us = _cpu_us()
        for _ in range(count):
            call()
        return (_cpu_us() - began_us) / count

    return side


def _gathering(runner: asyncio.Runner, count: int, call: Callable[[], Awaitable[object]]) -> Side:
    """TOGETHER tasks that await one call after the other."""

    async def loop() -> None:
        for _ in range(count // TOGETHER):
            await call()

    async def side() -> float:
        began_us = _cpu_us()
        await asyncio.gather(*(loop() for _ in range(TOGETHER)))
        return (_cpu_us() - began_us) / count

    return lambda: runner.run(side())


def _draining(
    runner: asyncio.Runner, url: str, app: PinLater, bodies: list[bytes], of_app: bool, *, metered: bool = False
) -> Side:
    async def nothing(job: Job) -> None:
        pass

    config = WorkerConfig(concurrency=CONCURRENCY)

    async def drained(worker: Worker) -> float:
        began_us = _cpu_us()
        await worker.run(burst=True)
        assert worker.stats.succeeded == len(bodies), worker.stats
        return (_cpu_us() - began_us) / len(bodies)

    async def side() -> float:
        async with AsyncClient(url) as client:
            await client.enqueue_many(QUEUE, bodies)
            if not of_app:
                return await drained(Worker(client, QUEUE, nothing, config))
        async with worker_of(app, config=config) as worker:
            if metered:  # as with --http
                assert isinstance(worker.handler, TaskRunner)
                worker.handler.meters = {name: Meter() for name in app.tasks}
            return await drained(worker)

    return lambda: runner.run(side())


def main() -> None:
    """Prints a line a figure."""
    with (
        serving("valkey") as server,
        PinLater(server.url) as app,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        client = app.clients.sync()  # both sides on the same connections

        async def of_loop() -> AsyncClient:
            return app.clients.of_loop()

        own = runner.run(of_loop())

        @app.task(name="bench.nothing")
        async def nothing(x: int, y: str) -> None:
            pass

        body = client.lookup([nothing.enqueue(1, "a").descriptor], with_body=True).popitem()[1].body or b""
        many, hundred = [body] * 100, [(1, "a")] * 100
        _by_turns(
            "enqueue, one by one",
            _calling(CALLS, lambda: client.enqueue(QUEUE, body)),
            _calling(CALLS, lambda: nothing.enqueue(1, "a")),
        )
        _by_turns(
            "enqueue_many of 100, a call",
            _calling(CALLS // 10, lambda: client.enqueue_many(QUEUE, many)),
            _calling(CALLS // 10, lambda: nothing.enqueue_many(hundred)),
        )
        _by_turns(
            f"aenqueue, {TOGETHER} in a closed loop",
            _gathering(runner, 5 * CALLS, lambda: own.enqueue(QUEUE, body)),
            _gathering(runner, 5 * CALLS, lambda: nothing.aenqueue(1, "a")),
        )
        runner.run(app.aclose())
        client.purge(QUEUE)
        bodies = [body] * DRAINED
        _by_turns(
            "a no-op async task",
            _draining(runner, server.url, app, bodies, False),
            _draining(runner, server.url, app, bodies, True),
        )
        _by_turns(
            "the same, bare: a task, task: metrics",
            _draining(runner, server.url, app, bodies, True),
            _draining(runner, server.url, app, bodies, True, metered=True),
        )


if __name__ == "__main__":
    main()
