"""The table of ends in docs/tasks.md, line by line on real servers, and the report of a failure.

A line of the page without a test fails, and so does a test without a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import re
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pytest

import pinlater
from pinlater import (
    Cancel,
    Constant,
    Context,
    Execution,
    Expired,
    Exponential,
    Failure,
    InvalidArgument,
    Item,
    Job,
    JobInfo,
    Linear,
    Middleware,
    PinLater,
    RateLimited,
    Retry,
    Snooze,
    State,
    SyncContext,
    Task,
)
from pinlater.operations.limits import queue_limits
from pinlater.running import metrics
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks.app import parts_of
from pinlater.tasks.reports import report
from pinlater.tasks.retry_policies import Backoff
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.monitor import Monitor
from pinlater.worker.worker import Worker, WorkerConfig
from tests.conftest import FreshServer
from tests.support import calls_app
from tests.support.handlers_for_tests import on_loop, until
from tests.support.pages import page, row_ids
from tests.support.servers import Server, is_alive
from tests.support.wire import jump

HOUR_MS = 3_600_000
LINES: dict[str, Callable[[PinLater], Awaitable[None]]] = {}


def line(test: Callable[[PinLater], Awaitable[None]]) -> None:
    """The test of a row of the table: its name is the row's id."""
    LINES[test.__name__.lstrip("_").replace("_", "-")] = test


def test_every_line_of_the_table_has_its_test() -> None:
    assert sorted(row_ids(page("tasks"), "ends")) == sorted(LINES)


async def run(app: PinLater, **config: Any) -> Worker:
    """Runs once what is due, to its end."""
    async with worker_of(app, config=WorkerConfig(**config)) as worker:
        await asyncio.wait_for(worker.run_once(), 30)
        return worker


async def one(app: PinLater, task: Task[[], Any]) -> tuple[JobInfo | None, int]:
    """How one job ended, and in how many ms after its enqueue it is due; delays of an hour to the second."""
    handle = await task.aenqueue()
    await run(app)
    info = await handle.ainfo()
    due_ms = 0 if info is None or info.run_after_ms is None else info.run_after_ms - info.created_ms
    return info, due_ms


def is_pending(info: JobInfo | None, used: int) -> bool:
    assert info is not None
    return (info.state, info.attempts_allowed - info.attempts_remaining) == (State.PENDING, used)


def is_failed(info: JobInfo | None, text: str) -> bool:
    assert info is not None
    return (info.state, info.attempts_remaining, info.status.partition("\n")[0]) == (State.FAILED, 0, text)


def about_an_hour(ms: int) -> bool:
    return HOUR_MS <= ms <= HOUR_MS + 30_000


@line
async def _returns(app: PinLater) -> None:
    @app.task
    async def task() -> str:
        return "fine"

    assert (await one(app, task))[0] is None
    client = parts_of(app).clients.of_loop()
    await client.configure_queue("default", keep_succeeded=10)
    info, _ = await one(app, task)
    assert info is not None
    assert info.state is State.SUCCEEDED


@line
async def _raises(app: PinLater) -> None:
    @app.task(backoff=3600)
    async def task() -> None:
        raise ValueError("no")

    @app.task(attempts=1)
    def last() -> None:
        raise SystemExit("no")

    @app.task(backoff=lambda attempt, error: 3600 * attempt if isinstance(error, asyncio.CancelledError) else 0)
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    for each in (task, cancels_itself):
        info, due_ms = await one(app, each)
        assert is_pending(info, 1)
        assert about_an_hour(due_ms)
    assert is_failed((await one(app, last))[0], "SystemExit: no")


@line
async def _gives_up(app: PinLater) -> None:
    @app.task(give_up_on=(LookupError,))
    async def task() -> None:
        raise KeyError("no")

    @app.task(give_up_on=LookupError)
    def one_type() -> None:
        raise KeyError("no")

    for each in (task, one_type):
        assert is_failed((await one(app, each))[0], "KeyError: 'no'")


@line
async def _retry(app: PinLater) -> None:
    @app.task(backoff=0)
    async def after() -> None:
        raise Retry("why", delay=3600)

    @app.task(backoff=3600)
    def without() -> None:
        raise Retry

    @app.task(attempts=1)
    async def last() -> None:
        raise Retry("why", delay=3600)

    for task in (after, without):
        info, due_ms = await one(app, task)
        assert is_pending(info, 1)
        assert about_an_hour(due_ms)
    assert is_failed((await one(app, last))[0], "Retry: why")


@line
async def _snooze(app: PinLater) -> None:
    @app.task(attempts=1)
    async def task(context: Context) -> None:
        await context.checkpoint("kept")
        raise Snooze(3600)

    info, due_ms = await one(app, task)
    assert is_pending(info, 0)
    assert about_an_hour(due_ms)


