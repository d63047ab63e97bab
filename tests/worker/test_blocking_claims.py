"""Claims of idle workers that wait at the server.

Promises: real servers and workers; what the server saw is read from its own counts. Risks: none of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pinlater import AsyncClient, Job, NewJob
from pinlater.model.clocks import boot_s
from pinlater.store.scripts import load_scripts
from pinlater.worker.blocking_claim import MAX_QUEUE_SHARDS
from pinlater.worker.lease_renewal import Lease
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import nothing, on_loop, until
from tests.support.resp import Command
from tests.support.servers import Server

#: Less than a safety claim takes.
NOTIFIED_S = 8.0


def blocked(server: Server) -> int:
    """Clients that wait in a BLPOP."""
    with server.client() as client:
        return int(client.info("clients")["blocked_clients"])


def calls(server: Server, command: str) -> int:
    with server.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


@asynccontextmanager
async def hung(
    server: Server, handler: Any = nothing, queues: Sequence[str] = ("q",), url: str = "", **config: Any
) -> AsyncIterator[tuple[AsyncClient, Worker]]:
    """An idle worker with a claim at each queue, and a client that goes to the server itself."""
    async with AsyncClient(server.url) as client, AsyncClient(url or server.url) as own:
        for queue in queues:
            await client.create_queue(queue)
        async with Worker(own, queues, handler, WorkerConfig(monitor=False, **config)) as worker:
            await until(lambda: blocked(server) == len(queues), "blocking claims")
            yield client, worker
        assert blocked(server) == 0


@on_loop
async def test_a_job_comes_without_a_message_and_no_list_is_left(server: Server) -> None:
    async with hung(server) as (client, worker):
        before = calls(server, "publish")
        for n in range(1, 6):
            await client.enqueue("q", b"x")
            await until(lambda n=n: worker.stats.succeeded == n, "its end")  # type: ignore[misc]
            await until(lambda: blocked(server) == 1, "the next claim")
        assert calls(server, "publish") == before
        assert server.call("KEYS", "pl:{q/1}:wake:*") == []


@on_loop
async def test_the_next_job_comes_too_when_the_lease_of_the_first_was_in_doubt(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its lease is confirmed it waits for a worker slot, and a worker whose jobs wait claims no single job."""
    gate, started = asyncio.Event(), []

    async def wait(job: Job) -> None:
        started.append(job.body)
        await gate.wait()

    async with hung(server, wait, concurrency=4, prefetch=0) as (client, worker):
        await client.enqueue_many("q", [NewJob(b"long")] * 2)
        await until(lambda: len(started) == 2 and blocked(server) == 1, "two long jobs, and the next claim")
        enqueued_s = boot_s()
        monkeypatch.setattr(Lease, "in_doubt", property(lambda lease: lease.seen_s < enqueued_s))
        await client.enqueue_many("q", [NewJob(b"next")] * 2)
        await until(lambda: started.count(b"next") == 2, "both", NOTIFIED_S)
        assert worker.stats.succeeded == 0
        gate.set()


@on_loop
async def test_what_a_full_worker_gets_goes_to_another(server: Server) -> None:
    gate, seen = asyncio.Event(), []

    async def wait(job: Job) -> None:
        seen.append(job.queue)
        await gate.wait()

    async def note(job: Job) -> None:
        seen.append(f"other {job.queue}")

    async with hung(server, wait, ("a", "b"), concurrency=1, prefetch=0) as (client, worker):
        await client.enqueue("a", b"")
        await until(lambda: seen == ["a"], "a full worker")
        await client.enqueue_many("b", [NewJob(b"", attempts=1)])
        await until(lambda: blocked(server) == 0, "both blocking claims answered")
        async with AsyncClient(server.url) as own, Worker(own, "b", note, WorkerConfig(monitor=False)):
            await until(lambda: seen == ["a", "other b"], "the job, elsewhere")
        assert worker.stats.claimed == 1
        gate.set()


@on_loop
async def test_a_job_whose_claim_lost_its_answer_runs_once(server: Server) -> None:
    seen: list[str] = []

    async def note(job: Job) -> None:
        seen.append(job.descriptor)

    def is_blocking_claim(command: Command) -> bool:
        return command[:1] == [b"EVALSHA"] and command[1] == load_scripts()["claim"].sha

    with CutProxy(server.port) as proxy:
        async with hung(server, note, url=proxy.url) as (client, worker):
            proxy.arm(Cut.AFTER, match=is_blocking_claim)
            descriptor = await client.enqueue("q", b"")
            await until(lambda: worker.stats.succeeded == 1, "its end")
            await until(lambda: blocked(server) == 1, "the next claim")
            assert seen == [descriptor]


