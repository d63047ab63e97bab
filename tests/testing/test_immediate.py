"""Immediate mode: a job has run when the call that enqueues it returns.

The tests run tasks of all kinds, from sync and async code.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

import psutil  # type: ignore[import-untyped]
import pytest
import redis

from pinlater import Cancel, Context, PinLater, Queue, RateLimited, Shared, Snooze, State
from pinlater.model.errors import InvalidArgument, ResultTimeout
from pinlater.tasks.app import parts_of
from pinlater.testing.immediate import Immediate

app = PinLater("redis://127.0.0.1:1")  # where nobody is
done: list[object] = []


@app.task(name="note")
async def note(what: str | int | tuple[int, int] | dict[str, list[int]]) -> None:
    done.append(what)


@app.task(name="outer")
def outer() -> None:
    note.enqueue("inner")
    done.append("outer")


@app.task(name="outer_async")
async def outer_async() -> None:
    await note.aenqueue("inner")
    note.enqueue("inner by a sync call")
    done.append("outer")


@app.task(name="flaky", attempts=3, backoff=3600)
async def flaky(context: Context) -> None:
    done.append((context.attempt, context.state))
    await context.checkpoint(context.attempt)
    if context.attempt < 3:
        raise ConnectionError


@app.task(name="broken", attempts=2, backoff=60)
def broken(how: str) -> None:
    done.append(how)
    raise Cancel("why") if how == "cancel" else KeyError(how)


@app.task(name="endless")
async def endless() -> None:
    raise Snooze(60)


@pytest.fixture(autouse=True)
def immediate() -> Iterator[None]:
    done.clear()
    with app.immediate():
        yield


def test_it_has_run_when_the_call_returns() -> None:
    assert note.enqueue({"a": [1]}).status() is None, "it succeeded, and its queue keeps none such"
    note.delay("by its other name")
    note.using(delay=3600).enqueue("later")
    note.enqueue_many([("first",), note.args("second")])
    app.send("note", "by name")
    assert done == [{"a": [1]}, "by its other name", "later", "first", "second", "by name"]


def test_what_a_task_puts_in_line_has_run_too() -> None:
    outer.enqueue()
    assert done == ["outer", "inner"]
    done.clear()
    outer_async.enqueue()
    assert done == ["outer", "inner", "inner by a sync call"]


def test_retries_run_at_once_with_their_checkpoints() -> None:
    began_s = time.monotonic()
    flaky.enqueue()
    assert done == [(1, None), (2, 1), (3, 2)]
    assert time.monotonic() - began_s < 3600, "the backoff passed on the store's clock alone"


def test_the_error_of_a_job_that_stays_failed_is_raised() -> None:
    with pytest.raises(KeyError, match="x") as raised:
        broken.enqueue("x")
    assert "task 'broken', attempt 2" in raised.value.__notes__[0]
    assert done == ["x", "x"]
    assert broken.enqueue("cancel").status() is State.FAILED, "Cancel is no error"


def test_arguments_that_can_not_be_packed_show() -> None:
    with pytest.raises(InvalidArgument, match=r"argument what: <object object at .*> cannot be written"):
        note.enqueue(object())  # type: ignore[arg-type]
    note.enqueue((1, 2))
    assert done == [(1, 2)], "as a worker gets them"


def test_a_wrong_call_shows() -> None:
    with pytest.raises(TypeError, match="task 'note': missing a required argument: 'what'"):
        note.using().enqueue()  # type: ignore[call-arg]


def test_async_code() -> None:
    loops: list[object] = []

    @app.task(name="where")
    async def where() -> None:
        loops.append(asyncio.get_running_loop())

    async def run() -> None:
        await asyncio.gather(note.aenqueue(1), note.aenqueue(2), flaky.aenqueue())
        assert sorted(map(repr, done)) == ["(1, None)", "(2, 1)", "(3, 2)", "1", "2"]
        await note.aenqueue_many([(3,), (4,)])
        outer.enqueue()  # a sync call in async code: in a thread of its own
        assert done[-4:] == [3, 4, "outer", "inner"]
        await where.aenqueue()
        assert loops == [asyncio.get_running_loop()]
        await app.aclose()

    try:
        asyncio.run(run())
    finally:
        del app.tasks["where"]


def test_threads_take_turns() -> None:
    threads = [threading.Thread(target=note.enqueue, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done, key=repr) == [0, 1, 2, 3]


def test_a_task_that_never_ends_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinlater.testing.immediate.MAX_ROUNDS", 5)
    with pytest.raises(InvalidArgument, match="'endless': not at an end after 5 rounds"):
        endless.enqueue()


def test_a_task_that_enqueues_itself_at_once_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinlater.testing.drain.MAX_RUNS", 20)

    @app.task(name="again")
    def again() -> None:
        again.enqueue()

    try:
        with pytest.raises(InvalidArgument, match="task 'again': expected its jobs to come to an end"):
            again.enqueue()
    finally:
        del app.tasks["again"]


def test_an_unknown_task_stays_in_line() -> None:
    handle = app.send("elsewhere.task", 1)
    assert handle.status() is State.PENDING
    note.enqueue("goes on")
    assert done == ["goes on"]


def test_calls_share_their_connections() -> None:
    provider = parts_of(app).clients.provider
    assert isinstance(provider, Immediate)
    note.enqueue(1)

    def connections() -> set[str]:  # not the worker's renewer: it is made anew, if it connects at all
        with redis.Redis.from_url(provider.url(), protocol=2, client_name="look") as look:
            return {each["id"] for each in look.client_list() if each["name"] == "pinlater"}

    first = connections()
    assert first
    for call in (note, note.using(delay=5), note.using(queue="another"), *[note] * 5):
        call.enqueue(2)
        assert first <= connections(), "they stay"
        parts_of(app).clients.sync().delete_queue("another")
    assert done == [1, *[2] * 8]
    # the caller's, one that listens, and one for each call that the worker makes while another of its calls is under
    # way: a claim, an ack, a pass-on. The machine's load decides when such calls first meet.
    assert len(connections()) <= 5


def test_nothing_of_a_block_is_left_behind() -> None:
    others = set(threading.enumerate())

    def held() -> int:
        """Returns when its threads, which were asked to end, have ended."""
        for thread in set(threading.enumerate()) - others:
            thread.join(20)
            assert not thread.is_alive(), thread
        held: int = psutil.Process().num_fds()
        return held

    def block() -> None:
        with PinLater("redis://127.0.0.1:1") as other:
            put = other.task(name="n")(lambda what: done.append(what))
            with other.immediate():
                put.enqueue(1)
                put.enqueue(2)

                async def in_async_code() -> None:
                    await put.aenqueue(3)
                    put.enqueue(4)
                    await put.aenqueue(5)
                    await other.aclose()

                asyncio.run(in_async_code())

    block()
    before = held()
    block()
    assert held() == before
    assert done == [1, 2, 3, 4, 5] * 2


def test_a_call_leaves_nothing_to_the_next_one() -> None:
    """Asyncio tasks that a task left running end with its call; its context variables are not kept."""
    variable: ContextVar[str] = ContextVar("variable", default="nothing")

    @app.task(name="leaves")
    async def leaves() -> None:
        done.append(variable.get())
        variable.set("by a task")
        sleeping = asyncio.create_task(asyncio.sleep(3600))
        sleeping.add_done_callback(lambda task: done.append(task.cancelled()))

    try:
        leaves.enqueue()
        variable.set("by the caller")
        leaves.enqueue()
    finally:
        del app.tasks["leaves"]
    assert done == ["nothing", True, "by the caller", True]


def test_what_a_task_puts_into_another_queue_has_run_too() -> None:
    @app.task(name="to_another")
    async def to_another() -> None:
        await note.using(queue="new").aenqueue("now")
        await note.using(queue="newer", delay=60).aenqueue("later")

    try:
        to_another.enqueue()
    finally:
        del app.tasks["to_another"]
    assert done == ["now", "later"]


def test_a_running_job_of_any_queue_can_be_cancelled() -> None:
    """The worker's subscription, which is kept, hears of queues that came later too."""

    @app.task(name="cancelled", queue="came_later")
    async def cancelled(context: Context) -> None:
        try:
            await app.handle(context.job.descriptor).acancel()
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            done.append("cancelled")
            raise

    try:
        note.enqueue("first")
        assert cancelled.enqueue().status() is None
    finally:
        del app.tasks["cancelled"]
    assert done == ["first", "cancelled"]


