"""Expiry: whose lease runs out, one active monitor, and clocks that jump.

Promises: shown on real servers under a clock that the test moves.
Risks: needs libfaketime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.memory import EVERY_KIND
from tests.support.servers import Server
from tests.support.wire import Timed, Wire, connect, expiries, known, lease_fields
from tests.support.wire_format import FAILED, FAR_MS, PENDING, Expiry, Job, ends, settings

FreshServer = Callable[..., Server]
LEASE_S = 30


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        made = Wire(client)
        made.create()
        yield made


@pytest.fixture(params=EVERY_KIND)
def timed(request: pytest.FixtureRequest, fresh_server: FreshServer) -> Iterator[Timed]:
    server = fresh_server(request.param, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create()
        yield Timed(wire, server)


def test_an_expired_job_goes_back_with_an_attempt_less_and_a_crash_more(timed: Timed) -> None:
    wire = timed.wire
    ids = wire.enqueue(Job(b"again", status=b"s"), Job(b"last", 2, allowed=1))
    claimed = wire.claim()
    assert wire.expire().leases == 0
    timed.later(LEASE_S + 1)
    expiry = wire.expire()
    assert (expiry.active, expiry.leases, expiry.retried, expiry.failed) == (1, 1, 1, 1)
    again, last = known(wire, ids[0]), known(wire, ids[1], 2)
    assert (again.state, again.remaining, again.crashes, again.status) == (int(PENDING), 9, 1, b"s")
    assert (last.state, last.remaining, last.crashes) == (int(FAILED), 0, 1)
    assert wire.succeed(claimed) == [0, 1]
    assert lease_fields(wire) == (0, 0)
    for crashes in (2, 3):
        assert wire.claim().bodies == [b"again"]
        timed.later(LEASE_S + 1)
        assert wire.expire().retried == 1
        assert known(wire, ids[0]).crashes == crashes


def test_more_than_a_thousand_expired_jobs_take_several_calls(timed: Timed) -> None:
    wire = timed.wire
    for _ in range(3):
        wire.enqueue(*[Job()] * 1000)
        wire.claim(900)
    for _ in range(20):
        wire.claim(1)
    timed.later(LEASE_S + 1)
    calls: list[Expiry] = []
    while not calls or calls[-1].more:
        calls.append(wire.expire())
    assert [(one.leases, one.retried) for one in calls] == [(1, 900)] * 3 + [(20, 20)]
    assert lease_fields(wire) == (0, 0)
    assert wire.counts()[0][0] == 3000


def test_a_large_lease_ends_in_a_call_without_others(wire: Wire) -> None:
    wire.enqueue(*[Job()] * 600)
    for limit in (200, 300, 50, 50):
        wire.claim(limit)
    leases: Any = wire.client.zrange(wire.key("leases"), 0, -1)
    for at_ms, lease in enumerate(leases, 1):
        wire.client.zadd(wire.key("leases"), {lease: at_ms})
    calls = [wire.expire() for _ in range(3)]
    assert [(one.leases, one.retried, one.more) for one in calls] == [(1, 200, 1), (1, 300, 1), (2, 100, 0)]


def test_leases_that_end_leave_less_room_for_lost_ones(fresh_server: FreshServer) -> None:
    server = fresh_server(config={"hash-max-listpack-entries": "512"})  # one page then has all jobs
    with connect(server) as client:
        wire = Wire(client)
        wire.create()
        wire.enqueue(*[Job()] * 500)
        ended, sweep, calls = wire.claim(100).token, b"1:0", list[Expiry]()
        while wire.claim(150).jobs:
            pass
        client.delete(wire.key("leases"))
        client.zadd(wire.key("leases"), {ended: 1})
        for lease in [field for field in client.hkeys(wire.key("lease_jobs")) if field[:8] != ended]:
            client.hdel(wire.key("lease_jobs"), lease)
        while not calls or calls[-1].more:
            calls.append(wire.expire(sweep=sweep))
            sweep = calls[-1].next_sweep
        assert [one.retried for one in calls] == [250, 250]
        assert (wire.counts()[0][0], sweep) == (500, b"2:0")


def test_the_first_look_expires_nothing_and_one_monitor_is_active(timed: Timed) -> None:
    wire = timed.wire
    wire.enqueue_bodies(b"a")
    wire.claim()
    timed.later(LEASE_S + 1)
    first = wire.expire(None, b"monitor1", 10_000)
    assert (first.active, first.leases) == (1, 0)
    other = wire.expire(owner=b"monitor2", hold_ms=10_000)
    assert (other.active, other.leases, other.next_look_ms) == (0, 0, first.now_ms + 10_000)
    timed.later(11)
    taken = wire.expire(owner=b"monitor2", hold_ms=10_000)
    assert (taken.active, taken.leases) == (1, 1)
    assert wire.expire(owner=b"monitor1", hold_ms=10_000).active == 0


def window(now_ms: int) -> tuple[int, int]:
    """What a monitor's own clock allows when no time has passed since it saw `now_ms`."""
    return now_ms - 5000, now_ms + 5000


