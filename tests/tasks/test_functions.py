"""Functions that can be tasks, the context they get, and calls that do not fit them.

The tests cover every way in which Python spells a function or an annotation.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

import pinlater
from pinlater import Context, Depends, InvalidArgument, PinLater, State, SyncContext
from pinlater.running.app_worker import worker_of
from pinlater.tasks.task import task_parts
from tests.support.handlers_for_tests import on_loop

if TYPE_CHECKING:
    from pinlater import Context as Imported
    from pinlater.model.jobs import Job as SomethingElse

pytest.importorskip("lupa")


def around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return call


class Methods:
    def plain(self, context: SyncContext, x: int) -> int:
        return x

    async def on_loop(self, context: Context, x: int) -> int:
        return x

    def __call__(self, context: SyncContext, x: int) -> int:
        return x

    @staticmethod
    def static(context: SyncContext, x: int) -> int:
        return x


async def takes_context(context: Context, x: int) -> int:
    return x


async def or_none(context: Context | None, x: int) -> int:
    return x


async def optional(context: Optional[Context], x: int) -> int:  # noqa: UP045
    return x


async def quoted(context: "Context", x: int) -> int:  # noqa: UP037
    return x


async def annotated(context: Annotated[Context, "note"], x: int) -> int:
    return x


async def by_module(context: pinlater.Context, /, x: int) -> int:
    return x


async def other(something: SomethingElse, x: int) -> int:
    return x


async def three(y: int, context: Context, x: int) -> int:
    return x


TAKES: dict[str, tuple[Callable[..., Any], bool]] = {
    "function": (takes_context, True),
    "| None": (or_none, True),
    "Optional": (optional, True),
    "quoted": (quoted, True),
    "Annotated": (annotated, True),
    "of a module": (by_module, True),
    "wrapped": (around(takes_context), True),
    "wrapped, | None": (around(or_none), True),
    "partial": (functools.partial(takes_context, x=1), True),
    "bound": (Methods().plain, True),
    "bound async": (Methods().on_loop, True),
    "callable": (Methods(), True),
    "static": (Methods.static, True),
    "an unknown annotation that is no context": (other, False),
    "built-in": (len, False),
    "without a signature": (dict, False),
}


@pytest.mark.parametrize(("function", "takes"), TAKES.values(), ids=TAKES)
def test_the_context_is_seen_however_it_is_written(function: Callable[..., Any], takes: bool) -> None:
    context = task_parts(PinLater().task(name="t")(function)).context
    assert (context is not None) is takes


async def unknown(context: Imported, x: int) -> None: ...


async def unknown_by_its_name(state: SomeContext, x: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def in_a_function() -> Callable[..., Any]:
    from pinlater import Context as Local

    async def local(ctx: Local, x: int) -> None: ...

    return local


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Generates:
    def __call__(self) -> Iterator[int]:
        yield 1


async def of_a_class(cls: Any) -> None: ...


CAN_NOT_BE: dict[str, tuple[Any, str]] = {
    "under TYPE_CHECKING": (unknown, "its first parameter is context: Imported, which is not defined in its module"),
    "by its name": (unknown_by_its_name, "its first parameter is state: SomeContext, which is not defined"),
    "local": (in_a_function(), "ctx: Local, which is not defined in its module; expected Context, or another type"),
    "second": (three, "expected its first parameter as a Context, got context: Context"),
    "generator": (generator, "expected a function that returns, got a generator function"),
    "async generator": (async_generator, "expected a function that returns, got a generator function"),
    "callable generator": (Generates(), "expected a function that returns, got a generator function"),
    "partial of one": (functools.partial(generator), "expected a function that returns, got a generator function"),
    "method": (Methods.plain, "expected a function, got a method: its first parameter is self"),
    "cls": (of_a_class, "expected a function, got a method: its first parameter is cls"),
    "staticmethod": (
        staticmethod(takes_context),
        "expected a function, got a staticmethod: put @staticmethod above @app.task",
    ),
    "classmethod": (classmethod(of_a_class), "expected a function, got a classmethod"),
    "number": (5, "expected a function, got 5"),
}


@pytest.mark.parametrize(("function", "said"), CAN_NOT_BE.values(), ids=CAN_NOT_BE)
def test_a_function_that_can_not_be_a_task_raises_where_it_is_defined(function: Any, said: str) -> None:
    app = PinLater()
    with pytest.raises(InvalidArgument, match=f"task 't': .*{said}"):
        app.task(name="t")(function)
    assert app.tasks == {}


@pytest.mark.parametrize("codec", ["msgpack", "raw"])
def test_a_name_is_text(codec: Any) -> None:
    bad: Any = 5
    with pytest.raises(InvalidArgument, match="task name: expected text, got 5"):
        PinLater().task(name=bad, codec=codec)(takes_context)


def five() -> int:
    return 5


@on_loop
async def test_a_call_that_can_never_fit_uses_up_all_attempts_at_once() -> None:
    app = PinLater("memory://test_functions")

    @app.task(name="plain", backoff=60)
    def plain(context: SyncContext, x: int, *, y: int = Depends(five)) -> None:
        if x == 1:
            raise TypeError("of the task")
        five(x)  # type: ignore[call-arg]

    @app.task(name="async", backoff=60)
    async def on_the_loop(x: int) -> None:
        raise TypeError("of the task")

    @app.task(name="wrapped", backoff=60)
    @around
    async def wrapped(x: int) -> None: ...

    @app.task(name="batch", backoff=60, batch=3, batch_wait=0.001)
    async def batch(items: list[Any]) -> None:
        raise TypeError("of the task")

    unknowing = PinLater("memory://test_functions")  # a program that does not know the functions
    async with app, unknowing:
        wrong = {
            name: [await send(1, 2), await send(1, z=3), await send()]
            for name in ("plain", "async", "wrapped", "batch")
            for send in [unknowing.by_name(name).aenqueue]
        }
        right = [await plain.aenqueue(1), await plain.aenqueue(2), await on_the_loop.aenqueue(1)]
        right += [await batch.aenqueue(1)]
        async with worker_of(app) as worker:
            await worker.run(burst=True)
        for name, handles in wrong.items():
            for handle in handles:
                info = await handle.ainfo()
                assert info is not None, name
                assert (info.state, info.attempts_remaining) == (State.FAILED, 0), (name, info.status)
                assert info.status.startswith("TypeError: "), name
        for one in right:
            info = await one.ainfo()
            assert info is not None
            assert info.state is State.PENDING, info.status


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_an_app_and_a_task_show_public_names_only() -> None:
    app = PinLater()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    by_name = {"by_name", "send", "asend", "handle"}
    assert public(app) == {
        *("task", "tasks", "lifespan", "middleware", "add_middleware", "include", "immediate", "close", "aclose"),
        *by_name,
    }
    enqueues = {"enqueue", "aenqueue", "enqueue_many", "aenqueue_many", "delay", "args", "using"}
    assert public(add) == {
        *enqueues,
        "name",
        "queue",
        "codec",
        "priority",
        "function",
        "options",
        "kind",
        "send_options",
    }
