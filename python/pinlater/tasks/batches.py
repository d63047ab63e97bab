"""Batch tasks: jobs collected for one call of their function, each of which ends by itself.

Promises that a batch goes when it is full, or has waited long enough, and that jobs which were only collected are
handed back at a stop. Risks: a job that waits in a batch holds one of the worker's slots.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import Job
from pinlater.tasks.context import current_trace
from pinlater.tasks.outcomes import Retry

T = TypeVar("T")


class Item(Generic[T]):
    """One job of a batch. value: its argument. trace: the trace context it was enqueued with. error: how the handler
    said that it failed; None: it succeeds.
    """

    __slots__ = ("error", "job", "trace", "value")

    def __init__(self, job: Job, value: T, trace: str | None = None) -> None:
        self.job = job
        self.value = value
        self.trace = trace
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"Item({self.job.descriptor}, {self.value!r:.60})"

    def fail(self, error: BaseException | type[BaseException]) -> None:
        """This job ends as if it had raised the error: Retry, Snooze and Cancel too. The others go on.

        Raises InvalidArgument for what can not be raised.
        """
        if isinstance(error, type) and issubclass(error, BaseException):
            error = error()
        if not isinstance(error, BaseException):
            raise InvalidArgument(f"Item.fail: expected an exception, got {error!r:.60}")
        self.error = error

    def retry(self, reason: str = "", *, delay: float | None = None) -> None:
        """As `fail(Retry(reason, delay=delay))`."""
        self.fail(Retry(reason, delay=delay))


def single(args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The one argument of a job in a batch."""
    if len(args) != 1 or kwargs:
        raise TypeError(f"a batch task takes one argument by position, got {len(args)} and {sorted(kwargs)!r:.60}")
    return args[0]


class _Waiting:
    """A job until its batch has ended. ended: with its error, and the traceback of that. batch, call: once it began."""

    __slots__ = ("batch", "call", "ended", "item")

    def __init__(self, item: Item[Any], ended: asyncio.Future[_Ended]) -> None:
        self.item, self.ended = item, ended
        self.batch: list[_Waiting] = []
        self.call: asyncio.Task[None] | None = None


_Ended: TypeAlias = tuple[BaseException, TracebackType | None] | None


class Batcher:
    """The batches of one task. call: runs its function. size: the most items in one. wait_s: the longest that the first
    one waits. stopping: whether the worker stops, so that nothing is collected any more. Made on the worker's loop.
    """

    def __init__(
        self,
        call: Callable[[list[Item[Any]]], Awaitable[Any]],
        size: int,
        wait_s: float,
        stopping: Callable[[], bool],
    ) -> None:
        self._call, self._size, self._wait_s, self._stopping = call, size, wait_s, stopping
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._collected: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self, job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> None:
        """One job, until its batch has ended; raises what became of it."""
        if self._stopping():  # it was started before, and its first step, or middleware, came this far just now
            raise asyncio.CancelledError
        waiting = _Waiting(Item(job, single(args, kwargs), headers.get("trace")), self._loop.create_future())
        self._collected.append(waiting)
        if len(self._collected) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._start)
        try:
            failed = await waiting.ended
        except asyncio.CancelledError:
            if waiting in self._collected:  # it must not count for the size of what it is not in
                self._collected.remove(waiting)
                if not self._collected:
                    self._take()
            if waiting.call is not None and _all_ended(waiting.batch):  # so is the call, which ends first
                await asyncio.wait([waiting.call])
            raise
        if failed is not None:
            error, traceback = failed
            raise error.with_traceback(traceback)  # it may be raised for other jobs too

    def collects(self, job: Job) -> bool:
        """Whether the job's batch has not begun."""
        return any(waiting.item.job is job for waiting in self._collected)

    def cancel_collected(self) -> None:
        """The worker stops: what was only collected is cancelled."""
        for waiting in self._take():
            waiting.ended.cancel()

    def _take(self) -> list[_Waiting]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken, self._collected = self._collected, []
        return taken

    def _start(self) -> None:
        batch = [waiting for waiting in self._take() if not waiting.ended.done()]  # else it was cancelled
        if not batch:
            return
        call = self._loop.create_task(self._run(batch), context=self._context.copy())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        for waiting in batch:
            waiting.batch, waiting.call = batch, call
            waiting.ended.add_done_callback(lambda _: _all_ended(batch) and call.cancel())

    async def _run(self, batch: list[_Waiting]) -> None:
        """When all its jobs were cancelled, so is this."""
        failed: BaseException | None = None
        items = [waiting.item for waiting in batch]
        current_trace.set(_shared_trace(items))  # in this task's own context
        try:
            await self._call(items)
        except asyncio.CancelledError as error:
            if _all_ended(batch):
                raise
            failed = error
        except BaseException as error:
            failed = error
        for waiting in batch:  # nothing here may raise: who waits would wait for ever
            why = failed if waiting.item.error is None else waiting.item.error
            if not waiting.ended.done():
                waiting.ended.set_result(None if why is None else (why, getattr(why, "__traceback__", None)))


def _shared_trace(items: list[Item[Any]]) -> str | None:
    """What they all have; a batch of several traces is part of none."""
    first = items[0].trace
    return first if type(first) is str and all(item.trace == first for item in items) else None


def _all_ended(batch: list[_Waiting]) -> bool:
    return all(waiting.ended.done() for waiting in batch)
