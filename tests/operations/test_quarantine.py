"""Jobs that reached the crash limit of their queue are moved to another queue, once, even if a monitor dies on the way.

The monitor dies before and after each of its calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pinlater import AsyncClient, Client, InvalidArgument, Job, NewJob, PinLaterError, QueueConfig, State
from pinlater.cli.command_base import DONE
from pinlater.operations import quarantine
from pinlater.store.requests import write
from pinlater.worker.monitor import Monitor
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.cli_runs import Run, run
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server

__all__ = ["run"]  # a fixture

BODY = b"\xfe\0 any bytes"


class Died(PinLaterError):
    """Simulates the death of a monitor's process."""


async def crash(client: AsyncClient, server: Server, descriptors: int = 1) -> None:
    """Their worker dies, and its lease runs out."""
    async with AsyncClient(server.url) as dying:
        for _ in range(descriptors):
            assert len(await dying.dequeue("q", wait=10)) == 1
    await asyncio.sleep(0.1)


async def look(client: AsyncClient) -> None:
    """Two looks of a new monitor: the first one expires nothing."""
    monitor = Monitor(client, ["q"], tick_s=0.001)
    for _ in range(3):
        await monitor.run_once()
        await asyncio.sleep(0.01)


async def make_queues(client: AsyncClient, **other: Any) -> None:
    await client.create_queue("q", QueueConfig(lease_ms=100, priorities=5, crash_limit=1, quarantine_queue="big"))
    await client.create_queue("big", QueueConfig(**other))


