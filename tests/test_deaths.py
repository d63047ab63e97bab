"""A supervisor tells of processes that died: their jobs come back at once, and how they ended stands in the status.

Promises: shown on real processes with leases that no test waits for. Risks: none known.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pinlater import AsyncClient, Client, JobInfo, PinLater, QueueConfig, State
from pinlater.deaths import Deaths
from tests.app_runs import AppRuns, runs
from tests.conftest import FreshServer
from tests.handlers_for_tests import on_loop, until
from tests.servers import Server, wait_until

__all__ = ["runs"]  # a fixture

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

@app.task(name="fine")
async def fine() -> None:
    note("ran", "fine")
"""


@pytest.mark.parametrize(
    ("how", "told", "limit"),
    [
        ("segfault", "was killed by SIGSEGV", 3),
        ("kill", "was killed by SIGKILL", 1),
        ("abort", "was killed by SIGABRT", 1),
        ("exit", "ended with exit code 3", 1),
        ("exit-well", "ended with exit code 0", 1),
    ],
)
def test_a_job_that_kills_its_process_is_quarantined_with_evidence(
    server: Server, runs: Callable[..., AppRuns], how: str, told: str, limit: int
) -> None:
    """Long before a lease ends: it is ten minutes."""
    app_runs = runs(server.url, TASKS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=limit))
        app_runs.start("--processes", "2")
        handle = app.send("die", how)
        wait_until(lambda: handle.status() is State.FAILED, "the quarantine", 60)
        info = handle.info()
        assert info is not None
        check_evidence(info, told, [str(note.pid) for note in app_runs.notes("died")])
        if limit > 1:
            app.send("fine")
            app_runs.wait("ran", deadline_s=60)
            assert client.retry_jobs([handle.descriptor], attempts=1) == 1
            wait_until(lambda: (now := handle.info()) is not None and now.crashes == 1, "a crash, counted anew", 60)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_jobs_of_a_queue_that_came_with_a_reload_come_back_too(server: Server, runs: Callable[..., AppRuns]) -> None:
    app_runs = runs(server.url, TASKS)
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("new", QueueConfig(lease_ms=600_000, crash_limit=1))
        process = app_runs.start("--processes", "2")
        wait_until(lambda: app_runs.log.count("working on default:") == 2, "two processes", 60)
        app_runs.write(TASKS.replace('name="fine"', 'name="fine", queue="new"'))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: app_runs.log.count("stopped: ") == 2, "two others", 60)
        handle = app.by_name("die").using(queue="new").enqueue("kill")
        wait_until(lambda: handle.status() is State.FAILED, "the quarantine", 60)


@on_loop
async def test_a_server_that_is_away_is_told_when_it_is_back(
    fresh_server: FreshServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_server(aof_always=True)
    async with AsyncClient(server.url) as client, AsyncClient(server.url, timeout_s=1.0) as dying:
        await client.create_queue("q", QueueConfig(lease_ms=600_000, crash_limit=2))
        job = await client.enqueue("q", b"")
        assert len(await dying.dequeue("q", wait=10)) == 1
        process: Any = SimpleNamespace(pid=1, source=dying._settings.source, report={})
        deaths = Deaths(lambda: AsyncClient(server.url, timeout_s=0.5), ["q"])
        async with deaths.open():
            await asyncio.to_thread(server.kill)
            deaths(process, -9)
            await until(lambda: "what process 1 held comes back later" in caplog.text, "the first try")
            await asyncio.to_thread(server.start)
            await until(lambda: deaths.retried == 1, "a later one", 30)
        assert (await client.lookup([job]))[job].crashes == 1


def check_evidence(info: JobInfo, told: str, pids: list[str]) -> None:
    """How each process ended, which it was, and when."""
    assert (info.crashes, info.attempts_remaining) == (len(pids), 0)
    lines = info.status.splitlines()
    assert lines[::2] == [f"worker process {told} (crash {n + 1} of {len(pids)})" for n in range(len(pids))]
    for line, pid in zip(lines[1::2], pids, strict=True):
        assert f":{pid}:" in line
        assert ", claimed 20" in line
        assert ", given back 20" in line
