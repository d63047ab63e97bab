"""Counts, scans and deletions of jobs by a pattern over their bodies, for both clients.

Promises: each state, pages of large bodies, and what happens at the limit, at the deadline and to jobs that move.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pinlater import CountsByState, JobInfo, NewJob, QueueConfig, State
from pinlater.model.errors import CallTimeout, InvalidArgument, PartialOutcome
from pinlater.operations.admin import delete_named
from pinlater.operations.body_match import count_matching, delete_matching, scan_matching
from pinlater.operations.scans import scan_merged
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server

__all__ = ["kind", "make"]  # fixtures

#: Of each of 4 jobs one is of ann, and one is neither text nor of anybody.
BODIES = [b'{"user": "ann"}', b'{"user": "ben"}', b"\xff\0user\xfe", b'{"user": "anna"}']
ANN = r'"user": ?"ann"'


@pytest.fixture
def calls(server: Server, make: Callable[..., Calls]) -> Calls:
    made = make(shards=dict.fromkeys("ab", server.url))
    made.create_queue("q", QueueConfig(keep_succeeded=1000, body_limit=1 << 21))
    return made


def put(calls: Calls, state: str = "pending", each: int = 10, **options: Any) -> list[str]:
    """Jobs with each body in a state. Returns those of ann."""
    jobs = [
        NewJob(body, priority=1 + at % 3, key=str(at), attempts=1, **options) for at in range(each) for body in BODIES
    ]
    names = calls.enqueue_many("q", jobs)
    if state != "pending":
        claimed = calls.dequeue("q", len(jobs))
        assert len(claimed) == len(jobs)
        if state != "in_progress":
            calls.ack(**{state: claimed})
    return [name for name, job in zip(names, jobs, strict=True) if job.body == BODIES[0]]


def count(calls: Calls, state: str, pattern: str, priority: int | None = None, future: bool = False) -> int:
    session = calls.client.session
    found: int = calls.run(lambda end: count_matching(session, "q", state, priority, future, pattern, end))
    return found


def scan(
    calls: Calls, state: str, pattern: str, limit: int, after: str = "", with_body: bool = False
) -> tuple[list[JobInfo], str]:
    session = calls.client.session
    found: tuple[list[JobInfo], str] = calls.run(
        lambda end: scan_matching(session, "q", state, None, False, with_body, pattern, limit, after, end)
    )
    return found


def delete(calls: Calls, state: str, pattern: str, limit: int = 1000, priority: int | None = None) -> int:
    session = calls.client.session
    removed: int = calls.run(lambda end: delete_matching(session, "q", state, priority, pattern, limit, end))
    return removed


STATES = [state.value for state in State]


@pytest.mark.parametrize("state", STATES)
def test_count_scan_and_delete_in_each_state(calls: Calls, state: str) -> None:
    anns = put(calls, state)
    assert (count(calls, state, ANN), count(calls, state, "ann"), count(calls, state, "")) == (10, 20, 40)
    assert count(calls, state, r"\xff\x00user") == 10
    assert count(calls, state, ANN, priority=1) == 4
    assert count(calls, state, "^nobody$") == 0
    for limit in (1, 3, 10, 11, 2**31 - 1):
        found, after, going = list[JobInfo](), "", True
        while going:
            infos, after = scan(calls, state, ANN, limit, after)
            assert len(infos) <= limit
            found, going = found + infos, bool(after)
        assert sorted({info.descriptor for info in found}) == sorted(anns)
        assert {info.body for info in found} == {None}
    assert {info.body for info in scan(calls, state, ANN, 100, with_body=True)[0]} == {BODIES[0]}
    assert delete(calls, state, ANN, priority=2) == 3
    assert delete(calls, state, ANN, 5) == 5
    assert delete(calls, state, ANN) == 2
    assert (count(calls, state, ANN), count(calls, state, "")) == (0, 30)
    assert calls.lookup(anns) == {}


def test_a_scan_that_matches_is_in_the_order_of_a_merged_scan(calls: Calls) -> None:
    anns = put(calls)
    session = calls.client.session
    merged, _ = calls.run(lambda end: scan_merged(session, "q", "pending", None, False, False, 100, "", end))
    assert scan(calls, "pending", ANN, 100)[0] == [info for info in merged if info.descriptor in anns]


def test_future_jobs_are_counted_apart_and_deleted_together(calls: Calls) -> None:
    put(calls, each=3)
    put(calls, each=2, delay_ms=3_600_000)
    assert (count(calls, "pending", ANN), count(calls, "pending", ANN, future=True)) == (3, 2)
    assert delete(calls, "pending", ANN, 4) == 4
    assert delete(calls, "pending", ANN, 4) == 1
    assert calls.count("q") == CountsByState(pending=9, scheduled=6)


def test_a_deletion_leaves_the_other_states_alone(calls: Calls) -> None:
    for state in STATES[::-1]:
        put(calls, state, each=2)
    assert delete(calls, "failed", "") == 8
    assert calls.count("q") == CountsByState(pending=8, in_progress=8, succeeded=8)
    assert delete(calls, "pending", "", 0) == 0


def test_large_bodies_take_many_pages(calls: Calls) -> None:
    calls.enqueue_many("q", [NewJob(b"x" * (1 << 20) + b"%d" % at, key=str(at)) for at in range(9)])
    assert count(calls, "pending", "x[357]$") == 3
    assert len(scan(calls, "pending", "x[357]$", 2, with_body=True)[0]) == 2
    assert delete(calls, "pending", "x[357]$") == 3
    assert count(calls, "pending", "x[0-9]$") == 6


def test_a_job_that_left_its_state_is_not_deleted(calls: Calls) -> None:
    names = put(calls, each=2)
    held = calls.dequeue("q", 8)
    session = calls.client.session
    assert calls.run(lambda end: delete_named(session, names, end, State.PENDING)) == 0
    calls.ack(failed=held)
    assert calls.run(lambda end: delete_named(session, names, end, State.FAILED)) == 2
    assert calls.count("q") == CountsByState(failed=6)


# the deadline


def test_a_count_past_its_time_says_so(calls: Calls) -> None:
    put(calls)
    session = calls.client.session
    with pytest.raises(CallTimeout, match=r"queue 'q': \d+ bodies were read in the time of the call"):
        calls.run(lambda _: count_matching(session, "q", "pending", None, False, ANN, time.monotonic()))


def test_a_deletion_past_its_time_says_how_many_are_removed(calls: Calls) -> None:
    put(calls)
    session = calls.client.session
    with pytest.raises(PartialOutcome) as partial:
        calls.run(lambda _: delete_matching(session, "q", "pending", None, "", 1000, time.monotonic()))
    assert 0 < partial.value.result < 40
    assert calls.count("q").pending == 40 - partial.value.result
    [(_, error)] = partial.value.failed
    assert isinstance(error, CallTimeout)
    with pytest.raises(CallTimeout):
        calls.run(lambda _: delete_matching(session, "q", "pending", None, "^nobody$", 1000, time.monotonic()))


def test_a_scan_past_its_time_goes_on_in_the_next_page(calls: Calls) -> None:
    anns = calls.enqueue_many("q", [NewJob(BODIES[0], key="1")] * 2500)
    session = calls.client.session
    found, after, pages = list[str](), "", 0
    while after or not pages:
        page = partial(scan_matching, session, "q", "pending", None, False, False, ANN, 3000, after)
        infos, after = calls.run(lambda _, page=page: page(time.monotonic()))  # type: ignore[misc]
        found, pages = found + [info.descriptor for info in infos], pages + 1
    assert sorted(found) == sorted(anns)
    assert pages == 3


# bad arguments


@pytest.mark.parametrize(
    ("pattern", "said"), [("(", "unclosed group"), ("a" * 5000, "at most 4096"), (b"a", "a str"), (None, "a str")]
)
def test_a_bad_pattern_is_refused(calls: Calls, pattern: Any, said: str) -> None:
    for call in (count, delete):
        with pytest.raises(InvalidArgument, match="pattern: expected") as raised:
            call(calls, "pending", pattern)
        assert said in str(raised.value)
    with pytest.raises(InvalidArgument, match="pattern: expected"):
        scan(calls, "pending", pattern, 1)


def test_bad_arguments_are_refused(calls: Calls) -> None:
    for limit in (-1, True, 1.5):
        with pytest.raises(InvalidArgument, match="limit: expected an integer"):
            delete(calls, "pending", "", limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="future: expected with pending jobs"):
        count(calls, "failed", "", future=True)
    with pytest.raises(InvalidArgument, match="state: expected one of"):
        delete(calls, "scheduled", "")
