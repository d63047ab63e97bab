"""Dependencies (`Depends`, `Shared`, the app's lifespan) and middleware, on real servers.

The tests cover each line of docs/handlers.md about them. Those of process tasks are in test_processes.py.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from pinlater import (
    Context,
    Depends,
    Execution,
    Failure,
    InvalidArgument,
    Item,
    Middleware,
    PinLater,
    Retry,
    Shared,
    State,
    SyncContext,
)
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks.app import parts_of
from pinlater.worker.time_limits import hooks_limit_s
from pinlater.worker.worker import WorkerConfig
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server


class Db:
    """What a lifespan would connect."""

    def __init__(self, log: list[str]) -> None:
        self.log = log


@pytest.fixture
def log() -> list[str]:
    """What happened, in order."""
    return []


@pytest.fixture
def app(server: Server, log: list[str]) -> Iterator[PinLater]:
    with PinLater(server.url) as app:

        @app.lifespan
        async def lifespan() -> AsyncIterator[dict[type, Any]]:
            log.append("opened")
            yield {Db: Db(log), int: 7}
            log.append("closed")

        yield app


def closing(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """on_loop, of a test of the app, which is closed there."""

    @functools.wraps(test)
    async def run(app: PinLater, **named: Any) -> None:
        async with app:
            await test(app, **named)

    return on_loop(run)


async def run(app: PinLater) -> Any:
    """Runs what is due; the worker's counts."""
    async with worker_of(app) as worker:
        await asyncio.wait_for(worker.run(burst=True), 30)
        return worker.stats


def here() -> str:
    return "loop" if threading.current_thread() is threading.main_thread() else "thread"


async def connection(*, db: Db = Shared(Db)) -> AsyncIterator[str]:
    db.log.append(f"begin on {here()}")
    try:
        yield "connection"
    except ValueError as error:
        db.log.append(f"rolled back for {error}")
        return  # does not undo the error
    db.log.append("committed")


def cursor(*, db: Db = Shared(Db), connection: str = Depends(connection)) -> Iterator[str]:
    yield f"cursor of {connection}"
    db.log.append(f"cursor closed on {here()}")


async def number(*, base: int = Shared(int)) -> int:
    return base + 1


def greeting() -> str:
    return f"made on {here()}"


@closing
async def test_an_async_task_gets_objects_that_are_closed_after_it(app: PinLater, log: list[str]) -> None:
    @app.task
    async def task(
        context: Context,
        x: int,
        *,
        db: Db = Shared(Db),
        first: str = Depends(cursor),
        same: str = Depends(connection),
        n: int = Depends(number),
        text: str = Depends(greeting),
    ) -> None:
        db.log.append(f"{x} {first}, {same}, {n}, {text}, attempt {context.attempt}")

    await task.aenqueue(5)
    assert (await run(app)).succeeded == 1
    assert log == [
        "opened",
        "begin on loop",
        "5 cursor of connection, connection, 8, made on loop, attempt 1",
        "cursor closed on loop",
        "committed",
        "closed",
    ]


@closing
async def test_plain_providers_of_a_plain_task_run_in_its_thread_and_async_ones_on_the_loop(
    app: PinLater, log: list[str]
) -> None:
    @app.task
    def task(context: SyncContext, *, first: str = Depends(cursor), text: str = Depends(greeting)) -> None:
        log.append(f"{first}, {text}")

    await task.aenqueue()
    assert (await run(app)).succeeded == 1
    assert log == [
        "opened",
        "begin on loop",
        "cursor of connection, made on thread",
        "cursor closed on thread",
        "committed",
        "closed",
    ]


@pytest.mark.parametrize("kind", ["loop", "thread"])
@closing
async def test_a_provider_sees_the_error_of_the_task_and_can_not_undo_it(
    app: PinLater, log: list[str], kind: str
) -> None:
    if kind == "loop":

        @app.task(attempts=1)
        async def task(*, same: str = Depends(connection)) -> None:
            raise ValueError(kind)
    else:

        @app.task(attempts=1)
        def task(*, same: str = Depends(connection)) -> None:
            raise ValueError(kind)

    handle = await task.aenqueue()
    assert (await run(app)).failed == 1
    assert log[1:-1] == ["begin on loop", f"rolled back for {kind}"]
    assert await handle.astatus() is State.FAILED


