"""The archiver that monitors run: marks, horizon, and a MySQL that is away."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater import Client, NewJob, QueueConfig
from pinlater.archive import archiver
from pinlater.archive.archiver import Archiver
from pinlater.archive.automatic import SPILL_DOWN_TO, AutomaticArchiver
from pinlater.archive.batches import Range, withdraw
from pinlater.archive.incarnations import incarnation_of
from pinlater.model.errors import ArchiveNotReady, ArchiveUnavailable, InvalidArgument
from pinlater.worker.monitor import Monitor
from tests.archive.rig import EVERYSEC, QUEUE, Rig
from tests.conftest import FreshServer
from tests.support.mariadb import MariaDB, connected, made_database, query
from tests.support.servers import wait_until

DAY_MS = 24 * 3600 * 1000
#: Much less than the time after which a silent MySQL is given up.
DEADLINE_S = 15.0
MARKS = {"spill_above": 1_000, "restore_below": 300}


@pytest.fixture
def rig(fresh_server: FreshServer, mysql_url: str) -> Iterator[Rig]:
    with Rig({"1": fresh_server(config=EVERYSEC).url}, mysql_url) as rig:
        yield rig


def look(rig: Rig) -> None:
    """A monitor looks once at each queue shard, and what it begins ends."""

    async def looked() -> None:
        automatic = AutomaticArchiver(rig.archiver)
        for queue_shard in rig.calls.client.session.queue_shards(QUEUE):
            automatic.look_at(queue_shard)
        await automatic.idle()

    rig.calls.count(QUEUE)  # the client knows the configuration
    rig.calls.wait(looked)


def in_redis(rig: Rig) -> int:
    with Client(shards=rig.shards) as bare:
        counts = bare.count(QUEUE)
    return counts.pending + counts.scheduled


def test_above_the_high_mark_the_lowest_priority_and_the_latest_leave(rig: Rig) -> None:
    rig.create(**MARKS)
    rig.client.enqueue_many(QUEUE, [NewJob(b"first", priority=1)] * 800 + [NewJob(b"last", priority=3)] * 800)
    look(rig)
    assert in_redis(rig) == 1_000 * SPILL_DOWN_TO
    with Client(shards=rig.shards) as bare:
        assert bare.count(QUEUE, priority=1).pending == 800
    look(rig)
    assert in_redis(rig) == 1_000 * SPILL_DOWN_TO
    rig.check()


def test_below_the_low_mark_the_highest_priority_comes_back(rig: Rig) -> None:
    rig.create(**MARKS)
    rig.client.enqueue_many(QUEUE, [NewJob(b"%d" % n, priority=1 + n % 2) for n in range(2_000)])
    rig.spill()
    look(rig)
    assert in_redis(rig) == 300
    jobs = rig.take(300)
    assert [job.body for job in jobs] == [b"%d" % n for n in range(0, 600, 2)]
    done = len(jobs)
    while jobs := rig.take():
        done += len(jobs)
        look(rig)
    look(rig)
    done += len(rig.drain())
    rig.check()
    assert done + rig.status().archived == 2_000


def test_between_the_marks_nothing_moves(rig: Rig) -> None:
    rig.create(**MARKS)
    rig.client.enqueue_many(QUEUE, [b"job"] * 700)
    rig.spill(limit=200)
    look(rig)
    assert (in_redis(rig), rig.status().archived) == (500, 200)


def test_jobs_behind_the_horizon_leave_and_are_back_before_they_are_due(rig: Rig) -> None:
    rig.create(horizon_ms=DAY_MS)
    rig.client.enqueue_many(
        QUEUE,
        [NewJob(b"soon", delay_ms=DAY_MS // 4), NewJob(b"later", delay_ms=2 * DAY_MS), NewJob(b"now")],
    )
    look(rig)
    assert (in_redis(rig), rig.status().archived) == (2, 1)
    look(rig)
    assert (in_redis(rig), rig.status().archived) == (2, 1)
    rig.client.configure_queue(QUEUE, horizon_ms=5 * DAY_MS)  # half of it is more than the job has left
    look(rig)
    assert (in_redis(rig), rig.status().archived) == (3, 0)
    rig.check()


def test_jobs_behind_the_horizon_stay_away_below_the_low_mark(rig: Rig) -> None:
    rig.create(horizon_ms=DAY_MS, **MARKS)
    rig.client.enqueue(QUEUE, b"later", delay_ms=2 * DAY_MS)
    for _ in range(2):
        look(rig)
        assert (in_redis(rig), rig.status().archived) == (0, 1)


@pytest.mark.parametrize("marks", [{}, {"spill_above": 1_000}, MARKS])
def test_a_job_whose_time_came_while_no_monitor_looked_comes_back(marks: dict[str, int], rig: Rig) -> None:
    rig.create(horizon_ms=DAY_MS, **marks)
    rig.client.enqueue(QUEUE, b"late")
    rig.spill()
    look(rig)
    assert (in_redis(rig), rig.status().archived) == (1, 0)


def test_a_queue_without_marks_is_left_alone(rig: Rig) -> None:
    rig.create()
    rig.client.enqueue_many(QUEUE, [b"job"] * 10)
    rig.spill(limit=5)
    look(rig)
    assert rig.status().archived == 5


@pytest.mark.parametrize("ends", [look, Rig.spill])
def test_jobs_that_a_killed_command_left_in_a_batch_are_claimed_again(
    ends: Callable[[Rig], object], rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs of a queue without marks: they are in no line, so no command has jobs to move."""
    rig.create()
    names = rig.client.enqueue_many(QUEUE, [b"job"] * 5)
    client = rig.client
    incarnation = client.run(lambda end: incarnation_of(rig.database, rig.queue_shard, end))
    client.run(lambda end: withdraw(rig.queue_shard, incarnation, Range(1, "ready"), 5, end))
    look(rig)
    assert rig.status().withdrawn == 5  # its owner may live
    monkeypatch.setattr(archiver, "ABANDONED_MS", -1_000)
    ends(rig)
    assert rig.status().withdrawn == 0
    rig.restore()
    assert sorted(job.descriptor for job in rig.drain()) == sorted(names)
    rig.check()


