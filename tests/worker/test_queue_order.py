"""Which queue runs first: shares by weight, strict order, and that no queue starves.

Promises: real servers, one job at a time, and the order in which they ran. Risks: none known.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pinlater import AsyncClient, InvalidArgument, Job, Worker, WorkerConfig
from pinlater.worker.queue_order import QueueOrder
from tests.support.handlers_for_tests import ShortJobs, on_loop, until
from tests.support.servers import Server


class Runs:
    """The queues of the jobs that ran, in their order. After pause_after runs the next one waits at the gate."""

    def __init__(self, pause_after: int = 0) -> None:
        self.queues: list[str] = []
        self._pause_after = pause_after
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, job: Job) -> None:
        await self.gate.wait()
        self.queues.append(job.queue)
        if len(self.queues) == self._pause_after:
            self.gate.clear()

    def until(self, count: int) -> Counter[str]:
        return Counter(self.queues[:count])


@asynccontextmanager
async def working(server: Server, runs: Runs, order: QueueOrder, backlog: dict[str, int]) -> AsyncIterator[AsyncClient]:
    """One job at a time, nothing prefetched."""
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as producer:
        for queue, jobs in backlog.items():
            await producer.create_queue(queue)
            if jobs:
                await producer.enqueue_many(queue, [b"x"] * jobs)
        config = WorkerConfig(concurrency=1, prefetch=0, order=order)
        async with Worker(client, list(backlog), runs, config):
            yield producer


@pytest.mark.parametrize("weights", [{"a": 3, "b": 1}, {"b": 3}, {"a": 5, "b": 2, "c": 1}, {}])
@on_loop
async def test_shares_are_as_the_weights(server: Server, weights: dict[str, int]) -> None:
    runs, queues = Runs(), ["a", "b", "c"][: max(2, len(weights))]
    async with working(server, runs, QueueOrder(weights=weights), dict.fromkeys(queues, 80)):
        await until(lambda: len(runs.queues) >= 80, "80 runs")
    shares = {queue: weights.get(queue, 1) for queue in queues}
    for count in (16, 40, 80):
        for queue, share in shares.items():
            assert abs(runs.until(count)[queue] - count * share / sum(shares.values())) <= 1.5


@on_loop
async def test_a_large_room_is_shared_too(server: Server) -> None:
    runs = Runs()
    runs.gate.clear()
    async with AsyncClient(server.url) as client:
        for queue in "ab":
            await client.create_queue(queue)
            await client.enqueue_many(queue, [b"x"] * 100)
        config = WorkerConfig(concurrency=40, prefetch=0, order=QueueOrder(weights={"a": 3}))
        async with Worker(client, ["a", "b"], runs, config) as worker:
            await until(lambda: worker.stats.claimed == 40, "a full worker")
            assert [(await client.count(queue)).in_progress for queue in "ab"] == [30, 10]
            runs.gate.set()


@on_loop
async def test_a_queue_that_was_empty_has_saved_nothing_up(server: Server) -> None:
    runs = Runs()
    async with working(server, runs, QueueOrder(), {"a": 100, "b": 0}) as client:
        await until(lambda: len(runs.queues) >= 50, "50 of a alone")
        runs.gate.clear()
        before = len(runs.queues) + 1  # one is claimed already
        await client.enqueue_many("a", [b"x"] * 100)
        await client.enqueue_many("b", [b"x"] * 100)
        await asyncio.sleep(0.1)  # for the notification of b
        runs.gate.set()
        await until(lambda: len(runs.queues) >= before + 20, "20 of both")
    assert abs(Counter(runs.queues[before : before + 20])["a"] - 10) <= 1


@on_loop
async def test_a_strict_order_goes_on_to_the_next_queue_when_there_is_nothing(server: Server) -> None:
    runs = Runs(pause_after=35)
    async with working(server, runs, QueueOrder(strict=True), {"b": 30, "a": 30, "c": 30}) as client:
        await until(lambda: len(runs.queues) == 35, "five of the second queue")
        await client.enqueue_many("b", [b"x"] * 30)
        runs.gate.set()
        await until(lambda: len(runs.queues) == 120, "all")
    assert runs.queues[:35] == ["b"] * 30 + ["a"] * 5
    again = runs.queues[35:].index("b")
    assert runs.queues[35 + again :][:30] == ["b"] * 30
    assert runs.queues[-30:] == ["c"] * 30


@on_loop
async def test_what_waits_for_a_slot_is_kept_in_strict_order(server: Server) -> None:
    runs = Runs()
    runs.gate.clear()
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        for queue in "ab":
            await client.create_queue(queue)
        await client.enqueue_many("b", [b"x"] * 5)
        worker = Worker(own, ["a", "b"], runs, WorkerConfig(concurrency=1, order=QueueOrder(strict=True)))
        worker.jobs.rate = ShortJobs()
        async with worker:
            await until(lambda: worker.stats.claimed == 5, "those of b")
            await client.enqueue_many("a", [b"x"] * 5)
            await until(lambda: worker.stats.claimed == 10, "those of a")
            runs.gate.set()
            await until(lambda: len(runs.queues) == 10, "all")
    assert runs.queues == ["b"] + ["a"] * 5 + ["b"] * 4


@on_loop
async def test_a_worker_ends_after_so_many_jobs(server: Server) -> None:
    runs = Runs()
    async with AsyncClient(server.url) as client:
        await client.create_queue("a")
        await client.enqueue_many("a", [b"x"] * 100)
        for burst in (False, True):
            worker = Worker(client, "a", runs, WorkerConfig(concurrency=20, max_jobs=30))
            await asyncio.wait_for(worker.run(burst=burst), 30)
            assert (worker.stats.claimed, worker.stats.succeeded, worker.stats.released) == (30, 30, 0)
        counts = await client.count("a")
        assert (counts.pending, counts.in_progress) == (40, 0)


def test_bad_orders_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="weight of queue 'a': expected an integer from 1 to 1,000, got 0"):
        QueueOrder(weights={"a": 0})
    with pytest.raises(InvalidArgument, match="expected weights or strict, got both"):
        QueueOrder(weights={"a": 2}, strict=True)
    with pytest.raises(InvalidArgument, match="weights: expected queues of a, b, got 'c'"):
        Worker(
            AsyncClient("redis://nobody:1"),
            ["a", "b"],
            lambda _: None,
            WorkerConfig(order=QueueOrder(weights={"c": 2})),
        )
    with pytest.raises(InvalidArgument, match="max_jobs: expected an integer"):
        WorkerConfig(max_jobs=0)
