"""How a task's function is called: on the loop, in a thread, in another process, or with a batch of jobs.

Promises that the worker finds out at its start what a task uses, so that a job pays for nothing else.
Risks: a thread can not be stopped from outside, and a process is killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import Job
from pinlater.tasks.batch_tasks import Batcher
from pinlater.tasks.context import BaseContext, Keep, SyncContext, wait_for
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.middleware import Runner
from pinlater.tasks.outcomes import Snooze
from pinlater.tasks.task import Task, task_parts
from pinlater.tasks.task_processes import ProcessPool
from pinlater.worker.executor import ThreadPool
from pinlater.worker.time_limits import TimedOut, in_time


@dataclass(slots=True)
class Invoker:
    """Makes the functions that run jobs.

    keep: stores checkpoints.
    resolved: what the lifespan shares.
    concurrency: of the worker.
    stopping: whether the worker stops.
    batchers: those made so far, by the task's name.
    in_threads: the id() of each job whose function runs in a thread.
    contexts: of those, by the id() of the job. A job can run twice here, once its claim went stale.
    """

    loop: asyncio.AbstractEventLoop
    threads: ThreadPool
    processes: ProcessPool
    keep: Keep
    resolved: Resolved
    concurrency: int
    stopping: Callable[[], bool]
    batchers: dict[str, Batcher] = field(default_factory=dict)
    in_threads: set[int] = field(default_factory=set)
    contexts: WeakValueDictionary[int, SyncContext] = field(default_factory=WeakValueDictionary)

    def runner(self, task: Task[..., Any]) -> Runner:
        """What runs one job of the task."""
        if task.kind == "process":
            return partial(self.processes.run, task)
        run: Runner = self._in_thread(task) if task.kind == "thread" else self._on_loop(task)
        if task.options.batch is None:
            return run

        async def call(items: list[Any]) -> Any:
            return await run(items[0].job, [items], {}, {})

        size = min(task.options.batch, self.concurrency)  # no more can be collected at once
        batcher = Batcher(call, size, task.options.batch_wait_s, self.stopping)
        self.batchers[task.name] = batcher
        return batcher.run

    def _on_loop(self, task: Task[..., Any]) -> Runner:
        function, needs, timeout_s = task.function, task_parts(task).needs, task.options.timeout_s

        async def run(job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> Any:
            called = with_context(task, job, args, headers, self.keep, self.loop)
            try:
                if needs:
                    return await needs.call_async(function, called, kwargs, self.resolved)
                return await function(*called, **kwargs)
            except Snooze as snooze:
                raise with_progress(snooze, called)  # noqa: B904  (the same one)

        if timeout_s is None:
            return run

        async def limited(job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> Any:
            return await in_time("it", timeout_s, run(job, args, kwargs, headers))

        return limited

    def _in_thread(self, task: Task[..., Any]) -> Runner:
        timeout_s, takes_context = task.options.timeout_s, task_parts(task).context is not None

        async def run(job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]) -> Any:
            called = with_context(task, job, args, headers, self.keep, self.loop)
            if takes_context:
                self.contexts[id(job)] = called[0]  # it keeps the job: no other has this id meanwhile
            returned: list[Any] = []

            def call(_: Job) -> Any:
                returned.append(call_plain_task(task, called, kwargs, self.loop, self.resolved))
                return returned[0]

            context = copy_context()
            self.in_threads.add(id(job))
            try:
                await self.threads.run(lambda job: context.run(call, job), job, timeout_s)
            except (TimedOut, asyncio.CancelledError):  # its thread goes on
                if takes_context:
                    called[0].cancelled = True
                raise
            except Snooze as snooze:
                raise with_progress(snooze, called)  # noqa: B904  (the same one)
            finally:
                self.in_threads.discard(id(job))
            return returned[0]

        return run


def call_plain_task(
    task: Task[..., Any], called: list[Any], kwargs: dict[str, Any], loop: asyncio.AbstractEventLoop, resolved: Resolved
) -> Any:
    """Calls a plain function in this thread, which is not the loop's, with what it needs."""
    needs = task_parts(task).needs
    if not needs:
        return task.function(*called, **kwargs)
    return needs.call_plain(task.function, called, kwargs, resolved, partial(wait_for, loop=loop))


async def _keep_nowhere(job: Job, headers: Mapping[str, Any]) -> None:
    raise InvalidArgument("checkpoint: a raw body has no place for a state")


def with_progress(snooze: Snooze, called: list[Any]) -> Snooze:
    """The same, with the progress that the task's context was told last, if both are there."""
    if snooze.headers is not None and called and isinstance(called[0], BaseContext):
        snooze.headers = called[0].headers(snooze.state)
    return snooze


def with_context(
    task: Task[..., Any],
    job: Job,
    args: list[Any],
    headers: dict[str, Any],
    keep: Keep,
    loop: asyncio.AbstractEventLoop,
) -> list[Any]:
    """The arguments, behind the context if the task takes one."""
    make_context = task_parts(task).context
    if make_context is None:
        return args
    timeout_s = task.options.timeout_s
    context: BaseContext = make_context(
        job,
        task.name,
        _keep_nowhere if task.codec == "raw" else keep,
        state=headers.get("state"),
        trace=headers.get("trace"),
        deadline_s=None if timeout_s is None else time.monotonic() + timeout_s,
        loop=loop,
    )
    return [context, *args]
