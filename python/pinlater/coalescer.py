"""Calls that wait in the same turn of the event loop leave as one script call.

Promises that each caller gets its own answer, that a caller is checked alone before it joins (so nobody fails for a
neighbour), and that cancelling one cancels nothing: its job may still be put in. Risks nothing for a lone caller: its
call leaves in the same turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from pinlater.errors import OutcomeUnknown, PinLaterError
from pinlater.flows import complete

Item = TypeVar("Item")

#: At most so many items a flush: what one script call takes.
MAX_ITEMS: Final = 1000
#: At most so many bytes a flush.
MAX_BYTES: Final = 4 * 1024 * 1024


class Coalescer(Generic[Item]):
    """Gathers items of one kind (one queue's enqueues, one client's acks); `run` carries out a list of them."""

    def __init__(self, run: Callable[[list[Item]], Awaitable[list[Any]]], tasks: set[asyncio.Task[None]]) -> None:
        self._run = run
        self._tasks = tasks
        self._waiting: list[tuple[Item, asyncio.Future[Any]]] = []
        self._bytes = 0

    def add(self, item: Item, size: int) -> asyncio.Future[Any]:
        """Joins the next flush; the future gets this item's result, or the error of the flush."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        elif len(self._waiting) >= MAX_ITEMS or self._bytes + size > MAX_BYTES:
            self._flush()
            loop.call_soon(self._flush)
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((item, future))
        self._bytes += size
        return future

    def _flush(self) -> None:
        if not self._waiting:
            return
        batch, self._waiting, self._bytes = self._waiting, [], 0
        task = asyncio.get_running_loop().create_task(self._carry_out(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, batch: list[tuple[Item, asyncio.Future[Any]]]) -> None:
        try:
            results = await self._run([item for item, _ in batch])
        except PinLaterError as error:
            for index, (_, future) in enumerate(batch):
                if not future.done():
                    future.set_exception(_own(error, index))
            return
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(
                        error if isinstance(error, Exception) else PinLaterError(f"not carried out: {error!r}")
                    )
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, PinLaterError):
                future.set_exception(result)
            else:
                future.set_result(result)


def _own(error: PinLaterError, index: int) -> PinLaterError:
    """One caller's share of an error: resolve() gives it its own answer."""
    if not isinstance(error, OutcomeUnknown):
        return error
    resume, drive = error.resume, error.drive
    own = OutcomeUnknown(str(error), lambda deadline_s: complete(resume(deadline_s), lambda results: results[index]))
    own.drive = drive
    return own
