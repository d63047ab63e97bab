"""Batch tasks: the worker collects several jobs, and calls the task's function once for all of them.

Promises:
    Each job succeeds or fails by itself.
    A batch starts when it is full, or when its first job has waited `batch_wait`.
    A worker that stops releases the jobs of batches that have not started.
Risks: a job that waits for its batch holds a worker slot.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from traceback import walk_tb
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import Job
from pinlater.model.times import Seconds
from pinlater.tasks.context import current_trace
from pinlater.tasks.outcomes import Retry

T = TypeVar("T")


class Item(Generic[T]):
    """One job of a batch. The function of a batch task gets a list of items.

        @app.task(batch=100)
        async def store(items: list[Item[Row]]) -> None:
            for item in items:
                if not valid(item.value):
                    item.fail(ValueError("not valid"))

    job: the job.
    value: its argument.
    trace: the trace context that the job was enqueued with, or None.
    error: the error that fail() or retry() set. None: the job succeeds or fails with the whole call.
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
        """Ends this job as if its function had raised the error. The other jobs are not affected.

        error: any exception; Retry, Snooze, RateLimited and Cancel have their usual meaning.
        Raises InvalidArgument if `error` is not an exception.
        """
        if isinstance(error, type) and issubclass(error, BaseException):
            error = error()
        if not isinstance(error, BaseException):
            raise InvalidArgument(f"Item.fail: expected an exception, got {error!r:.60}")
        self.error = error

    def retry(self, reason: str = "", *, delay: Seconds | None = None) -> None:
        """Does the same as `fail(Retry(reason, delay=delay))`. delay: see Retry."""
        self.fail(Retry(reason, delay=delay))


def single(args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The argument of a job in a batch. Raises TypeError unless the call has exactly one, by position."""
    if len(args) != 1 or kwargs:
        raise TypeError(f"a batch task takes one argument by position, got {len(args)} and {sorted(kwargs)!r:.60}")
    return args[0]


class _CollectedJob:
    """One job, from its collection to the end of its batch.

    result: is set when the batch ends: the job's error and its traceback, or None.
    batch, call: the jobs of the same batch, and the asyncio task that runs the batch. Empty until the batch starts.
    """

    __slots__ = ("batch", "call", "item", "result")

    def __init__(self, item: Item[Any], result: asyncio.Future[_Result]) -> None:
        self.item, self.result = item, result
        self.batch: list[_CollectedJob] = []
        self.call: asyncio.Task[None] | None = None


_Result: TypeAlias = tuple[BaseException, TracebackType | None] | None


class Batcher:
    """Collects the jobs of one task into batches. Create it on the worker's loop.

    call: runs the task's function.
    size: the highest number of items in a batch.
    wait_s: how long the first job of a batch waits for others, in seconds.
    stopping: returns whether the worker stops. Then the batcher collects no more jobs.
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
        self._collected: list[_CollectedJob] = []
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self, job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> None:
        """Returns when the batch of the job has ended. Raises the job's error."""
        if self._stopping():  # until now only the job's middleware ran
            raise asyncio.CancelledError
        collected = _CollectedJob(Item(job, single(args, kwargs), headers.get("trace")), self._loop.create_future())
        self._collected.append(collected)
        if len(self._collected) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._start)
        try:
            failed = await collected.result
        except asyncio.CancelledError:
            self._drop(collected)
            if collected.call is not None and _all_done(collected.batch):  # the call is cancelled too: wait for its end
                await asyncio.wait([collected.call])
            raise
        if failed is not None:
            error, traceback = failed
            raise error.with_traceback(traceback)  # other jobs may raise the same error, and add to its traceback

    def _drop(self, cancelled: _CollectedJob) -> None:
        """Removes a cancelled job, so that it does not count for the size of the next batch."""
        if cancelled in self._collected:
            self._collected.remove(cancelled)
            if not self._collected:
                self._take()

    def collects(self, job: Job) -> bool:
        """Whether the job still waits for its batch to start."""
        return any(collected.item.job is job for collected in self._collected)

    def cancel_collected(self) -> None:
        """Cancels the jobs whose batch has not started. The worker calls this at its stop."""
        for collected in self._take():
            collected.result.cancel()

    def _take(self) -> list[_CollectedJob]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken, self._collected = self._collected, []
        return taken

    def _start(self) -> None:
        batch = [collected for collected in self._take() if not collected.result.done()]  # done: cancelled
        if not batch:
            return
        call = self._loop.create_task(self._run(batch), context=self._context.copy())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        for collected in batch:
            collected.batch, collected.call = batch, call
            collected.result.add_done_callback(lambda _: _all_done(batch) and call.cancel())

    async def _run(self, batch: list[_CollectedJob]) -> None:
        """Runs one batch. If all jobs of the batch are cancelled, this task is cancelled too."""
        failed: BaseException | None = None
        items = [collected.item for collected in batch]
        current_trace.set(_shared_trace(items))  # in this task's own context
        try:
            await self._call(items)
        except asyncio.CancelledError as error:
            if _all_done(batch):
                raise
            failed = error
        except BaseException as error:
            failed = error
        for collected in batch:  # nothing here may raise, or the jobs would wait for ever
            why = failed if collected.item.error is None else collected.item.error
            if not collected.result.done():
                collected.result.set_result(None if why is None else (why, getattr(why, "__traceback__", None)))


def never_raised(error: BaseException) -> bool:
    """Whether a batch task gave this error to an item, and nothing raised it before."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code is Batcher.run.__code__


def _shared_trace(items: list[Item[Any]]) -> str | None:
    """The trace context, if it is the same for all items; else None."""
    first = items[0].trace
    return first if type(first) is str and all(item.trace == first for item in items) else None


def _all_done(batch: list[_CollectedJob]) -> bool:
    return all(collected.result.done() for collected in batch)
