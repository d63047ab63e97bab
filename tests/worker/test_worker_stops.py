"""How a worker starts and stops, in this process, and what it does with claims and answers that were lost.

Promises: shown on servers of each kind. Risks: signals are in test_worker_processes.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from pinlater import AsyncClient, Job, NewJob, QueueNotFound, State
from pinlater.model.clocks import boot_s
from pinlater.store.keys import LIST_MARK
from pinlater.store.scripts import load_scripts
from pinlater.worker import lease_renewal
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import ShortJobs, clients, idle, nothing, on_loop, until
from tests.support.resp import Command
from tests.support.servers import Server

DEADLINE_S = 8.0  # for what takes no time, and a safety claim (10 to 15 s) would do too late


@on_loop
async def test_start_and_stop(server: Server) -> None:
    async with clients(server) as (client, own):
        worker = Worker(own, "q", nothing)
        await worker.stop()
        await worker.start()
        await worker.start()
        await worker.stop()
        await worker.stop()
        for count in (1, 2):  # and again
            await worker.start()
            await client.enqueue("q", b"")
            await until(lambda: worker.stats.succeeded == count, "a job")  # noqa: B023
            await asyncio.gather(worker.stop(), worker.stop())
        assert await worker.run_once() == 0
        await client.enqueue("q", b"")
        for queue_shard in own.session.queue_shards("q"):  # a hint of the last look may be 50 ms old
            queue_shard.left_at_s = float("-inf")
        assert await worker.run_once() == 1
        assert worker.stats.succeeded == 3


def waiter(client: AsyncClient) -> bytes:
    return client.session.id.hex().encode()


def timers(server: Server, shard: str = "1") -> bytes:
    """The waiter that holds the timer of the next scheduled job."""
    return (server.call("HGET", f"pl:{{q/{shard}}}:meta", "timer") or b"")[12:].removesuffix(LIST_MARK)


def waiters(server: Server, shard: str = "1") -> list[bytes]:
    """The sessions of waiters."""
    return [name.removesuffix(LIST_MARK) for name in server.call("ZRANGE", f"pl:{{q/{shard}}}:waiters", 0, -1)]


@on_loop
async def test_a_worker_that_stops_hands_its_timer_on_at_once(server: Server) -> None:
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        await gate.wait()

    config = WorkerConfig(monitor=False, concurrency=2)
    async with clients(server, 3) as (client, first, second):
        await client.enqueue("q", b"", delay_ms=600_000, key="on one shard")
        shard = next(name for name in "12" if server.call("EXISTS", f"pl:{{q/{name}}}:scheduled:1"))
        stopped = Worker(first, "q", handler, config)
        await stopped.start()
        await until(lambda: timers(server, shard) == waiter(first), "a timer")
        await client.enqueue("q", b"")  # it does not end: the timer is handed on before
        await until(lambda: len(stopped.running) == 1, "a running job")
        async with Worker(second, "q", handler, config) as other:
            await idle(other)
            assert timers(server, shard) == waiter(first)
            stopping = asyncio.create_task(stopped.stop())
            await until(lambda: timers(server, shard) == waiter(second), "the timer handed on", DEADLINE_S)
            assert all(waiter(first) not in waiters(server, name) for name in "12")
            assert not stopping.done()
            gate.set()
            await stopping


@on_loop
async def test_a_dequeue_that_ends_hands_its_timer_on_at_once(server: Server) -> None:
    async with clients(server, 3) as (client, first, second):
        await client.enqueue("q", b"", delay_ms=600_000, key="on one shard")
        shard = next(name for name in "12" if server.call("EXISTS", f"pl:{{q/{name}}}:scheduled:1"))
        ending = asyncio.create_task(first.dequeue("q", wait=0.5))
        await until(lambda: timers(server, shard) == waiter(first), "a timer")
        longer = asyncio.create_task(first.dequeue("q", wait=4.0))  # of the same client: it still waits then
        async with Worker(second, "q", nothing, WorkerConfig(monitor=False)) as other:
            await idle(other)
            assert await ending == []
            assert timers(server, shard) == waiter(first)
            assert waiter(first) in waiters(server, shard)
            assert await longer == []
            await until(lambda: timers(server, shard) == waiter(second), "the timer handed on", DEADLINE_S)
            assert all(waiter(first) not in waiters(server, name) for name in "12")


@on_loop
async def test_an_idle_worker_notices_at_once_that_its_queue_is_deleted_and_made_again(server: Server) -> None:
    async with clients(server, 3) as (client, own, other):
        waiting = asyncio.create_task(other.dequeue("q", wait=600.0))
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            for count in (1, 2):
                await idle(worker)
                await client.delete_queue("q")
                await until(lambda: worker.fetcher.last_error, "a claim that failed", DEADLINE_S)
                await client.create_queue("q")
                await client.enqueue("q", b"")
                await until(lambda: worker.stats.succeeded == count, "a job", DEADLINE_S)  # noqa: B023
            await idle(worker)
            await client.delete_queue("q")  # and before anybody could notice
            await client.create_queue("q")
            await client.enqueue("q", b"")
            await until(lambda: worker.stats.succeeded == 3, "a job", DEADLINE_S)
        with pytest.raises(QueueNotFound):
            await asyncio.wait_for(waiting, DEADLINE_S)


@on_loop
async def test_stop_before_the_first_turn(server: Server) -> None:
    async with clients(server) as (_, own):
        worker = Worker(own, "q", nothing)
        task = asyncio.create_task(worker.run())
        worker.request_stop()
        await asyncio.wait_for(task, DEADLINE_S)


@on_loop
async def test_run_once_says_what_is_wrong(server: Server) -> None:
    async with clients(server) as (_, own):
        with pytest.raises(QueueNotFound, match="'nowhere'"):
            await Worker(own, "nowhere", nothing).run_once()


@on_loop
async def test_stop_lets_running_jobs_end_and_releases_the_rest(server: Server) -> None:
    gate, started = asyncio.Event(), []

    async def handler(job: Job) -> None:
        started.append(job.descriptor)
        await gate.wait()

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [NewJob(b"", attempts=1)] * 10)
        worker = Worker(own, "q", handler, WorkerConfig(concurrency=3))
        worker.jobs.rate = ShortJobs()  # all ten are prefetched
        await worker.start()
        await until(lambda: worker.stats.claimed == 10, "ten claimed jobs")
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker.stats.released == 7, "seven released jobs")
        assert not stopping.done()
        gate.set()
        await stopping
        assert (len(started), worker.stats.succeeded, worker.stats.released) == (3, 3, 7)
        left = [info async for info in client.scan("q")]
        assert [(info.attempts_remaining, info.crashes) for info in left] == [(1, 0)] * 7


def of_claim(command: Command) -> bool:
    return command[:1] == [b"EVALSHA"] and command[1] == load_scripts()["claim"].sha


@asynccontextmanager
async def held_up(
    server: Server, monkeypatch: pytest.MonkeyPatch, shards: str, cut: Cut
) -> AsyncIterator[tuple[CutProxy, Worker, AsyncClient]]:
    """A worker that claimed three jobs of one attempt, and did not hear of it; its client."""
    monkeypatch.setattr("pinlater.worker.stop.GRACE_S", 0.05)
    monkeypatch.setattr("pinlater.operations.dequeue.PATIENCE_S", 0.5)
    server.call("SCRIPT", "LOAD", load_scripts()["claim"].source)
    timeout_s = 0.5 if cut is Cut.MUTE else 10.0
    with CutProxy(server.port) as proxy:
        async with (
            AsyncClient(shards=dict.fromkeys(shards, server.url)) as client,
            AsyncClient(shards=dict.fromkeys(shards, proxy.url), timeout_s=timeout_s, read_timeout_s=timeout_s) as own,
        ):
            await client.create_queue("q")
            await client.enqueue_many("q", [NewJob(b"", attempts=1, key="one shard")] * 3)
            proxy.arm(cut, match=of_claim, count=1000 if cut is Cut.MUTE else 1)
            worker = Worker(own, "q", nothing, WorkerConfig(monitor=False))
            await worker.start()
            await until(lambda: sum(server.call("HLEN", f"pl:{{q/{s}}}:running:1") for s in shards) == 3, "a claim")
            yield proxy, worker, own
            assert (worker.stats.claimed, worker.stats.released, worker.stats.succeeded) == (3, 3, 0)
            left = [info async for info in client.scan("q")]
            assert [(info.attempts_remaining, info.crashes) for info in left] == [(1, 0)] * 3


@pytest.mark.parametrize("shards", ["1", "12"])
@on_loop
async def test_jobs_of_a_claim_under_way_at_a_stop_are_released(
    server: Server, monkeypatch: pytest.MonkeyPatch, shards: str
) -> None:
    async with held_up(server, monkeypatch, shards, Cut.DELAY) as (proxy, worker, _):
        stopping = asyncio.create_task(worker.stop())
        assert not (await asyncio.wait([stopping], timeout=0.2))[0]  # longer than any grace
        proxy.release()
        await stopping


@pytest.mark.parametrize("shards", ["1", "12"])
@on_loop
async def test_jobs_of_a_claim_whose_answer_was_lost_are_released_at_a_stop(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shards: str
) -> None:
    async with held_up(server, monkeypatch, shards, Cut.MUTE) as (proxy, worker, own):
        queue_shards = own.session.queue_shards("q")
        await until(lambda: any(queue_shard.lost_claims.pending for queue_shard in queue_shards), "an unknown claim")
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: "not known yet" in caplog.text, "another try")
        proxy.disarm()
        await stopping


@pytest.mark.parametrize("twice", [False, True], ids=["at the deadline", "at once"])
@on_loop
async def test_stop_gives_up_jobs_that_do_not_end(server: Server, twice: bool) -> None:
    cancelled, hung = [], threading.Event()

    async def handler(job: Job) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(job.descriptor)
            raise

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [NewJob(b"", attempts=1)] * 4)
        config = WorkerConfig(stop_timeout_s=3600 if twice else 0.05)
        worker = Worker(own, "q", handler, config)
        await worker.start()
        await until(lambda: len(worker.running) == 4, "four running jobs")
        worker.request_stop()
        if twice:
            worker.request_stop()
        await asyncio.wait_for(worker.stop(), 30)
        assert (len(cancelled), worker.stats.released, worker.stats.failed) == (4, 4, 0)
        # a thread cannot be stopped; its job is released all the same
        worker = Worker(own, "q", lambda job: hung.wait(), config)
        await worker.start()
        await until(lambda: len(worker.running) == 4, "four running jobs")
        worker.request_stop()
        if twice:
            worker.request_stop()
        await asyncio.wait_for(worker.stop(), 30)
        hung.set()
        assert worker.stats.released == 4
        assert (await client.count("q")).pending == 4


@on_loop
async def test_a_lost_claim_is_reported_and_not_acked(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        await gate.wait()

    async with clients(server, lease_ms=30_000) as (client, own):
        job = await client.enqueue("q", b"")
        async with Worker(own, "q", handler, WorkerConfig(monitor=False)) as worker:
            await until(lambda: len(worker.running) == 1, "a running job")
            held = next(iter(worker.running.values())).job
            await client.configure_queue("q", paused=True)
            assert await client.release([held]) == []  # by another client: no worker holds it now
            gate.set()
            await until(lambda: worker.stats.stale == 1, "the refused ack")
        assert (await client.lookup([job]))[job].state is State.PENDING
        assert (worker.stats.succeeded, worker.stats.failed, worker.stats.stale) == (0, 0, 1)
        assert f"job {job}: its claim went stale" in caplog.text


@on_loop
async def test_a_job_that_is_somebody_elses_by_now_is_stopped(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Though it would not end for long, and so no ack of it is refused."""
    cancelled = asyncio.Event()

    async def handler(job: Job) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    async with clients(server, lease_ms=600) as (client, own):
        job = await client.enqueue("q", b"")
        async with Worker(own, "q", handler, WorkerConfig(monitor=False)) as worker:
            await until(lambda: len(worker.running) == 1, "a running job")
            held = next(iter(worker.running.values())).job
            await client.configure_queue("q", paused=True)
            assert await client.release([held]) == []
            await asyncio.wait_for(cancelled.wait(), 30)
            await until(lambda: worker.stats.stale == 1, "its end")
        assert (await client.lookup([job]))[job].state is State.PENDING
        assert (worker.stats.cancelled, worker.stats.failed, worker.stats.released) == (0, 0, 0)
        assert f"job {job}: its claim went stale while it runs" in caplog.text


