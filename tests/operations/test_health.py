"""Health by consecutive pings: what an unhealthy shard takes and what it does not, and how it comes back.

Promises: tests make each ping themselves, so that nothing depends on a clock. A server that is down refuses
connections; `paused` ones are what a silent server is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import pytest

from pinlater import CountsByState, InvalidArgument, NewJob, State
from pinlater.model.errors import (
    DequeueOnly,
    NoHealthyShards,
    OutcomeUnknown,
    PartialDelete,
    ServerUnavailable,
    ShardUnhealthy,
)
from pinlater.operations.health import PING_S, Health, HealthRules, ShardHealth
from pinlater.store import requests
from tests.conftest import FreshServer
from tests.operations.test_behaviour_shards import key_of, shard_of
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server

__all__ = ["kind", "make"]  # fixtures

NAMES = ["here", "away"]
RULES = HealthRules(failures=3, successes=2)


# counts


def test_a_state_changes_after_so_many_in_a_row() -> None:
    health = ShardHealth(RULES)
    outcomes = [False, False, True, False, False, False, False, True, False, True, True, True]
    changed = [health.note(outcome) for outcome in outcomes]
    assert [index for index, has_changed in enumerate(changed) if has_changed] == [5, 10]
    assert health.is_healthy


def test_the_rules_are_those_of_the_original_unless_given() -> None:
    assert (HealthRules().failures, HealthRules().successes) == (6, 6)
    with pytest.raises(InvalidArgument, match="failures: expected"):
        HealthRules(failures=0)
    with pytest.raises(InvalidArgument, match="successes: expected"):
        HealthRules(successes=0)


# one shard of two


class Pings:
    """The pings of a client."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.health = Health(calls.client.session, RULES)

    def __call__(self, times: int = 1) -> dict[str, bool]:
        for _ in range(times):
            for server in self.health.servers():
                self.calls.run(partial(self.health.ping, server))
        return self.health.states


@pytest.fixture
def away(fresh_server: FreshServer) -> Server:
    return fresh_server(aof_always=True)


@pytest.fixture
def calls(server: Server, away: Server, make: Callable[..., Calls]) -> Calls:
    made = make(shards={"here": server.url, "away": away.url}, timeout_s=5)
    made.create_queue("q")
    return made


@pytest.fixture
def pings(calls: Calls) -> Pings:
    return Pings(calls)


def on(calls: Calls, shard: str) -> str:
    """The descriptor of a new job on a shard."""
    descriptor: str = calls.enqueue("q", shard.encode(), key=key_of(shard, NAMES))
    assert shard_of(descriptor) == shard
    return descriptor


