"""Tasks and their producers on servers of each kind: every option, sync and async, and errors of bad ones.

How tasks end is tested in test_task_ends.py.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater import (
    AsyncClient,
    Client,
    Context,
    Depends,
    Failure,
    InvalidArgument,
    Item,
    JobUnknown,
    PinLater,
    QueueConfig,
    QueueNotFound,
    Shared,
    State,
    SyncContext,
)
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks.app import parts_of
from tests.conftest import FreshServer
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server

MINUTE_MS = 60_000


@pytest.fixture
def app(server: Server) -> Iterator[PinLater]:
    with PinLater(server.url) as app:
        yield app


async def work(app: PinLater, *queues: str) -> Any:
    """Runs what is due; the worker's counts."""
    async with app, worker_of(app, queues or None) as worker:
        await asyncio.wait_for(worker.run(burst=True), 30)
        return worker.stats


@on_loop
async def test_a_task_is_enqueued_and_run_however_it_is_called(app: PinLater) -> None:
    seen = list[tuple[int, str]]()

    @app.task
    async def note(x: int, y: str = "-") -> None:
        seen.append((x, y))

    @app.task(name="plain", queue="other")
    def plain(x: int, *, y: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append((x, y))

    assert note.name == f"{__name__}.test_a_task_is_enqueued_and_run_however_it_is_called.<locals>.note"
    handles = await asyncio.to_thread(
        lambda: [
            note.enqueue(1, y="a"),
            note.delay(2),
            app.send("plain", 3, y="c"),
            *plain.enqueue_many([plain.args(4, y="d")]),
        ]
    )
    handles += [await note.aenqueue(5), await app.asend("plain", 6, y="f")]
    handles += await note.aenqueue_many([(7,), note.args(8, "h")])
    assert len(set(handles)) == 8
    assert {handle.descriptor.partition(":")[0] for handle in handles} == {"default", "other"}
    assert (await work(app)).succeeded == 8
    assert sorted(seen) == [(1, "a"), (2, "-"), (3, "c"), (4, "d"), (5, "-"), (6, "f"), (7, "-"), (8, "h")]


BLOCKING: dict[str, Callable[[Any, Any], Any]] = {
    "enqueue": lambda task, _: task.enqueue(),
    "enqueue_many": lambda task, _: task.enqueue_many([()]),
    "status": lambda _, handle: handle.status(),
    "info": lambda _, handle: handle.info(),
    "result": lambda _, handle: handle.result(),
    "cancel": lambda _, handle: handle.cancel(),
}


@on_loop
async def test_a_blocking_call_where_a_loop_runs_is_refused(app: PinLater) -> None:
    errors = dict[str, str]()

    @app.task(result_ttl=60)
    async def child() -> int:
        return 1

    @app.task(attempts=1)
    async def parent() -> None:
        handle = await child.aenqueue()
        for call, make in BLOCKING.items():
            try:
                make(child, handle)
            except InvalidArgument as error:
                errors[call] = str(error)

    @app.task(result_ttl=60)
    def in_a_thread() -> Any:
        return child.enqueue().result(30)

    await parent.aenqueue()
    waits = await in_a_thread.aenqueue()
    assert (await work(app)).succeeded == 4  # nothing but the two children was enqueued
    assert errors == {
        call: f"{call}: it would block the event loop that runs in this thread; expected `await ….a{call}(…)` here"
        for call in BLOCKING
    }
    assert await waits.aresult() == 1
    await app.aclose()


def test_a_plain_call_runs_inline() -> None:
    app = PinLater("redis://nobody:1")

    @app.task
    async def add(x: int, y: int = 2) -> int:
        """Adds."""
        return x + y

    @app.task
    def first(context: SyncContext, x: int) -> tuple[int, int, Any]:
        context.checkpoint({"x": x})
        return x, context.attempt, context.state

    @app.task
    async def second(context: Context, x: int) -> Any:
        await context.checkpoint(x)
        context.logger.info("here")
        return context.state

    assert asyncio.run(add(1)) == 3
    assert add.__doc__ == "Adds."
    assert first(5) == (5, 1, {"x": 5})
    assert asyncio.run(second(7)) == 7
    assert repr(add) == f"<task {add.name!r} of queue 'default'>"


@on_loop
async def test_aenqueues_of_one_turn_leave_together(app: PinLater, server: Server) -> None:
    @app.task
    async def note(x: int) -> None: ...

    await note.aenqueue(0)
    with server.client() as redis:
        before = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
        await asyncio.gather(*(note.aenqueue(x) for x in range(50)))
        assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
    await app.aclose()


def test_queues_are_made_on_first_use_with_what_their_tasks_ask_for(app: PinLater, server: Server) -> None:
    @app.task(queue="long", lease=120)
    def one() -> None: ...

    @app.task(queue="long", lease=60, priority=7)
    def two() -> None: ...

    @app.task
    def usual() -> None: ...

    one.enqueue_many([()])
    usual.enqueue()
    app.by_name("elsewhere").using(queue="third").enqueue(1)
    with Client(server.url) as client:
        config = client.queue_config("long")
        assert (config.lease_ms, config.priorities) == (2 * MINUTE_MS, 7)
        assert client.queue_config("default").lease_ms == 30_000
        assert client.queue_names() == ["default", "long", "third"]
        assert two.enqueue().descriptor.startswith("long:s1:p7:")
        client.configure_queue("long", lease_ms=1000)
        one.enqueue()
        assert client.queue_config("long").lease_ms == 1000


def test_a_queue_of_using_is_made_for_the_task_that_is_sent(app: PinLater) -> None:
    @app.task(queue="usual", lease=120, priority=5)
    def task() -> None: ...

    @app.task(queue="there", lease=240, priority=6)
    def other() -> None: ...

    task.using(queue="one").enqueue()
    task.using(queue="two", priority=8).enqueue_many([()])
    task.using(queue="there", priority=1).enqueue()
    app.by_name("elsewhere").using(queue="three", priority=4).enqueue()
    client = parts_of(app).clients.sync()
    configs = {name: client.queue_config(name) for name in client.queue_names()}
    assert {name: (config.lease_ms // 1000, config.priorities) for name, config in configs.items()} == {
        "one": (120, 5),
        "two": (120, 8),
        "there": (240, 6),
        "three": (30, 4),
    }


@on_loop
async def test_a_worker_gives_a_queue_the_priorities_it_lacks_and_logs_its_lease(
    app: PinLater, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="more", queue="more", lease=120, priority=5)
    def more() -> None: ...

    @app.task(queue="enough", lease=2, priority=1)
    def enough() -> None: ...

    @app.task(queue="small")
    def small() -> None: ...

    client = parts_of(app).clients.of_loop()
    await client.create_queue("more", QueueConfig(lease_ms=45_000, keep_succeeded=7))
    await client.create_queue("enough", QueueConfig(lease_ms=3_000, priorities=9))
    await client.create_queue("small", QueueConfig(lease_ms=1_000, priorities=1))
    before = {name: await client.queue_config(name) for name in ("enough", "small")}
    with pytest.raises(InvalidArgument, match="priority: expected 1 to 3"):
        await more.aenqueue()
    caplog.set_level(logging.INFO, "pinlater.worker")
    async with worker_of(app):
        pass
    config = await client.queue_config("more")
    assert (config.lease_ms, config.priorities, config.keep_succeeded) == (45_000, 5, 7)
    assert {name: await client.queue_config(name) for name in before} == before
    logged = [(record.levelname, record.getMessage()) for record in caplog.records if "queue " in record.getMessage()]
    assert logged == [
        ("INFO", "queue more: its tasks need 5 priorities; raised from 3"),
        (
            "WARNING",
            "queue more: its lease is 45 s, its tasks ask for 120 s: pinlater queue set more --lease 120s",
        ),
    ]
    assert (await more.aenqueue()).descriptor.startswith("more:")
    await app.aclose()


def test_what_using_changes(app: PinLater, server: Server) -> None:
    @app.task(attempts=7, priority=2)
    def task(x: int) -> None: ...

    at = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
    at_ms = int(at.timestamp() * 1000)
    before_ms = server.time_ms()
    later = task.using(delay=1.5, trace="00-ab", key="k")
    with Client(server.url) as client:
        first, second, third, fourth = (
            client.lookup([handle.descriptor], with_body=True)[handle.descriptor]
            for handle in (
                task.enqueue(1),
                later.enqueue(1),
                later.using(at=at, priority=3).enqueue(1),
                task.using(queue="other").enqueue(1),
            )
        )
    assert (first.attempts_allowed, first.priority, first.state) == (7, 2, State.PENDING)
    assert second.run_after_ms is not None
    assert before_ms + 1500 <= second.run_after_ms <= server.time_ms() + 1500
    assert (third.run_after_ms, third.priority, fourth.descriptor[:6]) == (at_ms, 3, "other:")
    headers = [envelope.read(info.body or b"")[3] for info in (first, second, third, fourth)]
    assert headers == [{}, {"delay": 1500, "trace": "00-ab"}, {"at": at_ms, "trace": "00-ab"}, {}]


def test_keys_go_to_one_shard(server: Server) -> None:
    with PinLater(shards={"1": server.url, "2": server.url}) as app:

        @app.task
        def task() -> None: ...

        by_key = [{task.using(key=key).enqueue().descriptor.split(":")[1] for _ in range(5)} for key in "abcdefgh"]
        assert [len(shards) for shards in by_key] == [1] * 8
        assert set().union(*by_key) == {"s1", "s2"}


@pytest.mark.parametrize("result_ttl", [None, 60])
@on_loop
async def test_a_job_that_never_was_is_told_from_one_that_is_not_there_any_more(
    app: PinLater, result_ttl: float | None
) -> None:
    @app.task(result_ttl=result_ttl)
    async def task() -> None: ...

    handle = await task.aenqueue()
    assert (await work(app)).succeeded == 1
    async with app:
        assert await handle.astatus() is (None if result_ttl is None else State.SUCCEEDED)
        start, _, id_ = handle.descriptor.rpartition(":")
        later, elsewhere = app.handle(f"{start}:{int(id_) + 2**40}"), app.handle(f"nowhere:s1:p1:{id_}")
        for ask in (later.astatus, later.acancel):
            with pytest.raises(JobUnknown, match=re.escape(f"job {later.descriptor}: ")):
                await ask()
        with pytest.raises(QueueNotFound):
            await elsewhere.astatus()
        assert await app.handle(f"{start}:{int(id_) - 2**40}").astatus() is None, "as if it had been there"

        def in_sync_code() -> None:
            with pytest.raises(JobUnknown):
                later.status()

        await asyncio.to_thread(in_sync_code)


@on_loop
async def test_a_handle_tells_and_cancels(app: PinLater) -> None:
    @app.task(attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    failed, removed = await fail.aenqueue(), await fail.aenqueue()
    assert await removed.astatus() is State.PENDING
    assert await removed.acancel()
    assert await removed.astatus() is None
    assert await removed.ainfo() is None
    assert not await removed.acancel()
    assert (await work(app)).failed == 1

    def in_sync_code() -> None:
        info = failed.info()
        assert info is not None
        assert info.status.startswith("ValueError: no\n")
        assert failed.status() is State.FAILED
        assert not failed.cancel()
        another = fail.enqueue()
        assert another.cancel()
        assert another.status() is None
        assert repr(another) == f"Handle({another.descriptor!r})"

    await asyncio.to_thread(in_sync_code)


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@on_loop
async def test_codecs_carry_arguments_state_and_trace(app: PinLater, codec: envelope.Codec) -> None:
    seen = list[Any]()

    @app.task(codec=codec, backoff=0, timeout=30)
    async def task(context: Context, x: Any, *, y: Any) -> None:
        assert context.deadline_s is not None
        seen.append((x, y, context.state, context.trace, context.attempt, context.task))
        await context.checkpoint({"attempt": context.attempt})
        if context.attempt < 3:
            raise ValueError

    await task.using(trace="00-ab").aenqueue([1, None], y={"a": 0.5})
    await work(app)
    common = ([1, None], {"a": 0.5})
    assert seen == [
        (*common, None, "00-ab", 1, task.name),
        (*common, {"attempt": 1}, "00-ab", 2, task.name),
        (*common, {"attempt": 2}, "00-ab", 3, task.name),
    ]


@on_loop
async def test_a_raw_task_gets_the_body_of_any_producer(app: PinLater, server: Server) -> None:
    seen = list[bytes]()

    @app.task(queue="raw", codec="raw")
    def task(context: SyncContext, body: bytes) -> None:
        seen.append(body)
        with pytest.raises(InvalidArgument, match="a raw body has no place for a state"):
            context.checkpoint(1)

    await task.aenqueue(b"\xfe\x01 ours")
    async with AsyncClient(server.url) as client:
        await client.enqueue("raw", b"theirs")
    assert (await work(app)).succeeded == 2
    assert sorted(seen) == [b"theirs", b"\xfe\x01 ours"]
    bad: Any = task
    for arguments in ((), ("text",), (b"", b"")):
        with pytest.raises(InvalidArgument, match="a raw task takes one argument, bytes"):
            bad.enqueue(*arguments)
    for change in ({"trace": "x"}, {"queue": "y"}):
        with pytest.raises(InvalidArgument, match="a raw task has no trace, and is found by its own queue alone"):
            bad.using(**change)


def _function(context: Context, x: int) -> None: ...


async def _async_function(x: int, context: Context) -> None: ...


async def _needs_one(failure: Failure, one: str = Depends(str)) -> None: ...


def _needs_two(failure: Failure, *, one: str = Depends(str), two: str = Shared(str)) -> None: ...


@pytest.mark.parametrize(
    ("options", "function", "said"),
    [
        ({}, _function, "expected its first parameter as a SyncContext, got context: Context"),
        ({}, _async_function, "expected its first parameter as a Context, got context: Context"),
        ({"name": "x" * 256}, len, "task name: expected 1 to 255 bytes"),
        ({"name": "taken"}, len, "task 'taken': there is a task of that name; name= gives this one another"),
        ({"codec": "raw"}, len, "a raw task is alone in its queue, and 'default' has 'taken'"),
        ({"codec": "pickle"}, len, "codec: expected one of msgpack, json, raw, got 'pickle'"),
        ({"queue": "a-b"}, len, "queue name: expected"),
        ({"priority": 0}, len, "priority: expected an integer from 1 to 100"),
        ({"attempts": 0}, len, "attempts: expected an integer from 1 to 65,535"),
        ({"timeout": 0}, len, "timeout: expected seconds or a timedelta, 0.001 or more, got 0"),
        ({"lease": "1"}, len, "lease: expected seconds or a timedelta"),
        ({"expires": -1}, len, "expires: expected seconds or a timedelta, 0 or more, got -1"),
        ({"backoff": float("nan")}, len, "backoff: expected seconds or a timedelta, 0 or more, got nan"),
        ({"batch_wait": 1}, len, "batch_wait: expected batch= beside it, got none"),
        ({"give_up_on": "x"}, len, "give_up_on: expected exception types, got 'x'"),
        ({"give_up_on": (ValueError, 5)}, len, "give_up_on: expected exception types, got 5"),
        ({"on_failure": "x"}, len, r"on_failure: expected a function of one argument \(the Failure\), got 'x'"),
        ({"on_failure": lambda: None}, len, r"on_failure: expected a function of one argument \(the Failure\), got <f"),
        (
            {"on_failure": _needs_one},
            len,
            "on_failure: expected a function without Depends and Shared, got them for one",
        ),
        (
            {"on_failure": _needs_two},
            len,
            "got them for one, two; it gets the Failure alone: enqueue a task from it that",
        ),
        ({}, 5, "task: expected a function, or name=, got 5"),
    ],
)
def test_bad_options_raise_where_the_task_is_defined(options: dict[str, Any], function: Any, said: str) -> None:
    app = PinLater("redis://nobody:1")
    app.task(name="taken")(lambda: None)
    with pytest.raises(InvalidArgument, match=said):
        app.task(**options)(function)
    assert list(app.tasks) == ["taken"]


def test_times_are_seconds_or_timedeltas() -> None:
    app, names = PinLater("redis://nobody:1"), ("timeout", "lease", "result_ttl", "expires", "backoff")
    options: dict[str, Any] = dict.fromkeys(names, datetime.timedelta(minutes=2))
    seconds: dict[str, Any] = dict.fromkeys(names, 120)
    first, second = app.task(name="a", **options)(len), app.task(name="b", **seconds)(len)
    assert first.options == second.options
    batch = app.task(name="c", batch=2, batch_wait=datetime.timedelta(milliseconds=20))(_of_batch)
    assert batch.options.batch_wait_s == 0.02
    later = first.using(delay=datetime.timedelta(hours=1)).send_options
    assert later == first.using(delay=3600).send_options
    assert later.options["delay_ms"] == 60 * MINUTE_MS


@pytest.mark.parametrize("wrong", [0, 601, "5", None, datetime.timedelta(seconds=5)])
def test_a_wrong_time_limit_of_an_app_is_told_where_it_is_made(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^timeout_s: expected seconds, more than 0 and at most 600, got "):
        PinLater("redis://nobody:1", timeout_s=wrong)


def _of_batch(items: list[Item[int]]) -> None: ...


def test_bad_calls_raise_before_anything_is_sent() -> None:
    app = PinLater("redis://nobody:1")

    @app.task(name="t")
    def task(x: Any) -> None: ...

    @app.task(queue="bytes", codec="raw")
    def raw(body: bytes) -> None: ...

    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: task.enqueue(object()), "task 't': argument x: a object cannot come back"),
        (lambda: task.enqueue(2**64), "task 't': its arguments can not be packed as msgpack"),
        (lambda: task.enqueue_many([5]), r"calls: expected task.args\(…\) or a tuple of arguments, got 5"),  # type: ignore[list-item]
        (lambda: task.enqueue_many(5), "calls: expected a list or another iterable, got 5"),  # type: ignore[arg-type]
        (lambda: task.using(delay=-1), "delay: expected seconds or a timedelta, 0 or more, got -1"),
        (lambda: task.using(at=datetime.datetime(2100, 1, 1)), "at: expected a datetime with a time zone"),
        (lambda: task.using(delay=1, at=datetime.datetime.now(datetime.UTC)), "expected a delay or a time"),
        (lambda: task.using(at=datetime.datetime(1969, 1, 1, tzinfo=datetime.UTC)), "at: expected a time from 1970 to"),
        (lambda: task.using(at=datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)), "to 2527-06-23, got 9999-01-01"),
        (lambda: task.using(trace=5), "trace: expected text, got 5"),  # type: ignore[arg-type]
        (lambda: task.using(queue="bytes"), "task 't': queue 'bytes' is of a raw task, which takes no others"),
        (lambda: app.by_name("there").using(queue="bytes"), "task 'there': queue 'bytes' is of a raw task"),
        (lambda: app.by_name(5), "task name: expected text, got 5"),  # type: ignore[arg-type]
        (lambda: app.by_name(""), "task name: expected 1 to 255 bytes, got 0"),
    ]
    for call, said in calls:
        with pytest.raises(InvalidArgument, match=said):
            call()


def test_the_app_without_tasks_has_nothing_to_work_on() -> None:
    with pytest.raises(InvalidArgument, match="the app has no tasks"):
        parts_of(PinLater()).queue_names()


@on_loop
async def test_a_worker_that_starts_before_its_server_works_once_it_is_there(fresh_server: FreshServer) -> None:
    server = fresh_server()
    server.stop()
    ran = []
    async with PinLater(server.url, timeout_s=0.3) as app:

        @app.task
        async def task(x: int) -> None:
            ran.append(x)

        async with worker_of(app) as worker:
            await worker.start()
            await until(lambda: worker.fetcher.last_error, "a claim in vain")
            await asyncio.to_thread(server.start)
            await task.aenqueue(1)
            await until(lambda: ran == [1], "its run")
            await worker.stop()