@on_loop
async def test_an_ack_whose_answer_is_lost_is_not_done_twice(server: Server) -> None:
    with CutProxy(server.port) as proxy:
        async with clients(server, keep_succeeded=100) as (client, _):
            own = AsyncClient(shards={"1": proxy.url, "2": proxy.url}, timeout_s=1.0)
            await client.enqueue_many("q", [b""] * 20)
            proxy.arm(Cut.AFTER, nth=1, count=12)  # claims, peeks, acks: whatever comes
            async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
                await until(lambda: worker.stats.succeeded == 20, "20 jobs")
            await own.close()
            assert (await client.count("q")).succeeded == 20
            assert (worker.stats.claimed, worker.stats.stale) == (20, 0)


@on_loop
async def test_a_waiting_job_is_not_started_before_its_claim_in_doubt_is_confirmed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was suspended meanwhile: CLOCK_BOOTTIME went on, CLOCK_MONOTONIC did not."""
    gate, started = asyncio.Event(), []

    async def handler(job: Job) -> None:
        started.append(job.descriptor)
        await gate.wait()

    async with clients(server, lease_ms=60_000) as (client, own):
        for _ in range(4):
            await client.enqueue("q", b"", key="one shard, one claim")
        worker = Worker(own, "q", handler, WorkerConfig(concurrency=1, monitor=False))
        worker.jobs.rate = ShortJobs()
        async with worker:
            await until(lambda: (len(worker.running), len(worker.prefetched)) == (1, 3), "three prefetched jobs")
            held = [*worker.running.values(), *worker.prefetched]
            await client.configure_queue("q", paused=True)
            assert await client.release([one.job for one in held]) == []  # as if the lease had run out
            monkeypatch.setattr(lease_renewal, "boot_s", lambda: boot_s() + 30.0)
            monkeypatch.setattr(lease_renewal, "time", lambda: time.time() + 30.0)
            gate.set()
            await until(lambda: worker.stats.stale == 4, "four stale jobs")
        assert started == [held[0].job.descriptor]
        assert (worker.held_bytes, worker.stats.succeeded) == (0, 0)


@on_loop
async def test_a_deleted_queue_ends_only_its_own_claims_in_doubt(server: Server) -> None:
    gate, started = asyncio.Event(), []

    async def handler(job: Job) -> None:
        started.append(job.queue)
        await gate.wait()

    async with clients(server, lease_ms=60_000) as (client, own):
        await client.create_queue("gone")
        worker = Worker(own, ["q", "gone"], handler, WorkerConfig(concurrency=1, monitor=False))
        worker.jobs.rate = ShortJobs()
        async with worker:
            await client.enqueue("q", b"")
            await until(lambda: len(worker.running) == 1, "a running job")
            await client.enqueue_many("q", [b""] * 2)
            await client.enqueue_many("gone", [b""] * 2)
            await until(lambda: len(worker.prefetched) == 4, "prefetched jobs of both queues")
            for one in worker.prefetched:
                one.lease.seen_s -= 30.0  # as if this process had stood still meanwhile
            await client.delete_queue("gone")
            gate.set()
            await until(lambda: worker.stats.stale == 2, "two stale jobs")
            await until(lambda: worker.stats.succeeded == 3, "the jobs of the other queue")
        assert started == ["q"] * 3


@on_loop
async def test_the_time_limit_of_a_job_that_is_left_behind_at_a_stop_goes_with_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.worker.stop.GRACE_S", 0.01)
    began, over = asyncio.Event(), asyncio.Event()

    async def judge() -> None: ...

    async def handler(job: Job) -> None:
        worker.limit_function(job, 3600, judge).begin()
        began.set()
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    async with clients(server, 2) as (client, own):
        await client.enqueue("q", b"")
        worker = Worker(own, "q", handler, WorkerConfig(stop_timeout_s=0, monitor=False))
        await worker.start()
        await asyncio.wait_for(began.wait(), DEADLINE_S)
        await worker.stop()
        assert worker.stats.released == 1
        assert worker.limited == 0
        over.set()