def test_an_unhealthy_shard_gets_pings_alone_and_comes_back(
    calls: Calls, pings: Pings, away: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, running = on(calls, "away"), calls.dequeue("q", 1)
    on(calls, "here")
    away.stop()
    assert pings(2) == {"here": True, "away": True}
    caplog.set_level(logging.INFO, "pinlater.shards")
    assert pings() == {"here": True, "away": False}
    [line] = [record.message for record in caplog.records]
    assert line.startswith(f"shard away ({away.url}) is unhealthy: 3 pings failed, at last: ")

    named = f"shard away .*{away.port}.* is unhealthy"
    refuse_waits(calls, monkeypatch)
    for _ in range(20):
        assert shard_of(calls.enqueue("q", b"x")) == "here"
    assert {job.shard for job in calls.dequeue("q", 30)} == {"here"}
    refused: list[Callable[[], object]] = [
        lambda: calls.enqueue("q", b"x", key=key_of("away", NAMES)),
        lambda: calls.count("q"),
        lambda: calls.peek("q"),
        lambda: calls.scan("q"),
        lambda: calls.retry_failed("q"),
        lambda: calls.delete_jobs("q", "failed", limit=5),
        lambda: calls.purge("q"),
        lambda: calls.queue_names(),
        lambda: calls.lookup([lost]),
        lambda: calls.ack(succeeded=running),
        lambda: calls.count("unknown"),
    ]
    for call in refused:
        with pytest.raises(ShardUnhealthy, match=named) as raised:
            call()
        assert not isinstance(raised.value, NoHealthyShards)
    with pytest.raises(PartialDelete, match=named):
        calls.delete_queue("other")
    monkeypatch.undo()

    away.start()
    caplog.clear()
    assert pings() == {"here": True, "away": False}
    with pytest.raises(ShardUnhealthy):
        calls.count("q")
    assert pings() == {"here": True, "away": True}
    assert [record.message for record in caplog.records] == [
        f"shard away ({away.url}) is healthy again: 2 pings succeeded"
    ]
    assert calls.count("q").in_progress == 22
    assert calls.ack(succeeded=running) == []
    assert on(calls, "away")
    assert [job.shard for job in calls.dequeue("q", 9)] == ["away"]  # at once: nobody passes it over any more


def refuse_waits(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no call may connect to the shard that is away, and none may pause and try again."""
    connect, server = calls.client.driver.connect, calls.client.session.shards["away"].server

    def connect_elsewhere(other: object, *arguments: object) -> object:
        assert other is not server, "a call connects to an unhealthy server"
        return connect(other, *arguments)

    def pause(_: float) -> None:
        raise AssertionError("a call waits for an unhealthy server")

    monkeypatch.setattr(calls.client.driver, "connect", connect_elsewhere)
    monkeypatch.setattr(requests, "Sleep", pause)


def test_calls_of_an_unhealthy_shard_do_not_use_its_free_connections(calls: Calls, away: Server) -> None:
    """The server answers, so only the state keeps the call from it."""
    descriptor, server = on(calls, "away"), calls.client.session.shards["away"].server
    server.outage = partial(ShardUnhealthy, "as if")
    with pytest.raises(ShardUnhealthy, match="as if"):
        calls.lookup([descriptor])
    calls.run(partial(Health(calls.client.session, RULES).ping, server))
    assert "cmdstat_ping" in away.info("commandstats")
    server.outage = None
    assert len(calls.lookup([descriptor])) == 1


def test_a_silent_server_becomes_unhealthy_and_no_call_waits_for_it_then(
    server: Server, away: Server, make: Callable[..., Calls]
) -> None:
    calls = make(shards={"here": server.url, "away": away.url}, timeout_s=5, read_timeout_s=0.3, connect_timeout_s=0.3)
    calls.create_queue("q")
    pings = Pings(calls)
    on(calls, "away")
    away.pause()
    try:
        assert not pings(RULES.failures)["away"]
        with pytest.raises(ShardUnhealthy):
            calls.count("q")
        with pytest.raises(ShardUnhealthy):
            on(calls, "away")
    finally:
        away.resume()
    assert pings(RULES.successes)["away"]
    assert calls.count("q") == CountsByState(pending=1)


def test_a_client_that_has_not_seen_the_queue_counts_nothing_without_a_shard(
    server: Server, away: Server, calls: Calls, make: Callable[..., Calls]
) -> None:
    on(calls, "away")
    away.stop()
    fresh = make(shards={"here": server.url, "away": away.url})
    pings = Pings(fresh)
    pings(RULES.failures)
    with pytest.raises(ShardUnhealthy, match="shard away"):
        fresh.count("q")
    assert shard_of(fresh.enqueue("q", b"")) == "here"
    assert len(fresh.dequeue("q", 9)) == 1


def test_without_pings_a_missing_shard_is_named_too(server: Server, away: Server, make: Callable[..., Calls]) -> None:
    calls = make(shards={"here": server.url, "away": away.url}, timeout_s=1)
    calls.create_queue("q")
    away.stop()
    fresh = make(shards={"here": server.url, "away": away.url}, timeout_s=2)
    for name in ("count", "peek", "scan", "retry_failed", "purge"):
        with pytest.raises(ServerUnavailable, match="queue 'q' on shard away"):
            getattr(fresh, name)("q")
    for name in ("count", "peek"):  # of a client that knows the queue there
        with pytest.raises(ServerUnavailable, match="queue 'q' on shard away"):
            getattr(calls, name)("q")


# suspect servers


def scripts_of(server: Server) -> int:
    """How many scripts a server has run. One that was paused has run by now what came meanwhile."""
    return sum(each["calls"] for name, each in server.info("commandstats").items() if name.startswith("cmdstat_eval"))


def on_which(calls: Calls) -> set[str]:
    """The shards of new jobs. One that takes jobs is left out once in a trillion times."""
    return {shard_of(calls.enqueue("q", b"x")) for _ in range(40)}


def test_a_ping_waits_a_second_at_most(calls: Calls) -> None:
    health = Health(calls.client.session, RULES)
    for server in health.servers():
        for given_s, expected_s in ((float("inf"), PING_S), (0.1, 0.1)):
            started_s = time.monotonic()
            flow = health.ping(server, started_s + given_s)
            [sent] = flow.send(None)  # type: ignore[misc]
            flow.close()
            assert started_s + expected_s <= sent.deadline_s <= time.monotonic() + expected_s
    assert PING_S == 1


def test_a_suspect_server_gets_no_new_jobs_and_no_claims_until_a_ping_is_answered(
    calls: Calls, pings: Pings, away: Server
) -> None:
    lost, [running] = on(calls, "away"), calls.dequeue("q", 1)
    assert pings() == {"here": True, "away": True}
    assert on_which(calls) == {"here", "away"}
    before = scripts_of(away)
    away.pause()
    try:
        assert pings() == {"here": True, "away": True}
        assert on_which(calls) == {"here"}
        for _ in range(3):
            assert {job.shard for job in calls.dequeue("q", 10)} == {"here"}
    finally:
        away.resume()
    assert scripts_of(away) == before
    # it answers, and no ping has seen it: what only this shard can do goes to it
    assert calls.lookup([lost])[lost].state is State.IN_PROGRESS
    assert calls.ack(succeeded=[running]) == []
    assert calls.count("q").in_progress == 30
    assert on_which(calls) == {"here"}
    pings()
    assert on_which(calls) == {"here", "away"}
    assert {job.shard for job in calls.dequeue("q", 1_000)} == {"here", "away"}


def test_if_all_servers_are_suspect_they_get_jobs_and_claims(calls: Calls, pings: Pings, server: Server) -> None:
    pings()
    for each in calls.client.session.servers:
        each.suspect = True
    assert on_which(calls) == {"here", "away"}
    assert {job.shard for job in calls.dequeue("q", 1_000)} == {"here", "away"}


@pytest.mark.parametrize("pinged", [True, False])
def test_a_shard_that_was_silent_to_a_call_gets_no_new_jobs_until_a_ping_is_answered(
    server: Server, away: Server, make: Callable[..., Calls], pinged: bool
) -> None:
    calls = make(shards={"here": server.url, "away": away.url}, timeout_s=0.5)
    calls.create_queue("q")
    silent, pings = calls.client.session.queue_shard("q", "away"), Pings(calls)
    if pinged:
        pings()
    assert on_which(calls) == {"here", "away"}
    away.pause()
    try:
        with pytest.raises(OutcomeUnknown):
            on_which(calls)
        assert silent.silent_until_s > time.monotonic()
        assert silent.shard.server.suspect is pinged
        assert on_which(calls) == {"here"}
        silent.silent_until_s = float("-inf")  # as if its time were over
        if pinged:
            assert on_which(calls) == {"here"}
    finally:
        away.resume()
    if pinged:
        assert on_which(calls) == {"here"}
        silent.silent_until_s = float("inf")
        pings()
    assert on_which(calls) == {"here", "away"}


def test_a_server_that_is_pinged_no_more_is_not_suspect(server: Server, away: Server, calls: Calls) -> None:
    pings, shards = Pings(calls), {"here": server.url, "away": away.url}
    away.pause()
    try:
        pings()
        calls.change_shards({"here": server.url})
        pings()
    finally:
        away.resume()
    calls.change_shards(shards)
    assert on_which(calls) == {"here", "away"}


# all shards


def test_if_no_shard_is_healthy_each_call_says_so(fresh_server: FreshServer, make: Callable[..., Calls]) -> None:
    servers = [fresh_server(aof_always=True), fresh_server(aof_always=True)]
    calls = make(shards={name: server.url for name, server in zip(NAMES, servers, strict=True)}, timeout_s=5)
    calls.create_queue("q")
    descriptor, pings = on(calls, "here"), Pings(calls)
    for server in servers:
        server.stop()
    assert pings(RULES.failures) == {"here": False, "away": False}
    refused: list[Callable[[], object]] = [
        lambda: calls.enqueue("q", b""),
        lambda: calls.enqueue_many("q", [NewJob(b"", key="k")] * 3),
        lambda: calls.dequeue("q"),
        lambda: calls.count("q"),
        lambda: calls.queue_names(),
        lambda: calls.lookup([descriptor]),
        lambda: calls.create_queue("new"),
    ]
    for call in refused:
        with pytest.raises(NoHealthyShards):
            call()
    servers[0].start()
    assert pings(RULES.successes) == {"here": True, "away": False}
    with pytest.raises(ShardUnhealthy, match="shard away") as raised:
        calls.count("q")
    assert not isinstance(raised.value, NoHealthyShards)
    servers[1].start()
    assert pings(RULES.successes) == {"here": True, "away": True}
    assert calls.count("q") == CountsByState(pending=1)


def test_an_enqueue_finds_no_healthy_shard_if_those_that_take_jobs_are_not(
    server: Server, away: Server, calls: Calls, pings: Pings
) -> None:
    shards = {"here": {"url": server.url, "dequeue_only": True}, "away": away.url}
    on(calls, "here")
    calls.change_shards(shards)
    away.stop()
    pings(RULES.failures)
    with pytest.raises(NoHealthyShards, match="no shard that takes new jobs is healthy: away"):
        calls.enqueue("q", b"")
    assert [job.body for job in calls.dequeue("q", 9)] == [b"here"]
    calls.change_shards({"here": server.url})
    assert pings() == {"here": True}
    assert shard_of(calls.enqueue("q", b"")) == "here"
    calls.change_shards({"here": {"url": server.url, "dequeue_only": True}})
    with pytest.raises(DequeueOnly):
        calls.enqueue("q", b"")
