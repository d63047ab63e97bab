"""What a worker does with claims whose answers were lost, while it has no room for their jobs.

Promises: shown on servers of each kind. Risks: stops and idle workers are in test_worker_stops.py and
test_blocking_claims.py.
"""

from __future__ import annotations

import asyncio

import pytest

from pinlater import AsyncClient, Job, QueueConfig
from pinlater.store.scripts import load_scripts
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import on_loop, until
from tests.support.resp import Command
from tests.support.servers import Server

TIMEOUT_S = 0.5
LEASE_MS = 600_000  # no lease ends in a test


def claims_from(queue: str, command: Command) -> bool:
    is_claim = command[:1] == [b"EVALSHA"] and command[1] == load_scripts()["claim"].sha
    return is_claim and command[3].startswith(f"pl:{{{queue}/".encode())


@pytest.mark.parametrize("shards", ["1", "12"])
@on_loop
async def test_a_full_worker_releases_the_jobs_of_a_claim_whose_answer_was_lost(server: Server, shards: str) -> None:
    gate, ran = asyncio.Event(), []

    async def handler(job: Job) -> None:
        ran.append(job.queue)
        await gate.wait()

    def pending(own: AsyncClient) -> bool:
        return any(queue_shard.lost_claims.pending for queue_shard in own.session.queue_shards("a"))

    server.call("SCRIPT", "LOAD", load_scripts()["claim"].source)
    with CutProxy(server.port) as proxy:
        async with (
            AsyncClient(shards=dict.fromkeys(shards, server.url)) as client,
            AsyncClient(shards=dict.fromkeys(shards, proxy.url), timeout_s=TIMEOUT_S, read_timeout_s=TIMEOUT_S) as own,
        ):
            for queue in "ab":
                await client.create_queue(queue, QueueConfig(lease_ms=LEASE_MS, crash_limit=3))
            await client.enqueue("a", b"")
            proxy.arm(Cut.MUTE, match=lambda command: claims_from("a", command), count=1000)
            config = WorkerConfig(concurrency=1, prefetch=0, monitor=False)
            async with Worker(own, ["a", "b"], handler, config) as worker:
                await until(lambda: pending(own), "a lost claim")
                await client.enqueue("b", b"")
                await until(lambda: ran == ["b"], "a full worker")
                assert (await client.count("a")).in_progress == 1
                proxy.disarm()
                await until(lambda: not pending(own), "the answer")
                await until(lambda: any(server.call("ZCARD", f"pl:{{a/{s}}}:ready:1") for s in shards), "a release")
                assert worker.stats.claimed == 1
                assert [info.crashes async for info in client.scan("a")] == [0]
                gate.set()
                await until(lambda: worker.stats.succeeded == 2, "the end of both")
