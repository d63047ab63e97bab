"""What an operator does with a queue: configuration, reservations, deletion, retry, collection.

Promises: shown on real servers; what is deleted leaves nothing behind, and what was issued never comes back.
Risks: tests of the clock need libfaketime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.memory import EVERY_KIND, AnyKind
from tests.support.servers import Server
from tests.support.wire import Wire, connect, drain, fail_all, is_clean, jump, known, refused, snapshot
from tests.support.wire_format import (
    ABSOLUTE,
    DELAY,
    FAILED,
    FAR_MS,
    HOUR_MS,
    PENDING,
    RUNNING,
    SUCCEEDED,
    Job,
    ends,
    number,
    record,
    settings,
    unpack_config,
)

EACH_KIND = pytest.mark.parametrize("kind", EVERY_KIND)
FreshServer = Callable[..., Server]


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        made = Wire(client)
        made.create()
        yield made


def after(version: bytes, step: int = 1) -> bytes:
    return (number(version) + step).to_bytes(8, "big")


# -- create, configure, delete_queue


def test_a_queue_is_created_once_and_a_repeat_says_so_again(wire: Wire) -> None:
    made = wire.answer
    assert wire.again() == made
    assert made[0][:1] == b"\1"
    other = wire.other()
    assert other.create(settings(lease_ms=1)) is False
    assert other.version == wire.version


def test_settings_change_by_compare_and_set(wire: Wire) -> None:
    other = wire.other()
    config = wire.configure(settings(lease_ms=1234, priorities=5))
    assert config.settings == settings(lease_ms=1234, priorities=5)
    assert config == unpack_config(wire.read("config")[0])
    assert number(wire.version) > number(other.version)
    with refused("CONFIG_CHANGED"):
        other.configure(settings())
    assert [len(wire.counts()), wire.enqueue(Job(priority=5)) != []] == [5, True]


@pytest.mark.parametrize("step", [1, 100, 1 << 40])
def test_a_carried_configuration_is_taken_over_only_if_it_is_newer(wire: Wire, step: int) -> None:
    known = wire.version
    newer = wire.configure(settings(lease_ms=77), carried=after(known, step))
    assert (newer.version, newer.settings) == (after(known, step), settings(lease_ms=77))
    for old in (known, after(known, step), after(known, step - 1)):
        assert wire.configure(settings(lease_ms=5), carried=old) == newer
    assert number(wire.configure(settings()).version) > number(newer.version)


def test_versions_drawn_in_one_millisecond_grow_by_their_last_bits(wire: Wire) -> None:
    versions = [number(wire.configure(settings(lease_ms=i + 1)).version) for i in range(50)]
    assert versions == sorted(set(versions))


def test_a_deleted_queue_leaves_its_head_and_nothing_comes_back(wire: Wire) -> None:
    ids = wire.enqueue(*[Job(status=b"s")] * 5, Job(b"far", 3, ABSOLUTE, FAR_MS))
    token = wire.claim(2).token
    wire.claim(1)
    wire.prepare(3)
    version = wire.version
    wire.write("delete_queue", b"")
    deleted = wire.answer
    assert wire.again() == deleted
    found = snapshot(wire)
    assert set(found) == {"meta"}
    assert set(found["meta"]) == {b"config", b"head", wire.lane}
    config = unpack_config(wire.read("config")[0])
    assert (config.format, config.flags, config.epoch) == (2, 128, 2)
    with refused("QUEUE_NOT_FOUND"):
        wire.other().create(carried=version)
    again = wire.other()
    assert again.create() is True
    assert number(again.version) > number(config.version) > number(version)
    assert number(again.enqueue(Job())[0]) > number(ids[-1])
    assert number(again.claim().token) > number(token)
    assert again.succeed(again.replayed_claim()) == []
    assert is_clean(snapshot(again))


def test_a_queue_deleted_under_a_version_from_a_clock_ahead_stays_deleted(wire: Wire) -> None:
    ahead = after(wire.version, HOUR_MS << 19)
    wire.configure(settings(), carried=ahead)
    wire.write("delete_queue", b"")
    with refused("QUEUE_NOT_FOUND"):
        wire.other().create(carried=ahead)
    with refused("QUEUE_NOT_FOUND"):
        wire.other().create(carried=after(ahead, HOUR_MS << 19))
    made = wire.other()
    assert made.create(carried=wire.version, epoch=3) is True  # of the epoch after that, however old its version


def test_a_configuration_of_another_epoch_is_not_taken_over(wire: Wire) -> None:
    before = snapshot(wire, lane=False)
    for epoch in (0, 2, 3):
        wire.configure(settings(lease_ms=5), carried=after(wire.version), epoch=epoch)
    assert snapshot(wire, lane=False) == before


@pytest.mark.parametrize(("below", "goes"), [(0, False), (1, False), (3, True)])
def test_only_what_is_of_an_earlier_epoch_is_deleted(wire: Wire, below: int, goes: bool) -> None:
    wire.enqueue_bodies(b"a")
    before = snapshot(wire, lane=False)
    wire.write("delete_queue", below)
    assert (set(snapshot(wire)) == {"meta"}) is goes
    assert goes or snapshot(wire, lane=False) == before


def test_a_carried_creation_takes_the_version_over(wire: Wire) -> None:
    other = Wire(wire.client, "other")
    assert other.create(settings(lease_ms=9), carried=after(wire.version)) is True
    assert other.version == after(wire.version)
    config = unpack_config(other.read("config")[0])
    assert (config.generation, config.epoch, config.settings) == (1, 1, settings(lease_ms=9))


# -- enqueue refused, prepare, load


def test_a_draining_queue_refuses_new_jobs_and_gives_its_old_ones(wire: Wire) -> None:
    wire.enqueue_bodies(b"a")
    reservation = wire.prepare(1)
    wire.configure(settings(flags=2))
    before = snapshot(wire)
    for call in (lambda: wire.enqueue(Job()), lambda: wire.prepare(1), lambda: wire.load(reservation, Job())):
        with refused("ENQUEUE_REFUSED"):
            call()
    assert snapshot(wire) == before
    assert drain(wire) == [b"a"]


def test_a_reservation_is_used_once_and_its_jobs_get_its_ids(wire: Wire) -> None:
    reservation = wire.prepare(3)
    behind = wire.enqueue_bodies(b"behind")
    ids = wire.load(reservation, *(Job(b"%d" % i) for i in range(3)))
    assert ids[0] == reservation
    assert number(ids[-1]) < number(behind[0])
    answer = wire.answer
    assert wire.again() == answer
    before = snapshot(wire)
    with refused("RESERVATION_GONE"):
        wire.load(reservation, *[Job()] * 3)
    assert snapshot(wire) == before
    assert drain(wire) == [b"0", b"1", b"2", b"behind"]


# -- retry_failed, delete_jobs


def test_failed_jobs_are_retried_oldest_first_or_by_name(wire: Wire) -> None:
    ids = fail_all(wire, 6)
    assert wire.retry_failed(limit=2, attempts=4) == 2
    assert [(job.body, job.left) for job in wire.claim().jobs] == [(b"0", 4), (b"1", 4)]
    assert wire.retry_failed(limit=0, ids=[ids[4], ids[0], ids[4], bytes(8)]) == 1
    assert wire.claim().bodies == [b"4"]
    assert wire.retry_failed(limit=0) == 0
    assert wire.retry_failed(kind=DELAY, ms=60_000) == 3
    assert wire.counts()[0] == (0, 3, 3, 0, 0)
    (info,) = wire.lookup([ids[5]])
    assert info is not None
    assert (info.status, info.remaining, info.crashes) == (b"no", 3, 0)


def test_a_retry_with_more_attempts_allows_them(wire: Wire) -> None:
    ids = fail_all(wire, 3)
    wire.client.hdel(wire.key("jobs"), ids[2])
    assert wire.retry_failed(attempts=5, kind=DELAY, ms=60_000) == 3
    records = [wire.client.hget(wire.key("jobs"), id_) for id_ in ids]
    assert records == [record(Job(b"0", allowed=5)), record(Job(b"1", allowed=5)), None]
    assert [(known(wire, id_).allowed, known(wire, id_).remaining) for id_ in ids[:2]] == [(5, 5)] * 2


@pytest.mark.parametrize("by_name", [False, True])
def test_a_retry_reads_so_many_bytes_of_records_a_call(wire: Wire, by_name: bool) -> None:
    ids = wire.enqueue(*[Job(bytes(400_000), allowed=1)] * 5)
    while (held := wire.claim()).jobs:
        wire.fail(held)
    named = ids if by_name else ()
    limit = 0 if by_name else 1000
    assert wire.retry_failed(limit=limit, attempts=1, ids=ids[:1]) == 1  # nothing to read: all at once
    wire.fail(wire.claim(1))
    counts = [wire.retry_failed(limit=limit, attempts=2, ids=named) for _ in range(4)]
    assert counts == [3, 2, 0, 0]
    assert {known(wire, id_).allowed for id_ in ids} == {2}


@pytest.mark.parametrize("state", [PENDING, RUNNING, SUCCEEDED, FAILED])
def test_jobs_of_one_state_are_deleted_by_count_and_by_name(wire: Wire, state: bytes) -> None:
    wire.configure(settings(keep=100))
    fail_all(wire, 10)
    wire.enqueue(*(Job(b"done", status=b"s") for _ in range(10)))
    assert wire.succeed(wire.claim()) == []
    running = [id_ for _ in range(5) for id_ in wire.enqueue(*[Job()] * 2) if wire.claim(2)]
    wire.enqueue(*[Job()] * 5, *[Job(b"far", 1, ABSOLUTE, FAR_MS)] * 5)
    assert [sum(priority) for priority in wire.counts()] == [40, 0, 0]
    ids = [info.id for info in wire.scan(state)[0]]
    if state == PENDING:
        ids += [info.id for info in wire.scan(state, future=True)[0]]
    assert len(ids) == 10
    assert wire.delete_jobs(state, limit=3) == (3, 1)
    left = [info.id for info in wire.lookup(ids) if info]
    others = [id_ for id_ in running if state != RUNNING][:2]
    assert wire.delete_jobs(state, ids=[left[0], left[1], left[0], bytes(8), *others]) == (2, 1)
    assert wire.delete_jobs(state, limit=1000) == (5, 0)
    assert [sum(priority) for priority in wire.counts()] == [30, 0, 0]
    if state == RUNNING:
        assert not set(snapshot(wire)) & {"leases", "lease_jobs", "running:1"}
    for other in (PENDING, RUNNING, SUCCEEDED, FAILED):
        wire.delete_jobs(other, limit=1000)
    assert is_clean(snapshot(wire))


def test_a_job_named_for_deletion_goes_whatever_its_state_and_counts_once(wire: Wire) -> None:
    wire.configure(settings(keep=9))
    ids = [*fail_all(wire, 1), *wire.enqueue_bodies(b"a", b"b")]
    claimed = wire.claim()
    assert wire.ack(ends(claimed)[0]) == []
    ids += wire.enqueue(Job(), Job(b"far", 1, ABSOLUTE, FAR_MS))
    assert wire.delete_jobs(b"", ids=ids + ids)[0] == 5
    assert wire.ack(ends(claimed)[1]) == [0]
    assert is_clean(snapshot(wire))


def test_more_running_jobs_than_a_page_are_deleted_in_several_calls(wire: Wire) -> None:
    wire.enqueue(*[Job()] * 1000)
    for _ in range(10):
        wire.claim(100)
    deleted: list[tuple[int, int]] = []
    while not deleted or deleted[-1][1]:
        deleted.append(wire.delete_jobs(RUNNING, limit=150))
        assert 0 < deleted[-1][0] <= 150
    assert sum(count for count, _ in deleted) == 1000
    assert is_clean(snapshot(wire))


# -- collect


@EACH_KIND
def test_collect_removes_what_is_past_its_time(kind: AnyKind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create(settings(keep=100, succeeded_s=600, failed_s=5000))
        fail_all(wire, 4)
        wire.enqueue(*[Job(status=b"s")] * 3)
        wire.succeed(wire.claim())
        wire.claim(1, channel=b"me")
        reservation = wire.prepare(2)
        other = wire.other()
        other.ack()
        assert wire.collect() == ([0, 0, 0, 0, 0, 0], b"0")
        jump(server, 700)
        assert wire.collect()[0] == [3, 0, 0, 0, 1, 0]
        jump(server, 3000)
        assert wire.collect()[0] == [0, 0, 1, 1, 0, 0]  # the other lane and the reservation are an hour old
        with refused("RESERVATION_GONE"):
            wire.load(reservation, Job(), Job())
        jump(server, 2000)
        assert wire.collect()[0] == [0, 4, 0, 0, 0, 0]
        assert is_clean(snapshot(wire))


@EACH_KIND
def test_collect_pages_and_waits_after_a_jump(kind: AnyKind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create(settings(keep=5000, succeeded_s=600))
        for _ in range(2):
            wire.enqueue(*[Job()] * 1000)
            wire.succeed(wire.claim())
        for _ in range(1200):
            wire.other().write("pass_on", b"")
            wire.prepare(1)
        seen_ms = wire.expire().now_ms
        jump(server, 7200)
        assert wire.expire((seen_ms - 5000, seen_ms + 5000)).rests == 2
        assert wire.expire(jumped=True).rests == 2
        assert wire.collect() == ([0] * 6, b"0")
        jump(server, 31)  # more than the lease
        assert wire.collect()[0] == [1000, 0, 0, 0, 0, 1]  # lanes and reservations count as used at the jump
        jump(server, 3601)
        fresh = {wire.prepare(1) for _ in range(1200)}
        totals, cursor, more, calls = [0] * 5, b"0", 1, 0
        while (more or cursor != b"0") and calls < 50:
            counts, cursor = wire.collect(cursor)
            assert counts[0] + counts[1] <= 1000
            totals, more, calls = [a + b for a, b in zip(totals, counts, strict=False)], counts[5], calls + 1
        assert (totals, more, cursor) == ([1000, 0, 1200, 1200, 0], 0, b"0")
        assert set(client.hkeys(wire.key("reservations"))) == fresh
        client.delete(wire.key("reservations"))
        assert is_clean(snapshot(wire))


def test_collect_removes_waiters_in_steps(wire: Wire) -> None:
    wire.client.zadd(wire.key("waiters"), {f"dead{number}": number for number in range(1_500)})
    assert [wire.collect()[0] for _ in range(2)] == [[0, 0, 0, 0, 1000, 1], [0, 0, 0, 0, 500, 0]]


def test_collect_reaches_a_cap_that_was_lowered(wire: Wire) -> None:
    wire.configure(settings(keep=100))
    ids = wire.enqueue(*[Job(status=b"s")] * 50)
    wire.succeed(wire.claim())
    wire.configure(settings(keep=20))
    assert wire.collect()[0] == [30, 0, 0, 0, 0, 0]
    assert [info is not None for info in wire.lookup(ids)] == [False] * 30 + [True] * 20
