"""Jobs that are archived, or on their way, are pending jobs for every call of both clients.

Promises: an archiver stops at each state of the protocol, and the calls say and do what they do without an archive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from pinlater import CountsByState, JobInfo, NewJob, QueueConfig, State
from pinlater.archive.moving_job import MovingJob
from pinlater.archive.purge import purge
from pinlater.model.errors import InvalidArgument
from pinlater.operations.body_match import count_matching, delete_matching
from pinlater.operations.scans import scan_merged
from tests.archive.rig import MAX_TIME_MS, PRIORITIES
from tests.archive.world import World, restore, small_batches, spill, spilled, stopped, world
from tests.support.both_clients import Calls, kind, make

__all__ = ["kind", "make", "small_batches", "world"]

#: By name: what an archiver did before it was killed.
STATES: dict[str, Callable[[World], None]] = {
    "withdrawn": stopped(spill, "read_batch"),
    "committed": stopped(spill, "finalize"),
    "not finalized": stopped(spill, "finalize", "mark_finalized"),
    "archived": spilled,
    "restore begun": stopped(restore, "restore", before=spilled),
    "restore loaded": stopped(restore, "restore", "_drop", before=spilled),
    "restore not closed": stopped(restore, "close", before=spilled),
}
SCHEDULED = NewJob(b"scheduled", run_after_ms=MAX_TIME_MS)
EACH_STATE = pytest.mark.parametrize("state", STATES)


@pytest.fixture
def calls(world: World, make: Callable[..., Calls]) -> Calls:
    """A client with the archive, of each kind. There is a job that is due late, besides those of the world."""
    world.begin()
    world.add([SCHEDULED])
    return make(shards=world.rig.shards, archive=world.rig.archive_url)


def ended(world: World, expected: list[str]) -> None:
    """An archiver ends what is open and restores; these jobs are there, as they were, and run."""
    world.end()
    world.rig.recover()
    world.rig.restore()
    assert world.rig.infos(world.names) == {name: world.before[name] for name in expected}
    world.run_jobs()
    due = [name for name in expected if world.before[name].run_after_ms != MAX_TIME_MS]
    assert sorted(world.ran) == sorted(due)
    world.rig.check()


@EACH_STATE
def test_looking(state: str, world: World, calls: Calls) -> None:
    queue, due, late = world.rig.queue, world.names[:-1], world.names[-1]
    STATES[state](world)
    for _ in range(2):
        assert calls.lookup(world.names, with_body=True) == world.before
        assert calls.count(queue) == CountsByState(pending=len(due), scheduled=1)
        assert calls.count(queue, priority=2) == CountsByState(pending=1)
        for page_size in (1, 100):
            found = calls.scan(queue, with_body=True, page_size=page_size)
            assert {info.descriptor: info for info in found} == {name: world.before[name] for name in due}
            assert len(found) == len(due)
            assert calls.scan(queue, with_body=True, future=True, page_size=page_size) == [world.before[late]]
        assert [info.descriptor for info in calls.scan(queue, priority=2)] == [due[-1]]
        assert calls.scan(queue, State.FAILED) == []
    ended(world, world.names)


@EACH_STATE
def test_merged_scans_and_patterns(state: str, world: World, calls: Calls) -> None:
    queue, session, due = world.rig.queue, calls.client.session, world.names[:-1]
    STATES[state](world)
    for limit in (1, 3, 100):
        found, after, begun = list[JobInfo](), "", False
        while after or not begun:
            scan = partial(scan_merged, session, queue, "pending", None, False, True, limit, after)
            infos, after = calls.run(scan)
            assert len(infos) <= limit
            found, begun = found + infos, True
        assert {info.descriptor: info for info in found} == {name: world.before[name] for name in due}
        assert len(found) == len(due)
    late = calls.run(partial(scan_merged, session, queue, "pending", None, True, True, 100, ""))
    assert late == ([world.before[world.names[-1]]], "")
    with pytest.raises(InvalidArgument, match="continuation"):
        calls.run(partial(scan_merged, session, queue, "pending", None, False, False, 9, "1.1.30"))
    assert calls.run(partial(count_matching, session, queue, "pending", None, False, "")) == len(due)
    assert calls.run(partial(count_matching, session, queue, "pending", None, True, "^scheduled$")) == 1
    assert calls.run(partial(delete_matching, session, queue, "pending", None, "^scheduled$", 100)) == 1
    assert calls.run(partial(delete_matching, session, queue, "pending", None, "", 100)) == len(due)
    assert calls.count(queue) == CountsByState()
    ended(world, [])


def test_a_page_has_a_mebibyte_of_bodies(world: World, calls: Calls) -> None:
    queue = world.rig.queue
    names = calls.enqueue_many(queue, [NewJob(bytes(600 * 1024), priority=PRIORITIES) for _ in range(3)])
    small = calls.enqueue_many(queue, [NewJob(b"small", priority=PRIORITIES) for _ in range(3)])
    world.rig.spill()
    pages, cursor = list[list[str]](), f"1.{PRIORITIES}."
    while cursor:
        infos, cursor = calls.scan_page(queue, priority=PRIORITIES, with_body=True, cursor=cursor)
        assert all(len(info.body or b"") in (5, 600 * 1024) for info in infos)
        pages += [[info.descriptor for info in infos]] if infos else []
    assert pages == [[*small[::-1], names[2]], [names[1]], [names[0]]]
    infos, cursor = calls.scan_page(queue, priority=PRIORITIES, cursor=f"1.{PRIORITIES}.00")
    assert ([info.descriptor for info in infos], cursor) == ([*small[::-1], *names[::-1]], "")


def test_bodies_that_nobody_wants_are_not_read(world: World, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    spilled(world)
    read: list[bytes] = []
    from_row = MovingJob.from_row

    def watched(row: Sequence[Any]) -> MovingJob:
        read.append(bytes(row[-1]))
        return from_row(row)

    monkeypatch.setattr(MovingJob, "from_row", watched)
    assert len(calls.lookup(world.names)) == len(world.names)
    assert len(calls.scan(world.rig.queue)) == len(world.names) - 1
    assert set(read) == {b""}


@EACH_STATE
def test_deleting_by_name(state: str, world: World, calls: Calls) -> None:
    STATES[state](world)
    first, second, *others = world.names
    assert calls.delete_jobs(descriptors=[first]) == 1
    assert calls.lookup([first]) == {}
    assert calls.delete_jobs(descriptors=[first, second, others[-1]]) == 2
    assert calls.delete_jobs(descriptors=[first, second, others[-1]]) == 0
    left = others[:-1]
    assert calls.lookup(world.names, with_body=True) == {name: world.before[name] for name in left}
    assert calls.count(world.rig.queue).pending == len(left)
    ended(world, left)


@EACH_STATE
def test_deleting_by_state(state: str, world: World, calls: Calls) -> None:
    STATES[state](world)
    queue = world.rig.queue
    assert calls.delete_jobs(queue, "failed") == 0
    assert calls.delete_jobs(queue, "pending", priority=2) == 1
    assert calls.delete_jobs(queue, "pending", priority=1, limit=2) == 2
    left = calls.lookup(world.names)
    assert len(left) == len(world.names) - 3
    ended(world, list(left))


@EACH_STATE
def test_purging(state: str, world: World, calls: Calls) -> None:
    STATES[state](world)
    assert calls.purge(world.rig.queue) == len(world.names)
    assert calls.lookup(world.names) == {}
    assert calls.count(world.rig.queue) == CountsByState()
    ended(world, [])


@EACH_STATE
def test_deleting_the_queue(state: str, world: World, calls: Calls) -> None:
    """Its jobs never come back, to the queue of the same name either."""
    STATES[state](world)
    queue = world.rig.queue
    assert calls.delete_queue(queue)
    calls.create_queue(queue, QueueConfig(priorities=PRIORITIES))
    assert calls.lookup(world.names) == {}
    assert calls.count(queue) == CountsByState()
    assert calls.scan(queue) == []
    ended(world, [])
    world.add([NewJob(b"new")])
    world.rig.spill()
    calls.run(lambda _: purge(world.rig.database))
    ended(world, world.names[-1:])


@EACH_STATE
def test_a_queue_that_is_deleted_without_the_archive(state: str, world: World, make: Callable[..., Calls]) -> None:
    """Who looks next with the archive finds a later epoch."""
    world.begin()
    STATES[state](world)
    queue = world.rig.queue
    bare = make(shards=world.rig.shards)
    assert bare.delete_queue(queue)
    bare.create_queue(queue, QueueConfig(priorities=PRIORITIES))
    assert world.rig.infos(world.names) == {}
    ended(world, [])
