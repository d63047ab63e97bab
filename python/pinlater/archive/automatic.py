"""Moves jobs by itself: above the high mark of a queue jobs leave Redis, below the low mark they come back, and jobs
that are due later than the horizon wait in the archive.

Promises that one look after the other works on a queue shard, and that while MySQL is away nothing but archiving waits:
the log says so once, and once when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pinlater.archive.archiver import Archiver, Left, share_out
from pinlater.archive.batches import Range, count_in
from pinlater.archive.moves import moves_of
from pinlater.archive.purge import purge
from pinlater.archive.restores import END_MS, Wanted
from pinlater.archive.status import count_due
from pinlater.model.errors import PinLaterError
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.inspect import count_at, server_time_ms
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.archive_schema import require_schema
from pinlater.store.shards import QueueShard

log: Final = logging.getLogger("pinlater.archive")

#: A spill goes on until so much of the high mark is left, so that it does not begin again at once.
SPILL_DOWN_TO: Final = 0.9
#: A job that waits for its time is back when so much of the horizon is left.
BACK_AT: Final = 0.5
#: The end of a look takes so long at most: less than a process has after a stop signal.
STOP_S: Final = 5.0


@dataclass(slots=True)
class _Work:
    """What runs for a queue shard. trouble: why the last look failed, as the log says; its kind alone counts."""

    task: asyncio.Task[None] | None = None
    trouble: type[PinLaterError] | None = None


@dataclass(slots=True)
class AutomaticArchiver:
    """Archives the queues whose configuration says so, and ends what commands left open on others.

    archiver: does the work.
    """

    archiver: Archiver
    _works: dict[QueueShard, _Work] = field(default_factory=dict)

    def look_at(self, queue_shard: QueueShard) -> None:
        """Begins a look at a queue shard in the background, unless the one before goes on."""
        if queue_shard.stored is None:
            return
        work = self._works.setdefault(queue_shard, _Work())
        if work.task is None or work.task.done():
            work.task = asyncio.create_task(self._look(queue_shard, work), name=f"pinlater-archive-{queue_shard.queue}")

    async def idle(self) -> None:
        """Waits until no look is under way."""
        await asyncio.gather(*(work.task for work in self._works.values() if work.task is not None))

    async def stop(self) -> None:
        """Ends the looks under way, in order: they begin no further batch or restore. Those that take longer than
        STOP_S, as MySQL is silent, are cut off.
        """
        self.archiver.stopping.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.idle()

    async def _look(self, queue_shard: QueueShard, work: _Work) -> None:
        assert queue_shard.stored is not None
        try:
            await (self._move if queue_shard.stored.config.is_archived else self._end_batches)(queue_shard)
        except PinLaterError as error:
            if work.trouble is not type(error):
                log.warning("%s: archiving waits: %s", queue_shard, error)
            work.trouble = type(error)
        except Exception:
            log.exception("%s: the archiver met an unexpected error", queue_shard)
        else:
            if work.trouble is not None:
                log.info("%s: archiving goes on", queue_shard)
            work.trouble = None

    async def _move(self, queue_shard: QueueShard) -> None:
        """One look: ends what is open, then moves what the marks and the horizon say.

        It looks at the tables first: somebody may have migrated them since.
        """
        await self.archiver.run(lambda _: require_schema(self.archiver.database))
        await self.archiver.prepare(queue_shard)
        assert queue_shard.stored is not None
        config = queue_shard.stored.config
        await self._beyond_horizon(queue_shard, config)
        excess = await self._excess(queue_shard, config)
        if excess > 0:
            await self._spill(queue_shard, config, excess)
        elif excess < 0:
            await self._restore(queue_shard, config, -excess)
        await self.archiver.run(lambda _: purge(self.archiver.database))

    async def _end_batches(self, queue_shard: QueueShard) -> None:
        """A look at a queue without marks: ends what a command left open, as nobody can claim the jobs of a batch."""
        moves = await self.archiver.run(lambda end: moves_of(queue_shard, end))
        if moves.batches:
            await self.archiver.prepare(queue_shard)

    async def _excess(self, queue_shard: QueueShard, config: QueueConfig) -> int:
        """How many jobs of this queue shard are to leave; below 0: how many are to come back."""
        run, session = self.archiver.run, self.archiver.session
        queue_shards = await run(lambda end: known_queue_shards(session, queue_shard.queue, end))
        pending = {each: await self._pending(each) for each in queue_shards}
        total = sum(pending.values())
        if config.spill_above is not None and total > config.spill_above:
            target = max(config.restore_below or 0, int(config.spill_above * SPILL_DOWN_TO))
            return share_out(total - target, pending).get(queue_shard, 0)
        if config.restore_below is not None and total < config.restore_below:
            room = config.restore_below - total
            archived = {each: await self._archived(each, config, room) for each in queue_shards}
            room = min(room, sum(archived.values()))
            return -share_out(room, archived).get(queue_shard, 0)
        return 0

    async def _pending(self, queue_shard: QueueShard) -> int:
        counts = await self.archiver.run(lambda end: count_at(queue_shard, end))
        return sum(each.pending + each.scheduled for each in counts)

    async def _archived(self, queue_shard: QueueShard, config: QueueConfig, most: int) -> int:
        """How many archived jobs may come back, at most `most`."""
        database, back_ms = self.archiver.database, await self._back_ms(queue_shard, config)
        return await self.archiver.run(
            lambda end: count_due(queue_shard, database, config.priorities, back_ms, most, end)
        )

    async def _back_ms(self, queue_shard: QueueShard, config: QueueConfig) -> int:
        """Jobs that are due later than this would leave again."""
        if config.horizon_ms is None:
            return END_MS
        now_ms = await self.archiver.run(lambda end: server_time_ms(queue_shard.shard, end))
        return now_ms + int(config.horizon_ms * BACK_AT)

    async def _spill(self, queue_shard: QueueShard, config: QueueConfig, limit: int) -> None:
        priorities = range(config.priorities, 0, -1)
        ranges = [Range(priority, line) for line in ("scheduled", "ready") for priority in priorities]
        log.info("%s: more than %d jobs wait, so %d move to the archive", queue_shard, config.spill_above, limit)
        await self.archiver.spill_ranges(queue_shard, ranges, limit)

    async def _restore(self, queue_shard: QueueShard, config: QueueConfig, limit: int) -> None:
        log.info("%s: fewer than %d jobs wait, so %d come back", queue_shard, config.restore_below, limit)
        back_ms = await self._back_ms(queue_shard, config)
        wanted = [Wanted(priority, back_ms) for priority in range(1, config.priorities + 1)]
        await self.archiver.restore_wanted(queue_shard, wanted, Left(limit))

    async def _beyond_horizon(self, queue_shard: QueueShard, config: QueueConfig) -> None:
        """Moves jobs by their times: away if they are due later, back if they are due soon."""
        if config.horizon_ms is None:
            return
        now_ms = await self.archiver.run(lambda end: server_time_ms(queue_shard.shard, end))
        first = f"({now_ms + config.horizon_ms}"
        ranges = [Range(priority, "scheduled", first=first) for priority in range(config.priorities, 0, -1)]
        if beyond := await self.archiver.run(lambda end: count_in(queue_shard, ranges, end)):
            await self.archiver.spill_ranges(queue_shard, ranges, beyond)
        back_ms, least_ms, room = await self._back_ms(queue_shard, config), 0, None
        if config.spill_above is not None:
            if config.restore_below is not None:  # it brings back those that are due
                least_ms = now_ms
            room = max(0, int(config.spill_above * SPILL_DOWN_TO) - await self._pending(queue_shard))
        wanted = [Wanted(priority, back_ms, least_ms) for priority in range(1, config.priorities + 1)]
        await self.archiver.restore_wanted(queue_shard, wanted, Left(room))
