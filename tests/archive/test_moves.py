"""Spill and restore on real servers: each job comes back as it was, in its place, whatever store fails meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater import Client, NewJob, QueueConfig, State
from pinlater.model.errors import ArchiveError, ArchiveUnavailable, ServerFull
from tests.archive.rig import DURABLE, EVERYSEC, MAX_TIME_MS, PRIORITIES, QUEUE, Rig
from tests.conftest import FreshServer
from tests.support.mariadb import MariaDB, made_database
from tests.support.servers import Kind, Server

STATUS = "größer 💡🚀"
LONGEST_STATUS = "💡" * 750  # 4 bytes each
EVERY_BYTE = bytes(range(256))
MEBIBYTE = EVERY_BYTE * 4096
KINDS: list[tuple[Kind, dict[str, str]]] = [("valkey", EVERYSEC), ("redis", DURABLE)]

MakeRig = Callable[..., Rig]


@pytest.fixture
def made() -> Iterator[list[Rig]]:
    rigs: list[Rig] = []
    yield rigs
    for rig in rigs:
        rig.__exit__(None, None, None)


@pytest.fixture
def rig_of(made: list[Rig], mysql_url: str) -> MakeRig:
    """`rig_of(*servers)`: with the queue; closed when the test ends."""

    def make(*servers: Server, **settings: Any) -> Rig:
        rig = Rig({str(number): server.url for number, server in enumerate(servers, 1)}, mysql_url)
        made.append(rig)
        rig.create(**settings)
        return rig

    return make


def fill(rig: Rig) -> list[str]:
    """Enqueues a job of every form. Returns their descriptors."""
    client = rig.client
    client.enqueue_many(QUEUE, [NewJob(b"crashes", attempts=5), NewJob(b"fails", attempts=3, status="before")])
    held = client.dequeue(QUEUE, 10)
    assert {job.body for job in held} == {b"crashes", b"fails"}
    client.ack(failed=[job for job in held if job.body == b"fails"])
    rig.crash()
    names = [job.descriptor for job in held]
    for priority in range(1, PRIORITIES + 1):
        names += client.enqueue_many(
            QUEUE,
            [
                NewJob(b"", priority=priority),
                NewJob(EVERY_BYTE, priority=priority, attempts=65_535),
                NewJob(EVERY_BYTE[::-1], priority=priority, attempts=1, status=STATUS),
                NewJob(b"the longest status", priority=priority, status=LONGEST_STATUS),
                NewJob(b"time 0", priority=priority, run_after_ms=0),
                NewJob(b"time 1", priority=priority, run_after_ms=1),
                NewJob(b"the last time", priority=priority, run_after_ms=MAX_TIME_MS),
                NewJob(b"and with a status", priority=priority, run_after_ms=MAX_TIME_MS, status=STATUS),
                NewJob(b"a round time", priority=priority, run_after_ms=2_000_000_000_000),
            ],
        )
    return [*names, client.enqueue(QUEUE, MEBIBYTE, status=STATUS)]


@pytest.mark.parametrize(("kind", "config"), KINDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_each_job_comes_back_as_it_was(
    kind: Kind, config: dict[str, str], shards: int, fresh_server: FreshServer, rig_of: MakeRig
) -> None:
    rig = rig_of(*(fresh_server(kind, config=config) for _ in range(shards)))
    names = fill(rig)
    before, counts = rig.infos(names), rig.client.count(QUEUE)
    assert len(before) == len(names)
    assert {info.crashes for info in before.values()} == {0, 1}

    assert rig.spill() == len(names)
    assert rig.status().archived == len(names)
    with Client(shards=rig.shards) as bare:
        assert bare.lookup(names, with_body=True) == {}
    assert rig.infos(names) == before
    rig.check()

    assert rig.restore() == len(names)
    with Client(shards=rig.shards) as bare:
        assert bare.lookup(names, with_body=True) == before
        assert bare.count(QUEUE) == counts
    rig.check()
    done = rig.drain()
    assert sorted(job.body for job in done) == sorted(
        info.body or b"" for info in before.values() if not info.run_after_ms or info.run_after_ms < 2_000_000_000_000
    )
    assert [job.body for job in done if job.crashed] == [b"crashes"]


@pytest.mark.parametrize("rounds", [1, 3])
def test_jobs_stand_in_their_old_order(rounds: int, fresh_server: FreshServer, rig_of: MakeRig) -> None:
    """A part leaves, a part comes back, and again: the order of claims is that of a queue that was never archived."""
    rig = rig_of(fresh_server(config=DURABLE))
    never = Rig(rig.shards, rig.archive_url, queue="never")
    jobs = [
        NewJob(b"%d" % number, priority=1 + number % PRIORITIES, run_after_ms=[None, 7, 8][number % 7 % 3])
        for number in range(1_200)
    ]
    with never:
        never.create()
        for first in range(0, len(jobs), 300):
            for queue in (QUEUE, never.queue):
                rig.client.enqueue_many(queue, jobs[first : first + 300])

        for _ in range(rounds):
            rig.spill(keep=500)
            assert rig.restore(300) >= 300
            rig.spill(priority=2)
        rig.restore()
        assert rig.status().archived == 0
        rig.check()
        bodies = [job.body for job in never.drain()]
        assert len(bodies) == len(jobs)
        assert [job.body for job in rig.drain()] == bodies


@pytest.mark.parametrize(
    ("kind", "config"),
    [("valkey", {}), ("redis", {}), ("redis", EVERYSEC), ("redis", {"appendonly": "no", "appendfsync": "always"})],
)
def test_a_server_that_may_forget_is_refused(
    kind: Kind, config: dict[str, str], fresh_server: FreshServer, rig_of: MakeRig
) -> None:
    rig = rig_of(fresh_server(kind, config=config))
    names = rig.client.enqueue_many(QUEUE, [b"1", b"2"])
    before = rig.infos(names)
    with pytest.raises(ArchiveError, match=r"`appendonly yes`") as raised:
        rig.spill()
    assert type(raised.value) is ArchiveError
    assert rig.database.transaction(lambda sql: sql.run_text("SELECT 1 FROM jobs UNION SELECT 1 FROM batches")) == []
    assert rig.infos(names) == before
    assert [job.body for job in rig.drain()] == [b"1", b"2"]


def test_a_full_server_loses_nothing(fresh_server: FreshServer, rig_of: MakeRig) -> None:
    """At maxmemory a spill works. A restore waits for room, and then goes on."""
    server = fresh_server(config={**DURABLE, "maxmemory-policy": "noeviction"})
    rig = rig_of(server)
    body = b"x" * 10_000
    names = [*rig.client.enqueue_many(QUEUE, [body] * 900), *rig.client.enqueue_many(QUEUE, [body] * 900)]
    before = rig.infos(names)
    server.call("CONFIG", "SET", "maxmemory", server.memory() - 1_000_000)
    with pytest.raises(ServerFull):
        rig.client.enqueue(QUEUE, body)
    assert rig.spill(limit=1_500) == 1_500
    rig.client.enqueue(QUEUE, b"there is room now")

    server.call("CONFIG", "SET", "maxmemory", server.memory() - 1_000_000)
    with pytest.raises(ServerFull):
        rig.restore()
    assert rig.infos(names) == before
    rig.check()

    server.call("CONFIG", "SET", "maxmemory", "0")
    rig.restore()
    assert rig.status().archived == 0
    assert rig.infos(names) == before
    assert len(rig.drain()) == len(names) + 1
    rig.check()


def test_archived_jobs_outlive_the_data_of_redis(fresh_server: FreshServer, rig_of: MakeRig) -> None:
    server = fresh_server(config=DURABLE)
    rig = rig_of(server)
    archived = rig.client.enqueue_many(QUEUE, [NewJob(b"a%d" % n, status=STATUS) for n in range(600)])
    rig.spill()
    lost = rig.client.enqueue_many(QUEUE, [b"lost"] * 5)
    before = rig.infos(archived)

    server.call("FLUSHALL")
    with Client(shards=rig.shards) as bare:
        bare.create_queue(QUEUE, QueueConfig(priorities=PRIORITIES))
        new = bare.enqueue_many(QUEUE, [b"new"] * 5)
    assert rig.restore() == len(archived)
    assert rig.infos([*archived, *lost]) == before
    newer = rig.client.enqueue_many(QUEUE, [b"newer"] * 5)
    assert len({*archived, *lost, *new, *newer}) == len(archived) + 15
    done = rig.drain()
    assert sorted(job.descriptor for job in done) == sorted([*archived, *new, *newer])
    assert rig.restore() == 0
    rig.check()


def test_without_mysql_redis_goes_on(fresh_server: FreshServer, fresh_mariadb: Callable[..., MariaDB]) -> None:
    mariadb = fresh_mariadb()
    with made_database(mariadb.url) as url, Rig({"1": fresh_server(config=DURABLE).url}, url) as rig:
        rig.create()
        archived = rig.client.enqueue_many(QUEUE, [b"archived"] * 3)
        rig.spill()
        names = rig.client.enqueue_many(QUEUE, [b"%d" % number for number in range(700)])
        mariadb.kill()

        with pytest.raises(ArchiveUnavailable):
            rig.spill()
        with pytest.raises(ArchiveUnavailable):
            rig.restore()
        with pytest.raises(ArchiveUnavailable):
            rig.client.count(QUEUE)
        more = rig.client.enqueue(QUEUE, b"more")
        (job,) = rig.take(1)
        assert job.descriptor in {*names, more}
        assert rig.client.lookup(names[-1:])[names[-1]].state is State.PENDING

        mariadb.start()
        rig.recover()
        status = rig.status()
        assert (status.batches, status.committed, status.archived) == (0, 0, 3)
        rig.restore()
        done = [job.descriptor, *(each.descriptor for each in rig.drain())]
        assert sorted(done) == sorted([*archived, *names, more])
        rig.check()
