"""Keeps an app's lifespan entered between the calls of a harness, or of immediate mode.

Promises that the lifespan is entered once an event loop, by its first call, and left by the asyncio task that entered
it; and that all sync calls share one loop. Risks: on a loop that ends before it is closed, the lifespan is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias, TypeVar

import uvloop

from pinlater.tasks.dependencies import Resolved

T = TypeVar("T")

#: PinLater.entered_lifespan.
_Enter: TypeAlias = Callable[[], AbstractAsyncContextManager[Resolved]]


class LifespanKeeper:
    """The entered lifespans of one app, one an event loop, and the loop of its sync calls.

    enter: enters the app's lifespan for a block.
    """

    def __init__(self, enter: _Enter) -> None:
        self._enter = enter
        self._runner: asyncio.Runner | None = None
        self._entered: dict[asyncio.AbstractEventLoop, _Entered] = {}

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the async work of a sync call, one at a time. Cancels the asyncio tasks that the work leaves behind."""
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return _run(self._runner, partial(self._alone, work))

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self.resolved()  # the task of the lifespan is not one that the work leaves behind
        before = asyncio.all_tasks()
        try:
            return await work()
        finally:
            left = asyncio.all_tasks() - before
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def resolved(self) -> Resolved:
        """What the lifespan shares on the running loop. The first call enters it."""
        loop = asyncio.get_running_loop()
        entered = self._entered.get(loop)
        if entered is None or entered.task.done():
            entered = _Entered(self._enter)
            self._entered = {each: kept for each, kept in self._entered.items() if not each.is_closed()}
            self._entered[loop] = entered
        return await entered.resolved()

    def loops(self) -> Iterable[asyncio.AbstractEventLoop]:
        """The loops on which the lifespan is entered."""
        return list(self._entered)

    async def aclose(self) -> None:
        """Leaves the lifespan of the running loop. Raises what the lifespan raises."""
        entered = self._entered.pop(asyncio.get_running_loop(), None)
        if entered is not None and not entered.task.done():
            await entered.close()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ends the loop of sync calls. last: runs on it before."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                _run(runner, last)
            finally:
                runner.close()


class _Entered:
    """The lifespan on the running loop. One asyncio task of its own enters and leaves it."""

    def __init__(self, enter: _Enter) -> None:
        self._resolved: asyncio.Future[Resolved] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self.task = asyncio.create_task(self._hold(enter), name="pinlater-lifespan")

    async def _hold(self, enter: _Enter) -> None:
        async with enter() as resolved:
            self._resolved.set_result(resolved)
            await self._closing.wait()

    async def resolved(self) -> Resolved:
        either: list[asyncio.Future[Any]] = [self._resolved, self.task]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._resolved.done():
            self.task.result()  # raises what entering the lifespan raised
        return self._resolved.result()

    async def close(self) -> None:
        self._closing.set()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()


def _run(runner: asyncio.Runner, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs async work to its end: in this thread, or in another one if a loop runs in this one."""
    if asyncio._get_running_loop() is None:
        return runner.run(work(), context=copy_context())
    values: list[T] = []
    errors: list[BaseException] = []
    context = copy_context()

    def run() -> None:
        try:
            values.append(runner.run(work(), context=context))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="pinlater-immediate")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return values[0]
