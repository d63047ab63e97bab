"""The levels of what the log says of a job's end: an alert on ERROR hears of each job that is lost.

The tests run tasks on a real worker.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from pinlater import Cancel, PinLater, Retry, Snooze
from pinlater.running.app_worker import worker_of
from pinlater.tasks.runner import TaskRunner
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server

ERRORS = {
    "succeeds": None,
    "fails": ValueError("no"),
    "retries": Retry("busy", delay=0),
    "cancels": Cancel("not needed"),
    "snoozes": Snooze(3600),
}


@pytest.mark.parametrize("success_level", [logging.DEBUG, logging.INFO])
@on_loop
async def test_the_level_says_what_became_of_the_job(
    server: Server, caplog: pytest.LogCaptureFixture, success_level: int
) -> None:
    app = PinLater(server.url)

    @app.task(name="ends", attempts=2, backoff=0)
    async def ends(how: str) -> None:
        if (error := ERRORS[how]) is not None:
            raise error

    @app.task(name="too late", expires=0)
    async def late() -> None: ...

    how = {(await ends.aenqueue(each)).descriptor: each for each in ERRORS}
    how[(await late.using(delay=0.001).aenqueue()).descriptor] = "expires"
    with caplog.at_level(logging.DEBUG, "pinlater.worker"):
        async with app, worker_of(app) as worker:
            assert isinstance(worker.handler, TaskRunner)
            if success_level != worker.handler.success_level:
                worker.handler.success_level = success_level
            await asyncio.wait_for(worker.run(burst=True), 30)
    said = [
        (how[descriptor], record.levelname)
        for record in caplog.records
        for descriptor in how
        if f"job {descriptor}: task" in record.getMessage()
    ]
    assert sorted(said) == [
        ("cancels", "INFO"),
        ("expires", "ERROR"),
        ("fails", "ERROR"),
        ("fails", "WARNING"),
        ("retries", "ERROR"),
        ("retries", "WARNING"),
        ("succeeds", logging.getLevelName(success_level)),
    ]
    for record in caplog.records:
        if record.levelname == "ERROR":
            assert "failed for good in attempt" in record.getMessage()
