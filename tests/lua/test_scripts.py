"""What holds for every script: a repeat is done once, a refused call changes nothing, sizes are bounded.

Promises: shown on real servers over a namespace that has jobs in every state, by comparing the decoded
content of every key.
Risks: the scripts are called raw (tests/support/wire.py); what the clients make of the answers is shown elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from pinlater.store.scripts import load_scripts
from tests.support.servers import Server
from tests.support.wire import Wire, connect, is_clean, refused, snapshot
from tests.support.wire_format import (
    ABSOLUTE,
    FAR_MS,
    NO_TOKEN,
    PENDING,
    SUCCEEDED,
    Claimed,
    End,
    Job,
    Moved,
    ends,
    number,
    pack_checkpoint,
    pack_more,
    record,
    settings,
)

MOST = 1000  # elements a call


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with connect(server) as made:
        yield made


#: Of the archive: one that is withdrawn, and one that a request withdraws.
BATCH, NEXT_BATCH = b"A" * 16, b"B" * 16


@dataclass
class Scene:
    """A queue with jobs in every state, waiters, a reservation and a claim; `claimed` is held by `wire`. One job of
    priority 3 is withdrawn for BATCH; restore 1 is open.
    """

    wire: Wire
    claimed: Claimed
    failed: list[bytes]
    reservation: bytes

    def end(self, position: int = 0, **words: Any) -> End:
        job = self.claimed.jobs[position]
        return End(job.priority, job.id, words.pop("token", self.claimed.token), **words)


def make_scene(client: redis.Redis) -> Scene:
    setup = Wire(client)
    setup.create(settings(keep=5, crash_limit=0, rate=struct.pack(">III", 1000, 1, 100), home=b"s"))
    setup.enqueue(*(Job(b"old%d" % i, allowed=1) for i in range(8)))
    ended = setup.claim(6)
    setup.ack(*(End(1, job.id, ended.token) for job in ended.jobs[:3]))
    setup.ack(*(End(1, job.id, ended.token, failed=True, status=b"why") for job in ended.jobs[3:]))
    setup.enqueue(*(Job(b"new%d" % i, priority=1 + i % 3) for i in range(9)), Job(b"far", 1, ABSOLUTE, FAR_MS))
    setup.enqueue(Job(b"withdrawn", 3))
    reservation = setup.prepare(2)
    wire = setup.other()
    claimed = wire.claim(4)
    client.zadd(setup.key("waiters"), {b"dead": FAR_MS})
    setup.set_head(waiting=True)
    client.hset(setup.key("meta"), "lost", 2)
    client.hset(setup.key("quarantined"), b"\1" + ended.jobs[3].id, b"")
    assert wire.withdraw(BATCH, priority=3, order="latest", limit=1) == (1, 1)
    wire.close(0)
    assert wire.restore(1) == (1, [])
    return Scene(wire, claimed, [job.id for job in ended.jobs[3:]], reservation)


# One request of every writing verb, each with something to do.
REQUESTS: dict[str, Callable[[Scene], Any]] = {
    "abort": lambda s: s.wire.abort(BATCH),
    "ack": lambda s: s.wire.ack(s.end(0), s.end(1, failed=True, delay_ms=5, status=b"no"), tombstones=True),
    "checkpoint": lambda s: s.wire.checkpoint(s.end(status=b"half"), body=b"rest", attempts=7),
    "claim": lambda s: s.wire.claim(5, channel=b"me"),
    "claim_one": lambda s: s.wire.claim_one(),
    "close": lambda s: s.wire.close(1),
    "collect": lambda s: s.wire.collect(),
    "configure": lambda s: s.wire.write("configure", settings(lease_ms=1234), b""),
    "create": lambda s: s.wire.create(),
    "delete_jobs": lambda s: s.wire.delete_jobs(b"", ids=[s.claimed.jobs[0].id, s.failed[0]]),
    "delete_queue": lambda s: s.wire.write("delete_queue", b""),
    "end_leases": lambda s: s.wire.end_leases(b"worker", b"was killed by SIGKILL"),
    "enqueue": lambda s: s.wire.enqueue(Job(b"one", status=b"fresh"), Job(b"two", 2, ABSOLUTE, FAR_MS)),
    "expire": lambda s: s.wire.expire(),
    "finalize": lambda s: s.wire.finalize(BATCH),
    "grant": lambda s: s.wire.write("grant", b"grantee1", 5, 0, 0),
    "leave_quarantine": lambda s: s.wire.leave_quarantine(1, s.failed[0], 2),
    "load": lambda s: s.wire.load(s.reservation, Job(b"a"), Job(b"b", status=b"fresh")),
    "prepare": lambda s: s.wire.prepare(3),
    "release": lambda s: s.wire.release(s.end(0), s.end(1)),
    "renew": lambda s: s.wire.renew(s.claimed.token, own=[s.end(0)]),
    "reset_lost": lambda s: s.wire.write("reset_lost"),
    "restore": lambda s: s.wire.restore(2, Moved(bytes(7) + b"\1", b"5", record(Job()))),
    "retry_failed": lambda s: s.wire.retry_failed(limit=2),
    "store_results": lambda s: s.wire.store_results((s.end(0), b"\1one"), (s.end(1), b"\1two")),
    "pass_on": lambda s: s.wire.write("pass_on", b""),
    "pause": lambda s: s.wire.write("pause", 60_000, b"me"),
    "withdraw": lambda s: s.wire.withdraw(NEXT_BATCH, priority=3),
}
REPEATABLE = pytest.mark.parametrize("verb", REQUESTS)
ANY_VERSION = {"renew", "expire", "collect", "end_leases"}


def test_every_writing_verb_is_under_test() -> None:
    writing = {verb for verb, script in load_scripts().items() if script.on_lane}
    assert writing == set(REQUESTS) - {"claim_one"}  # a claim with its common keys alone


@REPEATABLE
def test_a_repeated_request_has_one_effect_and_the_same_answer(client: redis.Redis, verb: str) -> None:
    scene = make_scene(client)
    before = snapshot(scene.wire, lane=False)
    REQUESTS[verb](scene)
    after, answer = snapshot(scene.wire), scene.wire.answer
    if verb not in ("create", "prepare", "expire", "collect", "renew"):
        assert snapshot(scene.wire, lane=False) != before
    replayed = scene.wire.again()
    if verb == "claim":  # what is left and which attempts go by the present, the jobs do not
        assert [replayed[0][:8], replayed[1:]] == [answer[0][:8], answer[1:]]
    else:
        assert replayed == answer
    assert snapshot(scene.wire) == after


@REPEATABLE
def test_an_older_request_of_a_lane_is_refused_and_changes_nothing(client: redis.Redis, verb: str) -> None:
    scene = make_scene(client)
    REQUESTS[verb](scene)
    after = snapshot(scene.wire)
    scene.wire.sequence -= 1
    with refused("STALE_REQUEST"):
        scene.wire.again()
    assert snapshot(scene.wire) == after


@pytest.mark.parametrize("verb", [verb for verb in REQUESTS if verb not in {*ANY_VERSION, "create"}])
def test_an_old_configuration_is_refused_and_the_same_request_goes_through_after(
    client: redis.Redis, verb: str
) -> None:
    scene = make_scene(client)
    known, scene.wire.version = scene.wire.version, bytes(8)
    before = snapshot(scene.wire)
    with refused("CONFIG_CHANGED"):
        REQUESTS[verb](scene)
    assert snapshot(scene.wire) == before
    scene.wire.version = known
    scene.wire.sequence -= 1
    REQUESTS[verb](scene)
    assert snapshot(scene.wire) != before


@pytest.mark.parametrize("verb", ["expire", "collect"])
def test_a_call_for_any_version_with_keys_of_too_few_priorities_is_refused(client: redis.Redis, verb: str) -> None:
    scene = make_scene(client)
    grown = scene.wire.other()
    grown.configure(settings(priorities=5))
    before = snapshot(scene.wire)
    with refused("CONFIG_CHANGED"):
        REQUESTS[verb](scene)
    assert snapshot(scene.wire) == before


def test_a_renewal_with_keys_of_too_few_priorities_is_refused_only_for_jobs_beyond_them(client: redis.Redis) -> None:
    scene = make_scene(client)
    grown = scene.wire.other()
    grown.configure(settings(priorities=5))
    with refused("CONFIG_CHANGED"):
        scene.wire.renew(scene.end()._replace(priority=4))
    with refused("CONFIG_CHANGED"):
        scene.wire.renew(own=[scene.end()._replace(priority=4)])
    assert scene.wire.renew(scene.end()) == []


@pytest.mark.parametrize("verb", [verb for verb in REQUESTS if verb != "create"])
@pytest.mark.parametrize("deleted", [False, True])
def test_without_its_queue_a_request_is_refused_and_makes_no_key(client: redis.Redis, verb: str, deleted: bool) -> None:
    scene = make_scene(client)
    if deleted:
        scene.wire.other().write("delete_queue", b"")
    else:
        scene.wire.queue = "other"
    before = snapshot(scene.wire)
    with refused("QUEUE_NOT_FOUND"):
        REQUESTS[verb](scene)
    assert snapshot(scene.wire) == before
    assert is_clean(before)


READS = ["count", "peek", "dry_run", "scan", "lookup", "audit", "outcome", "held", "moves", "read_batch"]


@pytest.mark.parametrize("verb", READS)
def test_a_read_changes_nothing_and_needs_its_queue_and_version(client: redis.Redis, verb: str) -> None:
    scene = make_scene(client)
    before = snapshot(scene.wire)
    arguments: dict[str, tuple[Any, ...]] = {
        "dry_run": (5, 1 << 20, b""),
        "scan": (PENDING, 1, 0, b"", 5, 1, 1 << 20),
        "lookup": ("1", 1 << 20, b"\1", scene.failed[0]),
        "audit": (1, scene.failed[0], scene.claimed.token),
        "outcome": (1 << 20, b"\1", scene.failed[0]),
        "held": (1, scene.failed[0]),
        "moves": (b"0",),
        "read_batch": (BATCH, 0, 1 << 20),
    }
    words = arguments.get(verb, ())
    assert scene.wire.read(verb, *words)
    with refused("CONFIG_CHANGED"):
        scene.wire.read(verb, *words, version=bytes(8))
    assert snapshot(scene.wire) == before
    scene.wire.queue = "other"
    with refused("QUEUE_NOT_FOUND"):
        scene.wire.read(verb, *words)
    assert snapshot(scene.wire) == {}


def test_a_holder_with_the_wrong_token_is_refused_and_only_the_lane_moves(client: redis.Redis) -> None:
    scene = make_scene(client)
    before = snapshot(scene.wire, lane=False)
    stranger = (number(scene.claimed.token) + 1).to_bytes(8, "big")
    ends = [scene.end(i, token=stranger) for i in range(3)]
    assert scene.wire.ack(*ends) == [0, 1, 2]
    assert scene.wire.ack(*(end._replace(failed=True) for end in ends)) == [0, 1, 2]
    assert scene.wire.release(*ends) == [0, 1, 2]
    assert scene.wire.checkpoint(ends[0], body=b"stolen", move=(0, 0)) == [0]
    assert scene.wire.renew(stranger, own=ends[:1]) == [0, 1]
    assert scene.wire.store_results(*((end, b"\1stolen") for end in ends)) == [0, 1, 2]
    assert snapshot(scene.wire, lane=False) == before


MALFORMED: dict[str, Callable[[Scene], Any]] = {
    "spec too short": lambda s: s.wire.write("enqueue", bytes(7), b"", record(Job())),
    "no jobs": lambda s: s.wire.enqueue(),
    "priority 0": lambda s: s.wire.enqueue(Job(priority=0)),
    "priority 4": lambda s: s.wire.enqueue(Job(), Job(priority=4)),
    "one priority for all, 9": lambda s: s.wire.write("enqueue", b"\x09", b"", record(Job())),
    "a record cut off": lambda s: s.wire.write("enqueue", b"\1", b"", record(Job()), b"\1\0\1"),
    "a run of no jobs": lambda s: s.wire.write("enqueue", spec_run(1) + spec_run(0, 2), b"", record(Job())),
    "a status of no job": lambda s: s.wire.write("enqueue", b"\1", struct.pack(">HH", 1, 1) + b"x", record(Job())),
    "load, priority 4": lambda s: s.wire.load(s.reservation, Job(), Job(priority=4)),
    "load, other count": lambda s: s.wire.load(s.reservation, Job()),
    "prepare none": lambda s: s.wire.prepare(0),
    "claim none": lambda s: s.wire.claim(0),
    "quotas of two priorities": lambda s: s.wire.claim(5, quotas=(5, 5)),
    "ack of priority 0": lambda s: s.wire.ack(End(0, s.end().id, s.claimed.token)),
    "ack of kind 2": lambda s: s.wire.write("ack", b"", ack_group(s, kind=2), s.end().id),
    "ack, more ids": lambda s: s.wire.write("ack", b"", ack_group(s), s.end().id, s.end(1).id),
    "ack, fewer ids": lambda s: s.wire.write("ack", b"", ack_group(s)),
    "ack, no delays": lambda s: s.wire.write("ack", b"", ack_group(s, kind=1), s.end().id),
    "ack, run too long": lambda s: s.wire.write("ack", b"", ack_group(s, run=2), s.end().id),
    "ack, a run of none": lambda s: s.wire.write("ack", b"", ack_group(s, none=True), s.end().id),
    "ack, statuses cut off": lambda s: s.wire.write("ack", pack_more(b"\0\0\0\5ab"), ack_group(s), s.end().id),
    "ack, half of more": lambda s: s.wire.write("ack", b"\0\0", ack_group(s), s.end().id),
    "ack, sources cut off": lambda s: s.wire.write("ack", b"\0\0\5\4abc", ack_group(s), s.end().id),
    "ack, a source cut off": lambda s: s.wire.write("ack", b"\0\0\5\5abcd", ack_group(s), s.end().id),
    "ack, half a status": lambda s: s.wire.write("ack", pack_more(b"\0\0\0"), ack_group(s), s.end().id),
    "release of priority 0": lambda s: s.wire.release(End(0, s.end().id, s.claimed.token)),
    "release, run too long": lambda s: s.wire.write(
        "release", b"", struct.pack(">BH", s.end().priority, 1) + s.claimed.token + b"\0\2", s.end().id
    ),
    "checkpoint cut off": lambda s: s.wire.write("checkpoint", b"", pack_checkpoint(s.end())[:-1], b""),
    "checkpoint, no body": lambda s: s.wire.write("checkpoint", b"", pack_checkpoint(s.end(), body=True), b""),
    "checkpoint, priority 0": lambda s: s.wire.checkpoint(s.end()._replace(priority=0)),
    "checkpoint, 0 attempts": lambda s: s.wire.checkpoint(s.end(), attempts=0),
    "renew cut off": lambda s: s.wire.renew(s.claimed.token[:-1]),
    "renew, priority 0": lambda s: s.wire.renew(own=[s.end()._replace(priority=0)]),
    "results, priority 0": lambda s: s.wire.store_results((s.end()._replace(priority=0), b"\1x")),
    "results cut off": lambda s: s.wire.write("store_results", b"", bytes(22), b"\1x"),
    "results, more values": lambda s: s.wire.write("store_results", b"", b"", b"\1x"),
    "retry, priority 4": lambda s: s.wire.retry_failed(priority=4),
    "retry, 0 attempts": lambda s: s.wire.retry_failed(attempts=0),
    "delete, priority 0": lambda s: s.wire.delete_jobs(PENDING, priority=0, limit=1),
    "delete, state 4": lambda s: s.wire.delete_jobs(b"4", limit=1),
    "delete, any state, no ids": lambda s: s.wire.delete_jobs(b"", limit=1),
    "fewer priorities": lambda s: s.wire.configure(settings(priorities=2)),
    "settings cut off": lambda s: s.wire.configure(settings()[:-1]),
    "deleted by hand": lambda s: s.wire.configure(settings(flags=128)),
    "create, no priority": lambda s: s.wire.create(settings(priorities=0)),
}


def spec_run(jobs: int, priority: int = 1) -> bytes:
    return struct.pack(">BBHIH", priority, 0, 0, 0, jobs)


def ack_group(scene: Scene, kind: int = 0, run: int = 1, none: bool = False) -> bytes:
    """none: a run of no jobs comes first."""
    head = struct.pack(">BBH", scene.end().priority, kind, 1) + (scene.claimed.token + bytes(2) if none else b"")
    return head + scene.claimed.token + struct.pack(">H", run)


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_request_changes_nothing(client: redis.Redis, what: str) -> None:
    scene = make_scene(client)
    before = snapshot(scene.wire)
    with refused("BAD_REQUEST"):
        MALFORMED[what](scene)
    assert snapshot(scene.wire) == before


def many(count: int) -> list[bytes]:
    """Ids that nobody has."""
    return [i.to_bytes(8, "big") for i in range(1, count + 1)]


def acks(count: int) -> list[End]:
    return [End(1, id_, b"\1" + NO_TOKEN[1:]) for id_ in many(count)]


SIZED: dict[str, Callable[[Wire, int], Any]] = {
    "enqueue": lambda w, n: w.enqueue(*[Job()] * n),
    "prepare": lambda w, n: w.prepare(n),
    "claim": lambda w, n: w.claim(n),
    "ack": lambda w, n: w.ack(*acks(n)),
    "fail": lambda w, n: w.ack(*(end._replace(failed=True, status=b"no") for end in acks(n))),
    "ack without token": lambda w, n: w.ack(*(end._replace(token=NO_TOKEN) for end in acks(n)), sources=[b"worker"]),
    "release": lambda w, n: w.release(*acks(n)),
    "renew": lambda w, n: w.renew(*many(n)),
    "renew own": lambda w, n: w.renew(own=acks(n)),
    "store_results": lambda w, n: w.store_results(*((end, b"") for end in acks(n))),
    "checkpoint": lambda w, n: w.write("checkpoint", b"", b"".join(map(pack_checkpoint, acks(n))), b""),
    "retry_failed, limit": lambda w, n: w.retry_failed(limit=n),
    "retry_failed, ids": lambda w, n: w.retry_failed(limit=0, ids=many(n)),
    "delete_jobs, limit": lambda w, n: w.delete_jobs(PENDING, limit=n),
    "delete_jobs, ids": lambda w, n: w.delete_jobs(b"", ids=many(n)),
    "dry_run": lambda w, n: w.dry_run(n),
    "scan": lambda w, n: w.scan(SUCCEEDED, limit=n),
    "lookup": lambda w, n: w.lookup(many(n)),
    "outcome": lambda w, n: w.outcomes(many(n)),
    "audit": lambda w, n: w.audit(many(n)),
}
AT_LEAST_ONE = {"enqueue", "prepare", "claim", "dry_run", "scan"}


@pytest.mark.parametrize("what", SIZED)
def test_sizes_up_to_1000_are_taken_and_1001_is_refused_by_name(client: redis.Redis, what: str) -> None:
    wire = Wire(client)
    wire.create()
    wire.enqueue(*(Job(priority=1 + i % 3) for i in range(MOST)))
    for size in (0, 1, MOST - 1, MOST):
        if size or what not in AT_LEAST_ONE:
            SIZED[what](wire, size)
    before = snapshot(wire)
    with refused("TOO_MANY"):
        SIZED[what](wire, MOST + 1)
    assert snapshot(wire) == before


def test_a_thousand_jobs_go_through_every_verb_at_once(client: redis.Redis) -> None:
    wire = Wire(client)
    wire.create(settings(keep=MOST))
    ids = wire.enqueue(*[Job(status=b"s", allowed=2)] * MOST)
    assert wire.release(*ends(wire.claim())) == []
    assert wire.ack(*(end._replace(failed=True, status=b"f") for end in ends(wire.claim()))) == []
    claimed = wire.claim()
    assert wire.renew(own=ends(claimed)) == []
    assert [info.remaining if info else None for info in wire.lookup(ids)] == [1] * MOST
    assert wire.ack(*(end._replace(failed=True) for end in ends(claimed))) == []
    assert sum(wire.retry_failed(ids=ids) for _ in range(4)) == MOST
    claimed = wire.claim()
    items = b"".join(pack_checkpoint(end, move=(0, 0), attempts=9) for end in ends(claimed))
    assert wire.write("checkpoint", b"", items, b"") == [struct.pack(">H", MOST)]
    assert wire.succeed(wire.claim()) == []
    assert len(wire.scan(SUCCEEDED)[0]) == MOST
    assert wire.delete_jobs(SUCCEEDED, ids=ids) == (MOST, 0)
    assert is_clean(snapshot(wire))
