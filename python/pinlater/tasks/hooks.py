"""Calls hooks: middleware around a task's function, and `on_failure`.

Promises that a hook on the loop that goes on past its limit is cancelled, and that its job ends and frees its slot
without it; see worker/time_limits.py.
Risk: a hook that ignores its cancellation goes on beside the job's next attempt, and so does one in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from pinlater.model.jobs import Job
from pinlater.model.tracebacks import exc_info_of
from pinlater.tasks.middleware import Runner
from pinlater.tasks.reports import Failure
from pinlater.worker.executor import End, ThreadPool, is_async
from pinlater.worker.time_limits import Limit, TimedOut
from pinlater.worker.worker_slots import Judge

log: Final = logging.getLogger("pinlater.worker")

#: Gets a job, how long its hooks may take (s), and how it ends if they take longer; see WorkerSlots.limit_hooks.
LimitHooks: TypeAlias = Callable[[Job, float, Judge], Limit]
#: Says how a job ends: gets it, its arguments, the error, and when it started (monotonic s).
Fail: TypeAlias = Callable[[Job, list[Any], dict[str, Any], BaseException, float], Coroutine[Any, Any, End]]


def limited(call: Runner, wrap: Callable[[Runner], Runner], most_s: float, fail: Fail, limit: LimitHooks) -> Runner:
    """The call inside of its middleware; without middleware, the call itself.

    wrap: puts the middleware around.
    most_s: the middleware's time before the call, and again after it.
    """
    # by the id() of the job, which its call keeps alive; calls: how many are under way, as middleware may make several
    limits: dict[int, Limit] = {}
    calls = Counter[int]()

    async def inner(job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> Any:
        mine = limits.get(id(job))
        if mine is None or mine.over:  # the job was given up, and its middleware ignored the cancellation
            raise asyncio.CancelledError
        mine.lift()
        calls[id(job)] += 1
        try:
            return await call(job, args, kwargs, headers)
        finally:
            calls[id(job)] -= 1
            if calls[id(job)] == 0:
                mine.begin()

    around = wrap(inner)
    if around is inner:
        return call

    async def run(job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> Any:
        start_s = time.monotonic()
        mine = limit(job, most_s, lambda: fail(job, args, kwargs, TimedOut("its middleware", most_s), start_s))
        limits[id(job)] = mine
        mine.begin()
        try:
            return await around(job, args, kwargs, headers)
        finally:
            mine.lift()
            del limits[id(job)]
            calls.pop(id(job), None)

    return run


async def call_on_failure(
    hook: Callable[[Failure], Any],
    most_s: float,
    failure: Failure,
    end: End,
    pool: ThreadPool,
    limit: LimitHooks,
) -> None:
    """Calls `on_failure`, and logs its errors. end: how the job ends in any case."""

    async def without_hook() -> End:
        log.error("job %s: on_failure of task %s took over %g s", failure.job.descriptor, failure.task, most_s)
        return end

    mine = limit(failure.job, most_s, without_hook)
    try:
        if is_async(hook):
            mine.begin()
            await hook(failure)
        else:
            await pool.run(lambda _: hook(failure), failure.job, most_s)
    except GeneratorExit:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        text = "job %s: on_failure of task %s failed"
        log.error(text, failure.job.descriptor, failure.task, exc_info=exc_info_of(error, hook))
    finally:
        mine.lift()


def is_cancelled() -> bool:
    """Whether the current asyncio task was cancelled: at a stop, or because its job was removed or given up."""
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0
