"""A worker on a loop whose tasks start eagerly (`asyncio.eager_task_factory`, from Python 3.12 on)."""

from __future__ import annotations

import asyncio

import pytest

from pinlater import PinLater, State
from pinlater.running.app_worker import worker_of
from tests.support.handlers_for_tests import on_loop
from tests.support.requirements import EAGER_TASKS, require
from tests.support.servers import Server


@pytest.fixture(autouse=True)
def _eager_tasks() -> None:
    require(EAGER_TASKS)


@on_loop
async def test_a_job_that_fails_at_once_has_failed(server: Server) -> None:
    """Its task would run before its job counts as running, and its end would not count."""
    ran = list[str]()
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009

    async with PinLater(server.url) as app:

        @app.task(attempts=2)
        async def fails() -> None:
            ran.append("fails")
            raise ValueError("at once")

        @app.task
        async def fine() -> None:
            ran.append("fine")

        failing = await fails.aenqueue()
        await fine.aenqueue()
        async with worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
        info = await failing.ainfo()
    assert (ran.count("fine"), worker.stats.succeeded) == (1, 1)
    assert info is not None
    assert (info.state, info.attempts_remaining) == (State.PENDING, 1)
    assert "at once" in info.status
