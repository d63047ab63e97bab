"""A spill: many batches of one queue shard leave Redis, several at a time.

Six tasks work side by side: one withdraws batches, one waits for the disk of Redis, one reads batches, one stores them
in MySQL, one ends them, one waits for the disk again. A task that waits takes all that is there, so one wait serves
many batches.

Promises that a spill which fails or is cancelled leaves only batches that `recover` ends. Risks: up to OPEN_BATCHES
batches cannot be claimed meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from pinlater.archive.batches import Range, Withdrawn, commit, finalize, read_jobs, withdraw
from pinlater.archive.incarnations import Incarnation
from pinlater.archive.moving_job import MovingJob
from pinlater.archive.pace import Pace
from pinlater.archive.recovery import end_batches, until_finalized
from pinlater.archive.run_together import run_together
from pinlater.archive.settle import settle
from pinlater.model.errors import ArchiveDuplicate, ArchiveOutcomeUnknown
from pinlater.operations.inspect import count_at
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.effects import Flow
from pinlater.store.shards import QueueShard

T = TypeVar("T")
Item = TypeVar("Item")
Found = TypeVar("Found")

#: So many batches are withdrawn and not yet ended in Redis, at most.
OPEN_BATCHES: Final = 256
#: One wait for the disk serves so many batches at most.
WAITING_BATCHES: Final = 500
#: So many batches are read at most while others are stored.
READ_AHEAD: Final = 8
#: So many batches are stored in one transaction. A script must be short, as all others wait for it; a COMMIT waits for
#: the disk, so it should have many rows.
TOGETHER: Final = 4


class Run(Protocol):
    """Runs the flow that `make` returns for a deadline, as AsyncClient.run does."""

    def __call__(self, make: Callable[[float], Flow[T]], /) -> Awaitable[T]: ...


@dataclass(slots=True)
class Spill:
    """One spill.

    limit: how many jobs leave at most.
    moved: how many have left so far. Their rows are FINALIZED.
    progress: called with the number of jobs that have left since the last call.
    stopping: set it to end the spill: no further batch is withdrawn, and the open ones are ended.
    """

    run: Run
    queue_shard: QueueShard
    database: ArchiveDatabase
    incarnation: Incarnation
    limit: int
    moved: int = 0
    progress: Callable[[int], None] = lambda _: None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _pace: Pace = field(default_factory=Pace)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPEN_BATCHES))

    async def of(self, ranges: Iterable[Range]) -> int:
        """Withdraws from these ranges in their order. Returns how many jobs left."""
        withdrawn, settled, committed, ended, marked = (_Waiting[Withdrawn]() for _ in range(5))
        read = _Waiting[_Read](READ_AHEAD)
        await run_together(
            self._withdraw(ranges, withdrawn),
            _stage(withdrawn, settled, self._settle),
            _stage(settled, read, self._read, at_once=1),
            _stage(read, committed, self._commit, at_once=TOGETHER),
            _stage(committed, ended, self._end, at_once=1),
            _stage(ended, marked, self._mark),
        )
        return self.moved

    async def _withdraw(self, ranges: Iterable[Range], to: _Waiting[Withdrawn]) -> None:
        left = self.limit
        for chosen in ranges:
            more = True
            while more and left and not self.stopping.is_set():
                await self._room.acquire()
                batch = await self.run(partial(withdraw, self.queue_shard, self.incarnation, chosen, left))
                more, left = batch.more, left - batch.jobs
                if batch.jobs:
                    to.put_nowait(batch)
                else:
                    self._room.release()
        to.put_nowait(None)

    async def _settle(self, batches: list[Withdrawn]) -> list[Withdrawn]:
        """Those that are on disk. The others went back to their lines, as Redis went back in time."""
        names = [batch.name for batch in batches]
        done = await self.run(lambda end: settle(self.queue_shard, end, withdrawn=names))
        for _ in range(done.count(False)):
            self._room.release()
        return [batch for batch, settled in zip(batches, done, strict=True) if settled]

    async def _read(self, batches: list[Withdrawn]) -> list[_Read]:
        found: list[_Read] = []
        for batch in batches:
            jobs = await self.run(partial(read_jobs, self.queue_shard, batch.name))
            if jobs is not None:
                found.append(_Read(batch, jobs))
            else:  # another archiver took it for abandoned
                self._room.release()
        return found

    async def _commit(self, read: list[_Read]) -> list[Withdrawn]:
        """Those that are COMMITTED now. The others have ended."""
        began_s = time.monotonic()
        committed = await self._store({batch.name: jobs for batch, jobs in read})
        for _ in range(len(read) - len(committed)):
            self._room.release()
        await self._rest(time.monotonic() - began_s)
        return [batch for batch, _ in read if batch.name in committed]

    async def _store(self, batches: dict[bytes, list[MovingJob]]) -> set[bytes]:
        """Stores batches in one transaction. Returns the names of those that are COMMITTED now."""
        try:
            await self.run(lambda _: commit(self.database, self.incarnation, batches))
        except (ArchiveDuplicate, ArchiveOutcomeUnknown):
            if len(batches) > 1:  # one of them has a row already; the others may be stored
                return {name for each, jobs in batches.items() for name in await self._store({each: jobs})}
            await self.run(
                lambda end: end_batches(self.queue_shard, self.database, self.incarnation, list(batches), end)
            )
            return set()
        return set(batches)

    async def _rest(self, worked_s: float) -> None:
        """Leaves most of both servers to workers, if there are any."""
        if self._pace.is_due(time.monotonic()):
            self._pace.look(await self.run(lambda end: count_at(self.queue_shard, end)), time.monotonic())
        if not self.stopping.is_set():
            await asyncio.sleep(self._pace.rest_s(worked_s))

    async def _end(self, batches: list[Withdrawn]) -> list[Withdrawn]:
        for batch in batches:
            await self.run(partial(finalize, self.queue_shard, self.database, batch.name))
            self._room.release()
        return batches

    async def _mark(self, batches: list[Withdrawn]) -> list[Withdrawn]:
        names = [batch.name for batch in batches]
        await self.run(lambda end: until_finalized(self.queue_shard, self.database, names, end))
        count = sum(batch.jobs for batch in batches)
        self.moved += count
        self.progress(count)
        return []


class _Read(NamedTuple):
    batch: Withdrawn
    jobs: list[MovingJob]


class _Waiting(asyncio.Queue[Item | None]):
    """What waits for the next stage. Behind the last item comes None."""

    def take(self, most: int) -> list[Item]:
        """Takes up to `most` of those that are there."""
        items: list[Item] = []
        while len(items) < most and not self.empty():
            item = self.get_nowait()
            if item is None:
                self.put_nowait(None)
                break
            items.append(item)
        return items


async def _stage(
    source: _Waiting[Item],
    to: _Waiting[Found],
    work: Callable[[list[Item]], Awaitable[list[Found]]],
    at_once: int = WAITING_BATCHES,
) -> None:
    """Passes what waits to `work`, at most so many at once, and what it returns to the next stage."""
    while (first := await source.get()) is not None:
        for found in await work([first, *source.take(at_once - 1)]):
            await to.put(found)
    await to.put(None)