def test_the_log_says_once_that_mysql_is_away_and_that_it_is_back(
    fresh_server: FreshServer, fresh_mariadb: Callable[..., MariaDB], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pinlater.archive")
    mariadb = fresh_mariadb()
    with made_database(mariadb.url) as url, Rig({"1": fresh_server(config=EVERYSEC).url}, url) as rig:
        rig.create(**MARKS)
        rig.client.enqueue_many(QUEUE, [b"job"] * 1_000)
        rig.client.enqueue_many(QUEUE, [b"job"] * 600)

        async def while_it_is_away() -> None:
            automatic = AutomaticArchiver(rig.archiver)
            [queue_shard] = rig.calls.client.session.queue_shards(QUEUE)
            for _ in range(2):
                automatic.look_at(queue_shard)
                await automatic.idle()
            mariadb.start()
            automatic.look_at(queue_shard)
            await automatic.idle()

        rig.calls.count(QUEUE)
        mariadb.kill()
        with Client(shards=rig.shards) as bare:
            assert bare.count(QUEUE).pending == 1_600
        rig.calls.wait(while_it_is_away)
        said = [record.message.partition(": ")[2].partition(":")[0] for record in caplog.records]
        assert said == ["archiving waits", "more than 1000 jobs wait, so 700 move to the archive", "archiving goes on"]
        assert in_redis(rig) == 1_000 * SPILL_DOWN_TO
        rig.check()


def test_the_log_says_each_reason_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.create(**MARKS)
    rig.calls.count(QUEUE)
    [queue_shard] = rig.calls.client.session.queue_shards(QUEUE)
    errors = [ArchiveUnavailable("no route"), ArchiveUnavailable("refused"), ArchiveNotReady("too new")]

    async def fails(_: object) -> Any:
        raise errors.pop(0)

    async def looks() -> None:
        automatic = AutomaticArchiver(Archiver(fails, rig.calls.client.session, rig.database))
        for _ in range(3):
            automatic.look_at(queue_shard)
            await automatic.idle()

    rig.calls.wait(looks)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no route", "too new"]


def test_tables_of_a_later_program_are_left_alone(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.create(**MARKS)
    rig.client.enqueue_many(QUEUE, [b"job"] * 1_000)
    rig.client.enqueue_many(QUEUE, [b"job"] * 600)
    rig.calls.count(QUEUE)
    with connected(rig.archive_url) as connection:
        query(connection, "INSERT INTO migrations VALUES (99, 99, 1)")
    look(rig)
    assert in_redis(rig) == 1_600
    assert "its tables need a program of version 99 or later, this one has 1; update PinLater" in caplog.text
    with Client(shards=rig.shards, archive=rig.archive_url) as client:
        for call in (lambda: client.lookup(["q:s1:p1:9"]), lambda: client.count(QUEUE)):
            with pytest.raises(ArchiveNotReady, match="update PinLater"):
                call()


def test_a_monitor_stops_while_mysql_is_silent(rig: Rig) -> None:
    rig.create(**MARKS)
    [url] = rig.shards.values()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        archive = f"mysql://127.0.0.1:{silent.getsockname()[1]}/none"
        command = [sys.executable, "-m", "pinlater", "monitor", "--url", url, "--archive", archive]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            process.terminate()
            try:
                assert process.wait(DEADLINE_S) == 0
            finally:
                process.kill()
            connection.close()


def test_a_monitor_archives(rig: Rig) -> None:
    rig.create(**MARKS)
    rig.client.enqueue_many(QUEUE, [b"job"] * 1_000)
    rig.client.enqueue_many(QUEUE, [b"job"] * 1_000)

    async def monitored() -> None:
        monitor = Monitor(rig.calls.client, [QUEUE], tick_s=0.05)
        await monitor.start()
        await asyncio.to_thread(wait_until, lambda: in_redis(rig) <= 1_000, "a spill")
        await monitor.stop()

    rig.calls.wait(monitored)
    rig.recover()
    rig.check()
    assert (in_redis(rig), rig.status().archived) == (900, 1_100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spill_above": -1}, "spill_above: expected an integer from 0 to"),
        ({"spill_above": 2**62}, "spill_above: expected an integer from 0 to"),
        ({"spill_above": 10, "restore_below": 11}, r"restore_below: expected at most spill_above \(10\), got 11"),
        ({"restore_below": 1.5}, "restore_below: expected an integer"),
        ({"horizon_ms": 59_999}, "horizon_ms: expected an integer from 60,000 to"),
        ({"horizon_ms": True}, "horizon_ms: expected an integer"),
    ],
)
def test_marks_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        QueueConfig(**settings)  # type: ignore[arg-type]


def test_marks_are_kept_by_the_shards(rig: Rig) -> None:
    rig.create(spill_above=5, restore_below=0, horizon_ms=DAY_MS)
    with Client(shards=rig.shards) as other:
        config = other.queue_config(QUEUE)
        assert (config.spill_above, config.restore_below, config.horizon_ms) == (5, 0, DAY_MS)
        other.configure_queue(QUEUE, spill_above=None, restore_below=None, horizon_ms=None)
        assert not other.queue_config(QUEUE).is_archived
