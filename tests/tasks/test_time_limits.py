"""Time limits where several things end at once: what has ended in time has, and what was given up stays so.

Promises: tests wait for events; limits are short where a test needs them to pass.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from weakref import ref

import pytest

from pinlater import Execution, Failure, Middleware, PinLater, State, SyncContext
from pinlater.running.app_worker import worker_of
from pinlater.worker.time_limits import Limit, TimeLimits, in_time
from pinlater.worker.worker import WorkerConfig
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server

Run = Callable[[], Awaitable[Any]]


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("GRACE_S", 0.05), ("LOOK_S", 0.02), ("HOOKS_S", 0.2)):
        monkeypatch.setattr(f"pinlater.worker.time_limits.{name}", seconds)


@on_loop
async def test_a_function_that_ended_in_time_has_succeeded_though_the_loop_was_late(server: Server) -> None:
    began, blocked, ended = threading.Event(), threading.Event(), threading.Event()

    async with PinLater(server.url) as app:

        @app.task(attempts=1, timeout=1)
        def plain() -> None:
            began.set()
            blocked.wait(30)
            ended.set()

        @app.task(attempts=1)
        async def keeps_the_loop() -> None:
            await until(began.is_set, "the other task")
            blocked.set()
            ended.wait(30)
            threading.Event().wait(1.2)  # past the other one's timeout

        await plain.aenqueue()
        await keeps_the_loop.aenqueue()
        async with worker_of(app, config=WorkerConfig(concurrency=2)) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
    assert (worker.stats.succeeded, worker.stats.failed) == (2, 0)


@on_loop
async def test_middleware_does_not_call_a_function_again_that_was_given_up(server: Server) -> None:
    gate, calls, failures = asyncio.Event(), list[int](), list[Failure]()

    class Again(Middleware):
        async def around(self, execution: Execution, run: Run) -> Any:
            for _ in range(3):
                with suppress(TimeoutError):
                    return await run()
            raise ValueError

    async def hook(failure: Failure) -> None:
        failures.append(failure)

    async with PinLater(server.url, middleware=[Again()]) as app:

        @app.task(attempts=1, timeout=0.1, on_failure=hook)
        async def slow() -> None:
            calls.append(1)
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()

        handle = await slow.aenqueue()
        async with worker_of(app) as worker:
            await worker.start()
            await until(lambda: worker.stats.failed, "a given-up job")
            gate.set()
            await worker.stop()
            assert worker.limited == 0
        info = await handle.ainfo()
    assert (len(calls), len(failures)) == (1, 1)
    assert info is not None
    assert info.state is State.FAILED


@pytest.mark.parametrize("timeout_s", [None, 30.0])
@on_loop
async def test_a_thread_whose_caller_is_cancelled_is_replaced(server: Server, timeout_s: float | None) -> None:
    gate, ran = threading.Event(), list[str]()

    class Cap(Middleware):
        async def around(self, execution: Execution, run: Run) -> Any:
            return await asyncio.wait_for(run(), 0.1 if execution.task == "hang" else 30)

    async with PinLater(server.url, middleware=[Cap()]) as app:

        @app.task(name="hang", attempts=1, timeout=timeout_s)
        def hang() -> None:
            gate.wait(30)

        @app.task(name="fine", attempts=1)
        def fine() -> None:
            ran.append("fine")

        await hang.aenqueue()
        await fine.aenqueue()
        try:
            async with worker_of(app, config=WorkerConfig(concurrency=1)) as worker:
                await asyncio.wait_for(worker.run(burst=True), 30)
        finally:
            gate.set()
    assert (worker.stats.failed, worker.stats.succeeded, ran) == (1, 1, ["fine"])


@on_loop
async def test_middleware_may_call_a_function_twice_at_once(server: Server) -> None:
    calls = list[int]()

    class Both(Middleware):
        async def around(self, execution: Execution, run: Run) -> Any:
            return await asyncio.gather(run(), run())

    async with PinLater(server.url, middleware=[Both()]) as app:

        @app.task(attempts=1)
        async def task() -> None:
            calls.append(1)
            if len(calls) == 2:
                await asyncio.sleep(0.5)  # longer than hooks may take

        await task.aenqueue()
        async with worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
    assert (worker.stats.succeeded, worker.stats.failed) == (1, 0)


@on_loop
async def test_a_hook_past_its_limit_is_cancelled(server: Server) -> None:
    cancelled = asyncio.Event()

    async def hook(failure: Failure) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with PinLater(server.url) as app:

        @app.task(attempts=1, on_failure=hook)
        async def fails() -> None:
            raise ValueError

        await fails.aenqueue()
        async with worker_of(app) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
            await asyncio.wait_for(cancelled.wait(), 30)
    assert worker.stats.failed == 1


@on_loop
async def test_no_job_is_given_up_once_a_stop_releases_it(server: Server) -> None:
    gate, failures = asyncio.Event(), list[Failure]()
    started = asyncio.Event()

    async def hook(failure: Failure) -> None:
        failures.append(failure)

    async with PinLater(server.url) as app:

        @app.task(attempts=1, timeout=0.5, on_failure=hook)
        async def slow() -> None:
            started.set()
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()

        handle = await slow.aenqueue()
        async with worker_of(app, config=WorkerConfig(stop_timeout_s=0)) as worker:
            await worker.start()
            await asyncio.wait_for(started.wait(), 30)
            await worker.stop()  # its grace is longer than the timeout
            assert (worker.stats.released, worker.limited) == (1, 0)
        info = await handle.ainfo()
        gate.set()
    assert failures == []
    assert info is not None
    assert (info.state, info.attempts_remaining) == (State.PENDING, 1)


@on_loop
async def test_a_plain_task_is_cancelled_while_its_middleware_runs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.worker.time_limits.HOOKS_S", 60.0)
    waiting, ran = asyncio.Event(), list[str]()

    class Slow(Middleware):
        async def before(self, execution: Execution) -> None:
            waiting.set()
            await asyncio.Event().wait()

    async with PinLater(server.url, middleware=[Slow()]) as app:

        @app.task(attempts=1)
        def plain(context: SyncContext) -> None:
            ran.append("plain")

        handle = await plain.aenqueue()
        async with worker_of(app) as worker:
            await worker.start()
            await asyncio.wait_for(waiting.wait(), 30)
            assert await handle.acancel()
            await until(lambda: worker.stats.cancelled, "its end")
            await worker.stop()
    assert ran == []


@on_loop
async def test_a_cancellation_after_the_timeout_stays_one() -> None:
    late = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            late.set()
            await asyncio.Event().wait()

    call = asyncio.create_task(in_time("it", 0.01, stubborn()))
    await asyncio.wait_for(late.wait(), 30)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@on_loop
async def test_of_two_calls_at_once_the_end_of_one_leaves_the_other_its_limit(server: Server) -> None:
    gate, calls = asyncio.Event(), list[int]()

    class Both(Middleware):
        async def around(self, execution: Execution, run: Run) -> Any:
            return await asyncio.gather(run(), run())

    async with PinLater(server.url, middleware=[Both()]) as app:

        @app.task(attempts=1, timeout=0.1)
        async def task() -> None:
            calls.append(1)
            while len(calls) == 2 and not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()
            await asyncio.sleep(0)

        await task.aenqueue()
        async with worker_of(app) as worker:
            await worker.start()
            try:
                await until(lambda: worker.stats.failed, "a given-up job")
            finally:
                gate.set()
            await worker.stop()
    assert len(calls) == 2


@on_loop
async def test_a_job_in_the_slot_of_a_given_up_one_does_not_get_its_context(server: Server) -> None:
    gate, seen, value = asyncio.Event(), list[str](), ContextVar("value", default="none")

    class Hangs(Middleware):
        async def around(self, execution: Execution, run: Run) -> Any:
            if execution.task == "first":
                value.set("of the first")
            await run()
            while execution.task == "first" and not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()

    async with PinLater(server.url, middleware=[Hangs()]) as app:

        @app.task(name="first", attempts=1)
        async def first() -> None:
            await asyncio.sleep(0.2)  # nothing is limited meanwhile: the next limit begins in the context of this job

        @app.task(name="second", attempts=1)
        async def second() -> None:
            seen.append(value.get())

        for task in [second] * 300 + [first] + [second] * 20:  # so many end a second that the worker prefetches
            await task.aenqueue()
        async with worker_of(app, config=WorkerConfig(concurrency=1)) as worker:
            await worker.start()
            try:
                await until(lambda: worker.stats.failed + worker.stats.succeeded == 321, "every end")
            finally:
                gate.set()
            await worker.stop()
    assert (len(seen), set(seen)) == (320, {"none"})


@on_loop
async def test_the_error_of_a_given_up_handler_is_not_logged_as_lost(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    gate, ended = asyncio.Event(), asyncio.Event()

    async with PinLater(server.url) as app:

        @app.task(attempts=1, timeout=0.1)
        async def slow() -> None:
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()
            ended.set()
            raise ValueError

        await slow.aenqueue()
        async with worker_of(app) as worker:
            await worker.start()
            await until(lambda: worker.stats.failed, "a given-up job")
            gate.set()
            await asyncio.wait_for(ended.wait(), 30)
            await worker.stop()
    gc.collect()  # asyncio logs it when the task goes
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


class Renewal:
    """In place of the renewal of leases: notes which jobs have a limit there."""

    def __init__(self) -> None:
        self.limited: list[Any] = []

    def limit(self, lease: Any, job: Any, after_s: float) -> None:
        self.limited.append(job)

    def drop_limit(self, lease: Any, job: Any) -> None:
        self.limited.remove(job)


@on_loop
async def test_a_stop_takes_every_limit_away() -> None:
    job: Any = "job"
    renewal: Any = Renewal()
    limits = TimeLimits(renewal)
    future = asyncio.get_running_loop().create_future()
    limit = Limit(limits, future, job, job, 30.0, lambda _: None)
    limit.begin()
    assert renewal.limited == [job]
    limits.close()
    limit.begin()  # the job goes on while the stop waits for it
    assert (renewal.limited, limits.current) == ([], {})
    left = ref(limits)
    del limits, limit
    gc.collect()
    assert left() is None  # no timer holds it