@closing
async def test_a_provider_that_fails_fails_the_attempt_and_what_was_made_is_closed(
    app: PinLater, log: list[str]
) -> None:
    def first() -> Iterator[None]:
        try:
            yield
        finally:
            log.append("closed first")

    def broken(*, it: None = Depends(first)) -> None:
        raise Retry("not now", delay=3600)

    @app.task
    async def task(*, it: None = Depends(broken)) -> None:
        log.append("never")

    handle = await task.aenqueue()
    assert (await run(app)).failed == 1
    assert log == ["opened", "closed first", "closed"]
    info = await handle.ainfo()
    assert info is not None
    assert info.status.startswith("Retry: not now\n")


@closing
async def test_each_job_gets_its_own_objects_and_all_share_those_of_the_lifespan(app: PinLater) -> None:
    created, seen = list[object](), list[tuple[object, Db]]()

    def new() -> object:
        created.append(object())
        return created[-1]

    @app.task
    async def task(*, own: object = Depends(new), db: Db = Shared(Db)) -> None:
        seen.append((own, db))

    await task.aenqueue_many([()] * 3)
    await run(app)
    assert len({id(own) for own, _ in seen}) == 3
    assert len({id(db) for _, db in seen}) == 1


def test_a_direct_call_gets_them_from_its_caller(app: PinLater) -> None:
    @app.task(name="t")
    def task(x: int, *, db: Db = Shared(Db)) -> tuple[int, Db]:
        return x, db

    db = Db([])
    assert task(1, db=db) == (1, db)
    with pytest.raises(InvalidArgument, match="task 't': expected db from the caller of a direct call, got none"):
        task(1)
    with pytest.raises(InvalidArgument, match="task 't': expected db from the worker"):
        task.enqueue(1, db=5)  # type: ignore[arg-type]


@closing
async def test_a_call_that_brings_what_the_worker_gives_fails(app: PinLater, log: list[str]) -> None:
    @app.task(name="t", attempts=1)
    async def task(*, n: int = Shared(int)) -> None:
        log.append("never")

    body = envelope.head("t", "msgpack") + envelope.packer("msgpack")([[], {"n": 1}])
    client = parts_of(app).clients.of_loop()
    await task.aenqueue()
    await client.enqueue("default", body, attempts=1)
    log.clear()
    stats = await run(app)
    assert (stats.succeeded, stats.failed, log.count("never")) == (1, 1, 1)


@pytest.mark.parametrize(
    ("lifespan", "said"),
    [
        (None, "task 't': expected the app's lifespan to yield a Db, got no lifespan"),
        ({int: 5}, r"task 't': expected the app's lifespan to yield a Db, got \['int'\]"),
        (None, "no lifespan"),
        ([5], r"lifespan: expected it to yield a dict of objects by their type, got \[5\]"),
        ({"db": 5}, "lifespan: expected it to yield a dict of objects by their type"),
    ],
)
@on_loop
async def test_a_worker_does_not_start_if_the_lifespan_lacks_an_object(
    server: Server, lifespan: Any, said: str
) -> None:
    async with PinLater(server.url) as app:
        if lifespan is not None:

            @app.lifespan
            async def created() -> AsyncIterator[Any]:
                yield lifespan

        @app.task(name="t")
        async def task(*, db: Db = Shared(Db)) -> None: ...

        with pytest.raises(InvalidArgument, match=said):
            async with worker_of(app):
                pass


@on_loop
async def test_a_lifespan_may_share_nothing(server: Server) -> None:
    ran = list[str]()
    async with PinLater(server.url) as app:

        @app.lifespan
        async def lifespan() -> AsyncIterator[None]:
            ran.append("set up")
            yield

        @app.task
        async def task() -> None: ...

        async with worker_of(app):
            assert ran == ["set up"]


def test_bad_dependencies_raise_where_they_are_defined() -> None:
    app = PinLater("redis://nobody:1")
    anything: Any = 5
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: Depends(anything), "Depends: expected a function, got 5"),
        (lambda: Shared(anything), "Shared: expected a type, got 5"),
        (lambda: app.task(name="t")(_positional), r"task 't': expected db behind a \*, as the worker passes it"),
        (lambda: app.lifespan(anything), "lifespan: expected an async generator function, got 5"),
        (lambda: app.add_middleware(anything), "middleware: expected a Middleware, got 5"),
        (lambda: PinLater(middleware=[anything]), "middleware: expected a Middleware, got 5"),
        (lambda: app.add_middleware(Plain()), "middleware: expected async def as Plain.before, got <function"),
        (lambda: app.add_middleware(Late()), "middleware: expected a plain function as Late.on_enqueue, got <function"),
    ]
    for call, said in cases:
        with pytest.raises(InvalidArgument, match=said):
            call()
    app.lifespan(_empty)
    with pytest.raises(InvalidArgument, match="lifespan: the app has one, <function _empty"):
        app.lifespan(_empty)
    assert (app.tasks, app.middleware) == ({}, [])


