"""An app under test: the harness, what it runs and returns, its clock, and the pytest plugin.

Jobs run on the store in memory, and nothing waits for a real clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import importlib
import os
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest
import redis

import pinlater.memory.lua
from pinlater import (
    Cancel,
    Client,
    Constant,
    Context,
    PinLater,
    Queue,
    RateLimited,
    Retry,
    Shared,
    Snooze,
    State,
    SyncContext,
)
from pinlater.model.errors import BodyUnreadable, InvalidArgument
from pinlater.store.keys import queue_key
from pinlater.testing import Harness, MemoryServer
from tests.support.pages import page
from tests.support.paths import ROOT
from tests.support.servers import wait_until

app = PinLater("redis://127.0.0.1:1")  # where nobody is
done: list[object] = []


@app.task(name="greet")
async def greet(name: str, *, times: int = 1) -> None:
    done.append((name, times))


@app.task(name="limited", queue=Queue("limited", rate="5/m", burst=3))
async def limited(number: int) -> int:
    return number


@app.task(name="one_at_a_time", queue=Queue("one_at_a_time", max_running=1))
async def one_at_a_time(number: int) -> int:
    return number


@app.task(name="busy", queue="busy")
async def busy(context: Context, number: int) -> int:
    if number == 1 and context.state is None:
        raise RateLimited(60, state="asked")
    return number


@app.task(name="second", queue="second")
def second(names: list[str]) -> None:
    greet.enqueue_many([greet.args(name) for name in names])


@app.task(name="flaky", attempts=3, backoff=Constant(60))
def flaky(context: SyncContext) -> None:
    done.append((context.attempt, context.state))
    context.checkpoint(context.attempt)
    if context.attempt < 3:
        raise ConnectionError(f"attempt {context.attempt}")


@app.task(name="ends")
async def ends(how: str) -> None:
    if how == "snooze":
        raise Snooze(60)
    if how == "retry":
        raise Retry("later", delay=60)
    if how == "cancel":
        raise Cancel("never")


@app.task(name="bytes", queue="bytes", codec="raw")
def raw(body: bytes) -> None:
    done.append(body)


@pytest.fixture
def harness() -> Iterator[Harness]:
    done.clear()
    with Harness(app) as harness:
        yield harness


def test_what_is_due_runs_in_order_and_what_it_puts_in_line_too(harness: Harness) -> None:
    greet.enqueue("a", times=2)
    second.enqueue(["b", "c"])
    greet.using(delay=3600).enqueue("later")
    raw.enqueue(b"body")
    assert done == []
    ran = harness.drain()
    assert sorted(map(repr, done)) == ["('a', 2)", "('b', 1)", "('c', 1)", "b'body'"]
    by_task = {each.task: each for each in ran}
    assert (by_task["second"].args, by_task["bytes"].args) == ((["b", "c"],), (b"body",))
    assert [(each.args, each.kwargs) for each in ran if each.task == "greet"] == [
        (("a",), {"times": 2}),
        (("b",), {}),
        (("c",), {}),
    ]
    assert {(each.attempt, each.outcome, each.error) for each in ran} == {(1, "succeeded", None)}
    done.clear()
    assert harness.drain() == []
    harness.clock.advance(3601)
    assert [each.args for each in harness.drain()] == [("later",)]


def test_retries_run_as_the_clock_moves_and_errors_are_raised(harness: Harness) -> None:
    handle = flaky.enqueue()
    with pytest.raises(ConnectionError, match="attempt 1") as raised:
        harness.drain()
    assert raised.value.__notes__ == [f"task 'flaky', attempt 1, job {handle.descriptor}"]
    assert harness.drain() == []
    before = harness.clock.now()
    harness.clock.advance(61)
    assert datetime.timedelta(seconds=61) <= harness.clock.now() - before < datetime.timedelta(seconds=90)
    (ran,) = harness.drain(raising=False)
    assert (ran.outcome, ran.attempt, str(ran.error)) == ("retried", 2, "attempt 2")
    harness.clock.advance(61)
    assert [(each.outcome, each.attempt) for each in harness.drain()] == [("succeeded", 3)]
    assert done == [(1, None), (2, 1), (3, 2)]
    assert handle.status() is None


def test_ends_that_a_task_means_are_no_errors(harness: Harness) -> None:
    handles = [ends.enqueue(how) for how in ("snooze", "retry", "cancel")]
    assert [each.outcome for each in harness.drain()] == ["postponed", "retried", "failed"]
    assert [handle.status() for handle in handles] == [State.PENDING, State.PENDING, State.FAILED]


def test_a_body_that_is_no_call_is_reported(harness: Harness) -> None:
    with Client(harness.server.url) as client:
        client.create_queue("default")
        client.enqueue("default", b"no envelope")
    assert [(each.task, each.args) for each in harness.enqueued()] == [("", (b"no envelope",))]
    with pytest.raises(BodyUnreadable, match="expected an envelope"):
        harness.drain()


def test_what_is_in_line(harness: Harness) -> None:
    with pytest.raises(AssertionError, match=r"expected at least one job of 'greet' \(\), found 0; enqueued: nothing"):
        harness.assert_enqueued(greet)
    greet.using(delay=60).enqueue("late")
    greet.using(queue="other").enqueue("a", times=3)
    harness.clock.advance(1)  # of two queues what came in one millisecond has no order
    second.enqueue(["x", "y"])
    harness.clock.advance(1)
    raw.enqueue(b"body")
    assert [each.task for each in harness.enqueued()] == ["greet", "second", "bytes", "greet"]
    assert len(harness.assert_enqueued(greet)) == 2
    assert harness.assert_enqueued("greet", ["a"], {"times": 3}, queue="other", count=1)[0].queue == "other"
    harness.assert_enqueued(second, (("x", "y"),), {}, count=1)  # of tuples the codec makes lists
    harness.assert_enqueued(raw, (b"body",))
    assert len(harness.assert_enqueued(greet.using(delay=60))) == 2
    with pytest.raises(InvalidArgument, match="assert_enqueued: expected a task, or its name, got <function greet"):
        harness.assert_enqueued(greet.function)  # type: ignore[arg-type]
    harness.assert_enqueued(greet, ("b",), count=0)
    with pytest.raises(AssertionError) as raised:
        harness.assert_enqueued(greet, ("a",), {"times": 2})
    assert str(raised.value) == (
        "expected at least one job of 'greet' (args=('a',), kwargs={'times': 2}), found 0; enqueued:\n"
        "  greet('a', times=3) in 'other'\n  second(['x', 'y']) in 'second'\n  bytes(b'body') in 'bytes'\n"
        "  greet('late') in 'default'"
    )
    with pytest.raises(AssertionError, match=r"expected 3 jobs of 'greet' .*, found 2"):
        harness.assert_enqueued(greet, count=3)


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    price: Decimal
    note: str = ""


ORDER = Order(uuid.UUID(int=7), Decimal("1.50"))


@app.task(name="charge", queue="charges")
def charge(order: Order, tags: set[str], *, due: datetime.date | None = None) -> None:
    done.append(order)


def test_arguments_are_compared_and_shown_as_annotations_say(harness: Harness) -> None:
    day = datetime.date(2026, 11, 22)
    charge.enqueue(ORDER, {"a", "b"}, due=day)
    for name in (charge, "charge"):
        for order in (ORDER, {"id": str(ORDER.id), "price": "1.50", "note": ""}):
            harness.assert_enqueued(name, args=[order, ["b", "a"]], kwargs={"due": day}, count=1)
        harness.assert_enqueued(name, kwargs={"due": "2026-11-22"}, count=1)
    harness.assert_enqueued(charge, args=[dataclasses.replace(ORDER, note="x"), {"a", "b"}], count=0)
    harness.assert_enqueued(charge, args=["no order"], count=0)
    with pytest.raises(InvalidArgument, match=r"task 'charge': argument due: expected datetime.date"):
        harness.assert_enqueued(charge, kwargs={"due": ORDER})
    with pytest.raises(InvalidArgument, match="task 'elsewhere': argument args: a UUID cannot come back"):
        harness.assert_enqueued("elsewhere", args=[ORDER.id])
    with pytest.raises(InvalidArgument, match=r"assert_enqueued: no job has these arguments: .*range"):
        harness.assert_enqueued(greet, args=[2**64])
    [enqueued] = harness.enqueued()
    assert (enqueued.args, enqueued.kwargs) == ((ORDER, {"a", "b"}), {"due": day})
    [ran] = harness.drain()
    assert (ran.args, ran.kwargs) == ((ORDER, {"a", "b"}), {"due": day})
    assert done == [ORDER]


def test_arguments_that_do_not_fit_are_shown_as_the_body_has_them(harness: Harness) -> None:
    other = PinLater(harness.server.url)  # it does not know the function
    with other:
        other.by_name("charge").using(queue="charges").enqueue({"id": "no id"}, ["a"])
    harness.assert_enqueued(charge, args=[{"id": "no id"}, ["a"]], count=1)
    [ran] = harness.drain(raising=False)
    assert (ran.args, ran.outcome) == (({"id": "no id"}, ["a"]), "failed")


def test_in_async_code(harness: Harness) -> None:
    async def run() -> None:
        await greet.aenqueue("a")
        harness.assert_enqueued(greet, count=1)
        with pytest.raises(InvalidArgument, match="await adrain"):
            harness.drain()
        assert [each.args for each in await harness.adrain()] == [("a",)]
        await app.aclose()

    asyncio.run(run())
    assert done == [("a", 1)]


def test_the_app_is_as_before_afterwards(harness: Harness) -> None:
    other = PinLater(harness.server.url)
    with other:

        @other.task(name="other")
        def task() -> None:
            done.append("other")

        task.enqueue()
        with Harness(other) as inner:
            assert inner.enqueued() == []
            inner.drain()
        assert done == []
        assert len(harness.assert_enqueued("other")) == 1


def test_a_drain_that_would_never_end_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinlater.testing.drain.MAX_RUNS", 20)
    endless = PinLater()

    @endless.task(name="again")
    def again() -> None:
        again.enqueue()

    @endless.task(name="snoozes")
    async def snoozes() -> None:
        raise Snooze(0)

    @endless.task(name="once")
    async def once(what: int) -> None:
        pass

    for task in (again, snoozes):
        with Harness(endless) as harness:
            task.enqueue()
            with pytest.raises(
                InvalidArgument, match=f"task '{task.name}': expected its jobs to come to an end, got 2"
            ):
                harness.drain()
    with Harness(endless) as harness:
        once.enqueue_many([(i,) for i in range(50)])
        assert len(harness.drain()) == 50, "jobs enqueued before the drain do not count for the limit"


def test_a_task_that_the_app_does_not_have(harness: Harness) -> None:
    app.by_name("elsewhere").using(queue="of_another_app").enqueue()
    assert [each.outcome for each in harness.drain()] == ["postponed"]
    app.send("gret", "a")
    with pytest.raises(InvalidArgument, match=r"queue 'default': expected a task of the app \(.*greet.*\), got 'gret'"):
        harness.drain()
    harness.clock.advance(6)
    (ran,) = (each for each in harness.drain(raising=False) if each.task == "gret")
    assert (ran.outcome, type(ran.error)) == ("postponed", InvalidArgument)


def test_what_tasks_put_into_a_new_queue_runs_too(harness: Harness) -> None:
    moving = PinLater()

    @moving.task(name="move")
    def move(left: int) -> None:
        if left:
            move.using(queue=f"q{left}").enqueue(left - 1)

    with Harness(moving) as harness:
        move.enqueue(3)
        assert [each.queue for each in harness.drain()] == ["default", "q3", "q2", "q1"]


class Database:
    """What a lifespan shares."""


entered_lifespan = PinLater("redis://127.0.0.1:1")


@entered_lifespan.lifespan
async def lifespan() -> AsyncIterator[dict[type, object]]:
    done.append("entered")
    yield {Database: Database()}
    done.append("left")


@entered_lifespan.task(name="asks")
async def asks(*, database: Database = Shared(Database)) -> Database:
    return database


@entered_lifespan.task(name="asks_not")
def asks_not() -> None:
    pass


def test_the_lifespan_is_entered_once_a_harness() -> None:
    done.clear()
    with Harness(entered_lifespan) as harness:
        asks_not.enqueue()
        assert done == [], "by the first drain"
        harness.drain()
        asks.enqueue_many([(), ()])
        given = [each.value for each in (*harness.drain(), *harness.drain())]
        assert len(given) == 2
        assert type(given[0]) is Database
        assert given[0] is given[1]
        assert done == ["entered"]
    assert done == ["entered", "left"]


def test_the_lifespan_is_entered_once_a_loop_of_async_code() -> None:
    done.clear()

    async def use(harness: Harness) -> None:
        for _ in range(3):
            await asks.aenqueue()
            await harness.adrain()
        assert done == ["entered"]

    async def run() -> None:
        with Harness(entered_lifespan) as harness:
            await use(harness)
            await entered_lifespan.aclose()
            assert done == ["entered", "left"]

    asyncio.run(run())
    done.clear()
    loop = asyncio.new_event_loop()
    with Harness(entered_lifespan) as harness:
        loop.run_until_complete(use(harness))
    assert done == ["entered", "left"], "a loop that rests is used to leave it"
    loop.close()


def test_what_the_lifespan_raises_is_raised_by_the_drain() -> None:
    failing = PinLater()
    tries: list[int] = []

    @failing.lifespan
    async def broken() -> AsyncIterator[None]:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("no database here")
        yield

    failing.task(name="task")(lambda: None)
    with Harness(failing) as harness:
        with pytest.raises(ConnectionError, match="no database here"):
            harness.drain()
        assert harness.drain() == []
    assert len(tries) == 2


def test_other_objects_stand_in_for_the_lifespan() -> None:
    done.clear()
    fake = Database()
    with Harness(entered_lifespan, shared={Database: fake}) as harness:
        asks.enqueue()
        assert [each.value for each in harness.drain()] == [fake]
        with entered_lifespan.immediate():
            asks.enqueue()
    assert done == [], "it was not entered"
    with (
        Harness(entered_lifespan, shared={}) as harness,
        pytest.raises(InvalidArgument, match="to yield a Database, got"),
    ):
        harness.drain()
    with Harness(entered_lifespan) as harness:
        harness.drain()
    assert done == ["entered", "left"], "it is there again"
    with pytest.raises(InvalidArgument, match="shared: expected a dict of objects by their type, got"):
        Harness(entered_lifespan, shared={"database": fake})  # type: ignore[dict-item]


def test_a_drain_in_a_task_is_refused(harness: Harness) -> None:
    nested = PinLater()

    @nested.task(name="drains")
    def drains() -> None:
        inner.drain()

    with Harness(nested) as inner:
        drains.enqueue()
        with pytest.raises(InvalidArgument, match="drain: expected one at a time, got one in a task"):
            inner.drain()


UNCLOSED = """
import asyncio, sys, threading
from pinlater import PinLater
from pinlater.testing import Harness

