"""What /metrics shows of the archive: numbers of real stores, and a MySQL that goes away and comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater import AsyncClient
from pinlater.running import archive_reader, queue_reader
from pinlater.running.metrics import Samples, text
from pinlater.running.queue_reader import reading_queues
from tests.archive.rig import EVERYSEC, QUEUE, Rig
from tests.conftest import FreshServer
from tests.support.mariadb import MariaDB, made_database
from tests.support.servers import wait_until

SHARDS = ["a", "b"]
LABELS = [f'{{queue="q",shard="{shard}"}}' for shard in SHARDS]
HOUR_MS = 3_600_000


@pytest.fixture
def archived(fresh_server: FreshServer, mysql_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A queue on two shards, without jobs. Readings follow each other at once."""
    monkeypatch.setattr(queue_reader, "READ_S", 0.05)
    url = fresh_server(config=EVERYSEC).url
    with Rig(dict.fromkeys(SHARDS, url), mysql_url) as rig:
        rig.create()
        yield rig


def read(rig: Rig, check: Callable[[Callable[[], Samples]], None], **options: Any) -> None:
    """Calls `check` in a thread, with the function that gives the samples, while queues are read."""

    async def reading() -> None:
        def new_client() -> AsyncClient:
            return AsyncClient(shards=rig.shards, **{"archive": rig.archive_url, **options})

        async with reading_queues(new_client, lambda: [QUEUE]) as samples:
            await asyncio.to_thread(check, samples)

    asyncio.run(reading())


def test_it_shows_how_many_jobs_are_away_and_how_late_the_first_is(archived: Rig) -> None:
    descriptors = [
        archived.client.enqueue(QUEUE, b"late", run_after_ms=1, priority=3),
        archived.client.enqueue(QUEUE, b"not so late", run_after_ms=10**12),
        archived.client.enqueue(QUEUE, b"scheduled", delay_ms=HOUR_MS),
    ]
    jobs = dict(zip(LABELS, (sum(f":s{shard}:" in each for each in descriptors) for shard in SHARDS), strict=True))
    assert archived.spill() == 3

    def check(samples: Callable[[], Samples]) -> None:
        wait_until(lambda: "pinlater_archived_jobs" in samples(), "the archive")
        found = samples()
        assert found["pinlater_archived_jobs"] == jobs
        assert max(found["pinlater_archive_lag_seconds"].values()) > 1.5e9  # since 1970
        assert "\npinlater_archive_up 1\n" in text(found)
        assert found["pinlater_queue_jobs"][LABELS[0][:-1] + ',state="pending"}'] == 0

    read(archived, check)


def test_nothing_is_late_before_its_time(archived: Rig) -> None:
    archived.client.enqueue(QUEUE, b"scheduled", delay_ms=HOUR_MS)
    archived.spill()

    def check(samples: Callable[[], Samples]) -> None:
        wait_until(lambda: "pinlater_archived_jobs" in samples(), "the archive")
        assert samples()["pinlater_archive_lag_seconds"] == dict.fromkeys(LABELS, 0)
        assert sum(samples()["pinlater_archived_jobs"].values()) == 1

    read(archived, check)


def test_without_an_archive_nothing_is_said_of_one(archived: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PINLATER_ARCHIVE_URL", raising=False)

    def check(samples: Callable[[], Samples]) -> None:
        wait_until(lambda: "pinlater_queue_jobs" in samples(), "the queue")
        assert "archive" not in text(samples())

    read(archived, check, archive=None)


def test_while_mysql_is_away_only_that_is_shown(
    fresh_server: FreshServer,
    fresh_mariadb: Callable[..., MariaDB],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(queue_reader, "READ_S", 0.05)
    mariadb = fresh_mariadb()
    with made_database(mariadb.url) as url, Rig({"a": fresh_server(config=EVERYSEC).url}, url) as rig:
        rig.create()
        rig.client.enqueue(QUEUE, b"x")
        rig.spill()

        def check(samples: Callable[[], Samples]) -> None:
            def shown() -> tuple[object, object]:
                found = samples()
                return found.get("pinlater_archive_up"), found.get("pinlater_archived_jobs")

            here, away = ({"": 1}, {LABELS[0]: 1}), ({"": 0}, None)
            wait_until(lambda: shown() == here, "the archive")
            mariadb.kill()
            wait_until(lambda: shown() == away, "its absence")
            assert "pinlater_archive_lag_seconds" not in samples()
            assert "pinlater_queue_jobs" in samples()
            mariadb.start()
            wait_until(lambda: shown() == here, "the archive again")

        with caplog.at_level(logging.WARNING):
            read(rig, check)
        assert caplog.text.count("archive not read for metrics: ") == 1


def test_mysql_is_read_for_a_part_of_the_time_at_most(archived: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first reading it pauses as if that had taken long. The queues are read on meanwhile."""
    monkeypatch.setattr(archive_reader, "PAUSES", 1e9)
    counts = {"measure": 0, "archived_at": 0}

    def counted(module: Any, name: str) -> None:
        function = getattr(module, name)

        def count(*arguments: Any) -> Any:
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, count)

    counted(queue_reader, "measure")
    counted(archive_reader, "archived_at")

    def check(samples: Callable[[], Samples]) -> None:
        wait_until(lambda: "pinlater_archive_up" in samples(), "the archive")
        seen = counts["measure"]
        wait_until(lambda: counts["measure"] > seen + 10, "more readings of the queue")

    read(archived, check)
    assert counts["archived_at"] == len(SHARDS)