@line
async def _rate_limited(app: PinLater) -> None:
    @app.task(attempts=1)
    async def task() -> None:
        raise RateLimited(datetime.timedelta(hours=1))

    info, due_ms = await one(app, task)
    assert is_pending(info, 0)
    assert about_an_hour(due_ms)
    client = parts_of(app).clients.of_loop()
    limits = await client.run(lambda end: queue_limits(client.session, task.queue, end))
    assert HOUR_MS - 30_000 < limits.paused_ms <= HOUR_MS


@line
async def _cancel(app: PinLater) -> None:
    @app.task
    def task() -> None:
        raise Cancel("why")

    assert is_failed((await one(app, task))[0], "Cancel: why")


@line
async def _result_not_kept(app: PinLater) -> None:
    @app.task(result_ttl=60)
    async def unpackable():  # type: ignore[no-untyped-def]
        return Decimal(1)

    @app.task(result_ttl=60)
    def too_large() -> bytes:
        return bytes(2_000_000)

    said = {
        unpackable: "ResultNotKept: result: it can not be packed as msgpack: can not serialize 'decimal.Decimal' "
        "object; annotate the return type of the function with one that says what it is, or return None, bool, int to "
        "64 bits, float, text, list and dict",
        too_large: "ResultNotKept: result: expected at most 1,048,576 bytes (the queue's body limit), got 2,000,006",
    }
    for task, text in said.items():
        info, _ = await one(app, task)
        assert is_failed(info, text)


@line
async def _does_not_fit(app: PinLater) -> None:
    before_its_function_is_known: Any = app.by_name("task")

    @app.task(name="task")
    async def task(x: int) -> None: ...

    info, _ = await one(app, before_its_function_is_known)
    said = "TypeError: _does_not_fit.<locals>.task() missing 1 required positional argument: 'x'"
    assert is_failed(info, said)


@line
async def _timeout(app: PinLater) -> None:
    cancelled = []

    @app.task(timeout=0.05, backoff=3600)
    async def task() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    info, due_ms = await one(app, task)
    assert cancelled == [True]
    assert is_pending(info, 1)
    assert info is not None
    assert info.status.startswith("TimedOut: it ran longer than its timeout, 0.05 s\n  attempt 1 of 5 by python:")
    assert about_an_hour(due_ms)


@line
async def _ends_otherwise(app: PinLater) -> None:
    @app.task(timeout=0.05, backoff=3600, result_ttl=60)
    async def task(how: str) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if how == "returns":
                return "late"
            raise (ValueError("its cleanup") if how == "raises" else Cancel("why")) from None
        return "never"

    causes = {"returns": "", "raises": "  from ValueError: its cleanup", "cancels": "  from Cancel: why"}
    for how, cause in causes.items():
        handle = await task.aenqueue(how)
        worker = await run(app)
        info = await handle.ainfo()
        assert is_pending(info, 1)
        assert info is not None
        lines = info.status.splitlines()
        assert lines[0] == "TimedOut: it ran longer than its timeout, 0.05 s"
        assert lines[1].startswith(cause or "  attempt 1 of 5")
        assert worker.handler.stats.timeouts == 1  # type: ignore[union-attr]