app = PinLater("redis://127.0.0.1:1")

@app.task
async def task() -> None: ...

async def test(harness):
    await task.aenqueue()
    await harness.adrain()

async def others():
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

async def at_once():
    await task.aenqueue()

for block, code in ((lambda: Harness(app), test), (app.immediate, lambda _: at_once())):
    loop = asyncio.new_event_loop()  # as plugins for async tests have it
    with block() as harness:
        loop.run_until_complete(code(harness))
    loop.close()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with block() as harness:
        asyncio.run_coroutine_threadsafe(code(harness), loop).result()
    asyncio.run_coroutine_threadsafe(others(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
"""


def test_nothing_is_left_open_by_async_code_that_did_not_close_the_app() -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", UNCLOSED], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


IN_A_PROCESS = """
from pinlater import PinLater

app = PinLater("redis://127.0.0.1:1")  # where nobody is

@app.task(name="work", runs_in="process")
def work(text: str) -> str:
    note.using(queue="notes").enqueue(text)
    return text

@app.task(name="note")
async def note(text: str) -> None:
    noted.append(text)

noted = []
"""


def test_what_a_process_puts_in_line_is_in_the_store_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app_in_a_process.py").write_text(IN_A_PROCESS)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("app_in_a_process")
    with Harness(module.app) as harness:
        module.work.enqueue("by the harness")
        assert [(each.task, each.value) for each in harness.drain()] == [("work", "by the harness"), ("note", None)]
        assert harness.enqueued() == []
    with module.app.immediate():
        module.work.enqueue("at once")
    assert module.noted == ["by the harness", "at once"]


def test_what_tasks_returned() -> None:
    giving = PinLater()

    @giving.task(name="loop")
    async def on_loop(number: int) -> object:
        return {number}

    @giving.task(name="thread", attempts=2, backoff=0)
    def in_thread(context: SyncContext) -> str:
        if context.attempt == 1:
            raise KeyError
        return "second"

    with Harness(giving) as harness:
        on_loop.enqueue(1)
        assert [each.value for each in harness.drain()] == [{1}]
        in_thread.enqueue()
        assert [each.value for each in harness.drain(raising=False)] == [None, "second"]


def test_tasks_that_wait_for_each_other_need_slots() -> None:
    opened = asyncio.Event()
    waiting = PinLater()

    @waiting.task(name="wait")
    async def wait(context: Context) -> None:
        await opened.wait()

    @waiting.task(name="open")
    async def open_() -> None:
        opened.set()

    with Harness(waiting) as harness:
        wait.enqueue()
        open_.enqueue()
        assert [each.task for each in harness.drain(concurrency=2)] == ["open", "wait"]


# the store


def test_leases_end_and_waiters_wake_when_the_clock_moves() -> None:
    with MemoryServer() as server, Client(server.url) as client:
        client.create_queue("q")
        client.enqueue("q", b"held")
        (held,) = client.dequeue("q")
        server.advance(29)
        assert client.count("q").in_progress == 1
        server.advance(2)
        assert client.ack(succeeded=[held]) == [held], "its lease is gone"
        (again,) = client.dequeue("q")
        assert (again.body, again.attempts_remaining) == (b"held", 1)
        client.ack(succeeded=[again])

        client.enqueue("q", b"later", delay_ms=3_600_000)
        with ThreadPoolExecutor(1) as pool, redis.Redis(unix_socket_path=str(server.path), protocol=2) as raw_client:
            waiting = pool.submit(client.dequeue, "q", wait=20)
            waiters = queue_key("q", "1", "waiters")
            wait_until(lambda: raw_client.zcard(waiters) == 1, "the client to wait")
            server.advance(3600)
            assert [job.body for job in waiting.result(8)] == [b"later"], "not before its safety claim"
        with pytest.raises(InvalidArgument, match="advance: expected seconds, 0 or more, got -1"):
            server.advance(-1)
        server.clear()
        assert client.queue_names() == []


def test_a_memory_url_names_one_store_a_name() -> None:
    with Client("memory://one") as client, Client("memory://one") as same, Client("memory://two") as other:
        assert client.create_queue("q")
        assert (same.queue_names(), other.queue_names()) == (["q"], [])
    with pytest.raises(InvalidArgument, match=r"expected memory:// or memory://name, got 'memory://\*\*\*'"):
        Client("memory://a/b")


def test_without_lupa_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lupa", None)
    for use in (MemoryServer, lambda: Client("memory://"), lambda: Harness(app).__enter__()):
        with pytest.raises(InvalidArgument, match=r"expected the package lupa, .* pip install lupa"):
            use()
    assert pinlater.memory.lua  # it can be imported


def test_nothing_is_left_of_a_store() -> None:
    server = MemoryServer()
    folder = server.path.parent
    assert folder.is_dir()
    server.close()
    server.close()
    assert not folder.exists()
    code = (
        "import pinlater; c = pinlater.Client('memory://'); c.create_queue('q'); print(c.session.servers[0].resolve())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not Path(ran.stdout.strip().removeprefix("unix://")).parent.exists()


# the plugin

PAGE = page("testing")
OTHER = """
import pytest
from pinlater import Shared

@pytest.fixture
def pinlater_target():
    from pinlater import PinLater
    app = PinLater()
    @app.task(name="asks", result_ttl=60)
    def asks(*, text: str = Shared(str)) -> str:
        return text
    return app

@pytest.fixture
def pinlater_shared():
    return {str: "given"}

def test_another_app_and_its_store_is_empty(pinlater_app, pinlater_target):
    assert pinlater_app.app is pinlater_target
    assert pinlater_app.enqueued() == []
    handle = pinlater_app.app.send("asks")
    assert [ran.value for ran in pinlater_app.drain()] == ["given"]
    assert handle.result(timeout=0) == "given"
"""


def blocks() -> list[str]:
    """The Python of docs/testing.md."""
    return re.findall(r"```python\n(.*?)```", PAGE, re.S)


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "pinlater_pytest", "-W", "error", "-q", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_page_as_it_stands_and_another_app(tmp_path: Path) -> None:
    for block in blocks():
        if block.startswith("# "):
            (tmp_path / block.split()[1]).write_text(block)
    [option] = re.findall(r"pinlater_app = \"(.*)\"", PAGE)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npinlater_app = {option}\n")
    (tmp_path / "test_other.py").write_text(OTHER)
    ran = run_pytest(tmp_path)
    assert "6 passed" in ran.stdout, ran.stdout + ran.stderr
    scripts = [block for block in blocks() if not block.startswith("# ")]
    assert scripts
    for script in scripts:
        subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=tmp_path, check=True)


def test_the_plugin_says_what_it_needs_and_costs_nothing_unused(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_unused():\n    assert 'pinlater' not in sys.modules\ndef test_unset(pinlater_app): pass\n"
    )
    ran = run_pytest(tmp_path)
    assert "1 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "expected the option pinlater_app = module:app" in ran.stdout


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"pinlater": "pinlater_pytest"}


# limits


def values(harness: Harness) -> list[int]:
    return [ran.value for ran in harness.drain() if ran.outcome == "succeeded"]


def test_a_drain_runs_what_a_rate_allows_by_the_moved_clock(harness: Harness) -> None:
    limited.enqueue_many([(number,) for number in range(10)])
    assert values(harness) == []  # the queue is new: the rate has given nothing yet
    assert len(harness.enqueued()) == 10
    harness.clock.advance(12)
    assert values(harness) == [0]
    harness.clock.advance(3600)
    assert values(harness) == [1, 2, 3]  # a burst
    harness.clock.advance(24)
    assert values(harness) == [4, 5]
    assert len(harness.assert_enqueued(limited)) == 4


def test_a_drain_runs_all_jobs_of_a_queue_with_max_running(harness: Harness) -> None:
    one_at_a_time.enqueue_many([(number,) for number in range(5)])
    assert len(harness.drain(concurrency=5)) == 5


def test_a_rate_limited_job_holds_its_queue_until_the_clock_is_moved(harness: Harness) -> None:
    busy.enqueue_many([(number,) for number in range(4)])
    greet.enqueue("ada")
    ran = harness.drain()
    assert [(each.task, each.outcome) for each in ran if each.task == "busy"] == [
        ("busy", "succeeded"),
        ("busy", "postponed"),
    ]
    assert ("greet", "succeeded") in [(each.task, each.outcome) for each in ran]
    assert harness.drain() == []
    assert sorted(job.args for job in harness.enqueued()) == [(1,), (2,), (3,)]
    harness.clock.advance(59)
    assert harness.drain() == []
    harness.clock.advance(2)
    assert sorted(values(harness)) == [1, 2, 3]
