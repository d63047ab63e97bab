"""The CPU that tasks add: `task.enqueue` compared with `client.enqueue`, a no-op task with a handler of the engine.

    python benches/tasks.py

Promises both sides in one process, in turns, on one server, and medians of the rounds. Risks: it counts the CPU of this
process only; the server does the same work for both.
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
from pinlater.tasks.app import parts_of
from pinlater.tasks.meters import Meter
from pinlater.tasks.runner import TaskRunner

ROUNDS, CALLS, DRAINED, CONCURRENCY, TOGETHER = 21, 1_000, 10_000, 128, 50
QUEUE = "default"

Side = Callable[[], float]


def _cpu_us() -> float:
    return time.process_time() * 1e6


def _by_turns(name: str, plain: Side, ours: Side) -> None:
    found: dict[Side, list[float]] = {plain: [], ours: []}
    for number in range(ROUNDS + 1):
        for side in (plain, ours) if number % 2 else (ours, plain):
            used_us = side()
            if number:  # the first round is cold
                found[side].append(used_us)
    below, above = statistics.median(found[plain]), statistics.median(found[ours])
    print(
        f"{name:<38} plain {below:7.2f} us   task {above:7.2f} us   {above / below:.2f} x   (+{above - below:.2f} us)"
    )


def _calling(count: int, call: Callable[[], object]) -> Side:
    def side() -> float:
        started_us = _cpu_us()
        for _ in range(count):
            call()
        return (_cpu_us() - started_us) / count

    return side


def _gathering(runner: asyncio.Runner, count: int, call: Callable[[], Awaitable[object]]) -> Side:
    """TOGETHER asyncio tasks; each awaits one call after the other."""

    async def loop() -> None:
        for _ in range(count // TOGETHER):
            await call()

    async def side() -> float:
        started_us = _cpu_us()
        await asyncio.gather(*(loop() for _ in range(TOGETHER)))
        return (_cpu_us() - started_us) / count

    return lambda: runner.run(side())


def _draining(
    runner: asyncio.Runner, url: str, app: PinLater, bodies: list[bytes], of_app: bool, *, metered: bool = False
) -> Side:
    async def nothing(job: Job) -> None:
        pass

    config = WorkerConfig(concurrency=CONCURRENCY)

    async def drained(worker: Worker) -> float:
        started_us = _cpu_us()
        await worker.run(burst=True)
        assert worker.stats.succeeded == len(bodies), worker.stats
        return (_cpu_us() - started_us) / len(bodies)

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
    """Prints one line a figure."""
    with (
        serving("valkey") as server,
        PinLater(server.url) as app,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        client = parts_of(app).clients.sync()  # both sides share its connections

        async def of_loop() -> AsyncClient:
            return parts_of(app).clients.of_loop()

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
            "the same, plain: a task, task: metrics",
            _draining(runner, server.url, app, bodies, True),
            _draining(runner, server.url, app, bodies, True, metered=True),
        )


if __name__ == "__main__":
    main()