@line
async def _swallows(app: PinLater) -> None:
    gate, left = asyncio.Event(), []

    @app.task(timeout=0.05, backoff=3600)
    async def task() -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        left.append(True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pinlater.worker.time_limits.GRACE_S", 0.1)
        patch.setattr("pinlater.worker.time_limits.LOOK_S", 0.02)
        info, due_ms = await one(app, task)
    assert not left
    gate.set()
    assert is_pending(info, 1)
    assert info is not None
    assert info.status.startswith("TimedOut: it was cancelled in vain, and ran longer than its timeout, 0.05 s\n")
    assert about_an_hour(due_ms)
    await until(lambda: left, "its end")


def wait_until_cancelled(context: SyncContext) -> None:
    end_s = time.monotonic() + 30
    while not context.cancelled:
        assert time.monotonic() < end_s
        time.sleep(0.01)


@line
async def _thread_timeout(app: PinLater) -> None:
    left = threading.Event()

    @app.task(timeout=0.2, backoff=3600)
    def hangs(context: SyncContext) -> None:
        wait_until_cancelled(context)
        left.set()

    @app.task(queue="second", timeout=20)
    def fine() -> None: ...

    handles = [await hangs.aenqueue(), await fine.aenqueue()]
    worker = await run(app, concurrency=1)
    assert await asyncio.to_thread(left.wait, 30)
    infos = [await handle.ainfo() for handle in handles]
    assert is_pending(infos[0], 1)
    assert infos[0] is not None
    assert infos[0].status.startswith("TimedOut: its thread ran longer than its timeout, 0.2 s\n")
    assert infos[1] is None
    assert worker.stats.succeeded == 1


async def _in_process(
    app: PinLater, task: Task[[str], Any], argument: str, **config: Any
) -> tuple[JobInfo | None, int]:
    """As `one`, of a task of tests/support/calls_app.py, which is on the same server."""
    async with calls_app.app as own, worker_of(own, ["default"], task_processes=1) as worker:
        handle = await task.aenqueue(argument)
        await asyncio.wait_for(worker.run_once(), 30)
        info = await handle.ainfo()
    return info, 0 if info is None or info.run_after_ms is None else info.run_after_ms - info.created_ms


@line
async def _process_timeout(app: PinLater) -> None:
    with tempfile.NamedTemporaryFile() as out:
        info, due_ms = await _in_process(app, calls_app.spin, out.name)
        (line,) = out.read().decode().splitlines()
    assert not is_alive(int(line.split()[1]))
    assert is_pending(info, 1)
    assert info is not None
    assert info.status.startswith(
        "TimedOut: its process ran longer than its timeout, 0.5 s\n  attempt 1 of 5 by python:"
    )
    assert about_an_hour(due_ms)


@contextlib.contextmanager
def _short_hooks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pinlater.worker.time_limits.HOOKS_S", 0.1)
        patch.setattr("pinlater.worker.time_limits.LOOK_S", 0.02)
        yield


async def _hang(gate: asyncio.Event, how: str) -> None:
    while not gate.is_set():
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if how != "goes on":
                raise


@line
async def _middleware_hangs(app: PinLater) -> None:
    gate, notes = asyncio.Event(), list[object]()

    class Hangs(Middleware):
        async def before(self, execution: Execution) -> None:
            if execution.args[0] == "before":
                await _hang(gate, execution.args[1])

        async def after(self, execution: Execution, error: BaseException | None) -> None:
            notes.append(error)
            if execution.args[0] == "after":
                await _hang(gate, execution.args[1])

    app.add_middleware(Hangs())

    @app.task(backoff=3600)
    async def task(when: str, how: str) -> None:
        notes.append(when)
        await asyncio.sleep(0.3)  # which does not count

    for when in ("before", "after", "never"):
        for how in ("ends", "goes on"):
            notes.clear()
            handle = await task.aenqueue(when, how)
            with _short_hooks():
                worker = await run(app, concurrency=1)
            info = await handle.ainfo()
            gate.set()
            await asyncio.sleep(0)
            gate.clear()
            assert notes[:2] == [when, None] if when != "before" else when not in notes
            if when == "never":
                assert info is None
                continue
            assert is_pending(info, 1)
            assert info is not None
            assert info.status.startswith("TimedOut: its middleware ran longer than its timeout, 0.1 s\n")
            assert worker.handler.stats.timeouts == 1  # type: ignore[union-attr]


@line
async def _hook_hangs(app: PinLater) -> None:
    gate, threads, started = asyncio.Event(), threading.Event(), list[str]()

    def hook_for(how: str) -> Callable[[Failure], Any]:
        async def on_the_loop(failure: Failure) -> None:
            started.append(how)
            await _hang(gate, how)

        def in_a_thread(failure: Failure) -> None:
            started.append(how)
            threads.wait(30)

        return in_a_thread if how == "thread" else on_the_loop

    def fails() -> None:
        raise ValueError("no")

    async def fails_async() -> None:
        raise ValueError("no")

    try:
        for how in ("ends", "goes on", "thread"):
            for function in (fails, fails_async):
                name = f"{function.__name__} {how}"
                task: Any = app.task(name=name, attempts=1, result_ttl=60, on_failure=hook_for(how))(function)
                with _short_hooks():
                    info, _ = await one(app, task)
                assert is_failed(info, "ValueError: no")
    finally:
        gate.set()
        threads.set()
    assert started == ["ends"] * 2 + ["goes on"] * 2 + ["thread"] * 2


@line
async def _process_dies(app: PinLater) -> None:
    for how, said in (
        ("exit", "ended with exit code 7"),
        ("segfault", "was killed by SIGSEGV"),
        ("kill", "was killed by SIGKILL"),
    ):
        info, due_ms = await _in_process(app, calls_app.die, how)
        assert is_pending(info, 1)
        assert info is not None
        assert info.status.startswith(f"ProcessDied: its process {said}\n  attempt 1 of 5 by python:")
        assert about_an_hour(due_ms)


@line
async def _process_not_started(app: PinLater) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(calls_app.ALONE_VARIABLE, str(os.getpid()))
        info, due_ms = await _in_process(app, calls_app.die, "exit")
    assert is_pending(info, 0)
    assert info is not None
    assert (info.status, due_ms > 0) == ("", True)


@line
async def _item_failed(app: PinLater) -> None:
    @app.task(batch=3, backoff=3600)
    async def task(items: list[Item[str]]) -> None:
        for item in items:
            if item.value == "fail":
                item.fail(ValueError("no"))
            elif item.value == "cancel":
                item.fail(Cancel("why"))

    handles = [await task.aenqueue(value) for value in ("fine", "fail", "cancel")]
    await run(app)
    fine, failed, cancelled = [await handle.ainfo() for handle in handles]
    assert fine is None
    assert is_pending(failed, 1)
    assert is_failed(cancelled, "Cancel: why")


@line
async def _batch_fails(app: PinLater) -> None:
    @app.task(batch=2, backoff=3600)
    async def task(items: list[Item[int]]) -> None:
        items[0].fail(Cancel("why"))
        raise ValueError("no")

    handles = await task.aenqueue_many([(1,), (2,)])
    await run(app)
    infos = sorted([await handle.ainfo() for handle in handles], key=lambda info: info.state.code if info else 9)
    assert is_pending(infos[0], 1)
    assert is_failed(infos[1], "Cancel: why")


@line
async def _expires(app: PinLater) -> None:
    ran = []

    @app.task(expires=0.05)
    async def task(x: str) -> None:
        ran.append(x)

    handles = [await task.aenqueue("late"), await task.using(delay=0.1).aenqueue("delayed")]
    await asyncio.sleep(0.12)
    await run(app)
    info = await handles[0].ainfo()
    assert info is not None
    assert info.state is State.FAILED
    assert re.match(r"Expired: not run: it came \d+ ms after it was due, and expires after 50\n", info.status)
    assert "late" not in ran  # the delayed one was due 20 ms ago
    assert await parts_of(app).clients.of_loop().retry_jobs([handles[0].descriptor], attempts=1)
    await run(app)
    assert await handles[0].astatus() is State.FAILED  # brought back, it expires again
    assert "late" not in ran


@on_loop
async def test_a_job_for_a_time_does_not_expire_because_ids_are_ahead(fresh_server: FreshServer) -> None:
    """The server's clock ran an hour ahead. Ids, which carry the time of a claim, never go back."""
    server = fresh_server(fake_clock=True)
    async with PinLater(server.url) as app:
        ran = []

        @app.task(expires=60)
        async def task(x: str) -> None:
            ran.append(x)

        jump(server, 3600)
        await task.aenqueue("ahead")
        jump(server, -3600)
        now = datetime.datetime.now(datetime.UTC)
        late, due = [
            await task.using(at=now - datetime.timedelta(seconds=before_s)).aenqueue("at") for before_s in (61, 0)
        ]
        await run(app)
        assert ran == ["ahead", "at"]
        assert (await late.astatus(), await due.ainfo()) == (State.FAILED, None)


async def _stopped(
    app: PinLater, task: Task[[], Any], started: Callable[[], object], timeout_s: float
) -> JobInfo | None:
    handle = await task.aenqueue()
    async with worker_of(app, config=WorkerConfig(stop_timeout_s=timeout_s)) as worker:
        await worker.start()
        await until(started, "its begin")
        worker.request_stop()
        await worker.stop()
    return await handle.ainfo()


@line
async def _ends_at_a_stop(app: PinLater) -> None:
    started = []

    @app.task(attempts=1)
    async def task() -> None:
        started.append(True)
        await asyncio.sleep(0.2)
        raise ValueError("its end")

    assert is_failed(await _stopped(app, task, lambda: started, 30), "ValueError: its end")


@line
async def _cut_off_at_a_stop(app: PinLater) -> None:
    started = []

    @app.task(attempts=2)
    async def task() -> None:
        started.append(True)
        await asyncio.sleep(30)

    info = await _stopped(app, task, lambda: started, 0.1)
    assert is_pending(info, 0)
    assert info is not None
    assert info.run_after_ms == info.created_ms


@line
async def _thread_left_at_a_stop(app: PinLater) -> None:
    started, left = [], threading.Event()

    @app.task(attempts=2)
    def task(context: SyncContext) -> None:
        started.append(True)
        wait_until_cancelled(context)
        left.set()

    info = await _stopped(app, task, lambda: started, 0.1)
    assert await asyncio.to_thread(left.wait, 30)
    assert is_pending(info, 0)
    assert info is not None
    assert info.run_after_ms == info.created_ms


@line
async def _process_killed_at_a_stop(app: PinLater) -> None:
    with tempfile.NamedTemporaryFile() as out:
        async with calls_app.app as own:
            handle = await calls_app.last.aenqueue(out.name)
            config = WorkerConfig(stop_timeout_s=0.1)
            async with worker_of(own, ["default"], config, task_processes=1) as worker:
                await worker.start()
                await until(lambda: Path(out.name).read_text(), "its begin")
                await worker.stop()
            info = await handle.ainfo()
        assert not is_alive(int(out.read().split()[1]))
    assert is_pending(info, 0)
    assert info is not None
    assert info.run_after_ms == info.created_ms


@line
async def _collected_at_a_stop(app: PinLater) -> None:
    @app.task(batch=9, batch_wait=60, attempts=2)
    async def task(items: list[Item[int]]) -> None: ...

    handle = await task.aenqueue(1)
    async with worker_of(app) as worker:
        await worker.start()
        await until(lambda: worker.running, "its collection")
        await worker.stop()
    info = await handle.ainfo()
    assert is_pending(info, 0)
    assert info is not None
    assert info.run_after_ms == info.created_ms


@line
async def _cancelled(app: PinLater) -> None:
    started = asyncio.Event()

    @app.task
    async def task() -> None:
        started.set()
        await asyncio.Event().wait()

    async with worker_of(app) as worker:
        await worker.start()
        handle = await task.aenqueue()
        await asyncio.wait_for(started.wait(), 30)
        assert await handle.acancel()
        await until(lambda: worker.stats.cancelled == 1, "its end")
        await worker.stop()
    assert await handle.ainfo() is None
    assert worker.stats.claimed == 1


@line
async def _dies(app: PinLater) -> None:
    @app.task(lease=0.3, attempts=1)
    async def task() -> None: ...

    handle = await task.aenqueue()
    for crashes in (1, 2, 3):
        async with parts_of(app).clients.new() as dying:
            assert len(await dying.dequeue("default", wait=5)) == 1
        async with parts_of(app).clients.new() as client:
            monitor = Monitor(client, ["default"], tick_s=0.1)
            await monitor.start()
            await _until_crashes(handle.ainfo, crashes)
            await monitor.stop()
        info = await handle.ainfo()
        assert info is not None
        assert (info.state, info.attempts_remaining) == ((State.PENDING, 1) if crashes < 3 else (State.FAILED, 0))


async def _until_crashes(look: Callable[[], Awaitable[JobInfo | None]], crashes: int) -> None:
    end_s = time.monotonic() + 10
    while (info := await look()) is None or info.crashes < crashes:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.02)


