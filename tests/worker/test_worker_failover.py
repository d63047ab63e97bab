"""Workers during a failover while the old primary lives on and their old connections stay open.

Promises: claims, acks, leases and cancellations go on at the new primary, and no connection stays at the old one.
"""

from __future__ import annotations

import asyncio

import pytest

from pinlater import AsyncClient, Job, QueueConfig
from pinlater.worker.blocking_claim import MAX_QUEUE_SHARDS
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.failover import MakePair, make_pair
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import KINDS, Kind

__all__ = ["make_pair"]  # a fixture

LEASE_MS = 3000  # renewed each second
DEADLINE_S = 60.0


@pytest.mark.parametrize("queues", [1, MAX_QUEUE_SHARDS + 1], ids=["blocking claims", "messages"])
@pytest.mark.parametrize("server_kind", KINDS)
@on_loop
async def test_a_worker_goes_on_at_the_new_primary(make_pair: MakePair, server_kind: Kind, queues: int) -> None:
    pair = make_pair(server_kind)
    started: list[bytes] = []
    cancelled: list[bytes] = []
    end = asyncio.Event()

    async def handler(job: Job) -> None:
        started.append(job.body)
        if job.body != b"short":
            try:
                await end.wait()
            except asyncio.CancelledError:
                cancelled.append(job.body)
                raise

    names = [f"q{number}" for number in range(queues)]
    async with AsyncClient(pair.url) as client, AsyncClient(pair.url) as own:
        for name in names:
            await client.create_queue(name, QueueConfig(lease_ms=LEASE_MS))
        async with Worker(own, names, handler, WorkerConfig(tick_s=DEADLINE_S)) as worker:
            deleted, _ = [await client.enqueue("q0", body) for body in (b"deleted", b"long")]
            await until(lambda: len(started) == 2, "two running jobs", DEADLINE_S)
            await asyncio.to_thread(pair.fail_over)
            await client.enqueue("q0", b"short")
            await until(lambda: worker.stats.succeeded == 1, "a job that came later", DEADLINE_S)
            await client.delete_jobs(descriptors=[deleted])
            await until(lambda: cancelled == [b"deleted"], "a cancellation", DEADLINE_S)
            await asyncio.to_thread(pair.wait_left)  # so the renewer has left too
            end.set()
            await until(lambda: worker.stats.succeeded == 2, "the job that ran meanwhile", DEADLINE_S)
            assert (worker.stats.stale, worker.stats.failed) == (0, 0)
        counts = await client.count("q0")
        assert (counts.pending, counts.in_progress) == (0, 0)
    assert sorted(started) == [b"deleted", b"long", b"short"]
