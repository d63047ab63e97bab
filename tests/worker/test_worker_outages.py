"""Workers while their server dies, comes back, or drops their connections.

Promises: they go on by themselves, nothing acknowledged is lost, and they do not spin meanwhile. Risks: the
servers write their AOF at every command, so what a lost tail of it does is not seen here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from pinlater import AsyncClient, Job, QueueConfig, ServerUnavailable
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.store.async_driver import AsyncDriver
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import shard_for_key
from pinlater.worker.worker import Worker, WorkerConfig
from tests.conftest import FreshServer
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import ShortJobs, on_loop, until
from tests.support.resp import Command
from tests.support.servers import KINDS, Kind, Server

DEADLINE_S = 60.0
NOTIFIED_S = 5.0  # far less than a safety claim


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_server_killed_and_restarted_under_load(fresh_server: FreshServer, kind: Kind) -> None:
    server = fresh_server(kind, aof_always=True)
    ran: Counter[str] = Counter()
    put: list[str] = []
    enough = asyncio.Event()

    async def handler(job: Job) -> None:
        ran[job.descriptor] += 1
        await asyncio.sleep(0.001)

    async def produce(client: AsyncClient) -> None:
        while not enough.is_set():
            put.extend(await client.enqueue_many("q", [b""] * 20))
            await asyncio.sleep(0.01)

    async with AsyncClient(server.url, timeout_s=60) as client, AsyncClient(server.url) as own:
        await client.create_queue("q", QueueConfig(keep_succeeded=100_000))
        worker = Worker(own, "q", handler, WorkerConfig(tick_s=0.5))
        await worker.start()
        producing = asyncio.create_task(produce(client))
        for _ in range(3):
            before = worker.stats.succeeded
            await until(lambda: worker.stats.succeeded >= before + 100, "work", DEADLINE_S)  # noqa: B023
            await asyncio.to_thread(server.restart, kill=True)
        before = worker.stats.succeeded
        await until(lambda: worker.stats.succeeded >= before + 100, "work after it", DEADLINE_S)
        enough.set()
        await producing
        await until(lambda: set(put) <= set(ran), "every acknowledged job to run", DEADLINE_S)
        await worker.stop()
        counts = await client.count("q")
        assert (counts.pending, counts.in_progress, counts.succeeded) == (0, 0, len(put))
        # a lost connection is not a lost claim: the lane gives its answer, and leases outlive the outage
        assert max(ran.values()) == 1
        assert worker.stats.stale == 0


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_a_worker_does_not_spin_while_its_server_is_down(
    fresh_server: FreshServer, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_server(kind, aof_always=True)
    connects = 0
    connect = AsyncDriver.connect

    async def counted(self: AsyncDriver, *arguments: Any) -> object:
        nonlocal connects
        connects += 1
        return await connect(self, *arguments)

    monkeypatch.setattr(AsyncDriver, "connect", counted)
    ran = []

    async def handler(job: Job) -> None:
        ran.append(job.descriptor)

    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("q")
        async with Worker(own, "q", handler, WorkerConfig(tick_s=0.5)) as worker:
            await client.enqueue("q", b"")
            await until(lambda: len(ran) == 1, "a job")
            server.kill()
            await asyncio.sleep(0.1)  # what was answered before is taken
            connects, claims = 0, worker.stats.claims
            with pytest.raises(TimeoutError):
                await until(lambda: False, "three seconds to pass", 3.0)
            # subscription: 0.1, 0.2, 0.4 … s; monitor: each tick; resends of what was under way: up to 2 a
            # second
            assert connects <= 40
            assert worker.stats.claims == claims
            server.start()
            await client.enqueue("q", b"")
            await until(lambda: len(ran) == 2, "the next job", NOTIFIED_S)


@pytest.mark.parametrize("kind", KINDS[:1])
@on_loop
async def test_the_log_says_once_that_a_server_answers_again(
    fresh_server: FreshServer, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_server(kind, aof_always=True)

    async def handler(job: Job) -> None: ...

    def logged(text: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if text in record.getMessage()]

    caplog.set_level(logging.INFO, "pinlater.worker")
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        for queue in ("q", "r"):
            await client.create_queue(queue)
        async with Worker(own, ["q", "r"], handler, WorkerConfig(monitor=False)) as worker:
            for outage in (1, 2):
                await until(lambda: worker.ready, "work")
                assert len(logged("answers again")) == outage - 1
                await asyncio.to_thread(server.kill)
                await until(lambda: len(logged("does not answer, trying again")) == outage, "a warning")  # noqa: B023
                await asyncio.to_thread(server.start)
                await until(lambda: len(logged("answers again")) == outage, "the end of the outage")  # noqa: B023


@pytest.mark.parametrize("what", [("TYPE", "normal"), ("TYPE", "pubsub")], ids=["connections", "subscriptions"])
@on_loop
async def test_connections_killed_by_the_server(server: Server, what: tuple[str, str]) -> None:
    ran = []

    async def handler(job: Job) -> None:
        ran.append(job.descriptor)

    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("q")
        async with Worker(own, "q", handler, WorkerConfig(monitor=False)) as worker:
            for count in range(1, 6):
                await client.enqueue("q", b"")
                await until(lambda: len(ran) == count, "the job", NOTIFIED_S)  # noqa: B023
                server.call("CLIENT", "KILL", *what)
                await client.enqueue("q", b"")
                await until(lambda: len(ran) == count + 1, "the job after it", NOTIFIED_S)  # noqa: B023
                ran.pop()
        assert worker.stats.stale == 0


@on_loop
async def test_one_of_two_servers_down(fresh_server: FreshServer) -> None:
    first, second = fresh_server(aof_always=True), fresh_server(aof_always=True)
    shards = {"1": first.url, "2": second.url}
    gate, ran = asyncio.Event(), []

    async def handler(job: Job) -> None:
        ran.append(job.body)
        if job.body == b"gate":
            await gate.wait()

    async with AsyncClient(shards=shards) as client, AsyncClient(shards=shards) as own:
        await client.create_queue("q", QueueConfig(keep_succeeded=1000))
        async with Worker(own, "q", handler, WorkerConfig(tick_s=0.5)) as worker:
            for key in range(8):
                await client.enqueue("q", b"gate", key=str(key))
            await until(lambda: len(ran) == 8, "running jobs of both shards")
            second.kill()
            gate.set()
            await client.enqueue_many("q", [b"%d" % number for number in range(50)])
            # acks and claims of the shard that is away hold nothing up
            await until(lambda: len(ran) == 58, "the jobs of the other shard")
            second.start()
            await until(lambda: worker.stats.succeeded == 58, "the acks of the one that was away")
            for key in range(8):
                await client.enqueue("q", b"", key=str(key))
            await until(lambda: worker.stats.succeeded == 66, "jobs of both again")
        assert worker.stats.stale == 0


@on_loop
async def test_a_lease_in_doubt_holds_up_no_job_of_another_server(fresh_server: FreshServer) -> None:
    servers = {"1": fresh_server(), "2": fresh_server(aof_always=True)}
    shards = {name: server.url for name, server in servers.items()}
    key_of = {shard_for_key(b"%d" % number, list(shards)): str(number) for number in range(20)}
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        await gate.wait()

    async with AsyncClient(shards=shards) as client, AsyncClient(shards=shards) as own:
        await client.create_queue("q", QueueConfig(lease_ms=60_000))
        worker = Worker(own, "q", handler, WorkerConfig(concurrency=1, monitor=False))
        worker.jobs.rate = ShortJobs()
        async with worker:
            await client.enqueue("q", b"", key=key_of["1"])
            await until(lambda: len(worker.running) == 1, "a running job")
            for count, shard in enumerate("2211", 1):
                await client.enqueue("q", b"", key=key_of[shard])
                await until(lambda: len(worker.prefetched) == count, "a prefetched job")  # noqa: B023
            assert [held.job.shard for held in worker.prefetched] == [*"2211"]
            servers["2"].kill()
            for held in worker.prefetched:
                held.lease.seen_s -= 30.0  # as if this process had stood still meanwhile
            gate.set()
            await until(lambda: worker.stats.succeeded == 3, "the jobs of the other server", NOTIFIED_S)
            servers["2"].start()
            await until(lambda: worker.stats.succeeded == 5, "the rest")
        assert worker.stats.stale == 0


@on_loop
async def test_stop_while_the_server_is_away_ends_within_its_deadline(fresh_server: FreshServer) -> None:
    server = fresh_server(aof_always=True)
    started = []

    async def handler(job: Job) -> None:
        started.append(job)
        await asyncio.Event().wait()

    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("q")
        await client.enqueue_many("q", [b""] * 3)
        worker = Worker(own, "q", handler, WorkerConfig(stop_timeout_s=0.1, tick_s=0.5))
        await worker.start()
        await until(lambda: len(started) == 3, "running jobs")
        server.kill()
        await asyncio.wait_for(worker.stop(), DEADLINE_S)
        assert worker.stats.released == 0


@on_loop
async def test_a_burst_that_holds_nothing_ends_when_its_server_is_gone(fresh_server: FreshServer) -> None:
    server = fresh_server()
    ran = []

    async def handler(job: Job) -> None:
        ran.append(job)

    async with AsyncClient(server.url) as client, AsyncClient(server.url, timeout_s=3.0) as own:
        await client.create_queue("q")
        await client.enqueue("q", b"")
        worker = Worker(own, "q", handler, WorkerConfig(tick_s=0.5))
        look_again = worker.fetcher.look_again

        def after_its_death() -> None:
            server.kill()
            look_again()

        worker.fetcher.look_again = after_its_death  # type: ignore[method-assign]
        with pytest.raises(ServerUnavailable, match=r"no claim or ack was answered in 3 s: "):
            await asyncio.wait_for(worker.run(burst=True), DEADLINE_S)
        assert (len(ran), worker.stats.succeeded) == (1, 1)


@on_loop
async def test_no_job_is_acked_twice_when_one_of_the_calls_of_a_large_flush_is_refused(server: Server) -> None:
    gate, jobs = asyncio.Event(), MAX_BATCH + 500

    async def handler(_: Job) -> None:
        await gate.wait()

    def request_of(command: Command) -> tuple[bytes, ...]:
        """Lane and sequence: a resend has the same."""
        first = 3 + int(command[2])
        return tuple(command[first : first + 2])

    def refuse(command: Command) -> bool:
        if command[1:2] == [load_scripts()["ack"].sha]:
            acks.append(command)
            if len(acks) == 2:
                server.call("CONFIG", "SET", "min-replicas-to-write", 1)  # NOREPLICAS: certainly not carried out
        return False

    acks: list[Command] = []
    with CutProxy(server.port) as proxy:
        async with AsyncClient(server.url) as client, AsyncClient(proxy.url, timeout_s=0.1) as own:
            await client.create_queue("q", QueueConfig(keep_succeeded=jobs))
            await client.enqueue("q", b"")
            await client.ack(succeeded=await client.dequeue("q"))  # the server knows the script
            await client.enqueue_many("q", [b""] * jobs)
            config = WorkerConfig(concurrency=jobs, prefetch=0, monitor=False)
            try:
                async with Worker(own, "q", handler, config) as worker:
                    await until(lambda: len(worker.running) == jobs, "running jobs", DEADLINE_S)
                    proxy.arm(Cut.BEFORE, match=refuse)
                    gate.set()
                    await until(lambda: len({request_of(ack) for ack in acks}) > 3, "an ack given up", DEADLINE_S)
                    server.call("CONFIG", "SET", "min-replicas-to-write", 0)
                    await until(lambda: worker.unacked == 0, "the acks", DEADLINE_S)
                    assert (worker.stats.succeeded, worker.stats.stale) == (jobs, 0)
            finally:
                server.call("CONFIG", "SET", "min-replicas-to-write", 0)
