"""Middleware: code around every call of an app's tasks.

Promises that the first middleware added is the outermost, and that an app without middleware pays nothing for it.
Risks: an error of a middleware counts as an error of the task.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import Job
from pinlater.worker.executor import is_async

#: Runs one call of a task: job, arguments, named arguments, headers. Raises what the task raises.
Runner: TypeAlias = Callable[[Job, list[Any], dict[str, Any], dict[str, Any]], Awaitable[Any]]
#: Called before a call is enqueued, with the task's name and the headers. It may add headers.
EnqueueHook: TypeAlias = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Execution:
    """One call of a task, for middleware to read.

    job: the job.
    task: the task's name.
    args, kwargs: the arguments of the call.
    headers: the headers of its envelope.
    """

    job: Job
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, Any]


class Middleware:
    """Base class of middleware. Override the methods you need. All but `on_enqueue` run on the worker's loop.

        class Timing(Middleware):
            async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
                start_s = time.monotonic()
                try:
                    return await run()
                finally:
                    print(execution.task, time.monotonic() - start_s)

    A task's timeout does not include its middleware, which sees the TimedOut. Middleware itself may take as long as the
    task's timeout, but at least 60 s.
    """

    def on_enqueue(self, task: str, headers: dict[str, Any]) -> None:
        """Called before calls are packed, once for each enqueue of a producer, in its thread or on its loop.

        task: the task's name.
        headers: it may add headers, with text keys and values that the codec can pack.

        Not called for raw tasks: they have no headers.
        """

    async def before(self, execution: Execution) -> None:
        """Called before the task."""

    async def after(self, execution: Execution, error: BaseException | None) -> None:
        """Called after the task.

        error: what the task raised, Retry, Snooze and Cancel too; None if it returned. It is raised again afterwards.
        """

    async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
        """Called around the task. `await run()` returns what the task returns, or raises what it raises.

        Returns the value that counts as the task's. The base class calls `before` and `after` around `run`.
        """
        await self.before(execution)
        try:
            value = await run()
        except BaseException as error:
            await self.after(execution, error)
            raise
        await self.after(execution, None)
        return value

    def _overrides(self, *names: str) -> bool:
        return any(getattr(type(self), name) is not getattr(Middleware, name) for name in names)


def check_middleware(middleware: Any) -> Middleware:
    """Returns the middleware. Raises InvalidArgument if a method is async that must be plain, or the reverse."""
    if not isinstance(middleware, Middleware):
        raise InvalidArgument(f"middleware: expected a Middleware, got {middleware!r:.60}")
    for name in ("on_enqueue", "before", "after", "around"):
        hook, wanted = getattr(type(middleware), name), is_async(getattr(Middleware, name))
        if is_async(inspect.unwrap(hook)) is not wanted:
            kind = "async def" if wanted else "a plain function"
            raise InvalidArgument(
                f"middleware: expected {kind} as {type(middleware).__name__}.{name}, got {hook!r:.60}"
            )
    return middleware


def enqueue_hook(middleware: Middleware) -> EnqueueHook | None:
    """Its on_enqueue, if it overrides that."""
    return middleware.on_enqueue if middleware._overrides("on_enqueue") else None


def sees_values(all_middleware: Iterable[Middleware]) -> bool:
    """Whether any of them gets what tasks return."""
    return any(middleware._overrides("around") for middleware in all_middleware)


def wrapped(task: str, run: Runner, all_middleware: Iterable[Middleware]) -> Runner:
    """The runner with middleware around it; the runner itself if no middleware overrides anything around a call."""
    for middleware in reversed(list(all_middleware)):
        if middleware._overrides("around", "before", "after"):
            run = partial(_around, middleware, task, run)
    return run


async def _around(
    middleware: Middleware,
    task: str,
    run: Runner,
    job: Job,
    args: list[Any],
    kwargs: dict[str, Any],
    headers: dict[str, Any],
) -> Any:
    execution = Execution(job, task, args, kwargs, headers)
    return await middleware.around(execution, partial(run, job, args, kwargs, headers))
