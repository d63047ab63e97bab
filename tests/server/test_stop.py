"""Stops, restarts and kills of `pinlater server` under load, in processes of its own: no acknowledged job is lost."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from pinlater import Client, QueueConfig
from pinlater.model.jobs import State
from pinlater.server import server_process
from pinlater.server.settings import MIB
from tests.conftest import FreshServer
from tests.support.audits import audit_queue
from tests.support.server_runs import DEADLINE_S, StartServer, start_server
from tests.support.servers import Server, is_alive, wait_until
from tests.support.service_load import Load, left, loaded
from tests.support.thrift_clients import RawPeer
from tests.support.thrift_frames import call, dequeue, enqueue, read_answer
from tests.support.thrift_server import ThriftServer

__all__ = ["start_server"]  # a fixture

on_valkey = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # what is shown is not the store's

Connect = Callable[[int], RawPeer]
LEASE_MS = 1_500


@pytest.fixture
def connect() -> Iterator[Callable[[int], RawPeer]]:
    """`connect(port)`: a connection that is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(closing(RawPeer(port)))


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A direct client. The queue q has long leases: what comes back was released."""
    with Client(server.url) as client:
        client.create_queue("q", QueueConfig(keep_succeeded=1_000_000, body_limit=32 * MIB))
        yield client


def check_all_ran(client: Client, load: Load) -> None:
    """Each acknowledged job ran and succeeded."""
    assert load.acknowledged - set(load.got) == set()
    assert client.count("q").succeeded >= len(load.acknowledged)
    assert client.count("q").failed == 0
    report = audit_queue(client, "q")
    assert report.ok, report


def held_by(load: Load) -> set[str]:
    return set().union(*(each.descriptors for each in load.consumers))


@on_valkey
def test_a_stop_under_load_answers_what_it_did(start_server: StartServer, client: Client) -> None:
    service = start_server("--processes", "2")
    with loaded(service.port) as load:
        load.progress()
        assert service.end() == 0
    assert "Traceback" not in service.log
    assert "killed" not in service.log
    running = {info.descriptor for info in client.scan("q", State.IN_PROGRESS)}
    assert running <= held_by(load)  # the others went back, and a worker knows of these
    counts = client.count("q")
    assert counts.pending + counts.in_progress + counts.succeeded >= len(load.acknowledged)
    jobs = []
    while more := client.dequeue("q", 500):
        jobs += more
    assert {job.attempt for job in jobs} <= {1}
    bodies = {job.body for job in jobs}
    assert load.acknowledged <= bodies | set(load.got)
    assert audit_queue(client, "q").ok


@on_valkey
@pytest.mark.usefixtures("client")
def test_a_call_under_way_is_answered_at_a_stop(start_server: StartServer, server: Server, connect: Connect) -> None:
    service = start_server()
    peer, idle = connect(service.port), connect(service.port)
    peer.send(call("getQueueNames"))
    assert read_answer(peer.frame()).value == ["q"]
    server.pause()
    try:
        peer.send(enqueue("q", b"x"))
        idle.send(call("getQueueNames")[:5])
        # one process reads both connections: it had the call before it heard of the signal
        service.send(signal.SIGTERM)
        assert idle.is_closed()
    finally:
        server.resume()
    assert len(read_answer(peer.frame()).value.jobDescriptors) == 1
    assert peer.is_closed()
    assert service.process.wait(DEADLINE_S) == 0
    with pytest.raises(ConnectionRefusedError):
        connect(service.port)


@pytest.mark.thorough("processes")
@on_valkey
def test_a_second_signal_ends_the_wait_and_jobs_that_nobody_took_go_back(
    start_server: StartServer, client: Client, connect: Connect
) -> None:
    service = start_server()
    client.enqueue_many("q", [bytes(12 * MIB)])
    peer = connect(service.port)
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    peer.send(dequeue("q", 1))
    wait_until(lambda: client.count("q").in_progress == 1, "the claim", DEADLINE_S)
    assert peer.socket.recv(1)  # the answer is on its way
    service.send(signal.SIGTERM)
    service.logged("stopping, press Ctrl-C again to close connections without waiting for the calls under way")
    assert service.process.poll() is None
    service.send(signal.SIGTERM)
    assert service.process.wait(DEADLINE_S) == 0
    service.logged("closing connections without waiting for the calls under way")
    assert client.count("q").pending == 1
    assert [job.attempt for job in client.dequeue("q", 1)] == [1]


@on_valkey
@pytest.mark.parametrize("how", ["its deadline", "hurry"])
def test_a_stop_ends_though_redis_does_not_answer(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(server_process, "GIVE_BACK_S", 0.1)
    with ThriftServer({"1": server.url}, stop_s=0 if how == "its deadline" else 3600) as thrift:
        peer = connect(thrift.port)
        peer.send(call("createQueue", name="q"))
        assert read_answer(peer.frame()).code is None
        server.pause()
        try:
            peer.send(enqueue("q", b"x"))
            wait_until(lambda: thrift.process.calls.capacity.under_way == 1, "a call under way")
            if how == "hurry":
                thrift.process.listener.hurry()
            thrift.run(thrift.process.stop())
            assert peer.is_closed()
        finally:
            server.resume()


@on_valkey
def test_clients_of_a_rolling_restart_see_a_reconnect_at_most(start_server: StartServer, client: Client) -> None:
    service = start_server("--processes", "2")
    with loaded(service.port) as load:
        load.progress()
        first = service.processes(2)
        service.send(signal.SIGHUP)
        wait_until(lambda: not any(map(is_alive, first)), "the end of the old processes", DEADLINE_S)
        load.progress()
        load.finish(lambda: left(client))
        assert len(service.processes(4)) == 4
    assert load.errors == {}
    assert all(user.closed <= 2 + 1 for user in load.users)  # one a process, and its own end
    assert service.end() == 0
    check_all_ran(client, load)
    assert max(load.got.values()) == 1


@on_valkey
def test_a_process_that_is_killed_is_replaced_and_its_jobs_come_back(start_server: StartServer, server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("q", QueueConfig(keep_succeeded=1_000_000, lease_ms=LEASE_MS))
        service = start_server("--processes", "2")
        with loaded(service.port) as load:
            load.progress()
            os.kill(service.processes(2)[0], signal.SIGKILL)
            load.progress()
            service.processes(3)
            load.finish(lambda: left(client))
        assert load.errors == {}
        assert service.end() == 0
        check_all_ran(client, load)


@on_valkey
def test_processes_end_with_a_supervisor_that_is_killed(start_server: StartServer, client: Client) -> None:
    service = start_server("--processes", "2")
    pids = service.processes(2)
    with loaded(service.port) as load:
        load.progress()
        service.send(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), "the end of its processes", DEADLINE_S)
    running = {info.descriptor for info in client.scan("q", State.IN_PROGRESS)}
    assert running <= held_by(load)
    assert client.count("q").pending + client.count("q").in_progress + client.count("q").succeeded >= len(
        load.acknowledged
    )


def test_a_shard_that_is_killed_under_load_comes_back_with_its_jobs(fresh_server: FreshServer) -> None:
    first, second = fresh_server("valkey", aof_always=True), fresh_server("valkey", aof_always=True)
    shards = {"1": first.url, "2": second.url}
    with Client(shards=shards) as client, ThriftServer(shards, timeout_s=2) as thrift:
        client.create_queue("q", QueueConfig(keep_succeeded=1_000_000, lease_ms=LEASE_MS))
        with loaded(thrift.port, producers=3) as load:
            load.progress()
            second.kill()
            load.progress()
            load.progress()
            second.start()
            load.progress()
            load.finish(lambda: left(client))
        assert set(load.errors) <= {502}
        check_all_ran(client, load)
