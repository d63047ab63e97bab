"""The types of `@app.task(…)` with options: what kind of task a decorated function becomes.

Promises that a type checker knows the parameters and the return value of a task, without its context.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from pinlater.tasks.batch_tasks import Item
from pinlater.tasks.context import Context, SyncContext
from pinlater.tasks.task import AsyncTask, PlainTask

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
#: What a call of an async function that returns R gives.
Async: TypeAlias = Coroutine[Any, Any, R]


class TaskDecorator(Protocol):
    """`@app.task(…)` with options."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Async[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> PlainTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Async[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class BatchDecorator(Protocol):
    """`@app.task(batch=…)`. A producer passes the value of one item, and the jobs have no results."""

    @overload
    def __call__(self, function: Callable[[list[Item[T]]], Async[None]], /) -> AsyncTask[[T], None]: ...
    @overload
    def __call__(self, function: Callable[[list[Item[T]]], None], /) -> PlainTask[[T], None]: ...
