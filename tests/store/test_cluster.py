"""Every verb in cluster mode, and the keys that scripts touch.

Promises: in a cluster, of one node and of three, no verb is refused for its keys; over the calls here every key that a
header declares is touched, and no other. A client works on the nodes of its shards.
Risks: clients do not follow MOVED. After slots move, the shards must be configured again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from pinlater import Client, CountsByState, NewJob, QueueConfig
from pinlater._core import parse_descriptor
from pinlater.model.errors import ServerReplyError
from pinlater.store.keys import queue_key, registry_key, remnant_keys, script_keys
from pinlater.store.scripts import load_scripts
from tests.lua.test_scripts import BATCH, REQUESTS, Scene, make_scene
from tests.support.audits import audit_queue
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import CLUSTER_SLOTS, KINDS, Kind, Server, wait_until
from tests.support.wire import Wire, connect, fail_all
from tests.support.wire_format import DELAY, FAILED, NO_TOKEN, NOW, PENDING, RUNNING, SUCCEEDED, Job, ends, settings

__all__ = ["kind", "make"]  # fixtures

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
FreshServer = Callable[..., Server]
MARKER = "the end of what is watched"


def soon_expired(scene: Scene) -> None:
    """Leases of 1 ms, for a job with an attempt left and one without."""
    scene.wire.configure(settings(lease_ms=1))
    scene.wire.enqueue(Job(b"a", allowed=1), Job(b"b"))
    scene.wire.claim()
    scene.wire.claim(channel=b"me")
    wait_until(lambda: scene.wire.expire().leases, "a lease to expire")


def crashed(scene: Scene) -> None:
    """Jobs at the crash limit, jobs that reached it, and the move of one to the quarantine."""
    scene.wire.configure(settings(lease_ms=60, crash_limit=2, quarantine=b"other"))
    for end in (lambda: scene.wire.expire().leases, lambda: scene.wire.end_leases(b"worker")[0]):
        for _ in range(2):
            scene.wire.enqueue(Job(b"a"), Job(b"b"))
            for _ in range(3):
                wait_until(lambda: scene.wire.claim(3).bodies, "due jobs")
                wait_until(end, "ended leases")
    scene.wire.read("quarantined", 0)
    for what in (1, 3, 2):
        scene.wire.leave_quarantine(1, scene.claimed.jobs[0].id, what, b"reserve1", b"other")


def soon_due(scene: Scene) -> None:
    scene.wire.enqueue(Job(b"due", 1, DELAY, 1))
    wait_until(lambda: b"due" in scene.wire.claim().bodies, "a scheduled job to become due")


def collected(scene: Scene) -> None:
    scene.wire.configure(settings(keep=1, succeeded_s=0, failed_s=0))
    scene.wire.collect()


def single_id(scene: Scene) -> None:
    scene.wire.client.delete(scene.wire.key("jobs"))
    scene.wire.claim()


def kept_and_over(scene: Scene) -> None:
    """Results: one that is read, one that has expired."""
    wire = scene.wire
    assert wire.store_results((scene.end(0), b"\1kept")) == wire.store_results((scene.end(1), b"\1over"), ms=0) == []
    assert [answer[:1] for answer in wire.outcomes([scene.end(0).id, scene.failed[0]], 1)] == [b"\1", b"\2"]
    wire.audit([scene.end(0).id])
    wire.collect()


def deleted(scene: Scene) -> bytes:
    (remnant,) = scene.wire.write("delete_queue", b"")
    assert scene.wire.forget(remnant) == 0
    return bytes(remnant)


def kept(scene: Scene) -> None:
    """A deletion whose remnant goes to each level of the registry."""
    wire, remnant = scene.wire, deleted(scene)
    for key in remnant_keys("q", "s"):
        wire.keep(remnant)
        full = {number.to_bytes(8, "big"): b"" for number in range(500)}
        wire.client.delete(key)
        wire.client.hset(key, mapping=full)  # type: ignore[arg-type]


def limited(scene: Scene) -> None:
    """A place that a removed job leaves, a pause, and a look at the limits."""
    wire = scene.wire
    wire.configure(settings(crash_limit=0, max_running=9, home=b"s"))
    wire.delete_jobs(RUNNING, limit=9)
    wire.write("pause", 60_000, b"me")
    wire.claim(1, channel=b"me")
    wire.write("pause", 0, b"")
    wire.read("limits")


def archived(scene: Scene) -> None:
    """Jobs of both lines that leave and come back; one that is removed; one that is there twice."""
    wire, (due, late) = scene.wire, (b"D" * 16, b"L" * 16)
    wire.enqueue(Job(b"ready", 2, status=b"with extras"), Job(b"late", 2, DELAY, 60_000))
    for _ in range(2):
        wire.withdraw(due, priority=2)
        wire.withdraw(late, priority=2, line="scheduled")
        jobs = wire.batch_jobs(due) + wire.batch_jobs(late)
        wire.abort(due)
        wire.abort(late)
    for batch, line in ((due, "ready"), (late, "scheduled")):
        wire.withdraw(batch, priority=2, line=line)
        wire.finalize(batch)
    wire.claim()
    wire.claim(channel=b"me")
    wire.restore(2, *jobs)
    wire.settled([due], [late], [2])
    wire.held(jobs[0].id)
    wire.moves()
    wire.close(2)
    wire.lookup([b"x" * 8], [3])
    wire.scan(PENDING, priority=3)
    wire.audit([wire.batch_jobs(BATCH)[0].id], priority=3)
    wire.counts()
    wire.read("measure", b"reader 1", 1_000)
    wire.delete_jobs(PENDING, 3, limit=9)


# For keys that the requests of test_scripts.py do not touch.
MORE: list[Callable[[Scene], Any]] = [
    soon_expired,
    crashed,
    soon_due,
    collected,
    single_id,
    lambda s: s.wire.claim() and s.wire.replayed_claim(),
    lambda s: s.wire.enqueue(Job(), Job(b"late", 1, DELAY, 60_000)),
    lambda s: s.wire.load(s.reservation, Job(), Job(b"late", 1, DELAY, 60_000)),
    lambda s: s.wire.configure(settings(refuse_above=99)) and s.wire.prepare(1),
    lambda s: s.wire.checkpoint(s.end(0), move=(NOW, 0)) + s.wire.checkpoint(s.end(1), move=(DELAY, 9)),
    lambda s: s.wire.ack(
        s.end(0, token=NO_TOKEN), s.end(2, failed=True), s.end(3, failed=True, delay_ms=9), sources=[b"worker"]
    ),
    lambda s: s.wire.configure(settings()) and s.wire.ack(s.end(0)),
    lambda s: s.wire.release(s.end(0, token=NO_TOKEN), source=b"worker") + s.wire.release(*ends(s.claimed)),
    lambda s: s.wire.retry_failed(kind=DELAY, ms=60_000),
    lambda s: s.wire.configure(settings(flags=1)) and s.wire.configure(settings()),
    lambda s: [s.wire.delete_jobs(state, limit=9) for state in (PENDING, RUNNING, SUCCEEDED, FAILED)],
    lambda s: [s.wire.scan(state) for state in (PENDING, RUNNING, SUCCEEDED, FAILED)],
    lambda s: s.wire.lookup([s.failed[0], s.end().id]) + s.wire.dry_run().jobs,
    lambda s: s.wire.audit([s.failed[0], s.end().id], [s.claimed.token]),
    kept_and_over,
    lambda s: s.wire.outcomes([s.end(3).id]),
    lambda s: s.wire.read("peek") + s.wire.counts() + s.wire.read("config"),
    lambda s: s.wire.read("beat", b"worker", b"{}", b"0") and s.wire.read("list_workers", b"0"),
    lambda s: s.wire.read("measure", b"reader 1", 1_000),
    lambda s: fail_all(s.wire, 1),
    archived,
    deleted,
    limited,
]


def use_every_verb(client: redis.Redis, has_registry: bool) -> None:
    for request in [*REQUESTS.values(), *MORE, *([kept] if has_registry else [])]:
        client.flushdb()
        request(make_scene(client))


def watched(client: redis.Redis, act: Callable[[], object]) -> Iterator[tuple[bool, list[str]]]:
    """The commands that MONITOR shows while `act` runs: (called by a script?, words)."""
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]
        act()
        client.echo(MARKER)
        while MARKER not in (seen := monitor.next_command())["command"]:
            yield seen["client_type"] == "lua", seen["command"].split(" ")


def keys_of(words: list[str]) -> set[str]:
    """The keys of a command that a script calls."""
    if words[0] in ("TIME", "PUBLISH", "PUBSUB"):
        return set()
    return set(words[1:] if words[0] in ("UNLINK", "EXISTS") else words[1:2])


def name_of(key: str) -> str:
    """`pl:{q/s}:ready:1` -> `ready*`, as headers write it."""
    if key.encode() in (nodes := remnant_keys("q", "s")):
        return load_scripts()["keep_remnant"].keys[nodes.index(key.encode())]
    name = key.partition("}:")[2]
    family, colon, _ = name.partition(":")
    return family + "*" if colon else name


def make_cluster(kind: Kind, fresh_server: FreshServer) -> list[Server]:
    """Three nodes that share the slots."""
    bounds = [CLUSTER_SLOTS * part // 3 for part in range(4)]
    nodes = [fresh_server(kind, cluster=True, slots=range(*pair)) for pair in pairwise(bounds)]
    for node in nodes[1:]:
        nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
    for node in nodes:
        node.wait_cluster()
    return nodes


def owner(nodes: list[Server], key: bytes) -> Server:
    return next(node for node in nodes if key_slot(key) in node.slots)


def shards_on(nodes: list[Server], queue: str) -> dict[str, Server]:
    """A shard on each node, with its registry of queues on the same node."""
    found: dict[Server, str] = {}
    for name in map(str, range(1000)):
        node = owner(nodes, queue_key(queue, name, "meta"))
        if owner(nodes, registry_key(name)) is node:
            found.setdefault(node, name)
    return {found[node]: node for node in nodes}


@EACH_KIND
@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_scripts_touch_the_keys_they_declare_and_no_other(kind: Kind, nodes: int, fresh_server: FreshServer) -> None:
    verbs = {script.sha.decode(): verb for verb, script in load_scripts().items()}
    touched: defaultdict[str, set[str]] = defaultdict(set)
    undeclared: list[tuple[str, str]] = []
    verb, declared = "", set[str]()
    if nodes == 3:
        server = owner(make_cluster(kind, fresh_server), queue_key("q", "s", "meta"))
    else:
        server = fresh_server(kind, cluster=nodes == 1)
    with connect(server) as client:
        for by_script, words in watched(client, lambda: use_every_verb(client, nodes != 3)):
            if by_script:
                undeclared += [(verb, key) for key in keys_of(words) - declared]
                touched[verb] |= {name_of(key) for key in keys_of(words)}
            elif words[0] == "EVALSHA":
                verb, declared = verbs[words[1]], set(words[3 : 3 + int(words[2])])
    assert undeclared == []
    untouched = {verb: set(script.keys) - touched[verb] for verb, script in load_scripts().items()}
    elsewhere = {"keep_remnant"} if nodes == 3 else set()  # its keys are on another node
    assert {verb for verb, keys in untouched.items() if keys} == elsewhere


@EACH_KIND
def test_all_keys_of_a_queue_shard_are_in_one_slot(kind: Kind, fresh_server: FreshServer) -> None:
    with connect(fresh_server(kind, cluster=True)) as client:
        for queue, shard in (("q", "s"), ("Q_" * 127, "a-b_C" * 6)):
            keys = {key for script in load_scripts().values() for key in script_keys(queue, shard, script.keys, 100)}
            registry = {*remnant_keys(queue, shard), registry_key(shard)}
            assert len(registry & keys) == 3
            for group in (keys - registry, registry):
                assert len({client.cluster("keyslot", key.decode()) for key in group}) == 1


@pytest.mark.parametrize("server_kind", KINDS)
def test_a_client_works_on_shards_that_are_nodes_of_a_cluster(
    make: Callable[..., Calls], server_kind: Kind, fresh_server: FreshServer
) -> None:
    nodes = make_cluster(server_kind, fresh_server)
    shards = shards_on(nodes, "q")
    calls = make(shards={name: node.url for name, node in shards.items()})
    assert calls.create_queue("q", QueueConfig(keep_succeeded=100)) is True
    assert calls.queue_names() == ["q"]
    descriptors = calls.enqueue_many("q", [NewJob(b"%d" % number, key=str(number)) for number in range(60)])
    assert {parse_descriptor(descriptor)[1] for descriptor in descriptors} == set(shards)
    claimed = calls.dequeue("q", 60)
    assert sorted(job.body for job in claimed) == sorted(b"%d" % number for number in range(60))
    assert calls.renew(claimed) == calls.ack(succeeded=claimed[:20], failed=claimed[20:40]) == []
    assert calls.release(claimed[40:]) == []
    assert len(calls.dequeue("q", 1, wait=5)) == 1
    assert calls.count("q") == CountsByState(pending=39, in_progress=1, succeeded=20)
    assert {info.descriptor for info in calls.scan("q", "succeeded")} == {job.descriptor for job in claimed[:20]}
    assert set(calls.lookup(descriptors)) == set(descriptors)
    with Client(shards={name: node.url for name, node in shards.items()}) as client:
        report = audit_queue(client, "q")
    assert (report.findings, report.jobs.pending) == ([], 39)
    for name, node in shards.items():  # each node has only the keys of its own shard
        assert all(f"{name}}}:".encode() in key for key in node.call("KEYS", "pl:*"))
    assert calls.delete_queue("q") is True
    assert calls.queue_names() == []


@pytest.mark.parametrize("server_kind", KINDS)
def test_an_error_names_the_node_that_lacks_the_slot(
    make: Callable[..., Calls], server_kind: Kind, fresh_server: FreshServer
) -> None:
    nodes = make_cluster(server_kind, fresh_server)
    name, node = next(iter(shards_on(nodes, "q").items()))
    with pytest.raises(ServerReplyError, match=rf"MOVED \d+ 127.0.0.1:{node.port}"):
        make(shards={name: nodes[1].url}).create_queue("q")


@EACH_KIND
def test_a_thousand_jobs_pass_through_a_cluster(kind: Kind, fresh_server: FreshServer) -> None:
    with connect(fresh_server(kind, cluster=True)) as client:
        for queue in ("one", "two", "three"):  # in different slots
            wire = Wire(client, queue)
            wire.create()
            wire.enqueue(*(Job(b"%d" % i, 1 + i % 3) for i in range(1000)))
            claimed = wire.claim()
            assert len(claimed.jobs) == 1000
            assert wire.ack(*ends(claimed)) == []
