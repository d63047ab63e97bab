"""Handlers: the functions that do a job's work, on the event loop or in threads.

Promises that a plain function runs in a thread of its own pool, that such a thread never keeps a process from
ending, and that nothing a handler raises ends the worker. Risks what the handler does: a thread can not be
stopped from outside.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from pinlater.errors import InvalidArgument
from pinlater.jobs import Job

Handler: TypeAlias = Callable[[Job], Awaitable[Any]] | Callable[[Job], Any]


def load_handler(name: str) -> Handler:
    """The function that `module:function` names, the current directory on the path. Or InvalidArgument."""
    module_name, colon, attributes = name.partition(":")
    if not colon or not module_name or not attributes:
        raise InvalidArgument(f"handler: expected module:function, got {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise InvalidArgument(f"handler {name!r}: no module named {error.name!r}") from None
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise InvalidArgument(f"handler {name!r}: {module_name} has no {attributes!r}") from None
    return check_handler(found)


def check_handler(handler: Any) -> Handler:
    """The handler itself, if it can be called with one argument, the job. Raises InvalidArgument."""
    if not callable(handler):
        raise InvalidArgument(f"handler: expected a function of one argument (the job), got {handler!r}")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        raise InvalidArgument(f"handler: expected a function of one argument (the job), got {handler!r}") from None
    except ValueError:
        pass  # a built-in without a signature
    return handler  # type: ignore[no-any-return]


def is_async(handler: Handler) -> bool:
    """Whether calling the handler gives a coroutine (an object with an async __call__ included)."""
    call = getattr(handler, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


async def call_async(handler: Handler, job: Job) -> None:
    """Awaits an async handler. What would end the loop (SystemExit …) is an error of the job."""
    try:
        await handler(job)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the handler raised {error!r}") from error


def call_plain(handler: Handler, job: Job) -> Exception | None:
    """Calls a plain handler; returns what went wrong."""
    try:
        result = handler(job)
    except (StopIteration, StopAsyncIteration) as error:
        return RuntimeError(f"the handler raised {error!r}")  # a future can not carry these
    except Exception as error:
        return error
    except BaseException as error:
        return RuntimeError(f"the handler raised {error!r}")
    if inspect.iscoroutine(result):
        result.close()
        return TypeError(
            "the handler returned a coroutine that nobody awaits; expected a plain function or `async def`"
        )
    return None


class ThreadPool:
    """Daemon threads that run plain functions: concurrent.futures would wait for a hung one at exit."""

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._size = size
        self._loop = loop
        self._idle = 0
        self._threads = 0
        self._work: queue.SimpleQueue[tuple[Handler, Job, asyncio.Future[None]] | None] = queue.SimpleQueue()

    def run(self, handler: Handler, job: Job) -> asyncio.Future[None]:
        """Runs handler(job) in a thread; the future has its result. Called on the event loop."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._work.put((handler, job, future))
        if self._idle:
            self._idle -= 1
        elif self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"pinlater-handler-{self._threads}", daemon=True).start()
        return future

    def close(self) -> None:
        """Lets idle threads end; one that hangs stays behind as a daemon."""
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            handler, job, future = item
            error = call_plain(handler, job)
            try:
                self._loop.call_soon_threadsafe(self._finish, future, error)
            except RuntimeError:
                return  # the loop is closed: nobody is left to tell

    def _finish(self, future: asyncio.Future[None], error: Exception | None) -> None:
        self._idle += 1
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
