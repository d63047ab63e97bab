"""Ends of jobs that no server takes: each is found, and its job fails with the reason, while the others are acked.

Promises: shown with bad values, with limits of the queue, and with limits of the server. Risks: none known.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from pinlater import Ack, AsyncClient, InvalidArgument, Job, NewJob, QueueConfig, State
from pinlater.operations import parts
from pinlater.store.scripts import load_scripts
from pinlater.worker.executor import End, Failed, Postponed, Succeeded
from pinlater.worker.persistent_call import VAIN_TRIES
from pinlater.worker.queue_shard_source import QueueShardSource
from pinlater.worker.worker import Worker, WorkerConfig
from tests.conftest import FreshServer
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import clients, on_loop, until
from tests.support.servers import Server

HOUR_MS = 3_600_000
MIB = 1024 * 1024
BAD = b"50"  # the body of the job whose end is bad, among a hundred


@dataclass(frozen=True, slots=True)
class Unchecked(Succeeded):
    """A result whose values are not checked where it is made."""

    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Unclipped(Failed):
    """A failure whose status is not clipped."""

    def __post_init__(self) -> None:
        pass


async def end_a_hundred(client: AsyncClient, own: AsyncClient, bad: End, good: End = None) -> tuple[Worker, str]:
    """Runs a hundred jobs of one shard, which end together. Returns the worker, and the job whose end is bad."""
    jobs = await client.enqueue_many("q", [NewJob(b"%d" % n, key="one shard", attempts=1) for n in range(100)])
    gate = asyncio.Event()

    async def handler(job: Job) -> End:
        await gate.wait()
        return bad if job.body == BAD else good

    worker = Worker(own, "q", handler, WorkerConfig(concurrency=100, monitor=False))
    async with worker:
        await until(lambda: len(worker.running) == 100, "running jobs")
        gate.set()
        await until(lambda: worker.unacked == 0, "the acks", 60)
    return worker, jobs[int(BAD)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Postponed(0, bytes(2 * MIB)), "expected at most 1,048,576 bytes"),
        (Unchecked(b"", -1), "OverflowError"),
        (Unchecked(b"", "soon"), "AttributeError"),  # type: ignore[arg-type]
        (Unchecked(7, 1), "TypeError"),  # type: ignore[arg-type]
        (Unclipped("\ud800"), "InvalidArgument"),
    ],
    ids=["body", "time", "kind of time", "kind of result", "status"],
)
@on_loop
async def test_a_bad_end_fails_alone_with_the_reason(
    server: Server, caplog: pytest.LogCaptureFixture, bad: End, reason: str
) -> None:
    async with clients(server, keep_succeeded=200) as (client, own):
        with caplog.at_level(logging.ERROR, "pinlater.worker"):
            worker, job = await end_a_hundred(client, own, bad)
        stats = worker.stats
        assert (stats.succeeded, stats.failed, stats.postponed, stats.stale) == (99, 1, 0, 0)
        info = (await client.lookup([job]))[job]
        assert info.state is State.FAILED
        assert reason in info.status
        assert [job in record.getMessage() for record in caplog.records] == [True]


@on_loop
async def test_a_body_limit_that_is_lowered_meanwhile_fails_only_what_is_above_it(server: Server) -> None:
    async with clients(server) as (client, own):
        await own.count("q")  # it knows the old limit
        await client.configure_queue("q", body_limit=100)
        worker, job = await end_a_hundred(client, own, Postponed(HOUR_MS, bytes(101)), Postponed(HOUR_MS, bytes(100)))
        assert (worker.stats.postponed, worker.stats.failed) == (99, 1)
        assert "expected at most 100 bytes" in (await client.lookup([job]))[job].status
        assert (await client.count("q")).scheduled == 99


@pytest.mark.parametrize("limit", ["proto-max-bulk-len", "client-query-buffer-limit"])
@pytest.mark.parametrize("bad", [Postponed(HOUR_MS, bytes(2 * MIB)), Succeeded(bytes(2 * MIB), HOUR_MS)])
@on_loop
async def test_an_end_past_a_limit_of_the_server_fails_alone(fresh_server: FreshServer, limit: str, bad: End) -> None:
    server = fresh_server()
    async with AsyncClient(server.url) as client, AsyncClient(server.url, timeout_s=0.2) as own:
        await client.create_queue("q", QueueConfig(body_limit=8 * MIB))
        server.call("CONFIG", "SET", limit, MIB)
        worker, job = await end_a_hundred(client, own, bad)
        assert (worker.stats.succeeded, worker.stats.failed, worker.stats.stale) == (99, 1, 0)
        assert "ServerReplyError" in (status := (await client.lookup([job]))[job].status) or "OutcomeUnknown" in status


@pytest.mark.parametrize("end", [Postponed(HOUR_MS, bytes(MIB // 10)), Succeeded(bytes(MIB // 10), HOUR_MS)])
@on_loop
async def test_no_batch_is_larger_than_a_server_takes(fresh_server: FreshServer, end: End) -> None:
    server = fresh_server(config={"maxmemory-clients": "4mb"})
    async with AsyncClient(server.url) as client, AsyncClient(server.url, timeout_s=0.2) as own:
        await client.create_queue("q")
        worker, _ = await end_a_hundred(client, own, end, end)
        assert (worker.stats.succeeded + worker.stats.postponed, worker.stats.failed) == (100, 0)


@on_loop
async def test_failures_with_long_statuses_go_in_parts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    most, status = 10_000, "s" * 1_000
    monkeypatch.setattr(parts, "MAX_BYTES", most)
    real, sent = QueueShardSource.ack, list[int]()

    async def ack(self: QueueShardSource, good: list[Job], bad: list[Ack]) -> list[Any]:
        sent.append(sum(len(one.status) for one in bad))
        return await real(self, good, bad)

    monkeypatch.setattr(QueueShardSource, "ack", ack)
    async with clients(server) as (client, own):
        worker, _ = await end_a_hundred(client, own, Failed(status), Failed(status))
    assert worker.stats.failed == 100
    assert max(sent) <= most


@on_loop
async def test_a_job_whose_every_end_is_refused_runs_again_when_its_lease_is_over(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, refusals, gate = QueueShardSource.ack, list[int](), asyncio.Event()

    async def ack(self: QueueShardSource, good: list[Job], bad: list[Ack]) -> list[Any]:
        if len(refusals) < 3 and any(job.body == BAD for job in [*good, *[one.job for one in bad]]):  # type: ignore[union-attr]
            refusals.append(len(good) + len(bad))
            raise InvalidArgument("as if it could not be packed")
        return await real(self, good, bad)

    async def handler(job: Job) -> None:
        if job.body == b"long" and job.attempt == 1:
            await gate.wait()

    monkeypatch.setattr(QueueShardSource, "ack", ack)
    async with clients(server, lease_ms=600, crash_limit=3) as (client, own):
        await client.enqueue_many("q", [NewJob(body, key="one claim", attempts=1) for body in (b"", BAD, b"long")])
        async with Worker(own, "q", handler, WorkerConfig(tick_s=0.2)) as worker:
            await until(lambda: worker.stats.claimed == 4, "its second claim")
            gate.set()  # until then the lease of the claim was renewed; its second run waits, as it counts as crashed
            await until(lambda: worker.stats.succeeded == 3, "the long job, and its second run")
        assert refusals == [2, 1, 1]
        assert (worker.stats.stale, worker.stats.failed, worker.stats.claimed) == (1, 0, 4)
    assert "it runs again when its lease runs out: InvalidArgument: as if" in caplog.text


@pytest.mark.real_server("a proxy stands before its port")
@pytest.mark.parametrize("released", [False, True])
@on_loop
async def test_an_ack_whose_answers_are_lost_is_asked_for_without_end(
    server: Server, caplog: pytest.LogCaptureFixture, released: bool
) -> None:
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        await gate.wait()

    with CutProxy(server.port) as proxy:
        async with AsyncClient(server.url) as client, AsyncClient(proxy.url, timeout_s=0.1) as own:
            await client.create_queue("q", QueueConfig(keep_succeeded=10))
            await client.enqueue("q", b"")
            await client.ack(succeeded=await client.dequeue("q"))  # the server knows the script
            await client.enqueue("q", b"")
            sha = load_scripts()["ack"].sha
            proxy.arm(Cut.AFTER, match=lambda command: command[1:2] == [sha], count=10**9)
            async with Worker(own, "q", handler, WorkerConfig(monitor=False)) as worker:
                await until(lambda: len(worker.running) == 1, "a running job")
                if released:
                    await client.configure_queue("q", paused=True)
                    assert await client.release([held.job for held in worker.running.values()]) == []
                gate.set()
                await until(lambda: caplog.text.count("not acked yet") > VAIN_TRIES + 1, "tries in vain", 60)
                proxy.disarm()
                await until(lambda: worker.unacked == 0, "the ack")
            assert (worker.stats.succeeded, worker.stats.failed, worker.stats.stale) == (not released, 0, released)


@on_loop
async def test_failures_that_clients_wait_for_are_announced_on_one_connection(server: Server) -> None:
    def connections() -> int:
        return int(server.info("stats")["total_connections_received"])

    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("q")
        await own.count("q")
        end = Failed("never\n", final=True, awaited=True)
        before = connections()
        worker, _ = await end_a_hundred(client, own, end, end)
        assert worker.stats.failed == 100
        assert connections() - before < 20


def test_values_are_checked_where_they_are_made() -> None:
    wrong: Any = 7
    cases: list[tuple[Any, str]] = [
        (partial(Succeeded, b"", -1), "keep_ms: expected an integer from 0"),
        (partial(Succeeded, b"", 2**44), "keep_ms: expected an integer from 0"),
        (partial(Succeeded, b"", True), "keep_ms: expected an integer from 0"),
        (partial(Succeeded, wrong, 1), "result: expected bytes, got 7"),
        (partial(Postponed, 0, wrong), "body: expected bytes, got 7"),
        (partial(Failed, wrong), "status: expected text, got 7"),
    ]
    for make, message in cases:
        with pytest.raises(InvalidArgument, match=message):
            make()
