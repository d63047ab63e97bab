"""The effect Transaction: what flows, drivers and the callers of both see of it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from pinlater.model.errors import ArchiveDuplicate, ArchiveError, ClientClosed, PinLaterError
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.archive_threads import MAX_THREADS
from pinlater.store.async_driver import AsyncDriver
from pinlater.store.effects import Coalesce, Flow, Sleep, Transaction, together
from pinlater.store.sync_driver import SyncDriver
from tests.support.archive import migrated

DEADLINE_S = 30.0
NAME = b"n" * 16


class Drive(Protocol):
    """Runs the flow that `make` returns to its end, in a driver of its own."""

    def __call__(self, make: Callable[[], Flow[Any]]) -> Any: ...


def in_sync(make: Callable[[], Flow[Any]]) -> Any:
    driver = SyncDriver(5, 5)
    try:
        return driver.drive(make())
    finally:
        driver.close()


def in_async(make: Callable[[], Flow[Any]]) -> Any:
    async def run() -> Any:
        driver = AsyncDriver(5, 5)
        try:
            return await driver.drive(make())
        finally:
            await driver.close()

    return asyncio.run(run())


EACH_DRIVER = pytest.mark.parametrize("drive", [in_sync, in_async])


class Fake:
    """A database that runs `work` as it is. running: how many do now; most: how many did at once."""

    def __init__(self) -> None:
        self.running = self.most = self.ended = 0
        self._changed = threading.Condition()

    def transaction(self, work: Callable[[Any], Any]) -> Any:
        with self._changed:
            self.running += 1
            self.most = max(self.most, self.running)
            self._changed.notify_all()
        try:
            return work(None)
        finally:
            with self._changed:
                self.running -= 1
                self.ended += 1
                self._changed.notify_all()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, DEADLINE_S)


@pytest.fixture
def database(mysql_url: str) -> Iterator[ArchiveDatabase]:
    made = migrated(mysql_url)
    yield made
    made.close()


def insert(sql: Statements) -> int:
    return sql.insert("insert_batch", (NAME, 1, 1, 1, b""))


def state(sql: Statements) -> Any:
    return sql.run("select_batch", (NAME,))


@EACH_DRIVER
def test_a_flow_gets_the_value_and_catches_the_error(drive: Drive, database: ArchiveDatabase) -> None:
    def flow() -> Flow[list[Any]]:
        found = [(yield Transaction(database, insert))]
        try:
            yield Transaction(database, insert)
        except ArchiveDuplicate:
            found.append("caught")
        yield Sleep(0)
        found.append((yield Transaction(database, state)))
        return found

    assert drive(flow) == [1, "caught", [(1,)]]


@EACH_DRIVER
def test_an_error_that_the_flow_does_not_catch_is_the_callers(drive: Drive) -> None:
    cleaned = []

    def refuse(_: Any) -> None:
        raise ArchiveError("of the test")

    def flow() -> Flow[None]:
        try:
            yield Transaction(Fake(), refuse)
        finally:
            cleaned.append(True)

    with pytest.raises(ArchiveError, match="of the test"):
        drive(flow)
    assert cleaned == [True]


@EACH_DRIVER
def test_an_error_of_the_program_is_the_callers(drive: Drive) -> None:
    def flow() -> Flow[None]:
        yield Transaction(Fake(), lambda _: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        drive(flow)


@EACH_DRIVER
def test_an_error_may_end_the_flow_with_a_value(drive: Drive) -> None:
    def refuse(_: Any) -> None:
        raise ArchiveError("of the test")

    def flow() -> Flow[str]:
        try:
            yield Transaction(Fake(), refuse)
        except ArchiveError:
            return "ended"
        raise AssertionError

    assert drive(flow) == "ended"


@EACH_DRIVER
def test_flows_together_each_get_their_own(drive: Drive, database: ArchiveDatabase) -> None:
    def store(number: int) -> Flow[Any]:
        yield Sleep(0)
        name = bytes([number % 3]) * 16  # each name three times
        try:
            return (yield Transaction(database, lambda sql: sql.insert("insert_batch", (name, 1, number, 1, b""))))
        except ArchiveDuplicate:
            if number == 8:
                raise
            found = yield Transaction(database, lambda sql: sql.run("select_batch", (name,)))
            return found[0][0]

    results = drive(lambda: together([store(number) for number in range(9)]))
    assert isinstance(results[8], PinLaterError)
    with_rows = [result for result in results[:8] if isinstance(result, int)]
    assert len(with_rows) == 8
    assert len(database.transaction(lambda sql: sql.run("select_committed", (1,)))) <= 1


@EACH_DRIVER
def test_a_coalesced_flow_may_have_a_transaction(drive: Drive) -> None:
    def make(items: list[Any]) -> Flow[list[Any]]:
        found = yield Transaction(Fake(), lambda _: [item * 2 for item in items])
        return found  # type: ignore[no-any-return]

    def flow() -> Flow[Any]:
        return (yield Coalesce("key", 21, make))

    assert drive(flow) == 42


def test_on_a_loop_they_run_side_by_side_in_a_few_threads() -> None:
    fake = Fake()
    release = threading.Event()

    def flow(number: int) -> Flow[int]:
        return (yield Transaction(fake, lambda _: release.wait(DEADLINE_S) and number))  # type: ignore[no-any-return]

    async def run() -> Any:
        driver = AsyncDriver(5, 5)
        running = asyncio.ensure_future(driver.drive(together([flow(number) for number in range(3 * MAX_THREADS)])))
        await asyncio.to_thread(fake.wait_until, lambda: fake.running == MAX_THREADS)
        release.set()
        found = await running
        await driver.close()
        return found

    assert asyncio.run(run()) == list(range(3 * MAX_THREADS))
    assert fake.most == MAX_THREADS


def test_the_transaction_of_a_cancelled_call_goes_on_to_its_end(database: ArchiveDatabase) -> None:
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work(sql: Statements) -> int:
        started.set()
        assert release.wait(DEADLINE_S)
        return insert(sql)

    class Watched:
        def transaction(self, work: Callable[[Any], Any]) -> Any:
            try:
                return database.transaction(work)
            finally:
                ended.set()

    def flow() -> Flow[Any]:
        return (yield Transaction(Watched(), work))

    async def run() -> None:
        driver = AsyncDriver(5, 5)
        call = asyncio.ensure_future(driver.drive(flow()))
        assert await asyncio.to_thread(started.wait, DEADLINE_S)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        release.set()
        assert await asyncio.to_thread(ended.wait, DEADLINE_S)
        await driver.close()

    asyncio.run(run())
    assert database.transaction(state) == [(1,)]


def test_one_that_waits_for_a_thread_is_not_run_after_its_call_was_cancelled() -> None:
    fake, release = Fake(), threading.Event()

    def flow() -> Flow[Any]:
        return (yield Transaction(fake, lambda _: release.wait(DEADLINE_S)))

    async def run() -> None:
        driver = AsyncDriver(5, 5)
        calls = [asyncio.ensure_future(driver.drive(flow())) for _ in range(MAX_THREADS + 1)]
        await asyncio.to_thread(fake.wait_until, lambda: fake.running == MAX_THREADS)
        calls[-1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[-1]
        release.set()
        await asyncio.gather(*calls[:-1])
        await driver.drive(flow())
        await driver.close()

    asyncio.run(run())
    assert fake.ended == MAX_THREADS + 1


def test_a_closed_driver_ends_what_runs_and_begins_nothing() -> None:
    fake, started, release = Fake(), threading.Event(), threading.Event()
    found: list[Any] = []

    def first(_: Any) -> str:
        started.set()
        assert release.wait(DEADLINE_S)
        return "ended"

    def flow() -> Flow[None]:
        found.append((yield Transaction(fake, first)))
        yield Transaction(fake, lambda _: found.append("never"))

    async def run() -> None:
        driver = AsyncDriver(5, 5)
        call = asyncio.ensure_future(driver.drive(flow()))
        assert await asyncio.to_thread(started.wait, DEADLINE_S)
        await driver.close()
        release.set()
        with pytest.raises(ClientClosed):
            await call

    asyncio.run(run())
    assert found == ["ended"]


def test_threads_end_with_their_driver() -> None:
    def flow() -> Flow[Any]:
        return (yield Transaction(Fake(), lambda _: threading.current_thread()))

    thread: threading.Thread = in_async(flow)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_forked_child_has_threads_of_its_own(database: ArchiveDatabase) -> None:
    def flow() -> Flow[Any]:
        return (yield Transaction(database, state))

    async def run(driver: AsyncDriver) -> Any:
        return await driver.drive(flow())

    driver = AsyncDriver(5, 5)
    with asyncio.Runner() as runner:
        assert runner.run(run(driver)) == []
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                driver.after_fork()
                code = 0 if asyncio.new_event_loop().run_until_complete(run(driver)) == [] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert runner.run(run(driver)) == []
        runner.run(driver.close())