@line
async def _unknown(app: PinLater) -> None:
    @app.task
    async def known() -> None: ...

    handles = [await app.asend("not.here", 1) for _ in range(3)]
    worker = await run(app)
    for handle in handles:
        info = await handle.ainfo()
        assert is_pending(info, 0)
        assert info is not None
        assert info.run_after_ms is not None
        assert 5_000 <= info.run_after_ms - info.created_ms <= 30_000
    assert worker.stats.postponed == 3


@line
async def _newer(app: PinLater) -> None:
    @app.task
    async def task() -> None: ...

    client = parts_of(app).clients.of_loop()
    await client.create_queue("default")
    job = await client.enqueue("default", b"\xfe\x02 of the future", attempts=1)
    worker = await run(app)
    info = (await client.lookup([job]))[job]
    assert is_pending(info, 0)
    assert info.run_after_ms is not None
    assert 5_000 <= info.run_after_ms - info.created_ms <= 30_000
    assert (worker.stats.postponed, worker.stats.failed) == (1, 0)


@line
async def _unreadable(app: PinLater) -> None:
    @app.task
    async def task() -> None: ...

    @app.task(expires=60)
    async def expires() -> None: ...

    client = parts_of(app).clients.of_loop()
    await task.aenqueue()
    foreign = envelope.head(expires.name, "msgpack") + msgpack.packb([[], {}, {"delay": "x"}])
    jobs = [await client.enqueue("default", body, attempts=9) for body in (b"hello", foreign)]
    worker = await run(app)
    infos = await client.lookup(jobs)
    assert is_failed(infos[jobs[0]], "BodyUnreadable: expected an envelope (bytes 0xfe and 1), got b'hello'")
    assert is_failed(infos[jobs[1]], "BodyUnreadable: envelope: expected the header delay in milliseconds, got 'x'")
    assert (worker.stats.succeeded, worker.stats.failed) == (1, 2)


