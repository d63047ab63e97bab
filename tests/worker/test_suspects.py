"""Suspects: a worker runs a job whose last run ended in a crash with nothing beside it.

Promises: the jobs of a real server crash by a real recoverer, and events decide when each job ends.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pinlater import Ack, AsyncClient, Job, QueueConfig, Worker, WorkerConfig
from pinlater.running.recoverer import Recoverer
from pinlater.worker.queue_shard_source import QueueShardSource
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server


async def crashed_jobs(server: Server, count: int) -> None:
    """Enqueues jobs in the queue q, which a process claims that dies."""
    async with AsyncClient(server.url) as dying:
        await dying.enqueue_many("q", [b"suspect"] * count)
        assert len(await dying.dequeue("q", limit=count)) == count
        process: Any = SimpleNamespace(pid=1, source=dying.settings.source, report={}, started=b"", end_in_words=str)
        recoverer = Recoverer(lambda: AsyncClient(server.url), ["q"])
        async with recoverer.open():
            recoverer.recover(process, -9)
            await until(lambda: recoverer.retried == count, "the crash")


class Runs:
    """What runs in workers, and how many of each kind ran. Each job ends when it is let go."""

    def __init__(self) -> None:
        self.running: list[bytes] = []
        self.ended: list[bytes] = []
        self.beside: list[list[bytes]] = []
        self.go = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        """Notes what runs beside a suspect, when either starts."""
        if self.running and (job.crashed or b"suspect" in self.running):
            self.beside.append([*self.running, job.body])
        self.running.append(job.body)
        await self.go.wait()
        await asyncio.sleep(0.01)
        self.running.remove(job.body)
        self.ended.append(job.body)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@on_loop
async def test_nothing_runs_beside_a_suspect(server: Server) -> None:
    """The worker is busy when the first one comes, and others wait behind it."""
    runs = Runs()
    async with AsyncClient(server.url) as client, AsyncClient(server.url, source="worker") as its_own:
        await client.create_queue("q", QueueConfig(lease_ms=600_000, crash_limit=3))
        await client.enqueue_many("q", [b"first"] * 2)
        async with Worker(its_own, "q", runs, WorkerConfig(concurrency=2)):
            await until(lambda: len(runs.running) == 2, "busy slots")
            await crashed_jobs(server, 3)
            await client.enqueue_many("q", [b"last"] * 5)
            runs.go.set()
            await until(lambda: len(runs.ended) == 10, "the ends of all", 30)
    assert runs.beside == []


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@on_loop
async def test_no_ack_is_under_way_beside_a_suspect(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ended and is not acked would run again after a crash."""
    runs, real = Runs(), QueueShardSource.ack
    runs.go.set()
    beside_acks: list[bytes] = []

    async def slow(self: QueueShardSource, good: list[Job], bad: list[Ack]) -> list[Any]:
        for _ in range(10):
            await asyncio.sleep(0.01)
            beside_acks.extend(body for body in runs.running if body == b"suspect")
        return await real(self, good, bad)

    monkeypatch.setattr(QueueShardSource, "ack", slow)
    async with AsyncClient(server.url) as client, AsyncClient(server.url, source="worker") as its_own:
        await client.create_queue("q", QueueConfig(lease_ms=600_000, crash_limit=3))
        await crashed_jobs(server, 4)
        async with Worker(its_own, "q", runs, WorkerConfig(concurrency=2)):
            await client.enqueue_many("q", [b"last"] * 5)
            await until(lambda: len(runs.ended) == 9, "the ends of all", 30)
    assert beside_acks == []


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@on_loop
async def test_of_two_workers_of_a_process_one_has_a_suspect(server: Server) -> None:
    """The other one goes on with other jobs."""
    one, other = Runs(), Runs()
    config = WorkerConfig(concurrency=5)
    async with (
        AsyncClient(server.url) as client,
        AsyncClient(server.url, source="one") as first,
        AsyncClient(server.url, source="other") as second,
    ):
        await client.create_queue("q", QueueConfig(lease_ms=600_000, crash_limit=3))
        await crashed_jobs(server, 4)
        async with Worker(first, "q", one, config), Worker(second, "q", other, config):
            await until(lambda: one.running + other.running == [b"suspect"], "the first one")
            busy, free = (one, other) if one.running else (other, one)
            await client.enqueue_many("q", [b"last"] * 5)
            free.go.set()
            await until(lambda: free.ended == [b"last"] * 5, "the other jobs", 30)
            assert busy.running == [b"suspect"]
            busy.go.set()
            await until(lambda: len(one.ended + other.ended) == 9, "the ends of all", 30)
    assert one.beside == other.beside == []
