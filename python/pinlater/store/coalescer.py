"""Calls that wait in the same turn of the event loop leave as one script call.

Promises that each caller gets its own answer, that a caller is checked alone before it joins (so nobody fails for a
neighbour), that two of one job leave one after the other, and that cancelling one cancels nothing: its job may still be
put in. Risks nothing for a lone caller: its call leaves in the same turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from itertools import chain
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pinlater.model.errors import OutcomeUnknown, PinLaterError

Item = TypeVar("Item")

#: Items that leave together, and the future of each.
_Batch: TypeAlias = tuple[list[Item], list[asyncio.Future[Any]]]

#: At most so many items a flush: what one script call takes.
MAX_ITEMS: Final = 1000
#: At most so many bytes a flush.
MAX_BYTES: Final = 4 * 1024 * 1024


class Coalescer(Generic[Item]):
    """Gathers items of one kind (a queue's enqueues, a queue and shard's acks); `run` carries out a list of them."""

    def __init__(self, run: Callable[[list[Item]], Awaitable[list[Any]]], tasks: set[asyncio.Task[None]]) -> None:
        self._run = run
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        #: What leaves with the next flush: batch after batch.
        self._waiting: list[_Batch[Item]] = []
        #: Of the last batch; and the keys of its items.
        self._items: list[Item] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._keys: set[Any] = set()
        self._count = self._bytes = 0

    def add(self, item: Item, size: int, keys: Collection[Any] = ()) -> asyncio.Future[Any]:
        """Joins the next flush; the future gets this item's result, or the error of its batch.

        keys: items that have one in common do not leave together, but one after the other.
        """
        count, self._bytes = self._count, self._bytes + size
        if not count or count >= MAX_ITEMS or self._bytes > MAX_BYTES:
            self._begin(size)
        elif keys and not self._keys.isdisjoint(keys):
            self._begin_batch()
        future: asyncio.Future[Any] = self._new_future()
        self._items.append(item)
        self._futures.append(future)
        if keys:
            self._keys.update(keys)
        self._count += 1
        return future

    def _begin(self, size: int) -> None:
        """What comes now leaves with a flush of its own, and what is there before it."""
        self._flush()
        self._bytes = size
        self._loop.call_soon(self._flush)
        self._begin_batch()

    def _begin_batch(self) -> None:
        self._items, self._futures, self._keys = [], [], set()
        self._waiting.append((self._items, self._futures))

    def _flush(self) -> None:
        if not self._count:
            return
        batches, self._waiting, self._count, self._bytes = self._waiting, [], 0, 0
        self._items, self._futures = [], []  # nothing is held longer than it is needed
        task = self._loop.create_task(self._carry_out(batches))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, batches))

    def _ended(self, batches: list[_Batch[Item]], task: asyncio.Task[None]) -> None:
        """Tells those whose items were not carried out; here, for a task that is cancelled early never begins."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        why = error if isinstance(error, Exception) else PinLaterError(f"not carried out: {error!r}")
        for future in chain.from_iterable(futures for _, futures in batches):
            if not future.done():
                future.set_exception(why)

    async def _carry_out(self, batches: list[_Batch[Item]]) -> None:
        for batch in batches:
            await self._carry_out_batch(*batch)

    async def _carry_out_batch(self, items: list[Item], futures: list[asyncio.Future[Any]]) -> None:
        results: list[Any]
        try:
            results = await self._run(items)
        except OutcomeUnknown as error:
            results = [error.part(index) for index in range(len(items))]
        except PinLaterError as error:
            results = [error] * len(items)
        for future, result in zip(futures, results, strict=True):
            if future.done():
                continue
            if isinstance(result, PinLaterError):
                future.set_exception(result)
            else:
                future.set_result(result)
