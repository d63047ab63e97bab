"""The lifespan of an app: what a worker opens once, for all tasks of its process.

Promises that it yields every object that a task asks for by `Shared(type)`, or that the worker does not start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

from pinlater.model.errors import InvalidArgument
from pinlater.tasks.dependencies import Needs, Resolved, shared_by_type

#: An async generator function that yields once: the objects it shares, by their type; or None.
Lifespan: TypeAlias = Callable[[], AsyncIterator[Mapping[type, Any] | None]]


@asynccontextmanager
async def entered_lifespan(lifespan: Lifespan | None, needs: Mapping[str, Needs]) -> AsyncIterator[Resolved]:
    """Enters the lifespan for the block, and yields what it shares.

    needs: the dependencies of each task, by its name.

    Raises InvalidArgument if the lifespan does not yield what these tasks need.
    """
    async with AsyncExitStack() as stack:
        yielded: Any = None
        if lifespan is not None:
            yielded = await stack.enter_async_context(asynccontextmanager(lifespan)())
        shared = _checked_shared(yielded)
        for task, each in needs.items():
            _check_needs(task, each, None if lifespan is None else shared)
        yield shared_by_type(shared)


def _checked_shared(yielded: Any) -> Mapping[type, Any]:
    if yielded is None:
        return {}
    if not (isinstance(yielded, Mapping) and all(isinstance(kind, type) for kind in yielded)):
        raise InvalidArgument(f"lifespan: expected it to yield a dict of objects by their type, got {yielded!r:.60}")
    return yielded


def _check_needs(task: str, needs: Needs, shared: Mapping[type, Any] | None) -> None:
    """shared: None without a lifespan."""
    for kind in needs.shared:
        if kind not in (shared or {}):
            got = "no lifespan" if shared is None else repr([each.__qualname__ for each in shared])
            raise InvalidArgument(
                f"task {task!r}: expected the app's lifespan to yield a {kind.__qualname__}, got {got}"
            )
