"""Both clients behind one way of calling, so that each test is written once and run for either.

Promises: a method returns what the client's method returns, or raises what it raises; the event loop of the
asyncio client runs all the time in a thread of its own, so that calls can be made from several threads at once.
Risks: `client` is the real client. A test that uses it outside the loop must know that this is safe.
Import the fixtures `kind` and `make` by name, so that pytest finds them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

import pytest

from pinlater import AsyncClient, Client
from pinlater.model.errors import OutcomeUnknown
from pinlater.store.effects import Flow

CallsKind = Literal["sync", "async"]
CALLS_KINDS: tuple[CallsKind, ...] = ("sync", "async")
CALL_DEADLINE_S = 60.0  # a call of the asyncio client that takes longer hangs


class Calls:
    """The blocking client."""

    kind: CallsKind = "sync"

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.client: Any = Client(*arguments, **settings)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.client, name)
        return method

    def scan(self, *arguments: Any, **options: Any) -> list[Any]:
        return list(self.client.scan(*arguments, **options))

    def resolve(self, error: OutcomeUnknown) -> Any:
        return error.resolve()

    def run(self, make: Callable[[float], Flow[Any]]) -> Any:
        """Drives a flow that has no method of its own."""
        return self.client.run(make)

    def close(self) -> None:
        self.client.close()


class AsyncCalls(Calls):
    """The asyncio client."""

    kind: CallsKind = "async"

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.client = AsyncClient(*arguments, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="async-calls")
        self._thread.start()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)
        return lambda *arguments, **options: self.wait(lambda: method(*arguments, **options))

    def scan(self, *arguments: Any, **options: Any) -> list[Any]:
        async def gather(pages: AsyncIterator[Any]) -> list[Any]:
            return [info async for info in pages]

        return list(self.wait(lambda: gather(self.client.scan(*arguments, **options))))

    def resolve(self, error: OutcomeUnknown) -> Any:
        return self.wait(error.resolve)

    def run(self, make: Callable[[float], Flow[Any]]) -> Any:
        return self.wait(lambda: self.client.run(make))

    def wait(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Makes the call on the loop and waits for it."""

        async def carry_out() -> Any:
            return await call()

        return asyncio.run_coroutine_threadsafe(carry_out(), self._loop).result(CALL_DEADLINE_S)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.wait(self.client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def make_calls(kind: CallsKind, *arguments: Any, **settings: Any) -> Calls:
    """A client of that kind; the caller closes it."""
    return (Calls if kind == "sync" else AsyncCalls)(*arguments, **settings)


@pytest.fixture(params=CALLS_KINDS)
def kind(request: pytest.FixtureRequest) -> CallsKind:
    """Each kind of client in turn."""
    found: CallsKind = request.param
    return found


@pytest.fixture
def make(kind: CallsKind) -> Iterator[Callable[..., Calls]]:
    """`make(*arguments, **settings)` of a client; closed when the test ends."""
    made: list[Calls] = []

    def new(*arguments: Any, **settings: Any) -> Calls:
        made.append(make_calls(kind, *arguments, **settings))
        return made[-1]

    yield new
    for calls in made:
        calls.close()
