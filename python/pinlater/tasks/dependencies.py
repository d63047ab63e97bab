"""Dependencies: what a task is given beside its arguments, by `Depends(provider)` and `Shared(type)` as defaults.

Promises that the order in which they are made is known when the task is, that each provider is called once a job, and
that what it left open is closed after the task, the last made first, whatever the task raised. Risks: a plain provider
of an async task is called on the loop, and must not block it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast, overload

from pinlater.model.errors import InvalidArgument
from pinlater.worker.executor import is_async

T = TypeVar("T")

#: What an app's lifespan is: an async generator function that yields once what it shares, by its type; or nothing.
Lifespan: TypeAlias = Callable[[], AsyncIterator[Mapping[type, Any] | None]]
#: Waits in a thread for what the loop does.
Wait: TypeAlias = Callable[[Awaitable[Any]], Any]


@dataclass(frozen=True, slots=True)
class _Provided:
    """The default of a parameter that a provider's object is given for."""

    provider: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Shared:
    """The default of a parameter that the lifespan's object of a type is given for."""

    kind: type


_Need: TypeAlias = _Provided | _Shared
#: What was made, by what asked for it.
Resolved: TypeAlias = dict[_Need, Any]


@overload
def Depends(provider: Callable[..., AsyncGenerator[T, None]]) -> T: ...
@overload
def Depends(provider: Callable[..., Generator[T, None, None]]) -> T: ...
@overload
def Depends(provider: Callable[..., AsyncIterator[T]]) -> T: ...
@overload
def Depends(provider: Callable[..., Iterator[T]]) -> T: ...
@overload
def Depends(provider: Callable[..., Awaitable[T]]) -> T: ...
@overload
def Depends(provider: Callable[..., T]) -> T: ...
def Depends(provider: Callable[..., Any]) -> Any:  # noqa: N802  (users know it by this name)
    """The default of a keyword-only parameter that each job is given a new object for: `*, db: Db = Depends(get_db)`.

    provider: a function, `async def` or plain, or a generator that yields once and closes behind its yield, where the
    task's error is raised too. Its own parameters may have such defaults. Raises InvalidArgument.
    """
    if not callable(provider):
        raise InvalidArgument(f"Depends: expected a function, got {provider!r:.60}")
    return _Provided(provider)


def Shared(kind: type[T]) -> T:  # noqa: N802
    """The default of a keyword-only parameter that is given the object of that type which the app's lifespan yielded.

    Raises InvalidArgument.
    """
    if not isinstance(kind, type):
        raise InvalidArgument(f"Shared: expected a type, got {kind!r:.60}")
    return cast(T, _Shared(kind))


class _Step(NamedTuple):
    """One provider: how what it makes is opened, and which of its parameters is given what."""

    need: _Provided
    open: Callable[..., Any]
    is_async: bool
    given: dict[str, _Need]


class Needs:
    """What a function is given: found when its task is made, nothing is looked up for a job.

    function: its parameters must be keyword-only where they are given something. what: for errors.
    """

    def __init__(self, what: str, function: Callable[..., Any]) -> None:
        self.parameters = _needs(function)
        signature = inspect.signature(function).parameters if self.parameters else {}
        for name in self.parameters:
            if signature[name].kind is not inspect.Parameter.KEYWORD_ONLY:
                raise InvalidArgument(f"{what}: expected {name} behind a *, as the worker gives it, got it before")
        steps: dict[_Need, _Step | None] = {}
        for need in self.parameters.values():
            _plan(need, steps)
        self._steps = [step for step in steps.values() if step is not None]
        #: Types that the lifespan must provide.
        self.shared = [need.kind for need in steps if isinstance(need, _Shared)]

    def __bool__(self) -> bool:
        return bool(self.parameters)

    async def call_async(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], base: Resolved
    ) -> Any:
        """Awaits the function with what it needs. base: what the lifespan made."""
        failed: BaseException | None = None
        async with AsyncExitStack() as stack:
            made = dict(base)
            for step in self._steps:
                manager = step.open(**_picked(step.given, made))
                opening = stack.enter_async_context(manager) if step.is_async else None
                made[step.need] = stack.enter_context(manager) if opening is None else await opening
            try:
                return await function(*args, **kwargs, **_picked(self.parameters, made))
            except BaseException as error:
                failed = error
                raise
        assert failed is not None
        raise failed  # a provider that catches the task's error does not undo it

    def call_plain(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], base: Resolved, wait: Wait
    ) -> Any:
        """Calls the function in this thread; async providers run on the loop that `wait` waits for."""
        failed: BaseException | None = None
        with ExitStack() as stack:
            made = dict(base)
            for step in self._steps:
                manager = step.open(**_picked(step.given, made))
                made[step.need] = stack.enter_context(_Waited(manager, wait) if step.is_async else manager)
            try:
                return function(*args, **kwargs, **_picked(self.parameters, made))
            except BaseException as error:
                failed = error
                raise
        assert failed is not None
        raise failed


