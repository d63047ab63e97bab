"""Servers that may be killed, an archiver behind proxies, and what it can be at when it stops.

Import the fixtures `world` and `small_batches` by name, so that pytest finds them.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pinlater import Client, JobInfo, NewJob
from pinlater.archive.archiver import Archiver, Selection
from pinlater.model.errors import PinLaterError
from tests.archive.rig import DURABLE, Rig, flow_of_recovery
from tests.archive.stepper import Killed, Perform, Stepper, errors_of
from tests.support.cut_proxy import CutProxy
from tests.support.mariadb import MariaDB, made_database
from tests.support.mysql_proxy import MysqlProxy
from tests.support.requirements import PYMYSQL, require
from tests.support.servers import Server

JOBS = [
    NewJob(bytes(range(256)), status="größer 💡", attempts=7),
    NewJob(b"", run_after_ms=5),
    NewJob(b"third", attempts=1),
    NewJob(b"lower", priority=2),
]


class World:
    """A Redis and a MariaDB that may be killed, and proxies before them. The archiver under test goes through these."""

    def __init__(self, server: Server, mariadb: MariaDB, rig: Rig, redis_proxy: CutProxy, proxy: MysqlProxy) -> None:
        self.server, self.mariadb, self.rig = server, mariadb, rig
        self.redis_proxy, self.mysql_proxy = redis_proxy, proxy
        self.clients: list[Client] = []
        self.queues = count()
        self.begin()

    def begin(self) -> None:
        """A new queue with jobs."""
        self.rig.queue = f"q{next(self.queues)}"
        self.rig.create()
        self.names: list[str] = []
        self.before: dict[str, JobInfo] = {}
        self.add(JOBS)
        self.ran: list[str] = []
        self.held: list[Callable[[], None]] = []
        self._watches_disk, self._last_step = False, ""

    def add(self, jobs: list[NewJob]) -> None:
        """Enqueues more of them."""
        names = self.rig.client.enqueue_many(self.rig.queue, jobs)
        self.names += names
        self.before |= self.rig.infos(names)

    def client(self, timeout_s: float) -> Client:
        """That of an archiver under test."""
        archive = self.rig.archive_url.replace(f":{self.mariadb.port}/", f":{self.mysql_proxy.port}/")
        self.clients.append(
            Client(shards={"1": self.redis_proxy.url}, archive=archive, timeout_s=timeout_s, connect_timeout_s=5.0)
        )
        return self.clients[-1]

    def end(self) -> None:
        """Closes the clients of archivers."""
        while self.clients:
            self.clients.pop().close()

    @property
    def left(self) -> dict[str, JobInfo]:
        """What jobs that have not run are."""
        return {name: info for name, info in self.before.items() if name not in self.ran}

    def look(self) -> None:
        """Seen from outside each job that has not run is as it was, wherever it is."""
        rig = self.rig
        assert {name: info for name, info in rig.infos(self.names).items() if name not in self.ran} == self.left
        counts = rig.client.count(rig.queue)
        assert counts.pending == len(self.left)
        rig.check()

    def run_jobs(self, limit: int = 1_000) -> None:
        """Workers run up to so many jobs."""
        for job in self.rig.take(limit):
            assert job.body == self.before[job.descriptor].body
            self.ran.append(job.descriptor)

    def watch_disk(self) -> None:
        """From here on only what WAITAOF waits for is on the disk of Redis. All until now is."""
        self._watches_disk = True
        self._save_disk()

    def reach(self, step: str) -> None:
        """The archiver under test is before a step."""
        if self._watches_disk and "WAITAOF" in self._last_step:
            self._save_disk()
        self._last_step = step

    def go_back(self) -> None:
        """A power cut: Redis starts again with what was on disk."""
        self.server.kill()
        shutil.rmtree(self._disk)
        shutil.copytree(self._saved, self._disk)
        self.server.start()

    @property
    def _disk(self) -> Path:
        return self.server.directory / "appendonlydir"

    @property
    def _saved(self) -> Path:
        return self.server.directory / "saved"

    def _save_disk(self) -> None:
        """The server answers after it has written to its file, and nobody else writes."""
        shutil.rmtree(self._saved, ignore_errors=True)
        shutil.copytree(self._disk, self._saved)

    def late(self) -> None:
        """What is under way to a store is carried out now."""
        while self.held:
            self.held.pop()()


# What the archiver does, and what was done before.


def nothing(_world: World) -> None:
    """Nothing was done before."""


def spilled(world: World) -> None:
    assert world.rig.spill() == len(world.names)


def stopped(act: Act, *path: str, before: Callable[[World], None] = nothing) -> Callable[[World], None]:
    """An archiver was killed before a step, behind others. path: a word of the name of each, in order."""

    def prepare(world: World) -> None:
        before(world)
        left = list(path)

        def is_there(_number: int, name: str) -> bool:
            if left[0] in re.findall(r"\w+", name):
                left.pop(0)
            return not left

        def kill(_perform: Perform) -> Any:
            raise Killed

        run(act, Stepper(world.client(timeout_s=10.0), is_there, kill), world)
        assert not left

    return prepare


async def spill(archiver: Archiver, world: World) -> None:
    await archiver.spill(world.rig.queue, Selection())


async def restore(archiver: Archiver, world: World) -> None:
    await archiver.restore(world.rig.queue)


async def recovery(archiver: Archiver, world: World) -> None:
    await archiver.run(lambda end: flow_of_recovery(archiver.session, archiver.database, world.rig.queue, end))


#: What an archiver under test does.
Act: TypeAlias = Callable[[Archiver, World], Awaitable[None]]


def run(act: Act, stepper: Stepper, world: World) -> None:
    """Runs the archiver to its end, or to its death. It ends by no error but ours."""
    try:
        asyncio.run(_awaited(act, stepper, world))
    except BaseException as error:
        if not all(isinstance(each, Killed | PinLaterError) for each in errors_of(error)):
            raise


async def _awaited(act: Act, stepper: Stepper, world: World) -> None:
    await act(stepper.archiver, world)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require(PYMYSQL)
    with (
        MariaDB(tmp_path_factory.mktemp("mariadb")) as mariadb,
        Server("valkey", tmp_path_factory.mktemp("valkey"), config=DURABLE) as server,
        made_database(mariadb.url) as url,
        Rig({"1": server.url}, url) as rig,
        CutProxy(server.port) as redis_proxy,
        MysqlProxy(mariadb.port) as proxy,
    ):
        yield World(server, mariadb, rig, redis_proxy, proxy)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few jobs make several batches and restores."""
    monkeypatch.setattr("pinlater.archive.restores.RESTORE_JOBS", 2)
    monkeypatch.setattr("pinlater.archive.batches.BATCH_JOBS", 2)
