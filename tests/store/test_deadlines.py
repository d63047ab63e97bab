"""A call ends at its timeout, whatever delays its answer.

Promises: the tests try a configuration that keeps changing, a silent server, one that comes back late, and one that a
call leaves for another shard. Both clients.
Risks: the tests measure times. The bounds are far from the right times and from those of the faults found.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater import Client, ConfigConflict, CountsByState, QueueConfig
from pinlater.model.errors import OutcomeUnknown, ServerUnavailable
from pinlater.operations import enqueue
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import QueueShard
from tests.conftest import FreshServer
from tests.support.both_clients import CALLS_KINDS, Calls, make_calls
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.resp import Command
from tests.support.servers import Server

ALWAYS = 10**9
SHORT_S = 0.5
LATE_S = 2.0  # longer than one shard's answer waits for another


@pytest.fixture
def direct(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        client.create_queue("q")
        client.enqueue("q", b"the server knows the script")
        yield client


@pytest.fixture
def proxy(server: Server) -> Iterator[CutProxy]:
    with CutProxy(server.port) as new:
        yield new


@pytest.fixture(params=CALLS_KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Calls]]:
    clients: list[Calls] = []

    def new(*arguments: Any, **settings: Any) -> Calls:
        clients.append(make_calls(request.param, *arguments, **settings))
        return clients[-1]

    yield new
    for calls in clients:
        calls.close()


def of(verb: str) -> Callable[[Command], bool]:
    sha = load_scripts()[verb].sha
    return lambda command: command[1:2] == [sha]


class ConfigChanger:
    """Changes the queue's configuration just before a script of one verb comes to the server, `count` times."""

    def __init__(self, direct: Client, verb: str, count: int) -> None:
        self.tries = 0
        self._direct, self._matches, self._count = direct, of(verb), count

    def __call__(self, command: Command) -> bool:
        if self._matches(command):
            self.tries += 1
            if self.tries <= self._count:
                self._direct.configure_queue("q", lease_ms=10_000 + self.tries)
        return False


@pytest.mark.parametrize(
    ("verb", "call"),
    [("enqueue", lambda calls: calls.enqueue("q", b"")), ("count", lambda calls: calls.count("q"))],
    ids=["write", "read"],
)
def test_a_configuration_that_keeps_changing_ends_the_call_at_its_deadline(
    verb: str, call: Callable[[Calls], Any], make: Callable[..., Calls], direct: Client, proxy: CutProxy
) -> None:
    calls = make(proxy.url, timeout_s=SHORT_S)
    calls.count("q")
    changer = ConfigChanger(direct, verb, ALWAYS)
    proxy.arm(Cut.BEFORE, match=changer)
    with pytest.raises(ConfigConflict, match="queue 'q'"):
        call(calls)
    assert 3 <= changer.tries <= 12, "at once, then with growing pauses"
    proxy.disarm()
    assert direct.count("q") == CountsByState(pending=1)
    call(calls)


