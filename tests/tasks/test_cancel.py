"""Jobs that are removed while a worker holds them: what the worker, the task and a waiting producer notice.

The tests run on servers of each kind. Each ends by a notification, not by a lease.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from pinlater import (
    AsyncClient,
    ClaimLost,
    Client,
    Context,
    Handle,
    Job,
    PinLater,
    QueueConfig,
    ResultGone,
    State,
    SyncContext,
)
from pinlater.operations import results as core
from pinlater.running.app_worker import worker_of
from pinlater.store.keys import cancel_channel
from pinlater.store.scripts import load_scripts
from pinlater.tasks.app import parts_of
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.audits import audit_queue
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import ShortJobs, clients, idle, nothing, on_loop, until
from tests.support.resp import Command
from tests.support.servers import Server
from tests.support.wire import Wire, connect
from tests.support.wire_format import ends

CHANNEL = cancel_channel("q", "1")


@pytest.fixture
def app(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[PinLater]:
    monkeypatch.setattr(core, "SAFETY_S", 3600.0)
    with PinLater(server.url) as app:
        yield app


async def is_clean(server: Server, queue: str = "default") -> None:
    """Nothing is left of the queue's jobs, and what is left fits together."""

    def look() -> None:
        with Client(server.url) as client:
            report = audit_queue(client, queue)
            assert report.ok
            assert report.jobs.in_progress == report.jobs.pending == 0

    await asyncio.to_thread(look)


@on_loop
async def test_a_running_async_task_is_cancelled_and_not_run_again(app: PinLater, server: Server) -> None:
    seen, started = list[str](), asyncio.Event()

    @app.task(result_ttl=60, attempts=1, timeout=60, on_failure=lambda failure: seen.append("reported as a failure"))
    async def long(how: str) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(how)
            if how == "raises":
                raise ValueError from None
            if how == "plain":
                raise

    def ended(count: int) -> bool:
        return worker.stats.cancelled == count

    async with worker_of(app) as worker:
        await worker.start()
        for count, how in enumerate(("plain", "raises", "returns"), 1):
            started.clear()
            handle = await long.aenqueue(how)
            waiting = asyncio.ensure_future(handle.aresult(30))
            await asyncio.wait_for(started.wait(), 30)
            assert await handle.acancel()
            await until(partial(ended, count), "its end")
            with pytest.raises(ResultGone):
                await waiting
            assert await handle.astatus() is None
            assert not await handle.acancel()
        await worker.stop()
    assert seen == ["plain", "raises", "returns"]
    assert (worker.stats.claimed, worker.stats.stale, worker.stats.failed, worker.stats.succeeded) == (3, 0, 0, 0)
    await is_clean(server)
    await app.aclose()


@on_loop
async def test_a_plain_function_sees_it_and_its_checkpoint_raises(app: PinLater, server: Server) -> None:
    seen, started, go = list[str](), threading.Event(), threading.Event()

    @app.task(attempts=1, on_failure=lambda failure: seen.append("reported as a failure"))
    def with_context(context: SyncContext) -> None:
        started.set()
        while not context.cancelled:
            go.wait(0.01)
        try:
            context.checkpoint("half")
        except ClaimLost:
            seen.append("lost")
        seen.append(context.task)
        raise RuntimeError("stopped, as asked")

    @app.task(attempts=5)
    def without() -> None:
        started.set()
        go.wait(30)
        seen.append("to its end")

    async with worker_of(app, config=WorkerConfig(concurrency=1)) as worker:
        await worker.start()
        first, second = await with_context.aenqueue(), await without.aenqueue()
        await asyncio.to_thread(started.wait, 30)
        started.clear()
        assert await asyncio.to_thread(first.cancel)
        await asyncio.to_thread(started.wait, 30)
        assert seen == ["lost", with_context.name]
        assert await second.acancel()
        await until(lambda: worker.cancelling, "its word")
        go.set()
        await until(lambda: worker.stats.cancelled == 2, "its end")
        await worker.stop()
    assert seen[2:] == ["to its end"]
    assert (worker.stats.claimed, worker.stats.stale, worker.stats.succeeded) == (2, 0, 0)
    await is_clean(server)
    await app.aclose()


