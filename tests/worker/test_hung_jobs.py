"""A job that hangs past its timeout comes back elsewhere, and its claim's siblings do not.

Promises: shown on real processes whose loop, or GIL, a task keeps. Risks: none known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pinlater import AsyncClient, PinLater, QueueConfig
from pinlater.worker.monitor import Monitor
from tests.support.app_runs import AppRuns, runs
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server

__all__ = ["runs"]  # a fixture

TASKS = """
import pinlater.worker.time_limits
pinlater.worker.time_limits.GRACE_S, pinlater.worker.time_limits.LOOK_S = 0.3, 0.1

@app.task(name="note")
async def sibling(name: str) -> None:
    note("ran", name)

@app.task(name="hang", timeout=0.5)
async def hang(how: str) -> None:
    note("began", "hang")
    if Path("again").exists():
        return
    Path("again").touch()
    if how == "gil":
        libc = ctypes.PyDLL(None)
        while not Path("gate").exists():
            libc.usleep(500_000)
    wait_for("gate")
"""


@pytest.mark.parametrize("how", ["loop", "gil"])
@on_loop
async def test_a_hung_job_comes_back_elsewhere_and_its_siblings_do_not(
    server: Server, runs: Callable[..., AppRuns], how: str
) -> None:
    """One sibling ended before, its ack waits for the loop; another waits behind."""
    app_runs = runs(server.url, TASKS)
    async with PinLater(server.url) as app, AsyncClient(server.url) as client:
        await client.create_queue("default", QueueConfig(lease_ms=1_000, crash_limit=3))
        monitor = Monitor(client, ["default"], tick_s=0.2)
        await monitor.start()
        await app.asend("note", "before")
        hung = await app.asend("hang", how)
        await app.asend("note", "behind")
        app_runs.start("--concurrency", "3")
        await until(lambda: app_runs.notes("began"), "the job that hangs")
        app_runs.start("--concurrency", "3")
        await until(lambda: len(app_runs.notes("began")) == 2, "the same job elsewhere", 60)
        first, second = app_runs.notes("began")
        assert first.pid != second.pid
        assert {note.pid for note in app_runs.notes("ran")} <= {first.pid}
        (app_runs.folder / "gate").touch()
        await until(lambda: len(app_runs.notes("ran")) == 2, "the siblings", 60)
        async with asyncio.timeout(60):
            while (await client.count("default")).in_progress:  # noqa: ASYNC110  (nothing tells it)
                await asyncio.sleep(0.05)
        assert sorted((note.name, note.pid) for note in app_runs.notes("ran")) == [
            ("before", first.pid),
            ("behind", first.pid),
        ]
        assert len(app_runs.notes("began")) == 2
        assert await hung.ainfo() is None
        await monitor.stop()
