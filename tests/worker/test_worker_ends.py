"""How a handler says that its job ended: what it returns, and threads that are past their time.

Promises: shown on servers of each kind. Risks: none known.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pinlater import InvalidArgument, Job, NewJob, State
from pinlater.worker.executor import End, Failed, Postponed, ThreadPool
from pinlater.worker.time_limits import TimedOut
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.handlers_for_tests import clients, on_loop, until
from tests.support.servers import Server

HOUR_MS = 3_600_000


def by_body(ends: dict[bytes, End], plain: bool) -> Callable[[Job], Any]:
    async def handler(job: Job) -> Any:
        return ends[job.body]

    return (lambda job: ends[job.body]) if plain else handler


@pytest.mark.parametrize("plain", [False, True])
@on_loop
async def test_every_end_in_one_batch(server: Server, plain: bool) -> None:
    ends: dict[bytes, End] = {
        b"fine": None,
        b"failed": Failed("not yet\n"),
        b"later": Failed("in an hour\n", delay_ms=HOUR_MS),
        b"final": Failed("never\n", final=True),
        b"postponed": Postponed(HOUR_MS),
    }
    async with clients(server, 1, keep_succeeded=10) as (client,):
        jobs = await client.enqueue_many("q", [NewJob(body, attempts=3, key="one shard") for body in ends])
        worker = Worker(client, "q", by_body(ends, plain), WorkerConfig(retry_delay_ms=HOUR_MS // 2))
        before_ms = server.time_ms()
        assert await worker.run_once() == 5
        fine, failed, later, final, postponed = (await client.lookup(jobs)).values()
        states = [info.state for info in (fine, failed, later, final, postponed)]
        assert states == [State.SUCCEEDED, State.PENDING, State.PENDING, State.FAILED, State.PENDING]
        assert [info.attempts_remaining for info in (failed, later, final, postponed)] == [2, 2, 0, 3]
        assert [info.status for info in (failed, later, final, postponed)] == [
            "not yet\n",
            "in an hour\n",
            "never\n",
            "",
        ]
        for info, delay_ms in ((failed, HOUR_MS // 2), (later, HOUR_MS), (postponed, HOUR_MS)):
            assert info.run_after_ms is not None
            assert before_ms + delay_ms <= info.run_after_ms <= server.time_ms() + delay_ms
        stats = worker.stats
        assert (stats.succeeded, stats.failed, stats.postponed, stats.stale) == (1, 3, 1, 0)


@on_loop
async def test_an_end_of_a_job_that_is_gone_is_refused(server: Server) -> None:
    async with clients(server) as (client, own):

        async def handler(job: Job) -> End:
            await client.delete_jobs(descriptors=[job.descriptor])
            return Postponed(0) if job.body == b"postponed" else Failed("", final=True)

        jobs = await client.enqueue_many("q", [b"postponed", b"final"])
        worker = Worker(own, "q", handler)
        assert await worker.run_once() == 2
        assert (worker.stats.stale, worker.stats.failed, worker.stats.postponed) == (2, 0, 0)
        assert await client.lookup(jobs) == {}


@on_loop
async def test_a_status_that_no_server_takes_is_cut(server: Server) -> None:
    async with clients(server, 1) as (client,):
        job = await client.enqueue("q", b"", attempts=1)
        await Worker(client, "q", by_body({b"": Failed("\0\ud800" + 5000 * "ä")}, False)).run_once()
        assert (await client.lookup([job]))[job].status == "?" + 1499 * "ä"


def test_delays_are_checked_where_they_are_made() -> None:
    makes: list[Any] = [Postponed, partial(Failed, "")]
    for make in makes:
        for delay_ms in (-1, 2**44, 0.5):
            with pytest.raises(InvalidArgument, match="delay_ms: expected an integer"):
                make(delay_ms)


@on_loop
async def test_a_thread_past_its_time_is_left_behind_and_its_slot_is_used() -> None:
    gate, threads = threading.Event(), list[str]()

    def hang(job: Job) -> None:
        threads.append(threading.current_thread().name)
        gate.wait(30)

    def note(job: Job) -> Failed:
        threads.append(threading.current_thread().name)
        return Failed("seen")

    job = Job("q", "1", 1, 1, b"", b"12345678", 1, 1)
    pool = ThreadPool(1, asyncio.get_running_loop())
    with pytest.raises(TimedOut, match=r"its thread ran longer than its timeout, 0\.05 s"):
        await pool.run(hang, job, 0.05)
    assert await pool.run(note, job, 30) == Failed("seen")
    gate.set()
    await until(
        lambda: sum(thread.name.startswith("pinlater-handler") for thread in threading.enumerate()) == 1, "its end"
    )
    assert await pool.run(note, job) == Failed("seen")
    pool.close()
    assert len(threads) == 3
    assert len(set(threads)) <= 2


@on_loop
async def test_a_burst_ends_when_nothing_is_due(server: Server) -> None:
    async with clients(server) as (client, own):

        async def handler(job: Job) -> End:
            if job.body == b"parent":
                await client.enqueue("q", b"child")
            if job.body == b"again" and job.attempt < 3:
                return Failed("", delay_ms=0)
            return Postponed(HOUR_MS) if job.body == b"later" else None

        await client.enqueue_many("q", [b"parent", NewJob(b"again", attempts=3), b"later", *[b""] * 500])
        worker = Worker(own, "q", handler)
        await asyncio.wait_for(worker.run(burst=True), 30)
        assert (worker.stats.succeeded, worker.stats.failed, worker.stats.postponed) == (503, 2, 1)
        await asyncio.wait_for(worker.run(burst=True), 30)
        assert worker.stats.claimed == 506


@pytest.mark.parametrize("end", [Failed("", delay_ms=0), Postponed(0)])
@on_loop
async def test_a_burst_takes_what_its_last_job_put_back(server: Server, end: End) -> None:
    ends = [None, end, end, end]
    async with clients(server) as (client, own):
        await client.enqueue("q", b"", attempts=4)

        async def handler(job: Job) -> End:
            own.driver.subscriber.on_message = None  # a notification may come too late
            return ends.pop()

        worker = Worker(own, "q", handler)
        await asyncio.wait_for(worker.run(burst=True), 30)
    assert ends == []
