"""A poison job takes nobody with it: a job whose last run ended in a crash runs alone in its process.

Promises: shown on real processes that are killed by a signal, end themselves, or are killed over their memory cap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from pinlater import Client, PinLater, QueueConfig, State
from tests.support.app_runs import AppRuns, Note, runs
from tests.support.servers import Server, wait_until

__all__ = ["runs"]  # a fixture

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
#: How a poison job kills its process in the longest of these tests.
HOWS = ["signal", "exit", "memory"] if CAMPAIGN else ["signal"]
FEW_KINDS = [("async", 200), ("thread", 0)]

TASKS = """
async def last(seconds):
    note("began", "innocent")
    await asyncio.sleep(seconds)
    note("ended", "innocent")

@app.task(name="async", attempts=1)
async def on_loop(seconds: float) -> None:
    await last(seconds)

@app.task(name="thread", attempts=1)
def in_thread(seconds: float) -> None:
    asyncio.run(last(seconds))

@app.task(name="poison", attempts=1)
async def poison(how: str) -> None:
    note("began", "poison")
    await asyncio.sleep(0.2)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "exit":
        os._exit(0)
    kept = bytearray(os.urandom(1 << 20)) * 250
    while True:
        await asyncio.sleep(1)

@app.task(name="fine")
async def fine() -> None:
    note("ran", "fine")

@app.task(name="hold", attempts=1)
async def hold() -> None:
    note("began", "hold")
    while not Path("go").exists():
        await asyncio.sleep(0.02)

@app.task(name="die_beside", attempts=1)
async def die_beside(holding: int) -> None:
    while Path("record").read_text().count("began hold") < holding:
        await asyncio.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
"""


THOROUGH = pytest.mark.thorough("crashes")


class Case:
    """A poison job beside innocents: a queue, and an app whose processes work on it.

    limit: the queue's crash limit.
    """

    def __init__(self, client: Client, app: PinLater, app_runs: AppRuns, queue: str, limit: int) -> None:
        self._client, self._app, self.app_runs, self._queue, self._limit = client, app, app_runs, queue, limit
        client.create_queue(queue, QueueConfig(lease_ms=600_000, crash_limit=limit, keep_succeeded=1000))

    def start(self, before: int) -> None:
        """Starts two processes. before: so many jobs run in them first."""
        self._before = before
        self.app_runs.start("--queues", self._queue, "--processes", "2", "--concurrency", "20", "--max-memory", "150")
        self._app.by_name("fine").using(queue=self._queue).enqueue_many([()] * before)

    def poison(self, how: str, kind: str, innocents: int, seconds: float) -> None:
        """Enqueues the jobs, when those before have run.

        how: how the poison kills. kind, innocents, seconds: of the innocents, their number, how long each runs.
        """
        self.app_runs.wait("ran", self._before, deadline_s=120)
        self._poison = self._app.by_name("poison").using(queue=self._queue).enqueue(how)
        self._innocents = self._app.by_name(kind).using(queue=self._queue).enqueue_many([(seconds,)] * innocents)

    def is_over(self) -> bool:
        """Whether all jobs have ended."""
        ended = self._client.count(self._queue)
        return ended.succeeded + ended.failed == self._before + 1 + len(self._innocents)

    def victims(self) -> int:
        """How many innocents failed or crashed twice."""
        infos = self._client.lookup([handle.descriptor for handle in self._innocents]).values()
        return sum(info.state is not State.SUCCEEDED or info.crashes > 1 for info in infos)

    def check_poison(self) -> None:
        """The poison job failed, and only its first run was beside others."""
        assert self._poison.status() is State.FAILED
        check_deaths(self.app_runs, self._limit)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_no_innocent_fails_or_crashes_twice(server: Server, runs: Callable[..., AppRuns]) -> None:
    with PinLater(server.url) as app, Client(server.url) as client:
        case = Case(client, app, runs(server.url, TASKS), "default", 3)
        case.start(0)
        case.poison("signal", "async", 5, 0.5)
        wait_until(case.is_over, "the ends of all", 120)
        assert case.victims() == 0
        case.check_poison()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.timeout(400)
@THOROUGH
def test_no_innocent_of_6_s_fails_at_the_lowest_limit(server: Server, runs: Callable[..., AppRuns], how: str) -> None:
    """Ten innocents, async and in threads, in fresh processes and in such that have run jobs. These cases run side by
    side, in a campaign each of these with each of those.
    """
    kinds = [(kind, before) for kind in ("async", "thread") for before in (0, 200)] if CAMPAIGN else FEW_KINDS
    with PinLater(server.url) as app, Client(server.url) as client:
        cases = [Case(client, app, runs(server.url, TASKS), f"{kind}{before}", 2) for kind, before in kinds]
        for case, (_, before) in zip(cases, kinds, strict=True):
            case.start(before)
        for case, (kind, _) in zip(cases, kinds, strict=True):
            case.poison(how, kind, 10, 6)
        wait_until(lambda: all(case.is_over() for case in cases), "the ends of all", 240)
        victims = {kind: case.victims() for kind, case in zip(kinds, cases, strict=True)}
        assert victims == dict.fromkeys(kinds, 0)
        for case in cases:
            case.check_poison()


#: A program that is a worker, and nothing else.
PROGRAM = """
from pinlater import AsyncClient, Worker, WorkerConfig

