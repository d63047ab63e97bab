"""What the log shows of a failed task: the frames of the task, and not those that led to it.

The tests run each kind of task on a real worker.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import pinlater
from pinlater import (
    AsyncClient,
    Context,
    Depends,
    Execution,
    Failure,
    Item,
    Job,
    Middleware,
    PinLater,
    Snooze,
    SyncContext,
    Task,
    Worker,
    WorkerConfig,
)
from pinlater.model.tracebacks import exc_info_of
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks.logs import JsonFormatter, TextFormatter
from tests.support import calls_app
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server

PACKAGE = str(Path(pinlater.__file__).parent)


def deeper() -> None:
    raise LookupError("no such row")


class Around(Middleware):
    async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
        if execution.task == "refused":
            raise PermissionError
        return await run()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The tracebacks, in order, as any formatter shows them."""
    shown = [logging.Formatter("%(message)s").format(record) for record in caplog.records if record.exc_info]
    return [text.partition("\n")[2] for text in shown]


def functions(text: str) -> list[str]:
    """The functions of the frames, the outermost first."""
    return re.findall(r"^ +File .*, in (\w+)$", text, re.MULTILINE)


async def tracebacks(app: PinLater, caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Runs the app's jobs. Returns the logged tracebacks by the last part of their task's name."""
    with caplog.at_level(logging.WARNING, "pinlater.worker"):
        async with app, worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
    names = [re.search(r"task (\S+) failed", record.getMessage()) for record in caplog.records if record.exc_info]
    return dict(zip([name[1].rpartition(".")[2] for name in names if name], logged(caplog), strict=True))


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
    frames = sorted(map(functions, shown))
    assert frames == sorted([name.rpartition(".")[2], "deeper"] for name in app.tasks)
    assert all(text.endswith("LookupError: no such row") for text in shown)


@on_loop
async def test_middleware_stands_only_where_it_raised(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    app = PinLater(server.url, middleware=[Around()])

    @app.task(attempts=1)
    async def task() -> None:
        deeper()

    @app.task(attempts=1, batch=2)
    async def batch(items: list[Item[int]]) -> None:
        deeper()

    @app.task(attempts=1, timeout=0.05)
    async def long() -> None:
        await asyncio.sleep(60)

    @app.task(name="refused", attempts=1)
    async def refused() -> None: ...

    await batch.aenqueue(1)
    for each in (task, long, refused):
        await each.aenqueue()
    shown = await tracebacks(app, caplog)
    assert functions(shown["task"])[:2] == ["task", "deeper"]
    assert functions(shown["batch"]) == ["batch", "deeper"]
    assert functions(shown["refused"]) == ["around"]
    assert "in long" in shown["long"]
    assert "TimedOut" in shown["long"]


@on_loop
async def test_an_error_that_was_never_raised_has_no_frames(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    app = PinLater(server.url)

    @app.task(attempts=1, batch=2)
    async def batch(items: list[Item[str]]) -> None:
        for item in items:
            if item.value == "caught":
                try:
                    deeper()
                except LookupError as error:
                    item.fail(error)
            else:
                item.fail(LookupError("given"))

    await batch.aenqueue_many([("given",), ("caught",)])
    with caplog.at_level(logging.WARNING, "pinlater.worker"):
        async with app, worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
    assert sorted(map(functions, logged(caplog))) == [[], ["batch", "deeper"]]


@on_loop
async def test_the_traceback_of_a_process_begins_in_the_task(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINLATER_URL", server.url)
    async with calls_app.app as app:
        await calls_app.fail.aenqueue("as said")
        with caplog.at_level(logging.WARNING, "pinlater.worker"):
            async with worker_of(app, ["default"], task_processes=1) as worker:
                await asyncio.wait_for(worker.run(burst=True), 60)
    [text] = logged(caplog)
    assert set(functions(text)) == {"fail"}
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.count("Traceback (most recent call last)") == 1
    assert text.endswith("\nKeyError: 'as said'")


@pytest.mark.parametrize(("task", "line"), [(calls_app.die, "ProcessDied: "), (calls_app.square, "ResultNotKept: ")])
@on_loop
async def test_an_error_of_a_process_without_frames_of_the_task_is_one_line(
    task: Task[[str], Any], line: str, server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINLATER_URL", server.url)
    async with calls_app.app as app:
        await task.aenqueue("kill")
        with caplog.at_level(logging.WARNING, "pinlater.worker"):
            async with worker_of(app, [task.queue], task_processes=1) as worker:
                await asyncio.wait_for(worker.run(burst=True), 60)
    [text] = logged(caplog)
    assert line in text
    assert text.count("\n") == 0


@pytest.mark.parametrize("log_format", [TextFormatter(), JsonFormatter()])
@on_loop
async def test_the_formats_of_a_worker_show_the_traceback_of_a_process(
    log_format: logging.Formatter, server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINLATER_URL", server.url)
    async with calls_app.app as app:
        await calls_app.fail.aenqueue("as said")
        with caplog.at_level(logging.WARNING, "pinlater.worker"):
            async with worker_of(app, ["default"], task_processes=1) as worker:
                await asyncio.wait_for(worker.run(burst=True), 60)
    [text] = [log_format.format(record) for record in caplog.records if record.exc_info]
    assert "Traceback (most recent call last)" in text
    assert "RaisedInProcess" not in text


@on_loop
async def test_no_frame_of_pinlater_is_shown_where_the_task_did_not_raise(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = PinLater(server.url)

    @app.task(attempts=1, timeout=0.05)
    async def late() -> None:
        await asyncio.sleep(60)

    @app.task(attempts=1, timeout=0.05)
    def late_thread(context: SyncContext) -> None:
        while not context.cancelled:
            time.sleep(0.01)

    @app.task(attempts=1)
    async def snoozes() -> None:
        raise Snooze(5, state=object())

    @app.task(attempts=1, result_ttl=60)
    async def unpackable() -> Any:
        return object()

    @app.task(attempts=1)
    async def stops() -> None:
        raise StopIteration

    for task in (late, late_thread, snoozes, unpackable, stops):
        await task.aenqueue()
    shown = await tracebacks(app, caplog)
    frames = {name: functions(text) for name, text in shown.items()}
    assert frames.pop("late")[0] == "late"
    assert frames == {"late_thread": [], "snoozes": [], "unpackable": [], "stops": ["stops"]}
    last = {name: text.splitlines()[-1].split(":")[0].rpartition(".")[2] for name, text in shown.items()}
    assert last == {
        "late": "TimedOut",
        "late_thread": "TimedOut",
        "snoozes": "InvalidArgument",
        "unpackable": "ResultNotKept",
        "stops": "RuntimeError",
    }
    assert not [text for text in shown.values() if PACKAGE in text]


@on_loop
async def test_hooks_and_backoffs_begin_in_themselves(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def hook(failure: Failure) -> None:
        deeper()

    def backoff(attempt: int, error: BaseException) -> float:
        deeper()
        return 0

    app = PinLater(server.url)

    @app.task(attempts=2, backoff=backoff)
    async def task() -> None:
        raise ValueError

    @app.task(attempts=1, on_failure=hook)
    async def hooked() -> None:
        raise ValueError

    await task.aenqueue()
    await hooked.aenqueue()
    with caplog.at_level(logging.WARNING, "pinlater.worker"):
        async with app, worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 60)
    assert sorted(map(functions, logged(caplog))) == [
        ["hook", "deeper"],
        ["hooked"],
        ["task"],
        ["task", "backoff", "deeper"],  # raised while the task's error was handled
    ]


@on_loop
async def test_a_plain_handler_s_traceback_begins_in_the_handler(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(job: Job) -> None:
        deeper()

    async with AsyncClient(server.url) as client:
        await client.create_queue("plain")
        await client.enqueue("plain", b"", attempts=2)
        with caplog.at_level(logging.WARNING, "pinlater.worker"):
            worker = Worker(client, "plain", handler, WorkerConfig(retry_delay_ms=0))
            await asyncio.wait_for(worker.run(burst=True), 30)
    assert list(map(functions, logged(caplog))) == [["handler", "deeper"]] * 2
    assert [record.levelname for record in caplog.records if record.exc_info] == ["WARNING", "ERROR"]


def test_an_error_that_may_be_a_bug_of_pinlater_keeps_its_frames() -> None:
    with pytest.raises(TypeError) as raised:
        envelope.read(cast(bytes, None))
    _, _, trace = exc_info_of(raised.value.with_traceback(raised.tb.tb_next))
    assert trace is not None
    assert trace.tb_frame.f_code.co_name == "read"
