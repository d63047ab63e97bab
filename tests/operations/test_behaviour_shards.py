"""One queue over several shards: fairness, placement, and a shard that was away.

Promises: written once for Client and AsyncClient. Fail-over at an enqueue, and what is unknown, are shown by
test_server_faults.py and test_unknown.py.
Risks: hints of what is left are up to 50 ms old; a test that needs an exact answer lets them expire first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pinlater import Client, CountsByState, NewJob, QueueConfig
from pinlater.model.errors import OutcomeUnknown, PartialDelete, PartialEnqueue, ServerUnavailable
from pinlater.model.queue_config import StoredConfig
from pinlater.operations.shard_quotas import share_out
from pinlater.store.keys import queue_key, remnant_field, remnant_keys
from pinlater.store.shards import shard_for_key
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server, wait_until

__all__ = ["kind", "make"]  # fixtures

FreshServer = Callable[..., Server]
NAMES = ["a", "b", "c", "d"]
#: The shards of the keys "0" to "19". If they changed, jobs of one key would be on two shards.
PLACED = "cdcdacabdcabcbcaabba"


@pytest.fixture
def calls(server: Server, make: Callable[..., Calls]) -> Calls:
    """Four shards on one server."""
    made = make(shards=dict.fromkeys(NAMES, server.url))
    made.create_queue("q")
    return made


def key_of(shard: str, names: list[str] = NAMES) -> str:
    """A key whose jobs are placed on this shard."""
    return next(str(i) for i in range(1000) if shard_for_key(str(i).encode(), names) == shard)


def shard_of(descriptor: str) -> str:
    return descriptor.split(":")[1][1:]


def stored(server: Server, shard: str) -> StoredConfig | None:
    """The configuration of the queue on a shard; of a deleted one, what the registry has."""
    packed = server.call("HGET", queue_key("q", shard, "meta"), "config")
    if packed:
        return StoredConfig.unpack(packed)
    remnant = server.call("HGET", remnant_keys("q", shard)[0], remnant_field("q"))
    return StoredConfig.deleted_as(remnant) if remnant else None


def forget_hints(calls: Calls) -> None:
    for queue_shard in calls.client.session.queue_shards("q"):
        queue_shard.left_at_s = float("-inf")


# a shard that was away


def test_no_job_follows_one_that_was_sent_and_not_answered(
    server: Server, fresh_server: FreshServer, make: Callable[..., Calls]
) -> None:
    silent = fresh_server()
    calls = make(shards={"a": server.url, "b": silent.url}, timeout_s=0.5)
    calls.create_queue("q")
    first, second = calls.client.session.queue_shards("q")
    first.silent_until_s = float("inf")  # so that the other one is asked first
    calls.enqueue("q", b"")
    silent.pause()
    try:
        with pytest.raises(OutcomeUnknown):
            calls.enqueue("q", b"")
    finally:
        silent.resume()
    assert second.silent_until_s > time.monotonic()
    first.silent_until_s = float("-inf")
    assert shard_of(calls.enqueue("q", b"")) == "a"


# fairness


def test_a_higher_priority_comes_first_over_all_shards(calls: Calls) -> None:
    for shard in NAMES:
        for priority in (3, 2, 1):
            calls.enqueue("q", b"%d" % priority, priority=priority, key=key_of(shard))
    forget_hints(calls)
    for expected in ([1, 1, 1], [1, 2, 2], [2, 2, 3, 3, 3, 3]):
        assert [job.priority for job in calls.dequeue("q", 9 if len(expected) > 3 else 3)] == expected
        forget_hints(calls)
    assert calls.dequeue("q", 9) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_limit_is_never_exceeded(calls: Calls, limit: int) -> None:
    for shard in NAMES:
        calls.enqueue_many("q", [NewJob(b"", key=key_of(shard))] * 3)
    left = 12
    while left:
        forget_hints(calls)
        jobs = calls.dequeue("q", limit)
        assert len(jobs) == min(limit, left)
        left -= len(jobs)
        assert calls.count("q") == CountsByState(pending=left, in_progress=12 - left)


def test_large_claims_are_shared_out_evenly() -> None:
    assert share_out([[1000], [1000], [1000], [1000]], 400) == [[100]] * 4
    assert share_out([[1000], [10], [1000]], 410) == [[200], [10], [200]]


def test_small_claims_are_of_few_shards_which_take_turns() -> None:
    chosen = {tuple(sum(quota) for quota in share_out([[90], [90], [90]], 40)) for _ in range(200)}
    assert chosen == {(40, 0, 0), (0, 40, 0), (0, 0, 40)}
    assert {sum(quota) for quota in share_out([[5], [5], [5]], 7)} == {0, 2, 5}


def test_quotas_are_shared_out_by_priority() -> None:
    assert share_out([[1, 9], [2, 0], []], 5) == [[1, 2], [2, 0], [0, 0]]
    assert share_out([[0, 0], [0, 0]], 9) == [[0, 0], [0, 0]]


def test_a_dry_run_takes_nothing(calls: Calls) -> None:
    for shard, priority in zip(NAMES, (2, 1, 3, 1), strict=True):
        calls.enqueue("q", shard.encode(), priority=priority, key=key_of(shard))
    shown = calls.dequeue("q", 3, dry_run=True)
    assert [job.priority for job in shown] == [1, 1, 2]
    assert calls.count("q") == CountsByState(pending=4)


def test_a_job_on_any_shard_notifies_the_waiter(calls: Calls, server: Server) -> None:
    keys = [queue_key("q", name, "waiters") for name in NAMES]
    with ThreadPoolExecutor(1) as pool:
        for shard in NAMES:
            waiting = pool.submit(calls.dequeue, "q", wait=60)
            wait_until(lambda: all(server.call("ZCARD", key) for key in keys), "a waiter on every shard")
            descriptor = calls.enqueue("q", b"", key=key_of(shard))
            assert [job.descriptor for job in waiting.result(8)] == [descriptor]


def test_a_scan_goes_shard_by_shard_and_pages_over_all(calls: Calls) -> None:
    put = [calls.enqueue("q", b"", key=key_of(shard)) for shard in NAMES for _ in range(3)]
    seen = [info.descriptor for info in calls.scan("q", page_size=2)]
    assert seen == [put[3 * i + k] for i in range(4) for k in (2, 1, 0)]


# where jobs are placed


def test_placement_by_key_does_not_change() -> None:
    """Other versions and languages must agree on it."""
    placed = "".join(shard_for_key(b"%d" % i, NAMES) for i in range(20))
    assert placed == PLACED
    assert placed == "".join(shard_for_key(b"%d" % i, NAMES[::-1]) for i in range(20))


def test_a_new_shard_takes_keys_only_to_itself() -> None:
    keys = [b"%d" % i for i in range(1000)]
    before = {key: shard_for_key(key, NAMES) for key in keys}
    after = {key: shard_for_key(key, [*NAMES, "e"]) for key in keys}
    moved = [key for key in keys if before[key] != after[key]]
    assert {after[key] for key in moved} == {"e"}
    assert 140 < len(moved) < 260
    assert all(180 < count < 320 for count in Counter(before.values()).values())


def test_jobs_of_one_key_stay_together_and_in_order(calls: Calls) -> None:
    jobs = [NewJob(b"%d" % i, key="user 7" if i % 2 else None) for i in range(40)]
    descriptors = calls.enqueue_many("q", jobs)
    assert len({shard_of(descriptor) for descriptor in descriptors[1::2]}) == 1
    assert shard_of(descriptors[1]) == shard_for_key(b"user 7", NAMES)
    assert [calls.lookup([one], with_body=True)[one].body for one in descriptors] == [job.body for job in jobs]
    forget_hints(calls)
    mine = [job for job in calls.dequeue("q", 40) if job.shard == shard_of(descriptors[1])]
    odd = [job.body for job in mine if int(job.body) % 2]
    assert odd == [b"%d" % i for i in range(1, 40, 2)]


# a shard that was away


@pytest.fixture
def away(fresh_server: FreshServer) -> Server:
    """A server that keeps its data."""
    return fresh_server(aof_always=True)


def test_a_queue_reaches_a_shard_that_was_away_when_it_was_created(
    server: Server, away: Server, make: Callable[..., Calls]
) -> None:
    shards = {"here": server.url, "away": away.url}
    away.stop()
    assert make(shards=shards, timeout_s=2).create_queue("q", QueueConfig(priorities=7, lease_ms=700)) is True
    away.start()
    assert stored(away, "away") is None
    other = make(shards=shards)
    assert other.count("q") == CountsByState()
    assert stored(away, "away") == stored(server, "here")
    descriptor = other.enqueue("q", b"", priority=7, key=key_of("away", ["here", "away"]))
    assert shard_of(descriptor) == "away"
    assert other.create_queue("q") is False


def test_a_configuration_reaches_a_shard_that_was_away(
    server: Server, away: Server, make: Callable[..., Calls]
) -> None:
    shards = {"here": server.url, "away": away.url}
    first = make(shards=shards, timeout_s=1)
    first.create_queue("q")
    descriptor = first.enqueue("q", b"", key=key_of("away", ["here", "away"]))
    away.stop()
    assert first.configure_queue("q", paused=True).paused
    away.start()
    behind = stored(away, "away")
    assert behind is not None
    assert not behind.config.paused
    other = make(shards=shards)
    assert other.dequeue("q") == []
    assert stored(away, "away") == stored(server, "here")
    assert other.configure_queue("q", paused=False) == QueueConfig()
    assert [job.descriptor for job in other.dequeue("q")] == [descriptor]


def test_a_deleted_queue_does_not_come_back_from_a_shard_that_was_away(
    server: Server, away: Server, make: Callable[..., Calls]
) -> None:
    shards = {"here": server.url, "away": away.url}
    first = make(shards=shards, timeout_s=1)
    first.create_queue("q")
    first.enqueue("q", b"", key=key_of("away", ["here", "away"]))
    away.stop()
    with pytest.raises(PartialDelete, match="call it again") as raised:
        first.delete_queue("q")
    assert list(raised.value.errors) == ["away"]
    away.start()
    assert make(shards=shards).delete_queue("q") is True
    assert make(shards=shards).queue_names() == []
    assert away.call("EXISTS", queue_key("q", "away", "jobs")) == 0


def test_a_queue_created_again_is_newer_than_its_deletion_on_a_shard_whose_clock_is_ahead(
    server: Server, fresh_server: FreshServer, make: Callable[..., Calls]
) -> None:
    ahead = fresh_server(fake_clock=True)
    ahead.jump_clock(3600)
    calls = make(shards={"here": server.url, "ahead": ahead.url})
    for _ in range(2):
        assert calls.create_queue("q", QueueConfig(lease_ms=500)) is True
        descriptors = [calls.enqueue("q", b"", key=key_of(name, ["here", "ahead"])) for name in ("here", "ahead")]
        assert len(calls.lookup(descriptors)) == 2
        assert stored(server, "here") == stored(ahead, "ahead")
        assert calls.queue_names() == ["q"]
        assert calls.delete_queue("q") is True


@pytest.mark.parametrize("heard", ["of the deletion", "of nothing"])
def test_a_shard_that_was_away_when_a_queue_was_created_again_follows_whatever_its_clock(
    server: Server, fresh_server: FreshServer, make: Callable[..., Calls], heard: str
) -> None:
    """It returns with a deletion, or with a configuration and jobs of the deleted queue, of a version hours ahead."""
    ahead = fresh_server(fake_clock=True, aof_always=True)
    ahead.jump_clock(3600)
    shards = {"here": server.url, "ahead": ahead.url}
    first = make(shards=shards, timeout_s=1)
    first.create_queue("q", QueueConfig(lease_ms=500))
    first.enqueue("q", b"old", key=key_of("ahead", ["here", "ahead"]))
    alone = make(shards={"ahead": ahead.url})
    alone.configure_queue("q", lease_ms=600)  # its version is drawn from its own clock
    if heard == "of the deletion":
        assert first.delete_queue("q") is True
        ahead.stop()
    else:
        ahead.stop()
        with pytest.raises(PartialDelete):
            first.delete_queue("q")
    assert make(shards=shards, timeout_s=1).create_queue("q", QueueConfig(lease_ms=700)) is True
    left_behind = stored(server, "here")
    ahead.start()
    there = stored(ahead, "ahead")
    assert left_behind is not None
    assert there is not None
    assert there.version > left_behind.version
    other = make(shards=shards)
    descriptor = other.enqueue("q", b"new", key=key_of("ahead", ["here", "ahead"]))
    assert shard_of(descriptor) == "ahead"
    assert other.queue_config("q").lease_ms == 700
    assert stored(ahead, "ahead") == stored(server, "here")
    assert [job.body for job in other.dequeue("q", 9)] == [b"new"]
    assert other.create_queue("q") is False
    assert other.delete_queue("q") is True
    assert other.queue_names() == []


def test_dequeue_goes_on_without_a_shard_that_is_away(server: Server, away: Server, make: Callable[..., Calls]) -> None:
    shards = {"here": server.url, "away": away.url}
    calls = make(shards=shards, timeout_s=0.5)
    calls.create_queue("q")
    for shard in shards:
        calls.enqueue("q", shard.encode(), key=key_of(shard, ["here", "away"]))
    away.stop()
    assert [job.body for job in calls.dequeue("q", 9)] == [b"here"]
    calls.enqueue("q", b"again")
    assert [job.body for job in calls.dequeue("q", 9)] == [b"again"]
    away.start()
    with Client(shards=shards) as other:
        assert [job.body for job in other.dequeue("q", 9)] == [b"away"]


def test_a_dequeue_passes_over_the_only_shard_where_it_saw_jobs_if_that_is_away(
    server: Server, away: Server, make: Callable[..., Calls]
) -> None:
    calls = make(shards={"here": server.url, "away": away.url}, timeout_s=1)
    calls.create_queue("q")
    calls.enqueue_many("q", [NewJob(b"", key=key_of("away", ["here", "away"]))] * 9)
    assert len(calls.dequeue("q", 1)) == 1
    away.stop()
    for queue_shard in calls.client.session.queue_shards("q"):
        queue_shard.left_at_s = float("inf")  # the hints still count
    assert calls.dequeue("q", 1) == []


def test_a_large_enqueue_with_a_part_that_no_shard_takes(
    server: Server, away: Server, make: Callable[..., Calls]
) -> None:
    names = ["here", "away"]
    calls = make(shards={"here": server.url, "away": away.url}, timeout_s=0.3)
    calls.create_queue("q")
    jobs = [NewJob(b"%d" % i, key=key_of(names[i % 2], names)) for i in range(10)]
    calls.enqueue_many("q", jobs)
    away.stop()
    with pytest.raises(PartialEnqueue, match="5 of 10 jobs are not certain to be in") as raised:
        calls.enqueue_many("q", jobs)
    results = raised.value.results
    assert all(isinstance(result, ServerUnavailable) for result in results[1::2])
    found = calls.lookup([result for result in results[::2] if isinstance(result, str)], with_body=True)
    assert [info.body for info in found.values()] == [job.body for job in jobs[::2]]
    with pytest.raises(ServerUnavailable):
        calls.enqueue_many("q", jobs[1::2])
