"""Moves jobs of a queue between Redis and the archive, over all its shards.

Promises that it may be stopped or killed at any moment, and that several of them may work on one queue: what one leaves
open, the next one ends. Risks: two of them at once do each other's work twice, so they are slower than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pinlater.archive.batches import Range, count_in
from pinlater.archive.incarnations import Incarnation, incarnation_of
from pinlater.archive.moving_job import MovingJob
from pinlater.archive.read_ahead import read_ahead
from pinlater.archive.recovery import recover
from pinlater.archive.restores import RESTORES_AT_ONCE, Restore, Started, Wanted, begin, finish, jobs_of, load
from pinlater.archive.run_together import run_together
from pinlater.archive.spill import Run, Spill
from pinlater.operations.inspect import server_time_ms
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.shards import QueueShard, Session

#: A batch of another archiver is ended after this time without progress.
ABANDONED_MS: Final = 10_000
#: `sys.setswitchinterval` of a process that only archives. Its loop and the thread that encodes rows wait for each
#: other; with the 5 ms of Python a spill is slower by a sixth.
SWITCH_S: Final = 0.000_5


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which pending jobs leave: the latest-due and lowest-priority ones first.

    limit: how many at most; None: all that fit the rest. keep: how many pending jobs stay in Redis.
    priority: only those of this priority.
    older_ms: only jobs that have been due for so long. later_ms: only jobs that are due in so long, or later.
    """

    limit: int | None = None
    keep: int = 0
    priority: int | None = None
    older_ms: int | None = None
    later_ms: int | None = None

    def ranges(self, priorities: int, now_ms: int) -> list[Range]:
        """The ranges of a queue shard, in the order in which they leave."""
        chosen = [self.priority] if self.priority is not None else list(range(priorities, 0, -1))
        ranges = []
        if self.older_ms is None:
            first = "-inf" if self.later_ms is None else str(now_ms + self.later_ms)
            ranges += [Range(priority, "scheduled", first=first) for priority in chosen]
        if self.later_ms is None:
            last = "+inf" if self.older_ms is None else str(now_ms - self.older_ms)
            ranges += [Range(priority, "ready", last=last) for priority in chosen]
        return ranges


