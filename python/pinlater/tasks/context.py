"""What a running task knows of its job: handed to a task whose first parameter is annotated Context or SyncContext.

Promises that a checkpoint that returned is what the next attempt starts from. Risks: a checkpoint is a call to Redis;
it raises what such a call raises. Of progress that is told more than once a second, what no later call took along is
lost.
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

#: The trace context of the task that runs: what it puts in line is told it too.
current_trace: Final[ContextVar[str | None]] = ContextVar("pinlater_trace", default=None)

#: Keeps headers of the envelope in a job.
Keep = Callable[[Job, Mapping[str, Any]], Awaitable[None]]

#: Progress is written once in so long at most.
PROGRESS_S: Final = 1.0


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"job {(self.extra or {})['job']}: {msg}", kwargs


class BaseContext:
    """What both kinds have.

    job: the job; of an inline call one that is in no queue. task: the task's name. state: what the last checkpoint
    kept, None before the first. trace: the trace context it was enqueued with. deadline_s: when its timeout ends
    (time.monotonic), None without one.
    """

    __slots__ = ("__weakref__", "_keep", "_loop", "_progress", "_told_s", "deadline_s", "job", "state", "task", "trace")

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
        self._told_s = float("-inf")

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.job.attempt

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger pinlater.task, each line with the job's descriptor."""
        return _JobLogger(log, {"job": self.job.descriptor})

    def headers(self, state: Any) -> dict[str, Any]:
        """What a checkpoint with this state keeps: the progress told last is taken along."""
        self._told_s = time.monotonic()
        return {"state": state} if self._progress is None else {"state": state, "progress": self._progress}

    def _note(self, done: float, total: float | None, note: str) -> bool:
        """Remembers progress; whether it is time to write it."""
        for name, value in (("done", done), ("total", 0 if total is None else total)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidArgument(f"progress: {name}: expected a number, got {value!r:.60}")
        if not isinstance(note, str):
            raise InvalidArgument(f"progress: note: expected text, got {note!r:.60}")
        self._progress = [done, total, note]
        return time.monotonic() - self._told_s >= PROGRESS_S

    def _not_told(self, error: PinLaterError) -> None:
        """An outage is no reason to end a task that only says how far it is."""
        if isinstance(error, ClaimLost | InvalidArgument):
            raise error
        self.logger.warning("its progress was not written: %s", error)


class Context(BaseContext):
    """The context of an async task."""

    __slots__ = ()

    async def checkpoint(self, state: Any) -> None:
        """Keeps a state that the codec can pack in the job: an attempt after this one finds it in `state`.

        Raises ClaimLost if the job is not this worker's any more, InvalidArgument for a state that can not be packed
        or is too large for the queue.
        """
        await self._keep(self.job, self.headers(state))
        self.state = state

    async def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Says how far it is: seen in `handle.info()` and by `pinlater job lookup`, and by a later attempt's too.

        Written once a second at most; what was told meanwhile goes with the next checkpoint or progress, and so does
        what could not be written, which is logged. Raises ClaimLost and InvalidArgument as a checkpoint does.
        """
        if self._note(done, total, note):
            try:
                await self._keep(self.job, self.headers(self.state))
            except PinLaterError as error:
                self._not_told(error)


class SyncContext(BaseContext):
    """The context of a task that is a plain function.

    cancelled: whether nobody waits for its end any more: the job was removed while it runs, or it is past its timeout,
    or the worker gave it up at a stop. What the task does then is not kept: it may as well return.
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
        if self._note(done, total, note):
            try:
                self._keep_now(self.state)
            except PinLaterError as error:
                self._not_told(error)

    def _keep_now(self, state: Any) -> None:
        headers = self.headers(state)
        if self._loop is not None:
            wait_for(self._keep(self.job, headers), self._loop)


def wait_for(work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    """What it gives, in a thread that is not the loop's, which does it."""

    async def awaited() -> T:
        return await work

    return asyncio.run_coroutine_threadsafe(awaited(), loop).result()
