"""The crash limit: what a crash costs, what it leaves in the status, and whose leases end at once.

Promises: shown on real servers, most under a clock that the test moves. Risks: needs libfaketime.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.servers import KINDS, Server
from tests.support.wire import Timed, Wire, connect, known, lease_fields
from tests.support.wire_format import ABSOLUTE, FAILED, NOW, PENDING, End, Info, Job, settings

FreshServer = Callable[..., Server]
LEASE_S = 30
NONE = bytes(8)
CLAIM = b"host:0:17:python:host:5:ab:1"
SOURCE = b"python:host:5:ab"


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        made = Wire(client)
        made.create(settings(crash_limit=3))
        yield made


@pytest.fixture(params=KINDS)
def timed(request: pytest.FixtureRequest, fresh_server: FreshServer) -> Iterator[Timed]:
    server = fresh_server(request.param, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create(settings(crash_limit=3))
        wire.expire(None)
        yield Timed(wire, server)


def crash(timed: Timed) -> None:
    """The claim's lease runs out."""
    timed.later(LEASE_S + 1)
    assert timed.wire.expire().leases == 1


def test_a_crash_costs_no_attempt_and_the_last_one_allowed_fails_the_job(timed: Timed) -> None:
    wire = timed.wire
    (id_,) = wire.enqueue(Job(b"poison", allowed=1, status=b"set before\n"))
    for crashes in (1, 2, 3):
        assert wire.claim(claim=CLAIM).bodies == [b"poison"]
        crash(timed)
        info = known(wire, id_)
        assert info.crashes == crashes
        assert (info.state, info.remaining) == ((int(PENDING), 1) if crashes < 3 else (int(FAILED), 0))
    assert info.status.startswith(b"set before\nlease ran out (crash 1 of 3)\n  claim host:0:17:python:host:5:ab:1, ")
    assert [int(n) for n in re.findall(rb"crash (\d) of 3", info.status)] == [1, 2, 3]
    assert wire.retry_failed(attempts=2) == 1
    again = known(wire, id_)
    assert (again.state, again.remaining, again.crashes, again.status) == (int(PENDING), 2, 0, info.status)


@pytest.mark.parametrize("limit", [0, 2])
def test_an_expiry_names_the_jobs_that_failed_for_good(timed: Timed, limit: int) -> None:
    """Also in a repeated answer. Not those that are tried again, nor those that are to be moved."""
    wire = timed.wire
    wire.configure(settings(crash_limit=limit))
    once, twice = wire.enqueue(Job(b"once", allowed=1, priority=1), Job(b"twice", allowed=2, priority=3))
    for expected in ([once] if limit == 0 else [], [twice] if limit == 0 else [once, twice]):
        wire.claim(limit=2)
        timed.later(LEASE_S + 1)
        found = wire.expire(sweep=b"1:0")
        assert (sorted(found.failed_jobs), found.failed) == (
            [(1 if id_ == once else 3, id_) for id_ in expected],
            len(expected),
        )
        assert found.next_sweep == b"2:0"
        assert all(id_ in wire.again()[0] for id_ in expected)
        assert wire.expire().failed_jobs == []
    wire.configure(settings(crash_limit=1, quarantine=b"big"))
    wire.enqueue(Job(b"moved"))
    wire.claim()
    timed.later(LEASE_S + 1)
    moved = wire.expire()
    assert (moved.failed, moved.failed_jobs) == (1, [])


@pytest.mark.parametrize("day", ["1999-12-31", "2000-02-29", "2024-02-29", "2025-03-01", "2100-03-01", "2026-11-21"])
def test_the_times_in_the_status(wire: Wire, day: str) -> None:
    """The claim's token is of that day."""
    claimed_at = datetime.datetime.fromisoformat(f"{day}T23:59:58Z")
    (id_,) = wire.enqueue(Job())
    wire.claim(claim=CLAIM)
    token = (int(claimed_at.timestamp() * 1000) << 19).to_bytes(8, "big")
    running = wire.client.hget(wire.key("running:1"), id_)
    assert isinstance(running, bytes)
    wire.client.hset(wire.key("running:1"), id_, token + running[8:])
    entry = wire.client.hget(wire.key("lease_jobs"), running[:8])
    assert isinstance(entry, bytes)
    wire.client.delete(wire.key("lease_jobs"), wire.key("leases"))
    wire.client.hset(wire.key("lease_jobs"), token, entry)
    assert wire.end_leases(SOURCE)[:2] == (1, 1)
    assert f"claimed {day}T23:59:58Z, recovered 20".encode() in known(wire, id_).status


