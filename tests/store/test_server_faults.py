"""The server restarts, loses its scripts, is full or is down: what a client does during and after that.

Promises: every call goes on by itself. With `appendfsync always` no acknowledged job is lost. A call goes to another
shard only if it certainly was not carried out.
Risks: producer and consumer are threads of this process. The number of calls that a kill interrupts varies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pinlater import Client, CountsByState, QueueConfig, State
from pinlater.model.errors import OutcomeUnknown, ServerFull, ServerUnavailable
from pinlater.store import requests
from tests.conftest import FreshServer
from tests.support.both_clients import Calls, kind, make
from tests.support.cut_cases import READS, WRITES, begin
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.servers import KINDS, Kind, Server, wait_until

__all__ = ["kind", "make"]  # fixtures

CASES = [*WRITES, *READS]
KILLS = 3
JOBS_A_KILL = 30  # acknowledged between two kills, so that each kill interrupts a busy client
WAIT_S = 8.0  # below the safety claim (10 to 15 s): a job within it came by a notification


def test_scripts_are_flushed_before_every_call(make: Callable[..., Calls], server: Server) -> None:
    calls = make(server.url)
    with Client(server.url) as direct:
        for number, case in enumerate(CASES):
            queue = f"q{number}"
            needed = begin(case, calls, direct, queue)
            server.call("SCRIPT", "FLUSH")
            assert case.holds(direct, queue, case.call(calls, queue, needed), needed), case.name


@pytest.mark.parametrize("server_kind", KINDS)
def test_the_server_is_killed_and_restarted_before_every_call(
    make: Callable[..., Calls], server_kind: Kind, fresh_server: FreshServer
) -> None:
    server = fresh_server(server_kind, aof_always=True)
    calls = make(server.url)
    with Client(server.url) as direct:
        for number, case in enumerate(CASES):
            queue = f"q{number}"
            needed = begin(case, calls, direct, queue)
            server.restart(kill=True)
            assert case.holds(direct, queue, case.call(calls, queue, needed), needed), case.name


class Traffic:
    """A producer and a consumer on one client, and the answers they got."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.acknowledged: dict[str, bytes] = {}
        self.ended: list[bytes] = []
        self.refused: list[Any] = []
        self.stop = threading.Event()
        self.produced = threading.Event()

    def produce(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            body = b"%d" % number
            try:
                descriptor = self.calls.enqueue("q", body)
            except OutcomeUnknown as error:
                descriptor = self.calls.resolve(error)
            self.acknowledged[descriptor] = body
        self.produced.set()

    def consume(self) -> None:
        while not (self.produced.is_set() and len(self.ended) >= len(self.acknowledged)):
            jobs = self.calls.dequeue("q", 10, wait=0.2)
            self.refused += self.calls.ack(succeeded=jobs)
            self.ended += [job.body for job in jobs]


@pytest.mark.parametrize("server_kind", KINDS)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_load(
    make: Callable[..., Calls], server_kind: Kind, fresh_server: FreshServer
) -> None:
    server = fresh_server(server_kind, aof_always=True)
    calls = make(server.url, timeout_s=30)
    calls.create_queue("q", QueueConfig(keep_succeeded=10**6))
    traffic = Traffic(calls)
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(traffic.produce), threads.submit(traffic.consume)]
        try:
            for _ in range(KILLS):
                goal = len(traffic.acknowledged) + JOBS_A_KILL
                wait_until(lambda goal=goal: len(traffic.acknowledged) >= goal, "enqueued jobs")  # type: ignore[misc]
                server.restart(kill=True)
        finally:
            traffic.stop.set()
        for thread in running:
            thread.result()
    infos = calls.lookup(traffic.acknowledged)
    assert [key for key in traffic.acknowledged if key not in infos] == []
    assert {info.state for info in infos.values()} == {State.SUCCEEDED}
    assert sorted(traffic.ended) == sorted(traffic.acknowledged.values())
    assert traffic.refused == []


def fill(calls: Calls, descriptors: list[str]) -> None:
    while len(descriptors) < 1000:
        descriptors.append(calls.enqueue("q", b"x" * 100_000))


