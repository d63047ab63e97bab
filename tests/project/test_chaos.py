"""Thousands of jobs on four shards, four worker processes, errors at random and SIGKILL at random.

Promises: every job ends, none is lost, and no two claims of one job are alive at once. Risks: a line of the
record that a SIGKILL cut off before it was written makes a run look shorter, never longer.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pinlater import Client, NewJob, QueueConfig
from tests.conftest import FreshServer
from tests.support.handlers_for_tests import Line, Record, WorkerProcesses, body
from tests.support.servers import wait_until

JOBS, FEW_JOBS = 10_000, 4_000  # of a round
WORKERS = 4
CONFIG: dict[str, Any] = {"concurrency": 20, "tick_s": 0.5, "retry_delay_ms": 50}
DEADLINE_S = 110.0
STEP_BYTES = 150_000  # of the record, between two kills: about 800 jobs
DO = body("fail", chance=0.1, seconds=0.16)


class Chaos:
    """The workers of one run, and when each killed one was killed (monotonic ns)."""

    def __init__(self, workers: WorkerProcesses) -> None:
        self.workers = workers
        self.alive = [workers.start(**CONFIG) for _ in range(WORKERS)]
        self.killed_ns: dict[int, int] = {}

    def kill_one(self) -> None:
        victim = self.alive.pop(random.randrange(len(self.alive)))
        self.killed_ns[victim.pid] = time.monotonic_ns()
        victim.kill()
        victim.wait()
        self.alive.append(self.workers.start(**CONFIG))

    def stop(self) -> None:
        wait_until(self.listen, "the worker that was started last", DEADLINE_S)
        for process in self.alive:
            process.terminate()
        assert [process.wait(DEADLINE_S) for process in self.alive] == [0] * WORKERS

    def listen(self) -> bool:
        log = self.workers.logged()
        return all(f"{process.pid} INFO working on" in log for process in self.alive)

    def run(self, client: Client, jobs: int) -> None:
        """Enqueues jobs, and kills workers until all have ended."""
        for _ in range(jobs // 500):
            made = [NewJob(DO, priority=random.randint(1, 3), attempts=6) for _ in range(500)]
            client.enqueue_many("q", made)
        while not _ended(client):
            self.wait_progress(client)
            if not _ended(client):
                self.kill_one()

    def wait_progress(self, client: Client) -> None:
        path = self.workers.record.path
        size = path.stat().st_size + STEP_BYTES
        wait_until(lambda: path.stat().st_size >= size or _ended(client), "progress", DEADLINE_S)


def _ended(client: Client) -> bool:
    counts = client.count("q")
    return not (counts.pending or counts.scheduled or counts.in_progress)


def overlaps(lines: list[Line], killed_ns: dict[int, int]) -> list[tuple[Line, Line]]:
    """Pairs of runs of one job: the second began before the first had ended, or was killed."""
    finish_ns = {(line.descriptor, line.token): line.time_ns for line in lines if line.event != "start"}
    starts: dict[str, list[Line]] = {}
    for line in lines:
        if line.event == "start":
            starts.setdefault(line.descriptor, []).append(line)
    found = []
    for runs in starts.values():
        for first, second in pairwise(sorted(runs, key=lambda line: line.time_ns)):
            over_ns = finish_ns.get((first.descriptor, first.token), killed_ns.get(first.pid, 2**63))
            if second.time_ns < over_ns or second.token == first.token:
                found.append((first, second))
    return found


def chaos(fresh_server: FreshServer, tmp_path: Path, jobs: int, seconds: float) -> None:
    """Rounds of so many jobs for so long; one at least."""
    servers = [fresh_server("valkey"), fresh_server("valkey")]
    shards = {str(number): servers[number % 2].url for number in range(4)}
    record = Record(tmp_path / "record")
    workers = WorkerProcesses(shards, record, tmp_path / "log")
    total, end_s = 0, time.monotonic() + seconds
    try:
        with Client(shards=shards, timeout_s=60) as client:
            client.create_queue("q", QueueConfig(lease_ms=2_000, keep_succeeded=10_000_000))
            run = Chaos(workers)
            while total == 0 or time.monotonic() < end_s:
                run.run(client, jobs)
                total += jobs
            run.stop()
            counts = client.count("q")
    finally:
        workers.end()
    lines = record.lines()
    assert counts.succeeded + counts.failed == total
    assert len(run.killed_ns) >= 3
    assert overlaps(lines, run.killed_ns) == []
    ran = Counter(line.descriptor for line in lines if line.event == "start")
    assert len(ran) >= total - counts.failed
    assert max(ran.values()) <= 6
    assert sum(1 for line in lines if line.event == "end") >= counts.succeeded
    assert {line.attempt for line in lines} <= set(range(1, 7))


def test_a_round_of_chaos(fresh_server: FreshServer, tmp_path: Path) -> None:
    chaos(fresh_server, tmp_path, FEW_JOBS, 0.0)


@pytest.mark.campaign("minutes")
@pytest.mark.timeout(600)
def test_rounds_of_chaos(fresh_server: FreshServer, tmp_path: Path) -> None:
    chaos(fresh_server, tmp_path, JOBS, 60.0)


def test_overlaps_are_found() -> None:
    def line(event: str, token: str, time_ns: int, pid: int = 1) -> Line:
        return Line(event, "q:s1:p1:1", token, 1, pid, time_ns)

    first, second = line("start", "a", 1), line("start", "b", 5, 2)
    assert overlaps([first, line("end", "a", 4), second], {}) == []
    assert overlaps([first, line("fail", "a", 6), second], {}) == [(first, second)]
    assert overlaps([first, second], {1: 4}) == []
    assert overlaps([first, second], {1: 6}) == [(first, second)]
    assert overlaps([first, second], {}) == [(first, second)]
