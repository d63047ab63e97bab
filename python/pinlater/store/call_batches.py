"""Sends the calls that wait in one turn of the event loop as one script call.

Promises:
- Each caller gets its own answer. If its batch is refused for wrong arguments, the batch is halved until the call that
  is wrong is alone.
- Two calls for one job leave one after the other.
- A receiver that raises costs the others nothing.
- A single call leaves in the same turn, unless its coalescer is patient and a flush is under way.

Risks: a cancelled call is still carried out, since the others depend on its batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PartialEnqueue, PinLaterError

log: Final = logging.getLogger("pinlater.store")

T = TypeVar("T")


class Receiver(Protocol):
    """Gets the result of an item, or its error. A future is one."""

    def done(self) -> bool:
        """Whether it wants nothing more."""

    def set_result(self, result: Any, /) -> object:
        """Takes the result."""

    def set_exception(self, error: Exception, /) -> object:
        """Takes the error."""


#: Items that leave in one script call, and what gets their results.
_Batch: TypeAlias = tuple[list[T], list[Receiver]]

#: Most jobs of a flush: as many as one script call takes.
MAX_ITEMS: Final = 1000
#: Most bytes of a flush. A larger item leaves alone. No server can be set to refuse so little: the least value of its
#: proto-max-bulk-len and client-query-buffer-limit is 1 MiB.
MAX_BYTES: Final = 512 * 1024
#: The items of a patient coalescer wait at most so long for a flush under way to end.
PATIENCE_S: Final = 0.01
#: A client forgets coalescers in which nothing waits when it has so many.
MAX_COALESCERS: Final = 1000


class Coalescer(Generic[T]):
    """Gathers items of one kind: the enqueues of a queue, or the acks of a queue shard.

    - run: carries out a list of items, and returns their results in order. PartialEnqueue has a result an item.
    - tasks: holds the running tasks.
    - parts: where a list of items is cut, so that each part is one script call. None: it is one.
    - patient: while a flush is under way, items wait for its end. For callers with many connections: larger flushes
      cost each call less.
    - most: the largest number of jobs in a flush.
    """

    def __init__(
        self,
        run: Callable[[list[T]], Awaitable[list[Any]]],
        tasks: set[asyncio.Task[None]],
        parts: Callable[[list[T]], list[slice]] | None = None,
        *,
        patient: bool = False,
        most: int = MAX_ITEMS,
    ) -> None:
        self._run = run
        self._tasks = tasks
        self._parts = parts
        self._patient = patient
        self._most = most
        self._under_way = 0
        #: The next flush, if it is due.
        self._next: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        #: The batches of the next flush, which leave one after the other.
        self._waiting: list[_Batch[T]] = []
        #: Items, receivers and keys of the last batch.
        self._items: list[T] = []
        self._receivers: list[Receiver] = []
        self._keys: set[Any] = set()
        self._count = self._bytes = 0

    def add(
        self, item: T, size: int, keys: Collection[Any] = (), *, jobs: int = 1, receiver: Receiver | None = None
    ) -> Any:
        """Adds an item to the next flush. Returns the receiver: it gets the result, or the error of its batch.

        size: in bytes. keys: the ids of its jobs, if it may have several; two items with a key in common leave in
        different batches, in order. jobs: how many jobs it has, if it has no keys. receiver: by default a new future.
        """
        jobs = len(keys) or jobs
        count, self._bytes = self._count, self._bytes + size
        if not count or count + jobs > self._most or self._bytes > MAX_BYTES:
            self._start_flush(size)
        elif keys and not self._keys.isdisjoint(keys):
            self._start_batch()
        if receiver is None:
            receiver = self._new_future()
        self._items.append(item)
        self._receivers.append(receiver)
        if keys:
            self._keys.update(keys)
        self._count += jobs
        return receiver

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._count

    def _start_flush(self, size: int) -> None:
        """Flushes what waits, and schedules the next flush."""
        self._flush()
        self._bytes = size
        if self._patient and self._under_way:
            self._next = self._loop.call_later(PATIENCE_S, self._flush)
        else:
            self._next = self._loop.call_soon(self._flush)
        self._start_batch()

    def _start_batch(self) -> None:
        self._items, self._receivers, self._keys = [], [], set()
        self._waiting.append((self._items, self._receivers))

    def _flush(self) -> None:
        if not self._count:
            return
        if self._next is not None:
            self._next.cancel()
            self._next = None
        batches, self._waiting, self._count, self._bytes = self._waiting, [], 0, 0
        self._items, self._receivers = [], []  # or the last batch would stay in memory
        self._under_way += 1
        task = self._loop.create_task(self._carry_out(batches))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, batches))

    def _ended(self, batches: list[_Batch[T]], task: asyncio.Task[None]) -> None:
        """Fails the receivers of a task that did not end well. A done callback, as a cancelled task may never start."""
        self._tasks.discard(task)
        self._under_way -= 1
        if self._patient:
            self._flush()
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        why = error if isinstance(error, Exception) else PinLaterError(f"not carried out: {error!r}")
        for receiver in chain.from_iterable(receivers for _, receivers in batches):
            if not receiver.done():
                receiver.set_exception(why)

    async def _carry_out(self, batches: list[_Batch[T]]) -> None:
        for items, receivers in batches:
            if self._parts is None or len(items) == 1:
                await self._carry_out_batch(items, receivers)
            else:
                for part in self._parts(items):
                    await self._carry_out_batch(items[part], receivers[part])
            receivers.clear()  # they have their results, whatever becomes of the next batch

    async def _carry_out_batch(self, items: list[T], receivers: list[Receiver]) -> None:
        for receiver, result in zip(receivers, await self._results(items), strict=True):
            try:
                _hand(receiver, result)
            except Exception:  # the others have results of their own
                log.exception("a result was not taken: an unexpected error")

    async def _results(self, items: list[T]) -> list[Any]:
        """The result or the error of each item."""
        results: list[Any]
        try:
            return await self._run(items)
        except OutcomeUnknown as error:
            return [error.part(index) for index in range(len(items))]
        except PartialEnqueue as error:
            results = error.results
        except PinLaterError as error:
            results = [error] * len(items)
        refused = [position for position, result in enumerate(results) if isinstance(result, InvalidArgument)]
        if len(items) > 1:  # certainly not carried out, and perhaps because of another item
            middle = (len(refused) + 1) // 2
            for half in (refused[:middle], refused[middle:]):
                again = await self._results([items[position] for position in half]) if half else []
                for position, result in zip(half, again, strict=True):
                    results[position] = result
        return results


def _hand(receiver: Receiver, result: Any) -> None:
    if receiver.done():
        return
    if isinstance(result, PinLaterError):
        receiver.set_exception(result)
    else:
        receiver.set_result(result)


def make_room(coalescers: dict[Any, Coalescer[Any]]) -> None:
    """Forgets those in which nothing waits, if there are many. The next call makes them again."""
    if len(coalescers) >= MAX_COALESCERS:
        for key in [key for key, coalescer in coalescers.items() if coalescer.is_empty]:
            del coalescers[key]
