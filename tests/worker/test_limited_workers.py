"""Workers and dequeues of queues with limits, on real servers: shares, rests, changes, ends.

Promises: tests wait for what happens, and each change must come sooner than a safety claim would find it.
Risks: a loaded machine makes shares less even; a third of a fair share is asked for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from typing import Any

import pytest

from pinlater import AsyncClient, Client, Job, QueueConfig
from pinlater.model.limits import Limit
from pinlater.operations.limits import pause_for, queue_limits
from pinlater.worker.fetcher import Fetcher
from pinlater.worker.queue_order import QueueOrder
from pinlater.worker.queue_shard_source import QueueShardSource
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.handlers_for_tests import nothing, on_loop, until
from tests.support.servers import Server
from tests.support.wire_format import Account

#: Less than a safety claim takes.
SOON_S = 8.0
HOUR_MS = 3_600_000


def blocked(server: Server) -> int:
    """Clients that wait in a BLPOP."""
    return int(server.info("clients")["blocked_clients"])


def rests(worker: Worker, limit: Limit = Limit.RATE, queue: str = "q") -> bool:
    """Whether a limit has held the worker back."""
    return (queue, limit) in worker.fetcher.limit_rests.seconds


def fill(server: Server, tokens: int, granted: int = 0, queue: str = "q", per_ms: int = HOUR_MS) -> None:
    """Writes the account of a rate of one token in that time."""
    now_ms = server.time_ms()
    account = Account(now_ms, tokens * per_ms, 0, now_ms, granted)
    server.call("HSET", f"pl:{{{queue}/1}}:meta", "account", account.pack())


async def make(client: AsyncClient, jobs: int, queue: str = "q", **words: Any) -> None:
    await client.create_queue(queue, QueueConfig(**words))
    if jobs:
        await client.enqueue_many(queue, [b"x"] * jobs)


@on_loop
async def test_claimers_of_every_kind_share_a_limit(server: Server) -> None:
    got: Counter[str] = Counter()
    total, fair = 300, 100

    def is_over() -> bool:
        return sum(got.values()) >= total

    async def handler(job: Job) -> None:
        got["worker"] += 1

    def dequeue() -> None:
        with Client(server.url) as client:
            while not is_over():
                jobs = client.dequeue("q", 5, wait=0.2)
                got["sync"] += len(jobs)
                client.ack(succeeded=jobs)

    async with AsyncClient(server.url) as producer, AsyncClient(server.url) as own, AsyncClient(server.url) as other:
        await make(producer, 3 * total, rate="100/s", burst=5)
        thread = threading.Thread(target=dequeue)
        async with Worker(own, "q", handler, WorkerConfig(concurrency=5, monitor=False)):
            thread.start()
            while not is_over():
                jobs = await other.dequeue("q", 5, wait=0.2)
                got["async"] += len(jobs)
                await other.ack(succeeded=jobs)
            await asyncio.to_thread(thread.join)
    assert min(got[kind] for kind in ("worker", "sync", "async")) >= fair / 3, got


@on_loop
async def test_a_resting_queue_slows_no_other_one(server: Server) -> None:
    runs: list[str] = []

    async def handler(job: Job) -> None:
        runs.append(job.queue)

    weights = {"slow": 5, "heavy": 3, "light": 1}
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 100, "slow", rate="1/h")
        for queue in ("heavy", "light"):
            await make(client, 100, queue)
        config = WorkerConfig(concurrency=1, prefetch=0, monitor=False, order=QueueOrder(weights=weights))
        async with Worker(own, list(weights), handler, config) as worker:
            await until(lambda: len(runs) >= 200, "the jobs of both other queues", SOON_S)
            assert rests(worker, queue="slow")
    shares = Counter(runs[:80])
    assert shares["slow"] == 0
    assert shares["heavy"] >= shares["light"] >= 80 / 4 / 3


@on_loop
async def test_a_limited_queue_gets_its_share_beside_others(server: Server) -> None:
    runs: list[str] = []

    async def handler(job: Job) -> None:
        runs.append(job.queue)

    queues = ["limited", "one", "two"]
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 200, "limited", rate="1/h", burst=1000)
        for queue in ("one", "two"):
            await make(client, 200, queue)
        fill(server, 200, queue="limited")
        async with Worker(own, queues, handler, WorkerConfig(concurrency=1, prefetch=0, monitor=False)):
            await until(lambda: len(runs) >= 300, "half of the jobs")
    assert all(runs[:300].count(queue) >= 100 / 3 for queue in queues), Counter(runs[:300])


@on_loop
@pytest.mark.parametrize("rate", ["1000/s", None])
async def test_a_change_of_the_rate_reaches_a_resting_worker(server: Server, rate: Any) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 3, rate="1/h", burst=1)
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: rests(worker), "a rest")
            await client.configure_queue("q", rate=rate)
            await until(lambda: worker.stats.succeeded == 3, "the jobs", SOON_S)


@on_loop
async def test_a_rest_that_ends_while_its_claim_is_answered_is_not_the_end_of_the_jobs(server: Server) -> None:
    """A rest of 1 ms is often over when the worker looks at it. A worker that took the queue for empty waited 10 s."""
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 300, rate="1000/s", burst=1)
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: worker.stats.succeeded == 300, "the jobs", SOON_S)


@on_loop
@pytest.mark.parametrize("rate", ["1000/s", None])
async def test_a_change_of_the_rate_reaches_a_resting_dequeue(server: Server, rate: Any) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 1, rate="1/h", burst=1)
        waiting = asyncio.create_task(own.dequeue("q", 1, wait=60))
        home = own.session.queue_shard("q", "1")
        await until(lambda: home.allowance.rest is not None, "a rest")
        await client.configure_queue("q", rate=rate)
        assert len(await asyncio.wait_for(waiting, SOON_S)) == 1


@on_loop
async def test_a_change_that_comes_while_a_claim_is_under_way_is_not_missed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 3, rate="1/h", burst=1)
        heard, claim, changed = asyncio.Event(), QueueShardSource.claim, Fetcher.on_limits_changed

        async def claim_while_it_changes(source: QueueShardSource, queue: str, limit: int, *, wait: bool) -> Any:
            found = await claim(source, queue, limit, wait=wait)
            if found is not None and not heard.is_set():
                await client.configure_queue("q", rate="1000/s")
                await heard.wait()
                assert not any(one.jobs for one in found)
            return found

        def hear(fetcher: Fetcher, queue: str) -> None:
            changed(fetcher, queue)
            heard.set()

        monkeypatch.setattr(QueueShardSource, "claim", claim_while_it_changes)
        monkeypatch.setattr(Fetcher, "on_limits_changed", hear)
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: worker.stats.succeeded == 3, "the jobs", SOON_S)


@on_loop
async def test_a_worker_says_once_that_it_rests(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pinlater.worker")
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 10, rate="50/s", burst=1)
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: worker.stats.succeeded == 10, "the jobs")
            assert worker.fetcher.limit_rests.seconds["q", Limit.RATE] > 0
    said = [record.getMessage() for record in caplog.records if "claims rest" in record.getMessage()]
    assert said == ["queue q: claims rest at its rate"]


@on_loop
async def test_a_worker_that_stops_returns_its_tokens(server: Server) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 0, rate="1/h", burst=20)
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: worker.fetcher.claims > 0, "a claim")
            home = own.session.queue_shard("q", "1")
            assert home.stored is not None
            home.allowance.begin(home.stored.version)
            home.allowance.granted(7, 2**60)
            fill(server, 3, granted=7)
        seen = await client.run(lambda end: queue_limits(client.session, "q", end))
        assert (seen.tokens, seen.granted) == (10, 0)


@on_loop
async def test_an_idle_worker_of_a_queue_with_a_rate_leaves_no_claim_at_the_server(server: Server) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 0, rate="1000/s")
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: worker.fetcher.claims > 0, "a claim")
            assert blocked(server) == 0
            await client.enqueue("q", b"x")
            await until(lambda: worker.stats.succeeded == 1, "the job", SOON_S)


@on_loop
async def test_a_claim_that_waits_at_the_server_gets_nothing_once_the_queue_has_a_rate(server: Server) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 0)
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: blocked(server) == 1, "a blocking claim")
            await client.configure_queue("q", rate="1/h")
            await client.enqueue("q", b"x")
            await until(lambda: rests(worker), "a rest")
            assert worker.stats.succeeded == 0  # the claim that waited had no token
            await until(lambda: blocked(server) == 0, "no blocking claim")
            await client.configure_queue("q", rate=None)
            await until(lambda: worker.stats.succeeded == 1, "the job", SOON_S)
            await until(lambda: blocked(server) == 1, "a blocking claim again")


@on_loop
async def test_a_burst_run_ends_when_a_limited_queue_is_empty(server: Server) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 10, rate="50/s", burst=2)
        worker = Worker(own, "q", nothing, WorkerConfig(monitor=False))
        await worker.run(burst=True)
        assert worker.stats.succeeded == 10


@on_loop
async def test_a_burst_run_may_leave_what_a_limit_holds_back(server: Server) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 10, rate="1/h", burst=20)
        fill(server, 3)
        worker = Worker(own, "q", nothing, WorkerConfig(monitor=False))
        await worker.run(burst=True, through_limits=False)
        assert worker.stats.succeeded == 3


@on_loop
async def test_a_pause_ends_by_itself_for_a_resting_worker(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pinlater.worker")
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 0)
        await client.run(lambda end: pause_for(client.session, "q", 0.5, "test", end))
        await client.enqueue("q", b"x")
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: rests(worker, Limit.PAUSE), "a rest")
            await until(lambda: worker.stats.succeeded == 1, "the job", SOON_S)
    said = [record.getMessage() for record in caplog.records if "claims" in record.getMessage()]
    assert said == ["queue q: claims rest, as it is paused", "queue q: claims go on"]


@on_loop
async def test_workers_take_turns_at_the_places_of_a_queue(server: Server) -> None:
    now = most = 0
    runs: list[int] = []

    def handler_of(number: int) -> Any:
        async def handler(job: Job) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.002)
            now -= 1
            runs.append(number)

        return handler

    config = WorkerConfig(concurrency=5, prefetch=0, monitor=False)
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as one, AsyncClient(server.url) as two:
        await make(client, 100, max_running=2)
        async with Worker(one, "q", handler_of(1), config), Worker(two, "q", handler_of(2), config):
            await until(lambda: len(runs) == 100, "the jobs")
    assert most <= 2
    assert min(runs.count(1), runs.count(2)) >= 50 / 3


@on_loop
async def test_a_queue_that_is_deleted_ends_the_rest_of_its_workers(server: Server) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await make(client, 1, rate="1/h", burst=1)
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: rests(worker), "a rest")
            await client.delete_queue("q")
            await make(client, 3)
            await until(lambda: worker.stats.succeeded == 3, "the jobs", SOON_S)