class Plain(Middleware):
    def before(self, execution: Execution) -> None:  # type: ignore[override]
        pass


class Late(Middleware):
    async def on_enqueue(self, task: str, headers: dict[str, Any]) -> None:  # type: ignore[override]
        pass


async def _empty() -> AsyncIterator[None]:
    yield


def _positional(db: Db = Shared(Db)) -> None: ...


# middleware


class Noting(Middleware):
    """Notes what it sees, under its name."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    async def before(self, execution: Execution) -> None:
        assert here() == "loop"
        self.log.append(f"{self.name} before {execution.task} {execution.args} {execution.kwargs} {execution.headers}")

    async def after(self, execution: Execution, error: BaseException | None) -> None:
        self.log.append(f"{self.name} after {error!r}")


class Around(Middleware):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
        self.log.append("around, before")
        try:
            return await run()
        finally:
            self.log.append("around, after")


@on_loop
async def test_the_first_middleware_is_the_outermost_for_every_kind_of_task(server: Server) -> None:
    log = list[str]()
    async with PinLater(server.url, middleware=[Noting("first", log), Around(log)]) as app:
        app.add_middleware(Noting("last", log))

        @app.task(name="async")
        async def one(x: int) -> None:
            log.append("one")

        @app.task(name="plain", backoff=3600)
        def two(*, y: int) -> None:
            log.append("two")
            raise ValueError("no")

        await one.using(trace="00-ab").aenqueue(1)
        await run(app)
        calls, log[:] = list(log), []
        await two.aenqueue(y=2)
        await run(app)
    assert calls == [
        "first before async [1] {} {'trace': '00-ab'}",
        "around, before",
        "last before async [1] {} {'trace': '00-ab'}",
        "one",
        "last after None",
        "around, after",
        "first after None",
    ]
    assert log == [
        "first before plain [] {'y': 2} {}",
        "around, before",
        "last before plain [] {'y': 2} {}",
        "two",
        "last after ValueError('no')",
        "around, after",
        "first after ValueError('no')",
    ]


@on_loop
async def test_what_a_middleware_raises_counts_as_the_tasks(server: Server) -> None:
    class Refuses(Middleware):
        async def before(self, execution: Execution) -> None:
            raise Retry("later", delay=3600)

    class Forgives(Middleware):
        async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
            try:
                return await run()
            except LookupError:
                return None

    async with PinLater(server.url, middleware=[Forgives()]) as app:

        @app.task
        async def task() -> None:
            raise KeyError("no")

        await task.aenqueue()
        assert (await run(app)).succeeded == 1
        app.add_middleware(Refuses())
        handle = await task.aenqueue()
        assert (await run(app)).failed == 1
        info = await handle.ainfo()
    assert info is not None
    assert (info.state, info.attempts_remaining) == (State.PENDING, 4)
    assert info.status.startswith("Retry: later\n")


@on_loop
async def test_middleware_sees_a_timeout_and_its_own_time_does_not_count(server: Server) -> None:
    log = list[str]()

    class Slow(Noting):
        async def before(self, execution: Execution) -> None:
            await asyncio.sleep(0.2)

    async with PinLater(server.url, middleware=[Slow("slow", log)]) as app:

        @app.task(timeout=0.1)
        async def fine() -> None: ...

        @app.task(timeout=0.1, attempts=1)
        async def late() -> None:
            await asyncio.sleep(30)

        await fine.aenqueue()
        await run(app)
        await late.aenqueue()
        await run(app)
    assert log == ["slow after None", "slow after TimedOut('it ran longer than its timeout, 0.1 s')"]
    assert [hooks_limit_s(timeout_s) for timeout_s in (None, 0.1, 600.0)] == [60.0, 60.0, 600.0]


@on_loop
async def test_a_job_is_not_given_up_for_the_time_of_its_middleware_and_its_hook(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.worker.time_limits.GRACE_S", 0.01)
    monkeypatch.setattr("pinlater.worker.time_limits.LOOK_S", 0.01)
    log = list[str]()

    async def take_long(who: str) -> None:
        """Longer than the tasks may."""
        log.append(who)
        await asyncio.sleep(0.8)

    class Around(Middleware):
        async def before(self, execution: Execution) -> None:
            await take_long("before")

        async def after(self, execution: Execution, error: BaseException | None) -> None:
            await take_long(f"after {error!r}")

    async def hook(failure: Failure) -> None:
        await take_long(f"hook {failure.error!r}")

    async with PinLater(server.url, middleware=[Around()]) as app:

        @app.task(timeout=0.5)
        async def fine() -> None: ...

        @app.task(timeout=0.5, attempts=1, on_failure=hook)
        def fails() -> None:
            raise ValueError

        await fine.aenqueue()
        await fails.aenqueue()
        async with worker_of(app, config=WorkerConfig(concurrency=2)) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
            assert worker.limited == 0
    assert sorted(log) == ["after None", "after ValueError()", "before", "before", "hook ValueError()"]
    assert (worker.stats.succeeded, worker.stats.failed) == (1, 1)


@on_loop
async def test_middleware_does_not_turn_a_released_batch_into_a_failure(server: Server) -> None:
    seen = list[BaseException | None]()

    class Reports(Middleware):
        async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
            try:
                return await asyncio.wait_for(run(), 60)
            except Exception as error:
                raise RuntimeError("reported") from error

    class Sees(Middleware):
        async def after(self, execution: Execution, error: BaseException | None) -> None:
            seen.append(error)

    async with PinLater(server.url, middleware=[Reports(), Sees()]) as app:

        @app.task(batch=9, batch_wait=60, attempts=1)
        async def task(items: list[Item[int]]) -> None: ...

        handle = await task.aenqueue(1)
        async with worker_of(app) as worker:
            await worker.start()
            await until(lambda: worker.running, "its collection")
            await worker.stop()
        info = await handle.ainfo()
    assert info is not None
    assert (info.state, info.attempts_remaining, info.status) == (State.PENDING, 1, "")
    assert isinstance(seen[0], asyncio.CancelledError)


@on_loop
async def test_a_producers_hook_adds_headers_once_a_call_of_a_producer(server: Server) -> None:
    calls = list[str]()

    class Stamps(Middleware):
        def on_enqueue(self, task: str, headers: dict[str, Any]) -> None:
            calls.append(task)
            headers["stamp"] = len(calls)

    async with PinLater(server.url) as app:

        @app.task(name="t")
        async def task() -> None: ...

        sends = task.using(trace="00-ab")
        app.add_middleware(Stamps())

        @app.task(queue="raw", codec="raw")
        async def raw(body: bytes) -> None: ...

        await sends.aenqueue()
        await task.aenqueue_many([(), ()])
        await raw.aenqueue(b"")
        client = parts_of(app).clients.of_loop()
        jobs = await client.dequeue("default", 10)
        headers = [envelope.read(job.body)[3] for job in jobs]
    assert calls == ["t", "t"]
    assert sorted(headers, key=str) == [{"stamp": 2}, {"stamp": 2}, {"trace": "00-ab", "stamp": 1}]


@on_loop
async def test_an_error_of_a_producers_hook_is_the_hooks(server: Server) -> None:
    class Broken(Middleware):
        def on_enqueue(self, task: str, headers: dict[str, Any]) -> None:
            raise KeyError("tenant")

    async with PinLater(server.url, middleware=[Broken()]) as app:

        @app.task
        async def task() -> None: ...

        for sending in (task.aenqueue(), task.aenqueue_many([()])):
            with pytest.raises(KeyError, match="tenant"):
                await sending


@on_loop
async def test_what_a_task_enqueues_has_its_trace(server: Server) -> None:
    async with PinLater(server.url) as app:

        @app.task(name="sink", queue="sink")
        async def sink(text: str) -> None: ...

        @app.task(name="async")
        async def on_loop_() -> None:
            await sink.aenqueue("loop")
            await asyncio.gather(sink.using(trace="own").aenqueue("own"), sink.aenqueue_many([("many",)]))

        @app.task(name="plain")
        def in_thread() -> None:
            sink.enqueue("thread")

        await sink.aenqueue("none")
        await on_loop_.using(trace="a").aenqueue()
        await in_thread.using(trace="b").aenqueue()
        await in_thread.aenqueue()
        async with worker_of(app, ["default"]) as worker:
            await worker.run(burst=True)
        client = parts_of(app).clients.of_loop()
        read = [envelope.read(job.body) for job in await client.dequeue("sink", 10)]
        app.close()  # the blocking client of the thread
    found = sorted((args[0], headers.get("trace", "")) for _, args, _, headers in read)
    assert found == [("loop", "a"), ("many", "a"), ("none", ""), ("own", "own"), ("thread", ""), ("thread", "b")]
