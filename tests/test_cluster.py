"""Every verb in cluster mode, and the keys that scripts really touch.

Promises: in a cluster no verb is refused for its keys; over the calls here every key that a header declares is
touched, and no other.
Risks: the cluster is one server that holds all slots: MOVED and resharding are not shown here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from pinlater.keys import script_keys
from pinlater.scripts import load_scripts
from tests.servers import KINDS, Kind, Server, wait_until
from tests.test_scripts import REQUESTS, Scene, make_scene
from tests.wire import Wire, connect, fail_all
from tests.wire_format import DELAY, FAILED, NO_TOKEN, NOW, PENDING, RUNNING, SUCCEEDED, Job, ends, settings

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
FreshServer = Callable[..., Server]
MARKER = "the end of what is watched"


def soon_expired(scene: Scene) -> None:
    """Leases of 1 ms, of jobs with an attempt left and without."""
    scene.wire.configure(settings(lease_ms=1))
    scene.wire.enqueue(Job(b"a", allowed=1), Job(b"b"))
    scene.wire.claim()
    scene.wire.claim(channel=b"me")
    wait_until(lambda: scene.wire.expire().leases, "a lease to expire")


def soon_due(scene: Scene) -> None:
    scene.wire.enqueue(Job(b"due", 1, DELAY, 1))
    wait_until(lambda: b"due" in scene.wire.claim().bodies, "a scheduled job to become due")


def collected(scene: Scene) -> None:
    scene.wire.configure(settings(keep=1, succeeded_s=0, failed_s=0))
    scene.wire.collect()


def bare_id(scene: Scene) -> None:
    scene.wire.client.delete(scene.wire.key("j"))
    scene.wire.claim()


# What the plain requests of test_scripts.py leave untouched.
MORE: list[Callable[[Scene], Any]] = [
    soon_expired,
    soon_due,
    collected,
    bare_id,
    lambda s: s.wire.claim() and s.wire.replayed_claim(),
    lambda s: s.wire.enqueue(Job(), Job(b"late", 1, DELAY, 60_000)),
    lambda s: s.wire.load(s.ticket, Job(), Job(b"late", 1, DELAY, 60_000)),
    lambda s: s.wire.checkpoint(s.end(0), move=(NOW, 0)) + s.wire.checkpoint(s.end(1), move=(DELAY, 9)),
    lambda s: s.wire.ack(
        s.end(0, token=NO_TOKEN), s.end(2, failed=True), s.end(3, failed=True, delay_ms=9), source=b"worker"
    ),
    lambda s: s.wire.configure(settings()) and s.wire.ack(s.end(0)),
    lambda s: s.wire.release(s.end(0, token=NO_TOKEN), source=b"worker") + s.wire.release(*ends(s.claimed)),
    lambda s: s.wire.retry_failed(kind=DELAY, ms=60_000),
    lambda s: s.wire.configure(settings(flags=1)) and s.wire.configure(settings()),
    lambda s: [s.wire.delete_jobs(state, limit=9) for state in (PENDING, RUNNING, SUCCEEDED, FAILED)],
    lambda s: [s.wire.scan(state) for state in (PENDING, RUNNING, SUCCEEDED, FAILED)],
    lambda s: s.wire.lookup([s.failed[0], s.end().id]) + s.wire.dry_run().jobs,
    lambda s: s.wire.audit([s.failed[0], s.end().id], [s.claimed.token]),
    lambda s: s.wire.read("peek") + s.wire.counts() + s.wire.read("config"),
    lambda s: fail_all(s.wire, 1),
]


def use_every_verb(client: redis.Redis) -> None:
    for request in [*REQUESTS.values(), *MORE]:
        client.flushdb()
        request(make_scene(client))


def watched(client: redis.Redis, act: Callable[[], object]) -> Iterator[tuple[bool, list[str]]]:
    """What MONITOR shows while `act` runs: (called by a script?, words)."""
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]
        act()
        client.echo(MARKER)
        while MARKER not in (seen := monitor.next_command())["command"]:
            yield seen["client_type"] == "lua", seen["command"].split(" ")


def keys_of(words: list[str]) -> set[str]:
    """The keys of a command that a script calls."""
    if words[0] in ("TIME", "PUBLISH"):
        return set()
    return set(words[1:] if words[0] == "UNLINK" else words[1:2])


def name_of(key: str) -> str:
    """`pl:{q/s}:p1` -> `p*`, as headers write it."""
    name = key.rpartition(":")[2]
    return name.rstrip("0123456789") + "*" if name[-1].isdigit() else name


@EACH_KIND
@pytest.mark.parametrize("cluster", [False, True])
def test_scripts_touch_the_keys_they_declare_and_no_other(kind: Kind, cluster: bool, fresh_server: FreshServer) -> None:
    verbs = {script.sha.decode(): verb for verb, script in load_scripts().items()}
    touched: defaultdict[str, set[str]] = defaultdict(set)
    undeclared: list[tuple[str, str]] = []
    verb, declared = "", set[str]()
    server = fresh_server(kind, cluster=cluster)
    with connect(server) as client:
        for by_script, words in watched(client, lambda: use_every_verb(client)):
            if by_script:
                undeclared += [(verb, key) for key in keys_of(words) - declared]
                touched[verb] |= {name_of(key) for key in keys_of(words)}
            elif words[0] == "EVALSHA":
                verb, declared = verbs[words[1]], set(words[3 : 3 + int(words[2])])
    assert undeclared == []
    untouched = {verb: set(script.keys) - touched[verb] for verb, script in load_scripts().items()}
    assert {verb: keys for verb, keys in untouched.items() if keys} == {}


@EACH_KIND
def test_all_keys_of_a_queue_and_shard_are_in_one_slot(kind: Kind, fresh_server: FreshServer) -> None:
    with connect(fresh_server(kind, cluster=True)) as client:
        for queue, shard in (("q", "s"), ("Q_" * 127, "a-b_C" * 6)):
            keys = {key for script in load_scripts().values() for key in script_keys(queue, shard, script.keys, 100)}
            assert len({client.cluster("keyslot", key.decode()) for key in keys}) == 1


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