@on_loop
async def test_a_quarantined_job_runs_in_the_other_queue(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        await make_queues(client)
        job = await client.enqueue("q", BODY, priority=5, attempts=7, status="first\n")
        await crash(client, server)
        await look(client)
        assert await client.lookup([job]) == {}
        assert (await client.count("q")).failed == 0
        ran = []

        async def handler(job: Job) -> None:
            ran.append(job)

        infos = [info async for info in client.scan("big", State.PENDING)]
        async with AsyncClient(server.url) as own:
            await Worker(own, "big", handler, WorkerConfig(monitor=False)).run_once()
        (one,) = ran
        assert (one.body, one.attempts_allowed, one.attempts_remaining, one.priority) == (BODY, 7, 7, 3)
        (info,) = infos
        assert (info.crashes, info.descriptor) == (0, one.descriptor)
        assert info.status.startswith("first\nlease ran out (crash 1 of 1)\n  claim ")
        assert info.status.endswith(f"\nmoved from {job}\n")


@on_loop
async def test_two_queues_that_are_each_others_quarantine_do_not_move_a_job_back(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        await make_queues(client, lease_ms=100, crash_limit=1, quarantine_queue="q")
        job = await client.enqueue("q", BODY)
        await crash(client, server)
        await look(client)
        async with AsyncClient(server.url) as dying:
            assert len(await dying.dequeue("big", wait=10)) == 1
        await asyncio.sleep(0.2)
        monitor = Monitor(client, ["q", "big"], tick_s=0.001)
        for _ in range(5):
            await monitor.run_once()
            await asyncio.sleep(0.01)
        (info,) = [info async for info in client.scan("big", State.FAILED)]
        assert f"moved from {job}\n" in info.status
        assert (await client.count("q")).__class__() == await client.count("q")


@contextlib.contextmanager
def dies(patch: pytest.MonkeyPatch, call: int, after: bool) -> Iterator[list[str]]:
    """A monitor that dies before one of its calls is carried out, or after it without the answer."""
    made: list[str] = []

    def cut(queue_shard: Any, verb: str, *arguments: Any) -> Any:
        made.append(verb)
        if len(made) <= call:
            return (yield from write(queue_shard, verb, *arguments))
        if after:
            yield from write(queue_shard, verb, *arguments)
        raise Died(f"{verb} {after}")

    with patch.context() as within:
        within.setattr(quarantine, "write", cut)
        yield made


@pytest.mark.parametrize("after", [False, True])
@on_loop
async def test_a_monitor_that_dies_on_the_way_neither_loses_nor_doubles_a_job(
    server: Server, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    steps = ["prepare", "leave_quarantine", "load", "leave_quarantine"]
    async with AsyncClient(server.url) as client:
        await make_queues(client)
        for call in range(len(steps)):
            await client.enqueue("q", BODY)
            await crash(client, server)
            with dies(monkeypatch, call, after) as made:
                await look(client)
            assert made[: call + 1] == steps[: call + 1]
            await look(client)
            assert [(await client.count(queue)).pending for queue in ("q", "big")] == [0, call + 1]
            assert (await client.count("q")).failed == 0


@on_loop
async def test_a_job_whose_reservation_is_unknown_stays_where_it_is(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor died after it had loaded the job, and the job ended before the next look."""
    async with AsyncClient(server.url) as client:
        await make_queues(client)
        job = await client.enqueue("q", BODY)
        await crash(client, server)
        with dies(monkeypatch, 3, False):
            await look(client)
        assert await client.ack(succeeded=await client.dequeue("big")) == []
        await look(client)
        info = (await client.lookup([job]))[job]
        assert (info.state, (await client.count("big")).pending) == (State.FAILED, 0)
        await look(client)
        assert (await client.count("q")).failed == 1


@on_loop
async def test_a_job_whose_other_queue_is_gone_holds_up_no_other(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one with a reservation of the queue that is gone is moved as well: its reservation goes with that queue."""
    async with AsyncClient(server.url) as client:
        await make_queues(client)
        await client.enqueue("q", BODY)
        await crash(client, server)
        with dies(monkeypatch, 2, False) as made:
            await look(client)
        assert made[:3] == ["prepare", "leave_quarantine", "load"]
        await client.delete_queue("big")
        await client.create_queue("other")
        await client.configure_queue("q", quarantine_queue="other")
        await client.enqueue_many("q", [NewJob(BODY)] * 200)
        assert len(await client.dequeue("q", 200)) == 200
        await asyncio.sleep(0.1)
        await look(client)
        assert [(await client.count("q")).failed, (await client.count("other")).pending] == [0, 201]
        assert server.call("EXISTS", "pl:{q/1}:quarantined") == 0
        assert caplog.text.count("queue 'big': not found") == 1


@on_loop
async def test_a_job_that_can_not_be_moved_stays_failed(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncClient(server.url) as client:
        await client.create_queue("q", QueueConfig(lease_ms=100, crash_limit=1, quarantine_queue="big"))
        jobs = [await client.enqueue("q", BODY), await client.enqueue("q", BODY * 100)]
        await crash(client, server, 2)
        await look(client)
        assert (await client.count("q")).failed == 2
        assert "queue 'big': not found" in caplog.text
        await client.create_queue("big", QueueConfig(body_limit=100))
        await look(client)
        assert list(await client.lookup(jobs)) == [jobs[1]]
        assert (await client.count("big")).pending == 1
        assert "stays failed: it can not be moved to queue big" in caplog.text
        assert await client.retry_jobs(jobs) == 1


def test_the_settings(server: Server, run: Run) -> None:
    with Client(server.url) as client:
        client.create_queue("q")
        assert (client.queue_config("q").crash_limit, client.queue_config("q").quarantine_queue) == (0, "")
        ran = run("--url", server.url, "queue", "set", "q", "--crash-limit", "2", "--quarantine-queue", "big")
        assert ran.code == DONE
        assert (client.queue_config("q").crash_limit, client.queue_config("q").quarantine_queue) == (2, "big")
        assert "2, then to queue big" in run("--url", server.url, "queue", "info", "q").out
        for wrong, message in (
            ({"quarantine_queue": "q"}, "expected another queue than 'q' itself"),
            ({"quarantine_queue": "a b"}, "queue name: expected"),
            ({"crash_limit": 0}, "expected 1 or more with a quarantine_queue"),
            ({"crash_limit": 65_536}, "expected an integer from 0 to 65,535"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                client.configure_queue("q", **wrong)
        client.configure_queue("q", quarantine_queue="", crash_limit=0)
        assert client.queue_config("q") == QueueConfig()
        with pytest.raises(InvalidArgument, match="expected another queue"):
            client.create_queue("own", QueueConfig(crash_limit=1, quarantine_queue="own"))