@on_loop
async def test_a_prefetched_job_that_is_cancelled_never_starts(app: PinLater, server: Server) -> None:
    ran, gate = list[int](), asyncio.Event()

    @app.task
    async def wait(number: int) -> None:
        ran.append(number)
        await gate.wait()

    handles = await wait.aenqueue_many([(number,) for number in range(4)])
    async with worker_of(app, config=WorkerConfig(concurrency=2)) as worker:
        worker.jobs.rate = ShortJobs()
        await worker.start()
        await until(lambda: len(worker.prefetched) == 2, "two that wait")
        waiting = [held.job.descriptor for held in worker.prefetched]
        for descriptor in waiting:
            assert await app.handle(descriptor).acancel()
        await until(lambda: worker.stats.cancelled == 2, "their end")
        assert worker.held_bytes == sum(len(held.job.body) for held in worker.running.values())
        gate.set()
        await until(lambda: worker.stats.succeeded == 2, "the others")
        await worker.stop()
    assert sorted(ran) == [number for number, handle in enumerate(handles) if handle.descriptor not in waiting]
    await is_clean(server)
    await app.aclose()


def of_claim(command: Command) -> bool:
    return command[1:2] == [load_scripts()["claim"].sha]


@on_loop
async def test_a_job_removed_while_its_claim_is_under_way_does_not_start(server: Server) -> None:
    ran, received = list[Job](), asyncio.Event()

    async def handler(job: Job) -> None:
        ran.append(job)

    with CutProxy(server.port) as proxy:
        async with AsyncClient(server.url) as client, AsyncClient(proxy.url) as own:
            await client.create_queue("q")
            job = await client.enqueue("q", b"")
            server.call("SCRIPT", "LOAD", load_scripts()["claim"].source)
            proxy.arm(Cut.DELAY, match=of_claim)
            async with Worker(own, "q", handler, WorkerConfig(monitor=False)) as worker:
                await asyncio.to_thread(proxy.wait_cut)
                on_message = own.driver.subscriber.on_message
                assert on_message is not None

                def note(channel: bytes, message: bytes) -> None:
                    on_message(channel, message)
                    if channel == CHANNEL:
                        received.set()

                own.driver.subscriber.on_message = note
                assert await client.delete_jobs(descriptors=[job]) == 1
                await asyncio.wait_for(received.wait(), 30)
                assert worker.stats.claimed == 0
                proxy.release()
                await until(lambda: worker.stats.cancelled == 1, "its end")
                await client.enqueue("q", b"next")
                await until(lambda: worker.stats.succeeded == 1, "the next one")
    assert [job.body for job in ran] == [b"next"]


@on_loop
async def test_a_handler_with_cancel_is_asked_first_and_a_purge_stops_what_runs(server: Server) -> None:
    class ByHand:
        """As one that runs jobs in processes."""

        def __init__(self) -> None:
            self.running: dict[str, asyncio.Event] = {}
            self.cancelled: list[str] = []

        async def __call__(self, job: Job) -> None:
            event = self.running[job.descriptor] = asyncio.Event()
            await event.wait()

        def cancel(self, job: Job) -> bool:
            self.cancelled.append(job.descriptor)
            self.running[job.descriptor].set()
            return True

    async with clients(server, 2) as (client, own):
        handler = ByHand()
        async with Worker(own, "q", handler) as worker:
            jobs = await client.enqueue_many("q", [b""] * 6)
            await until(lambda: len(handler.running) == 6, "all to run")
            assert await client.purge("q") == 6
            await until(lambda: worker.stats.cancelled == 6, "their end")
        assert sorted(handler.cancelled) == sorted(jobs)
        assert (worker.stats.stale, worker.stats.succeeded) == (0, 0)
    await is_clean(server, "q")


