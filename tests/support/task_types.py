"""What a type checker says of tasks: mypy (strict, in `make check`) checks the types here, and that every error
expected by a `type: ignore` is one.

No module imports it at run time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, assert_type

from pinlater import (
    AsyncTask,
    Context,
    Depends,
    Handle,
    Item,
    Middleware,
    PinLater,
    PlainTask,
    Shared,
    SyncContext,
    Task,
)

app = PinLater(middleware=[Middleware()])


class Db: ...


@app.lifespan
async def lifespan() -> AsyncIterator[dict[type, Any]]:
    yield {Db: Db()}


async def from_generator(db: Db = Shared(Db)) -> AsyncIterator[int]:
    yield 1


def from_plain_generator(number: int = Depends(from_generator)) -> Iterator[str]:
    yield str(number)


async def from_coroutine() -> float:
    return 1.0


def from_function() -> bytes:
    return b""


@app.task
async def given(
    x: int,
    *,
    db: Db = Shared(Db),
    one: int = Depends(from_generator),
    two: str = Depends(from_plain_generator),
    three: float = Depends(from_coroutine),
    four: bytes = Depends(from_function),
    five: Db = Depends(Db),
) -> str:
    return two


@app.task(batch=10, batch_wait=0.1)
async def in_batches(items: list[Item[str]], *, db: Db = Shared(Db)) -> None:
    assert_type(items[0].value, str)
    assert_type(items[0].trace, str | None)
    items[0].fail(ValueError())
    items[0].retry(delay=5)


@app.task(runs_in="process", timeout=5)
def in_a_process(context: SyncContext, x: int) -> int:
    return x


@app.task
async def bare(x: int, *, y: str = "") -> float:
    return x


@app.task(queue="q", timeout=5)
def with_options(x: int) -> str:
    return str(x)


@app.task
async def with_context(context: Context, x: int) -> None: ...


@app.task
async def bare_of_one(x: int) -> float:
    return x


@app.task(result_ttl=60)
async def async_and_its_own() -> list[str]:
    return []


@app.task(result_ttl=60)
async def typed_context(context: Context, x: int) -> dict[str, int]:
    return {}


@app.task
def typed_context_bare(context: SyncContext, x: int) -> bytes:
    return b""


@app.task(batch=10)
def in_batches_of_a_thread(items: list[Item[str]]) -> None: ...


@app.task(attempts=2)
def with_sync_context(context: SyncContext, x: int) -> None:
    context.checkpoint(x)


async def right() -> None:
    assert_type(await bare(1, y="a"), float)
    call: Coroutine[Any, Any, float] = bare(1)
    await call
    assert_type(with_options(1), str)
    takes: PlainTask[[int], None] = with_sync_context  # its parameter has a name; a caller need not know
    takes.enqueue(1)
    assert_type(bare.enqueue(1, y="a"), Handle[float])
    assert_type(await bare.aenqueue(1), Handle[float])
    assert_type(bare.delay(1), Handle[float])
    assert_type(await with_context.using(delay=1).aenqueue(1), Handle[None])
    assert_type(with_options.enqueue_many([with_options.args(1), (2,)]), list[Handle[str]])
    assert_type(await bare.aenqueue_many([(2,)]), list[Handle[float]])
    await with_context(1)
    assert_type(given.enqueue(1), Handle[str])
    given.enqueue(1, two="a")  # refused when it is called: docs/handlers.md says why no type can
    assert_type(await given(1, db=Db()), str)
    assert_type(await in_batches.aenqueue("a"), Handle[None])
    in_batches.enqueue_many([in_batches.args("a")])
    batch_takes: AsyncTask[[str], None] = in_batches
    await batch_takes("a")
    in_batches_of_a_thread("a")
    assert_type(in_a_process(1), int)
    in_a_process.enqueue(1)
    either: list[Task[[int], float]] = [bare_of_one, in_a_process]  # of an int, which is a float too
    assert_type(either[0](1), float | Coroutine[Any, Any, float])
    assert_type(either[0].enqueue(1).result(), float)


async def results() -> None:
    """What a handle gives is what the task returns; of an async one, awaited."""
    assert_type(bare.enqueue(1).result(timeout=5), float)
    assert_type(await (await bare.aenqueue(1)).aresult(), float)
    assert_type(await async_and_its_own.enqueue().aresult(), list[str])
    assert_type(with_options.delay(1).result(), str)
    assert_type([handle.result() for handle in with_options.enqueue_many([(1,)])], list[str])
    assert_type([await handle.aresult() for handle in await bare.aenqueue_many([(1,)])], list[float])
    assert_type(bare.using(delay=1).using(queue="q").enqueue(1).result(), float)
    assert_type(in_a_process.enqueue(1).result(), int)
    assert_type(given.enqueue(1).result(), str)
    assert_type(typed_context.enqueue(1).result(), dict[str, int])
    assert_type(typed_context_bare.enqueue(x=1).result(), bytes)
    assert_type(app.send("name", 1), Handle[Any])  # the type of its result is unknown here
    assert_type(await app.asend("name", 1), Handle[Any])
    assert_type(app.by_name("name").enqueue(1).result(), Any)
    assert_type(app.handle("q:1:p1:1"), Handle[Any])
    known: Handle[str] = app.handle("q:1:p1:1")
    wider: Handle[float] = in_a_process.enqueue(1)
    assert_type(known.result(), str)
    assert_type(wider.result(), float)


async def wrong() -> None:
    bare("a")  # type: ignore[arg-type, unused-coroutine]
    bare.enqueue("a")  # type: ignore[arg-type]
    bare.enqueue(1, "a")  # type: ignore[call-arg]
    bare.delay()  # type: ignore[call-arg]
    await bare.aenqueue(1, z=1)  # type: ignore[call-arg]
    with_options.args("a")  # type: ignore[arg-type]
    with_context.using(delay=1).enqueue(None)  # type: ignore[arg-type]
    with_sync_context.enqueue(1, 2)  # type: ignore[call-arg]
    bare.using(when=1)  # type: ignore[call-arg]
    app.task(retries=3)  # type: ignore[call-overload]
    app.task(batch="3")  # type: ignore[call-overload]
    app.task(batch_wait=1.0)  # type: ignore[call-overload]
    app.task(runs_in="fork")  # type: ignore[call-overload]
    given.enqueue("a")  # type: ignore[arg-type]
    given.enqueue()  # type: ignore[call-arg]
    in_batches.enqueue(5)  # type: ignore[arg-type]
    in_batches.enqueue(["a"])  # type: ignore[arg-type]
    in_batches.enqueue("a", "b")  # type: ignore[call-arg]
    in_a_process.enqueue("a")  # type: ignore[arg-type]
    items: list[Item[int]] = []
    items[0].fail("why")  # type: ignore[arg-type]
    app.add_middleware(Db())  # type: ignore[arg-type]
    app.lifespan(from_function)  # type: ignore[type-var]
    app.task(batch=2)(not_a_batch)  # type: ignore[arg-type]


async def wrong_results() -> None:
    number: int = bare.enqueue(1).result()  # type: ignore[assignment]
    text: str = await (await bare.aenqueue(1)).aresult()  # type: ignore[assignment]
    nothing: str = in_batches.enqueue("a").result()  # type: ignore[assignment]
    other: Handle[str] = in_a_process.enqueue(1)  # type: ignore[assignment]
    sends: Callable[[int], Handle[str]] = bare.enqueue  # type: ignore[assignment]
    await in_a_process(1)  # type: ignore[misc]
    app.task(batch=2)(returns_what_is_not_kept)  # type: ignore[arg-type]
    print(number, text, nothing, other, sends)


async def wrong_contexts(context: Context, sync_context: SyncContext) -> None:
    """A context is the worker's to give, however it is named."""
    with_context.enqueue(context, 1)  # type: ignore[arg-type, call-arg]
    with_context.enqueue(context=context, x=1)  # type: ignore[call-arg]
    await typed_context.using(delay=1).aenqueue(context, 1)  # type: ignore[arg-type, call-arg]
    typed_context.args(context, 1)  # type: ignore[arg-type, call-arg]
    with_sync_context.delay(sync_context, 1)  # type: ignore[arg-type, call-arg]
    in_a_process.enqueue(context=sync_context, x=1)  # type: ignore[call-arg]
    in_a_process(sync_context, 1)  # type: ignore[arg-type, call-arg]
    given.enqueue(1, db=Db())  # no type error, as a plain call gives it so: InvalidArgument when it runs


def returns_what_is_not_kept(items: list[Item[str]]) -> int:
    return len(items)


async def not_a_batch(x: int) -> None: ...


async def wrong_dependencies(
    *,
    number: str = Depends(from_generator),  # type: ignore[assignment]
    shared: int = Shared(Db),  # type: ignore[assignment]
) -> None: ...