@on_loop
async def test_a_blocking_claim_whose_connection_is_killed_is_made_again(server: Server) -> None:
    async with hung(server) as (client, worker):
        with server.client() as other:
            (address,) = (entry["addr"] for entry in other.client_list() if "b" in entry["flags"])
        assert server.call("CLIENT", "KILL", "ADDR", address) in (1, b"OK")
        await client.enqueue("q", b"")
        await until(lambda: worker.stats.succeeded == 1, "its end")
        await until(lambda: blocked(server) == 1, "the next claim")


@on_loop
async def test_a_lease_that_may_be_over_is_confirmed_before_the_job_starts(server: Server) -> None:
    async with hung(server) as (client, worker):
        await client.configure_queue("q", lease_ms=300)
        before = calls(server, "evalsha")
        await asyncio.sleep(0.15)  # over a third of the lease
        await client.enqueue("q", b"")
        await until(lambda: worker.stats.succeeded == 1, "its end")
        assert calls(server, "evalsha") >= before + 4  # enqueue, claim, renew, ack


@on_loop
async def test_a_worker_that_may_not_block_is_notified_by_messages_and_does_not_spin(server: Server) -> None:
    server.call("ACL", "SETUSER", "app", "reset", "on", ">secret", "+@all", "-blpop", "~*", "&*")
    try:
        async with AsyncClient(server.url) as client, AsyncClient(f"redis://app:secret@127.0.0.1:{server.port}") as own:
            await client.create_queue("q")
            async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
                await until(
                    lambda: (
                        worker.stats.claims >= 2
                        and not any(queue_shard.blocking_list for queue_shard in own.session.queue_shards("q"))
                    ),
                    "a refusal",
                )
                for n in range(1, 4):
                    await client.enqueue("q", b"")
                    await until(lambda n=n: worker.stats.succeeded == n, "its end")  # type: ignore[misc]
                assert worker.stats.claims < 20
    finally:
        server.call("ACL", "DELUSER", "app")


@on_loop
async def test_many_queue_shards_have_no_blocking_claims(server: Server) -> None:
    queues = [f"q{n}" for n in range(MAX_QUEUE_SHARDS + 1)]
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        for queue in queues:
            await client.create_queue(queue)
        before = calls(server, "blpop")
        async with Worker(own, queues, nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: worker.stats.claims >= len(queues), "an idle worker")
            await client.enqueue(queues[-1], b"")
            await until(lambda: worker.stats.succeeded == 1, "its end")
            assert calls(server, "blpop") == before


@on_loop
async def test_a_burst_makes_no_blocking_claims(server: Server) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("q")
        await client.enqueue("q", b"")
        worker, before = Worker(own, "q", nothing, WorkerConfig(monitor=False)), calls(server, "blpop")
        await worker.run(burst=True)
        assert (worker.stats.succeeded, calls(server, "blpop")) == (1, before)
        async with worker:  # the same worker, to stay
            await until(lambda: blocked(server) == 1, "a blocking claim")


@on_loop
async def test_a_stop_does_not_wait_for_a_server_that_is_gone(fresh_server: Callable[[], Server]) -> None:
    server = fresh_server()
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("q")
        worker = Worker(own, "q", nothing, WorkerConfig(monitor=False, stop_timeout_s=3600))
        await worker.start()
        await until(lambda: blocked(server) == 1, "a blocking claim")
        server.kill()
        await asyncio.wait_for(worker.stop(), 30)


@on_loop
async def test_a_worker_waits_again_after_its_server_lost_everything(fresh_server: Callable[[], Server]) -> None:
    server = fresh_server()
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("q")
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await until(lambda: blocked(server) == 1, "a blocking claim")
            server.kill()
            server.start()
            assert server.call("EXISTS", "pl:{q/1}:meta") == 0
            async with AsyncClient(server.url) as again:
                await again.create_queue("q")
                await until(lambda: blocked(server) == 1, "the next claim")
                await until(lambda: server.call("ZCARD", "pl:{q/1}:waiters") == 1, "a registration", NOTIFIED_S)
                await again.enqueue("q", b"")
            await until(lambda: worker.stats.succeeded == 1, "its end", NOTIFIED_S)


@on_loop
async def test_an_error_that_passes_ends_no_blocking_claim(server: Server) -> None:
    async with hung(server) as (client, worker):
        before = calls(server, "blpop")
        with server.client() as direct:
            waiting = [one["id"] for one in direct.client_list() if one["cmd"] == "blpop"]
            assert direct.client_unblock(int(waiting[0]), error=True)
        await until(lambda: calls(server, "blpop") > before and blocked(server) == 1, "the next claim")
        await client.enqueue("q", b"")
        await until(lambda: worker.stats.succeeded == 1, "its end")
