"""A worker whose shards are dequeue-only, or change while it runs.

Promises: it runs all jobs, wherever they are, each of them once.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from pinlater import AsyncClient, Job, QueueConfig
from pinlater.model.errors import ShardUnhealthy
from pinlater.worker.monitor import Monitor
from pinlater.worker.worker import Worker
from tests.conftest import FreshServer
from tests.operations.test_behaviour_shards import key_of, shard_of
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server


@on_loop
async def test_a_worker_empties_a_dequeue_only_shard(server: Server) -> None:
    shards = {"1": server.url, "2": server.url}
    done: Counter[str] = Counter()

    async def handler(job: Job) -> None:
        done[job.descriptor] += 1

    async with AsyncClient(shards=shards) as before:
        await before.create_queue("q", QueueConfig())
        first = [await before.enqueue("q", b"", key=key_of("2", ["1", "2"])) for _ in range(20)]
    now: dict[str, Any] = {"1": server.url, "2": {"url": server.url, "dequeue_only": True}}
    async with AsyncClient(shards=now) as client, AsyncClient(shards=now) as own, Worker(own, "q", handler) as worker:
        second = [await client.enqueue("q", b"") for _ in range(20)]
        await until(lambda: worker.stats.succeeded == 40, "40 jobs")
    assert set(map(shard_of, first)) == {"2"}
    assert set(map(shard_of, second)) == {"1"}
    assert done == Counter([*first, *second])


@on_loop
async def test_a_worker_follows_the_shards_of_its_client(server: Server, fresh_server: FreshServer) -> None:
    added = fresh_server()
    one, two = {"1": server.url}, {"1": server.url, "2": added.url}
    done: Counter[str] = Counter()

    async def handler(job: Job) -> None:
        done[job.descriptor] += 1

    async with AsyncClient(shards=two) as client, AsyncClient(shards=one) as own:
        await own.create_queue("q", QueueConfig())
        async with Worker(own, "q", handler) as worker:
            put = [await own.enqueue("q", b"")]
            await until(lambda: worker.stats.succeeded == 1, "a job of the first shard")
            await own.change_shards(two)
            for shard in ("2", "1", "2"):
                put.append(await client.enqueue("q", b"", key=key_of(shard, ["1", "2"])))
                await until(lambda: worker.stats.succeeded == len(put), "a job of each shard")
            await own.change_shards(one)
            put.append(await own.enqueue("q", b""))
            await until(lambda: worker.stats.succeeded == len(put), "a job of the shard that stays")
    assert done == Counter(put)


@on_loop
async def test_a_monitor_follows_the_shards_of_its_client_and_passes_over_unhealthy_ones(server: Server) -> None:
    def watched() -> list[str]:
        return [queue_shard.shard.name for queue_shard in monitor.watches]

    async with AsyncClient(shards={"1": server.url, "2": server.unix_url}) as client:
        await client.create_queue("q", QueueConfig())
        monitor = Monitor(client)
        client.session.shards["2"].server.outage = partial(ShardUnhealthy, "as if")
        await monitor.run_once()
        assert "1" in watched()
        client.session.shards["2"].server.outage = None
        await monitor.run_once()
        assert watched() == ["1", "2"]
        await client.change_shards({"1": server.url})
        await monitor.run_once()
        assert watched() == ["1"]