BODIES = (b"0", b"1", b"2", b"3", b"other", b"short", b"single")


def test_the_leases_of_a_dead_process_end_at_once_and_no_others(wire: Wire) -> None:
    ids = wire.enqueue(*(Job(b"%d" % i, 1 + i % 2) for i in range(4)), Job(b"other"), Job(b"short"), Job(b"single"))
    dead, single = wire.claim(4, claim=CLAIM), wire.claim(1, claim=CLAIM)
    lives = [wire.claim(1, claim=claim) for claim in (CLAIM.replace(b"ab:", b"abc:"), b"host:0:17:python:host:5:1")]
    assert wire.end_leases(SOURCE, b"was killed by SIGSEGV") == (2, 5, 0, 0, b"")
    recovered, held = {*dead.bodies, *single.bodies}, {body for claim in lives for body in claim.bodies}
    for id_, body, priority in zip(ids, BODIES, (1, 2, 1, 2, 1, 1, 1), strict=True):
        info = known(wire, id_, priority)
        assert (info.state == int(PENDING), info.crashes) == ((True, 1) if body in recovered else (False, 0))
        assert (body in held) != (body in recovered)
    assert b"worker process was killed by SIGSEGV (crash 1 of 3)" in known(wire, dead.jobs[0].id, 1).status
    assert wire.end_leases(SOURCE) == (0, 0, 0, 0, b"")
    assert lease_fields(wire) == (2, 0)
    assert [wire.succeed(claim) for claim in (dead, single, *lives)] == [[0, 1, 2, 3], [0], [], []]


@pytest.mark.parametrize("limit", [0, 1])
def test_what_a_dead_process_had_not_started_is_as_it_was(wire: Wire, limit: int) -> None:
    """Their order in the queue too; a job that it had started has crashed."""
    wire.configure(settings(crash_limit=limit))
    with_status = Job(b"status", 2, status=b"set before\n")
    ids = wire.enqueue(
        Job(b"started", allowed=1),
        Job(b"simple"),
        Job(b"due", kind=ABSOLUTE, ms=5),
        with_status,
        Job(b"started too", 2, allowed=1),
    )

    def order() -> list[tuple[bytes, float]]:
        found: list[list[Any]] = [
            list(wire.client.zrange(wire.key(key), 0, -1, withscores=True)) for key in ("ready:1", "ready:2")
        ]
        return [one for priority in found for one in priority if one[0][:8] in ids[1:4]]

    def not_started() -> list[Info]:
        return [known(wire, id_, priority) for id_, priority in zip(ids[1:4], (1, 1, 2), strict=True)]

    before = order(), not_started()
    assert len(wire.claim(5, claim=CLAIM).bodies) == 5
    assert wire.end_leases(SOURCE, b"was killed by SIGKILL", started=ids[0] + ids[4] + bytes(8)) == (1, 0, 2, 3, b"")
    for info in known(wire, ids[0]), known(wire, ids[4], 2):
        assert (info.state, info.crashes) == (int(FAILED), 1)
    assert (order(), not_started()) == before
    assert lease_fields(wire) == (0, 0)
    assert len(wire.claim(5, claim=CLAIM).bodies) == 3
    assert wire.end_leases(SOURCE, started=ids[0])[:4] == (1, 0, 0, 3)
    assert wire.claim(5, claim=CLAIM).bodies == [b"due", b"simple", b"status"]


def test_what_a_dead_process_had_not_started_of_a_claim_of_one_is_as_it_was(wire: Wire) -> None:
    ids = wire.enqueue_bodies(b"waited", b"started")
    before = known(wire, ids[0])
    assert [wire.claim(1, claim=CLAIM).bodies for _ in ids] == [[b"waited"], [b"started"]]
    assert wire.end_leases(SOURCE, started=ids[1]) == (2, 1, 0, 1, b"")
    assert (known(wire, ids[0]), known(wire, ids[1]).crashes) == (before, 1)
    assert lease_fields(wire) == (0, 0)


