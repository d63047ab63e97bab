"""Worker processes killed, stopped or stuck: every job ends, none runs under two live claims.

Promises: shown with real signals to real processes, short leases, on servers of each kind. Risks: times are
only bounded from above, and generously.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinlater import Client, NewJob, QueueConfig
from tests.conftest import FreshServer
from tests.support.handlers_for_tests import Record, WorkerProcesses, body
from tests.support.servers import Server, wait_until

LEASE_MS = 1_000
TICK_S = 0.3
DEADLINE_S = 60.0


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        client.create_queue("q", QueueConfig(lease_ms=LEASE_MS, keep_succeeded=10_000))
        yield client


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record")


@pytest.fixture
def workers(server: Server, record: Record, tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses({"1": server.url}, record, tmp_path / "log")
    yield made
    made.end()


def all_ended(client: Client) -> bool:
    counts = client.count("q")
    return not (counts.pending or counts.scheduled or counts.in_progress)


def wait_ended(client: Client) -> None:
    wait_until(lambda: all_ended(client), "every job to end", DEADLINE_S)


def test_handlers_that_hold_the_gil_do_not_hold_the_monitor_of_their_supervisor(
    client: Client, workers: WorkerProcesses, record: Record
) -> None:
    supervisor = workers.start(processes=2, tick_s=TICK_S, concurrency=1, prefetch=0)
    client.enqueue_many("q", [NewJob(body("hold", seconds=600))] * 2)
    pids = {line.pid for line in record.wait("start", 2)}
    try:
        lost = client.enqueue("q", body(), attempts=5)
        assert [job.descriptor for job in client.dequeue("q", 1, wait=10)] == [lost]
        wait_until(lambda: client.lookup([lost])[lost].crashes == 1, "the redelivery", DEADLINE_S)
        assert record.count("start") == 2
    finally:
        supervisor.kill()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_killed_in_the_middle_of_a_job(
    client: Client, workers: WorkerProcesses, record: Record, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = client.enqueue("q", body("gate", path=str(gate)), attempts=2)
    first = workers.start(tick_s=TICK_S)
    record.wait("start", 1)
    first.kill()
    workers.start(tick_s=TICK_S)
    starts = record.wait("start", 2, DEADLINE_S)
    assert client.lookup([job])[job].crashes == 1
    gate.touch()
    wait_ended(client)
    assert [line.attempt for line in starts] == [1, 2]
    assert (record.count("start"), record.count("end"), client.count("q").succeeded) == (2, 1, 1)


def test_killed_in_its_last_attempt(client: Client, workers: WorkerProcesses, record: Record) -> None:
    job = client.enqueue("q", body("exit"), attempts=1)
    workers.start(tick_s=TICK_S).wait()
    workers.start(tick_s=TICK_S)
    wait_ended(client)
    info = client.lookup([job])[job]
    assert (info.state.value, info.attempts_remaining, info.crashes) == ("failed", 0, 1)
    assert record.count("start") == 1


def test_stopped_past_its_lease(client: Client, workers: WorkerProcesses, record: Record, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = client.enqueue("q", body("gate", path=str(gate)))
    first = workers.start(tick_s=TICK_S)
    record.wait("start", 1)
    first.send_signal(signal.SIGSTOP)
    workers.start(tick_s=TICK_S)
    record.wait("start", 2, DEADLINE_S)
    gate.touch()
    wait_ended(client)
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: f"job {job}: its claim went stale" in workers.logged(), "the report", DEADLINE_S)
    assert (record.count("start"), client.count("q").succeeded) == (2, 1)


@pytest.mark.thorough("processes")
def test_prefetched_jobs_of_a_stopped_process_do_not_run_twice(
    client: Client, workers: WorkerProcesses, record: Record, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    client.enqueue_many("q", [body()] * 300)
    # so few that a slow machine prefetches them: a worker prefetches what it ends in a tenth of a second
    first = workers.start(tick_s=TICK_S, concurrency=2, prefetch=3, short_jobs=True, stop_timeout_s=3)
    record.wait("end", 300, DEADLINE_S)
    # it holds all five: a worker with room could be given jobs while it stands still
    client.enqueue_many("q", [body("gate", path=str(gate))] * 5)
    record.wait("start", 302, DEADLINE_S)
    wait_until(lambda: (now := client.count("q")).in_progress == 5 and now.succeeded == 300, "300 acks", DEADLINE_S)
    first.send_signal(signal.SIGSTOP)
    workers.start(tick_s=TICK_S, concurrency=20)
    record.wait("start", 303, DEADLINE_S)
    gate.touch()  # all five run elsewhere, one after the other, two of them for the second time
    wait_ended(client)
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: workers.logged().count("its claim went stale, so") == 5, "the reports", DEADLINE_S)
    first.send_signal(signal.SIGTERM)
    assert first.wait(DEADLINE_S) == 0
    assert record.count("start") == 307


@pytest.mark.thorough("processes")
def test_gil_held_for_three_leases(client: Client, workers: WorkerProcesses, record: Record) -> None:
    client.enqueue("q", body("gil", seconds=3 * LEASE_MS / 1000))
    client.enqueue_many("q", [body()] * 5)
    workers.start(tick_s=TICK_S, concurrency=1)
    record.wait("start", 1)
    workers.start(tick_s=TICK_S)
    wait_ended(client)
    assert (record.count("start"), record.count("end")) == (6, 6)
    assert "went stale" not in workers.logged()


def test_backlog_behind_long_jobs(client: Client, workers: WorkerProcesses, record: Record) -> None:
    client.configure_queue("q", lease_ms=LEASE_MS // 2)
    client.enqueue_many("q", [body()] * 200 + [body("last", seconds=5 * LEASE_MS / 2000)] * 8)
    for _ in range(2):
        workers.start(tick_s=TICK_S, concurrency=2, prefetch=8)
    wait_ended(client)
    assert set(Counter(line.descriptor for line in record.lines("start")).values()) == {1}
    assert record.count("end") == 208
    assert "went stale" not in workers.logged()


@pytest.mark.thorough("processes")
def test_stopped_gracefully_under_load_again_and_again(
    client: Client, workers: WorkerProcesses, record: Record
) -> None:
    jobs = [NewJob(body("last", seconds=0.002), attempts=1)] * 1_000
    for _ in range(5):
        client.enqueue_many("q", jobs)  # more than there are ends to wait for: each stop is under load
        seen = record.count("end")
        process = workers.start(tick_s=TICK_S, concurrency=20)
        record.wait("end", seen + 300, DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    process = workers.start(tick_s=TICK_S, concurrency=20)
    wait_ended(client)
    assert set(Counter(line.descriptor for line in record.lines("start")).values()) == {1}
    assert (record.count("end"), client.count("q").succeeded) == (5_000, 5_000)


def test_second_signal_is_at_once(client: Client, workers: WorkerProcesses, record: Record, tmp_path: Path) -> None:
    client.enqueue_many("q", [NewJob(body("gate", path=str(tmp_path / "never")), attempts=1)] * 3)
    process = workers.start(stop_timeout_s=3600)
    record.wait("start", 3)
    process.send_signal(signal.SIGTERM)
    # a job that comes now is not claimed any more
    client.enqueue("q", body())
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    assert (client.count("q").pending, client.count("q").failed, record.count("start")) == (4, 0, 3)


def test_a_hung_thread_does_not_keep_the_process(client: Client, workers: WorkerProcesses, record: Record) -> None:
    client.enqueue("q", body("hang"))
    process = workers.start(handler="plain", stop_timeout_s=0.2)
    record.wait("start", 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    assert client.count("q").pending == 1


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("to", ["the process", "another thread"])
def test_a_loop_that_never_turns_does_not_keep_the_process(fresh_server: FreshServer, tmp_path: Path, to: str) -> None:
    """The kernel may give a signal for the process to any of its threads."""
    server, record = fresh_server(), Record(tmp_path / "record")
    workers = WorkerProcesses({"1": server.url}, record, tmp_path / "log")
    with Client(server.url) as client:
        client.create_queue("q")
        client.enqueue("q", body("spin"))
        process = workers.start(stop_timeout_s=0.0)
        record.wait("start", 1)
        if to == "the process":
            process.send_signal(signal.SIGTERM)
        else:
            signal_another_thread(process.pid)
        try:
            assert process.wait(DEADLINE_S) == 1
        finally:
            workers.end()
        assert "handlers_for_tests.py" in workers.logged()  # the traceback shows what blocked the loop
        assert client.count("q").in_progress == 1


def signal_another_thread(pid: int) -> None:
    other = max(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())
    assert other != pid
    assert ctypes.CDLL(None).tgkill(pid, other, signal.SIGTERM) == 0
