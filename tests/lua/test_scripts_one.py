"""One job a call: the short ways of enqueue, claim and ack do what the general ways do, and give way to them.

Promises: what a short way does is compared with the general way's work, key by key; calls with the common keys alone
change nothing where they need more.
Risks: which way a call takes is not seen; that there are cases for each is by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import pytest

from pinlater.store.scripts import load_scripts
from tests.support.servers import Server, wait_until
from tests.support.wire import Wire, connect, expiries, is_clean, known, refused, snapshot
from tests.support.wire_format import (
    ABSOLUTE,
    CLAIM,
    DELAY,
    NOW,
    Claimed,
    End,
    Job,
    created_ms,
    ends,
    pack_runs,
    pack_specs,
    pack_statuses,
    record,
    settings,
)

PRIORITIES = 3


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        made = Wire(client)
        made.create()
        yield made


def contents(wire: Wire) -> dict[str, Any]:
    """The size of each key, and what is known of the running jobs. A lease of one job may have no entry."""
    found = {name: len(value) for name, value in snapshot(wire, lane=False).items() if name != "lease_jobs"}
    running = [
        (priority, info.state, info.remaining, info.claim)
        for priority in range(1, PRIORITIES + 1)
        for id_ in cast("list[bytes]", wire.client.hkeys(wire.key(f"running:{priority}")))
        for info in [known(wire, id_, priority)]
    ]
    return found | {"running": running}


def common(wire: Wire, verb: str, *arguments: bytes, priorities: int = PRIORITIES) -> Any:
    """A write with the keys before the bar only."""
    script = load_scripts()[verb]
    wire.client.script_load(script.source)
    wire.sequence += 1
    keys = script.names(wire.queue, wire.shard, priorities, common=True)
    head = (wire.lane, wire.packed_sequence, wire.version)
    return wire.client.evalsha(script.sha.decode(), len(keys), *keys, *head, *arguments)


@pytest.mark.parametrize("priority", [1, 2, 3])
def test_a_claim_of_one_leaves_what_a_claim_with_quotas_leaves(wire: Wire, priority: int) -> None:
    quotas = [0, 0, 0]
    quotas[priority - 1] = 1
    found = []
    ways: list[Callable[[], Claimed]] = [lambda: wire.claim(1, quotas=quotas), lambda: wire.claim(1), wire.claim_one]
    for claim in ways:
        (id_,) = wire.enqueue(Job(b"x", priority, allowed=7))
        claimed = claim()
        assert [(job.id, job.priority, job.left, job.record) for job in claimed.jobs] == [
            (id_, priority, None, record(Job(b"x", priority, allowed=7)))
        ]
        assert wire.replayed_claim().bodies == claimed.bodies
        found.append(contents(wire))
        assert wire.succeed(claimed) == []
        assert is_clean(snapshot(wire))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "job",
    [None, Job(b"early", 2, ABSOLUTE, 1), Job(b"status", 1, status=b"s")],
    ids=["nothing", "early", "status"],
)
def test_a_claim_of_one_simple_job_leaves_other_jobs(wire: Wire, job: Job | None) -> None:
    if job is not None:
        wire.enqueue(job)
    before = snapshot(wire, lane=False)
    assert wire.claim_one().jobs == wire.replayed_claim().jobs == []
    assert snapshot(wire, lane=False) == before
    assert len(wire.claim(1).jobs) == (job is not None)


def test_a_claim_of_one_simple_job_gives_none_while_another_is_due(wire: Wire) -> None:
    wire.enqueue(Job(b"simple", 3), Job(b"due", 1, DELAY, 1))
    wait_until(lambda: wire.dry_run().bodies == [b"due", b"simple"], "the other to be due")
    assert wire.claim_one().jobs == []
    assert wire.claim(1).bodies == [b"due"]
    assert wire.claim_one().bodies == [b"simple"]


def names(held: Iterable[list[End]]) -> set[bytes]:
    """Of leases of one job without an entry."""
    return {bytes([end.priority]) + end.id + end.token for part in held for end in part}


def test_leases_of_one_job_end_with_it_whatever_ends_it(wire: Wire) -> None:
    wire.enqueue(*[Job(b"x", 1 + i % 3) for i in range(24)])
    held: dict[int, list[End]] = {1: [], 2: [], 3: []}
    for _ in range(24):
        (end,) = ends(wire.claim_one())
        held[end.priority].append(end)
    for priority in (1, 2, 3):
        assert set(expiries(wire)) == names(held.values())
        first, second, *more, last = held[priority]
        assert wire.ack(first, second, first) == [2]
        assert wire.ack(more[0]._replace(failed=True), more[1], tombstones=True) == []
        assert wire.release(more[2]) == []
        assert wire.delete_jobs(b"", priority, 0, ids=[more[3].id]) == (1, True)
        assert wire.checkpoint(more[4], move=(NOW, 0)) == []
        held[priority] = [last]
    assert set(expiries(wire)) == names(held.values())
    (kept,), (other,) = held[2], held[3]
    assert wire.renew(kept._replace(token=other.token), kept._replace(priority=3), kept) == [0, 1]


def test_a_lease_of_one_job_that_lost_its_expiry_gets_one_again(wire: Wire) -> None:
    wire.enqueue_bodies(b"a")
    (end,) = ends(wire.claim_one())
    wire.expire(None)
    assert wire.client.delete(wire.key("leases")) == 1
    looked = wire.expire(sweep=b"1:0")
    assert (looked.leases, looked.retried) == (0, 0)
    assert set(expiries(wire)) == names([[end]])
    assert wire.ack(end) == []


def test_a_claim_of_one_simple_job_gives_none_of_a_paused_queue_and_none_without_a_record(wire: Wire) -> None:
    ids = wire.enqueue_bodies(b"a", b"b")
    wire.client.hdel(wire.key("jobs"), ids[0])
    before = snapshot(wire, lane=False)
    assert wire.claim_one().jobs == []
    assert snapshot(wire, lane=False) == before
    assert wire.claim().bodies == [b"b"]
    wire.enqueue_bodies(b"c")
    wire.configure(settings(flags=1))
    assert wire.claim_one().jobs == []


def test_a_repeated_claim_of_one_gives_nothing_of_what_was_taken_away(wire: Wire) -> None:
    (id_,) = wire.enqueue_bodies(b"a")
    ways: list[Callable[[], Claimed]] = [wire.claim_one, lambda: wire.claim(1)]
    for claim in ways:
        assert claim().bodies == wire.replayed_claim().bodies == [b"a"]
        running = cast("dict[bytes, bytes]", wire.client.hgetall(wire.key("running:1")))
        wire.client.hset(wire.key("running:1"), id_, b"another!" + running[id_][8:])
        assert wire.replayed_claim().jobs == []
        wire.client.hset(wire.key("running:1"), id_, running[id_])
        assert wire.release(*ends(wire.replayed_claim())) == []


def test_claims_of_one_take_the_most_urgent_job_of_whatever_kind(wire: Wire) -> None:
    past_ms = created_ms(wire.h) - 1000
    ids = wire.enqueue(
        Job(b"late", 3),
        Job(b"early", 2, ABSOLUTE, past_ms),
        Job(b"simple", 2),
        Job(b"gone", 1),
        Job(b"status", 2, status=b"s"),
    )
    wire.client.hdel(wire.key("jobs"), ids[3])
    bodies = []
    while (claimed := wire.claim(1)).jobs:
        bodies += claimed.bodies
        assert wire.succeed(claimed) == []
    assert bodies == [b"early", b"simple", b"status", b"late"]
    assert wire.read("config")[2] == b"1"
    assert is_clean(snapshot(wire))


def test_one_job_is_acked_by_its_holder_only_and_once(wire: Wire) -> None:
    wire.enqueue_bodies(b"a", b"b")
    (mine,), (other,) = ends(wire.claim(1)), ends(wire.claim(1))
    before = snapshot(wire, lane=False)
    for end in (mine._replace(token=other.token), mine._replace(priority=2), mine._replace(priority=100)):
        assert wire.ack(end) == [0]
    assert snapshot(wire, lane=False) == before
    assert (wire.ack(mine), wire.again(), wire.ack(mine)) == ([], [b""], [0])
    assert wire.ack(other) == []
    assert is_clean(snapshot(wire))


def test_calls_with_the_common_keys_do_what_calls_with_all_do(wire: Wire) -> None:
    for n in (1, 2):
        job = Job(b"x", 2)
        common(wire, "enqueue", pack_specs([job] * n), b"", *[record(job)] * n, priorities=2)
        claimed = wire.claim(n)
        assert claimed.bodies == [b"x"] * n
        groups = b"\2\0" + n.to_bytes(2, "big") + pack_runs([claimed.token] * n)
        common(wire, "ack", b"", groups, *(job.id for job in claimed.jobs), priorities=2)
        assert is_clean(snapshot(wire))


def test_calls_that_need_more_than_the_common_keys_change_nothing(wire: Wire) -> None:
    wire.enqueue_bodies(b"a", b"b")
    claimed = wire.claim(2, claim=CLAIM)
    runs, ids = pack_runs([claimed.token]), [job.id for job in claimed.jobs]
    succeeds, fails = b"\1\0\0\1" + runs, b"\1\1\0\1" + runs + bytes(6)
    before = snapshot(wire)
    for job in (Job(b"x", 1, ABSOLUTE, 1), Job(b"x", status=b"s")):
        with refused("BAD_REQUEST"):
            common(wire, "enqueue", pack_specs([job]), pack_statuses([job.status]), record(job))
    with refused("BAD_REQUEST"):
        common(wire, "ack", b"", succeeds + fails, *ids)
    with refused("BAD_REQUEST"):
        common(wire, "ack", b"\1\0\0", succeeds, ids[0])
    assert snapshot(wire) == before
