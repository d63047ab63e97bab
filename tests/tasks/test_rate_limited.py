"""RateLimited: its job waits, its queue is paused before that, and the worker starts nothing of the queue.

Promises: jobs are stopped at gates, so that no test depends on how fast one is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from pinlater import (
    AsyncClient,
    Depends,
    Execution,
    InvalidArgument,
    Item,
    Job,
    Middleware,
    PinLater,
    RateLimited,
    Snooze,
    State,
)
from pinlater.operations.limits import QueueLimits, end_pause, pause_for, queue_limits
from pinlater.running.app_worker import worker_of
from pinlater.tasks.app import parts_of
from pinlater.tasks.meters import Meter
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.executor import End, Postponed
from pinlater.worker.queue_shard_source import QueueShardSource
from pinlater.worker.worker import Worker, WorkerConfig
from tests.conftest import FreshServer
from tests.support import calls_app
from tests.support.handlers_for_tests import ShortJobs, clients, on_loop, until
from tests.support.servers import Server

HOUR_MS = 3_600_000
HOUR = timedelta(hours=1)


async def limits_of(client: AsyncClient, queue: str) -> QueueLimits:
    return await client.run(lambda end: queue_limits(client.session, queue, end))


async def paused_by(client: AsyncClient, queue: str) -> str:
    """Who paused a queue for an hour."""
    found = await limits_of(client, queue)
    assert HOUR_MS - 60_000 < found.paused_ms <= HOUR_MS
    return found.paused_by


@asynccontextmanager
async def worker_for(client: AsyncClient, handler: Callable[[Job], Any], **config: Any) -> AsyncIterator[Worker]:
    """A worker of the queue q that prefetches all it may."""
    worker = Worker(client, "q", handler, WorkerConfig(monitor=False, **config))
    worker.jobs.rate = ShortJobs()
    async with worker:
        yield worker


async def released(worker: Worker, count: int) -> None:
    await until(lambda: worker.stats.released == count, f"{count} released jobs")


# the job


@on_loop
async def test_the_job_waits_and_its_queue_is_paused_however_it_runs(server: Server) -> None:
    class Around(Middleware):
        async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
            if execution.task == "in_middleware":
                raise RateLimited(HOUR)
            return await run()

    async def busy() -> None:
        raise RateLimited(HOUR)

    app = PinLater(server.url, middleware=[Around()])

    @app.task(queue="a", name="on_the_loop", attempts=1)
    async def on_the_loop() -> None:
        raise RateLimited(HOUR)

    @app.task(queue="b", name="in_a_thread", attempts=1)
    def in_a_thread() -> None:
        raise RateLimited(3600)

    @app.task(queue="c", name="in_middleware", attempts=1)
    async def in_middleware() -> None: ...

    @app.task(queue="d", name="in_a_dependency", attempts=1)
    async def in_a_dependency(*, given: None = Depends(busy)) -> None: ...

    @app.task(queue="e", name="in_a_batch", attempts=1, batch=2)
    async def in_a_batch(items: list[Item[int]]) -> None:
        items[0].fail(RateLimited(3600.0))

    async with app:
        handles = [await task.aenqueue() for task in (on_the_loop, in_a_thread, in_middleware, in_a_dependency)]
        handles.append(await in_a_batch.aenqueue(1))
        async with worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
        assert worker.stats.postponed == 5
        client = parts_of(app).clients.of_loop()
        for handle, queue in zip(handles, "abcde", strict=True):
            info = await handle.ainfo()
            assert info is not None
            assert (info.state, info.attempts_remaining) == (State.PENDING, 1)
            assert info.run_after_ms is not None
            assert info.run_after_ms - info.created_ms >= HOUR_MS
            assert (await paused_by(client, queue)).endswith(f": task {info.task} raised RateLimited")


@on_loop
async def test_a_task_in_a_process_pauses_its_queue(fresh_server: FreshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINLATER_URL", fresh_server().url)
    async with calls_app.app as app:
        handle = await calls_app.limited.aenqueue()
        async with worker_of(app, ["limited"], task_processes=1) as worker:
            await asyncio.wait_for(worker.run(burst=True), 60)
        assert (worker.stats.postponed, worker.stats.failed) == (1, 0)
        assert (await paused_by(parts_of(app).clients.of_loop(), "limited")).endswith(
            ": task limited raised RateLimited"
        )
        info = await handle.ainfo()
        assert info is not None
        assert (info.checkpoint, info.attempts_remaining) == ("here", info.attempts_allowed)
    app.close()


@on_loop
async def test_it_is_counted_as_an_end_of_its_own(server: Server) -> None:
    async with PinLater(server.url) as app:

        @app.task(name="both")
        async def both(how: str) -> None:
            raise RateLimited(3600) if how == "limited" else Snooze(3600)

        await both.aenqueue_many([("limited",), ("snooze",)])
        async with worker_of(app, config=WorkerConfig(concurrency=2)) as worker:
            runner = worker.handler
            assert isinstance(runner, TaskRunner)
            runner.meters["both"] = Meter()
            await asyncio.wait_for(worker.run(burst=True), 30)
        ends = runner.meters["both"].ends
        assert (ends["rate_limited"], ends["snoozed"]) == (1, 1)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "60", None, True, 2.0**60, timedelta(0)])
def test_a_wrong_time_is_refused(wrong: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=r"^RateLimited: delay: expected seconds or a timedelta, 0\.001 or more, "
    ):
        RateLimited(wrong)


def test_it_is_a_snooze_for_those_that_catch_one() -> None:
    limited = RateLimited(0.5, state=1)
    assert isinstance(limited, Snooze)
    assert (limited.delay, limited.headers) == (0.5, {"state": 1})


@pytest.mark.parametrize("wrong", [{"delay_ms": 0, "pause_reason": "why"}, {"delay_ms": 1, "pause_reason": None}])
def test_a_wrong_end_of_a_handler_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Postponed(**wrong)


# the worker


@pytest.mark.parametrize("kind", ["loop", "thread"])
@on_loop
async def test_jobs_that_have_not_started_go_back(server: Server, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pinlater.worker")
    ran = list[Job]()

    def handler(job: Job) -> End:
        ran.append(job)
        return Postponed(HOUR_MS, pause_reason="busy")

    async def on_the_loop(job: Job) -> End:
        return handler(job)

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [b""] * 20)
        async with worker_for(own, on_the_loop if kind == "loop" else handler, concurrency=1) as worker:
            await released(worker, 19)
            await until(lambda: worker.held == 0, "an acked job")
        assert [job.attempt for job in ran] == [1]
        assert (await paused_by(client, "q")).endswith(": busy")
        counts = await client.count("q")
        assert (counts.pending, counts.scheduled, counts.in_progress) == (19, 1, 0)
    assert [each.getMessage() for each in caplog.records if "paused for" in each.getMessage()] == [
        "queue q: paused for 3600 s: busy"
    ]


@on_loop
async def test_the_queue_is_paused_before_its_job_can_be_claimed_again(server: Server) -> None:
    order = list[str]()
    async with clients(server) as (client, own):

        async def handler(job: Job) -> End:
            return Postponed(HOUR_MS, pause_reason="busy")

        def noted(name: str) -> Any:
            function = getattr(QueueShardSource, name)

            async def call(self: QueueShardSource, *arguments: Any) -> Any:
                result = await function(self, *arguments)
                if arguments[0]:
                    order.append(name)
                return result

            return call

        await client.enqueue_many("q", [b""] * 3)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("pause", "checkpoint", "release"):
                patch.setattr(QueueShardSource, name, noted(name))
            async with worker_for(own, handler, concurrency=1) as worker:
                await released(worker, 2)
                await until(lambda: worker.stats.postponed == 1, "a postponed job")
    assert order[0] == "pause"
    assert sorted(set(order)) == ["checkpoint", "pause", "release"]
    assert order.count("pause") == 1


@on_loop
async def test_many_jobs_at_once_make_one_pause_and_a_longer_one_another(server: Server) -> None:
    gate, pauses = asyncio.Event(), list[int]()
    pause = QueueShardSource.pause

    async def counted(self: QueueShardSource, queue: str, pause_ms: int, reason: str) -> None:
        pauses.append(pause_ms)
        await pause(self, queue, pause_ms, reason)

    async def handler(job: Job) -> End:
        await gate.wait()
        return Postponed(2 * HOUR_MS if job.body == b"long" else HOUR_MS, pause_reason="busy")

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [b""] * 49)
        await client.enqueue("q", b"long")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(QueueShardSource, "pause", counted)
            async with worker_for(own, handler, concurrency=50) as worker:
                await until(lambda: len(worker.running) == 50, "50 running jobs")
                gate.set()
                await until(lambda: worker.stats.postponed == 50, "50 postponed jobs")
        assert pauses in ([HOUR_MS, 2 * HOUR_MS], [2 * HOUR_MS])
        assert (await limits_of(client, "q")).paused_ms > HOUR_MS


@on_loop
async def test_other_workers_give_back_what_they_have_not_started(server: Server) -> None:
    gate = asyncio.Event()

    async def waits(job: Job) -> None:
        await gate.wait()

    async with clients(server, 2) as (client, own):
        await client.enqueue_many("q", [b""] * 20)
        async with worker_for(own, waits, concurrency=1) as worker:
            await until(lambda: len(worker.prefetched) == 19, "19 prefetched jobs")
            await client.run(lambda end: pause_for(client.session, "q", HOUR, "me", end))
            await released(worker, 19)
            assert len(worker.running) == 1
            gate.set()
            await until(lambda: worker.stats.succeeded == 1, "the end of the job that ran")
        assert worker.stats.claimed == 20
        assert (await client.count("q")).pending == 20 - 1


@on_loop
async def test_jobs_of_a_claim_under_way_go_back_too(server: Server) -> None:
    gate, paused, claimed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    claim, pause = QueueShardSource.claim, QueueShardSource.pause

    async def late_claim(self: QueueShardSource, queue: str, limit: int, *, wait: bool) -> Any:
        found = await claim(self, queue, limit, wait=wait)
        if found and any(one.jobs for one in found) and own_worker.running:
            claimed.set()
            await paused.wait()
        return found

    async def noted_pause(self: QueueShardSource, *arguments: Any) -> None:
        await pause(self, *arguments)
        asyncio.get_running_loop().call_soon(paused.set)

    async def handler(job: Job) -> End:
        ran.append(job.body)
        await gate.wait()
        return Postponed(HOUR_MS, pause_reason="busy")

    ran = list[bytes]()
    async with clients(server) as (client, own):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(QueueShardSource, "claim", late_claim)
            patch.setattr(QueueShardSource, "pause", noted_pause)
            own_worker = Worker(own, "q", handler, WorkerConfig(concurrency=5, monitor=False))
            await client.enqueue("q", b"first")
            async with asyncio.TaskGroup() as group:
                group.create_task(own_worker.run(burst=True))  # without blocking claims
                await until(lambda: ran == [b"first"], "the first job")
                await client.enqueue_many("q", [b"late"] * 3)
                await asyncio.wait_for(claimed.wait(), 30)
                gate.set()
        assert ran == [b"first"]
        assert own_worker.stats.released == own_worker.stats.claimed - 1 >= 1
        assert (await client.count("q")).pending == 3


@on_loop
async def test_a_shard_that_is_away_leaves_the_job_snoozed_and_a_line(
    fresh_server: FreshServer, caplog: pytest.LogCaptureFixture
) -> None:
    here, away = fresh_server(), fresh_server()
    shards = {"1": here.url, "2": away.url}

    async def handler(job: Job) -> End:
        away.kill()
        return Postponed(HOUR_MS, pause_reason="busy")

    async with AsyncClient(shards=shards) as client, AsyncClient(shards=shards) as own:
        await client.create_queue("q")
        await on_shard(client, "1")
        async with worker_for(own, handler) as worker:
            await until(lambda: worker.stats.postponed == 1, "a postponed job")
        async with AsyncClient(shards={"1": here.url}) as left:
            assert (await left.count("q")).scheduled == 1
            assert (await paused_by(left, "q")).endswith(": busy")
    said = [each.getMessage() for each in caplog.records if "not paused" in each.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("queue q: not paused on every shard, though busy: ")


async def on_shard(client: AsyncClient, shard: str) -> None:
    """Enqueues jobs until one is on that shard, and removes the others."""
    while True:
        descriptor = await client.enqueue("q", b"")
        if f":s{shard}:" in descriptor:
            return
        await client.delete_jobs(descriptors=[descriptor])


@on_loop
async def test_a_stop_waits_for_the_pause(server: Server) -> None:
    pause, asked, gate = QueueShardSource.pause, asyncio.Event(), asyncio.Event()

    async def slow_pause(self: QueueShardSource, *arguments: Any) -> None:
        asked.set()
        await gate.wait()
        await pause(self, *arguments)

    async def handler(job: Job) -> End:
        return Postponed(HOUR_MS, pause_reason="busy")

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [b""] * 5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(QueueShardSource, "pause", slow_pause)
            async with worker_for(own, handler, concurrency=1) as worker:
                await asyncio.wait_for(asked.wait(), 30)
                worker.request_stop()
                assert (len(worker.running), len(worker.prefetched)) == (1, 0)
                gate.set()
        assert (worker.stats.postponed, worker.stats.released) == (1, 4)
        counts = await client.count("q")
        assert (counts.pending, counts.scheduled, counts.in_progress) == (4, 1, 0)


@on_loop
async def test_other_queues_of_the_worker_go_on(server: Server) -> None:
    ran = list[str]()

    async def handler(job: Job) -> End:
        ran.append(job.queue)
        return Postponed(HOUR_MS, pause_reason="busy") if job.queue == "q" else None

    async with clients(server) as (client, own):
        await client.create_queue("other")
        for queue in ("q", "other"):
            await client.enqueue_many(queue, [b""] * 10)
        worker = Worker(own, ["q", "other"], handler, WorkerConfig(concurrency=1, monitor=False))
        await asyncio.wait_for(worker.run(burst=True), 30)
        assert (ran.count("q"), ran.count("other")) == (1, 10)
        assert (await client.count("q")).pending == 9


@on_loop
async def test_a_job_that_is_removed_while_its_queue_is_paused(server: Server) -> None:
    pause, asked, gate = QueueShardSource.pause, asyncio.Event(), asyncio.Event()

    async def slow_pause(self: QueueShardSource, *arguments: Any) -> None:
        asked.set()
        await gate.wait()
        await pause(self, *arguments)

    async def handler(job: Job) -> End:
        return Postponed(HOUR_MS, pause_reason="busy")

    async with clients(server) as (client, own):
        descriptor = await client.enqueue("q", b"")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(QueueShardSource, "pause", slow_pause)
            async with worker_for(own, handler) as worker:
                await asyncio.wait_for(asked.wait(), 30)
                await client.delete_jobs(descriptors=[descriptor])
                await until(lambda: worker.stats.cancelled == 1, "a removed job")
                gate.set()
        assert (await paused_by(client, "q")).endswith(": busy")


@on_loop
async def test_a_queue_that_goes_on_is_worked_on_at_once(server: Server) -> None:
    ran = list[bytes]()

    async def handler(job: Job) -> End:
        ran.append(job.body)
        return Postponed(HOUR_MS, pause_reason="busy") if job.body == b"first" else None

    async with clients(server) as (client, own):
        await client.enqueue("q", b"first")
        await client.enqueue_many("q", [b"later"] * 5)
        async with worker_for(own, handler, concurrency=1) as worker:
            await until(lambda: b"first" in ran, "the first job")
            await until(lambda: worker.stats.postponed == 1 and worker.held == 0, "a paused queue")
            await client.run(lambda end: end_pause(client.session, "q", end))
            await until(lambda: ran.count(b"later") == 5, "the other jobs")
