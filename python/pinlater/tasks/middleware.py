"""Middleware: code around every call of an app's tasks.

Promises that the first one added is the outermost, and that an app without any pays nothing for it. Risks: what a
middleware raises counts as raised by the task.
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

#: Runs a call of a task: job, arguments, named arguments, headers. Raises what the task raised.
Runner: TypeAlias = Callable[[Job, list[Any], dict[str, Any], dict[str, Any]], Awaitable[Any]]
#: Called with a task's name and the headers of what is put in line, which it may add to.
EnqueueHook: TypeAlias = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Execution:
    """One call of a task, for middleware to read. headers: of its envelope."""

    job: Job
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, Any]


class Middleware:
    """Base of middleware: override what is wanted. All but `on_enqueue` run on the worker's loop.

    A task's timeout does not count what they do; they see its error. They may take as long as it, at least 60 s.
    """

    def on_enqueue(self, task: str, headers: dict[str, Any]) -> None:
        """Before calls are packed, once for each call of a producer: may add headers, which the codec must have words
        for. In the producer's thread or on its loop. Not for raw tasks, which have no headers.
        """

    async def before(self, execution: Execution) -> None:
        """Before the call."""

    async def after(self, execution: Execution, error: BaseException | None) -> None:
        """After the call. error: what it raised (Retry, Snooze and Cancel too), which goes on behind this."""

    async def around(self, execution: Execution, run: Callable[[], Awaitable[Any]]) -> Any:
        """The call itself: `await run()` gives what the task returned, or raises what it raised.

        Returns what counts as the task's. This one calls `before` and `after`; one of your own calls what it wants.
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
    """Itself, if its hooks are of the kind they are called as. Raises InvalidArgument."""
    if not isinstance(middleware, Middleware):
        raise InvalidArgument(f"middleware: expected a Middleware, got {middleware!r:.60}")
    for name in ("on_enqueue", "before", "after", "around"):
        hook, wanted = getattr(type(middleware), name), is_async(getattr(Middleware, name))
        if is_async(inspect.unwrap(hook)) is not wanted:
            told = f"{'async def' if wanted else 'a plain function'} as {type(middleware).__name__}.{name}"
            raise InvalidArgument(f"middleware: expected {told}, got {hook!r:.60}")
    return middleware


def enqueue_hook(middleware: Middleware) -> EnqueueHook | None:
    """What it does for producers, if anything."""
    return middleware.on_enqueue if middleware._overrides("on_enqueue") else None


def sees_values(all_middleware: Iterable[Middleware]) -> bool:
    """Whether any of them is handed what tasks return."""
    return any(middleware._overrides("around") for middleware in all_middleware)


def wrapped(task: str, run: Runner, all_middleware: Iterable[Middleware]) -> Runner:
    """The runner with middleware around it; itself, where none does anything."""
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
