"""The audit over both stores names each job that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pinlater import Client, QueueConfig
from pinlater.archive import verify
from tests.archive.rig import DURABLE, PRIORITIES, QUEUE, Rig
from tests.conftest import FreshServer
from tests.support.mariadb import connected, query
from tests.support.servers import Server


@pytest.fixture
def server(fresh_server: FreshServer) -> Server:
    made: Server = fresh_server(config=DURABLE)
    return made


@pytest.fixture
def rig(server: Server, mysql_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(verify, "LOOK_AGAIN_S", 0)
    with Rig({"1": server.url}, mysql_url) as made:
        made.create()
        yield made


def found(rig: Rig) -> list[tuple[str, str]]:
    """The jobs that are wrong, and why."""
    findings = rig.client.run(lambda end: verify.verify(rig.client.session, rig.database, rig.queue, end))
    return [(finding.subject, finding.problem) for finding in findings]


def copied(columns: str) -> Callable[[Rig], None]:
    def copy(rig: Rig) -> None:
        names = "priority, run_after_ms, sixteenths, attempts, attempts_left, updated_ms, crashes, status, body"
        with connected(rig.archive_url) as connection:
            into, row = f"incarnation, id, batch, {names}", f"incarnation, {columns}, {names}"
            query(connection, f"INSERT INTO jobs ({into}) SELECT {row} FROM jobs")  # noqa: S608

    return copy


def test_a_job_that_has_two_rows(rig: Rig) -> None:
    [name] = rig.client.enqueue_many(QUEUE, [b"job"])
    rig.spill()
    assert found(rig) == []
    copied("id, batch + 1")(rig)
    assert found(rig) == [(name, "has two rows in the archive")]


def test_a_job_that_is_in_both_stores(rig: Rig) -> None:
    rig.client.enqueue_many(QUEUE, [b"archived"])
    rig.spill()
    [name] = rig.client.enqueue_many(QUEUE, [b"in Redis"])
    assert found(rig) == []
    copied(f"{name.rpartition(':')[2]}, batch")(rig)
    assert found(rig) == [(name, "in Redis and in the archive")]


def test_a_job_whose_priority_the_queue_has_no_more(rig: Rig, server: Server) -> None:
    """Redis lost its data, and somebody made the queue again."""
    assert PRIORITIES > 1
    names = [rig.client.enqueue(QUEUE, b"job", priority=priority) for priority in (1, PRIORITIES)]
    rig.spill()
    server.call("FLUSHALL")
    with Client(shards=rig.shards) as bare:
        bare.create_queue(QUEUE, QueueConfig(priorities=1))
    rig.calls.count(QUEUE)  # the client of the archiver knows its priorities
    assert rig.restore() == 1
    assert found(rig) == [(names[1], f"it cannot come back while the queue has fewer than {PRIORITIES} priorities")]
    rig.client.configure_queue(QUEUE, priorities=PRIORITIES)
    rig.calls.count(QUEUE)
    assert rig.restore() == 1
    rig.check()
