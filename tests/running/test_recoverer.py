"""The recoverer: jobs of a process that died come back at once, and the status of a job says how the process ended.

Promises: shown on real processes, with leases so long that no test waits for them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from pinlater import AsyncClient, Client, JobInfo, PinLater, QueueConfig, State
from pinlater.running.failed_jobs import FailedJobs
from pinlater.running.recoverer import Recoverer
from pinlater.store.servers import Server as StoreServer
from pinlater.store.shards import QueueShard, Shard
from pinlater.worker.started_jobs import STARTED_VARIABLE, record_started, shared_memory, started_ids
from tests.conftest import FreshServer
from tests.support.app_runs import AppRuns, runs
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server, free_port, wait_until

__all__ = ["runs"]  # a fixture

#: As ShortJobs: its workers prefetch all that they may from their first claim on.
PREFETCH_ALL = """
from pinlater.worker.end_rate import EndRate
EndRate.per_s = lambda self: 1e6
"""
TASKS = """
@app.task(name="die", attempts=1)
async def die(how: str) -> None:
    note("died", how)
    match how:
        case "exit":
            os._exit(3)
        case "exit-well":
            os._exit(0)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case _:
            os.kill(os.getpid(), signal.SIGKILL)

@app.task(name="beside")
async def beside() -> None:
    while not Path("died").exists():
        await asyncio.sleep(0.02)

@app.task(name="die_beside", attempts=1)
async def die_beside(how: str) -> None:
    path = Path("again" if Path("died").exists() else "first")
    while not path.exists():
        await asyncio.sleep(0.02)
    Path("died").touch()
    await die(how)

@app.task(name="fine")
async def fine() -> None:
    note("ran", "fine")
"""


@pytest.mark.parametrize(
    ("how", "ending", "limit"),
    [
        ("segfault", "was killed by SIGSEGV", 3),
        ("kill", "was killed by SIGKILL", 1),
        ("abort", "was killed by SIGABRT", 1),
        ("exit", "ended with exit code 3", 1),
        ("exit-well", "ended with exit code 0", 1),
    ],
)
def test_a_job_that_kills_its_process_is_quarantined_with_evidence(
    server: Server, runs: Callable[..., AppRuns], how: str, ending: str, limit: int
) -> None:
    """Long before the lease ends: it lasts ten minutes."""
    app_runs = runs(server.url, TASKS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=limit))
        app_runs.start("--processes", "2")
        handle = app.send("die", how)
        wait_until(lambda: handle.status() is State.FAILED, "the quarantine")
        info = handle.info()
        assert info is not None
        check_evidence(info, ending, [str(note.pid) for note in app_runs.notes("died")])
        if limit > 1:
            app.send("fine")
            app_runs.wait("ran", deadline_s=60)
            assert client.retry_jobs([handle.descriptor], attempts=1) == 1
            wait_until(lambda: (now := handle.info()) is not None and now.crashes == 1, "a crash, counted anew")


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_jobs_of_a_queue_that_came_with_a_reload_come_back_too(server: Server, runs: Callable[..., AppRuns]) -> None:
    app_runs = runs(server.url, TASKS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("new", QueueConfig(lease_ms=600_000, crash_limit=1))
        process = app_runs.start("--processes", "2")
        wait_until(lambda: app_runs.log.count("working on default:") == 2, "two processes")
        app_runs.write(TASKS.replace('name="fine"', 'name="fine", queue="new"'))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: app_runs.log.count("stopped: ") == 2, "two others")
        handle = app.by_name("die").using(queue="new").enqueue("kill")
        wait_until(lambda: handle.status() is State.FAILED, "the quarantine")


@on_loop
async def test_a_server_that_is_away_is_asked_again(
    fresh_server: FreshServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_server(aof_always=True)
    async with AsyncClient(server.url) as client, AsyncClient(server.url, timeout_s=1.0) as dying:
        await client.create_queue("q", QueueConfig(lease_ms=600_000, crash_limit=2))
        job = await client.enqueue("q", b"")
        assert len(await dying.dequeue("q", wait=10)) == 1
        process: Any = SimpleNamespace(pid=1, source=dying.settings.source, report={}, started=b"", end_in_words=str)
        recoverer = Recoverer(lambda: AsyncClient(server.url, timeout_s=0.5), ["q"])
        async with recoverer.open():
            await asyncio.to_thread(server.kill)
            recoverer.recover(process, -9)
            await until(lambda: "jobs of process 1 not recovered yet" in caplog.text, "the first try")
            await asyncio.to_thread(server.start)
            await until(lambda: recoverer.retried == 1, "a later one", 30)
        assert (await client.lookup([job]))[job].crashes == 1


@pytest.mark.parametrize(("how", "limit"), [("kill", 2), ("exit", 2), ("segfault", 3)])
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_only_jobs_that_a_dead_process_had_started_have_crashed(
    server: Server, runs: Callable[..., AppRuns], how: str, limit: int
) -> None:
    """The process also prefetched jobs that had not started. Any job that ran may have caused the crash."""
    app_runs = runs(server.url, PREFETCH_ALL + TASKS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=30_000, crash_limit=limit, keep_succeeded=10_000))
        fine = app.by_name("fine")
        fine.enqueue_many([()] * 500)
        beside, bad = app.send("beside"), app.send("die_beside", how)
        behind = fine.enqueue_many([()] * 500)
        app_runs.start("--processes", "1", "--max-memory", "10000", "--concurrency", "2")
        wait_until(lambda: client.count("default").succeeded == 500, "those in front")
        (app_runs.folder / "again").touch()
        (app_runs.folder / "first").touch()
        wait_until(lambda: bad.status() is State.FAILED, "the quarantine")
        wait_until(lambda: client.count("default").succeeded == 1001, "all others")
        assert len(app_runs.notes("died")) == limit
        infos = client.lookup([handle.descriptor for handle in (*behind, beside, bad)])
        assert [info.crashes for info in infos.values()] == [0] * 500 + [1, limit]
    assert re.search(r" 2 jobs tried again, 0 failed, [1-9]\d* not started", app_runs.log)


#: The supervisor inherits orphans, as process 1 of a container does.
ORPHANS = """
@app.task(name="apart", runs_in="process")
def apart() -> None:
    note("began", "apart")
    time.sleep(600)

