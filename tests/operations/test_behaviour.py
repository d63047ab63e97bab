"""What each method of a client does, as its documentation says, for both clients: order, waiting, refusals, looking.

Promises: each test is written once and run for Client and AsyncClient, on each server. Shards, threads and forks:
test_behaviour_shards.py and test_behaviour_clients.py.
Risks: a lost notification shows as a timeout of 8 s, which is less than the safety claim of the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import pytest

from pinlater import Ack, Checkpoint, CountsByState, NewJob, QueueConfig, State
from pinlater.model.errors import EnqueueRefused, InvalidArgument, QueueNotFound
from pinlater.store.keys import queue_key
from tests.support.both_clients import CALLS_KINDS, Calls, make_calls
from tests.support.servers import Server, wait_until

WOKEN_S = 8.0  # a waiter that is not notified claims again after 10 s at the earliest


@pytest.fixture(params=CALLS_KINDS)
def calls(request: pytest.FixtureRequest, server: Server) -> Iterator[Calls]:
    made = make_calls(request.param, server.url)
    made.create_queue("q")
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def bodies(jobs: list[Any]) -> list[bytes]:
    return [job.body for job in jobs]


def now_ms(server: Server) -> int:
    return server.time_ms()


# queues


def test_a_queue_is_created_once_and_keeps_its_configuration(calls: Calls) -> None:
    assert calls.create_queue("r", QueueConfig(priorities=5)) is True
    assert calls.create_queue("r", QueueConfig(priorities=7)) is False
    assert calls.queue_config("r").priorities == 5
    assert calls.configure_queue("r", lease_ms=500) == QueueConfig(priorities=5, lease_ms=500)
    assert calls.queue_names() == ["q", "r"]
    assert (calls.delete_queue("r"), calls.delete_queue("r")) == (True, False)
    assert calls.queue_names() == ["q"]
    with pytest.raises(QueueNotFound, match="queue 'r': not found; create_queue makes it"):
        calls.enqueue("r", b"")


def test_a_queue_that_was_deleted_and_created_again_is_a_new_one(calls: Calls) -> None:
    calls.configure_queue("q", priorities=4)
    first = calls.enqueue("q", b"old", priority=4)
    (stale,) = calls.dequeue("q")
    calls.delete_queue("q")
    calls.create_queue("q", QueueConfig(priorities=2))
    held = (calls.enqueue("q", b"new"), calls.dequeue("q"))[1]
    assert held[0].id > stale.id
    assert calls.lookup([first]) == {}
    assert calls.delete_jobs(descriptors=[first]) == calls.retry_jobs([first]) == 0
    assert calls.release([stale]) == calls.renew([stale]) == calls.renew([stale], own=True) == [stale]
    beyond = Checkpoint(job=stale, status="late")
    assert calls.checkpoint(beyond) == [beyond]
    assert calls.ack(succeeded=[*held, stale]) == [stale], "only the job of the removed priority is refused"
    assert calls.count("q") == CountsByState()


# order


def test_ten_jobs_of_one_millisecond_come_in_the_order_of_their_enqueues(calls: Calls) -> None:
    expected = [b"%d" % i for i in range(10)]
    descriptors = calls.enqueue_many("q", expected)
    jobs = calls.dequeue("q", 10)
    assert bodies(jobs) == expected
    assert [job.descriptor for job in jobs] == descriptors
    assert len({job.created_ms for job in jobs}) == 1


def test_order_is_priority_then_time_then_arrival(calls: Calls, server: Server) -> None:
    past_ms = now_ms(server) - 60_000
    calls.enqueue_many(
        "q",
        [
            NewJob(b"low", priority=3, run_after_ms=1),
            NewJob(b"later", run_after_ms=past_ms + 1),
            NewJob(b"first", run_after_ms=past_ms),
            NewJob(b"second", run_after_ms=past_ms),
            NewJob(b"middle", priority=2),
            NewJob(b"not yet", delay_ms=3_600_000),
        ],
    )
    expected = [b"first", b"second", b"later", b"middle", b"low"]
    assert bodies(calls.dequeue("q", 9, dry_run=True)) == expected
    assert bodies([calls.dequeue("q")[0] for _ in range(2)] + calls.dequeue("q", 9)) == expected


def test_a_released_job_keeps_its_position_and_a_failed_one_goes_to_the_end(calls: Calls) -> None:
    calls.enqueue_many("q", [NewJob(body, attempts=3) for body in (b"a", b"b", b"c")])
    a, b = calls.dequeue("q", 2)
    assert (calls.ack(failed=[a]), calls.release([b])) == ([], [])
    jobs = calls.dequeue("q", 3)
    assert bodies(jobs) == [b"b", b"c", b"a"]
    assert [job.attempts_remaining for job in jobs] == [3, 3, 2]


def test_a_limit_over_a_thousand(calls: Calls) -> None:
    calls.enqueue_many("q", [b"%d" % i for i in range(2500)])
    jobs = calls.dequeue("q", 2200)
    assert bodies(jobs) == [b"%d" % i for i in range(2200)]
    assert calls.dequeue("q", 0) == []
    assert len(calls.dequeue("q", 2**31 - 1)) == 300
    assert calls.ack(succeeded=jobs) == []
    assert calls.count("q") == CountsByState(in_progress=300)


# waiting


def begin_waiting(
    pool: ThreadPoolExecutor, server: Server, call: Callable[[], list[Any]], count: int = 1
) -> Future[list[Any]]:
    """Starts a waiting dequeue; returns once it is registered as waiting."""
    waiting = pool.submit(call)
    wait_until(lambda: waiting.done() or server.call("ZCARD", queue_key("q", "1", "waiters")) >= count, "a waiter")
    return waiting


def test_the_first_job_notifies_the_waiter(calls: Calls, server: Server, pool: ThreadPoolExecutor) -> None:
    waiting = begin_waiting(pool, server, lambda: calls.dequeue("q", 10, wait=60))
    calls.enqueue("q", b"a")
    assert bodies(waiting.result(WOKEN_S)) == [b"a"]


def test_nothing_came_until_the_deadline(calls: Calls) -> None:
    started_s = time.monotonic()
    assert calls.dequeue("q", wait=0.2) == []
    assert time.monotonic() - started_s >= 0.2
    assert calls.dequeue("q", wait=0) == calls.dequeue("q") == []


def test_a_scheduled_job_notifies_the_waiter_at_its_time_and_not_before(
    calls: Calls, server: Server, pool: ThreadPoolExecutor
) -> None:
    due_ms = now_ms(server) + 400
    calls.enqueue("q", b"before", run_after_ms=due_ms)
    waiting = begin_waiting(pool, server, lambda: calls.dequeue("q", wait=60))
    (job,) = waiting.result(WOKEN_S)
    assert job.claimed_ms >= due_ms
    waiting = begin_waiting(pool, server, lambda: calls.dequeue("q", wait=60))
    due_ms = now_ms(server) + 300
    calls.enqueue("q", b"while it waits", run_after_ms=due_ms)
    (job,) = waiting.result(WOKEN_S)
    assert (job.body, job.claimed_ms >= due_ms) == (b"while it waits", True)


def test_a_wait_may_be_a_timedelta(calls: Calls) -> None:
    assert calls.dequeue("q", wait=timedelta(milliseconds=1)) == []
    calls.enqueue("q", b"x")
    assert [job.body for job in calls.dequeue("q", wait=timedelta(minutes=1))] == [b"x"]


def test_several_threads_wait_on_one_client(calls: Calls, server: Server, pool: ThreadPoolExecutor) -> None:
    waiting = [pool.submit(calls.dequeue, "q", wait=60) for _ in range(4)]
    wait_until(lambda: server.call("ZCARD", queue_key("q", "1", "waiters")) == 1, "the client to wait")
    for body in (b"a", b"b", b"c", b"d"):
        left = [each for each in waiting if not each.done()]
        calls.enqueue("q", body)
        assert wait(left, WOKEN_S, FIRST_COMPLETED).done, f"no waiter was notified of {body!r}"
    assert sorted(bodies([job for each in waiting for job in each.result(WOKEN_S)])) == [
        b"a",
        b"b",
        b"c",
        b"d",
    ]


@pytest.mark.parametrize("what", ["unpause", "release", "retry", "failed ack", "checkpoint"])
def test_a_call_that_makes_a_job_pending_again_notifies_the_waiter(
    calls: Calls, server: Server, pool: ThreadPoolExecutor, what: str
) -> None:
    descriptor = calls.enqueue("q", b"a", attempts=1 if what == "retry" else 2)
    jobs = calls.dequeue("q")
    if what == "retry":
        calls.ack(failed=jobs)
    if what == "unpause":
        calls.configure_queue("q", paused=True)
        calls.release(jobs)
    waiting = begin_waiting(pool, server, lambda: calls.dequeue("q", wait=60))
    assert not waiting.done()
    steps: dict[str, Callable[[], Any]] = {
        "unpause": lambda: calls.configure_queue("q", paused=False),
        "release": lambda: calls.release(jobs),
        "retry": lambda: calls.retry_failed("q"),
        "failed ack": lambda: calls.ack(failed=jobs),
        "checkpoint": lambda: calls.checkpoint(Checkpoint(job=jobs[0], move_to_pending=True)),
    }
    steps[what]()
    assert [job.descriptor for job in waiting.result(WOKEN_S)] == [descriptor]


# refusals


def test_a_paused_queue_takes_jobs_and_gives_none(calls: Calls) -> None:
    calls.configure_queue("q", paused=True)
    calls.enqueue("q", b"a")
    assert calls.dequeue("q") == calls.dequeue("q", dry_run=True) == calls.dequeue("q", wait=0.05) == []
    assert calls.peek("q") == {1: 0, 2: 0, 3: 0}
    assert calls.count("q").pending == 1
    calls.configure_queue("q", paused=False)
    assert bodies(calls.dequeue("q")) == [b"a"]


def test_a_queue_that_refuses_new_jobs_goes_on_with_the_old_ones(calls: Calls) -> None:
    calls.enqueue("q", b"a")
    calls.configure_queue("q", refuse_enqueue=True)
    with pytest.raises(EnqueueRefused, match="takes no new jobs"):
        calls.enqueue("q", b"b")
    with pytest.raises(EnqueueRefused, match="takes no new jobs"):
        calls.enqueue_many("q", [b"b"] * 2000)
    assert calls.ack(failed=calls.dequeue("q")) == []
    assert bodies(calls.dequeue("q", wait=5)) == [b"a"]
    assert calls.count("q") == CountsByState(in_progress=1)


def test_jobs_that_are_not_held_are_returned_and_the_rest_is_done(calls: Calls) -> None:
    calls.enqueue_many("q", [b"a", b"b", b"c"])
    a, b, c = calls.dequeue("q", 3)
    assert calls.ack(succeeded=[a]) == []
    stranger = (b.descriptor, bytes(7) + b"\1")
    late = Ack(a, "too late")
    assert calls.ack(succeeded=[late, b], failed=[stranger]) == [late, stranger]
    assert calls.release([a, c]) == [a]
    assert calls.renew([c], own=True) == [c]
    (c,) = calls.dequeue("q")
    twice = [Checkpoint(job=c, status=status) for status in ("first", "second")]
    assert calls.checkpoint(*twice) == twice[1:]
    assert calls.lookup([c.descriptor])[c.descriptor].status == "first"


def test_a_job_named_twice_ends_once_and_succeeded_wins(calls: Calls) -> None:
    calls.enqueue("q", b"a")
    (job,) = calls.dequeue("q")
    assert calls.ack(succeeded=[job, job], failed=[job]) == []
    assert calls.count("q") == CountsByState()


def test_an_ack_without_a_token_names_its_source(server: Server, calls: Calls) -> None:
    calls.enqueue_many("q", [b"a", b"b"])
    other = make_calls("sync", server.url, source="web1:a")
    a, b = other.dequeue("q", 2)
    other.close()
    with pytest.raises(InvalidArgument, match="a descriptor without its token needs the source that claimed it"):
        calls.ack(succeeded=[a.descriptor])
    assert calls.ack(succeeded=[a.descriptor], source="web1:ab") == [a.descriptor]
    assert calls.ack(succeeded=[a.descriptor], failed=[Ack(b.descriptor, "no")], source="web1:a") == []
    assert calls.count("q").in_progress == 0


# looking


def test_lookup_leaves_out_unknown_jobs(calls: Calls, server: Server) -> None:
    before_ms = now_ms(server)
    known = calls.enqueue("q", b"body", priority=2, attempts=9, status="new", delay_ms=3_600_000)
    unknown = ["q:s1:p2:1", "q:s1:p99:1", known.replace(":p2:", ":p3:")]
    info = calls.lookup([known, *unknown])[known]
    assert list(calls.lookup([known, *unknown])) == [known]
    assert (info.state, info.priority, info.attempts_allowed) == (State.PENDING, 2, 9)
    assert (info.status, info.body, info.claim, info.crashes) == ("new", None, "", 0)
    assert before_ms <= info.created_ms <= now_ms(server)
    assert info.run_after_ms == info.created_ms + 3_600_000
    assert calls.lookup([known], with_body=True)[known].body == b"body"
    assert calls.lookup([]) == {}
    for malformed in ("q", "q:s1:p0:1", "q:s1:p1:x", "q:s9:p1:1"):
        with pytest.raises(InvalidArgument):
            calls.lookup([known, malformed])


def test_lookup_and_scan_of_large_bodies_go_on_after_a_full_reply(calls: Calls) -> None:
    large = [bytes([i]) * 1_000_000 for i in range(7)]
    descriptors = calls.enqueue_many("q", large)
    found = calls.lookup(descriptors, with_body=True)
    assert [found[descriptor].body for descriptor in descriptors] == large
    assert bodies(calls.scan("q", with_body=True)) == large[::-1]
    assert bodies(calls.dequeue("q", 7) + calls.dequeue("q", 7)) == large


def test_scan_shows_each_state_latest_first_in_pages(calls: Calls) -> None:
    calls.configure_queue("q", keep_succeeded=9)
    calls.enqueue_many("q", [NewJob(b"%d" % i, attempts=1) for i in range(20)])
    jobs = calls.dequeue("q", 12)
    calls.ack(succeeded=jobs[:3])
    calls.ack(failed=jobs[3:7])
    calls.enqueue_many("q", [NewJob(b"far", priority=2, delay_ms=3_600_000), NewJob(b"now", priority=2)])

    def scanned(state: State | str, **options: Any) -> list[str]:
        return [info.descriptor for info in calls.scan("q", state, **options)]

    for size in (1, 3, 100):
        assert scanned("failed", page_size=size) == [job.descriptor for job in jobs[6:2:-1]]
        assert scanned(State.SUCCEEDED, page_size=size) == [job.descriptor for job in jobs[2::-1]]
        assert sorted(scanned("in_progress", page_size=size)) == sorted(job.descriptor for job in jobs[7:])
        pending = bodies(calls.scan("q", page_size=size, with_body=True))
        assert pending == [b"%d" % i for i in range(19, 11, -1)] + [b"now"]
    assert bodies(calls.scan("q", future=True, with_body=True)) == [b"far"]
    assert bodies(calls.scan("q", priority=2, with_body=True)) == [b"now"]


def test_a_scan_sees_jobs_that_stay_exactly_once_while_others_end(calls: Calls) -> None:
    descriptors = calls.enqueue_many("q", [b"%d" % i for i in range(30)])
    page, cursor = calls.scan_page("q", limit=10)
    seen = [info.descriptor for info in page]
    calls.delete_jobs(descriptors=[*descriptors[:3], *seen[-2:]])
    calls.enqueue_many("q", [b"later"] * 5)
    while cursor:
        page, cursor = calls.scan_page("q", limit=10, cursor=cursor)
        seen += [info.descriptor for info in page]
    assert seen == descriptors[:2:-1]
    for cursor in ("x", "1.1.zz", "9.1.", "1.9."):
        with pytest.raises(InvalidArgument, match="cursor: expected one of an earlier page"):
            calls.scan_page("q", cursor=cursor)


def test_counts_and_peek_by_priority(calls: Calls) -> None:
    calls.enqueue_many("q", [NewJob(b"", priority=2)] * 3 + [NewJob(b"", priority=2, delay_ms=3_600_000)])
    calls.enqueue("q", b"", priority=1)
    assert calls.count("q") == CountsByState(pending=4, scheduled=1)
    assert calls.count("q", priority=2) == CountsByState(pending=3, scheduled=1)
    assert calls.peek("q") == {1: 1, 2: 3, 3: 0}
    with pytest.raises(InvalidArgument, match=r"priority: expected 1 to 3 .*got 4"):
        calls.count("q", priority=4)


def test_statuses_grow_at_the_end_and_checkpoints_at_the_front(calls: Calls) -> None:
    descriptor = calls.enqueue("q", b"a", attempts=2, status="new;")
    (job,) = calls.dequeue("q")
    assert calls.checkpoint(Checkpoint(job=job, status="half;", body=b"b")) == []
    assert calls.ack(failed=[Ack(job, "broke;", delay_ms=0)]) == []
    (job,) = calls.dequeue("q")
    assert (job.body, job.attempt) == (b"b", 2)
    calls.ack(failed=[Ack(job, "broke again;")])
    info = calls.lookup([descriptor])[descriptor]
    assert (info.state, info.status) == (State.FAILED, "half;new;broke;broke again;")
    assert calls.retry_jobs([descriptor], attempts=5) == 1
    assert calls.dequeue("q")[0].attempts_remaining == 5


@pytest.mark.parametrize("by_name", [False, True])
def test_attempts_add_up_after_a_retry(calls: Calls, by_name: bool) -> None:
    """More bytes than one call reads, so it takes several."""
    calls.configure_queue("q", body_limit=2**22)
    descriptors = calls.enqueue_many("q", [NewJob(bytes(1_500_000), attempts=1) for _ in range(4)])
    for _ in descriptors:
        calls.ack(failed=calls.dequeue("q"))
    retried = calls.retry_jobs(descriptors, attempts=5) if by_name else calls.retry_failed("q", attempts=5)
    assert retried == 4
    attempts = [(info.attempts_allowed, info.attempts_remaining) for info in calls.lookup(descriptors).values()]
    assert attempts == [(5, 5)] * 4
    for attempt in (1, 2):
        (job,) = calls.dequeue("q", 1)
        assert (job.attempt, job.attempts_allowed, job.attempts_remaining) == (attempt, 5, 6 - attempt)
        calls.ack(failed=[job])
        calls.delete_jobs(descriptors=[one for one in descriptors if one != job.descriptor])
