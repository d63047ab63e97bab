"""A worker on a real server, in this process: what it claims, runs, acks, and hands back.

Promises: shown on servers of each kind. Risks: what needs a process to die is in test_worker_processes.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pinlater import AsyncClient, InvalidArgument, Job, NewJob, State
from pinlater.model.clocks import boot_s
from pinlater.worker.config import PREFETCH
from pinlater.worker.end_rate import EndRate
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.handlers_for_tests import clients, idle, nothing, on_loop, until
from tests.support.servers import Server

DEADLINE_S = 5.0  # a notification takes 1 ms, a safety claim 10 to 15 s


async def ended(client: AsyncClient, queue: str = "q") -> bool:
    counts = await client.count(queue)
    return not (counts.pending or counts.scheduled or counts.in_progress)


def succeeded(worker: Worker, count: int) -> bool:
    return worker.stats.succeeded == count


@on_loop
async def test_async_handler_runs_jobs_and_acks_them(server: Server) -> None:
    seen = []

    async def handler(job: Job) -> None:
        await asyncio.sleep(0)
        seen.append(job.body)

    async with clients(server, keep_succeeded=1000) as (client, own):
        bodies = [b"%d" % i for i in range(300)]
        await client.enqueue_many("q", bodies)
        async with Worker(own, "q", handler) as worker:
            await until(lambda: worker.stats.succeeded == 300, "300 jobs")
        assert sorted(seen) == sorted(bodies)
        assert (await client.count("q")).succeeded == 300
        assert (worker.stats.claimed, worker.stats.failed, worker.stats.stale) == (300, 0, 0)


@on_loop
async def test_plain_handler_runs_in_threads_side_by_side(server: Server) -> None:
    meet = threading.Barrier(4, timeout=30)
    names = set()

    def handler(job: Job) -> None:
        meet.wait()
        names.add(threading.current_thread().name)

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [b""] * 8)
        async with Worker(own, "q", handler, WorkerConfig(concurrency=4)) as worker:
            await until(lambda: worker.stats.succeeded == 8, "8 jobs")
    assert len(names) == 4
    assert threading.main_thread().name not in names


async def _raise(job: Job) -> None:
    raise ValueError("no \0 good " + 5000 * "ä")


def _raise_plain(job: Job) -> None:
    raise ValueError("no \0 good " + 5000 * "ä")


async def _exit(job: Job) -> None:
    raise SystemExit("ValueError: no  good ")


def _stop_iteration(job: Job) -> None:
    raise StopIteration("ValueError: no  good ")


def _coroutine(job: Job) -> Any:
    return nothing(job)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (_raise, "ValueError: no  good ää"),
        (_raise_plain, "ValueError: no  good ää"),
        (_exit, "RuntimeError: the handler raised SystemExit("),
        (_stop_iteration, "RuntimeError: the handler raised StopIteration("),
        (_coroutine, "TypeError: the handler returned a coroutine"),
    ],
)
@on_loop
async def test_an_error_is_the_status_and_the_job_is_tried_again_later(
    server: Server, handler: Callable[[Job], Any], expected: str
) -> None:
    async with clients(server, 1) as (client,):
        job = (await client.enqueue_many("q", [NewJob(b"", attempts=2)]))[0]
        worker = Worker(client, "q", handler, WorkerConfig(retry_delay_ms=3_600_000))
        before_ms = server.time_ms()
        assert await worker.run_once() == 1
        info = (await client.lookup([job]))[job]
        assert (info.state, info.attempts_remaining) == (State.PENDING, 1)
        assert info.status.startswith(expected)
        assert info.status.endswith("\n")
        assert info.run_after_ms is not None
        assert before_ms + 3_600_000 <= info.run_after_ms <= server.time_ms() + 3_600_000
        assert await worker.run_once() == 0
        assert worker.stats.failed == 1


@on_loop
async def test_failing_to_the_end(server: Server) -> None:
    attempts = []

    async def handler(job: Job) -> None:
        attempts.append(job.attempt)
        raise KeyError(job.attempt)

    async with clients(server) as (client, own):
        job = (await client.enqueue_many("q", [NewJob(b"", attempts=3)]))[0]
        async with Worker(own, "q", handler, WorkerConfig(retry_delay_ms=0)) as worker:
            await until(lambda: worker.stats.failed == 3, "3 failures")
        info = (await client.lookup([job]))[job]
        assert (info.state, info.status) == (State.FAILED, "KeyError: 1\nKeyError: 2\nKeyError: 3\n")
        assert attempts == [1, 2, 3]


@on_loop
async def test_several_queues_on_several_shards(server: Server) -> None:
    seen = set()

    async def handler(job: Job) -> None:
        seen.add((job.queue, job.shard))

    async with clients(server) as (client, own):
        names = ["q", "r", "s"]
        for name in names:
            await client.create_queue(name)
            for key in range(20):  # keys place some on each shard
                await client.enqueue(name, b"", key=str(key))
        async with Worker(own, names, handler) as worker:
            await until(lambda: worker.stats.succeeded == 60, "60 jobs")
        assert seen == {(name, shard) for name in names for shard in "12"}


@on_loop
async def test_higher_priority_first_over_shards(server: Server) -> None:
    seen = []

    async def handler(job: Job) -> None:
        seen.append(job.priority)

    async with clients(server) as (client, own):
        for priority in (3, 1, 2, 1, 3, 2):
            for key in range(4):
                await client.enqueue("q", b"", priority=priority, key=str(key))
        await Worker(own, "q", handler, WorkerConfig(concurrency=24)).run_once()
        assert seen == sorted(seen)
        assert len(seen) == 24


@on_loop
async def test_never_more_than_capacity(server: Server) -> None:
    running = most = 0
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [b""] * 200)
        async with Worker(own, "q", handler, WorkerConfig(concurrency=7, prefetch=5)) as worker:
            await until(lambda: running == 7, "7 running")
            held = []
            gate.set()
            while worker.stats.succeeded < 200:
                counts = await client.count("q")
                held.append(counts.in_progress)
                await asyncio.sleep(0)
    assert most == 7
    # what is being acked is not held any more, but still in progress for the server
    assert max(held) <= 2 * (7 + 5)


class AtRate(EndRate):
    """As if so many jobs ended a second."""

    def __init__(self, per_s: float) -> None:
        super().__init__()
        self._known_per_s = per_s

    def per_s(self) -> float:
        return self._known_per_s


@pytest.mark.parametrize(("per_s", "ahead"), [(1.0, 0), (50.0, 5), (1_000.0, 100), (1_000_000.0, PREFETCH)])
@on_loop
async def test_by_default_a_tenth_of_a_second_of_jobs_is_held_ahead(server: Server, per_s: float, ahead: int) -> None:
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        await gate.wait()

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [b""] * (2 * PREFETCH))
        worker = Worker(own, "q", handler)
        worker.jobs.rate = AtRate(per_s)
        async with worker:
            await until(lambda: worker.held >= 10 + ahead, "all that it may hold")
            worker.fetcher.look_again()
            await own.count("q")
            assert (len(worker.running), len(worker.prefetched)) == (10, ahead)
            gate.set()


@on_loop
async def test_no_long_job_is_held_ahead(server: Server) -> None:
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        await gate.wait()

    async with clients(server) as (client, own):
        await client.enqueue_many("q", [b""] * 40)
        async with Worker(own, "q", handler) as worker:
            await until(lambda: len(worker.running) == 10, "ten that run")
            worker.fetcher.look_again()
            await own.count("q")
            assert (worker.held, (await client.count("q")).pending) == (10, 30)
            gate.set()


@on_loop
async def test_by_default_jobs_that_take_no_time_come_in_large_claims(server: Server) -> None:
    async with clients(server) as (client, own):
        for _ in range(3):
            await client.enqueue_many("q", [b""] * 1_000)
        worker = Worker(own, "q", nothing)
        worker.jobs.rate = AtRate(1_000_000.0)
        async with worker:
            await until(lambda: worker.stats.succeeded == 3_000, "3,000 jobs")
            # of each of two shards: one for 150 jobs at least, and those that find the last jobs or nothing
            assert worker.stats.claims <= 2 * (3_000 / 150 + 5)


@on_loop
async def test_no_claim_while_the_bodies_held_are_too_many_bytes(server: Server) -> None:
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        await gate.wait()

    async with clients(server) as (client, own):
        # two shards with two jobs each: a claim's own budget (4 MiB a shard) lets them pass together, no more
        # follow
        await client.enqueue_many("q", [bytes(1024 * 1024)] * 30)
        async with Worker(own, "q", handler, WorkerConfig(concurrency=30, prefetch_bytes=1024 * 1024)) as worker:
            await until(lambda: len(worker.running) > 0, "running jobs")
            first = worker.stats.claimed
            claims = worker.stats.claims
            await client.enqueue("q", b"")
            worker.fetcher.look_again()
            await own.count("q")
            assert (worker.stats.claimed, worker.stats.claims) == (first, claims)
            assert first <= 8
            assert worker.held_bytes == first * 1024 * 1024
            gate.set()
            await until(lambda: worker.stats.succeeded == 31, "31 jobs")
            assert worker.held_bytes == 0


@on_loop
async def test_acks_leave_in_batches(server: Server) -> None:
    async with clients(server) as (client, own):
        await client.enqueue_many("q", [b""] * 400)
        server.call("CONFIG", "RESETSTAT")
        assert await Worker(own, "q", nothing, WorkerConfig(concurrency=400, monitor=False)).run_once() == 400
        assert await ended(client)
        calls = server.info("commandstats")["cmdstat_evalsha"]["calls"]
        # peeks and claims of two shards, one ack or a few on each, the counts: not one a job
        assert calls < 40


@on_loop
async def test_a_notification_wakes_an_idle_worker_and_it_polls_nothing(server: Server) -> None:
    async with (
        clients(server) as (client, own),
        Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker,
    ):
        await idle(worker)
        for round_ in range(1, 6):
            await client.enqueue("q", b"")
            await until(lambda: worker.stats.succeeded == round_, "the job", DEADLINE_S)  # noqa: B023
            await idle(worker)
        claims = worker.stats.claims
        await client.create_queue("other")
        server.call("CONFIG", "RESETSTAT")
        await client.enqueue("other", b"")
        # what a worker sends to claim: nothing notified it
        assert worker.stats.claims == claims
        assert all(call["calls"] <= 8 for call in server.info("commandstats").values())


@on_loop
async def test_scheduled_job_runs_at_its_time_on_one_of_several_idle_workers(server: Server) -> None:
    early = []

    async def handler(job: Job) -> None:
        early.append(server.time_ms() < due_ms)

    async with clients(server, 4) as (client, *others):
        workers = [Worker(own, "q", handler, WorkerConfig(monitor=False)) for own in others]
        for worker in workers:
            await worker.start()
            await idle(worker)
        due_ms = server.time_ms() + 700
        await client.enqueue("q", b"", run_after_ms=due_ms)
        await until(lambda: sum(worker.stats.succeeded for worker in workers) == 1, "the scheduled job", DEADLINE_S)
        assert early == [False]
        for worker in workers:
            await worker.stop()
        assert sum(worker.stats.claimed for worker in workers) == 1


@on_loop
async def test_a_full_worker_passes_notifications_and_timers_on(server: Server) -> None:
    gate = asyncio.Event()

    async def block(job: Job) -> None:
        await gate.wait()

    async with clients(server, 3) as (client, first, second):
        full = Worker(first, "q", block, WorkerConfig(concurrency=1, prefetch=0, monitor=False))
        async with full:
            await idle(full)
            await client.enqueue("q", b"later", delay_ms=800)
            await until(
                lambda: any(server.call("HGET", f"pl:{{q/{shard}}}:meta", "timer") for shard in "12"),
                "the timer to be held",
            )
            await client.enqueue("q", b"blocks")
            await until(lambda: len(full.running) == 1, "the blocking job")
            async with Worker(second, "q", nothing, WorkerConfig(monitor=False)) as free:
                await until(lambda: free.stats.succeeded == 1, "the scheduled job on the free worker", DEADLINE_S)
                for count in range(2, 6):
                    await idle(free)
                    await client.enqueue("q", b"")
                    done = partial(succeeded, free, count)
                    await until(done, "a job of a notification", DEADLINE_S)
            gate.set()
        assert full.stats.succeeded == 1


@on_loop
async def test_queue_created_after_the_worker_started(server: Server) -> None:
    async with clients(server) as (client, own), Worker(own, ["q", "young"], nothing) as worker:
        await until(lambda: "young" in worker.fetcher.last_error, "a refused claim")
        await client.create_queue("young")
        await client.enqueue("young", b"")
        await until(lambda: worker.stats.succeeded == 1, "the job of the new queue")


@on_loop
async def test_queue_deleted_and_made_again_while_jobs_run(server: Server) -> None:
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        if job.body == b"gate":
            await gate.wait()

    async with clients(server) as (client, own):
        await client.enqueue("q", b"gate")
        async with Worker(own, "q", handler) as worker:
            await until(lambda: len(worker.running) == 1, "a running job")
            await client.delete_queue("q")
            gate.set()
            await until(lambda: worker.stats.stale == 1, "the job of the deleted queue to be refused")
            await client.create_queue("q")
            await client.enqueue("q", b"")
            # the waiter was removed with the old queue: a safety claim finds the job, here at once and not in 10 s
            worker.fetcher.look_again()
            await until(lambda: worker.stats.succeeded == 1, "the job of the new queue")


@on_loop
async def test_paused_and_unpaused(server: Server) -> None:
    async with clients(server, paused=True) as (client, own):
        await client.enqueue_many("q", [b""] * 5)
        async with Worker(own, "q", nothing, WorkerConfig(monitor=False)) as worker:
            await idle(worker)
            assert worker.stats.claimed == 0
            await client.configure_queue("q", paused=False)
            await until(lambda: worker.stats.succeeded == 5, "the jobs of the unpaused queue", DEADLINE_S)


@pytest.mark.parametrize(
    ("queues", "handler", "config", "message"),
    [
        ([], nothing, {}, "queues: expected at least one name"),
        (["a b"], nothing, {}, "queue name"),
        (["q"], "module:name", {}, "handler: expected a function of one argument"),
        (["q"], lambda: None, {}, "handler: expected a function of one argument"),
        (["q"], nothing, {"concurrency": 0}, "concurrency"),
        (["q"], nothing, {"prefetch": -1}, "prefetch"),
        (["q"], nothing, {"prefetch_bytes": 0}, "prefetch_bytes"),
        (["q"], nothing, {"retry_delay_ms": -1}, "retry_delay_ms"),
        (["q"], nothing, {"stop_timeout_s": float("nan")}, "stop_timeout_s"),
        (["q"], nothing, {"tick_s": 0}, "tick_s"),
    ],
)
def test_bad_arguments(queues: list[str], handler: Any, config: dict[str, Any], message: str) -> None:
    async def make() -> None:
        Worker(AsyncClient("redis://127.0.0.1:1"), queues, handler, WorkerConfig(**config))

    with pytest.raises(InvalidArgument, match=message):
        asyncio.run(make())


def test_a_job_is_in_doubt_once_a_third_of_its_lease_has_passed_unseen(tmp_path: Path) -> None:
    from pinlater.worker.lease_renewal import Lease

    fresh = Lease(None, b"", 1, 60_000, 0, boot_s())  # type: ignore[arg-type]
    old = Lease(None, b"", 1, 60_000, 0, boot_s() - 21)  # type: ignore[arg-type]
    assert (fresh.in_doubt, old.in_doubt) == (False, True)
