"""A poison job takes nobody with it: a job whose last run ended in a crash runs alone in its process.

Promises: shown on real processes that are killed by a signal, end themselves, or are killed over their memory cap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pinlater import Client, PinLater, QueueConfig, State
from tests.support.app_runs import AppRuns, Note, runs
from tests.support.servers import Server, wait_until

__all__ = ["runs"]  # a fixture

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
    kept = bytearray(os.urandom(1 << 20)) * 400
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


@pytest.mark.parametrize(
    ("kind", "how", "before", "innocents", "seconds"),
    [
        ("async", "signal", 0, 5, 0.5),
        pytest.param("async", "signal", 200, 10, 3, marks=THOROUGH),
        pytest.param("thread", "exit", 200, 10, 2, marks=THOROUGH),
        pytest.param("thread", "signal", 0, 10, 2, marks=THOROUGH),
        pytest.param("async", "memory", 0, 10, 3, marks=THOROUGH),
        pytest.param("thread", "memory", 200, 10, 3, marks=THOROUGH),
    ],
)
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_no_innocent_fails_or_crashes_twice(
    server: Server,
    runs: Callable[..., AppRuns],
    kind: str,
    how: str,
    before: int,
    innocents: int,
    seconds: float,
) -> None:
    """before: so many jobs have run in the processes. seconds: how long an innocent runs."""
    app_runs = runs(server.url, TASKS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=3, keep_succeeded=1000))
        app_runs.start("--processes", "2", "--concurrency", "20", "--max-memory", "250")
        app.by_name("fine").enqueue_many([()] * before)
        app_runs.wait("ran", before)
        poison = app.send("poison", how)
        handles = app.by_name(kind).enqueue_many([(seconds,)] * innocents)
        wait_until(lambda: poison.status() is State.FAILED, "the quarantine", 120)
        wait_until(lambda: client.count("default").succeeded == before + innocents, "the others", 120)
        infos = client.lookup([handle.descriptor for handle in handles]).values()
        assert {info.crashes for info in infos} <= {0, 1}
    check_deaths(app_runs)


@pytest.mark.thorough("crashes")
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_no_innocent_fails_without_a_supervisor(server: Server, runs: Callable[..., AppRuns]) -> None:
    """Leases run out, so what the processes had prefetched has crashed too. The test starts dead processes again."""
    app_runs = runs(server.url, TASKS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=1_000, crash_limit=3, keep_succeeded=1000))
        poison = app.send("poison", "signal")
        app.by_name("async").enqueue_many([(0.5,)] * 20)

        def over() -> bool:
            running = sum(process.poll() is None for process in app_runs.all)
            for _ in range(2 - running):
                app_runs.start("--concurrency", "5")
            return poison.status() is State.FAILED and client.count("default").succeeded == 20

        wait_until(over, "the ends of all", 120)
    check_deaths(app_runs)


def check_deaths(app_runs: AppRuns) -> None:
    """The poison job killed three processes. Only in the first one an innocent ran beside it."""
    assert len(app_runs.notes("began", "poison")) == 3
    assert [began for began in app_runs.notes("began", "poison") if any(beside(app_runs, began))][1:] == []


def beside(app_runs: AppRuns, poison: Note) -> Iterator[Note]:
    """Innocents that had begun in the process of this poison job and did not end."""
    ended = [(note.pid, note.run) for note in app_runs.notes("ended")]
    for note in app_runs.notes("began", "innocent"):
        if note.pid == poison.pid and (note.pid, note.run) not in ended:
            yield note


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
        wait_until(lambda: all(handle.status() is State.SUCCEEDED for handle in holding), "the suspects", 60)