@pytest.mark.parametrize("verb", ["enqueue", "count"])
def test_a_configuration_that_changed_once_costs_no_pause(
    verb: str, make: Callable[..., Calls], direct: Client, proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.store.requests.FIRST_PAUSE_S", 60.0)
    calls = make(proxy.url)
    calls.count("q")
    changer = ConfigChanger(direct, verb, 1)
    proxy.arm(Cut.BEFORE, match=changer)
    assert calls.enqueue("q", b"") if verb == "enqueue" else calls.count("q")
    assert changer.tries == 2


def test_a_call_leaves_a_shard_whose_configuration_it_cannot_read_at_once(
    make: Callable[..., Calls], server: Server, proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_first(queue_shards: list[QueueShard]) -> list[QueueShard]:
        return sorted(queue_shards, key=lambda queue_shard: queue_shard.shard.name)

    monkeypatch.setattr(enqueue, "shuffled", cut_first)
    with Client(shards={"cut": server.url, "whole": server.url}) as direct:
        calls = make(shards={"cut": proxy.url, "whole": server.url}, timeout_s=30)
        direct.create_queue("q")
        direct.enqueue_many("q", [b""] * 2)
        assert calls.enqueue("q", b"").split(":")[1] == "scut"
        proxy.arm(Cut.BEFORE, match=ConfigChanger(direct, "enqueue", 1))
        proxy.arm(Cut.BEFORE, match=of("config"), count=ALWAYS)
        began_s = time.monotonic()
        assert calls.enqueue("q", b"").split(":")[1] == "swhole"
        assert time.monotonic() - began_s < 15


@pytest.mark.parametrize("cut", [Cut.BLACKHOLE, Cut.MUTE])
def test_a_silent_server_does_not_hold_a_call_for_its_read_timeout(
    cut: Cut, make: Callable[..., Calls], direct: Client, proxy: CutProxy
) -> None:
    calls = make(proxy.url, timeout_s=SHORT_S, read_timeout_s=30)
    calls.count("q")
    proxy.arm(cut, match=of("enqueue"), count=ALWAYS)
    began_s = time.monotonic()
    with pytest.raises(OutcomeUnknown) as raised:
        calls.enqueue("q", b"")
    assert time.monotonic() - began_s < 15
    proxy.disarm()
    assert calls.resolve(raised.value)
    assert direct.count("q").pending == 2


def test_what_was_sent_is_given_time_to_be_answered(
    make: Callable[..., Calls], direct: Client, proxy: CutProxy
) -> None:
    calls = make(proxy.url, timeout_s=0.05)
    calls.count("q")
    proxy.arm(Cut.DELAY, match=of("enqueue"), delay_s=0.3)
    assert calls.enqueue("q", b"")
    assert direct.count("q").pending == 2


@pytest.mark.parametrize("count", [1, 2], ids=["one shard", "two shards"])
@pytest.mark.parametrize("first_call", ["create_queue", "enqueue", "queue_config"])
def test_the_first_call_waits_for_a_server_that_comes_back(
    first_call: str, count: int, make: Callable[..., Calls], fresh_server: FreshServer
) -> None:
    servers = [fresh_server(aof_always=True) for _ in range(count)]
    shards = {str(number): server.url for number, server in enumerate(servers)}
    calls = make(shards=shards, timeout_s=30)
    calls.create_queue("before")
    with Client(shards=shards) as direct:
        if first_call != "create_queue":
            direct.create_queue("q")
    for server in servers:
        server.stop()
    # it was silent in the last call; a call still asks it once the other is silent too
    calls.client.session.queue_shard("q", str(count - 1)).silent_until_s = float("inf")
    returning = threading.Timer(LATE_S, servers[-1].start)
    returning.start()
    began_s = time.monotonic()
    answer = {
        "create_queue": lambda: calls.create_queue("q"),
        "enqueue": lambda: calls.enqueue("q", b"body"),
        "queue_config": lambda: calls.queue_config("q") == QueueConfig(),
    }[first_call]()
    assert answer
    assert LATE_S <= time.monotonic() - began_s < 25
    returning.join()


@pytest.mark.parametrize("count", [1, 2], ids=["one shard", "two shards"])
def test_a_first_call_without_a_server_ends_at_its_deadline(
    count: int, make: Callable[..., Calls], fresh_server: FreshServer
) -> None:
    servers = [fresh_server() for _ in range(count)]
    calls = make(shards={str(number): server.url for number, server in enumerate(servers)}, timeout_s=LATE_S)
    calls.create_queue("before")
    for server in servers:
        server.stop()
    began_s = time.monotonic()
    with pytest.raises(ServerUnavailable):
        calls.create_queue("q")
    assert LATE_S / 2 < time.monotonic() - began_s < 15


def test_a_connect_ends_with_the_call(make: Callable[..., Calls]) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # fills the backlog, so that other connects wait
            calls = make(f"redis://127.0.0.1:{port}", timeout_s=SHORT_S, connect_timeout_s=300.0, read_timeout_s=300.0)
            started_s = time.monotonic()
            with pytest.raises(ServerUnavailable):
                calls.enqueue("q", b"x")
            assert time.monotonic() - started_s < 60