async def handle(job):
    if job.body == b"poison":
        note("began", "poison")
        await asyncio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGSEGV)
    note("began", "innocent")
    await asyncio.sleep(float(job.body))
    note("ended", "innocent")

async def main():
    async with AsyncClient() as client:
        await Worker(client, "default", handle, WorkerConfig(concurrency=5, tick_s=0.5)).run()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("innocents", "seconds"),
    [(8, "0.3"), pytest.param(20, "1.5", marks=pytest.mark.campaign("crashes"))],
    ids=["few", "many"],
)
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_no_innocent_fails_without_a_supervisor(
    server: Server, runs: Callable[..., AppRuns], innocents: int, seconds: str
) -> None:
    """Two programs, each of them a worker. The test starts dead ones again. Leases run out, so what a worker had
    prefetched has crashed too.
    """
    app_runs = runs(server.url, PROGRAM)
    with Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=3_000, crash_limit=2, keep_succeeded=1000))
        poison, *others = client.enqueue_many("default", [b"poison", *[seconds.encode()] * innocents])

        def is_over() -> bool:
            running = sum(process.poll() is None for process in app_runs.all)
            for _ in range(2 - running):
                app_runs.start_program()
            ended = client.count("default")
            return ended.succeeded + ended.failed == 1 + innocents

        wait_until(is_over, "the ends of all", 100)
        infos = client.lookup([poison, *others])
    assert {job: info.state for job, info in infos.items() if info.state is State.FAILED} == {poison: State.FAILED}
    check_deaths(app_runs, 2)


def check_deaths(app_runs: AppRuns, limit: int) -> None:
    """The poison job killed so many processes. Only in the first one an innocent ran beside it."""
    assert len(app_runs.notes("began", "poison")) == limit
    assert [began for began in app_runs.notes("began", "poison") if any(beside(app_runs, began))][1:] == []


def beside(app_runs: AppRuns, poison: Note) -> Iterator[Note]:
    """Innocents that had begun in the process of this poison job and did not end."""
    ended = [(note.pid, note.run) for note in app_runs.notes("ended")]
    for note in app_runs.notes("began", "innocent"):
        if note.pid == poison.pid and (note.pid, note.run) not in ended:
            yield note


@pytest.mark.thorough("crashes")
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_suspects_run_one_after_the_other_and_other_jobs_elsewhere(
    server: Server, runs: Callable[..., AppRuns]
) -> None:
    app_runs = runs(server.url, TASKS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=3, keep_succeeded=1000))
        holding = app.by_name("hold").enqueue_many([()] * 3)
        app.send("die_beside", 3)
        app_runs.start("--processes", "2", "--concurrency", "20")
        app_runs.wait("began", 4, "hold")
        app.by_name("fine").enqueue_many([()] * 100)
        app_runs.wait("ran", 100)
        assert len(app_runs.notes("began", "hold")) == 4
        (app_runs.folder / "go").touch()
        wait_until(lambda: all(handle.status() is State.SUCCEEDED for handle in holding), "the suspects")
