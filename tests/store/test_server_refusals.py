"""A server that answers, but refuses: it loads its data, cannot save, or is a replica.

Promises: every write, and every read where the server refuses reads too, waits for the server and is then carried out
once; where the time is up the error says what the server said, and nothing was changed, half a call included; where
there is another shard, jobs go there.
Risks: how often a call asks meanwhile is left to it. What a full server does else is in test_server_faults.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from pinlater import Client
from pinlater.model.errors import ServerUnavailable
from tests.conftest import FreshServer
from tests.support.audits import audit_queue
from tests.support.both_clients import Calls, kind, make
from tests.support.cut_cases import READS, WRITES, Case, begin
from tests.support.servers import KINDS, Kind, Server, free_port, wait_until

__all__ = ["kind", "make"]  # fixtures

Make = Callable[..., Calls]
#: Fails at once and changes nothing: the registry of queues takes the name first.
AT_ONCE = "create"
FILLERS = 4000  # keys that the server reads at its start, each with a pause
PAUSE_US = 10_000  # the start takes 40 s, unless the test ends the pauses
CERTAIN_S = 30.0  # the clients' patience where the server will come back
EACH_KIND = pytest.mark.parametrize("server_kind", KINDS)


@contextmanager
def loading(server: Server) -> Iterator[None]:
    """Restarts the server, which answers but loads its data until the end of `with`."""
    with ThreadPoolExecutor(1) as thread:
        restarted = thread.submit(server.restart, kill=True)
        wait_until(lambda: is_loading(server), "a server that reads its data")
        try:
            yield
        finally:
            server.call("CONFIG", "SET", "key-load-delay", 0)
            restarted.result()


def is_loading(server: Server) -> bool:
    with suppress(redis.ConnectionError):
        return bool(server.info("persistence")["loading"])
    return False


@contextmanager
def unable_to_save(server: Server) -> Iterator[None]:
    """Makes the last snapshot fail: there is a directory in place of its file."""
    server.call("CONFIG", "SET", "save", "3600 1")
    name = server.directory / "dump.rdb"
    name.mkdir()
    save(server, "err")
    try:
        yield
    finally:
        name.rmdir()
        save(server, "ok")


def save(server: Server, expected: str) -> None:
    server.call("BGSAVE")
    wait_until(lambda: last_save(server) == ["0", expected], f"a snapshot that ends {expected}")


def last_save(server: Server) -> list[str]:
    info = server.info("persistence")
    return [str(info["rdb_bgsave_in_progress"]), info["rdb_last_bgsave_status"]]


@contextmanager
def replica(server: Server) -> Iterator[None]:
    """Makes the server a replica of a primary that does not exist; its data stays."""
    server.call("REPLICAOF", "127.0.0.1", free_port())
    try:
        yield
    finally:
        server.call("REPLICAOF", "NO", "ONE")


@contextmanager
def stale_replica(server: Server) -> Iterator[None]:
    server.call("CONFIG", "SET", "replica-serve-stale-data", "no")
    with replica(server):
        yield


@contextmanager
def alone(server: Server) -> Iterator[None]:
    server.call("CONFIG", "SET", "min-replicas-to-write", 1)
    try:
        yield
    finally:
        server.call("CONFIG", "SET", "min-replicas-to-write", 0)


#: Code, how to cause it, and whether the server refuses reads too.
REFUSALS = {
    "LOADING": (loading, True),
    "MISCONF": (unable_to_save, False),
    "READONLY": (replica, False),
    "MASTERDOWN": (stale_replica, True),
    "NOREPLICAS": (alone, False),
}


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield


@contextmanager
def full(server: Server) -> Iterator[None]:
    server.call("CONFIG", "SET", "maxmemory", 1)
    yield


#: Failures after which a shard certainly did not take a job.
CERTAIN = {"refused": killed, "OOM": full, **{code: refuse for code, (refuse, _) in REFUSALS.items()}}


@pytest.fixture(params=REFUSALS)
def code(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def server_to_refuse(fresh_server: FreshServer, kind: Kind, code: str) -> Server:
    if code != "LOADING":
        return fresh_server(kind)
    slow = {"key-load-delay": str(PAUSE_US), "loading-process-events-interval-bytes": "1024", "rdbcompression": "no"}
    server = fresh_server(kind, aof_always=True, config=slow)
    server.call("MSET", *(word for number in range(FILLERS) for word in (f"filler:{number}", "x" * 1024)))
    server.call("BGREWRITEAOF")  # of a snapshot the server answers after each key, of an AOF after a thousand commands
    wait_until(lambda: not server.info("persistence")["aof_rewrite_in_progress"], "a rewritten AOF")
    return server


def refused(server: Server) -> int:
    """The number of script calls that the server has refused since its start."""
    calls = server.info("commandstats").get("cmdstat_evalsha", {})
    return int(calls.get("rejected_calls", 0)) + int(calls.get("failed_calls", 0))


@EACH_KIND
def test_every_call_waits_for_the_server_and_is_carried_out_once(
    make: Make, server_kind: Kind, code: str, fresh_server: FreshServer
) -> None:
    server = server_to_refuse(fresh_server, server_kind, code)
    refuse, reads_too = REFUSALS[code]
    waiting = [*WRITES, *READS] if reads_too else [case for case in WRITES if case.name != AT_ONCE]
    calls = make(server.url, timeout_s=CERTAIN_S)
    with Client(server.url) as direct:
        needed = {case.name: begin(case, calls, direct, queue_of(case)) for case in [*WRITES, *READS]}

        def call(case: Case) -> Any:
            return case.call(calls, queue_of(case), needed[case.name])

        def check(case: Case, answer: Any) -> None:
            assert case.holds(direct, queue_of(case), answer, needed[case.name]), case.name

        with ThreadPoolExecutor(len(waiting)) as threads:
            with refuse(server):
                before = refused(server)
                answers = {case.name: threads.submit(call, case) for case in waiting}
                wait_until(lambda: refused(server) >= before + 3 * len(waiting), "three tries a call")
                assert {name: answer.exception() for name, answer in answers.items() if answer.done()} == {}
                for case in [] if reads_too else READS:
                    check(case, call(case))
            for case in waiting:
                check(case, answers[case.name].result())


@pytest.mark.parametrize("outcome", CERTAIN)
def test_jobs_go_to_another_shard_on_a_certain_outcome(make: Make, outcome: str, fresh_server: FreshServer) -> None:
    broken, sound = server_to_refuse(fresh_server, "valkey", outcome), fresh_server()
    calls = make(shards={"broken": broken.url, "sound": sound.url}, timeout_s=2)
    calls.create_queue("q")
    calls.enqueue_many("q", [b"before"] * 10)
    before = calls.count("q").pending
    with CERTAIN[outcome](broken):
        descriptors = [calls.enqueue("q", b"%d" % number) for number in range(20)]
        assert {descriptor.split(":")[1] for descriptor in descriptors} == {"ssound"}
    with Client(shards={"sound": sound.url}) as direct:
        found = direct.lookup(descriptors, with_body=True)
        assert [info.body for info in found.values()] == [b"%d" % number for number in range(20)]
        assert 20 <= direct.count("q").pending <= 20 + before


def test_a_client_that_does_not_know_the_queue_yet_waits_too(make: Make, fresh_server: FreshServer) -> None:
    server = server_to_refuse(fresh_server, "valkey", "LOADING")
    with Client(server.url) as direct:
        direct.create_queue("q")
    calls = make(server.url, timeout_s=CERTAIN_S)
    with ThreadPoolExecutor(1) as thread:
        with loading(server):
            descriptor = thread.submit(calls.enqueue, "q", b"body")
            wait_until(lambda: refused(server) >= 8, "refusals over more than a second")
            assert not descriptor.done()
        assert list(calls.lookup([descriptor.result()])) == [descriptor.result()]


def queue_of(case: Case) -> str:
    return "for_" + re.sub(r"\W", "_", case.name)


@EACH_KIND
def test_a_call_at_its_deadline_quotes_the_server_and_has_changed_nothing(
    make: Make, server_kind: Kind, code: str, fresh_server: FreshServer
) -> None:
    server = server_to_refuse(fresh_server, server_kind, code)
    calls = make(server.url, timeout_s=CERTAIN_S)
    with Client(server.url) as direct:
        needed = {case.name: begin(case, calls, direct, queue_of(case)) for case in WRITES}
        before = contents(server)
        with REFUSALS[code][0](server):
            calls.client.settings.timeout_s = 0.1
            for case in WRITES:
                with pytest.raises(Exception, match=f"{code}|READONLY") as raised:  # a stale replica may give either
                    case.call(calls, queue_of(case), needed[case.name])
                errors = getattr(raised.value, "errors", {"": raised.value})  # deleting a queue: an error a shard
                assert [type(error) for error in errors.values()] == [ServerUnavailable], case.name
        assert contents(server) == before
        calls.client.settings.timeout_s = CERTAIN_S
        for case in WRITES:
            answer = case.call(calls, queue_of(case), needed[case.name])
            assert case.holds(direct, queue_of(case), answer, needed[case.name]), case.name


def contents(server: Server) -> dict[bytes, bytes]:
    """The keys of queues. Their registry is a set, whose order may change."""
    return {key: server.call("DUMP", key) for key in server.call("KEYS", "pl:{*/*")}


@EACH_KIND
def test_a_server_that_became_a_replica_takes_nothing_and_its_successor_has_everything(
    make: Make, server_kind: Kind, fresh_server: FreshServer
) -> None:
    old, new = fresh_server(server_kind), fresh_server(server_kind)
    new.call("REPLICAOF", "127.0.0.1", old.port)
    wait_until(lambda: new.info("replication")["master_link_status"] == "up", "a replica that follows")
    calls = make(old.url, timeout_s=CERTAIN_S)
    calls.create_queue("q")
    descriptors = calls.enqueue_many("q", [b"%d" % number for number in range(50)])
    held = calls.dequeue("q", 5)
    old.call("FAILOVER")
    wait_until(lambda: new.info("replication")["role"] == "master", "the successor")
    wait_until(lambda: old.info("replication")["role"] == "slave", "the old primary to step back")
    calls.client.settings.timeout_s = 0.1
    with pytest.raises(ServerUnavailable, match="READONLY"):
        calls.enqueue("q", b"late")
    with pytest.raises(ServerUnavailable, match="READONLY"):
        calls.ack(succeeded=held)
    with Client(new.url) as client:
        assert list(client.lookup(descriptors)) == descriptors
        assert client.ack(succeeded=held) == []
        assert (client.count("q").pending, client.count("q").in_progress) == (45, 0)
        assert audit_queue(client, "q").findings == []
