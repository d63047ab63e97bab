"""An event loop on a thread of its own beside gevent: greenlets hand coroutines over and wait for their results.

Promises that a waiting greenlet does not block the others, and that the thread uses real sockets. uvloop does its I/O
in C, which gevent cannot patch; what gevent patched in Python and the client uses is put right here.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import gevent
import uvloop
from gevent import monkey
from gevent.event import AsyncResult

from pinlater.store import async_connection

T = TypeVar("T")


class _AtOnce(ThreadPoolExecutor):
    """Runs a function in the thread that submits it.

    A patched executor would run it in a greenlet of the loop's thread, which never switches to one.
    """

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _unpatch_client() -> None:
    """The client polls a socket before it is used again; gevent's poll would run gevent's loop in this thread."""
    real = SimpleNamespace(poll=monkey.get_original("select", "poll"), POLLIN=select.POLLIN)
    vars(async_connection)["select"] = real


class LoopThread:
    """Runs from its creation until close(). Create it in the thread of the greenlets, behind the forks."""

    def __init__(self) -> None:
        _unpatch_client()
        self._loop = uvloop.new_event_loop()
        self._loop.set_default_executor(_AtOnce())
        self._tasks: set[Any] = set()
        self._results: deque[tuple[Any, Any, BaseException | None]] = deque()
        self._ended = AsyncResult()
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(self._deliver)
        monkey.get_original("_thread", "start_new_thread")(self._run, ())

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the coroutine that `make` returns. Only this greenlet waits."""
        result = AsyncResult()
        self._loop.call_soon_threadsafe(self._start, make, result)
        return result.get()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the thread. Calls must have ended."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._ended.get()
        self._wake.stop()
        self._wake.close()

    # in the thread of the loop

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
            self._hand_back(self._ended, None, None)

    def _start(self, make: Callable[[], Coroutine[Any, Any, Any]], result: Any) -> None:
        task = self._loop.create_task(make())
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, result))

    def _end(self, result: Any, task: Any) -> None:
        self._tasks.discard(task)
        error = task.exception()
        self._hand_back(result, None if error else task.result(), error)

    def _hand_back(self, result: Any, value: Any, error: BaseException | None) -> None:
        self._results.append((result, value, error))
        self._wake.send()

    # in the thread of the greenlets

    def _deliver(self) -> None:
        while self._results:
            result, value, error = self._results.popleft()
            if error is None:
                result.set(value)
            else:
                result.set_exception(error)
