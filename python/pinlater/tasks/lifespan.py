"""What lasts between the calls of a test's harness, or of immediate mode: a loop for sync calls, and on each loop what
the app's lifespan shares.

Promises that the lifespan is entered once a loop, by its first call, and left by the task that entered it. Risks: on a
loop that ends before it is closed the lifespan is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pinlater.tasks.dependencies import Resolved

if TYPE_CHECKING:
    from pinlater.tasks.app import PinLater

T = TypeVar("T")


class LifespanKeeper:
    """Of one app."""

    def __init__(self, app: PinLater) -> None:
        self._app = app
        self._runner: asyncio.Runner | None = None
        self._lives: dict[asyncio.AbstractEventLoop, _Entered] = {}

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the async work of a sync call, one at a time, and ends what it leaves running but the lifespan."""
        if self._runner is None:
            import uvloop  # producers have no use for it

            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return _run(self._runner, partial(self._by_itself, work))

    async def _by_itself(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self.made()
        before = asyncio.all_tasks()
        try:
            return await work()
        finally:
            left = asyncio.all_tasks() - before
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def made(self) -> Resolved:
        """What the lifespan shares on the running loop."""
        loop = asyncio.get_running_loop()
        epoch = self._lives.get(loop)
        if epoch is None or epoch.task.done():
            epoch = _Entered(self._app)
            self._lives = {each: kept for each, kept in self._lives.items() if not each.is_closed()} | {loop: epoch}
        return await epoch.made()

    def loops(self) -> Iterable[asyncio.AbstractEventLoop]:
        """Where the lifespan is."""
        return list(self._lives)

    async def aclose(self) -> None:
        """Leaves the lifespan of the running loop; raises what that raises."""
        epoch = self._lives.pop(asyncio.get_running_loop(), None)
        if epoch is not None and not epoch.task.done():
            await epoch.close()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ends the loop of sync calls. last: is run on it before."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                _run(runner, last)
            finally:
                runner.close()


class _Entered:
    """The lifespan on the running loop, in a task of its own."""

    def __init__(self, app: PinLater) -> None:
        self._made: asyncio.Future[Resolved] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self.task = asyncio.create_task(self._hold(app), name="pinlater-lifespan")

    async def _hold(self, app: PinLater) -> None:
        async with app.entered_lifespan() as made:
            self._made.set_result(made)
            await self._over.wait()

    async def made(self) -> Resolved:
        either: list[asyncio.Future[Any]] = [self._made, self.task]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._made.done():
            self.task.result()  # what entering it raised
        return self._made.result()

    async def close(self) -> None:
        self._over.set()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()


def _run(runner: asyncio.Runner, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs async work to its end: in this thread, or in another one where a loop runs in this one."""
    if asyncio._get_running_loop() is None:
        return runner.run(work(), context=copy_context())
    done: list[T] = []
    errors: list[BaseException] = []
    context = copy_context()

    def carry_out() -> None:
        try:
            done.append(runner.run(work(), context=context))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=carry_out, name="pinlater-immediate")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return done[0]
