"""Limits the time of hooks: middleware around a call, and `on_failure`. worker/time_limits.py lists the other limits.

Promises that a hook on the loop that goes on past its limit is cancelled, and that its job ends and frees its slot
without it.
Risks: a hook that ignores its cancellation goes on beside the job's next attempt, and so does a thread. A hook that
blocks the loop is not limited.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from pinlater.model.jobs import Job
from pinlater.tasks.middleware import Runner
from pinlater.tasks.reports import Failure
from pinlater.worker.executor import End, ThreadPool, TimedOut

log: Final = logging.getLogger("pinlater.worker")

#: Hooks may take so long, or as long as the timeout of their task if that is longer.
HOOKS_S: Final = 60.0
#: Hook deadlines are checked once in so long. One shared timer costs less than one a job.
LOOK_S: Final = 1.0

NEVER_S: Final = float("inf")

#: Says how a given-up job ends.
Judge: TypeAlias = Callable[[], Coroutine[Any, Any, End]]


def limit_s(timeout_s: float | None) -> float:
    """How long hooks of a task with this timeout may take, each time."""
    return max(HOOKS_S, timeout_s or 0.0)


class _Time:
    """The hooks of one job.

    since_s: they run since then (monotonic s); NEVER_S while the call itself runs.
    running: the asyncio task that runs the job.
    """

    __slots__ = ("judge", "most_s", "running", "since_s")

    def __init__(self, most_s: float, judge: Judge) -> None:
        self.running, self.most_s, self.judge = asyncio.current_task(), most_s, judge
        self.since_s = time.monotonic()


class HookTimes:
    """The hooks of a worker's jobs. give_up: ends a job without its asyncio task."""

    def __init__(self, give_up: Callable[[asyncio.Task[Any], Judge], None]) -> None:
        self._give_up = give_up
        #: By the id() of the job, which its call keeps alive.
        self._times: dict[int, _Time] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: A given-up job's context is not that of jobs that start in its slot.
        self._context = contextvars.Context()

    def close(self) -> None:
        """Limits nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def limited(
        self,
        call: Runner,
        wrap: Callable[[Runner], Runner],
        most_s: float,
        fail: Callable[[Job, list[Any], dict[str, Any], BaseException, float], Coroutine[Any, Any, End]],
    ) -> Runner:
        """The call inside of its middleware; without middleware, the call itself.

        wrap: puts the middleware around.
        most_s: the middleware's time before the call, and again after it.
        fail: says how a job ends: gets it, its arguments, the error, when it began (monotonic s).
        """

        async def inner(job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> Any:
            mine = self._times.get(id(job))
            if mine is None:  # it was given up, and ignored its cancellation
                raise asyncio.CancelledError
            mine.since_s = NEVER_S
            try:
                return await call(job, args, kwargs, headers)
            finally:
                mine.since_s = time.monotonic()

        around = wrap(inner)
        if around is inner:
            return call

        async def run(job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> Any:
            mine = _Time(most_s, lambda: fail(job, args, kwargs, TimedOut("its middleware", most_s), began_s))
            began_s = mine.since_s
            self._begin(job, mine)
            try:
                return await around(job, args, kwargs, headers)
            finally:
                self._end(job, mine)

        return run

    async def tell(
        self,
        hook: Callable[[Failure], Any],
        is_async: bool,
        most_s: float,
        failure: Failure,
        end: End,
        pool: ThreadPool,
    ) -> None:
        """Calls `on_failure`, and logs its errors. end: how the job ends in any case."""

        async def without_hook() -> End:
            log.error("job %s: on_failure of task %s took over %g s", failure.job.descriptor, failure.task, most_s)
            return end

        mine = _Time(most_s, without_hook)
        try:
            if is_async:
                self._begin(failure.job, mine)
                await hook(failure)
            else:
                await pool.run(lambda _: hook(failure), failure.job, most_s)
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and cut_off():
                raise
            log.exception("job %s: on_failure of task %s failed", failure.job.descriptor, failure.task)
        finally:
            self._end(failure.job, mine)

    def _begin(self, job: Job, mine: _Time) -> None:
        self._times[id(job)] = mine
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look, context=self._context)

    def _end(self, job: Job, mine: _Time) -> None:
        if self._times.get(id(job)) is mine:
            del self._times[id(job)]

    def _look(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        for key, mine in [each for each in self._times.items() if now_s - each[1].since_s >= each[1].most_s]:
            del self._times[key]
            if mine.running is not None:
                self._give_up(mine.running, mine.judge)
                mine.running.cancel()
        if self._times and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look, context=self._context)


def cut_off() -> bool:
    """Whether the current asyncio task was cancelled: at a stop, or because its job was removed or given up."""
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0
