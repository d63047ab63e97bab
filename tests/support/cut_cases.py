"""A case for every script that a client's methods send: set-up, call, right answer, and state after it.

Promises: `right` is false for a call that was carried out twice, and for one that was not carried out.
Risks: the counts hold only for a queue that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from pinlater import Ack, Checkpoint, Client, CountsByState, NewJob, QueueConfig
from pinlater.model.errors import QueueNotFound
from pinlater.operations.claim import SIMPLE_RUN
from pinlater.operations.enqueue import pack_jobs
from pinlater.store import requests
from pinlater.store.effects import complete
from pinlater.store.keys import remnant_keys
from pinlater.store.requests import write
from pinlater.store.scripts import load_scripts
from tests.support.both_clients import CALLS_KINDS, Calls, make_calls
from tests.support.cut_proxy import CutProxy, Seen
from tests.support.resp import Command
from tests.support.servers import Server

Make: TypeAlias = Callable[..., Calls]

NOTHING = CountsByState()
PENDING_2 = CountsByState(pending=2)
RUNNING_2 = CountsByState(in_progress=2)
BODIES = [b"first", b"second"]


@dataclass(frozen=True)
class Case:
    """right(direct client, queue, answer, result of set_up). after: None if the queue was deleted."""

    name: str
    verb: str
    call: Callable[[Calls, str, Any], Any]
    right: Callable[[Client, str, Any, Any], bool]
    after: CountsByState | None
    set_up: Callable[[Client, str], Any] = lambda direct, queue: direct.create_queue(queue)

    def holds(self, direct: Client, queue: str, answer: Any, needed: Any) -> bool:
        """Whether the answer is right and the queue is as one call leaves it."""
        return self.left(direct, queue) == self.after and self.right(direct, queue, answer, needed)

    def left(self, direct: Client, queue: str) -> CountsByState | None:
        try:
            return direct.count(queue)
        except QueueNotFound:
            return None


def _nothing(direct: Client, queue: str) -> None:
    """For create."""


def _pending(direct: Client, queue: str) -> list[str]:
    direct.create_queue(queue)
    return direct.enqueue_many(queue, BODIES)


def _running(direct: Client, queue: str) -> Any:
    _pending(direct, queue)
    return direct.dequeue(queue, 2)


def _dequeue_simple(calls: Calls, queue: str, _: Any) -> Any:
    """A dequeue of a client whose last claims each got one simple job."""
    calls.client.session.queue_shard(queue, "1").simple_claims = SIMPLE_RUN
    return calls.dequeue(queue)


def _failed(direct: Client, queue: str) -> list[str]:
    direct.create_queue(queue)
    descriptors = direct.enqueue_many(queue, [NewJob(body, attempts=1) for body in BODIES])
    direct.ack(failed=direct.dequeue(queue, 2))
    return descriptors


def _reservation(direct: Client, queue: str) -> bytes:
    direct.create_queue(queue)
    reservation: bytes = _prepare(direct, queue)
    return reservation


def _prepare(calls: Any, queue: str) -> Any:
    client = calls if isinstance(calls, Client) else calls.client
    queue_shard = client.session.queue_shard(queue, "1")
    return calls.run(lambda end: complete(write(queue_shard, "prepare", [2], end), lambda reply: reply[2]))


def _load(calls: Calls, queue: str, reservation: bytes) -> Any:
    queue_shard = calls.client.session.queue_shard(queue, "1")
    spec, statuses, records = pack_jobs(BODIES, QueueConfig())
    return calls.run(
        lambda end: complete(
            write(queue_shard, "load", [reservation, spec, statuses, *records], end), lambda reply: reply[0]
        )
    )


def _found(direct: Client, queue: str, answer: Any, _: Any) -> bool:
    """The answer is the descriptors of all pending jobs, in order."""
    infos = direct.lookup(answer, with_body=True)
    return list(infos) == answer and [info.body for info in infos.values()] == BODIES[: len(answer)]


def _statuses(direct: Client, jobs: Any) -> set[str]:
    return {info.status for info in direct.lookup([job.descriptor for job in jobs]).values()}


def _remaining(direct: Client, jobs: Any) -> set[int]:
    return {info.attempts_remaining for info in direct.lookup([job.descriptor for job in jobs]).values()}


WRITES = [
    Case(
        "create", "create", lambda c, q, _: c.create_queue(q), lambda d, q, answer, _: answer is True, NOTHING, _nothing
    ),
    Case(
        "configure",
        "configure",
        lambda c, q, _: c.configure_queue(q, lease_ms=5000),
        lambda d, q, answer, _: answer == d.queue_config(q) == QueueConfig(lease_ms=5000),
        NOTHING,
    ),
    Case(
        "enqueue",
        "enqueue",
        lambda c, q, _: c.enqueue(q, BODIES[0]),
        lambda d, q, descriptor, _: _found(d, q, [descriptor], None),
        CountsByState(pending=1),
    ),
    Case("enqueue_many", "enqueue", lambda c, q, _: c.enqueue_many(q, BODIES), _found, PENDING_2),
    Case(
        "claim",
        "claim",
        lambda c, q, _: c.dequeue(q, 2),
        lambda d, q, jobs, _: [job.body for job in jobs] == BODIES and d.renew(jobs) == [],
        RUNNING_2,
        _pending,
    ),
    Case(
        "claim of one",
        "claim",
        _dequeue_simple,
        lambda d, q, jobs, _: [job.body for job in jobs] == BODIES[:1] and d.renew(jobs) == [],
        CountsByState(pending=1, in_progress=1),
        _pending,
    ),
    Case(
        "ack succeeded",
        "ack",
        lambda c, q, jobs: c.ack(succeeded=jobs),
        lambda d, q, no, _: no == [],
        NOTHING,
        _running,
    ),
    Case(
        "ack failed",
        "ack",
        lambda c, q, jobs: c.ack(failed=[Ack(job, "s") for job in jobs]),
        lambda d, q, refused, jobs: refused == [] and _statuses(d, jobs) == {"s"} and _remaining(d, jobs) == {1},
        PENDING_2,
        _running,
    ),
    Case(
        "release",
        "release",
        lambda c, q, jobs: c.release(jobs),
        lambda d, q, refused, jobs: refused == [] and _remaining(d, jobs) == {2},
        PENDING_2,
        _running,
    ),
    Case("renew", "renew", lambda c, q, jobs: c.renew(jobs), lambda d, q, no, _: no == [], RUNNING_2, _running),
    Case(
        "renew own",
        "renew",
        lambda c, q, jobs: c.renew(jobs, own=True),
        lambda d, q, no, _: no == [],
        RUNNING_2,
        _running,
    ),
    Case(
        "checkpoint",
        "checkpoint",
        lambda c, q, jobs: c.checkpoint(*[Checkpoint(job=job, status="s", attempts=7) for job in jobs]),
        lambda d, q, refused, jobs: refused == [] and _statuses(d, jobs) == {"s"} and _remaining(d, jobs) == {7},
        RUNNING_2,
        _running,
    ),
    Case(
        "retry_failed",
        "retry_failed",
        lambda c, q, _: c.retry_failed(q, priority=1),
        lambda d, q, n, _: n == 2,
        PENDING_2,
        _failed,
    ),
    Case(
        "retry_jobs",
        "retry_failed",
        lambda c, q, named: c.retry_jobs(named),
        lambda d, q, n, _: n == 2,
        PENDING_2,
        _failed,
    ),
    Case(
        "delete_jobs",
        "delete_jobs",
        lambda c, q, _: c.delete_jobs(q, "pending", priority=1),
        lambda d, q, n, _: n == 2,
        NOTHING,
        _pending,
    ),
    Case(
        "delete_named",
        "delete_jobs",
        lambda c, q, named: c.delete_jobs(descriptors=named),
        lambda d, q, n, _: n == 2,
        NOTHING,
        _pending,
    ),
    Case(
        "delete_queue",
        "delete_queue",
        lambda c, q, _: c.delete_queue(q),
        lambda d, q, there, _: there is True,
        None,
        _pending,
    ),
    Case(
        "prepare",
        "prepare",
        lambda c, q, _: _prepare(c, q),
        lambda d, q, reservation, _: len(reservation) == 8,
        NOTHING,
    ),
    Case("load", "load", _load, lambda d, q, sequence, _: len(sequence) == 4, PENDING_2, _reservation),
]

READS = [
    Case(
        "lookup",
        "lookup",
        lambda c, q, named: c.lookup(named, with_body=True),
        lambda d, q, found, named: [info.body for info in found.values()] == BODIES and list(found) == named,
        PENDING_2,
        _pending,
    ),
    Case(
        "count", "count", lambda c, q, _: c.count(q), lambda d, q, counts, _: counts == PENDING_2, PENDING_2, _pending
    ),
    Case(
        "scan",
        "scan",
        lambda c, q, _: c.scan(q, priority=1, with_body=True),
        lambda d, q, infos, _: sorted(info.body for info in infos) == BODIES,
        PENDING_2,
        _pending,
    ),
    Case(
        "peek", "peek", lambda c, q, _: c.peek(q), lambda d, q, due, _: due == {1: 2, 2: 0, 3: 0}, PENDING_2, _pending
    ),
    Case(
        "dry_run",
        "dry_run",
        lambda c, q, _: c.dequeue(q, 2, dry_run=True),
        lambda d, q, jobs, _: [job.body for job in jobs] == BODIES,
        PENDING_2,
        _pending,
    ),
    Case(
        "config", "config", lambda c, q, _: c.queue_config(q), lambda d, q, config, _: config == QueueConfig(), NOTHING
    ),
]

#: Writes that may be carried out more than once.
REPEATED = [
    Case(
        "permit", "permit", lambda c, q, _: c.create_queue(q), lambda d, q, answer, _: answer is True, NOTHING, _nothing
    ),
    Case("keep", "keep_remnant", lambda c, q, _: c.delete_queue(q), lambda d, q, there, _: there is True, None),
    Case("forget", "forget_queue", lambda c, q, _: c.delete_queue(q), lambda d, q, there, _: there is True, None),
]


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[CutProxy]:
    monkeypatch.setattr(requests, "FIRST_PAUSE_S", 0.001)
    for script in load_scripts().values():
        server.call("SCRIPT", "LOAD", script.source)
    with CutProxy(server.port) as made:
        yield made


@pytest.fixture
def direct(server: Server) -> Iterator[Client]:
    """A client that goes past the proxy."""
    with Client(server.url) as made:
        yield made


@pytest.fixture(params=CALLS_KINDS)
def make(request: pytest.FixtureRequest, proxy: CutProxy) -> Iterator[Make]:
    """Clients of each kind in turn, through the proxy."""
    made: list[Calls] = []

    def new(**settings: Any) -> Calls:
        made.append(make_calls(request.param, proxy.url, **settings))
        return made[-1]

    yield new
    proxy.disarm()
    for calls in made:
        calls.close()


def of(case: Case, queue: str) -> Callable[[Command], bool]:
    """Whether a command is the case's script on this queue."""
    script = load_scripts()[case.verb]
    keys, tag = remnant_keys(queue, "1"), b"{%s/" % queue.encode()
    return lambda command: (
        command[:1] == [b"EVALSHA"] and command[1] == script.sha and (tag in command[3] or command[3] in keys)
    )


def sent(proxy: CutProxy, case: Case, queue: str) -> list[Seen]:
    return [seen for seen in proxy.scripts if of(case, queue)(seen.command)]


def begin(case: Case, calls: Calls, direct: Client, queue: str) -> Any:
    """Sets the case up and lets the client learn of the queue, so that its next script is the case's."""
    needed = case.set_up(direct, queue)
    if case.name not in ("create", "config", "permit"):
        calls.count(queue)
    return needed


def whole_reply(case: Case, calls: Calls, direct: Client, proxy: CutProxy) -> int:
    """Bytes of the reply when nothing is cut."""
    needed = begin(case, calls, direct, "uncut")
    before = len(sent(proxy, case, "uncut"))
    assert case.holds(direct, "uncut", case.call(calls, "uncut", needed), needed)
    size = sent(proxy, case, "uncut")[before].reply_size
    assert size is not None
    return size