@dataclass(slots=True)
class Archiver:
    """The archiver of one process.

    run: runs a flow for a deadline, as AsyncClient.run does.
    progress: called with the number of jobs that have moved since the last call.
    stopping: set it to stop: no further batch or restore begins, and the open ones are ended.
    """

    run: Run
    session: Session
    database: ArchiveDatabase
    progress: Callable[[int], None] = lambda _: None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def spill(self, queue: str, selection: Selection) -> int:
        """Moves pending jobs of a queue to the archive. Returns how many."""
        queue_shards = await self.run(lambda end: known_queue_shards(self.session, queue, end))
        # before the jobs are counted: those that were left in a batch may be all that there are
        await run_together(*map(self.prepare, queue_shards))
        shares = await self.shares(queue, selection)
        moved = await run_together(
            *(self._spill_shard(queue_shard, selection, limit) for queue_shard, limit in shares.items() if limit)
        )
        return sum(moved)

    async def _spill_shard(self, queue_shard: QueueShard, selection: Selection, limit: int) -> int:
        now_ms = await self.run(lambda end: server_time_ms(queue_shard.shard, end))
        assert queue_shard.stored is not None
        ranges = selection.ranges(queue_shard.stored.config.priorities, now_ms)
        return await self.spill_ranges(queue_shard, ranges, limit)

    async def spill_ranges(self, queue_shard: QueueShard, ranges: Sequence[Range], limit: int) -> int:
        """Moves up to `limit` jobs of these ranges to the archive, in their order. Returns how many."""
        spill = Spill(
            self.run,
            queue_shard,
            self.database,
            await self.prepare(queue_shard),
            limit,
            progress=self.progress,
            stopping=self.stopping,
        )
        return await spill.of(ranges)

    async def shares(self, queue: str, selection: Selection) -> dict[QueueShard, int]:
        """How many jobs of each queue shard may leave, by what each has."""
        queue_shards = await self.run(lambda end: known_queue_shards(self.session, queue, end))
        chosen = {queue_shard: await self._chosen(queue_shard, selection) for queue_shard in queue_shards}
        most = max(0, sum(chosen.values()) - selection.keep)
        return share_out(most if selection.limit is None else min(most, selection.limit), chosen)

    async def _chosen(self, queue_shard: QueueShard, selection: Selection) -> int:
        """How many jobs of a queue shard are in the ranges of a selection."""
        now_ms = await self.run(lambda end: server_time_ms(queue_shard.shard, end))
        assert queue_shard.stored is not None
        ranges = selection.ranges(queue_shard.stored.config.priorities, now_ms)
        return await self.run(lambda end: count_in(queue_shard, ranges, end))

    async def restore(self, queue: str, limit: int | None = None) -> int:
        """Brings archived jobs of a queue back, highest priority and earliest run-after first. Returns how many."""
        queue_shards = await self.run(lambda end: known_queue_shards(self.session, queue, end))
        left = Left(limit)
        restored = await run_together(*(self._restore_shard(queue_shard, left) for queue_shard in queue_shards))
        return sum(restored)

    async def _restore_shard(self, queue_shard: QueueShard, left: Left) -> int:
        assert queue_shard.stored is not None
        wanted = [Wanted(priority) for priority in range(1, queue_shard.stored.config.priorities + 1)]
        return await self.restore_wanted(queue_shard, wanted, left)

    async def restore_wanted(self, queue_shard: QueueShard, wanted: Sequence[Wanted], left: Left) -> int:
        """Brings these jobs back, in their order. Returns how many. Restores that another archiver began are carried on
        and counted by that one.
        """
        incarnation = await self.prepare(queue_shard)
        restored = 0
        for each in wanted:
            while (most := left.take()) and not self.stopping.is_set():
                started = await self._restore_some(queue_shard, incarnation, each, most)
                left.give_back(most - started.jobs)
                restored += started.jobs
                if not started.restores:
                    break
            else:
                left.give_back(most)
        return restored

    async def _restore_some(
        self, queue_shard: QueueShard, incarnation: Incarnation, wanted: Wanted, limit: int
    ) -> Started:
        started = await self.run(lambda _: begin(self.database, incarnation, wanted, limit))

        async def read(restore: Restore) -> list[MovingJob]:
            return await self.run(lambda _: jobs_of(self.database, incarnation, restore))

        async def give(restore: Restore, jobs: list[MovingJob]) -> None:
            await self.run(partial(load, queue_shard, self.database, incarnation, restore, jobs))

        await read_ahead(started.restores, read, give)
        await self.run(partial(finish, queue_shard, self.database, incarnation, started.restores))
        self.progress(started.jobs)
        return started

    async def prepare(self, queue_shard: QueueShard) -> Incarnation:
        """The incarnation of a queue shard, on which nothing is left open."""
        incarnation = await self.run(lambda end: incarnation_of(self.database, queue_shard, end))
        now_ms = await self.run(lambda end: server_time_ms(queue_shard.shard, end))
        await self.run(lambda end: recover(queue_shard, self.database, incarnation, now_ms - ABANDONED_MS, end))
        return incarnation


class Left:
    """How many jobs may still come back, over all shards. limit: None for all."""

    #: What one shard may take at once.
    _MOST: Final = 500 * RESTORES_AT_ONCE

    def __init__(self, limit: int | None) -> None:
        self._left = 2**62 if limit is None else limit

    def take(self) -> int:
        """Takes a part of it; 0 if nothing is left."""
        most = min(self._left, self._MOST)
        self._left -= most
        return most

    def give_back(self, count: int) -> None:
        """Gives back what was not used."""
        self._left += count


def share_out(total: int, held: dict[QueueShard, int]) -> dict[QueueShard, int]:
    """Divides a number by what each queue shard has, exactly."""
    shares: dict[QueueShard, int] = {}
    left, of = total, sum(held.values())
    for queue_shard, has in held.items():
        shares[queue_shard] = min(has, -(-left * has // of)) if of else 0
        left, of = left - shares[queue_shard], of - has
    return shares
