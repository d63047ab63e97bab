"""Unconfirmed leases: of claims whose worker may not know of them yet. Nine ends in a row cost a job nothing.

Promises: shown on real servers under a clock that the test moves. Risks: needs libfaketime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.memory import EVERY_KIND
from tests.support.servers import Server
from tests.support.wire import Timed, Wire, connect, expiries, known, lease_fields, snapshot
from tests.support.wire_format import ABSOLUTE, FAILED, PENDING, Claimed, End, Job, created_ms, ends, settings

FreshServer = Callable[..., Server]
LEASE_MS, UNCONFIRMED_MS = 30_000, 5_000
MOST = 10
CHANNEL = b"pl:wake:" + bytes(16)
SOURCE = b"python:host:5:ab"

#: A simple job is claimed on the short way; a decorated one, and one of two, on the general way.
JOBS = [Job(b"simple", allowed=1), Job(b"early", 2, ABSOLUTE, 1, allowed=1), Job(b"told", allowed=1, status=b"s")]


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        made = Wire(client)
        made.create()
        yield made


@pytest.fixture(params=EVERY_KIND)
def timed(request: pytest.FixtureRequest, fresh_server: FreshServer) -> Iterator[Timed]:
    server = fresh_server(request.param, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create(settings(crash_limit=1))
        yield Timed(wire, server)


def claim(wire: Wire) -> Claimed:
    return wire.claim(1, claim=b"host:0:17:" + SOURCE + b":1", channel=CHANNEL, unconfirmed_ms=UNCONFIRMED_MS)


def let_end(timed: Timed) -> tuple[int, int, int]:
    """The unconfirmed lease ends: leases, retried, failed."""
    timed.later(UNCONFIRMED_MS / 1000)
    expiry = timed.wire.expire()
    return expiry.leases, expiry.retried, expiry.failed


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.body.decode())
def test_its_end_costs_nothing_and_the_tenth_in_a_row_is_a_crash(timed: Timed, job: Job) -> None:
    wire = timed.wire
    (id_,) = wire.enqueue(job)
    before = known(wire, id_, job.priority)
    for _ in range(MOST - 1):
        assert claim(wire).bodies == [job.body]
        assert let_end(timed) == (1, 0, 0)
        assert known(wire, id_, job.priority) == before
        assert lease_fields(wire) == (0, 0)
        assert wire.audit([id_], priority=job.priority)[0][0] % 2 == 1
    claim(wire)
    assert let_end(timed) == (1, 0, 1)
    info = known(wire, id_, job.priority)
    assert (info.state, info.crashes) == (int(FAILED), 1)
    assert wire.retry_failed(job.priority) == 1
    for _ in range(MOST - 1):  # it counts anew
        claim(wire)
        assert let_end(timed) == (1, 0, 0)


def test_a_lease_that_was_not_marked_or_was_renewed_costs_a_crash(timed: Timed) -> None:
    wire = timed.wire
    ids = [wire.enqueue(Job(b"plain"))[0]]
    wire.claim(1)
    renewed = []
    for body in (b"renewed", b"checkpointed"):
        ids += wire.enqueue(Job(body))
        renewed += ends(claim(wire))
    assert wire.renew(renewed[0]) == []
    assert wire.checkpoint(renewed[1]._replace(status=b"s")) == []
    assert let_end(timed) == (0, 0, 0)
    assert all(score % 1 == 0 for score in expiries(wire).values())
    timed.later((LEASE_MS - UNCONFIRMED_MS) / 1000)
    assert wire.expire().failed == len(ids)
    assert [known(wire, id_).crashes for id_ in ids] == [1] * len(ids)


def test_a_word_of_the_holder_ends_the_row(timed: Timed) -> None:
    """It released the job, or ran it: the count begins again."""
    wire = timed.wire
    (id_,) = wire.enqueue(Job(b"a", allowed=2))
    words: list[Callable[[End], list[int]]] = [
        wire.release,
        lambda end: wire.ack(end._replace(failed=True)),
    ]
    for word in words:
        for _ in range(MOST - 1):
            claim(wire)
            assert let_end(timed) == (1, 0, 0)
        assert word(*ends(claim(wire))) == []
    for _ in range(MOST - 1):
        claim(wire)
        assert let_end(timed) == (1, 0, 0)
    assert (known(wire, id_).crashes, known(wire, id_).remaining) == (0, 1)


def test_a_waiter_is_notified_of_the_job(timed: Timed) -> None:
    wire = timed.wire
    wire.enqueue_bodies(b"a")
    claim(wire)
    assert claim(wire.other()).jobs == []
    assert wire.client.zcard(wire.key("waiters")) == 1
    let_end(timed)
    assert wire.client.zcard(wire.key("waiters")) == 0


def test_an_unconfirmed_lease_is_no_longer_than_the_queues(wire: Wire) -> None:
    wire.configure(settings(lease_ms=300))
    wire.enqueue_bodies(b"a")
    (job,) = claim(wire).jobs
    ((_, score),) = expiries(wire).items()
    assert score - created_ms(job.id) < UNCONFIRMED_MS
    assert score % 1 == 0.5


@pytest.mark.parametrize(
    ("started", "crashes"), [("", 0), ("this", 1), ("another", 0)], ids=["unknown", "started", "not started"]
)
def test_a_dead_process_pays_for_what_it_started(wire: Wire, started: str, crashes: int) -> None:
    (id_,) = wire.enqueue(Job(b"a", allowed=9))
    claim(wire)
    ids = {"": b"", "this": id_, "another": bytes(8)}[started]
    assert wire.end_leases(SOURCE, b"was killed", started=ids)[:4] == (1, crashes, 0, 1 - crashes)
    assert known(wire, id_).crashes == crashes


def test_a_clock_that_jumps_back_leaves_the_mark(timed: Timed) -> None:
    wire = timed.wire
    (id_,) = wire.enqueue(Job(b"a", allowed=1))
    claim(wire)
    wire.expire()
    timed.later(-3600)
    assert wire.expire(jumped=True).rests == 2
    timed.later(LEASE_MS / 1000 + 1)
    assert wire.expire().leases == 1
    assert (known(wire, id_).state, known(wire, id_).crashes) == (int(PENDING), 0)


def test_pages_of_a_scan_name_each_job_once(timed: Timed) -> None:
    """Scores with a fraction of a ms, between others of the same ms."""
    wire = timed.wire
    at_ms = created_ms(wire.enqueue_bodies(b"a")[0])
    wire.enqueue(*[Job(b"b", kind=ABSOLUTE, ms=at_ms, allowed=1)] * 6)
    for _ in range(3):
        claim(wire)
        let_end(timed)
    seen, cursor = [], b""
    while True:
        infos, cursor = wire.scan(PENDING, cursor, limit=1)
        seen += [info.id for info in infos]
        if not cursor:
            break
    assert len(seen) == len(set(seen)) == 7


def test_nothing_is_left_of_a_job_that_ends(wire: Wire) -> None:
    wire.enqueue_bodies(b"a")
    assert wire.succeed(claim(wire)) == []
    assert set(snapshot(wire)) == {"meta"}
