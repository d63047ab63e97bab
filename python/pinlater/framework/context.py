"""What a running task knows of its job: handed to a task whose first parameter is annotated Context or SyncContext.

Promises that a checkpoint that returned is what the next attempt starts from. Risks: a checkpoint is a call to Redis;
it raises what such a call raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, Final

from pinlater.jobs import Job

log: Final = logging.getLogger("pinlater.task")

#: The trace context of the task that runs: what it puts in line is told it too.
current_trace: Final[ContextVar[str | None]] = ContextVar("pinlater_trace", default=None)

#: Keeps a state in a job.
Keep = Callable[[Job, Any], Awaitable[None]]


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"job {(self.extra or {})['job']}: {msg}", kwargs


class BaseContext:
    """What both kinds have.

    job: the job; of an inline call one that is in no queue. task: the task's name. state: what the last checkpoint
    kept, None before the first. trace: the trace context it was enqueued with. deadline_s: when its timeout ends
    (time.monotonic), None without one.
    """

    __slots__ = ("_keep", "_loop", "deadline_s", "job", "state", "task", "trace")

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

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.job.attempt

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger pinlater.task, each line with the job's descriptor."""
        return _JobLogger(log, {"job": self.job.descriptor})


class Context(BaseContext):
    """The context of an async task."""

    async def checkpoint(self, state: Any) -> None:
        """Keeps a state that the codec can pack in the job: an attempt after this one finds it in `state`.

        Raises ClaimLost if the job is not this worker's any more, InvalidArgument for a state that can not be packed
        or is too large for the queue.
        """
        await self._keep(self.job, state)
        self.state = state


class SyncContext(BaseContext):
    """The context of a task that is a plain function."""

    def checkpoint(self, state: Any) -> None:
        """See Context.checkpoint."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_awaited(self._keep(self.job, state)), self._loop).result()
        self.state = state


async def _awaited(work: Awaitable[None]) -> None:
    await work
