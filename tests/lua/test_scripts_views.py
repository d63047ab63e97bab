"""What an operator sees: scans, lookups, the audit; and a full Redis.

Promises: shown on real servers; a job that stays put is seen exactly once, and a full Redis still drains.
Risks: bodies are small but where a test is about their size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support.servers import KINDS, Kind, Server
from tests.support.wire import Wire, connect, drain, expiries, fail_all, snapshot
from tests.support.wire_format import (
    ABSOLUTE,
    FAILED,
    FAR_MS,
    PENDING,
    RUNNING,
    SUCCEEDED,
    Info,
    Job,
    created_ms,
    ends,
    number,
    settings,
)

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
FreshServer = Callable[..., Server]


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        made = Wire(client)
        made.create()
        yield made


def scan_all(wire: Wire, state: bytes, between: Callable[[], object], future: bool = False) -> list[Info]:
    found, cursor = wire.scan(state, limit=7, future=future)
    while cursor:
        between()
        page, cursor = wire.scan(state, cursor, limit=7, future=future)
        found += page
    return found


def test_a_scan_gives_each_job_that_stays_put_once_though_others_come_and_go(wire: Wire) -> None:
    now_ms, chance = created_ms(wire.h), random.Random(3)
    stay = wire.enqueue(*(Job(b"stay", 1, ABSOLUTE, now_ms - chance.randint(0, 40)) for _ in range(200)))
    go = wire.enqueue(*(Job(b"go", 1, ABSOLUTE, now_ms - chance.randint(0, 40)) for _ in range(200)))

    def disturb() -> None:
        wire.delete_jobs(PENDING, ids=[go.pop(chance.randrange(len(go)))])
        wire.enqueue(Job(b"new", 1, ABSOLUTE, now_ms - chance.randint(0, 40)))
        # in `ready` the member of a job with a run-after of its own ends with a byte 1
        positions = {"scheduled:1": (moved := chance.choice(stay)), "ready:1": moved + b"\1"}
        score = wire.client.zscore(wire.key("ready:1"), positions["ready:1"])
        came, went = ("scheduled:1", "ready:1") if score else ("ready:1", "scheduled:1")
        wire.client.zadd(
            wire.key(came), {positions[came]: score or wire.client.zscore(wire.key("scheduled:1"), moved) or 0}
        )
        wire.client.zrem(wire.key(went), positions[went])

    found = [info.id for info in scan_all(wire, PENDING, disturb) if info.id in set(stay)]
    assert sorted(found) == sorted(stay)


def test_a_scan_of_thousands_with_one_score_survives_the_loss_of_its_cursor(wire: Wire) -> None:
    now_ms = created_ms(wire.h)
    ids = [id_ for _ in range(3) for id_ in wire.enqueue(*[Job(b"x", 1, ABSOLUTE, now_ms)] * 1000)]
    page, cursor = wire.scan(PENDING, limit=500)
    found = [info.id for info in page]
    while cursor:
        wire.delete_jobs(PENDING, ids=[cursor[:8]])
        page, cursor = wire.scan(PENDING, cursor, limit=500)
        found += [info.id for info in page]
    assert found == ids[::-1]


def test_scans_of_the_other_states_give_every_job(wire: Wire) -> None:
    wire.configure(settings(keep=1000))
    failed = fail_all(wire, 40)
    done = wire.enqueue(*[Job()] * 40)
    wire.succeed(wire.claim())
    far = wire.enqueue(*(Job(b"far", 1, ABSOLUTE, FAR_MS - i // 10) for i in range(40)))
    running = wire.enqueue(*[Job()] * 600)
    wire.claim()
    for state, ids in ((FAILED, failed), (SUCCEEDED, done), (RUNNING, running)):
        assert {info.id for info in scan_all(wire, state, lambda: None)} == set(ids)
    future = scan_all(wire, PENDING, lambda: None, future=True)
    assert [info.id for info in future] == sorted(far, key=lambda id_: (far.index(id_) // 10, -number(id_)))
    assert scan_all(wire, PENDING, lambda: None) == []


def test_a_page_of_running_jobs_keeps_its_limit(wire: Wire) -> None:
    """HSCAN gives a small hash as a whole."""
    ids = wire.enqueue(*(Job(b"") for _ in range(40)))
    wire.claim()
    for limit in (1, 7, 39, 40):
        found, cursor, sizes = list[bytes](), b"", list[int]()
        while cursor or not sizes:
            page, cursor = wire.scan(RUNNING, cursor, limit=limit)
            found, sizes = found + [info.id for info in page], [*sizes, len(page)]
            assert len(sizes) <= 41
        assert sorted(set(found)) == sorted(ids)
        assert max(sizes) <= limit


def test_a_scan_tells_the_sixteenths_of_each_score(wire: Wire) -> None:
    ids = wire.enqueue(*(Job(b"") for _ in range(3)))
    for id_, score in zip(ids, (1000.5, 1000, 1000 + 15 / 16), strict=True):
        wire.client.zrem(wire.key("ready:1"), id_)
        wire.client.zadd(wire.key("ready:1"), {id_ + b"\1": score})
    cursor, sixteenths, *infos = wire.read("scan", PENDING, 1, 0, b"", 2, 0, 1 << 20)
    assert (cursor, sixteenths) == (ids[0] + b"1000.5000", b"\x0f\x08")
    assert [info[2:10] for info in infos] == [ids[2], ids[0]]
    cursor, sixteenths, *infos = wire.read("scan", PENDING, 1, 0, cursor, 2, 0, 1 << 20)
    assert (cursor, sixteenths, [info[2:10] for info in infos]) == (b"", b"\0", [ids[1]])


@pytest.mark.parametrize("budget", [45_000, 5_000])
@pytest.mark.parametrize("state", [PENDING, RUNNING, FAILED])
def test_a_scan_with_bodies_over_its_budget_still_gives_every_job(wire: Wire, state: bytes, budget: int) -> None:
    ids = wire.enqueue(*[Job(bytes(10_000), allowed=1)] * 30)
    if state != PENDING:
        claimed = wire.claim()
        if state == FAILED:
            wire.fail(claimed)
    found, cursor = wire.scan(state, bodies=True, budget=budget)
    while cursor:
        page, cursor = wire.scan(state, cursor, bodies=True, budget=budget)
        found += page
        assert len(page) <= max(1, budget // 10_000)
    assert sorted(info.id for info in found) == sorted(ids)
    assert [info.body for info in found] == [bytes(10_000)] * 30


def test_a_lookup_tells_what_is_known_and_stops_at_its_budget(wire: Wire) -> None:
    (one, two, low) = wire.enqueue(Job(b"a" * 900, allowed=5, status=b"s"), Job(b"b" * 900), Job(b"c", 2))
    token = wire.claim(1, claim=b"h:1:2:src:3").token
    running, pending, missing, other = wire.lookup([one, two, bytes(8), low], [1, 1, 1, 2])
    assert running is not None
    assert (running.state, running.claim, running.remaining) == (int(RUNNING), b"h:1:2:src:3", 5)
    assert running.run_after_ms == running.updated_ms == created_ms(token)
    assert pending is not None
    assert (pending.state, pending.run_after_ms, pending.claim) == (int(PENDING), created_ms(two), b"")
    assert missing is None
    assert other is not None
    assert (other.priority, other.body) == (2, b"c")
    assert wire.lookup([low, low], [1, 9]) == [None, None]
    assert len(wire.lookup([one, two, low], budget=1000)) == 1


# -- audit

READY, SCHEDULED, HELD, LOST, KEPT, RECORD, EXTRA, NO_LEASE, OTHER_PRIORITY = (1 << i for i in range(9))
NOT_SIMPLE = 1 << 11


def test_the_audit_of_a_healthy_queue(wire: Wire) -> None:
    wire.configure(settings(keep=9))
    (failed,) = fail_all(wire, 1)
    done, running = wire.enqueue_bodies(b"a", b"b")
    claimed = wire.claim()
    wire.ack(ends(claimed)[0])
    own = wire.enqueue_bodies(b"own")[0]
    owner = wire.claim(5)
    wire.renew(own=ends(owner))
    lease = max(expiries(wire), key=number)
    ready, far = wire.enqueue(Job(), Job(b"far", 1, ABSOLUTE, FAR_MS))
    ids = [ready, far, running, own, failed, done, bytes(8)]
    positions = [READY, SCHEDULED, HELD, HELD, LOST | EXTRA, KEPT]
    assert wire.audit(ids, [claimed.token, lease, bytes(8)]) == (
        [position | RECORD for position in positions] + [0],
        [7, 7, 0],
    )


def test_the_audit_of_a_damaged_queue(wire: Wire) -> None:
    without_record, twice, wrong, orphan, lost = wire.enqueue(*[Job()] * 5)
    low = wire.enqueue(Job(b"low", 2))[0]
    wire.client.zrem(wire.key("ready:1"), orphan, lost)
    wire.client.zadd(wire.key("ready:1"), {low: created_ms(low)})
    wire.client.zadd(wire.key("ready:1"), {wrong + b"\1": 1})
    wire.client.zadd(wire.key("failed:1"), {twice: 1})
    wire.client.hdel(wire.key("jobs"), without_record)
    positions, _ = wire.audit([without_record, twice, wrong, orphan, low])
    assert positions == [
        READY,
        READY | LOST | RECORD,
        READY | RECORD | NOT_SIMPLE,
        RECORD,
        READY | RECORD | OTHER_PRIORITY,
    ]


def test_the_audit_of_damaged_leases(wire: Wire) -> None:
    wire.enqueue(*[Job()] * 6)
    miscounted, unexpiring, empty = wire.claim(2), wire.claim(2), wire.claim(2)
    wire.client.hincrby(wire.key("lease_jobs"), miscounted.token + b"n", 1)
    wire.client.zrem(wire.key("leases"), unexpiring.token)
    wire.client.hdel(wire.key("lease_jobs"), empty.token)
    positions, seen = wire.audit(
        [unexpiring.jobs[0].id, empty.jobs[0].id], [miscounted.token, unexpiring.token, empty.token]
    )
    assert positions == [HELD | RECORD | NO_LEASE, HELD | RECORD]
    assert seen == [3, 6, 1]


# -- a full Redis


@EACH_KIND
def test_a_full_redis_refuses_new_jobs_by_name_and_drains(kind: Kind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind)
    with connect(server) as client:
        wire = Wire(client)
        wire.create(settings(keep=3))
        fail_all(wire, 3)
        wire.enqueue(*(Job(b"%d" % i) for i in range(20)))
        reservation = wire.prepare(1)
        client.config_set("maxmemory", 1)
        before = snapshot(wire)
        for call in (
            lambda: wire.enqueue(Job()),
            lambda: wire.prepare(1),
            lambda: wire.load(reservation, Job()),
            lambda: Wire(client, "new").create(),
        ):
            with pytest.raises(redis.OutOfMemoryError):
                call()
        assert snapshot(wire) == before
        held = ends(wire.claim(4))
        assert wire.renew(own=held[:1]) == wire.release(held[1]) == wire.ack(held[2]) == []
        assert wire.checkpoint(held[3], body=bytes(100_000), move=(0, 0)) == []
        assert wire.retry_failed(limit=2) == 2
        assert wire.ack(held[0]._replace(failed=True)) == []
        assert (wire.expire().active, wire.write("pass_on", b""), len(wire.dry_run().jobs)) == (1, [b""], 21)
        wire.configure(settings(lease_ms=1))
        wire.collect()
        assert len(drain(wire)) == 21
        assert wire.delete_jobs(FAILED, limit=9) == (1, 0)
        assert wire.client.hlen(wire.key("jobs")) == 0
        wire.write("delete_queue", b"")
