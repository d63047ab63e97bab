"""The hard mark of a queue in its scripts: new jobs are refused while a shard holds `refuse_above` of them.

Promises: shown on each kind of server, and that claims and acks of such a queue take their short ways.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import Server
from tests.support.wire import Wire, connect, drain, fail_all, refused, snapshot
from tests.support.wire_format import DELAY, HAS_REFUSE_ABOVE, HOUR_MS, Job, ends, settings, unpack_config

BATCH = b"A" * 16


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """A queue that refuses new jobs while it holds 3 or more."""
    with connect(server) as client:
        made = Wire(client)
        made.create(settings(refuse_above=3))
        yield made


def flags_of(wire: Wire) -> int:
    return unpack_config(wire.read("config")[0]).flags


def test_new_jobs_are_refused_from_the_mark_on_and_nothing_changes(wire: Wire) -> None:
    wire.enqueue_bodies(b"1", b"2")
    reservation = wire.prepare(1)
    wire.enqueue_bodies(b"3")
    before = snapshot(wire)
    for call in (lambda: wire.enqueue(Job()), lambda: wire.prepare(1), lambda: wire.load(reservation, Job())):
        with refused("QUEUE_FULL the queue holds 3 jobs on this shard, and refuses new ones from 3 (refuse_above"):
            call()
    assert snapshot(wire) == before
    assert drain(wire) == [b"1", b"2", b"3"]


def test_there_is_room_again_when_a_job_has_ended(wire: Wire) -> None:
    wire.enqueue_bodies(b"1", b"2", b"3")
    claimed = wire.claim_one()  # the short way of a claim; it gives nothing to a queue that needs another look
    assert claimed.bodies == [b"1"]
    with refused("QUEUE_FULL"):
        wire.enqueue(Job())
    assert wire.succeed(claimed) == []
    wire.enqueue_bodies(b"4")
    assert drain(wire) == [b"2", b"3", b"4"]


def test_jobs_in_every_state_count(wire: Wire) -> None:
    fail_all(wire, 1)
    wire.enqueue_bodies(b"leaves")
    wire.withdraw(BATCH)
    wire.enqueue(Job(kind=DELAY, ms=HOUR_MS))
    assert wire.counts()[0] == (1, 1, 0, 0, 1)  # what moves is pending
    with refused("QUEUE_FULL the queue holds 3 jobs"):
        wire.enqueue(Job())
    wire.finalize(BATCH)
    wire.enqueue(Job())


def test_a_call_below_the_mark_comes_in_whole(wire: Wire) -> None:
    wire.enqueue_bodies(b"1", b"2")
    wire.enqueue(*[Job()] * 998)
    with refused("QUEUE_FULL the queue holds 1000 jobs"):
        wire.enqueue(Job())


def test_a_repeated_request_gets_its_answer_from_a_full_queue(wire: Wire) -> None:
    wire.enqueue_bodies(b"1", b"2", b"3")
    assert wire.again() == wire.answer
    assert drain(wire) == [b"1", b"2", b"3"]


def test_jobs_that_the_queue_had_return_to_it_when_it_is_full(wire: Wire) -> None:
    wire.close(0)
    wire.enqueue_bodies(b"archived", b"failed", b"released")
    wire.withdraw(BATCH, limit=1)
    jobs = wire.batch_jobs(BATCH)
    wire.finalize(BATCH)
    failed, released = ends(wire.claim())
    wire.enqueue_bodies(b"another")
    assert wire.ack(failed._replace(failed=True)) == wire.release(released) == []
    assert wire.restore(1, *jobs) == (1, [])
    assert sorted(drain(wire)) == [b"another", b"archived", b"failed", b"released"]


def test_the_mark_can_change_and_go(wire: Wire) -> None:
    wire.enqueue_bodies(b"1", b"2", b"3")
    wire.configure(settings(refuse_above=4))
    wire.enqueue_bodies(b"4")
    with refused("QUEUE_FULL the queue holds 4 jobs on this shard, and refuses new ones from 4"):
        wire.enqueue(Job())
    wire.configure(settings(home=b"s"))
    wire.enqueue_bodies(b"5")
    assert flags_of(wire) == 0


def test_a_client_that_does_not_know_the_mark_leaves_it(wire: Wire) -> None:
    """One that knows limits and marks of the archive, and one that knows neither."""
    without_refuse_above = settings(lease_ms=5_000, max_running=2, home=b"s")[:-1]
    wire.configure(without_refuse_above)
    assert flags_of(wire) == HAS_REFUSE_ABOVE + 8
    wire.configure(settings(lease_ms=6_000))
    assert flags_of(wire) == HAS_REFUSE_ABOVE + 8
    wire.enqueue_bodies(b"1", b"2", b"3")
    with refused("QUEUE_FULL"):
        wire.enqueue(Job())


def test_it_holds_beside_places_and_a_pause(wire: Wire) -> None:
    wire.configure(settings(refuse_above=3, max_running=1, home=b"s"))
    wire.enqueue_bodies(b"1", b"2", b"3")
    wire.pause(60_000)
    assert wire.claim().limited == 2
    wire.pause(0)
    assert len(wire.claim().jobs) == 1
    assert wire.claim().limited == 3
    with refused("QUEUE_FULL"):
        wire.enqueue(Job())
    wire.configure(settings(refuse_above=3, max_running=1, home=b"other"))
    with refused("NOT_AT_HOME"):
        wire.enqueue(Job())
    wire.configure(settings(refuse_above=3, flags=2))
    with refused("ENQUEUE_REFUSED"):
        wire.enqueue(Job())