@pytest.mark.parametrize("server_kind", KINDS)
def test_a_full_server_drains_and_then_takes_jobs_again(
    make: Callable[..., Calls], server_kind: Kind, fresh_server: FreshServer
) -> None:
    server = fresh_server(server_kind)
    calls = make(server.url)
    calls.create_queue("q")
    server.call("CONFIG", "SET", "maxmemory", server.memory() + 4 * 1024 * 1024)
    descriptors: list[str] = []
    with pytest.raises(ServerFull, match=r"queue 'q'.*takes no new jobs"):
        fill(calls, descriptors)
    # with a margin: memory that is freed by chance makes no room for a job
    server.call("CONFIG", "SET", "maxmemory", server.memory() - 1024 * 1024)
    with pytest.raises(ServerFull):
        calls.enqueue_many("q", [b"x" * 100_000] * 20)
    with pytest.raises(ServerFull):
        calls.create_queue("another")
    jobs = calls.dequeue("q", 5)
    assert len(jobs) == 5
    assert calls.renew(jobs) == []
    assert calls.renew(jobs[:1], own=True) == []
    assert calls.release(jobs[:1]) == []
    assert calls.ack(succeeded=jobs[1:3], failed=jobs[3:]) == []
    assert len(calls.lookup(descriptors)) == len(descriptors) - 2
    assert calls.count("q") == CountsByState(pending=len(descriptors) - 2)
    while jobs := calls.dequeue("q", 10):
        assert calls.ack(succeeded=jobs) == []
    assert calls.count("q") == CountsByState()
    assert calls.enqueue("q", b"x" * 100_000)


def test_a_job_with_a_key_never_goes_to_another_shard(make: Callable[..., Calls], fresh_server: FreshServer) -> None:
    broken, sound = fresh_server(), fresh_server()
    calls = make(shards={"broken": broken.url, "sound": sound.url}, timeout_s=0.3)
    calls.create_queue("q")
    placed = {str(number): calls.enqueue("q", b"", key=str(number)).split(":")[1] for number in range(10)}
    assert set(placed.values()) == {"sbroken", "ssound"}
    broken.kill()
    for key, shard in placed.items():
        if shard == "ssound":
            assert calls.enqueue("q", b"", key=key).split(":")[1] == shard
    key = next(key for key, shard in placed.items() if shard == "sbroken")
    with pytest.raises(ServerUnavailable):
        calls.enqueue("q", b"", key=key)


def test_an_unknown_outcome_never_goes_to_another_shard(
    make: Callable[..., Calls], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "FIRST_PAUSE_S", 0.001)
    with CutProxy(server.port) as proxy, Client(shards={"cut": server.url, "whole": server.url}) as direct:
        calls = make(shards={"cut": proxy.url, "whole": server.url})
        direct.create_queue("q")
        direct.enqueue("q", b"the server knows the script")
        calls.count("q")
        proxy.arm(Cut.AFTER, count=10**9)
        settings = calls.client.settings
        settings.timeout_s = 0.03
        known: list[str] = []
        unknown: list[OutcomeUnknown] = []
        for number in range(20):
            try:
                known.append(calls.enqueue("q", b"%d" % number))
            except OutcomeUnknown as error:
                unknown.append(error)
        proxy.disarm()
        settings.timeout_s = 10
        assert unknown
        assert direct.count("q").pending == 21
        descriptors = [calls.resolve(error) for error in unknown]
        assert {descriptor.split(":")[1] for descriptor in descriptors} == {"scut"}
        assert {descriptor.split(":")[1] for descriptor in known} == {"swhole"}
        assert len(direct.lookup([*known, *descriptors])) == 20
        assert direct.count("q").pending == 21


@pytest.mark.parametrize("restart", [False, True], ids=["connections killed", "server killed"])
@pytest.mark.parametrize("server_kind", KINDS)
def test_a_waiting_dequeue_outlives_its_connections(
    make: Callable[..., Calls], server_kind: Kind, restart: bool, fresh_server: FreshServer
) -> None:
    server = fresh_server(server_kind, aof_always=True)
    calls = make(server.url)
    calls.create_queue("q")
    with ThreadPoolExecutor(1) as thread, Client(server.url) as direct:
        waiting = thread.submit(calls.dequeue, "q", 1, wait=WAIT_S)
        wait_until(lambda: server.call("ZCARD", "pl:{q/1}:waiters"), "a registered waiter")
        if restart:
            server.restart(kill=True)
        else:
            server.call("CLIENT", "KILL", "TYPE", "pubsub")
            server.call("CLIENT", "KILL", "TYPE", "normal")
        wait_until(lambda: server.call("PUBSUB", "CHANNELS", "pl:{*}:wake:*"), "a new subscription")
        direct.enqueue("q", b"body")
        assert [job.body for job in waiting.result()] == [b"body"]