@on_loop
async def test_a_cancel_that_raises_keeps_no_other_job_from_its_own(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    class Raises:
        async def __call__(self, job: Job) -> None:
            await asyncio.Event().wait()

        def cancel(self, job: Job) -> bool:
            raise ValueError("of the handler")

    async with clients(server, 2) as (client, own), Worker(own, "q", Raises()) as worker:
        await client.enqueue_many("q", [b""] * 3)
        await until(lambda: len(worker.running) == 3, "all to run")
        assert await client.purge("q") == 3
        await until(lambda: worker.stats.cancelled == 3, "their end")
    assert caplog.text.count("cancel() of its handler failed") == 3


@asynccontextmanager
async def deaf(server: Server, proxy: CutProxy, own: AsyncClient) -> AsyncIterator[None]:
    """The subscription of a worker's client is killed, and made anew after the block; its other connections go on."""
    subscriber, at = own.driver.subscriber, own.session.shards["1"].server
    proxy.refuse()
    server.call("CLIENT", "KILL", "TYPE", "pubsub")
    await until(lambda: not subscriber.hears(at, CHANNEL), "no subscription")
    yield
    proxy.accept()


@on_loop
async def test_jobs_removed_while_the_subscription_is_cut_are_stopped_when_it_stands_again(server: Server) -> None:
    """With leases of ten minutes: no renewal, checkpoint or ack tells of it."""
    started, gate = list[bytes](), asyncio.Event()

    async def handler(job: Job) -> None:
        started.append(job.body)
        await gate.wait()

    with CutProxy(server.port) as proxy:
        async with AsyncClient(server.url) as client, AsyncClient(proxy.url) as own:
            await client.create_queue("q", QueueConfig(lease_ms=600_000))
            async with Worker(own, "q", handler, WorkerConfig(concurrency=2, monitor=False)) as worker:
                worker.jobs.rate = ShortJobs()
                jobs = await client.enqueue_many("q", [b"0", b"1", b"2", b"3"])
                await until(lambda: len(worker.prefetched) == 2 and len(started) == 2, "two that run and two that wait")
                async with deaf(server, proxy, own):
                    assert await client.delete_jobs(descriptors=jobs[:3:2]) == 2  # one that runs, one that waits
                await until(lambda: worker.stats.cancelled == 2, "their end")
                gate.set()
                await until(lambda: worker.stats.succeeded == 2, "the others")
            assert (sorted(started), worker.stats.stale) == ([b"0", b"1", b"3"], 0)
    await is_clean(server, "q")


@on_loop
async def test_a_job_removed_before_its_claim_is_answered_and_while_the_subscription_is_cut_stops(
    server: Server,
) -> None:
    async def handler(job: Job) -> None:
        if job.body != b"next":
            await asyncio.Event().wait()

    with CutProxy(server.port) as proxy:
        async with AsyncClient(server.url) as client, AsyncClient(proxy.url) as own:
            await client.create_queue("q", QueueConfig(lease_ms=600_000))
            async with Worker(own, "q", handler, WorkerConfig(monitor=False)) as worker:
                await until(lambda: worker.ready, "a claim")
                await idle(worker)
                proxy.arm(Cut.DELAY, match=of_claim)
                job = await client.enqueue("q", b"removed")
                await asyncio.to_thread(proxy.wait_cut)
                async with deaf(server, proxy, own):
                    assert await client.delete_jobs(descriptors=[job]) == 1
                at = own.session.shards["1"].server
                await until(lambda: own.driver.subscriber.hears(at, CHANNEL), "the subscription")
                proxy.release()
                await until(lambda: worker.stats.cancelled == 1, "its end")
                await client.enqueue("q", b"next")
                await until(lambda: worker.stats.succeeded == 1, "the next one")
            assert (worker.stats.claimed, worker.stats.stale) == (2, 0)
    await is_clean(server, "q")


@on_loop
async def test_a_subscription_is_kept_alive(server: Server) -> None:
    async with clients(server, 1) as (own,), Worker(own, "q", nothing) as worker:
        await until(lambda: worker.ready, "a subscription")
        with server.client() as client:
            (port,) = (int(entry["addr"].rpartition(":")[2]) for entry in client.client_list(_type="pubsub"))
        with connection_at(port) as end:
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            assert [end.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [10, 5, 3]


def connection_at(port: int) -> socket.socket:
    """The connection that this process has at its port, as another socket object."""
    (found,) = (each for each in psutil.Process().net_connections("tcp4") if each.laddr.port == port)
    return socket.socket(fileno=os.dup(found.fd))


@on_loop
async def test_a_job_whose_cancellation_was_lost_stops_at_its_checkpoint(app: PinLater, server: Server) -> None:
    seen = list[str]()

    @app.task(attempts=9)
    async def task(context: Context) -> None:
        assert own.driver.subscriber.on_message is not None
        own.driver.subscriber.on_message = None  # as if the subscription were away
        await Handle(parts_of(app).clients, context.job.descriptor).acancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
        try:
            await context.checkpoint("half")
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
            raise

    handle = await task.aenqueue()
    async with parts_of(app).clients.new() as own, worker_of(app, client=own) as worker:
        await asyncio.wait_for(worker.run(burst=True), 30)
    assert seen == [f"ClaimLost: checkpoint: job {handle.descriptor} is not this worker's any more"]
    assert (worker.stats.stale, worker.stats.cancelled, await handle.astatus()) == (1, 0, None)
    await app.aclose()


def test_a_pending_or_finished_job_sends_no_cancellation(server: Server) -> None:
    with connect(server) as client:
        wire = Wire(client)
        wire.create()
        pending, running = wire.enqueue_bodies(b"a"), wire.enqueue_bodies(b"b")
        (held, other) = ends(wire.claim())
        assert wire.release(next(end for end in (held, other) if end.id == pending[0])) == []
        listener: Any = client.pubsub()
        listener.subscribe(b"cancelled")
        assert listener.get_message(timeout=5)
        assert wire.delete_jobs(b"", ids=pending, channel=b"cancelled") == (1, 0)
        assert wire.delete_jobs(b"", ids=running, channel=b"cancelled") == (1, 0)
        assert wire.delete_jobs(b"", ids=running, channel=b"cancelled") == (0, 0)
        client.publish(b"cancelled", b"end")
        received = []
        while (message := listener.get_message(timeout=5))["data"] != b"end":
            received.append(message["data"])
        assert received == running
        listener.close()


@on_loop
async def test_a_pending_job_that_is_cancelled_is_removed_and_its_waiter_notified(
    app: PinLater, server: Server
) -> None:
    @app.task(result_ttl=60)
    async def task() -> None: ...

    later = await task.using(delay=3600).aenqueue()
    waits = [asyncio.ensure_future(later.aresult(30)), asyncio.ensure_future(asyncio.to_thread(later.result, 30))]

    def both() -> bool:
        with server.client() as client:
            return bool(sum(n for _, n in client.pubsub_numsub(*client.pubsub_channels())) == 2)

    await until(both, "two waits")
    assert await later.astatus() is State.PENDING
    assert await asyncio.to_thread(later.cancel)
    for wait in waits:
        with pytest.raises(ResultGone):
            await wait
    await app.aclose()


@on_loop
async def test_a_stale_run_is_stopped_and_not_the_next_one_of_the_same_worker(app: PinLater) -> None:
    runs = list[SyncContext]()
    gate = threading.Event()

    @app.task(lease=0.6)
    def work(context: SyncContext) -> None:
        runs.append(context)
        gate.wait(30)

    handle = await work.aenqueue()
    async with worker_of(app) as worker:
        await worker.start()
        try:
            await until(lambda: runs, "the first run")
            held = next(iter(worker.running.values())).job
            assert await parts_of(app).clients.of_loop().release([held]) == []
            await until(lambda: len(runs) == 2, "the second run")
            await until(lambda: runs[0].cancelled, "its word")
            assert not runs[1].cancelled
            assert await handle.astatus() is State.IN_PROGRESS
        finally:
            gate.set()
        await until(lambda: worker.stats.succeeded == worker.stats.stale == 1, "their ends")
    count = await parts_of(app).clients.of_loop().count("default")
    assert (count.in_progress, count.pending) == (0, 0)
    await app.aclose()