def test_many_leases_of_a_dead_process_take_several_calls(wire: Wire) -> None:
    for _ in range(5):
        wire.enqueue(*[Job()] * 600)
        wire.claim(600, claim=CLAIM)
    for _ in range(300):
        wire.enqueue(Job())
        wire.claim(1, claim=CLAIM)
    seen, cursor = list[int](), b"0:0"
    while cursor:
        _, retried, _, _, cursor = wire.end_leases(SOURCE, b"", cursor)
        seen.append(retried)
    assert sum(seen) == 3300
    assert max(seen) < 1600  # a lease is ended whole
    assert lease_fields(wire) == (0, 0)


def test_the_leases_of_others_are_looked_through_a_part_a_call(wire: Wire) -> None:
    for _ in range(3):
        wire.enqueue(*[Job()] * 1000)
    for _ in range(3000):
        wire.claim_one(b"host:0:17:another:1")
    calls, cursor = 0, b"0:0"
    while cursor:
        *counts, cursor = wire.end_leases(SOURCE, b"", cursor)
        assert counts == [0, 0, 0, 0]
        calls += 1
    assert calls >= 3


def test_a_job_is_a_suspect_from_its_crash_until_a_run_ends(timed: Timed) -> None:
    """The suspects of each claim; crashes are counted on."""
    wire = timed.wire

    def claim() -> list[End]:
        claimed = wire.claim(claim=CLAIM)
        suspects = [End(job.priority, job.id, claimed.token) for job in claimed.jobs if job.suspect]
        assert [job.id for job in wire.replayed_claim().jobs if job.suspect] == [end.id for end in suspects]
        return suspects

    ids = wire.enqueue(*(Job(b"%d" % i, allowed=5) for i in range(4)))
    assert claim() == []
    wire.end_leases(SOURCE, started=b"".join(ids[:3]))
    first, second, third = claim()
    assert [first.id, second.id, third.id] == ids[:3]
    wire.release(first)
    assert wire.ack(second._replace(failed=True)) == []
    assert wire.checkpoint(third, move=(NOW, 0)) == []
    (first,) = claim()
    assert first.id == ids[0]
    assert wire.checkpoint(first) == []
    assert [known(wire, id_).crashes for id_ in ids] == [1, 1, 1, 0]
    for crashes in (2, 3):
        wire.end_leases(SOURCE)
        assert known(wire, ids[0]).crashes == crashes
        assert len(claim()) == (4 if crashes == 2 else 1)
    assert wire.retry_failed(ids=[ids[0]], limit=0) == 1
    assert known(wire, ids[0]).crashes == 0
    assert [end.id for end in claim()] == [ids[0]]


def test_what_is_to_be_moved_is_known_until_it_was(wire: Wire) -> None:
    wire.configure(settings(crash_limit=1, quarantine=b"big"))
    ids = wire.enqueue(Job(b"a"), Job(b"b"), Job(b"c"))
    wire.claim(claim=CLAIM)
    assert wire.end_leases(SOURCE) == (1, 0, 3, 0, b"")
    assert wire.retry_failed(ids=[ids[2]], limit=0) == 1

    def quarantined() -> dict[bytes, bytes]:
        """The reservation of each job with its queue, by id."""
        cursor, *jobs = wire.read("quarantined", 0)
        assert cursor == b"0"
        return {one[1:9]: one[9:] for one in jobs}

    assert quarantined() == dict.fromkeys(ids, b"")
    reservation, other = b"reserve1", b"reserve2"
    assert wire.leave_quarantine(1, ids[0], 1, reservation, b"big") == reservation + b"big"
    assert wire.leave_quarantine(1, ids[0], 1, other, b"other") == reservation + b"big"
    assert quarantined()[ids[0]] == reservation + b"big"
    assert wire.leave_quarantine(1, ids[0], 3, other, b"big") == reservation + b"big"
    assert wire.leave_quarantine(1, ids[0], 3, reservation, b"other") == reservation + b"big"
    assert wire.leave_quarantine(1, ids[0], 3, reservation, b"big") == NONE
    assert quarantined()[ids[0]] == b""
    assert wire.leave_quarantine(1, ids[0], 1, other, b"big") == other + b"big"
    assert wire.leave_quarantine(1, ids[0], 2) == other + b"big"
    assert [wire.leave_quarantine(1, ids[at], what) for at, what in ((1, 0), (2, 2), (1, 3))] == [NONE] * 3
    assert quarantined() == {}
    assert wire.leave_quarantine(1, ids[0], 1, reservation, b"big") == NONE
    assert wire.lookup([ids[0]]) == [None]
    assert (known(wire, ids[1]).state, known(wire, ids[2]).state) == (int(FAILED), int(PENDING))
