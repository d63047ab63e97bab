"""Dependencies: objects that a task gets beside its arguments, by `Depends(provider)` and `Shared(type)` as defaults.

Promises:
    The order of the providers is known when the task is defined.
    Each provider is called once a job.
    What a provider opened is closed after the task, the last one first, whatever the task raised.
Risks: a plain provider of an async task is called on the loop, and must not block it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast, overload

from pinlater.model.errors import InvalidArgument
from pinlater.worker.executor import is_async

T = TypeVar("T")

#: Has the loop do async work, and waits for it in another thread.
Wait: TypeAlias = Callable[[Awaitable[Any]], Any]


@dataclass(frozen=True, slots=True)
class _FromProvider:
    """The default of a parameter that gets what a provider returns."""

    provider: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _FromLifespan:
    """The default of a parameter that gets the lifespan's object of this type."""

    kind: type


_Need: TypeAlias = _FromProvider | _FromLifespan
#: The objects at hand, by the need that each one meets.
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
    """The default of a keyword-only parameter that gets a new object for each job.

        async def get_db() -> AsyncIterator[Db]:
            async with connect() as db:
                yield db

        @app.task
        async def count(*, db: Db = Depends(get_db)) -> None: ...

    provider: a function (`async def` or plain), or a generator function (async or plain) that yields once. Code behind
        the `yield` runs after the task, and the task's error is raised at the `yield`. The provider's own parameters
        may have such defaults too. A provider is called once a job, however many parameters name it.

    Raises InvalidArgument if the provider is not callable.
    """
    if not callable(provider):
        raise InvalidArgument(f"Depends: expected a function, got {provider!r:.60}")
    return _FromProvider(provider)


def Shared(kind: type[T]) -> T:  # noqa: N802
    """The default of a keyword-only parameter that gets the object of this type from the app's lifespan.

        @app.task
        async def fetch(url: str, *, http: HttpClient = Shared(HttpClient)) -> None: ...

    Raises InvalidArgument if kind is no type. The worker refuses to start if the lifespan yields no such object.
    """
    if not isinstance(kind, type):
        raise InvalidArgument(f"Shared: expected a type, got {kind!r:.60}")
    return cast(T, _FromLifespan(kind))


def shared_by_type(objects: Mapping[type, Any]) -> Resolved:
    """The objects that a lifespan shares, ready for call_async and call_plain."""
    return {_FromLifespan(kind): value for kind, value in objects.items()}


def refuse_needs(what: str, function: Callable[..., Any], instead: str) -> None:
    """Raises InvalidArgument for a function with dependencies where it is called without them.

    what: the function, as errors name it.
    instead: what would work.
    """
    if needs := ", ".join(_needs(function)):
        raise InvalidArgument(
            f"{what}: expected a function without Depends and Shared, got them for {needs}; {instead}"
        )


class _Step(NamedTuple):
    """One provider to call.

    need: what it provides.
    open: makes a context manager of what the provider returns.
    is_async: whether that is an async context manager.
    needs: the provider's own parameters that get something.
    """

    need: _FromProvider
    open: Callable[..., Any]
    is_async: bool
    needs: dict[str, _Need]


class Needs:
    """The dependencies of one function. They are found once, when its task is defined.

    what: the task, as errors name it.
    function: its parameters with dependencies must be keyword-only.
    """

    def __init__(self, what: str, function: Callable[..., Any]) -> None:
        self.parameters = _needs(function)
        signature = inspect.signature(function).parameters if self.parameters else {}
        for name in self.parameters:
            if signature[name].kind is not inspect.Parameter.KEYWORD_ONLY:
                raise InvalidArgument(f"{what}: expected {name} behind a *, as the worker passes it, got it before")
        steps: dict[_Need, _Step | None] = {}
        for need in self.parameters.values():
            _plan(need, steps)
        self._steps = [step for step in steps.values() if step is not None]
        #: Types that the lifespan must provide.
        self.shared = [need.kind for need in steps if isinstance(need, _FromLifespan)]

    def __bool__(self) -> bool:
        return bool(self.parameters)

    async def call_async(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], base: Resolved
    ) -> Any:
        """Awaits the function with its dependencies. base: what the lifespan shares."""
        failed: BaseException | None = None
        async with AsyncExitStack() as stack:
            resolved = dict(base)
            for step in self._steps:
                manager = step.open(**_values(step.needs, resolved))
                opening = stack.enter_async_context(manager) if step.is_async else None
                resolved[step.need] = stack.enter_context(manager) if opening is None else await opening
            try:
                return await function(*args, **kwargs, **_values(self.parameters, resolved))
            except BaseException as error:
                failed = error
                raise
        assert failed is not None
        raise failed  # a provider that catches the task's error does not undo it

    def call_plain(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], base: Resolved, wait: Wait
    ) -> Any:
        """Calls the function with its dependencies in this thread. Async providers run on the loop, through `wait`."""
        failed: BaseException | None = None
        with ExitStack() as stack:
            resolved = dict(base)
            for step in self._steps:
                manager = step.open(**_values(step.needs, resolved))
                resolved[step.need] = stack.enter_context(_Waited(manager, wait) if step.is_async else manager)
            try:
                return function(*args, **kwargs, **_values(self.parameters, resolved))
            except BaseException as error:
                failed = error
                raise
        assert failed is not None
        raise failed


def _values(needs: dict[str, _Need], resolved: Resolved) -> dict[str, Any]:
    return {name: resolved[need] for name, need in needs.items()}


def _needs(function: Callable[..., Any]) -> dict[str, _Need]:
    """What the parameters of a function need, by their names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}  # a built-in without a signature
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if isinstance(parameter.default, _FromProvider | _FromLifespan)
    }


def _plan(need: _Need, steps: dict[_Need, _Step | None]) -> None:
    """Adds the steps that meet a need, in order. What the lifespan shares needs no step: None."""
    if need in steps:
        return
    if isinstance(need, _FromLifespan):
        steps[need] = None
        return
    needs = _needs(need.provider)
    for each in needs.values():
        _plan(each, steps)
    opener, on_loop = _opener(need.provider)
    steps[need] = _Step(need, opener, on_loop, needs)


def _opener(provider: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Any provider as a function that returns a context manager, and whether that is an async one."""
    if inspect.isasyncgenfunction(provider):
        return asynccontextmanager(provider), True
    if inspect.isgeneratorfunction(provider):
        return contextmanager(provider), False
    return (partial(_awaited, provider), True) if is_async(provider) else (partial(_called, provider), False)


@asynccontextmanager
async def _awaited(provider: Callable[..., Awaitable[Any]], **kwargs: Any) -> AsyncIterator[Any]:
    yield await provider(**kwargs)


@contextmanager
def _called(provider: Callable[..., Any], **kwargs: Any) -> Iterator[Any]:
    yield provider(**kwargs)


class _Waited(AbstractContextManager[Any]):
    """An async context manager, entered and left by a thread."""

    def __init__(self, manager: AbstractAsyncContextManager[Any], wait: Wait) -> None:
        self._manager, self._wait = manager, wait

    def __enter__(self) -> Any:
        return self._wait(self._manager.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        return self._wait(self._manager.__aexit__(kind, error, traceback))
