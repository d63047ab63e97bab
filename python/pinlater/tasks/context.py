"""The context of a running task. A task gets it if its first parameter is annotated Context or SyncContext.

Promises that the next attempt starts from the last checkpoint that returned. Risks: a checkpoint is a call to the
server, and raises what such a call raises. Progress reported within a second of the last write is kept only if a later
checkpoint, progress or snooze writes it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from pinlater.model.errors import ClaimLost, InvalidArgument, PinLaterError
from pinlater.model.jobs import Job

log: Final = logging.getLogger("pinlater.task")

T = TypeVar("T")

#: The trace context of the task that runs. Jobs that the task enqueues get it too.
current_trace: Final[ContextVar[str | None]] = ContextVar("pinlater_trace", default=None)

#: Stores headers in the envelope of a job.
Keep = Callable[[Job, Mapping[str, Any]], Awaitable[None]]

#: The shortest time between two writes of progress.
PROGRESS_S: Final = 1.0


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"job {(self.extra or {})['job']}: {msg}", kwargs


class BaseContext:
    """What Context and SyncContext have in common.

    job: the job; in a direct call of the task, a job that is in no queue.
    task: the task's name.
    state: what the last checkpoint stored; None before the first.
    trace: the trace context that the job was enqueued with, or None.
    deadline_s: when the task's timeout ends, by time.monotonic(); None without a timeout.
    """

    __slots__ = (
        "__weakref__",
        "_keep",
        "_loop",
        "_progress",
        "_written_s",
        "deadline_s",
        "job",
        "state",
        "task",
        "trace",
    )

    def __init__(
        self,
        job: Job,
        task: str,
        keep: Keep,
        *,
        state: Any = None,
        trace: str | None = None,
        deadline_s: float | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.job = job
        self.task = task
        self.state = state
        self.trace = trace
        self.deadline_s = deadline_s
        self._keep = keep
        self._loop = loop
        self._progress: list[Any] | None = None
        self._written_s = float("-inf")

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self.job.attempt

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger `pinlater.task`; each line begins with the job's descriptor."""
        return _JobLogger(log, {"job": self.job.descriptor})

    def headers(self, state: Any) -> dict[str, Any]:
        """The headers that a checkpoint with this state writes: the state and the last progress."""
        self._written_s = time.monotonic()
        return {"state": state} if self._progress is None else {"state": state, "progress": self._progress}

    def _set_progress(self, done: float, total: float | None, note: str) -> bool:
        """Remembers progress. Returns whether it is time to write it."""
        for name, value in (("done", done), ("total", 0 if total is None else total)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidArgument(f"progress: {name}: expected a finite int or float, got {value!r:.60}")
        if not isinstance(note, str):
            raise InvalidArgument(f"progress: note: expected text, got {note!r:.60}")
        self._progress = [done, total, note]
        return time.monotonic() - self._written_s >= PROGRESS_S

    def _log_unwritten(self, error: PinLaterError) -> None:
        """Logs that progress was not written: an outage must not end a task that only reports progress."""
        if isinstance(error, ClaimLost | InvalidArgument):
            raise error
        self.logger.warning("its progress was not written: %s", error)


class Context(BaseContext):
    """The context of an async task.

    @app.task
    async def load(context: Context, path: str) -> None:
        for row in range(context.state or 0, rows_of(path)):
            ...
            await context.checkpoint(row + 1)
    """

    __slots__ = ()

    async def checkpoint(self, state: Any) -> None:
        """Stores a state in the job. The next attempt finds it in `context.state`.

        state: any value that the task's codec can pack.

        Raises ClaimLost if the job is no longer this worker's, and InvalidArgument for a state that can not be packed
        or is larger than the queue's body limit.
        """
        await self._keep(self.job, self.headers(state))
        self.state = state

    async def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Reports how far the task is. `handle.info()` and `pinlater job lookup` show it.

        done, total: numbers in any unit; total may be None.
        note: any text.

        Progress is written once a second at most. The next checkpoint, progress or snooze writes what was reported in
        between. A write that fails is logged, and does not end the task. Raises ClaimLost and InvalidArgument as
        checkpoint() does.
        """
        if self._set_progress(done, total, note):
            try:
                await self._keep(self.job, self.headers(self.state))
            except PinLaterError as error:
                self._log_unwritten(error)


class SyncContext(BaseContext):
    """The context of a task that is a plain function. Its methods do what those of Context do, without `await`.

    cancelled: True once the end of this attempt no longer counts: the job was removed, the task is past its timeout, or
        the worker gave it up at a stop. A task that runs long should look at it and return.
    """

    __slots__ = ("cancelled",)

    def __init__(self, job: Job, task: str, keep: Keep, **options: Any) -> None:
        super().__init__(job, task, keep, **options)
        self.cancelled = False

    def checkpoint(self, state: Any) -> None:
        """See Context.checkpoint."""
        self._keep_now(state)
        self.state = state

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """See Context.progress."""
        if self._set_progress(done, total, note):
            try:
                self._keep_now(self.state)
            except PinLaterError as error:
                self._log_unwritten(error)

    def _keep_now(self, state: Any) -> None:
        headers = self.headers(state)
        if self._loop is not None:
            wait_for(self._keep(self.job, headers), self._loop)


def wait_for(work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """Has the loop await the work, and returns its value. For a thread that is not the loop's."""

    async def awaited() -> T:
        return await work

    return asyncio.run_coroutine_threadsafe(awaited(), loop).result()
