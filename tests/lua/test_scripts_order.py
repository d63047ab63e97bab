"""Which jobs a claim gives, and in which order.

Promises: order, due times and budgets are shown on real servers, time under a clock that the test moves.
Risks: tests of the clock need libfaketime.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support.memory import EVERY_KIND, AnyKind
from tests.support.servers import Server
from tests.support.wire import Wire, connect, drain, is_clean, jump, snapshot
from tests.support.wire_format import ABSOLUTE, DELAY, Claimed, Job, created_ms, ends, number, record, settings

EACH_KIND = pytest.mark.parametrize("kind", EVERY_KIND)
FreshServer = Callable[..., Server]
MIB = 1 << 20


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        made = Wire(client)
        made.create()
        yield made


def test_order_is_priority_then_run_after_then_arrival(wire: Wire) -> None:
    now_ms = created_ms(wire.h)
    chance = random.Random(7)
    jobs = [Job(b"%d" % i, chance.randint(1, 3), ABSOLUTE, now_ms - 1000 * chance.randint(1, 5)) for i in range(300)]
    for first in range(0, 300, 20):
        wire.enqueue(*jobs[first : first + 20])
    expected = [job.body for job in sorted(jobs, key=lambda job: (job.priority, job.ms))]
    before = snapshot(wire)
    shown = wire.dry_run()
    assert snapshot(wire) == before
    claimed = wire.claim()
    assert shown.bodies == claimed.bodies == expected
    assert (shown.token, shown.left, claimed.left) == (b"", [0, 0, 0], [0, 0, 0])


def test_a_thousand_jobs_of_one_millisecond_keep_their_order(wire: Wire) -> None:
    bodies = [b"%d" % i for i in range(1000)]
    ids = wire.enqueue_bodies(*bodies)
    assert len({created_ms(id_) for id_ in ids}) == 1
    got = [body for _ in range(20) for body in wire.claim(50).bodies]
    assert got == bodies


def test_jobs_of_many_calls_keep_their_order(wire: Wire) -> None:
    for i in range(100):
        wire.enqueue_bodies(b"%d" % i)
    assert drain(wire) == [b"%d" % i for i in range(100)]
    assert is_clean(snapshot(wire))


def test_a_dry_run_shows_what_the_claim_gives(wire: Wire) -> None:
    now_ms = created_ms(wire.h)
    for i in range(40):
        wire.enqueue(Job(b"%d" % i * 100, 1 + i % 3, ABSOLUTE, now_ms - 40 + i))
        wire.client.zadd(wire.key("scheduled:1"), {wire.enqueue_bodies(b"due%d" % i)[0]: now_ms - 20 - i})
        wire.client.zrem(wire.key("ready:1"), wire.h)
    wire.set_head(due_ms=now_ms - 100)
    for limit, budget in ((1, MIB), (7, MIB), (50, 2000), (1000, 5000), (1000, MIB)):
        shown, claimed = wire.dry_run(limit, budget), wire.claim(limit, budget=budget)
        assert shown.bodies == claimed.bodies
        assert shown.left == claimed.left
        assert wire.release(*ends(claimed)) == []


@pytest.mark.parametrize(("limit", "budget"), [(1, MIB), (7, MIB), (1000, 500), (1000, MIB)])
def test_pages_of_a_dry_run_show_what_a_claim_gives(wire: Wire, limit: int, budget: int) -> None:
    now_ms = created_ms(wire.h)
    ids = wire.enqueue(*(Job(b"%d" % i * 40, 1 + i % 3, ABSOLUTE, now_ms - 40 + i // 6) for i in range(60)))
    for i, id_ in enumerate(wire.enqueue(*(Job(b"due%d" % i, 2) for i in range(9)))):
        wire.client.zrem(wire.key("ready:2"), id_)
        wire.client.zadd(wire.key("scheduled:2"), {id_: now_ms - 38 + i})
    for sixteenth in (3, 1, 2):  # as after leases that ended unconfirmed
        (id_,) = wire.enqueue_bodies(b"sixteenth%d" % sixteenth)
        wire.client.zrem(wire.key("ready:1"), id_)
        wire.client.zadd(wire.key("ready:1"), {id_ + b"\1": now_ms - 35 + sixteenth / 16})
    wire.client.hdel(wire.key("jobs"), *ids[:4], ids[-1])
    bodies, after, pages = list[bytes](), b"", 0
    while after or not pages:
        shown, after = wire.dry_page(limit, budget, after)
        bodies, pages = bodies + shown.bodies, pages + 1
        assert len(shown.jobs) <= limit
        assert pages <= 100
    assert (pages == 1) == (limit > 7 and budget == MIB)
    assert shown.left == [0, 0, 0]
    wire.set_head(due_ms=now_ms - 100)
    assert bodies == drain(wire)
    assert [body for body in bodies if body.startswith(b"six")] == [b"sixteenth1", b"sixteenth2", b"sixteenth3"]


def test_a_dry_run_goes_on_behind_a_job_that_was_removed(wire: Wire) -> None:
    wire.enqueue_bodies(b"a", b"b", b"c")
    shown, after = wire.dry_page(2)
    assert (shown.bodies, shown.left) == ([b"a", b"b"], [1, 0, 0])
    wire.succeed(wire.claim(2))
    wire.enqueue_bodies(b"d")
    assert wire.dry_page(2, after=after)[0].bodies == [b"c", b"d"]
    with pytest.raises(redis.ResponseError, match="BAD_REQUEST after"):
        wire.dry_page(after=b"\1short")


def test_a_dry_run_of_a_paused_queue_has_no_next_page(wire: Wire) -> None:
    wire.configure(settings(flags=1))
    wire.enqueue_bodies(b"a")
    shown, after = wire.dry_page()
    assert (shown.jobs, shown.limited, after) == ([], 1, b"")


def test_a_dry_run_shows_no_jobs_until_a_pause_ends(wire: Wire) -> None:
    wire.enqueue_bodies(b"a")
    wire.pause(60_000)
    shown, after = wire.dry_page()
    assert (shown.jobs, shown.limited, shown.left, after) == ([], 1, [1, 0, 0], b"")
    past_ms = created_ms(wire.h)
    # one that begins in the future: the clock went back, and it begins again
    for begin_ms, end_ms, bodies in ((past_ms - 9, past_ms - 1, [b"a"]), (past_ms + 600_000, past_ms + 660_000, [])):
        wire.client.hset(wire.key("meta"), "pause", begin_ms.to_bytes(6, "big") + end_ms.to_bytes(6, "big"))
        assert wire.dry_page()[0].bodies == bodies


def test_a_dry_run_tells_the_attempts_that_are_left(wire: Wire) -> None:
    wire.enqueue(Job(b"a"), Job(b"b"))
    wire.fail(wire.claim(1))
    assert [(job.body, job.left) for job in wire.dry_run().jobs] == [(b"b", None), (b"a", 9)]


def test_a_released_job_goes_back_to_its_position(wire: Wire) -> None:
    wire.enqueue_bodies(b"a", b"b", b"c", b"d")
    first = wire.claim(2)
    assert wire.release(*ends(first)) == []
    assert wire.claim().bodies == [b"a", b"b", b"c", b"d"]


def test_a_priority_is_not_passed_over_and_quotas_bound_it(wire: Wire) -> None:
    wire.enqueue(*(Job(b"%d" % priority, priority) for priority in (3, 2, 1) for _ in range(5)))
    assert wire.claim(7).bodies == [b"1"] * 5 + [b"2"] * 2
    claimed = wire.claim(4, quotas=(5, 1, 2))
    assert (claimed.bodies, claimed.left) == ([b"2", b"3", b"3"], [0, 2, 3])


def test_the_byte_budget_bounds_a_claim_but_one_job_is_always_given(wire: Wire) -> None:
    wire.enqueue(*(Job(bytes(1000), priority) for priority in (1, 2) for _ in range(30)))
    claimed = wire.claim(budget=1004 * 25 + 5)
    assert (len(claimed.jobs), claimed.left) == (25, [5, 30, 0])
    claimed = wire.claim(budget=1004 * 7)
    assert ([job.priority for job in claimed.jobs], claimed.left) == ([1] * 5 + [2] * 2, [0, 28, 0])
    assert len(wire.claim(budget=10).jobs) == 1
    assert wire.counts()[1][0] == 27


def test_records_of_a_mebibyte_come_back_whole(wire: Wire) -> None:
    bodies = [random.Random(i).randbytes(MIB) for i in range(6)]
    wire.enqueue_bodies(*bodies)
    assert wire.dry_run().bodies == bodies[:3]
    first, second = wire.claim(), wire.claim()
    assert first.bodies + second.bodies == bodies
    assert wire.fail(first) == []
    assert wire.succeed(second) == []
    assert drain(wire) == bodies[:3]


def test_a_claim_tells_only_of_attempts_that_differ_from_those_allowed(wire: Wire) -> None:
    wire.enqueue(Job(b"a", allowed=3), Job(b"b", allowed=65535), Job(b"c", allowed=2, status=b"s"))
    claimed = wire.claim()
    assert [job.left for job in claimed.jobs] == [None, None, 2]
    wire.fail(claimed)
    assert [job.left for job in wire.claim().jobs] == [2, 65534, 1]


def test_a_repeated_claim_gives_what_is_still_held(wire: Wire) -> None:
    wire.enqueue(*(Job(b"%d" % i, 1 + i % 2) for i in range(6)))
    claimed = wire.claim()
    other = wire.other()
    assert other.ack(*ends(claimed)[:2]) == []
    assert other.release(ends(claimed)[5]) == []
    again = wire.replayed_claim()
    assert (again.token, again.bodies) == (claimed.token, claimed.bodies[2:5])
    other.claim()
    assert wire.replayed_claim().bodies == claimed.bodies[2:5]
    assert other.succeed(again) == []
    assert (wire.replayed_claim().token, wire.replayed_claim().jobs) == (b"", [])


def test_ids_without_records_are_dropped_and_counted(wire: Wire) -> None:
    ids = wire.enqueue(*(Job(b"%d" % i, status=b"s") for i in range(60)))
    lost = {*ids[0:5], *ids[20:50:3], ids[-1]}
    wire.client.hdel(wire.key("jobs"), *lost)
    expected = [b"%d" % i for i, id_ in enumerate(ids) if id_ not in lost]
    assert wire.dry_run().bodies == expected
    first = wire.claim(10)
    assert first.bodies == expected[:5]  # five of the ten at the head could not run
    assert first.left == [50, 0, 0]
    assert first.bodies + wire.claim().bodies == expected
    assert wire.read("config")[2] == b"%d" % len(lost)
    assert set(snapshot(wire)) == {"meta", "jobs", "extras", "leases", "lease_jobs", "running:1"}
    assert wire.client.hlen(wire.key("extras")) == len(expected)


def test_running_jobs_without_records_can_be_acked_failed_and_released(wire: Wire) -> None:
    wire.enqueue(*(Job(b"%d" % i) for i in range(4)))
    claimed = wire.claim()
    wire.client.delete(wire.key("jobs"))
    done, failed, back, kept = ends(claimed)
    assert wire.checkpoint(kept, body=b"new") == [0]
    assert wire.checkpoint(kept._replace(status=b"s")) == []
    assert wire.ack(done, failed._replace(failed=True)) == []
    assert wire.release(back) == []
    assert wire.succeed(Claimed(claimed.token, claimed.jobs[3:], [], 0, False)) == []
    assert wire.claim().jobs == []
    assert is_clean(snapshot(wire))


@EACH_KIND
def test_scheduled_jobs_become_due_in_the_order_of_their_run_after(kind: AnyKind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create()
        wire.enqueue(Job(b"late", 1, DELAY, 90_000), Job(b"soon", 1, DELAY, 60_000), Job(b"low", 2, DELAY, 30_000))
        claimed = wire.claim()
        assert (claimed.jobs, claimed.left) == ([], [0, 0, 0])
        assert 0 < claimed.due_in_ms <= 30_000
        assert [sum(priority[:2]) - priority[0] for priority in wire.counts()] == [2, 1, 0]
        jump(server, 61)
        wire.enqueue_bodies(b"after")
        assert wire.dry_run().bodies == [b"soon", b"after", b"low"]
        assert wire.claim().bodies == [b"soon", b"after", b"low"]
        jump(server, -3600)
        assert wire.claim().jobs == []
        jump(server, 3600 + 30)
        assert wire.claim().bodies == [b"late"]


@EACH_KIND
def test_only_what_is_needed_of_what_is_due_is_moved(kind: AnyKind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create()
        wire.enqueue(*(Job(b"%d" % i, 1, DELAY, 60_000 + i) for i in range(50)))
        jump(server, 120)
        claimed = wire.claim(10)
        assert (claimed.bodies, claimed.left) == ([b"%d" % i for i in range(10)], [40, 0, 0])
        assert (client.zcard(wire.key("scheduled:1")), client.zcard(wire.key("ready:1"))) == (40, 0)
        assert wire.release(*ends(claimed)) == []
        assert drain(wire) == [b"%d" % i for i in range(50)]


@EACH_KIND
def test_a_clock_that_went_back_hides_no_ready_job(kind: AnyKind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create()
        first = wire.enqueue_bodies(b"before")[0]
        jump(server, -3600)
        second = wire.enqueue_bodies(b"after")[0]
        assert number(second) > number(first)
        assert drain(wire) == [b"before", b"after"]


def test_the_record_in_redis_is_the_one_that_was_sent(wire: Wire) -> None:
    job = Job(b"\0\xff", 2, allowed=65535)
    (id_,) = wire.enqueue(job)
    assert snapshot(wire)["jobs"] == {id_: record(job)}
