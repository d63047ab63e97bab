"""Leases: ack, release, renew, checkpoint and expiry, and what is kept of a job.

Promises: shown on real servers, expiry and jumps under a clock that the test moves; a test that ends all
jobs looks for what is left behind.
Risks: needs libfaketime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.memory import EVERY_KIND
from tests.support.servers import Server
from tests.support.wire import (
    Timed,
    Wire,
    connect,
    drain,
    is_clean,
    known,
    lease_fields,
    snapshot,
)
from tests.support.wire_format import (
    ABSOLUTE,
    CLAIM,
    DELAY,
    FAILED,
    HOUR_MS,
    NO_TOKEN,
    NOW,
    PENDING,
    RUNNING,
    End,
    Job,
    created_ms,
    ends,
    pack_checkpoint,
    settings,
    source_number,
)

FreshServer = Callable[..., Server]
LEASE_S = 30
STATUS_BYTES = 3000


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


# -- ack


def test_an_ack_ends_the_lease_with_its_last_job(wire: Wire) -> None:
    wire.enqueue_bodies(b"a", b"b", b"c")
    claimed = wire.claim()
    one, two, three = ends(claimed)
    assert wire.ack(one) == []
    assert wire.ack(two._replace(failed=True, delay_ms=60_000)) == []
    assert lease_fields(wire) == (1, 2)
    assert wire.ack(three) == []
    assert lease_fields(wire) == (0, 0)
    assert wire.delete_jobs(PENDING, limit=10) == (1, 0)
    assert is_clean(snapshot(wire))


def test_the_lease_of_one_job_needs_no_count(wire: Wire) -> None:
    """Nor an entry, if it is of a plain job."""
    wire.enqueue(Job(b"odd", status=b"s"), Job(b"plain"))
    for entries in (1, 0):
        claimed = wire.claim(1)
        assert lease_fields(wire) == (1, entries)
        assert wire.succeed(claimed) == []
    assert is_clean(snapshot(wire))


@pytest.mark.parametrize("verb", ["ack", "fail", "release"])
def test_a_job_named_twice_is_done_once_and_the_lease_stays_right(wire: Wire, verb: str) -> None:
    wire.enqueue_bodies(b"a", b"b", b"c")
    first, second, third = ends(wire.claim())
    twice = [end._replace(failed=verb == "fail") for end in (first, second, first)]
    refused = wire.release(*twice) if verb == "release" else wire.ack(*twice)
    assert refused == [2]
    assert lease_fields(wire) == (1, 2)
    assert wire.ack(first, third, third) == [0, 2]
    assert lease_fields(wire) == (0, 0)
    assert drain(wire) == ([] if verb == "ack" else [b"a", b"b"])
    assert is_clean(snapshot(wire))


def test_a_job_cannot_succeed_and_fail_in_one_ack(wire: Wire) -> None:
    wire.enqueue_bodies(b"a", b"b")
    first, second = ends(wire.claim())
    assert wire.ack(first, first._replace(failed=True), second) == [1]
    assert is_clean(snapshot(wire))


def test_a_mixed_ack_over_claims_and_priorities(wire: Wire) -> None:
    wire.enqueue(*(Job(b"%d" % i, 1 + i % 3, allowed=2) for i in range(12)))
    mine, other = wire.claim(6), wire.claim(6)
    stranger = ends(mine)[0]._replace(token=other.token)
    acked = [*ends(mine)[:3], stranger, *ends(other, failed=True, delay_ms=1000)[:4], *ends(mine)[3:]]
    assert wire.ack(*acked) == [3]
    assert [priority[:4] for priority in wire.counts()] == [(0, 0, 0, 0), (0, 2, 0, 0), (0, 2, 2, 0)]
    assert wire.ack(*ends(other)[4:]) == []
    assert lease_fields(wire) == (0, 0)


def test_a_failure_uses_up_an_attempt_and_the_last_one_fails_the_job(wire: Wire) -> None:
    (id_,) = wire.enqueue(Job(b"a", allowed=2))
    assert wire.fail(wire.claim(), status=b"first;") == []
    assert (known(wire, id_).state, known(wire, id_).remaining) == (int(PENDING), 1)
    assert wire.fail(wire.claim(), delay_ms=99_000, status=b"second") == []
    info = known(wire, id_)
    assert (info.state, info.remaining, info.allowed) == (int(FAILED), 0, 2)
    assert (info.status, info.crashes, info.body) == (b"first;second", 0, b"a")
    assert wire.claim().jobs == []


def test_a_failure_with_a_delay_is_due_after_it(timed: Timed) -> None:
    timed.wire.enqueue_bodies(b"a")
    timed.wire.fail(timed.wire.claim(), delay_ms=60_000)
    assert 0 < timed.wire.claim().due_in_ms <= 60_000
    timed.later(61)
    assert timed.wire.claim().bodies == [b"a"]


def test_a_long_status_keeps_its_newest_bytes_and_whole_characters(wire: Wire) -> None:
    (id_,) = wire.enqueue(Job(b"a", allowed=9, status=b"x" + "é".encode() * 1600))
    assert len(known(wire, id_).status) == STATUS_BYTES
    wire.fail(wire.claim(), status="é".encode() * 1499 + b"y")
    assert known(wire, id_).status == "é".encode() * 1499 + b"y"  # one byte more would be half an é
    wire.fail(wire.claim(), status=b"end")
    status = known(wire, id_).status
    assert status.decode().endswith("éyend")
    assert len(status) in (STATUS_BYTES - 1, STATUS_BYTES)


def test_a_checkpoint_puts_its_status_in_front_and_cuts_the_end(wire: Wire) -> None:
    (id_,) = wire.enqueue(Job(b"a", status="é".encode() * 1500))
    (end,) = ends(wire.claim())
    assert wire.checkpoint(end._replace(status=b"new")) == []
    assert known(wire, id_).status == b"new" + "é".encode() * 1498
    assert wire.checkpoint(end._replace(status=b"n")) == []
    assert known(wire, id_).status == b"nnew" + "é".encode() * 1498


@pytest.mark.parametrize("source", [b"worker", b"a:b::c", b""])
def test_without_a_token_the_source_decides(wire: Wire, source: bytes) -> None:
    wire.enqueue_bodies(b"a", b"b", b"c", b"d")
    claim = b"host:9010:1700000000000:" + source + b":42"
    without_token = [end._replace(token=NO_TOKEN) for end in ends(wire.claim(claim=claim))]
    for wrong in (b"other", source + b":42", b"1700000000000:" + source):
        assert wire.ack(*without_token, sources=[wrong]) == [0, 1, 2, 3]
        assert wire.release(*without_token, source=wrong) == [0, 1, 2, 3]
        assert wire.checkpoint(without_token[0], body=b"no", source=wrong) == [0]
    assert wire.ack(without_token[0], sources=[source]) == []
    assert wire.ack(without_token[1]._replace(failed=True), sources=[source]) == []
    assert wire.release(without_token[2], source=source) == []
    assert wire.checkpoint(without_token[3], move=(NOW, 0), source=source) == []
    assert wire.ack(without_token[0], sources=[source]) == [0]
    assert lease_fields(wire) == (0, 0)
    assert sorted(drain(wire)) == [b"b", b"c", b"d"]
    assert is_clean(snapshot(wire))


SOURCES = [b"", b"web:1", b"x" * 255]


def claim_of_each(wire: Wire, source: bytes) -> list[End]:
    """Two jobs of one lease, then one with its own; without their tokens."""
    wire.enqueue_bodies(b"a", b"b", b"c")
    claim = b"host:9010:1700000000000:" + source + b":42"
    return ends(wire.claim(2, claim=claim)) + ends(wire.claim(1, claim=claim))


def test_each_job_of_an_ack_names_a_source_of_its_own(wire: Wire) -> None:
    jobs = [claim_of_each(wire, source) for source in SOURCES]
    # each job names each source once, the right one last: of three sources, only that one ends it
    for turn in (1, 2, 0):
        named = [
            end._replace(token=source_number((number + turn) % 3), failed=end is part[0])
            for number, part in enumerate(jobs)
            for end in part
        ]
        assert wire.ack(*named, sources=SOURCES) == ([] if turn == 0 else list(range(9)))
    assert lease_fields(wire) == (0, 0)
    assert sorted(drain(wire)) == [b"a"] * 3


def test_an_ack_may_mix_tokens_and_sources(wire: Wire) -> None:
    a, b, c = claim_of_each(wire, b"web")
    x, y, z = claim_of_each(wire, b"other")
    mixed = [a, b._replace(token=source_number(1)), y._replace(token=source_number(1)), x, z._replace(token=bytes(8))]
    assert wire.ack(*mixed, c, sources=[b"other", b"web"]) == [2]


def test_a_job_of_no_source_is_refused(wire: Wire) -> None:
    parts = [claim_of_each(wire, source) for source in (b"", b"web")]
    without = [end._replace(token=source_number(at)) for at, part in zip((0, 1), parts, strict=True) for end in part]
    before = snapshot(wire, lane=False)
    assert wire.ack(*without) == list(range(6))
    assert wire.ack(*without, sources=[b"we"]) == list(range(6))
    assert wire.release(*without[3:], source=b"web") == [0, 1, 2]
    assert wire.checkpoint(without[3], body=b"no", source=b"web") == [0]
    assert snapshot(wire, lane=False) == before


def test_any_source_will_do_if_the_ack_says_so(wire: Wire) -> None:
    jobs = [end for source in SOURCES for end in claim_of_each(wire, source)]
    (waiting,) = wire.enqueue_bodies(b"not claimed")
    named = [end._replace(token=source_number(at % 2)) for at, end in enumerate(jobs)]
    wrong_token = jobs[0]._replace(token=b"\1" + bytes(7))
    assert wire.ack(wrong_token, *named, End(1, waiting, NO_TOKEN), any_source=True) == [0, 10]
    assert wire.ack(*named, any_source=True) == list(range(9))
    assert drain(wire) == [b"not claimed"]


def test_tombstones_are_left_only_for_jobs_that_end(wire: Wire) -> None:
    ids = wire.enqueue(Job(), Job(), Job(allowed=1))
    done, retried, failed = ends(wire.claim())
    assert wire.ack(done, retried._replace(failed=True), failed._replace(failed=True), tombstones=True) == []
    tombs = snapshot(wire)["tombstones"]
    assert isinstance(tombs, dict)
    assert set(tombs) == {ids[0], ids[2]}
    wire.ack(*ends(wire.claim()))
    assert snapshot(wire)["tombstones"] == tombs


def test_succeeded_jobs_are_kept_up_to_the_cap(wire: Wire) -> None:
    wire.configure(settings(keep=5))
    ids = wire.enqueue(*(Job(b"%d" % i, status=b"s") for i in range(12)))
    for limit in (4, 4, 4):
        assert wire.succeed(wire.claim(limit)) == []
    assert [info.body if info else None for info in wire.lookup(ids)] == [None] * 7 + [b"%d" % i for i in range(7, 12)]
    assert (wire.client.hlen(wire.key("jobs")), wire.client.hlen(wire.key("extras"))) == (5, 5)


# -- renew


def test_renew_keeps_a_lease_and_refuses_ended_jobs(timed: Timed) -> None:
    wire = timed.wire
    wire.enqueue_bodies(b"a", b"b")
    kept, lost = wire.claim(1), wire.claim(1)
    timed.later(LEASE_S - 10)
    assert wire.renew(*ends(kept)) == []
    timed.later(20)
    assert (wire.expire().leases, wire.renew(*ends(kept), *ends(lost), *ends(kept))) == (1, [1])
    assert wire.succeed(lost) == [0]
    assert wire.succeed(kept) == []


@pytest.mark.parametrize("own_goes_first", [True, False])
def test_a_job_with_its_own_lease_expires_apart(timed: Timed, own_goes_first: bool) -> None:
    wire = timed.wire
    wire.enqueue(Job(b"slow", status=b"s"), Job(b"b"), Job(b"c"))
    claimed = wire.claim()
    slow = ends(claimed)[0]
    assert wire.renew(own=[slow, slow]) == []
    assert lease_fields(wire) == (2, 3)
    assert known(wire, slow.id).claim == CLAIM
    timed.later(LEASE_S - 10)
    assert (wire.renew(claimed.token) if own_goes_first else wire.renew(own=[slow])) == []
    timed.later(20)
    expiry = wire.expire()
    assert (expiry.leases, expiry.retried) == ((1, 1) if own_goes_first else (1, 2))
    assert wire.succeed(claimed) == ([0] if own_goes_first else [1, 2])
    assert lease_fields(wire) == (0, 0)
    assert drain(wire) == ([b"slow"] if own_goes_first else [b"b", b"c"])
    assert is_clean(snapshot(wire))


def test_the_only_job_of_a_claim_leaves_its_lease_for_one_of_its_own(wire: Wire) -> None:
    (id_,) = wire.enqueue_bodies(b"a")
    (end,) = ends(wire.claim(1, claim=CLAIM))
    assert wire.renew(own=[end]) == []
    assert lease_fields(wire) == (1, 1)
    assert known(wire, id_).claim == CLAIM
    assert wire.renew(end) == [0]
    assert wire.renew(own=[end]) == []
    assert wire.checkpoint(end, attempts=3) == wire.release(end) == []
    assert lease_fields(wire) == (0, 0)
    assert [job.left for job in wire.claim(1).jobs] == [3]


def test_a_checkpoint_with_a_lease_of_its_own_renews_no_other_job_of_its_claim(timed: Timed) -> None:
    wire = timed.wire
    wire.enqueue(Job(b"alive", status=b"s"), Job(b"b"), Job(b"c"))
    claimed = wire.claim()
    alive = ends(claimed)[0]._replace(token=NO_TOKEN)
    timed.later(LEASE_S - 10)
    assert wire.checkpoint(alive, source=b"worker", own=True) == []
    assert wire.checkpoint(alive, attempts=5, source=b"worker", own=True) == []
    assert lease_fields(wire) == (2, 3)
    assert (known(wire, alive.id).claim, known(wire, alive.id).remaining) == (CLAIM, 5)
    timed.later(20)
    assert (wire.expire().leases, drain(wire)) == (1, [b"b", b"c"])
    timed.later(LEASE_S)
    assert (wire.expire().leases, drain(wire)) == (1, [b"alive"])
    assert is_clean(snapshot(wire))


def test_every_job_of_a_claim_can_have_its_own_lease(wire: Wire) -> None:
    wire.enqueue(*(Job(b"%d" % i, 1 + i % 2) for i in range(4)))
    claimed = wire.claim()
    held = ends(claimed)
    assert wire.renew(claimed.token, own=held) == []
    assert lease_fields(wire) == (4, 4)
    assert wire.renew(claimed.token) == [0]
    assert wire.ack(held[0]) == wire.release(held[1]) == wire.checkpoint(held[2], move=(NOW, 0)) == []
    assert wire.delete_jobs(RUNNING, priority=held[3].priority, ids=[held[3].id]) == (1, 0)
    assert lease_fields(wire) == (0, 0)
    assert len(drain(wire)) == 2
    assert is_clean(snapshot(wire))


# -- checkpoint


def test_a_checkpoint_keeps_progress_renews_the_lease_and_survives_a_retry(timed: Timed) -> None:
    wire = timed.wire
    (id_,) = wire.enqueue(Job(b"start", allowed=4))
    (end,) = ends(wire.claim())
    timed.later(LEASE_S - 10)
    assert wire.checkpoint(end._replace(status=b"half;"), body=b"rest", attempts=3) == []
    timed.later(20)
    assert wire.expire().leases == 0
    info = known(wire, id_)
    assert (info.body, info.allowed, info.remaining, info.status) == (b"rest", 3, 3, b"half;")
    assert wire.ack(end._replace(failed=True, status=b"no")) == []
    claimed = wire.claim()
    assert (claimed.bodies, claimed.jobs[0].left) == ([b"rest"], 2)
    assert known(wire, id_).status == b"half;no"
    assert wire.succeed(claimed) == []
    assert is_clean(snapshot(wire))


def test_a_checkpoint_can_put_a_job_back_at_any_time(wire: Wire) -> None:
    wire.enqueue(*(Job(b"%d" % i) for i in range(4)))
    held = ends(wire.claim())
    past_ms, future_ms = created_ms(wire.h) - HOUR_MS, created_ms(wire.h) + HOUR_MS
    for end, move in zip(held, [(NOW, 0), (ABSOLUTE, past_ms), (ABSOLUTE, future_ms), (DELAY, 60_000)], strict=True):
        assert wire.checkpoint(end, move=move) == []
    assert lease_fields(wire) == (0, 0)
    assert wire.counts()[0] == (2, 2, 0, 0, 0)
    claimed = wire.claim()
    assert (claimed.bodies, [job.left for job in claimed.jobs]) == ([b"1", b"0"], [10, 10])
    assert 0 < wire.claim().due_in_ms <= 60_000


def test_of_a_job_named_twice_in_a_checkpoint_the_first_stands(wire: Wire) -> None:
    wire.enqueue_bodies(b"a", b"b")
    end, _ = ends(wire.claim())
    items = pack_checkpoint(end, move=(NOW, 0)) + pack_checkpoint(end, body=True)
    assert wire.write("checkpoint", b"", items, b"", b"new") == [b"\0\2\0\1"]
    assert lease_fields(wire) == (1, 2)
    assert wire.claim().bodies == [b"a"]
