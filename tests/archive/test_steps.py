"""Each step of the protocol and each fault at it: all jobs run once, unchanged, and both audits are clean.

An archiver spills, restores or recovers. At one of its steps a fault comes. Then a fresh archiver recovers and
restores, and workers run everything. PINLATER_CAMPAIGN=1 has all of it; each day has a part.

Risks: one archiver at a time, or a zombie and its rescuer. `test_archive_machine.py` has more of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest

from pinlater import Client, JobInfo, NewJob
from pinlater.archive.archiver import Archiver, Selection
from pinlater.model.errors import PinLaterError
from tests.archive.rig import DURABLE, Rig, flow_of_recovery
from tests.archive.stepper import Fault, Killed, Perform, Stepper, errors_of
from tests.support import cut_proxy, mysql_proxy
from tests.support.cut_proxy import CutProxy
from tests.support.mariadb import MariaDB, made_database
from tests.support.mysql_proxy import MysqlProxy
from tests.support.requirements import PYMYSQL, require
from tests.support.servers import Server

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
#: Each day every so many steps, from another first step in each test.
DAILY_STRIDE = 9
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
        self.names = self.rig.client.enqueue_many(self.rig.queue, JOBS)
        self.before = self.rig.infos(self.names)
        self.ran: list[str] = []
        self.held: list[Perform] = []

    def client(self) -> Client:
        """That of an archiver under test."""
        archive = self.rig.archive_url.replace(f":{self.mariadb.port}/", f":{self.mysql_proxy.port}/")
        self.clients.append(
            Client(shards={"1": self.redis_proxy.url}, archive=archive, timeout_s=1.0, connect_timeout_s=5.0)
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

    def late(self) -> None:
        """What is under way to a store is carried out now."""
        while self.held:
            self.held.pop()()


# What the archiver does, and what was done before.


def nothing(_world: World) -> None:
    """Nothing was done before."""


def spilled(world: World) -> None:
    assert world.rig.spill() == len(JOBS)


def stopped(act: Act, at: str, before: Callable[[World], None] = nothing) -> Callable[[World], None]:
    """An archiver was killed before the first step of this name."""

    def prepare(world: World) -> None:
        before(world)

        def kill(_perform: Perform) -> Any:
            raise Killed

        stepper = Stepper(world.client(), lambda _, name: at in name, kill)
        run(act, stepper, world)
        assert at in stepper.faulty

    return prepare


async def spill(archiver: Archiver, world: World) -> None:
    await archiver.spill(world.rig.queue, Selection())


async def restore(archiver: Archiver, world: World) -> None:
    await archiver.restore(world.rig.queue)


async def recovery(archiver: Archiver, world: World) -> None:
    await archiver.run(lambda end: flow_of_recovery(archiver.session, archiver.database, world.rig.queue, end))


Act = Callable[[Archiver, World], Awaitable[None]]
SCENARIOS: dict[str, tuple[Callable[[World], None], Act]] = {
    "spill": (nothing, spill),
    "restore": (spilled, restore),
    "abort": (stopped(spill, "read_batch"), recovery),
    "end of a committed batch": (stopped(spill, "finalize"), recovery),
    "end of a batch that Redis has not": (stopped(spill, "WAITAOF", stopped(spill, "finalize")), recovery),
    "end of a restore": (stopped(restore, "_drop", spilled), recovery),
    "end of a restore without rows": (stopped(restore, "close", spilled), recovery),
}

# What happens at a step. Each returns what stands for it.

FaultOf = Callable[[World], Fault]


def killed_before(_world: World) -> Fault:
    def fault(_perform: Perform) -> Any:
        raise Killed

    return fault


def killed_after(_world: World) -> Fault:
    def fault(perform: Perform) -> Any:
        perform()
        raise Killed

    return fault


def cut(name: str, statement: bytes = b"", reply_bytes: int = 0) -> FaultOf:
    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            world.redis_proxy.arm(cut_proxy.Cut[name], match=lambda _: True, reply_bytes=reply_bytes)
            world.mysql_proxy.arm(statement, mysql_proxy.Cut[name])
            try:
                return perform()
            finally:
                world.redis_proxy.disarm()
                world.mysql_proxy.disarm()

        return fault

    return at


def restarted_before(which: str) -> FaultOf:
    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            getattr(world, which).restart(kill=True)
            return perform()

        return fault

    return at


def restarted_after(which: str) -> FaultOf:
    """Its answer is lost too."""

    def at(world: World) -> Fault:
        lose = cut("AFTER", b"COMMIT")(world)

        def fault(perform: Perform) -> Any:
            outcome = lose(perform)
            getattr(world, which).restart(kill=True)
            return outcome

        return fault

    return at


def away(which: str) -> FaultOf:
    """Until the archiver ends, or the step is over."""

    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            getattr(world, which).kill()
            try:
                return perform()
            finally:
                getattr(world, which).start()

        return fault

    return at


def zombie(rescue: Callable[[World], None]) -> FaultOf:
    """It is stopped, others do its work and more, then it goes on."""

    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            rescue(world)
            return perform()

        return fault

    return at


def recovered(world: World) -> None:
    world.rig.recover()


def half_ran(world: World) -> None:
    world.rig.recover()
    world.rig.restore()
    world.run_jobs(2)


def spilled_again(world: World) -> None:
    world.rig.recover()
    world.rig.restore()
    world.run_jobs(1)
    world.rig.spill()


def all_ran(world: World) -> None:
    world.rig.recover()
    world.rig.restore()
    world.run_jobs()


def late(done: Callable[[World], None], *, twice: bool) -> FaultOf:
    """The archiver is killed. Its request reaches the store after all that others did. twice: and before it too."""

    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            if twice:
                perform()
            world.held.append(lambda: (done(world), perform()))
            raise Killed

        return fault

    return at


CHEAP: dict[str, FaultOf] = {
    "killed before": killed_before,
    "killed after": killed_after,
    "cut before": cut("BEFORE"),
    "cut after": cut("AFTER"),
    "cut in the reply": cut("REPLY", reply_bytes=3),
    "cut before COMMIT": cut("BEFORE", b"COMMIT"),
    "cut after COMMIT": cut("AFTER", b"COMMIT"),
    "cut in the answer to COMMIT": cut("REPLY", b"COMMIT"),
    "zombie of a recovery": zombie(recovered),
    "zombie of a worker": zombie(half_ran),
    "zombie of a spill": zombie(spilled_again),
    "zombie of all": zombie(all_ran),
    "late": late(recovered, twice=False),
    "late to a worker": late(half_ran, twice=False),
    "late to a spill": late(spilled_again, twice=False),
    "late to all": late(all_ran, twice=False),
    "twice": late(recovered, twice=True),
    "twice with a worker": late(half_ran, twice=True),
    "twice with a spill": late(spilled_again, twice=True),
    "twice with all": late(all_ran, twice=True),
}
DEAR: dict[str, FaultOf] = {
    f"{name} {what}": of(which)
    for name, which in (("Redis", "server"), ("MariaDB", "mariadb"))
    for what, of in (("killed before", restarted_before), ("killed after", restarted_after), ("away", away))
}


def run(act: Act, stepper: Stepper, world: World) -> None:
    """Runs the archiver to its end, or to its death. It ends by no error but ours."""
    try:
        asyncio.run(_awaited(act, stepper, world))
    except BaseException as error:
        if not all(isinstance(each, Killed) for each in errors_of(error)) and not isinstance(error, PinLaterError):
            raise


async def _awaited(act: Act, stepper: Stepper, world: World) -> None:
    await act(stepper.archiver, world)


def reaches(world: World, scenario: str, fault: FaultOf, number: int) -> bool:
    """One case. Returns whether the archiver reached that step."""
    prepare, act = SCENARIOS[scenario]
    world.begin()
    prepare(world)
    stepper = Stepper(world.client(), lambda at, _: at == number, fault(world))
    try:
        run(act, stepper, world)
        world.look()
        world.late()
        world.look()
        world.rig.recover()
        world.rig.restore()
        world.look()
        world.run_jobs()
        world.rig.recover()
        assert world.rig.restore() == 0
        world.run_jobs()
        assert sorted(world.ran) == sorted(world.names)
        world.rig.check()
    except BaseException as error:
        error.add_note(f"{scenario}: step {number}: {stepper.faulty}")
        raise
    finally:
        world.end()
    return bool(stepper.faulty)


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
    for module in ("batches", "restores"):
        monkeypatch.setattr(f"pinlater.archive.{module}.BATCH_JOBS", 2)


@pytest.mark.parametrize("fault", CHEAP)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_a_step(scenario: str, fault: str, world: World) -> None:
    first = (list(SCENARIOS).index(scenario) + list(CHEAP).index(fault)) % DAILY_STRIDE
    number = first
    while reaches(world, scenario, CHEAP[fault], number):
        number += DAILY_STRIDE
    assert number > first or number >= 5
