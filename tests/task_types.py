"""What a type checker says of tasks: mypy (strict, in `make lint`) checks the types here, and that every error expected
by a `type: ignore` is one.

Promises and risks nothing at run time: nobody imports it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from pinlater import Context, Handle, PinLater, SyncContext, Task

app = PinLater()


@app.task
async def bare(x: int, *, y: str = "") -> float:
    return x


@app.task(queue="q", timeout=5)
def with_options(x: int) -> str:
    return str(x)


@app.task
async def with_context(context: Context, x: int) -> None: ...


@app.task(attempts=2)
def with_sync_context(context: SyncContext, x: int) -> None:
    context.checkpoint(x)


async def right() -> None:
    assert_type(await bare(1, y="a"), float)
    call: Coroutine[Any, Any, float] = bare(1)
    await call
    assert_type(with_options(1), str)
    takes: Task[[int], None] = with_sync_context  # its parameter has a name; a caller need not know
    takes.enqueue(1)
    assert_type(bare.enqueue(1, y="a"), Handle)
    assert_type(await bare.aenqueue(1), Handle)
    assert_type(bare.delay(1), Handle)
    assert_type(await with_context.using(delay=1).aenqueue(1), Handle)
    assert_type(with_options.enqueue_many([with_options.args(1), (2,)]), list[Handle])
    await with_context(1)


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
