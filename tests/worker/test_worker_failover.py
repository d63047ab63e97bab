"""Workers during a failover while the old primary lives on, or stands still, and their old connections stay open.

Promises: claims, acks, leases and cancellations go on at the new primary, and no connection stays at the old one.
"""

from __future__ import annotations

import asyncio

import pytest

from pinlater import AsyncClient, Job, QueueConfig
from pinlater.worker import queue_poll
from pinlater.worker.blocking_claim import MAX_QUEUE_SHARDS
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.failover import MakePair, make_pair
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import KINDS, Kind, Server

__all__ = ["make_pair"]  # a fixture

LEASE_MS = 3000  # renewed each second
DEADLINE_S = 60.0


@pytest.mark.parametrize("queues", [1, MAX_QUEUE_SHARDS + 1], ids=["blocking claims", "messages"])
@pytest.mark.parametrize("server_kind", KINDS)
@pytest.mark.parametrize("hangs", [False, True], ids=["steps back", "stands still"])
@on_loop
async def test_a_worker_goes_on_at_the_new_primary(
    make_pair: MakePair, server_kind: Kind, queues: int, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hangs:  # only a claim that the worker makes by itself meets the silence
        monkeypatch.setattr(queue_poll, "SAFETY_S", (1.0, 1.0))
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
    async with AsyncClient(pair.url) as client, AsyncClient(pair.url, read_timeout_s=1.0) as own:
        for name in names:
            await client.create_queue(name, QueueConfig(lease_ms=LEASE_MS))
        async with Worker(own, names, handler, WorkerConfig(monitor=False)) as worker:
            deleted, _ = [await client.enqueue("q0", body) for body in (b"deleted", b"long")]
            await until(lambda: len(started) == 2, "two running jobs", DEADLINE_S)
            await until(lambda: listens(pair.primary, queues), "a worker that waits", DEADLINE_S)
            await asyncio.to_thread(pair.leave_hanging if hangs else pair.fail_over)
            await until(lambda: listens(pair.primary, queues), "a worker that waits at the new primary", DEADLINE_S)
            await client.enqueue("q0", b"short")
            await until(lambda: worker.stats.succeeded == 1, "a job that came later", DEADLINE_S)
            await client.delete_jobs(descriptors=[deleted])
            await until(lambda: cancelled == [b"deleted"], "a cancellation", DEADLINE_S)
            if hangs:
                await asyncio.to_thread(pair.go_on)
            await asyncio.to_thread(pair.wait_left)  # so the renewer has left too
            end.set()
            await until(lambda: worker.stats.succeeded == 2, "the job that ran meanwhile", DEADLINE_S)
            assert (worker.stats.stale, worker.stats.failed) == (0, 0)
        counts = await client.count("q0")
        assert (counts.pending, counts.in_progress) == (0, 0)
    assert sorted(started) == [b"deleted", b"long", b"short"]


def listens(server: Server, queues: int) -> bool:
    """Whether the worker hears notifications and cancellations, and its blocking claim waits if it has one."""
    flags = "".join(client["flags"] for client in server.call("CLIENT LIST") if client["name"] == "pinlater")
    return "P" in flags and ("b" in flags or queues > MAX_QUEUE_SHARDS)
