"""The scripts of the archive: what leaves a queue shard for MySQL and comes back (docs/design.md §3 and §4).

Promises: shown on real servers and on the memory store, by comparing every key of the queue shard before and after.
Risks: the scripts are called raw. What the flows make of the answers is shown elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from tests.support.listener import Listener
from tests.support.servers import Server
from tests.support.wire import Wire, connect, drain, expiries, refused, snapshot
from tests.support.wire_format import (
    ABSOLUTE,
    FAILED,
    FAR_MS,
    HOUR_MS,
    PENDING,
    RUNNING,
    SUCCEEDED,
    SUSPECT,
    Info,
    Job,
    Moved,
    created_ms,
    number,
    pack_moved,
    record,
)

BATCH, OTHER, THIRD = b"A" * 16, b"B" * 16, b"C" * 16
UNKNOWN, ENDED, NOT_ENDED = 0, 1, 2
REFUSED, DONE, DONE_BEFORE, NOTHING_CLOSED = 0, 1, 2, 3


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with connect(server) as made:
        yield made


@pytest.fixture
def wire(client: redis.Redis) -> Wire:
    made = Wire(client)
    made.create()
    made.close(0)
    return made


def content(wire: Wire) -> dict[str, Any]:
    """Every key of the queue shard, without h, lanes and the restores: what jobs are."""
    found: dict[str, Any] = dict(snapshot(wire, lane=False))
    found.pop("restores", None)
    return found


def ids_in(wire: Wire, name: str) -> list[bytes]:
    """The ids of a sorted set, in order."""
    return [member[:8] for member, _ in content(wire).get(name, [])]


def meta(wire: Wire, name: str) -> Any:
    return wire.client.hget(wire.key("meta"), name)


def earliest_ms(wire: Wire) -> int:
    return number(meta(wire, "head")[8:14])


def largest(wire: Wire) -> int:
    return number(meta(wire, "head")[15:19])


@dataclass
class Forms:
    """A queue shard with a job of every form in priority 1. names: form -> id."""

    wire: Wire
    names: dict[str, bytes]


def make_forms(wire: Wire) -> Forms:
    now_ms = created_ms(wire.h)
    names: dict[str, bytes] = {}

    def put(name: str, **words: Any) -> None:
        (names[name],) = wire.enqueue(Job(**{"body": name.encode(), "allowed": 5, **words}))

    put("crashed, an attempt used")
    wire.claim(1)
    wire.client.zadd(wire.key("leases"), dict.fromkeys(expiries(wire), 1))
    wire.expire()
    extras: Any = wire.client.hget(wire.key("extras"), names["crashed, an attempt used"])
    assert struct.unpack_from(">H6xH", extras) == (4, SUSPECT + 1)
    put("sixteenths")
    wire.client.zrem(wire.key("ready:1"), names["sixteenths"])
    created = created_ms(names["sixteenths"])
    wire.client.zadd(wire.key("ready:1"), {names["sixteenths"] + b"\1": created + 9 / 16})
    put("simple")
    put("a status", status="größer 💡\n".encode())
    put("an earlier run-after", kind=ABSOLUTE, ms=now_ms - 60_000)
    put("run-after 0", kind=ABSOLUTE, ms=0)
    put("a round run-after", kind=ABSOLUTE, ms=1_000_000_000_000)
    put("every byte", body=bytes(range(256)))
    put("an empty body", body=b"", allowed=65535)
    put("the longest status", status=b"s" * 3000)
    put("scheduled", kind=ABSOLUTE, ms=now_ms + 3_600_000)
    put("scheduled, a round time", kind=ABSOLUTE, ms=2_000_000_000_000)
    put("scheduled for ever, with a status", kind=ABSOLUTE, ms=FAR_MS, status=b"late")
    return Forms(wire, names)


@pytest.fixture
def forms(wire: Wire) -> Forms:
    return make_forms(wire)


def withdraw_all(wire: Wire) -> list[Moved]:
    """Everything of priority 1 in two batches; the jobs."""
    wire.withdraw(BATCH, line="ready")
    wire.withdraw(OTHER, line="scheduled")
    return wire.batch_jobs(BATCH) + wire.batch_jobs(OTHER)


# -- withdraw


def test_a_withdrawn_job_leaves_its_line_and_keeps_its_record_and_extras(forms: Forms) -> None:
    wire, before = forms.wire, content(forms.wire)
    count = len(ids_in(wire, "ready:1"))
    assert wire.withdraw(BATCH) == (count, 0)
    after = content(wire)
    assert "ready:1" not in after
    assert (after["jobs"], after["extras"], after["scheduled:1"]) == tuple(
        before[name] for name in ("jobs", "extras", "scheduled:1")
    )
    assert after["withdrawn:1"] == [(member[:8], score) for member, score in before["ready:1"]]
    assert after["batch_of"] == {member[:8]: BATCH for member, _ in before["ready:1"]}
    entry = after["batches"][BATCH]
    assert created_ms(wire.h) - 60_000 < number(entry[:6]) <= created_ms(wire.h)
    assert (entry[6], entry[7:]) == (1, b"".join(member[:8] for member, _ in before["ready:1"]))


def test_an_order_decides_which_jobs_leave_first(wire: Wire) -> None:
    now_ms = created_ms(wire.h)
    ids = wire.enqueue(*(Job(kind=ABSOLUTE, ms=now_ms + 100_000 + i) for i in range(10)))
    assert wire.withdraw(BATCH, line="scheduled", order="latest", limit=3) == (3, 1)
    assert wire.withdraw(OTHER, line="scheduled", order="earliest", limit=3) == (3, 1)
    assert [job.id for job in wire.batch_jobs(BATCH)] == ids[:-4:-1]
    assert [job.id for job in wire.batch_jobs(OTHER)] == ids[:3]
    assert wire.withdraw(THIRD, line="scheduled", limit=4) == (4, 0)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [("102", "104", [2, 3, 4]), ("(102", "(104", [3]), ("-inf", "(101", [0]), ("104.5", "+inf", [5]), ("7", "8", [])],
)
@pytest.mark.parametrize("order", ["latest", "earliest"])
def test_only_jobs_of_the_range_leave(wire: Wire, first: str, last: str, expected: list[int], order: str) -> None:
    ids = wire.enqueue(*(Job(kind=ABSOLUTE, ms=100 + i) for i in range(6)))
    assert wire.withdraw(BATCH, first=first, last=last, order=order) == (len(expected), 0)
    found = [job.id for job in wire.batch_jobs(BATCH)]
    assert found == [ids[i] for i in (expected if order == "earliest" else expected[::-1])]


@pytest.mark.real_server
def test_no_access_to_a_few_withdrawn_jobs_looks_through_all_of_them(wire: Wire) -> None:
    wire.enqueue(*[Job()] * 3)
    for batch in (BATCH, OTHER):
        wire.withdraw(batch, limit=1)
        assert wire.client.object("encoding", wire.key("batch_of")) == b"hashtable"


@pytest.mark.parametrize("size", [100, 2000])  # records that are read, and whose length is asked for
def test_a_budget_bounds_the_records_of_a_batch_but_one_job_always_leaves(wire: Wire, size: int) -> None:
    wire.enqueue(*[Job(b"x" * size)] * 200)
    record_bytes = size + 4
    assert wire.withdraw(BATCH, budget=3 * record_bytes) == (3, 1)
    assert wire.withdraw(OTHER, budget=3 * record_bytes - 1) == (2, 1)
    assert wire.withdraw(THIRD, budget=0) == (1, 1)
    assert wire.withdraw(b"D" * 16, budget=10**9) == (194, 0)


@pytest.mark.parametrize("size", [100, 2000])
def test_an_id_without_a_record_stays_in_its_line(wire: Wire, size: int) -> None:
    ids = wire.enqueue(*[Job(b"x" * size)] * 200)
    wire.client.hdel(wire.key("jobs"), *ids[0::2])
    assert wire.withdraw(BATCH, limit=60) == (60, 1)
    assert [job.id for job in wire.batch_jobs(BATCH)] == ids[1:120:2]
    assert wire.withdraw(OTHER) == (40, 0)
    assert [member for member, _ in snapshot(wire)["ready:1"]] == ids[0::2]
    assert wire.withdraw(THIRD) == (0, 0)


def test_more_ids_without_a_record_than_a_call_looks_at_end_the_range(wire: Wire) -> None:
    """Else its caller would come again and again."""
    for _ in range(2):
        ids = wire.enqueue(*[Job()] * 700)
        wire.client.hdel(wire.key("jobs"), *ids)
    (last,) = wire.enqueue(Job())
    before = content(wire)
    assert wire.withdraw(BATCH) == (0, 0)
    assert content(wire) == before
    assert wire.withdraw(BATCH, order="latest") == (1, 1)
    assert [job.id for job in wire.batch_jobs(BATCH)] == [last]


def test_a_batch_without_jobs_does_not_exist(wire: Wire) -> None:
    before = content(wire)
    assert wire.withdraw(BATCH) == (0, 0)
    assert content(wire) == before


def test_a_batch_that_is_there_takes_nothing_more(wire: Wire) -> None:
    wire.enqueue(*[Job()] * 3)
    assert wire.withdraw(BATCH, limit=2) == (2, 1)
    before = content(wire)
    assert wire.other().withdraw(BATCH, limit=2) == (2, 1)
    assert content(wire) == before


def test_a_withdrawn_job_is_not_claimed(forms: Forms) -> None:
    withdraw_all(forms.wire)
    assert forms.wire.claim().jobs == []
    assert forms.wire.claim_one().jobs == []
    assert forms.wire.dry_run().jobs == []


BAD_WITHDRAWALS: dict[str, dict[str, Any]] = {
    "priority 0": {"priority": 0},
    "priority 4": {"priority": 4},
    "half a priority": {"priority": 1.5},
    "no priority": {"priority": "x"},
    "a line of its own": {"line": "running"},
    "an order of its own": {"order": "random"},
    "a limit of 0": {"limit": 0},
    "half a job": {"limit": 1.5},
    "no limit": {"limit": ""},
    "no budget": {"budget": ""},
    "a name that is cut off": {"batch": b"x" * 15},
    "no first": {"first": ""},
    "a first that is no score": {"first": "[1"},
    "a last that is no score": {"last": "nan"},
    "a pattern": {"last": "%d"},
}


@pytest.mark.parametrize("what", BAD_WITHDRAWALS)
def test_a_withdrawal_that_makes_no_sense_changes_nothing(forms: Forms, what: str) -> None:
    before = snapshot(forms.wire)
    words = {"batch": BATCH, **BAD_WITHDRAWALS[what]}
    with refused("BAD_REQUEST"):
        forms.wire.withdraw(**words)
    assert snapshot(forms.wire) == before


def test_a_withdrawal_of_too_many_is_refused(forms: Forms) -> None:
    before = snapshot(forms.wire)
    with refused("TOO_MANY"):
        forms.wire.withdraw(BATCH, limit=501)
    assert snapshot(forms.wire) == before


EPOCHS: dict[str, Callable[[Wire], Any]] = {
    "withdraw": lambda wire: wire.withdraw(BATCH, epoch=3),
    "restore": lambda wire: wire.restore(1, epoch=3),
    "held": lambda wire: wire.held(epoch=3),
}


@pytest.mark.parametrize("verb", EPOCHS)
def test_a_call_for_another_epoch_changes_nothing(forms: Forms, verb: str) -> None:
    before = snapshot(forms.wire)
    with refused("EPOCH_CHANGED expected epoch 3, the queue has 1"):
        EPOCHS[verb](forms.wire)
    assert snapshot(forms.wire) == before


# -- read_batch


def test_a_batch_shows_its_jobs_byte_for_byte(forms: Forms) -> None:
    wire, before = forms.wire, content(forms.wire)
    jobs = {job.id: job for job in withdraw_all(wire)}
    assert set(jobs) == set(forms.names.values())
    stood = {member[:8]: score for name in ("ready:1", "scheduled:1") for member, score in before[name]}
    assert {id_: float(job.score) for id_, job in jobs.items()} == stood
    assert {id_: job.record for id_, job in jobs.items()} == before["jobs"]
    assert {id_: job.extras for id_, job in jobs.items() if job.extras} == before["extras"]
    assert all(job.score.replace(b".", b"").isdigit() for job in jobs.values())  # no exponent
    assert jobs[forms.names["sixteenths"]].score.endswith(b".5625")


def test_pages_of_a_batch_show_each_job_once(wire: Wire) -> None:
    wire.enqueue(*(Job(b"x" * 100 * (i % 7), status=b"s" * 10 * (i % 3)) for i in range(100)))
    wire.withdraw(BATCH)
    whole, found, position = wire.batch_jobs(BATCH), [], b"0"
    assert len(whole) == 100
    while position:
        head, position, page = wire.read_batch(BATCH, int(position), 1000)
        assert head == (1, 1, 100)
        assert len(page) == 1 or sum(len(job.record) + len(job.extras) for job in page) <= 1000
        found += page
    assert found == whole


def test_one_job_is_always_given(wire: Wire) -> None:
    wire.enqueue(*[Job(b"x" * 1000)] * 2)
    wire.withdraw(BATCH)
    _, position, page = wire.read_batch(BATCH, 0, 0)
    assert (position, len(page)) == (b"1", 1)
    assert len(wire.read_batch(BATCH, 1, 0)[2]) == 1
    assert wire.read_batch(BATCH, 2, 0) == ((1, 1, 2), b"", [])


def test_a_batch_that_nobody_withdrew_is_unknown(wire: Wire) -> None:
    assert wire.read_batch(BATCH) == ((0, 0, 0), b"", [])


def test_a_batch_leaves_out_jobs_that_were_removed(wire: Wire) -> None:
    ids = wire.enqueue(*[Job()] * 5)
    wire.withdraw(BATCH)
    assert wire.delete_jobs(b"", ids=ids[1:3]) == (2, 1)
    wire.client.hdel(wire.key("jobs"), ids[4])
    head, position, jobs = wire.read_batch(BATCH)
    assert (head, position, [job.id for job in jobs]) == ((1, 1, 5), b"", [ids[0], ids[3]])
    wire.client.zrem(wire.key("withdrawn:1"), ids[3])  # by hand
    assert [job.id for job in wire.batch_jobs(BATCH)] == ids[:1]


@pytest.mark.parametrize("words", [(b"x", 0, 10), (BATCH, "x", 10), (BATCH, -1, 10), (BATCH, 0.5, 10), (BATCH, 0, "")])
def test_a_page_that_makes_no_sense_is_refused(wire: Wire, words: tuple[Any, ...]) -> None:
    with refused("BAD_REQUEST"):
        wire.read("read_batch", *words)


# -- finalize


def test_the_end_of_a_batch_removes_its_jobs_and_nothing_else(forms: Forms) -> None:
    wire, before = forms.wire, content(forms.wire)
    wire.withdraw(BATCH)
    assert wire.finalize(BATCH) == (ENDED, [])
    after = content(wire)
    left = set(ids_in(wire, "scheduled:1"))
    assert after == {
        "meta": before["meta"],
        "scheduled:1": before["scheduled:1"],
        "jobs": {id_: one for id_, one in before["jobs"].items() if id_ in left},
        "extras": {id_: one for id_, one in before["extras"].items() if id_ in left},
    }
    assert wire.finalize(BATCH) == (UNKNOWN, [])
    assert content(wire) == after


def test_a_batch_ends_only_when_its_caller_names_what_was_removed(wire: Wire) -> None:
    ids = wire.enqueue(*[Job()] * 4)
    wire.withdraw(BATCH)
    wire.delete_jobs(PENDING, ids=ids[:2])
    before = content(wire)
    assert wire.finalize(BATCH) == (NOT_ENDED, ids[:2])
    assert wire.finalize(BATCH, ids[:1]) == (NOT_ENDED, ids[1:2])
    assert content(wire) == before
    assert wire.finalize(BATCH, [ids[3], *ids[:2]]) == (ENDED, [])  # one that is there goes as the others do
    assert set(content(wire)) == {"meta"}


def test_the_end_of_a_batch_leaves_a_job_that_is_of_another_batch(wire: Wire) -> None:
    """It was aborted and withdrawn again while its first owner slept."""
    wire.enqueue(*[Job()] * 3)
    wire.withdraw(BATCH)
    entry = wire.client.hget(wire.key("batches"), BATCH)
    wire.abort(BATCH)
    wire.withdraw(OTHER)
    wire.client.hset(wire.key("batches"), BATCH, entry)
    ids = [job.id for job in wire.batch_jobs(OTHER)]
    assert wire.batch_jobs(BATCH) == []
    before = content(wire)
    assert wire.finalize(BATCH) == (NOT_ENDED, ids)
    assert content(wire) == before
    assert wire.finalize(BATCH, ids) == (ENDED, [])
    assert wire.finalize(OTHER) == (ENDED, [])


def test_the_end_of_an_unknown_batch_changes_nothing(forms: Forms) -> None:
    before = content(forms.wire)
    assert forms.wire.finalize(BATCH, [bytes(8)]) == (UNKNOWN, [])
    assert forms.wire.abort(BATCH) == 0
    assert content(forms.wire) == before


BAD_STEPS: dict[str, tuple[str, Callable[[Wire], Any]]] = {
    "finalize, a name that is cut off": ("BAD_REQUEST", lambda w: w.finalize(BATCH[1:])),
    "finalize, half an id": ("BAD_REQUEST", lambda w: w.finalize(BATCH, [b"1234"])),
    "finalize, too many": ("TOO_MANY", lambda w: w.finalize(BATCH, [bytes(8)] * 501)),
    "abort, a name that is cut off": ("BAD_REQUEST", lambda w: w.abort(BATCH[1:])),
    "close, a number that is cut off": ("BAD_REQUEST", lambda w: w.write("close", 1, bytes(7))),
    "close, another epoch": ("EPOCH_CHANGED", lambda w: w.close(1, epoch=3)),
    "settled, a name that is cut off": ("BAD_REQUEST", lambda w: w.settled([BATCH[1:]])),
    "settled, an ended name that is cut off": ("BAD_REQUEST", lambda w: w.settled([], [BATCH[1:]])),
    "settled, a number that is cut off": ("BAD_REQUEST", lambda w: w.raw("settled", b"n", b"", b"", bytes(7))),
    "settled, too many": ("TOO_MANY", lambda w: w.settled([BATCH] * 500, [BATCH] * 499, [1, 2])),
    "held, too many": ("TOO_MANY", lambda w: w.held(*[bytes(8)] * 1001)),
    "moves, a cursor of its own": ("BAD_REQUEST", lambda w: w.moves(b"x")),
}


@pytest.mark.parametrize("what", BAD_STEPS)
def test_a_step_that_makes_no_sense_changes_nothing(forms: Forms, what: str) -> None:
    forms.wire.withdraw(BATCH)
    before = snapshot(forms.wire)
    code, step = BAD_STEPS[what]
    with refused(code):
        step(forms.wire)
    assert snapshot(forms.wire) == before


# -- abort


def test_an_abort_puts_each_job_back_where_it_was(forms: Forms) -> None:
    wire, before = forms.wire, content(forms.wire)
    head = meta(wire, "head")[8:]
    counts = len(ids_in(wire, "ready:1")), len(ids_in(wire, "scheduled:1"))
    withdraw_all(wire)
    assert (wire.abort(BATCH), wire.abort(OTHER)) == counts
    assert content(wire) == before
    assert meta(wire, "head")[8:] == head
    assert wire.abort(BATCH) == 0
    assert content(wire) == before


def test_a_scheduled_job_that_became_due_meanwhile_is_ready_after_an_abort(wire: Wire) -> None:
    (id_,) = wire.enqueue(Job(kind=ABSOLUTE, ms=created_ms(wire.h) + 3_600_000))
    wire.withdraw(BATCH, line="scheduled")
    wire.client.zadd(wire.key("withdrawn:1"), {id_: 5})
    assert wire.abort(BATCH) == 1
    assert content(wire)["ready:1"] == [(id_ + b"\1", 5)]


def test_an_abort_leaves_out_jobs_that_were_removed(wire: Wire) -> None:
    ids = wire.enqueue(*[Job()] * 3)
    wire.withdraw(BATCH)
    wire.delete_jobs(b"", ids=ids[:1])
    assert wire.abort(BATCH) == 2
    after = content(wire)
    assert [member for member, _ in after["ready:1"]] == ids[1:]
    assert set(after) == {"meta", "jobs", "ready:1"}


def test_an_abort_makes_claims_look_for_a_scheduled_job_again(wire: Wire) -> None:
    due_ms = created_ms(wire.h) + 3_600_000
    wire.enqueue(Job(kind=ABSOLUTE, ms=due_ms))
    wire.withdraw(BATCH, line="scheduled")
    wire.set_head(due_ms=(1 << 48) - 1)  # a claim saw that nothing is scheduled
    wire.abort(BATCH)
    assert earliest_ms(wire) == due_ms


# -- restore


def test_jobs_come_back_byte_for_byte(forms: Forms) -> None:
    """Withdrawn, read, ended, restored: as if nothing had been."""
    wire, before = forms.wire, content(forms.wire)
    head = meta(wire, "head")[8:]
    jobs = withdraw_all(wire)
    assert [wire.finalize(batch) for batch in (BATCH, OTHER)] == [(ENDED, [])] * 2
    assert set(content(wire)) == {"meta"}
    assert wire.restore(1, *reversed(jobs)) == (DONE, [])
    assert content(wire) == before
    assert meta(wire, "head")[8:] == head


def test_restored_jobs_run_in_their_old_order(wire: Wire) -> None:
    bodies = [b"%d" % i for i in range(30)]
    for at in range(0, 30, 10):
        wire.enqueue_bodies(*bodies[at : at + 10])
    wire.withdraw(BATCH, order="latest", limit=20)
    jobs = wire.batch_jobs(BATCH)
    wire.finalize(BATCH)
    wire.enqueue_bodies(b"later")
    wire.restore(1, *jobs)
    assert drain(wire) == [*bodies, b"later"]


def test_a_restore_to_a_server_that_lost_its_data_repeats_no_id(forms: Forms) -> None:
    wire = forms.wire
    jobs = withdraw_all(wire)
    wire.client.flushdb()
    again = Wire(wire.client)
    again.create()
    again.close(0)
    ahead = (number(again.h) + (1000 << 19)).to_bytes(8, "big")  # by a clock that is a second ahead
    assert again.restore(1, *jobs, jobs[0]._replace(id=ahead, score=b"%d" % created_ms(ahead))) == (DONE, [])
    assert (ahead, created_ms(ahead)) in content(again)["ready:1"]  # a simple job never waits for the clock
    (new,) = again.enqueue(Job())
    assert number(new) > number(ahead)
    assert {job.id for job in jobs} <= set(content(again)["jobs"])


def test_the_highest_restored_id_counts_wherever_it_stands(wire: Wire) -> None:
    high = (number(wire.h) >> 32) + 10
    highest, lower = ((half << 32 | low).to_bytes(8, "big") for half, low in ((high, 5), (high - 1, 0xFFFF_0000)))
    wire.restore(1, good(id=highest), good(id=lower))
    assert number(wire.h) > number(highest)


def test_a_restore_keeps_what_the_head_says(wire: Wire) -> None:
    due_ms = created_ms(wire.h) + 3_600_000
    (id_,) = wire.enqueue(Job(b"x" * 500, kind=ABSOLUTE, ms=due_ms))
    wire.withdraw(BATCH, line="scheduled")
    jobs = wire.batch_jobs(BATCH)
    wire.finalize(BATCH)
    wire.collect()
    wire.set_head(due_ms=(1 << 48) - 1)
    assert largest(wire) == 0
    wire.restore(1, *jobs)
    assert (earliest_ms(wire), largest(wire)) == (due_ms, 504)
    assert content(wire)["scheduled:1"] == [(id_, due_ms)]


@pytest.mark.parametrize("how", ["abort", "restore"])
def test_one_waiter_is_notified_of_jobs_that_come_back(wire: Wire, how: str) -> None:
    wire.enqueue(Job(), Job(), Job(priority=2))
    wire.withdraw(BATCH)
    jobs = wire.batch_jobs(BATCH)
    if how == "restore":
        wire.withdraw(OTHER, priority=2)
        jobs += wire.batch_jobs(OTHER)
        wire.finalize(BATCH)
        wire.finalize(OTHER)
    drain(wire)
    listeners = [Listener(wire.client, wire.key(f"wake:{name}")) for name in ("one", "two")]
    for name in (b"one", b"two"):
        wire.claim(channel=name)
    if how == "abort":
        wire.abort(BATCH)
    else:
        wire.restore(1, *jobs)
    waiting = snapshot(wire)["waiters"]
    assert [member for member, _ in waiting] == [b"one"]
    assert [listener.notifications() for listener in listeners] == [0, 1]
    for listener in listeners:
        listener.pubsub.close()


def test_a_job_that_is_there_is_left_out(forms: Forms) -> None:
    wire = forms.wire
    jobs = withdraw_all(wire)
    wire.abort(OTHER)
    wire.finalize(BATCH)
    before = content(wire)
    there = [job for job in jobs if job.id in before["jobs"]]
    changed = [job._replace(record=record(Job(b"another"))) for job in there]
    assert wire.restore(1, *changed) == (DONE, [job.id for job in there])
    assert content(wire) == before
    gone = [job for job in jobs if job not in there]
    assert wire.restore(2, *changed, *gone) == (DONE, [job.id for job in there])
    assert set(content(wire)["jobs"]) == set(forms.names.values())


def test_an_open_restore_is_done_once_and_a_closed_one_never_again(forms: Forms) -> None:
    wire = forms.wire
    jobs = withdraw_all(wire)
    for batch in (BATCH, OTHER):
        wire.finalize(batch)
    assert wire.restore(7, *jobs) == (DONE, [])
    drain(wire)
    before = content(wire)
    assert wire.other().restore(7, *jobs) == (DONE_BEFORE, [])
    assert content(wire) == before
    wire.close(7)
    assert wire.other().restore(7, *jobs) == (REFUSED, [])
    assert wire.other().restore(6, *jobs) == (REFUSED, [])
    assert content(wire) == before
    assert wire.restore(8, jobs[0]) == (DONE, [])


def test_a_restore_of_no_jobs_is_open_all_the_same(wire: Wire) -> None:
    assert wire.restore(3) == (DONE, [])
    assert wire.restore(3) == (DONE_BEFORE, [])


def good(**words: Any) -> Moved:
    return Moved(**{"id": b"\0\0\1\0\0\0\0\1", "score": b"5", "record": record(Job()), **words})


BAD_JOBS: dict[str, Moved] = {
    "priority 0": good(record=record(Job(priority=0))),
    "priority 4": good(record=record(Job(priority=4))),
    "an id of 64 bits": good(id=b"\x80" + bytes(7)),
    "a run-after that is too late": good(score=b"%d" % (1 << 44)),
    "a record that is cut off": good(record=record(Job())[:3] + b"\1"[:0]),
    "a record of another format": good(record=b"\2" + record(Job())[1:]),
    "extras that are cut off": good(extras=bytes(9)),
    "extras that are too long": good(extras=bytes(3011)),
}


@pytest.mark.parametrize("what", BAD_JOBS)
def test_a_restore_of_a_job_that_makes_no_sense_changes_nothing(wire: Wire, what: str) -> None:
    before = snapshot(wire)
    with refused("BAD_REQUEST"):
        wire.restore(1, good(id=b"\0\0\1\0\0\0\0\2"), BAD_JOBS[what])
    assert snapshot(wire) == before


ONE = pack_moved([good()])
BAD_RESTORES: dict[str, tuple[bytes | int, ...]] = {
    "a number that is cut off": (1, bytes(7), ONE, record(Job())),
    "jobs that are cut off": (1, bytes(8), ONE[:-1], record(Job())),
    "extras that are cut off": (1, bytes(8), pack_moved([good(extras=bytes(10))])[:-1], record(Job())),
    "more jobs than records": (1, bytes(8), ONE + pack_moved([good(id=bytes(8))]), record(Job())),
    "more records than jobs": (1, bytes(8), ONE, record(Job()), record(Job())),
    "sixteen sixteenths": (1, bytes(8), ONE[:15] + b"\x10" + ONE[16:], record(Job())),
    "another priority than in the record": (1, bytes(8), b"\2" + ONE[1:], record(Job())),
    "a job twice": (1, bytes(8), ONE * 2, record(Job()), record(Job())),
}


@pytest.mark.parametrize("what", BAD_RESTORES)
def test_a_restore_that_makes_no_sense_changes_nothing(wire: Wire, what: str) -> None:
    before = snapshot(wire)
    with refused("BAD_REQUEST"):
        wire.write("restore", *BAD_RESTORES[what])
    assert snapshot(wire) == before


def test_a_restore_of_too_many_is_refused(wire: Wire) -> None:
    jobs = [good(id=struct.pack(">Q", 1 + i)) for i in range(501)]
    before = snapshot(wire)
    with refused("TOO_MANY"):
        wire.restore(1, *jobs)
    assert snapshot(wire) == before
    assert wire.restore(1, *jobs[:500]) == (DONE, [])


# -- close


def test_the_highest_closed_restore_stays(wire: Wire) -> None:
    for restore in (1, 2, 255, 256, 1 << 40):
        wire.restore(restore)
    wire.close(255)
    assert (wire.moves().closed, set(wire.moves().restores)) == (255, {256, 1 << 40})
    wire.close(3)
    assert (wire.moves().closed, set(wire.moves().restores)) == (255, {256, 1 << 40})
    wire.close(1 << 41)
    assert (wire.moves().closed, wire.moves().restores) == (1 << 41, {})
    assert set(content(wire)) == {"meta"}


# -- settled, held, moves


def test_settled_says_what_is_as_expected_and_writes_each_time(forms: Forms) -> None:
    wire = forms.wire
    withdraw_all(wire)
    wire.finalize(OTHER)
    wire.restore(5)
    wire.restore(6)
    wire.close(5)
    before = content(wire)
    assert wire.settled([BATCH, OTHER, THIRD], [BATCH, OTHER, THIRD], [5, 6, 7]) == [1, 0, 0, 0, 1, 1, 0, 1, 0]
    after = content(wire)
    first = meta(wire, "settled")
    assert first[6:] == b"nonce008"
    assert after == {**before, "meta": {**before["meta"], b"settled": first}}
    assert wire.raw("settled", b"another!", b"", b"", b"") == [b"another!", b"", (1).to_bytes(4, "big")]
    assert meta(wire, "settled") != first


@pytest.mark.parametrize("deleted", [False, True])
def test_settled_makes_no_queue(client: redis.Redis, deleted: bool) -> None:
    wire = Wire(client)
    if deleted:
        wire.create()
        wire.write("delete_queue", b"")
    before = snapshot(wire)
    with refused("QUEUE_NOT_FOUND"):
        wire.settled([BATCH])
    assert snapshot(wire) == before


@pytest.mark.parametrize("size", [100, 2000])
def test_held_says_which_jobs_have_a_record(wire: Wire, size: int) -> None:
    ids = wire.enqueue(*[Job(b"x" * size)] * 200)
    wire.withdraw(BATCH, limit=3)
    wire.finalize(BATCH)
    wire.withdraw(OTHER, limit=3)
    assert wire.held(*ids, bytes(8)) == [0] * 3 + [1] * 197 + [0]
    assert wire.held() == []


def test_moves_shows_what_is_open(forms: Forms) -> None:
    wire = forms.wire
    wire.enqueue(Job(priority=3))
    withdraw_all(wire)
    wire.withdraw(THIRD, priority=3)
    wire.restore(5)
    wire.restore(6)
    moves = wire.moves()
    assert (moves.epoch, moves.closed, moves.cursor, set(moves.restores)) == (1, 0, b"0", {5, 6})
    counts = len(ids_in(wire, "withdrawn:1")) - 3, 3
    assert {name: rest for name, (_, *rest) in moves.batches.items()} == {
        BATCH: [1, counts[0]],
        OTHER: [1, counts[1]],
        THIRD: [3, 1],
    }
    now_ms = created_ms(wire.h)
    assert all(now_ms - 60_000 < ms <= now_ms for ms, *_ in moves.batches.values())
    assert all(now_ms - 60_000 < ms <= now_ms for ms in moves.restores.values())


def test_moves_come_in_pages_and_restores_in_the_first(wire: Wire) -> None:
    wire.restore(1)
    names = [b"%016d" % i for i in range(600)]
    for name in names:
        wire.client.hset(wire.key("batches"), name, bytes(6) + b"\1" + bytes(8))
    pages = [wire.moves()]
    while pages[-1].cursor != b"0":
        pages.append(wire.moves(pages[-1].cursor))
    assert {name for page in pages for name in page.batches} == set(names)
    assert len(pages) > 1
    assert [set(page.restores) for page in pages] == [{1}] + [set()] * (len(pages) - 1)


# -- withdrawn jobs from outside


def test_a_withdrawn_job_is_pending_and_shown_as_before(forms: Forms) -> None:
    wire, ids = forms.wire, list(forms.names.values())
    before = wire.lookup(ids)
    counts, measured = wire.counts(), wire.read("measure", b"reader 1", 1)[0]
    withdraw_all(wire)
    assert wire.lookup(ids) == before
    assert wire.counts() == counts
    assert wire.read("measure", b"reader 1", 1)[0][:16] == measured[:16]
    assert wire.outcomes(ids) == [b"\3"] * len(ids)
    wire.abort(BATCH)  # some withdrawn, some not
    assert wire.lookup(ids) == before
    assert wire.counts() == counts


def test_the_oldest_due_job_may_be_a_withdrawn_one(wire: Wire) -> None:
    wire.enqueue(Job(kind=ABSOLUTE, ms=created_ms(wire.h) - HOUR_MS), Job())
    wire.withdraw(BATCH, limit=1)
    waits_ms = number(wire.read("measure", b"reader 1", 1)[0][16:])
    assert HOUR_MS <= waits_ms < 2 * HOUR_MS


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_a_scan_shows_withdrawn_jobs_in_their_place(forms: Forms, future: bool, limit: int) -> None:
    wire = forms.wire

    def scan() -> list[Info]:
        found, cursor = wire.scan(PENDING, limit=limit, future=future)
        while cursor:
            page, cursor = wire.scan(PENDING, cursor, limit=limit, future=future)
            found += page
        return found

    before = scan()
    for line in ("ready", "scheduled"):
        wire.withdraw(line[0].encode() * 16, line=line, order="latest", limit=2)
        assert scan() == before
        wire.withdraw(line[1].encode() * 16, line=line)
        assert scan() == before
    assert len(before) == (3 if future else 10)


def test_a_scan_gives_jobs_that_leave_and_come_back_meanwhile_once(wire: Wire) -> None:
    ids = wire.enqueue(*(Job(kind=ABSOLUTE, ms=1000 + i // 3) for i in range(60)))
    found, cursor, step = [], b"", 0
    while not step or cursor:
        page, cursor = wire.scan(PENDING, cursor, limit=7)
        found += [info.id for info in page]
        wire.withdraw(b"%016d" % step, order=["latest", "earliest"][step % 2], limit=11)
        if step % 3 == 2:
            wire.abort(b"%016d" % (step - 2))
        step += 1
    assert found == ids[::-1]


def test_a_withdrawn_job_is_deleted_by_name_and_its_batch_goes_on_naming_it(forms: Forms) -> None:
    wire = forms.wire
    withdraw_all(wire)
    named = [forms.names["a status"], forms.names["scheduled"]]
    before = content(wire)
    assert wire.delete_jobs(PENDING, ids=named[:1]) == (1, 1)
    assert wire.delete_jobs(b"", ids=[*named, *named]) == (1, 1)
    assert wire.lookup(named) == [None, None]
    after = content(wire)
    assert after["batches"] == before["batches"]
    for key in ("jobs", "batch_of", "extras"):
        assert after[key] == {id_: one for id_, one in before[key].items() if id_ not in named}
    assert ids_in(wire, "withdrawn:1") == [id_ for id_, _ in before["withdrawn:1"] if id_ not in named]


def test_a_purge_of_pending_jobs_reaches_withdrawn_ones(forms: Forms) -> None:
    wire = forms.wire
    wire.withdraw(BATCH, limit=3)
    wire.withdraw(OTHER, line="scheduled")
    count = len(forms.names)
    assert wire.delete_jobs(PENDING, limit=count - 1) == (count - 1, 1)
    assert wire.delete_jobs(PENDING, limit=1000) == (1, 0)
    assert set(content(wire)) == {"meta", "batches"}
    assert [len(wire.finalize(batch)[1]) for batch in (BATCH, OTHER)] == [3, 3]


@pytest.mark.parametrize("state", [RUNNING, SUCCEEDED, FAILED])
def test_a_removal_of_other_jobs_leaves_withdrawn_ones(forms: Forms, state: bytes) -> None:
    withdraw_all(forms.wire)
    before = content(forms.wire)
    assert forms.wire.delete_jobs(state, limit=1000) == (0, 0)
    assert forms.wire.retry_failed() == 0
    assert content(forms.wire) == before


def test_a_deleted_queue_leaves_nothing_of_the_archive(forms: Forms) -> None:
    withdraw_all(forms.wire)
    forms.wire.restore(1)
    forms.wire.write("delete_queue", b"")
    assert set(snapshot(forms.wire)) == {"meta"}
    forms.wire.create()
    assert forms.wire.moves()[0] == 3
    with refused("EPOCH_CHANGED"):
        forms.wire.restore(1)
    assert forms.wire.abort(BATCH) == 0


# -- audit

RECORD, EXTRA, WITHDRAWN, OF_BATCH, OF_OTHER, NOT_WITHDRAWN = (1 << i for i in (5, 6, 14, 15, 16, 17))
SOUND = RECORD | WITHDRAWN | OF_BATCH


def test_the_audit_knows_withdrawn_jobs(forms: Forms) -> None:
    wire = forms.wire
    withdraw_all(wire)
    ids = [forms.names[name] for name in ("simple", "scheduled", "a status")]
    assert wire.audit(ids)[0] == [SOUND, SOUND, SOUND | EXTRA]
    assert wire.audit(ids, priority=2)[0] == [bits - WITHDRAWN + (1 << 8) for bits in (SOUND, SOUND, SOUND | EXTRA)]
    (one,) = ids[:1]
    wire.client.hset(wire.key("batch_of"), one, THIRD)
    assert wire.audit([one])[0] == [SOUND | OF_OTHER]
    wire.client.hset(wire.key("batch_of"), one, OTHER)  # does not name it
    assert wire.audit([one])[0] == [SOUND | OF_OTHER]
    wire.client.hdel(wire.key("batch_of"), one)
    assert wire.audit([one])[0] == [RECORD | WITHDRAWN]
    wire.client.hset(wire.key("batch_of"), one, BATCH)
    wire.client.zrem(wire.key("withdrawn:1"), one)
    assert wire.audit([one])[0] == [RECORD | OF_BATCH | NOT_WITHDRAWN]


def test_an_audit_reads_few_batches_a_call(wire: Wire) -> None:
    """Each costs more than its bytes."""
    wire.enqueue(*[Job()] * 20)
    wire.withdraw(BATCH)
    ids = [job.id for job in wire.batch_jobs(BATCH)]
    for at, id_ in enumerate(ids):
        entry = bytes(6) + b"\1" + id_ + bytes(4000)
        wire.client.hset(wire.key("batches"), name := b"%016d" % at, entry)
        wire.client.hset(wire.key("batch_of"), id_, name)
    found = wire.audit(ids)[0]
    assert 5 < len(found) < 15
    assert set(found) == {SOUND}


def test_no_restore_before_something_is_closed(client: redis.Redis) -> None:
    """The server may have lost its data, and with it which restores have ended."""
    wire = Wire(client)
    wire.create()
    moved = Moved(bytes(7) + b"\1", b"5", record(Job()))
    before = content(wire)
    assert wire.restore(5, moved) == (NOTHING_CLOSED, [])
    assert content(wire) == before
    for known in (b"", bytes(8)):  # it was looked up before the loss
        wire.close(5, known=known)
        assert wire.restore(5, moved) == (NOTHING_CLOSED, [])
    wire.close(5)
    assert wire.restore(5, moved) == (REFUSED, [])
    assert wire.restore(6, moved) == (DONE, [])
