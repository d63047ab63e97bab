"""Scans that are merged over the shards and priorities of a queue, for both clients.

Promises: each page size shows the same jobs in the same order, and jobs that keep their place are shown once, whatever
comes and goes between two pages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from pinlater import JobInfo, NewJob, QueueConfig, State
from pinlater.model.errors import InvalidArgument, QueueNotFound, ServerUnavailable
from pinlater.operations.inspect import DEQUEUE_BYTES
from pinlater.operations.scans import scan_merged
from pinlater.store.keys import queue_key
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server

__all__ = ["kind", "make"]  # fixtures

FreshServer = Callable[..., Server]
NAMES = ["a", "b", "c"]
SIZES = [1, 7, 100, 2**31 - 1]
HOUR_MS = 3_600_000


@pytest.fixture
def calls(server: Server, make: Callable[..., Calls]) -> Calls:
    """Three shards on one server."""
    made = make(
        shards=dict.fromkeys(NAMES, server.url), timeout_s=60
    )  # a page takes what it has when half of it passed
    made.create_queue("q", QueueConfig(keep_succeeded=100))
    return made


def page(
    calls: Calls,
    state: State | str = "pending",
    limit: int = 100,
    after: str = "",
    *,
    priority: int | None = None,
    future: bool = False,
    with_body: bool = False,
) -> tuple[list[JobInfo], str]:
    session = calls.client.session
    found: tuple[list[JobInfo], str] = calls.run(
        lambda end: scan_merged(session, "q", state, priority, future, with_body, limit, after, end)
    )
    assert len(found[0]) <= limit
    return found


def pages(calls: Calls, state: State | str = "pending", limit: int = 100, **options: Any) -> list[JobInfo]:
    infos, after = page(calls, state, limit, **options)
    while after:
        assert len(after) < 100 or state == "in_progress"
        more, after = page(calls, state, limit, after, **options)
        infos += more
    return infos


def enqueue_spread(calls: Calls, now_ms: int, count: int = 90) -> list[str]:
    """Jobs over all shards and priorities. Several have the same time; some are due later."""
    chance = random.Random(7)
    jobs = [
        NewJob(b"%d" % at, priority=1 + at % 3, run_after_ms=now_ms + ms, key=str(at), attempts=1)
        for at, ms in enumerate(chance.choices([-9000, -5000, -4999, -4998, -1000, HOUR_MS, HOUR_MS + 1], k=count))
    ]
    names: list[str] = calls.enqueue_many("q", jobs)
    return names


def time_of(info: JobInfo) -> int:
    return (info.run_after_ms or 0) if info.state is State.PENDING else info.updated_ms


@pytest.mark.parametrize("limit", SIZES)
def test_pending_jobs_come_latest_first(calls: Calls, server: Server, limit: int) -> None:
    names = enqueue_spread(calls, server.time_ms())
    due, future = pages(calls, limit=limit), pages(calls, limit=limit, future=True)
    assert sorted(info.descriptor for info in due + future) == sorted(names)
    for infos in (due, future):
        times = [time_of(info) for info in infos]
        assert times == sorted(times, reverse=True)
        assert len({info.descriptor.split(":")[1] for info in infos[:20]}) > 1, "the shards are mixed"
    assert {time_of(info) > server.time_ms() for info in future} == {True}
    assert pages(calls, limit=limit, priority=2) == [info for info in due if info.priority == 2]


def test_every_page_size_has_one_order_of_jobs_with_the_same_time(calls: Calls) -> None:
    calls.enqueue_many("q", [NewJob(b"", priority=1 + at % 3, run_after_ms=7, key=str(at)) for at in range(60)])
    whole = pages(calls)
    assert len(whole) == 60
    assert [pages(calls, limit=limit) for limit in SIZES] == [whole] * len(SIZES)


def test_jobs_of_one_time_and_id_on_all_shards_come_once(calls: Calls, server: Server) -> None:
    """Ids of different shards may be the same."""
    with server.client() as client:
        for name in NAMES:
            client.zadd(queue_key("q", name, "ready:1"), {bytes(7) + b"\5": 1000})
            client.hset(queue_key("q", name, "jobs"), bytes(7) + b"\5", b"\1\0\1\1body")
    for limit in SIZES:
        assert [info.descriptor for info in pages(calls, limit=limit)] == [f"q:s{name}:p1:5" for name in NAMES]


@pytest.mark.parametrize("limit", SIZES)
def test_sixteenths_of_a_millisecond_count(calls: Calls, server: Server, limit: int) -> None:
    """The score of a job whose lease ended unconfirmed has them. Ids do not go by them."""
    chance = random.Random(7)
    sixteenths = chance.sample(range(100), 60)
    with server.client() as client:
        for id_, sixteenth in enumerate(sixteenths, 1):
            shard, member = chance.choice(NAMES), id_.to_bytes(8, "big")
            client.zadd(queue_key("q", shard, f"ready:{1 + id_ % 3}"), {member + b"\1": 1000 + sixteenth / 16})
            client.hset(queue_key("q", shard, "jobs"), member, b"\1\0\1\1body")
    expected = [1 + sixteenths.index(sixteenth) for sixteenth in sorted(sixteenths, reverse=True)]
    assert [int(info.descriptor.rpartition(":")[2]) for info in pages(calls, limit=limit)] == expected


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_finished_jobs_come_latest_first(calls: Calls, server: Server, limit: int) -> None:
    enqueue_spread(calls, server.time_ms())
    jobs = calls.dequeue("q", 60)
    random.Random(7).shuffle(jobs)
    for first in range(0, 60, 6):
        calls.ack(succeeded=jobs[first : first + 3], failed=jobs[first + 3 : first + 6])
    for state, ended in (("succeeded", [0, 1, 2]), ("failed", [3, 4, 5])):
        infos = pages(calls, state, limit)
        times = [time_of(info) for info in infos]
        assert times == sorted(times, reverse=True)
        wanted = [job.descriptor for at, job in enumerate(jobs) if at % 6 in ended]
        assert sorted(info.descriptor for info in infos) == sorted(wanted)


def test_running_jobs_come_once_in_pages_of_at_most_the_limit(calls: Calls, server: Server) -> None:
    enqueue_spread(calls, server.time_ms())
    jobs = calls.dequeue("q", 90)
    assert len(jobs) > 50
    for limit in SIZES:
        found = [info.descriptor for info in pages(calls, "in_progress", limit)]
        assert sorted(found) == sorted(job.descriptor for job in jobs)
    assert {info.priority for info in pages(calls, "in_progress", priority=2)} == {2}


@pytest.mark.parametrize("state", ["pending", "failed"])
def test_jobs_that_stay_are_shown_once_while_others_come_and_go(calls: Calls, server: Server, state: str) -> None:
    now_ms = server.time_ms()

    def put(count: int) -> list[str]:
        jobs = [
            NewJob(b"", priority=chance.randint(1, 3), run_after_ms=now_ms - chance.randint(0, 9), attempts=1)
            for _ in range(count)
        ]
        names: list[str] = calls.enqueue_many("q", jobs)
        if state == "failed":
            calls.ack(failed=calls.dequeue("q", count))
        return names

    for seed in range(5):
        chance = random.Random(seed)
        stay, go = put(40), put(40)
        seen, after, going = list[str](), "", True
        while going:
            infos, after = page(calls, state, chance.randint(1, 20), after)
            going = bool(after)
            seen += [info.descriptor for info in infos]
            leaving = set(chance.sample(go, min(len(go), 8))) | ({*go} & {info.descriptor for info in infos[-1:]})
            calls.delete_jobs(descriptors=leaving)
            go = [name for name in go if name not in leaving] + put(3)
        assert len(seen) == len(set(seen))
        assert set(stay) <= set(seen)
        calls.purge("q")


def test_a_page_ends_after_4_mib(calls: Calls) -> None:
    calls.enqueue_many("q", [NewJob(bytes(1 << 19), status="s" * 3000, key=str(at)) for at in range(20)])
    infos, after = page(calls, with_body=True)
    assert DEQUEUE_BYTES <= sum(len(info.body or b"") + 3100 for info in infos) < DEQUEUE_BYTES + (1 << 20)
    rest, end = page(calls, after=after, with_body=True)
    assert len({info.descriptor for info in infos + rest}) == 16 == len(infos + rest) or end
    without, end = page(calls)
    assert (len(without), end, {info.body for info in without}) == (20, "", {None})


def test_a_long_page_of_small_jobs_is_bounded_too(calls: Calls) -> None:
    calls.enqueue_many("q", [b""] * 45_000)
    infos, after = page(calls, limit=2**31 - 1)
    assert DEQUEUE_BYTES // 100 <= len(infos) < 45_000
    rest, end = page(calls, limit=2**31 - 1, after=after)
    assert (len(infos) + len(rest), end) == (45_000, "")


def test_an_empty_queue_has_one_empty_page(calls: Calls) -> None:
    for state in State:
        assert page(calls, state) == ([], "")


def test_a_shard_without_an_answer_is_an_error_that_names_it(
    fresh_server: FreshServer, make: Callable[..., Calls]
) -> None:
    servers = {"a": fresh_server(), "b": fresh_server()}
    calls = make(shards={name: each.url for name, each in servers.items()}, timeout_s=1.5)
    calls.create_queue("q")
    servers["b"].stop()
    with pytest.raises(ServerUnavailable, match=str(servers["b"].port)):
        page(calls)


@pytest.mark.parametrize(
    "continuation",
    [
        "x",
        "0",
        "-1",
        "1-1",
        "1-1-",
        "1-1-a b",
        "1-g-a",
        f"{2**53:x}-1-a",
        f"1-{2**63:x}-a",
        "1-1-a-" + "x" * 40,
        "a.1.",
        "a.1.00",
    ],
)
def test_a_bad_continuation_is_refused(calls: Calls, continuation: str) -> None:
    for state in ("pending", "failed"):
        with pytest.raises(InvalidArgument, match="continuation: expected one of an earlier page of this scan, got"):
            page(calls, state, after=continuation)


@pytest.mark.parametrize("continuation", ["x", "1-1-a", "a.1.zz", "d.1.", "a.4.", "a.1.78", "a.1.303a61", 7])
def test_a_bad_continuation_of_running_jobs_is_refused(calls: Calls, continuation: Any) -> None:
    with pytest.raises(InvalidArgument, match="continuation: expected one of an earlier page of this scan, got"):
        page(calls, "in_progress", after=continuation)


def test_bad_arguments_are_refused(calls: Calls) -> None:
    for limit in (0, -1, 2**31, True, 1.5):
        with pytest.raises(InvalidArgument, match="limit: expected an integer from 1 to 2,147,483,647"):
            page(calls, limit=limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="future: expected with pending jobs, got failed ones"):
        page(calls, "failed", future=True)
    with pytest.raises(InvalidArgument, match="priority: expected 1 to 3"):
        page(calls, priority=4)
    calls.delete_queue("q")
    with pytest.raises(QueueNotFound):
        page(calls)
