"""Dry runs past a thousand jobs and over several shards, and the share of the shards that a call looks at.

Promises: they show what a dequeue gives, in its order, and end at the limit or after DEQUEUE_BYTES.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from pinlater import CountsByState, NewJob, QueueConfig
from pinlater.model.errors import InvalidArgument, ServerUnavailable
from pinlater.operations.claim import dry_run
from pinlater.operations.dequeue import dequeue
from pinlater.operations.inspect import DEQUEUE_BYTES
from pinlater.operations.shard_quotas import covered
from pinlater.store.effects import Send
from pinlater.store.shards import shard_for_key
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server

__all__ = ["kind", "make"]  # fixtures

NAMES = ["a", "b", "c", "d"]
MIB = 1 << 20


@pytest.fixture
def calls(server: Server, make: Callable[..., Calls]) -> Calls:
    """Four shards on one server."""
    made = make(shards=dict.fromkeys(NAMES, server.url))
    made.create_queue("q")
    return made


def key_of(shard: str) -> str:
    return next(str(i) for i in range(1000) if shard_for_key(str(i).encode(), NAMES) == shard)


def test_a_dry_run_past_a_thousand_shows_what_a_dequeue_gives(server: Server, make: Callable[..., Calls]) -> None:
    calls = make(server.url)
    calls.create_queue("q")
    calls.enqueue_many("q", [NewJob(b"%d" % i, priority=1 + i % 3) for i in range(2500)])
    shown = calls.dequeue("q", 2200, dry_run=True)
    assert {job.token for job in shown} == {bytes(8)}
    assert len(calls.dequeue("q", 2**31 - 1, dry_run=True)) == 2500
    assert calls.dequeue("q", 0, dry_run=True) == []
    assert [job.body for job in shown] == [job.body for job in calls.dequeue("q", 2200)]


def test_a_queue_that_is_paused_shows_none_as_it_gives_none(calls: Calls) -> None:
    calls.enqueue_many("q", [b"x"] * 8)
    for pause_s in (None, 3_600):
        calls.pause_queue("q", pause_s)
        assert calls.dequeue("q", 9, dry_run=True) == calls.dequeue("q", 9) == []
        calls.resume_queue("q")
        assert len(calls.dequeue("q", 9, dry_run=True)) == 8


def test_over_shards_the_priorities_come_first(calls: Calls) -> None:
    for shard, priority, count in [("a", 1, 700), ("b", 2, 1500), ("b", 1, 1200), ("c", 3, 400), ("d", 2, 30)]:
        calls.enqueue_many("q", [NewJob(b"", priority=priority, key=key_of(shard))] * count)
    for limit in (1, 1900, 1901, 3500, 2**31 - 1):
        shown = [job.priority for job in calls.dequeue("q", limit, dry_run=True)]
        assert shown == ([1] * 1900 + [2] * 1530 + [3] * 400)[:limit]
    assert calls.count("q") == CountsByState(pending=3830)


def test_after_4_mib_it_ends_and_passes_over_no_higher_priority(calls: Calls) -> None:
    calls.configure_queue("q", body_limit=2 * MIB)
    for shard, priority, size, count in [("a", 1, 10, 40), ("a", 2, MIB, 3), ("b", 1, MIB, 6), ("c", 3, 10, 5)]:
        calls.enqueue_many("q", [NewJob(bytes(size), priority=priority, key=key_of(shard))] * count)
    shown = calls.dequeue("q", 100, dry_run=True)
    assert {job.priority for job in shown} == {1}
    assert 40 < len(shown) < 46
    calls.delete_jobs("q", "pending", priority=1, limit=100)
    assert [job.priority for job in calls.dequeue("q", 100, dry_run=True)] == [2] * 3 + [3] * 5


def test_a_dry_run_ends_after_its_bytes(server: Server, make: Callable[..., Calls]) -> None:
    calls = make(server.url)
    calls.create_queue("q")
    calls.enqueue_many("q", [bytes(MIB // 2)] * 12)
    shown = calls.dequeue("q", 12, dry_run=True)
    assert DEQUEUE_BYTES <= sum(len(job.body) for job in shown) < DEQUEUE_BYTES + MIB


def test_a_shard_without_an_answer_is_left_out(fresh_server: Callable[..., Server], make: Callable[..., Calls]) -> None:
    servers = {"a": fresh_server(), "b": fresh_server()}
    calls = make(shards={name: each.url for name, each in servers.items()}, timeout_s=1.5)
    calls.create_queue("q")
    for key in range(20):
        calls.enqueue("q", b"", key=str(key))
    there = [job for job in calls.dequeue("q", 20, dry_run=True) if job.shard == "b"]
    assert 0 < len(there) < 20
    servers["a"].stop()
    assert calls.dequeue("q", 20, dry_run=True) == there
    servers["b"].stop()
    with pytest.raises(ServerUnavailable):
        calls.dequeue("q", 20, dry_run=True)


def test_a_silent_shard_is_not_asked_and_no_shard_is_waited_for(
    server: Server, fresh_server: Callable[..., Server], make: Callable[..., Calls]
) -> None:
    calls = make(shards={"a": server.url, "b": fresh_server().url, "c": server.url})
    calls.create_queue("q")
    session, deadline_s = calls.client.session, time.monotonic() + 3600

    def asked() -> Counter[str]:
        sends = cast("list[Send]", next(dry_run(session, "q", 9, deadline_s)))
        assert all(send.deadline_s < deadline_s - 60 for send in sends)
        return Counter(send.server.url for send in sends for _ in send.commands)

    silent = session.queue_shard("q", "b")
    every = asked()
    assert set(every) == {server.url, silent.shard.server.url}
    silent.silent_until_s = float("inf")
    assert asked() == Counter({server.url: every[server.url]})


# coverage


@pytest.mark.parametrize(
    ("coverage", "shards"), [(0, 1), (0.1, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (1, 4), (2.5, 4)]
)
def test_coverage_is_a_share_of_the_shards(calls: Calls, coverage: float, shards: int) -> None:
    for shard in NAMES:
        calls.enqueue_many("q", [NewJob(b"", key=key_of(shard))] * 2)
    session = calls.client.session
    shown = calls.run(lambda end: dry_run(session, "q", 100, end, coverage))
    assert len({job.shard for job in shown}) == shards
    assert len(shown) == 2 * shards
    taken = calls.run(lambda _: dequeue(session, "q", 100, None, "test", 8.0, coverage))
    assert len({job.shard for job in taken}) == shards
    assert len(taken) == 2 * shards


def test_coverage_chooses_at_random_and_knows_round_numbers(calls: Calls) -> None:
    queue_shards = calls.client.session.queue_shards("q")
    chosen = {tuple(each.shard.name for each in covered(queue_shards, 0.5, draw / 100)) for draw in range(100)}
    assert {len(names) for names in chosen} == {2}
    assert {name for names in chosen for name in names} == set(NAMES)
    assert len(covered(queue_shards * 7 + queue_shards[:2], 0.1, 0.5)) == 3  # 0.1 x 30 is above 3 for a machine
    assert covered(queue_shards, 0.5, 0.3) == covered(queue_shards, 0.5, 0.3)


def test_the_jobs_of_a_queue_with_max_running_are_found_with_any_coverage(calls: Calls) -> None:
    calls.create_queue("few", QueueConfig(max_running=5))
    calls.enqueue_many("few", [b""] * 5)
    session = calls.client.session
    for _ in range(5):
        assert len(calls.run(lambda end: dry_run(session, "few", 9, end, 0.01))) == 5
        [job] = calls.run(lambda _: dequeue(session, "few", 1, None, "test", 8.0, 0.01))
        assert calls.ack(failed=[job]) == []


@pytest.mark.parametrize("coverage", [-0.1, float("nan"), True, "1", None])
def test_a_bad_coverage_is_refused(calls: Calls, coverage: Any) -> None:
    session = calls.client.session
    flows = [
        lambda end: dry_run(session, "q", 1, end, coverage),
        lambda _: dequeue(session, "q", 1, None, "test", 8.0, coverage),
    ]
    for flow in flows:
        with pytest.raises(InvalidArgument, match="coverage: expected a share of the shards, 0 or more"):
            calls.run(partial(flow))