def test_a_clock_that_jumps_ahead_expires_nothing_for_one_lease(timed: Timed) -> None:
    wire = timed.wire
    wire.enqueue_bodies(b"dead", b"alive")
    dead, alive = wire.claim(1), wire.claim(1)
    seen_ms = wire.expire().now_ms
    timed.later(3600)
    found = wire.expire(window(seen_ms))
    assert (found.active, found.rests, found.leases) == (1, 2, 0)
    timed.later(LEASE_S - 5)
    assert wire.renew(*ends(alive)) == []
    assert (wire.expire().rests, wire.expire().leases) == (1, 0)
    timed.later(6)
    ended = wire.expire()
    assert (ended.rests, ended.leases) == (0, 1)
    assert (wire.succeed(dead), wire.succeed(alive)) == ([0], [])


def test_a_clock_that_jumps_back_leaves_no_lease_longer_than_one_from_now(timed: Timed) -> None:
    wire = timed.wire
    wire.enqueue(*[Job()] * 1000)
    wire.enqueue(*[Job()] * 3)
    for _ in range(1003):
        wire.claim(1)
    seen_ms = wire.expire().now_ms
    timed.later(-3600)
    assert wire.expire(window(seen_ms)).rests == 2
    told = wire.expire(jumped=True)
    assert (told.rests, told.more, told.leases) == (2, 1, 0)
    assert (wire.expire().more, wire.expire().more) == (0, 0)
    latest_ms = max(expiries(wire).values())
    assert latest_ms <= wire.expire().now_ms + LEASE_S * 1000
    timed.later(LEASE_S + 1)
    assert [wire.expire().leases for _ in range(5)] == [250, 250, 250, 250, 3]


def test_a_server_that_stood_still_expires_nothing_for_one_lease_and_collects(timed: Timed) -> None:
    """Only the monitor knows that the clock had not jumped. Leases that are longer for a reason stay as they are."""
    wire = timed.wire
    wire.configure(settings(keep=10, succeeded_s=1))
    wire.enqueue(Job(b"ended"), Job(b"late"), Job(b"long"))
    wire.succeed(wire.claim(1))
    late, long = wire.claim(1), wire.claim(1)
    assert wire.renew(*ends(long), lease_ms=3 * LEASE_S * 1000) == []
    seen_ms = wire.expire().now_ms
    timed.later(LEASE_S + 1)
    assert (found := wire.expire(window(seen_ms))).rests == 2
    assert wire.collect()[0][0] == 1
    timed.later(LEASE_S - 2)
    assert (wire.expire().rests, wire.expire().leases) == (1, 0)
    assert max(expiries(wire).values()) > found.now_ms + LEASE_S * 1000
    timed.later(2)
    assert wire.expire().leases == 1
    assert (wire.succeed(late), wire.succeed(long)) == ([0], [])


