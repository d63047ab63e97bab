"""A client that is closed, or a call that is cancelled, at any point of a wait.

Promises: on an event loop the tests try each turn of the loop, in a thread each line of the code that waits.
They do not try lines of other libraries.
"""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from types import FrameType
from typing import Any

import pytest

from pinlater import AsyncClient, Client, PinLater
from pinlater.model.errors import ClientClosed
from pinlater.operations import dequeue as dequeuing
from pinlater.operations import results
from pinlater.tasks.app import parts_of
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server, wait_until

DEADLINE_S = 30.0
WAIT_S = 600.0
#: The files in which the blocking client waits, and the lines that block.
FILES = ("sync_subscriber.py",)
BLOCKING = ("poll.poll(max", "can_read(timeout=seconds)")
#: Time for the close: it may need a lock that the traced thread holds.
CLOSE_S = 0.02
TURNS = 40


@pytest.fixture(autouse=True)
def _no_safety_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait ends by itself."""
    monkeypatch.setattr(dequeuing, "SAFETY_S", (WAIT_S, WAIT_S))
    monkeypatch.setattr(results, "SAFETY_S", WAIT_S)


class Tracer:
    """Closes a client from another thread, when the traced thread reaches the n-th line of the code that waits."""

    def __init__(self, close: Callable[[], object], line: int) -> None:
        self._close, self._left = close, line
        self.closing: threading.Thread | None = None
        self.there = threading.Event()

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not (code.co_filename.endswith(FILES) or code.co_name == "_perform"):
            return None
        if event == "line" and not self.there.is_set():
            self._left -= 1
            text = linecache.getline(code.co_filename, frame.f_lineno)
            if self._left == 0:
                self.close()
                assert self.closing is not None
                self.closing.join(CLOSE_S)
            if self._left == 0 or any(blocking in text for blocking in BLOCKING):
                self.there.set()
        return self

    def close(self) -> None:
        self.closing = threading.Thread(target=self._close)
        self.closing.start()


def close_at_every_line(make: Callable[[], tuple[Callable[[], object], Callable[[], object]]]) -> int:
    """make: returns a call that waits, and a function that closes its client. Returns the number of lines tried."""
    for line in count(1):
        wait, close = make()
        tracer = Tracer(close, line)

        def traced(tracer: Tracer = tracer, wait: Callable[[], object] = wait) -> None:
            sys.settrace(tracer)
            try:
                wait()
            finally:
                sys.settrace(None)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(traced)
            assert tracer.there.wait(DEADLINE_S)
            last = tracer.closing is None
            if last:
                tracer.close()
            with pytest.raises(ClientClosed):
                waiting.result(DEADLINE_S)
        assert tracer.closing is not None
        tracer.closing.join()
        if last:
            return line
    raise AssertionError


def connections(server: Server) -> set[str]:
    with server.client() as client:
        return {entry["id"] for entry in client.client_list() if entry["name"] == "pinlater"}


def test_a_blocking_dequeue(server: Server) -> None:
    before = connections(server)

    def make() -> tuple[Callable[[], object], Callable[[], object]]:
        client = Client(server.url)
        client.create_queue("q")
        return lambda: client.dequeue("q", wait=WAIT_S), client.close

    assert close_at_every_line(make) > 20
    wait_until(lambda: connections(server) <= before, "no connection of ours")


def test_a_blocking_wait_for_a_result(server: Server) -> None:
    before = connections(server)

    def make() -> tuple[Callable[[], object], Callable[[], object]]:
        app = PinLater(server.url)
        return app.handle(descriptor).result, app.close

    with PinLater(server.url) as app:

        @app.task(result_ttl=60)
        async def task() -> None: ...

        descriptor = task.enqueue().descriptor
    assert close_at_every_line(make) > 10
    wait_until(lambda: connections(server) <= before, "no connection of ours")


# on an event loop


async def turns_of(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@on_loop
async def test_a_dequeue(server: Server) -> None:
    before = connections(server)
    for turns in range(1, TURNS):
        client = AsyncClient(server.url)
        await client.create_queue("q")
        waiting = asyncio.ensure_future(client.dequeue("q", wait=WAIT_S))
        await turns_of(turns)
        await client.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(waiting, DEADLINE_S)
    await until(lambda: connections(server) <= before, "no connection of ours")


@on_loop
async def test_a_dequeue_that_is_cancelled(server: Server) -> None:
    """Its connections are used again or closed, and no waiter of it is left."""
    async with AsyncClient(server.url) as client:
        await client.create_queue("q")
        for turns in range(1, TURNS):
            waiting = asyncio.ensure_future(client.dequeue("q", wait=WAIT_S))
            await turns_of(turns)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, DEADLINE_S)
            assert await client.peek("q") == {1: 0, 2: 0, 3: 0}
        assert client.driver.subscriber.waiters == set()


@on_loop
async def test_a_dequeue_that_is_cancelled_as_it_is_notified(server: Server) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as other:
        await client.create_queue("q")
        waiting = asyncio.ensure_future(client.dequeue("q", wait=WAIT_S))
        subscriber = client.driver.subscriber
        await until(lambda: subscriber.waiters, "its wait")

        def cancel(*_: bytes) -> None:
            waiting.cancel()

        subscriber.on_message = cancel
        await other.enqueue("q", b"x")
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, DEADLINE_S)
        assert (await other.peek("q"))[1] == 1


@on_loop
async def test_an_app_whose_other_loop_closes_its_client_as_this_one_makes_its_own(server: Server) -> None:
    app, closings = PinLater(server.url), list[Any]()

    class Between(asyncio.SelectorEventLoop):
        """is_closed() is called while the client of another loop is made."""

        def is_closed(self) -> bool:
            if not closings:
                closings.append(asyncio.run_coroutine_threadsafe(app.aclose(), self))
                wait([*closings], CLOSE_S)
            return super().is_closed()

    async def of_other() -> AsyncClient:
        return parts_of(app).clients.of_loop()

    other = Between()
    thread = threading.Thread(target=other.run_forever, daemon=True)
    thread.start()
    closed = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(of_other(), other))
    mine = parts_of(app).clients.of_loop()
    await asyncio.wrap_future(closings[0])
    assert await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(of_other(), other)) is not closed
    assert parts_of(app).clients.of_loop() is mine
    other.call_soon_threadsafe(other.stop)
    thread.join()
    other.close()
    await app.aclose()
