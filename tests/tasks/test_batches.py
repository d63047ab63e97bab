"""Batch tasks on real servers: how batches fill, and how each of their jobs ends.

Every test waits on events of the worker.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pinlater import Cancel, Depends, Execution, Failure, Item, Middleware, PinLater, Snooze, State
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks.app import parts_of
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server

LONG_S = 60.0


async def run(app: PinLater, **config: Any) -> Worker:
    """Runs what is due."""
    async with worker_of(app, config=WorkerConfig(**config)) as worker:
        await asyncio.wait_for(worker.run(burst=True), 30)
        return worker


@on_loop
async def test_a_full_batch_goes_at_once_and_the_rest_after_its_wait(server: Server) -> None:
    sizes = list[int]()
    async with PinLater(server.url) as app:

        @app.task(batch=4, batch_wait=0.1)
        async def task(items: list[Item[int]]) -> None:
            sizes.append(len(items))
            values.extend(item.value for item in items)

        values = list[int]()
        await task.aenqueue_many([task.args(x) for x in range(10)])
        worker = await run(app, concurrency=100)
        assert worker.stats.succeeded == 10
        assert sorted(values) == list(range(10))
        assert sorted(sizes) == [2, 4, 4]
        sizes.clear()
        await task.aenqueue(1)
        await run(app)
        assert sizes == [1]


@on_loop
async def test_a_batch_is_what_fits_where_the_worker_runs_fewer_at_once(server: Server) -> None:
    sizes = list[int]()
    async with PinLater(server.url) as app:

        @app.task(batch=100, batch_wait=LONG_S)
        async def task(items: list[Item[int]]) -> None:
            sizes.append(len(items))

        await task.aenqueue_many([(x,) for x in range(6)])
        assert (await run(app, concurrency=3)).stats.succeeded == 6
    assert sizes == [3, 3]


@on_loop
async def test_plain_functions_dependencies_and_raw_bodies(server: Server) -> None:
    seen = list[Any]()

    async def folder() -> str:
        return "table"

    async with PinLater(server.url) as app:

        @app.task(batch=2)
        def plain(items: list[Item[dict[str, int]]], *, into: str = Depends(folder)) -> None:
            assert threading.current_thread() is not threading.main_thread()
            seen.append((into, [item.value for item in items], items[0].job.queue))

        @app.task(batch=2, queue="raw", codec="raw")
        async def raw(items: list[Item[bytes]]) -> None:
            seen.append([item.value for item in items])

        await plain.aenqueue_many([plain.args({"a": 1}), plain.args({"a": 2})])
        await raw.aenqueue(b"x")
        assert (await run(app)).stats.succeeded == 3
    assert [b"x"] in seen
    assert ("table", [{"a": 1}, {"a": 2}], "default") in seen


@on_loop
async def test_each_job_of_a_batch_ends_by_itself(server: Server) -> None:
    failures = list[Failure]()

    async def hook(failure: Failure) -> None:
        failures.append(failure)

    async with PinLater(server.url) as app:

        @app.task(batch=5, backoff=3600, on_failure=hook)
        async def task(items: list[Item[str]]) -> None:
            for item in items:
                match item.value:
                    case "fail":
                        item.fail(ValueError("bad"))
                    case "retry":
                        item.retry("later", delay=1800)
                    case "snooze":
                        item.fail(Snooze(60))
                    case "cancel":
                        item.fail(Cancel("why"))

        handles = {name: await task.aenqueue(name) for name in ("fine", "fail", "retry", "snooze", "cancel")}
        await run(app, concurrency=10)
        infos = {name: await handle.ainfo() for name, handle in handles.items()}
    assert infos.pop("fine") is None
    ends = {
        name: (info.state, info.attempts_remaining, info.status.partition("\n")[0])
        for name, info in infos.items()
        if info is not None
    }
    assert ends == {
        "fail": (State.PENDING, 4, "ValueError: bad"),
        "retry": (State.PENDING, 4, "Retry: later"),
        "snooze": (State.PENDING, 5, ""),
        "cancel": (State.FAILED, 0, "Cancel: why"),
    }
    assert [failure.args for failure in failures] == [["cancel"]]


@pytest.mark.parametrize("kind", ["loop", "thread"])
@on_loop
async def test_what_the_function_raises_fails_all_that_did_not_end_otherwise(server: Server, kind: str) -> None:
    async with PinLater(server.url) as app:

        def work(items: list[Item[int]]) -> None:
            items[0].fail(Cancel("why"))
            raise ValueError("no")

        async def work_async(items: list[Item[int]]) -> None:
            work(items)

        function: Any = work_async if kind == "loop" else work
        task: Any = app.task(batch=3, backoff=3600, batch_wait=LONG_S)(function)
        handles = await task.aenqueue_many([(1,), (2,), (3,)])
        assert (await run(app)).stats.failed == 3
        infos = [await handle.ainfo() for handle in handles]
    ends = sorted((info.status.partition("\n")[0], info.status.count("File")) for info in infos if info is not None)
    assert ends == [("Cancel: why", 0), ("ValueError: no", 0), ("ValueError: no", 0)]


class Abort(BaseException):
    """Not an Exception, and false as an empty list is."""

    def __len__(self) -> int:
        return 0


@on_loop
async def test_whatever_ends_a_batch_ends_each_of_its_jobs(server: Server) -> None:
    async with PinLater(server.url) as app:

        @app.task(batch=5, batch_wait=0, attempts=1)
        async def task(items: list[Item[str]]) -> None:
            what: Any = {"text": "bad id", "class": ValueError, "false": Abort("marked")}
            for item in items:
                if item.value == "abort":
                    raise Abort("raised")
                if item.value == "set":
                    item.error = what["text"]
                else:
                    item.fail(what[item.value])

        said = {}
        for how in ("text", "class", "false", "abort", "set"):
            handle = await task.aenqueue(how)
            assert (await run(app)).stats.failed == 1
            info = await handle.ainfo()
            assert info is not None
            said[how] = info.status.partition("\n")[0]
    assert said == {
        "text": "InvalidArgument: Item.fail: expected an exception, got 'bad id'",
        "class": "ValueError: ",
        "false": "Abort: marked",
        "abort": "Abort: raised",
        "set": "AttributeError: 'str' object has no attribute 'with_traceback'",
    }


@pytest.mark.parametrize("kind", ["loop", "thread"])
@on_loop
async def test_a_timeout_is_of_the_whole_batch(server: Server, kind: str) -> None:
    gate = threading.Event()

    async def hang(items: list[Item[int]]) -> None:
        await asyncio.sleep(LONG_S)

    def hang_in_a_thread(items: list[Item[int]]) -> None:
        gate.wait(LONG_S)

    async with PinLater(server.url) as app:
        function: Any = hang if kind == "loop" else hang_in_a_thread
        task: Any = app.task(batch=2, timeout=0.1, backoff=3600)(function)
        handles = await task.aenqueue_many([(1,), (2,)])
        assert (await run(app)).stats.failed == 2
        gate.set()
        infos = [await handle.ainfo() for handle in handles]
    assert all("TimedOut" in info.status for info in infos)


@on_loop
async def test_a_stop_releases_collected_jobs_before_running_batches_end(server: Server) -> None:
    ended = asyncio.Event()
    async with PinLater(server.url) as app:

        @app.task(batch=10, batch_wait=LONG_S, lease=0.5)
        async def task(items: list[Item[int]]) -> None:
            raise AssertionError("it has started")

        @app.task(queue="other")
        async def runs() -> None:
            await ended.wait()

        handles = await task.aenqueue_many([(1,), (2,)])
        await runs.aenqueue()
        async with worker_of(app) as worker:
            await worker.start()
            await until(lambda: len(worker.running) == 3, "three that run")
            await asyncio.sleep(0.8)  # longer than the lease
            worker.request_stop()
            await until(lambda: worker.stats.released == 2, "two handed back")
            assert [await handle.astatus() for handle in handles] == [State.PENDING] * 2
            assert len(worker.running) == 1
            ended.set()
            await worker.stop()
        assert (worker.stats.released, worker.stats.succeeded, worker.stats.stale) == (2, 1, 0)
        for handle in handles:
            info = await handle.ainfo()
            assert info is not None
            assert (info.attempts_remaining, info.run_after_ms) == (5, info.created_ms)


@on_loop
async def test_a_job_that_reaches_its_batch_after_a_stop_started_is_released_too(server: Server) -> None:
    gate, started = asyncio.Event(), asyncio.Event()

    class Late(Middleware):
        async def before(self, execution: Execution) -> None:
            started.set()
            await gate.wait()

    async with PinLater(server.url) as app:

        @app.task(batch=10, batch_wait=LONG_S)
        async def task(items: list[Item[int]]) -> None:
            raise AssertionError("it has started")

        app.add_middleware(Late())
        handle = await task.aenqueue(1)
        async with worker_of(app, config=WorkerConfig(stop_timeout_s=3600)) as worker:
            await worker.start()
            await asyncio.wait_for(started.wait(), 30)
            on_stop = worker.on_stop
            assert on_stop is not None

            def stopped() -> None:
                on_stop()
                gate.set()

            worker.on_stop = stopped
            await asyncio.wait_for(worker.stop(), 30)
        assert worker.stats.released == 1
        assert await handle.astatus() is State.PENDING


@on_loop
async def test_a_batch_that_does_not_end_in_time_at_a_stop_is_cancelled_and_released(server: Server) -> None:
    said = list[str]()
    async with PinLater(server.url) as app:

        @app.task(batch=2, batch_wait=LONG_S)
        async def task(items: list[Item[int]]) -> None:
            said.append("started")
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)
                said.append("cancelled")
                raise

        handles = await task.aenqueue_many([(1,), (2,)])
        async with worker_of(app, config=WorkerConfig(stop_timeout_s=0.05)) as worker:
            await worker.start()
            await until(lambda: said, "its begin")
            await worker.stop()
            assert said == ["started", "cancelled"]
        assert [await handle.astatus() for handle in handles] == [State.PENDING] * 2
        assert worker.stats.released == 2


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    ("traces", "passed_on"),
    [(["00-ab", "00-ab"], "00-ab"), (["00-ab", "00-cd"], None), (["00-ab", None], None), ([None, None], None)],
)
@on_loop
async def test_a_batch_passes_on_the_trace_that_all_its_jobs_have(
    server: Server, traces: list[str | None], passed_on: str | None, kind: str
) -> None:
    seen = list[list[str | None]]()
    async with PinLater(server.url) as app:

        @app.task(name="sink", queue="sink")
        async def sink(_: str | None) -> None: ...

        async def in_a_loop(items: list[Item[int]]) -> None:
            seen.append([item.trace for item in items])
            await sink.aenqueue("of the batch")
            await sink.using(trace="own").aenqueue("own")

        def in_a_thread(items: list[Item[int]]) -> None:
            seen.append([item.trace for item in items])
            sink.enqueue("of the batch")
            sink.using(trace="own").enqueue("own")

        add = app.task(name="batch", batch=2, batch_wait=LONG_S)
        task = add(in_a_loop) if kind == "async" else add(in_a_thread)
        for trace in traces:
            await task.using(trace=trace).aenqueue(1)
        async with worker_of(app, ["default"]) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
        read = [envelope.read(job.body) for job in await parts_of(app).clients.of_loop().dequeue("sink", 10)]
        app.close()  # the blocking client of the thread
    assert seen == [traces]
    assert {args[0]: headers.get("trace") for _, args, _, headers in read} == {"of the batch": passed_on, "own": "own"}


@pytest.mark.parametrize("kind", ["loop", "thread"])
@on_loop
async def test_a_removed_job_is_in_no_batch_that_has_not_started(server: Server, kind: str) -> None:
    values, started, gate = list[int](), asyncio.Event(), threading.Event()
    async with PinLater(server.url) as app:
        loop = asyncio.get_running_loop()

        def work(items: list[Item[int]]) -> None:
            loop.call_soon_threadsafe(started.set)
            gate.wait(LONG_S)
            values.extend(item.value for item in items)

        async def work_async(items: list[Item[int]]) -> None:
            await asyncio.to_thread(work, items)

        function: Any = work_async if kind == "loop" else work
        task: Any = app.task(batch=2, batch_wait=LONG_S)(function)
        async with worker_of(app) as worker:
            await worker.start()
            handles = [await task.aenqueue(1)]
            await until(lambda: worker.running, "its collection")
            assert await handles[0].acancel()
            await until(lambda: worker.stats.cancelled == 1, "its end")
            handles = await task.aenqueue_many([(2,), (3,)])
            await asyncio.wait_for(started.wait(), 30)
            assert await handles[0].acancel()  # too late for that
            await until(lambda: worker.cancelling or worker.stats.cancelled == 2, "its word")
            gate.set()
            await until(lambda: worker.stats.cancelled == 2 and worker.stats.succeeded == 1, "their ends")
            await worker.stop()
    assert sorted(values) == [2, 3]


def test_a_plain_call_runs_a_batch_of_one() -> None:
    app = PinLater("redis://nobody:1")
    doubled = list[int]()

    @app.task(batch=5)
    def double(items: list[Item[int]]) -> None:
        if items[0].value < 0:
            items[0].fail(ValueError("negative"))
        doubled.extend(2 * item.value for item in items)

    @app.task(batch=5)
    async def later(items: list[Item[int]]) -> None:
        if items[0].value > 0:
            items[0].retry("why")

    double(4)
    assert doubled == [8]
    with pytest.raises(ValueError, match="negative"):
        double(-1)
    asyncio.run(later(0))
    with pytest.raises(Exception, match="why"):
        asyncio.run(later(1))
    assert repr(Item(_job(), 5)).startswith("Item(q:s1:p1:")


def _job() -> Any:
    from pinlater import Job

    return Job("q", "1", 1, 1, b"", bytes(8), 1, 1)


@on_loop
async def test_a_job_of_a_batch_has_one_argument(server: Server) -> None:
    async with PinLater(server.url) as app:

        @app.task(name="t", batch=2, batch_wait=0, attempts=1)
        async def task(items: list[Item[int]]) -> None: ...

        async with PinLater(server.url) as other:  # it does not know the function
            calls: list[tuple[list[int], dict[str, int]]] = [([], {}), ([1, 2], {}), ([], {"x": 1}), ([1], {})]
            handles = [await other.asend("t", *args, **kwargs) for args, kwargs in calls]
        stats = (await run(app)).stats
        assert (stats.succeeded, stats.failed) == (1, 3)
        info = await app.handle(handles[2].descriptor).ainfo()
    assert info is not None
    assert info.status.startswith("TypeError: a batch task takes one argument by position, got 0 and ['x']\n")