@pytest.mark.parametrize("end", LINES)
@on_loop
async def test_the_line(server: Server, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINLATER_URL", server.url)  # for what runs in processes
    async with PinLater(server.url) as app:
        await LINES[end](app)


@on_loop
async def test_an_unknown_name_is_logged_once_and_its_jobs_run_where_it_is_known(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.tasks.unknown_jobs.UNKNOWN_PAUSE_MS", 0)
    async with PinLater(server.url) as old, PinLater(server.url) as new:
        old.task(name="old")(lambda: None)
        ran = []

        @new.task(name="new", attempts=1)
        async def task(x: int) -> None:
            ran.append(x)

        await task.aenqueue_many([(x,) for x in range(10)])
        async with worker_of(old) as worker:
            await worker.run_once()
            assert worker.handler.stats.unknown == {"new": 10}  # type: ignore[union-attr]
        assert len([each for each in caplog.records if "no task 'new' here" in each.message]) == 1
        await run(new)
    assert sorted(ran) == list(range(10))


@on_loop
async def test_a_newer_envelope_is_logged_once_and_runs_where_it_can_be_read(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.tasks.unknown_jobs.UNKNOWN_PAUSE_MS", 0)
    async with PinLater(server.url) as app:
        ran = []

        @app.task(name="t", attempts=1)
        async def task(x: int) -> None:
            ran.append(x)

        with monkeypatch.context() as later:
            later.setattr(envelope, "VERSION", 2)
            later.setattr(envelope, "START", b"\xfe\x02")
            await app.by_name("t").using().aenqueue_many([(x,) for x in range(10)])
        async with worker_of(app) as worker:
            await worker.run_once()
            assert isinstance(worker.handler, TaskRunner)
            text = metrics.text(metrics.samples(worker, worker.handler))
        assert 'pinlater_newer_envelopes_total{version="2"} 10\n' in text
        [line] = [each.message for each in caplog.records if "its envelope is of version 2" in each.message]
        assert line.endswith(
            "and this worker reads 1; such jobs are postponed by 0 s each time, until a newer worker takes them"
        )
        with monkeypatch.context() as later:
            later.setattr(envelope, "VERSION", 2)
            later.setattr(envelope, "START", b"\xfe\x02")
            await run(app)
    assert sorted(ran) == list(range(10))


@on_loop
async def test_what_a_task_does_after_it_was_given_up_is_not_reported(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.worker.time_limits.GRACE_S", 0.1)
    monkeypatch.setattr("pinlater.worker.time_limits.LOOK_S", 0.02)
    gate, failures, left = asyncio.Event(), list[Failure](), list[bool]()

    async def hook(failure: Failure) -> None:
        failures.append(failure)

    class InATaskOfItsOwn(Middleware):
        async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
            return await asyncio.create_task(run())  # type: ignore[arg-type]

    async with PinLater(server.url, middleware=[InATaskOfItsOwn()]) as app:

        @app.task(timeout=0.05, attempts=1, on_failure=hook)
        async def task() -> None:
            while not gate.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await gate.wait()
            left.append(True)
            raise ValueError("late")

        await task.aenqueue()
        async with worker_of(app) as worker:
            await worker.run_once()
            gate.set()
            await until(lambda: left, "its end")
            await asyncio.sleep(0.05)
            assert worker.handler.stats.timeouts == 1  # type: ignore[union-attr]
    assert len(failures) == 1


@on_loop
async def test_a_failed_job_tells_error_traceback_worker_and_times(server: Server) -> None:
    failures = list[Failure]()

    async def on_failure(failure: Failure) -> None:
        failures.append(failure)

    def told_in_a_thread(failure: Failure) -> None:
        assert threading.current_thread() is not threading.main_thread()
        failures.append(failure)
        raise ValueError("a hook that fails changes nothing")

    async with PinLater(server.url) as app:

        @app.task(attempts=2, backoff=0, on_failure=told_in_a_thread)
        async def task(x: int, *, y: int) -> None:
            raise ValueError("e" * 2000)

        @app.task(on_failure=on_failure, expires=0)
        def late() -> None: ...

        handle, other = await task.aenqueue(1, y=2), await late.aenqueue()
        await asyncio.sleep(0.01)
        async with worker_of(app) as worker:
            await worker.run(burst=True)
        info, expired = await handle.ainfo(), await other.ainfo()
    assert info is not None
    first, second = info.status.split("ValueError: ")[1:]
    assert re.match(r"e+\n  attempt 1 of 2 by python:\S+:\d+, \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, \d+\.\d{3} s\n$", first)
    assert re.match(r"e{900,}\n  attempt 2 of 2 by python:\S+:\d+, \d{4}-\S+Z, \d+\.\d{3} s\n  File \"\S+", second)
    assert f'{Path(__file__).name}", line' in second
    assert second.endswith('raise ValueError("e" * 2000)\n')
    assert f"{Path(pinlater.__file__).parent}/" not in second
    assert expired is not None
    assert expired.state is State.FAILED
    by_task = {failure.task: failure for failure in failures}
    assert len(failures) == 2
    assert isinstance(by_task[late.name].error, Expired)
    failure = by_task[task.name]
    assert (failure.args, failure.kwargs, failure.job.descriptor) == ([1], {"y": 2}, handle.descriptor)
    assert failure.status == f"ValueError: {second}"


@on_loop
async def test_the_status_tells_what_is_behind_an_error(server: Server) -> None:
    async with PinLater(server.url) as app:

        async def fails() -> None:
            try:
                raise OSError("the disk")
            except OSError as error:
                raise ValueError("the real one") from error

        @app.task(attempts=1)
        async def group() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fails())

        @app.task(backoff=3600)
        def circle() -> None:
            first, second = KeyError("first"), KeyError("second")
            first.__cause__, second.__cause__ = second, first
            raise first

        info, _ = await one(app, group)
        assert is_failed(info, "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)")
        assert info is not None
        assert info.status.splitlines()[1:3] == ["  of ValueError: the real one", "  from OSError: the disk"]
        assert 'raise ValueError("the real one") from error' in info.status
        assert info.headline == info.status.partition("\n")[0]
        info, _ = await one(app, circle)
        assert info is not None
        assert info.status.count("KeyError") == 4


@on_loop
async def test_an_error_of_several_lines_is_one_entry_of_the_status(server: Server) -> None:
    async with PinLater(server.url) as app:

        @app.task(backoff=0, attempts=2)
        async def task() -> None:
            raise ValueError("1 error for User\nage\u2028\r\n  expected a number\n")

        handle = await task.aenqueue()
        headlines, status = [], ""
        for _ in range(2):
            await run(app)
            info = await handle.ainfo()
            assert info is not None
            headlines.append((info.headline, info.attempts_remaining))
            status = info.status
    assert headlines == [("ValueError: 1 error for User", 1), ("ValueError: 1 error for User", 0)]
    assert status.startswith("ValueError: 1 error for User\n  age\n  \n    expected a number\n  attempt 1 of 2")


def test_a_report_fits_into_the_status() -> None:
    def nested(depth: int) -> None:
        if depth:
            nested(depth - 1)
        try:
            raise ValueError("é\n" * 5_000)
        except ValueError as error:
            raise ExceptionGroup("g" * 5_000, [error, KeyError("k" * 5_000), KeyError()]) from error

    job = Job("q" * 64, "1" * 16, 1, 65_535, b"", bytes(8), 65_535, 1)
    with pytest.raises(ExceptionGroup) as raised:
        nested(50)
    text = report(raised.value, job, f"python:{'h' * 64}:4194304", 12_345_678.9, last=True)
    assert len(text.encode()) <= 3_000


def test_frames_of_a_package_beside_this_one_are_reported() -> None:
    path = f"{Path(pinlater.__file__).parent}_shop.py"
    names: dict[str, Any] = {}
    exec(compile("def sell():\n    raise ValueError('sold out')\n", path, "exec"), names)  # noqa: S102
    with pytest.raises(ValueError, match="sold out") as raised:
        names["sell"]()
    job = Job("q", "1", 1, 1, b"", bytes(8), 1, 1)
    assert f'"{path}", line 2, in sell' in report(raised.value, job, "w", 0.0, last=True)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Constant(3), [3, 3, 3, 3]),
        (Linear(2, cap=5), [2, 4, 5, 5]),
        (Exponential(1, 3, cap=20, jitter=0), [1, 3, 9, 20]),
        (Constant(datetime.timedelta(minutes=1)), [60, 60, 60, 60]),
        (Linear(datetime.timedelta(seconds=2), cap=5), [2, 4, 5, 5]),
        (Exponential(datetime.timedelta(seconds=1), 3, cap=datetime.timedelta(seconds=20), jitter=0), [1, 3, 9, 20]),
    ],
)
def test_policies(policy: Backoff, seconds: list[float]) -> None:
    assert [policy(attempt, ValueError()) for attempt in (1, 2, 3, 4)] == seconds


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda anything: Constant(-1), "Constant: seconds: expected seconds or a timedelta, 0 or more, got -1"),
        (lambda anything: Linear(anything), "Linear: step: expected seconds or a timedelta, 0 or more, got 'a'"),
        (
            lambda anything: Linear(1, cap=float("inf")),
            "Linear: cap: expected seconds or a timedelta, 0 or more, got inf",
        ),
        (
            lambda anything: Exponential(first=-1),
            "Exponential: first: expected seconds or a timedelta, 0 or more, got -1",
        ),
        (
            lambda anything: Exponential(cap=anything),
            "Exponential: cap: expected seconds or a timedelta, 0 or more, got 'a'",
        ),
        (lambda anything: Exponential(factor=1e9), "Exponential: factor: expected a number from 0 to 1,000, got"),
        (lambda anything: Exponential(jitter=3), "Exponential: jitter: expected a number from 0 to 1, got 3"),
    ],
)
def test_bad_policies_raise_where_they_are_defined(make: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        make("a")


def test_jitter_takes_a_part_off_and_no_attempt_is_too_late_for_a_float() -> None:
    policy = Exponential(10, jitter=0.5)
    values = [policy(1, ValueError()) for _ in range(100)]
    assert all(5 <= value <= 10 for value in values)
    assert len(set(values)) > 50
    assert Exponential(jitter=0)(65_535, ValueError()) == 3600
    assert Exponential(factor=1_000, jitter=0)(65_535, ValueError()) == 3600


@on_loop
async def test_a_backoff_that_gives_no_seconds_hides_no_error(server: Server) -> None:
    def breaks(attempt: int, error: BaseException) -> float:
        raise LookupError("no such table")

    async with PinLater(server.url) as app:

        @app.task(backoff=lambda attempt, error: float("nan"))
        async def not_a_number() -> None:
            raise ValueError("its own")

        @app.task(backoff=breaks)
        def raises() -> None:
            raise ValueError("its own")

        for task, wrong in (
            (not_a_number, "InvalidArgument: backoff: expected seconds or a timedelta, 0 or more, got nan"),
            (raises, "LookupError: no such table"),
        ):
            info, due_ms = await one(app, task)
            assert is_pending(info, 1)
            assert due_ms < HOUR_MS
            assert info is not None
            assert info.headline == "ValueError: its own"
            assert info.status.endswith(f" s\n  its backoff failed, so the default one applies: {wrong}\n")


@pytest.mark.parametrize("delay", [-1, "5m", True, float("nan"), float("inf"), b"1"])
def test_a_wrong_delay_is_told_where_it_is_given(delay: Any) -> None:
    for what, make in (("Retry", lambda: Retry("busy", delay=delay)), ("Snooze", lambda: Snooze(delay))):
        with pytest.raises(InvalidArgument, match=f"^{what}: delay: expected seconds or a timedelta, 0 or more, got "):
            make()


@on_loop
async def test_pauses_may_be_timedeltas(server: Server) -> None:
    async with PinLater(server.url) as app:

        @app.task(backoff=datetime.timedelta(hours=1))
        async def of_the_task() -> None:
            raise ValueError

        @app.task(backoff=lambda attempt, error: datetime.timedelta(hours=attempt))
        def of_a_function() -> None:
            raise ValueError

        @app.task
        async def retries() -> None:
            raise Retry(delay=datetime.timedelta(hours=1))

        @app.task
        async def snoozes() -> None:
            raise Snooze(datetime.timedelta(hours=1))

        for task in (of_the_task, of_a_function, retries, snoozes):
            info, due_ms = await one(app, task)
            assert info is not None
            assert info.state is State.PENDING
            assert about_an_hour(due_ms), task


class Abort(BaseException):
    pass


@on_loop
async def test_whatever_a_task_or_its_hook_raises_is_judged_as_an_error(server: Server) -> None:
    failures = list[Failure]()

    def hook(failure: Failure) -> None:
        failures.append(failure)
        raise SystemExit(1)

    async def async_hook(failure: Failure) -> None:
        failures.append(failure)
        raise Abort

    async with PinLater(server.url) as app:

        @app.task(give_up_on=(Abort,), on_failure=async_hook)
        async def on_the_loop() -> None:
            raise Abort("no")

        @app.task(give_up_on=(Abort,), on_failure=hook)
        def in_a_thread() -> None:
            raise Abort("no")

        @app.task(on_failure=async_hook)
        async def cancels() -> None:
            raise Cancel("no")

        @app.task(attempts=1, on_failure=hook)
        def stops() -> None:
            next(iter([]))

        for task, said in (
            (on_the_loop, "Abort: no"),
            (in_a_thread, "Abort: no"),
            (cancels, "Cancel: no"),
            (stops, "RuntimeError: the handler raised StopIteration()"),
        ):
            info = (await one(app, task))[0]
            assert is_failed(info, said)
            assert info is not None
            assert task is cancels or "in " + task.name.rpartition(".")[2] in info.status, "the traceback"
    assert [type(failure.error) for failure in failures] == [Abort, Abort, Cancel, RuntimeError]


@on_loop
async def test_a_retry_is_none_of_the_errors_to_give_up_on(server: Server) -> None:
    async with PinLater(server.url) as app:

        @app.task(give_up_on=(Exception,))
        async def task() -> None:
            raise Retry("later", delay=3600)

        info, due_ms = await one(app, task)
    assert is_pending(info, 1)
    assert about_an_hour(due_ms)