def test_the_lifespan_is_entered_once_a_block() -> None:
    with PinLater("redis://127.0.0.1:1") as entered_lifespan:

        @entered_lifespan.lifespan
        async def lifespan() -> AsyncIterator[dict[type, str]]:
            done.append("entered")
            yield {str: "shared"}
            done.append("left")

        @entered_lifespan.task(name="asks")
        def asks(what: int, *, text: str = Shared(str)) -> None:
            done.append((what, text))

        with entered_lifespan.immediate():
            for i in range(3):
                asks.enqueue(i)
        assert done == ["entered", (0, "shared"), (1, "shared"), (2, "shared"), "left"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinlater.testing.immediate.PATIENCE_S", 0.05)


@app.task(name="double", result_ttl=60)
def double(number: int) -> int:
    done.append(number)
    return 2 * number


def test_a_result_that_would_come_after_the_task_is_refused() -> None:
    @app.task(name="waits")
    def waits() -> None:
        handle = double.enqueue(1)
        with pytest.raises(ResultTimeout):
            handle.result(timeout=0)
        handle.result()

    @app.task(name="waits_async")
    async def waits_async() -> None:
        await (await double.aenqueue(2)).aresult(timeout=3600)

    try:
        for task in (waits, waits_async):
            with pytest.raises(InvalidArgument, match="in immediate mode its job runs after this task"):
                task.using().enqueue()
    finally:
        del app.tasks["waits"], app.tasks["waits_async"]
    assert set(done) == {1, 2}
    assert double.enqueue(3).result() == 6


@pytest.mark.usefixtures("impatient")
def test_a_thread_that_a_task_waits_for_leaves_its_jobs_to_it() -> None:
    def put(how: str) -> None:
        note.enqueue(how)
        done.append("put")

    async def aput(how: str) -> None:
        await note.aenqueue(how)
        await app.aclose()

    @app.task(name="in_thread")
    def in_thread() -> None:
        thread = threading.Thread(target=put, args=("by a thread",))
        thread.start()
        thread.join()
        thread = threading.Thread(target=lambda: asyncio.run(aput("by its loop")))
        thread.start()
        thread.join()
        done.append("task")

    try:
        in_thread.enqueue()
    finally:
        del app.tasks["in_thread"]
    assert done == ["put", "task", "by a thread", "by its loop"]


def test_a_sync_call_beside_an_async_one_of_its_loop_does_not_wait_for_it() -> None:
    started, blocking_list = asyncio.Event(), asyncio.Event()

    @app.task(name="waits")
    async def waits() -> None:
        started.set()
        await blocking_list.wait()

    async def run() -> None:
        waiting = asyncio.create_task(waits.aenqueue())
        await started.wait()
        handle = double.enqueue(1)
        with pytest.raises(InvalidArgument, match="its job runs after this task"):
            handle.result()
        blocking_list.set()
        await waiting
        assert done == [1]
        assert await handle.aresult() == 2
        await app.aclose()

    try:
        asyncio.run(run())
    finally:
        del app.tasks["waits"]


def test_an_app_can_be_so_for_good() -> None:
    with PinLater(immediate=True) as always:

        @always.task(name="always")
        def task() -> None:
            done.append("always")

        task.enqueue()
    assert done == ["always"]


def test_without_lupa_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lupa", None)
    with pytest.raises(InvalidArgument, match=r"pip install lupa"), PinLater().immediate():
        pass


def test_limits_hold_no_call_back() -> None:
    @app.task(name="limited", queue=Queue("limited", rate="1/d", max_running=1))
    async def limited(context: Context, number: int) -> None:
        if number == 1 and context.state is None:
            raise RateLimited(3600, state="asked")
        done.append(number)

    try:
        with app.immediate():
            limited.enqueue(0)
            limited.enqueue_many([(number,) for number in range(1, 4)])
            assert sorted(done, key=str) == [0, 1, 2, 3]
            assert done[-1] == 1
    finally:
        del app.tasks["limited"]
