"""A job that a blocking claim gave to a worker that stands still: it runs elsewhere, and that costs it nothing.

Promises: real worker processes that real signals stop, and handlers that keep the loop. Risks: which worker gets a job
is the server's choice; each test makes the right one register last.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pinlater import AsyncClient, Client, JobInfo, QueueConfig
from pinlater.worker.monitor import Monitor
from tests.support.handlers_for_tests import Record, WorkerProcesses, body, on_loop, until
from tests.support.servers import Server, wait_until

LEASE_MS = 1_000
TICK_S = 0.3
ENDED = ("succeeded", "failed")
DEADLINE_S = 60.0

#: Jobs of both may not start twice: those of one have one attempt, the other has a crash limit.
QUEUES = ("attempts", "crashes")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        for queue in ("q", "attempts", "crashes", "long"):
            limit = 1 if queue == "crashes" else 0
            client.create_queue(queue, QueueConfig(lease_ms=LEASE_MS, crash_limit=limit, keep_succeeded=10))
        yield client


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record")


@pytest.fixture
def workers(server: Server, record: Record, tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses({"1": server.url}, record, tmp_path / "log")
    yield made
    made.end()


def wait_idle(server: Server, claims: int) -> None:
    """Until so many blocking claims wait."""

    def blocked() -> bool:
        with server.client() as client:
            return int(client.info("clients")["blocked_clients"]) == claims

    wait_until(blocked, f"{claims} blocking claims", DEADLINE_S)


def lease_ends(server: Server) -> float:
    """The score of the only lease, ms."""
    with server.client() as client:
        ((_, score),) = client.zrange("pl:{q/1}:leases", 0, -1, withscores=True)
    return float(score)


def is_confirmed(server: Server) -> bool:
    """Whether the score of the only lease is a whole number."""
    return lease_ends(server) % 1 == 0


def only(client: Client, job: str) -> JobInfo:
    return client.lookup([job])[job]


def enqueue_once(client: Client) -> list[str]:
    """A job in each of QUEUES, which a worker gets that stands still."""
    jobs = [client.enqueue(queue, body(), attempts=1 if queue == "attempts" else 2) for queue in QUEUES]
    assert [only(client, job).state.value for job in jobs] == ["in_progress"] * len(jobs)
    return jobs


def run_elsewhere(client: Client, record: Record, jobs: list[str], other: subprocess.Popen[bytes]) -> None:
    """The jobs succeed there, and have lost neither an attempt nor a crash."""
    wait_until(lambda: all(only(client, job).state.value in ENDED for job in jobs), "their ends", DEADLINE_S)
    ends = [(info.state.value, info.attempts_remaining, info.crashes) for info in map(partial(only, client), jobs)]
    assert ends == [("succeeded", 1, 0), ("succeeded", 2, 0)]
    assert [record.pids(job) for job in jobs] == [[other.pid]] * len(jobs)


def drops_them(workers: WorkerProcesses, record: Record, jobs: list[str], first: subprocess.Popen[bytes]) -> None:
    """The first worker goes on, and does not run them."""
    reports = [f"job {job}: its claim went stale, so" for job in jobs]
    wait_until(lambda: all(report in workers.logged() for report in reports), "the reports", DEADLINE_S)
    first.send_signal(signal.SIGTERM)
    assert first.wait(DEADLINE_S) == 0
    assert [len(record.pids(job)) for job in jobs] == [1] * len(jobs)


def test_an_idle_worker_that_is_stopped(
    server: Server, client: Client, workers: WorkerProcesses, record: Record
) -> None:
    other = workers.start(QUEUES, tick_s=TICK_S)
    wait_idle(server, 2)
    first = workers.start(QUEUES, monitor=False)
    wait_idle(server, 4)
    first.send_signal(signal.SIGSTOP)
    jobs = enqueue_once(client)
    run_elsewhere(client, record, jobs, other)
    first.send_signal(signal.SIGCONT)
    drops_them(workers, record, jobs, first)


def test_a_worker_whose_handler_keeps_the_loop(
    server: Server, client: Client, workers: WorkerProcesses, record: Record, tmp_path: Path
) -> None:
    gate, free = tmp_path / "gate", tmp_path / "free"
    other = workers.start(QUEUES, tick_s=TICK_S)
    wait_idle(server, 2)
    first = workers.start(["long", *QUEUES], monitor=False)
    wait_idle(server, 5)
    client.enqueue("long", body("keep", path=str(gate), until=str(free)))
    record.wait("start", 1)
    gate.touch()
    record.wait("keep", 1)
    jobs = enqueue_once(client)
    run_elsewhere(client, record, jobs, other)
    free.touch()
    drops_them(workers, record, jobs, first)


@pytest.mark.parametrize("handler", ["work", "plain"])
def test_a_job_that_may_not_start_twice_is_confirmed_before_it_starts(
    server: Server, client: Client, workers: WorkerProcesses, record: Record, handler: str
) -> None:
    """If it ends its process, its lease has its full length, and its end is a crash."""
    client.configure_queue("q", lease_ms=30_000)
    worker = workers.start(handler=handler, monitor=False)
    wait_idle(server, 1)
    client.enqueue("q", body("exit"), attempts=1)
    assert worker.wait(DEADLINE_S) == 3
    assert record.count("start") == 1
    assert is_confirmed(server)


def test_another_job_is_confirmed_while_it_runs(
    server: Server, client: Client, workers: WorkerProcesses, record: Record, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    client.configure_queue("q", lease_ms=600_000)  # a third of it is longer than the test waits
    workers.start(monitor=False)
    wait_idle(server, 1)
    client.enqueue("q", body("gate", path=str(gate)))
    record.wait("start", 1)
    wait_until(lambda: is_confirmed(server), "a whole score")
    gate.touch()
    record.wait("end", 1)


def test_a_job_that_runs_for_longer_than_its_unconfirmed_lease_runs_once(
    server: Server, client: Client, workers: WorkerProcesses, record: Record, tmp_path: Path
) -> None:
    """The renewer keeps the lease from then on."""
    gate = tmp_path / "gate"
    workers.start(tick_s=TICK_S)
    workers.start(tick_s=TICK_S)
    wait_idle(server, 2)
    job = client.enqueue("q", body("gate", path=str(gate)))
    record.wait("start", 1)
    wait_until(lambda: is_confirmed(server), "a confirmed lease")
    first_end_ms = lease_ends(server)
    wait_until(lambda: lease_ends(server) > first_end_ms + LEASE_MS, "renewals past its first end")
    gate.touch()
    wait_until(lambda: only(client, job).state.value == "succeeded", "its end", DEADLINE_S)
    assert record.count("start") == 1
    assert only(client, job).crashes == 0


@on_loop
async def test_a_claim_by_dequeue_costs_an_attempt_when_it_expires(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        await client.create_queue("q", QueueConfig(lease_ms=100))
        job = await client.enqueue("q", b"", attempts=1)
        assert [claimed.descriptor for claimed in await client.dequeue("q", 1, wait=5)] == [job]
        assert is_confirmed(server)
        monitor = Monitor(client, ["q"], tick_s=0.1)
        await monitor.start()

        try:
            await until(lambda: server.call("ZCARD", "pl:{q/1}:leases") == 0, "the end of its lease")
            info = (await client.lookup([job]))[job]
            assert (info.state.value, info.attempts_remaining, info.crashes) == ("failed", 0, 1)
        finally:
            await monitor.stop()