def _picked(wanted: dict[str, _Need], made: Resolved) -> dict[str, Any]:
    return {name: made[need] for name, need in wanted.items()}


def _needs(function: Callable[..., Any]) -> dict[str, _Need]:
    """By parameter."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}  # a built-in without a signature
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if isinstance(parameter.default, _Provided | _Shared)
    }


def _plan(need: _Need, steps: dict[_Need, _Step | None]) -> None:
    """Adds what a need takes, in the order it is made; of what the lifespan makes there is nothing to do."""
    if need in steps:
        return
    if isinstance(need, _Shared):
        steps[need] = None
        return
    given = _needs(need.provider)
    for each in given.values():
        _plan(each, steps)
    opener, on_loop = _opener(need.provider)
    steps[need] = _Step(need, opener, on_loop, given)


def _opener(provider: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Every kind of provider as one of context managers; whether they are async ones."""
    if inspect.isasyncgenfunction(provider):
        return asynccontextmanager(provider), True
    if inspect.isgeneratorfunction(provider):
        return contextmanager(provider), False
    return (partial(_awaited, provider), True) if is_async(provider) else (partial(_called, provider), False)


@asynccontextmanager
async def _awaited(provider: Callable[..., Awaitable[Any]], **given: Any) -> AsyncIterator[Any]:
    yield await provider(**given)


@contextmanager
def _called(provider: Callable[..., Any], **given: Any) -> Iterator[Any]:
    yield provider(**given)


class _Waited(AbstractContextManager[Any]):
    """An async context manager for a thread."""

    def __init__(self, manager: contextlib.AbstractAsyncContextManager[Any], wait: Wait) -> None:
        self._manager, self._wait = manager, wait

    def __enter__(self) -> Any:
        return self._wait(self._manager.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        return self._wait(self._manager.__aexit__(kind, error, traceback))


@asynccontextmanager
async def entered_lifespan(lifespan: Lifespan | None, wanted: Mapping[str, Needs]) -> AsyncIterator[Resolved]:
    """What the lifespan shares, until the block ends. wanted: needs by task's name, each of which must be met."""
    async with contextlib.AsyncExitStack() as stack:
        made: Any = None
        if lifespan is not None:
            made = await stack.enter_async_context(asynccontextmanager(lifespan)())
        if made is not None and not (isinstance(made, Mapping) and all(isinstance(kind, type) for kind in made)):
            raise InvalidArgument(f"lifespan: expected it to yield a dict of objects by their type, got {made!r:.60}")
        for name, needs in wanted.items():
            for kind in needs.shared:
                if kind not in (made or {}):
                    raise InvalidArgument(
                        f"task {name!r}: expected the app's lifespan to yield a {kind.__qualname__}, got "
                        + ("no lifespan" if lifespan is None else repr([each.__qualname__ for each in made or {}]))
                    )
        yield {_Shared(kind): value for kind, value in (made or {}).items()}
