"""What the log shows of a failed task: the frames of the task, and not those that led to it.

The tests run each kind of task on a real worker.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pinlater import Context, Depends, Execution, Item, Middleware, PinLater, SyncContext
from pinlater.running.app_worker import worker_of
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server


def deeper() -> None:
    raise LookupError("no such row")


class Around(Middleware):
    async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
        return await run()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The tracebacks, in order."""
    return [logging.Formatter().formatException(record.exc_info) for record in caplog.records if record.exc_info]


@on_loop
async def test_a_traceback_begins_in_the_task(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    app = PinLater(server.url)

    @app.task(attempts=1)
    def plain() -> None:
        deeper()

    @app.task(attempts=1, timeout=30)
    def timed(context: SyncContext) -> None:
        deeper()

    @app.task(attempts=1)
    async def on_the_loop() -> None:
        deeper()

    @app.task(attempts=1, timeout=30)
    async def with_all(context: Context, *, given: None = Depends(lambda: None)) -> None:
        deeper()

    @app.task(attempts=1, batch=2)
    def batch(items: list[Item[int]]) -> None:
        deeper()

    for task in (plain, timed, on_the_loop, with_all):
        await task.aenqueue()
    await batch.aenqueue(1)
    with caplog.at_level(logging.WARNING, "pinlater.worker"):
        async with app, worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
    shown = logged(caplog)
    frames = sorted(re.findall(r"^  File .*, in (\w+)$", text, re.MULTILINE) for text in shown)
    assert frames == sorted([name.rpartition(".")[2], "deeper"] for name in app.tasks)
    assert all(text.endswith("LookupError: no such row") for text in shown)


@on_loop
async def test_middleware_and_errors_that_are_all_ours_are_shown(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = PinLater(server.url, middleware=[Around()])

    @app.task(attempts=1)
    async def task() -> None:
        deeper()

    @app.task(attempts=1, timeout=0.05)
    async def long() -> None:
        await asyncio.sleep(60)

    await task.aenqueue()
    await long.aenqueue()
    with caplog.at_level(logging.WARNING, "pinlater.worker"):
        async with app, worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
    first, second = logged(caplog)
    assert re.findall(r"^  File .*, in (\w+)$", first, re.MULTILINE)[0] == "around"
    assert "in long" in second
    assert "TimedOut" in second
