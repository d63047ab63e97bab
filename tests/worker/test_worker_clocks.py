"""Workers and monitors while the server's clock jumps.

Promises: ready jobs flow, running jobs are not given to others while their worker lives, a dead worker's jobs
come back. Risks: the clock is libfaketime's, and only the wall clock jumps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinlater import Client, QueueConfig
from tests.conftest import FreshServer
from tests.support.handlers_for_tests import Record, WorkerProcesses, body
from tests.support.servers import KINDS, Kind, Server, wait_until

LEASE_S, TICK_S = 1.5, 0.25
DEADLINE_S = 60.0
JUMPS_S = [-3600.0, *(pytest.param(jump_s, marks=pytest.mark.thorough("clocks")) for jump_s in (3600.0, -5.0))]


@pytest.fixture(params=KINDS)
def clocked(request: pytest.FixtureRequest, fresh_server: FreshServer) -> Server:
    kind: Kind = request.param
    return fresh_server(kind, fake_clock=True)


@pytest.fixture
def client(clocked: Server) -> Iterator[Client]:
    with Client(clocked.url) as client:
        client.create_queue("q", QueueConfig(lease_ms=int(LEASE_S * 1000), keep_succeeded=1000))
        yield client


@pytest.fixture
def workers(clocked: Server, tmp_path: Path) -> Iterator[WorkerProcesses]:
    made = WorkerProcesses({"1": clocked.url}, Record(tmp_path / "record"), tmp_path / "log")
    yield made
    made.end()


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_the_clock_jumps(
    clocked: Server, client: Client, workers: WorkerProcesses, tmp_path: Path, jump_s: float
) -> None:
    record, gate = workers.record, tmp_path / "gate"
    held = body("gate", path=str(gate))
    client.enqueue_many("q", [held] * 4)
    live = [workers.start(concurrency=20, tick_s=TICK_S) for _ in range(2)]
    victim = workers.start(concurrency=20, tick_s=TICK_S)
    record.wait("start", 4)
    # enough ticks for every monitor to know the time
    client.enqueue_many("q", [body("last", seconds=2 * TICK_S)] * 60)
    record.wait("end", 60, DEADLINE_S)
    clocked.jump_clock(jump_s)
    client.enqueue_many("q", [body()] * 20)
    record.wait("end", 80, DEADLINE_S)
    # what runs is left alone, well past its lease
    end_s = time.monotonic() + 2 * LEASE_S
    wait_until(lambda: time.monotonic() > end_s or record.count("start") != 84, "two leases to pass")
    assert record.count("start") == 84
    # the job of a worker that dies now comes back
    victims = {line.descriptor for line in record.lines("start") if line.pid == victim.pid}
    running = victims - {line.descriptor for line in record.lines("end")}
    victim.kill()
    gate.touch()  # a crashed job starts alone, so those that run have to end
    record.wait("start", 84 + len(running), DEADLINE_S)
    wait_until(lambda: client.count("q").succeeded == 84, "every job to end", DEADLINE_S)
    assert record.count("start") == 84 + len(running)
    assert all(process.poll() is None for process in live)
    if abs(jump_s) > 5:
        assert "clock jumped" in workers.logged()


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_worker_dead_before_the_jump(
    clocked: Server, client: Client, workers: WorkerProcesses, tmp_path: Path, jump_s: float
) -> None:
    record, gate = workers.record, tmp_path / "gate"
    client.enqueue_many("q", [body("gate", path=str(gate))] * 3)
    victim = workers.start(monitor=False)
    record.wait("start", 3)
    other = workers.start(tick_s=TICK_S)
    wait_until(lambda: _watched(clocked), "a monitor at work", DEADLINE_S)
    victim.kill()
    clocked.jump_clock(jump_s)
    # 5 s for the clock itself, and a slow machine's share
    record.wait("start", 4, LEASE_S + TICK_S + 5 + 30)
    gate.touch()  # they run one after the other, as they have crashed
    again = record.wait("start", 6)[3:]
    assert {line.pid for line in again} == {other.pid}
    wait_until(lambda: client.count("q").succeeded == 3, "every job to end", DEADLINE_S)
    assert record.count("start") == 6


def _watched(server: Server) -> bool:
    return server.call("HGET", "pl:{q/1}:meta", "monitor") is not None
