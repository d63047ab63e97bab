"""A backlog that Redis has no room for, which the automatic archiver moves while jobs come and go.

Promises: every job runs once, and of each shard and priority the archived ones run in their old order.
PINLATER_CAMPAIGN=1 takes a million jobs.
Risks: one process enqueues and works, so both are slower than in production.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinlater import Job, NewJob
from pinlater.model.errors import ServerFull
from pinlater.store.archive_url import ARCHIVE_VARIABLE
from pinlater.store.shards import URL_VARIABLE
from tests.archive.rig import EVERYSEC, PRIORITIES, QUEUE, Rig
from tests.conftest import FreshServer
from tests.support.mariadb import connected, query
from tests.support.servers import Server, wait_until

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
#: How many jobs, and how many bytes each has.
JOBS, BODY_BYTES = (1_000_000, 100) if CAMPAIGN else (24_000, 1_000)
#: Redis has room for one job in so many.
ROOM = 4
#: Jobs of one enqueue, and how many of them run meanwhile.
ENQUEUED, RUN = 1_000, 200
NUMBER_BYTES = 8
#: Jobs whose memory is measured.
SAMPLE = 5_000
#: An archiver that stands still for so long has failed.
STUCK_S = 120


@contextmanager
def archiver(rig: Rig, log: Path) -> Iterator[None]:
    """A process with an automatic archiver that looks often."""
    shards = ",".join(f"{name}={url}" for name, url in rig.shards.items())
    environment = {**os.environ, URL_VARIABLE: shards, ARCHIVE_VARIABLE: rig.archive_url}
    command = [sys.executable, "-m", "pinlater.cli.demo.archive_process", "archiver", QUEUE]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def bodies(numbers: range) -> list[NewJob]:
    """Jobs that begin with their numbers."""
    return [
        NewJob(n.to_bytes(NUMBER_BYTES, "big").ljust(BODY_BYTES, b"."), priority=1 + n % PRIORITIES) for n in numbers
    ]


class Tally:
    """The runs of jobs, by number, and the order in which a line's jobs ran."""

    def __init__(self) -> None:
        self.runs = bytearray(JOBS)
        self.done = 0
        self.lines: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # ids and numbers

    def add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            number = int.from_bytes(job.body[:NUMBER_BYTES], "big")
            self.runs[number] += 1
            self.done += 1
            line, _, id_ = job.descriptor.rpartition(":")
            self.lines[line].append((int(id_), number))


def limit_memory(servers: list[Server], rig: Rig) -> None:
    """All servers together have room for a part of the jobs."""
    empty = {server: server.memory() for server in servers}
    names = rig.client.enqueue_many(QUEUE, bodies(range(SAMPLE)))
    taken = sum(server.memory() - before for server, before in empty.items())
    rig.client.delete_jobs(descriptors=names)
    for server, before in empty.items():
        server.call("CONFIG", "SET", "maxmemory", before + taken * JOBS // (SAMPLE * ROOM * len(empty)))


@pytest.mark.thorough("archive-steps")
@pytest.mark.timeout(3600 if CAMPAIGN else 300)
def test_a_backlog_that_redis_has_no_room_for(fresh_server: FreshServer, mysql_url: str, tmp_path: Path) -> None:
    servers = [fresh_server(config={**EVERYSEC, "maxmemory-policy": "noeviction"}) for _ in range(2)]
    with Rig({str(number): server.url for number, server in enumerate(servers, 1)}, mysql_url) as rig:
        rig.create(spill_above=JOBS // (3 * ROOM), restore_below=JOBS // (4 * ROOM))
        limit_memory(servers, rig)
        tally = Tally()
        with archiver(rig, tmp_path / "log"):
            for first in range(0, JOBS, ENQUEUED):
                enqueue(rig, range(first, min(first + ENQUEUED, JOBS)))
                tally.add(rig.take(RUN))
            archived = archived_numbers(rig)
            assert len(archived) > JOBS // ROOM, "most of it is not in Redis"
            tally.lines.clear()
            while tally.done < JOBS:
                jobs = rig.client.dequeue(QUEUE, ENQUEUED, wait=STUCK_S)
                rig.client.ack(succeeded=jobs)
                assert jobs, (tmp_path / "log").read_text()
                tally.add(jobs)
        assert tally.runs == b"\x01" * JOBS
        for line, jobs_of_line in tally.lines.items():
            came_back = [id_ for id_, number in jobs_of_line if number in archived]
            assert came_back == sorted(came_back), f"{line}: not in their old order"
        rig.check()


def enqueue(rig: Rig, numbers: range) -> None:
    """Waits for the archiver while Redis has no room."""

    def is_in() -> bool:
        try:
            rig.client.enqueue_many(QUEUE, bodies(numbers))
        except ServerFull:
            return False
        return True

    wait_until(is_in, "room in Redis", STUCK_S)


def archived_numbers(rig: Rig) -> set[int]:
    with connected(rig.archive_url) as connection:
        rows = query(connection, f"SELECT SUBSTRING(body, 1, {NUMBER_BYTES}) FROM jobs")  # noqa: S608
        return {int.from_bytes(number, "big") for (number,) in rows}