@app.task(name="kill_worker", attempts=1)
async def kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":  # the supervisor: orphans become its children, as in a container
    from pinlater.cli import main
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.argv[1:] = ["run", "tasks:app", "--max-memory", "10000"]
    sys.exit(main())
"""


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_task_processes_of_a_dead_worker_leave_no_zombies(server: Server, runs: Callable[..., AppRuns]) -> None:
    app_runs = runs(server.url, ORPHANS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=1))
        app.send("apart")
        supervisor = app_runs.start_program()
        (began,) = app_runs.wait("began")
        app.send("kill_worker")
        wait_until(lambda: not Path(f"/proc/{began.pid}").exists(), "its end")
        assert supervisor.poll() is None


WITH_HOOKS = """
async def on_loop(failure) -> None:
    note("failed", f"{failure.task}:{failure.args[0]}:{failure.error!s:.21}".replace(" ", "_"))

def in_thread(failure) -> None:
    asyncio.run(on_loop(failure))

@app.task(name="async", attempts=1, on_failure=on_loop)
async def one(why: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(name="plain", attempts=1, on_failure=in_thread)
def two(why: str) -> None:
    os._exit(1)
"""


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_a_failure_by_crash_is_logged_and_counted_and_its_task_hears_of_it(
    server: Server, runs: Callable[..., AppRuns]
) -> None:
    app_runs, port = runs(server.url, WITH_HOOKS), free_port()
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=1))
        one = app.send("async", "one")
        app_runs.start("--processes", "1", "--max-memory", "10000", "--http", f"127.0.0.1:{port}")
        app_runs.wait("failed")
        two = app.send("plain", "two")
        told = [note.name for note in app_runs.wait("failed", 2)]
        assert told == ["async:one:worker_process_was_ki", "plain:two:worker_process_ended_"]
        for handle, name in ((one, "async"), (two, "plain")):
            assert re.search(rf"ERROR.* job {handle.descriptor}: task {name} failed for good: worker", app_runs.log)

        def metrics() -> str:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        line = 'pinlater_failed_by_crash_total{task="plain",queue="default"} 1\n'
        wait_until(lambda: line in metrics(), "its count")


def test_failed_jobs_wait_for_a_ready_process_and_are_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[list[str]] = []

    def process(*, ready: bool, takes: bool) -> Any:
        def send(message: dict[str, list[str]]) -> bool:
            sent.append(message["failed"])
            return takes

        return SimpleNamespace(ready=ready, send_message=send)

    failed_jobs, jobs = FailedJobs(), [f"q:s1:p1:{number}" for number in range(150)]
    with failed_jobs.open():
        failed_jobs.add(jobs, None)
        for ready, takes in ((False, True), (True, False), (True, True)):
            failed_jobs.reported(process(ready=ready, takes=takes))
        assert sent == [jobs[:100]] * 2
        assert caplog.records == []
    assert [record.getMessage().split()[1] for record in caplog.records] == jobs[100:]


TWO_WORKERS = """
from contextlib import suppress
from pinlater import AsyncClient, Worker

async def die(job):
    os.kill(os.getpid(), signal.SIGKILL)

async def work_too():
    while f" {os.getpid()} " not in Path("record").read_text():
        await asyncio.sleep(0.02)
    async with AsyncClient() as client:
        await Worker(client, "default", die).run()

@app.lifespan
async def lifespan():
    working = asyncio.create_task(work_too())
    yield
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working

@app.task(name="beside")
async def beside() -> None:
    note("began", "beside")
    await asyncio.Event().wait()
"""


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_jobs_of_every_worker_in_a_process_count_as_started(server: Server, runs: Callable[..., AppRuns]) -> None:
    """The lifespan runs a worker of its own. One of its jobs kills the process."""
    app_runs = runs(server.url, TWO_WORKERS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=2))
        beside = app.send("beside")
        app_runs.start("--processes", "1", "--max-memory", "10000", "--concurrency", "1")
        app_runs.wait("began")
        deadly = client.enqueue("default", b"")
        jobs = [beside.descriptor, deadly]
        wait_until(lambda: all(info.crashes for info in client.lookup(jobs).values()), "a crash of each")


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_a_synchronous_handler_that_dies_at_once_has_started(server: Server, tmp_path: Path) -> None:
    """Another job waits in another thread."""
    die = "import os, time\ndef die(job):\n    os.kill(os.getpid(), 9) if job.body else time.sleep(600)\n"
    (tmp_path / "handlers.py").write_text(die)
    command = [sys.executable, "-m", "pinlater", "worker", "handlers:die", "--queue", "q", "--processes", "2"]
    with Client(server.url) as client:
        client.create_queue("q", QueueConfig(lease_ms=600_000, crash_limit=1))
        jobs = client.enqueue_many("q", [b"", b"die"])
        environment = {**os.environ, "PINLATER_URL": server.url}
        log = tmp_path / "log"
        with log.open("wb") as out, subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=out) as supervisor:
            try:
                wait_until(lambda: " 0 jobs tried again, 2 failed, 0 not started" in log.read_text(), "its end")
            finally:
                supervisor.kill()
        assert [info.crashes for info in client.lookup(jobs).values()] == [1, 1]


def test_a_running_job_stays_recorded_however_many_start_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two workers of a process, on two shards whose ids coincide."""
    file, memory = shared_memory()
    monkeypatch.setenv(STARTED_VARIABLE, str(os.dup(file.fileno())))
    one, other = (QueueShard("q", Shard(name, StoreServer("redis://a")), b"") for name in "12")
    running = [held_job(7, one)]
    start, start_other = record_started(lambda: running, 5), record_started(list, 5)
    assert start is not None
    assert start_other is not None
    assert started_ids(memory, one) == b""
    start(running[0])
    assert started_ids(memory, other) == bytes(8)  # some were started, but none of these
    start_other(held_job(7, other))
    for id_ in range(100, 150):
        start(held_job(id_, one))
        ids = numbers_in(started_ids(memory, one))
        assert {7, id_} <= {*ids}
        assert len(ids) <= 5
        assert numbers_in(started_ids(memory, other)) == [7]
    file.close()


def held_job(id_: int, queue_shard: QueueShard) -> Any:
    return SimpleNamespace(job=SimpleNamespace(id=id_), lease=SimpleNamespace(queue_shard=queue_shard))


def numbers_in(ids: bytes) -> list[int]:
    return [int.from_bytes(ids[at : at + 8], "big") for at in range(0, len(ids), 8)]


@pytest.mark.parametrize("number", ["999", "0"])
def test_a_descriptor_of_another_file_is_left_open(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setenv(STARTED_VARIABLE, number)
    assert record_started(list, 5) is None
    assert STARTED_VARIABLE not in os.environ
    os.fstat(0)


def check_evidence(info: JobInfo, ending: str, pids: list[str]) -> None:
    """How each process ended, which it was, and when."""
    assert (info.crashes, info.attempts_remaining) == (len(pids), 0)
    lines = info.status.splitlines()
    assert lines[::2] == [f"worker process {ending} (crash {n + 1} of {len(pids)})" for n in range(len(pids))]
    for line, pid in zip(lines[1::2], pids, strict=True):
        assert f":{pid}:" in line
        assert ", claimed 20" in line
        assert ", recovered 20" in line
