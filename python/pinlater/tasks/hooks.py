"""The time that hooks may take: middleware around a call, and `on_failure`.

Promises that a hook on the loop that goes on past its limit keeps no job and no slot: it is cancelled, and its job ends
without it. Risks: one that does not end when it is cancelled goes on beside the job's next attempt, and so does a
thread; one that keeps the loop is not seen.
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

#: Or as long as the timeout of their task, if that is longer.
HOOKS_S: Final = 60.0
#: How often it is looked whose time is over: what is not looked at costs a job next to nothing.
LOOK_S: Final = 1.0

NEVER_S: Final = float("inf")

#: Says how a job ends that was given up.
Judge: TypeAlias = Callable[[], Coroutine[Any, Any, End]]


def limit_s(timeout_s: float | None) -> float:
    """How long the hooks of a task with this timeout may take, each time."""
    return max(HOOKS_S, timeout_s or 0.0)


class _Time:
    """Of the hooks of a job, since when they run (monotonic s; never: the call itself runs). running: what runs the
    job.
    """

    __slots__ = ("judge", "most_s", "running", "since_s")

    def __init__(self, most_s: float, judge: Judge) -> None:
        self.running, self.most_s, self.judge = asyncio.current_task(), most_s, judge
        self.since_s = time.monotonic()


class HookTimes:
    """Of the jobs of a worker. give_up: ends a job without what runs it."""

    def __init__(self, give_up: Callable[[asyncio.Task[Any], Judge], None]) -> None:
        self._give_up = give_up
        #: By the id() of the job, which its call keeps.
        self._times: dict[int, _Time] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: What is done when one is given up, jobs that begin in its place included, has nothing of its context.
        self._context = contextvars.Context()

    def close(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()

    def limited(
        self,
        call: Runner,
        wrap: Callable[[Runner], Runner],
        most_s: float,
        fail: Callable[[Job, list[Any], dict[str, Any], BaseException, float], Coroutine[Any, Any, End]],
    ) -> Runner:
        """The call with what `wrap` puts around it, which has so much time before the call, and again after it. Where
        that is nothing, the call. fail: judges a job (its arguments, the error, when it began).
        """

        async def inner(job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> Any:
            mine = self._times.get(id(job))
            if mine is None:  # it was given up, and cancelled in vain
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
        """Calls `on_failure`; what it raises is logged, and changes nothing. end: of its job, also without it."""

        async def without() -> End:
            log.error("job %s: on_failure of task %s took over %g s", failure.job.descriptor, failure.task, most_s)
            return end

        mine = _Time(most_s, without)
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
    """Whether the task that runs was cancelled from outside: at a stop, as its job was removed, or given up."""
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0