def test_after_long_without_a_look_a_lease_ends_at_the_second_one(timed: Timed) -> None:
    """The server may have been away since the last look, so that nobody could renew."""
    wire = timed.wire
    wire.enqueue_bodies(b"before", b"since")
    wire.claim(1)
    timed.later(LEASE_S / 2)
    wire.claim(1)
    timed.later(LEASE_S / 2 + 1)
    seen_ms = wire.expire(None).now_ms
    timed.later(LEASE_S * 0.7)
    looked = wire.expire((0, FAR_MS, seen_ms))
    assert looked.leases == 1
    assert wire.expire((0, FAR_MS, looked.now_ms)).leases == 1


def test_after_a_jump_back_nobody_waits_for_the_end_of_another_monitor(timed: Timed) -> None:
    wire = timed.wire
    wire.expire(None, b"monitor1", 10_000)
    timed.later(-3600)
    assert wire.expire(owner=b"monitor2", hold_ms=10_000).active == 1


def test_a_damaged_lease_does_not_stop_the_others(timed: Timed) -> None:
    wire = timed.wire
    wire.enqueue_bodies(b"a", b"b", b"c")
    lost, other = wire.claim(2), wire.claim(1)
    wire.client.hdel(wire.key("lease_jobs"), lost.token, lost.token + b"n")
    wire.client.hdel(wire.key("jobs"), other.jobs[0].id)
    timed.later(LEASE_S + 1)
    assert (wire.expire().leases, lease_fields(wire)) == (2, (0, 0))
    assert wire.claim().jobs == []
    assert wire.succeed(lost) == []


def test_a_job_whose_lease_was_removed_comes_back(wire: Wire) -> None:
    ids = wire.enqueue(Job(b"lost"), Job(b"last", allowed=1))
    lost, kept = wire.claim(2), [wire.enqueue(Job(b"kept"))[0]]
    held = wire.claim()
    wire.client.zrem(wire.key("leases"), lost.token)
    wire.client.hdel(wire.key("lease_jobs"), lost.token, lost.token + b"n")
    assert wire.expire().retried == 0
    expiry = wire.expire(sweep=b"1:0")
    assert (expiry.leases, expiry.retried, expiry.failed, expiry.next_sweep) == (1, 1, 1, b"2:0")
    again, last = known(wire, ids[0]), known(wire, ids[1])
    assert (again.state, again.remaining, again.crashes) == (int(PENDING), 9, 1)
    assert (last.state, last.remaining, last.crashes) == (int(FAILED), 0, 1)
    assert wire.succeed(lost) == [0, 1]
    assert [job.id for job in held.jobs] == kept
    assert wire.expire(sweep=b"1:0").leases == 0
    assert wire.succeed(held) == []


def test_a_lease_that_lost_its_end_gets_one(timed: Timed) -> None:
    wire = timed.wire
    wire.enqueue_bodies(b"a", b"b")
    claimed = wire.claim()
    wire.client.delete(wire.key("leases"))
    assert wire.expire(sweep=b"1:0").leases == 0
    assert list(expiries(wire)) == [claimed.token]
    timed.later(LEASE_S + 1)
    assert wire.expire().retried == 2


def test_a_sweep_goes_on_where_it_was_and_round_all_priorities(wire: Wire) -> None:
    for priority in (1, 2):
        wire.enqueue(*[Job(b"x", priority)] * 700)
    while wire.claim().jobs:
        pass
    wire.client.delete(wire.key("leases"), wire.key("lease_jobs"))
    wire.client.hset(wire.key("running:3"), b"no id", b"short")
    sweep, calls = b"1:0", 0
    while wire.counts()[0][2] + wire.counts()[1][2]:
        expiry = wire.expire(sweep=sweep)
        assert expiry.retried < 300
        sweep, calls = expiry.next_sweep, calls + 1
    assert 10 <= calls < 30
    assert [wire.expire(sweep=at).next_sweep for at in (b"2:0", b"3:0", b"9:77")] == [b"3:0", b"1:0", b"2:0"]
