"""Reports the ends of a worker's jobs: results, acks and postponements in batches, and releases.

Promises that an ack is tried until it is answered, and that one ack is under way a queue shard: an outage of a server
holds up its own jobs only. Jobs that end meanwhile go with the next ack.
Risk: at a stop, a job that is not acked in time runs again once its lease is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from pinlater.model.errors import OutcomeUnknown, PinLaterError, QueueNotFound
from pinlater.model.jobs import Ack, Checkpoint, Job
from pinlater.model.pauses import Pauses
from pinlater.operations.enqueue import CALL_JOBS
from pinlater.store.shards import QueueShard
from pinlater.worker.executor import End, Failed, Postponed, Succeeded
from pinlater.worker.held_jobs import Held
from pinlater.worker.job_source import JobSource
from pinlater.worker.lease_renewal import LeaseRenewal
from pinlater.worker.stats import WorkerStats

log: Final = logging.getLogger("pinlater.worker")

_Ended: TypeAlias = tuple[Held, End]
_Item = TypeVar("_Item")


class Acker:
    """changed: called when fewer jobs wait for their ack."""

    def __init__(
        self,
        source: JobSource,
        renewal: LeaseRenewal,
        stats: WorkerStats,
        retry_delay_ms: int,
        changed: Callable[[], None],
    ) -> None:
        self._source = source
        self._lease_renewal = renewal
        self._stats = stats
        self._retry_delay_ms = retry_delay_ms
        self._changed = changed
        self._ended: dict[QueueShard, list[_Ended]] = {}
        self._acking: dict[QueueShard, list[_Ended]] = {}
        self._flushing: dict[QueueShard, asyncio.Task[None]] = {}
        #: Jobs that wait for their ack.
        self.count = 0

    def end(self, held: Held, end: End) -> None:
        """Acks a job with the next batch of its queue shard."""
        queue_shard = held.lease.queue_shard
        self._ended.setdefault(queue_shard, []).append((held, end))
        self.count += 1
        if queue_shard not in self._flushing:
            self._flushing[queue_shard] = asyncio.get_running_loop().create_task(self._flush(queue_shard))

    def unacked(self) -> list[Held]:
        """Jobs that ended and are not acked; an ack under way counts as none."""
        return [held for part in (self._ended, self._acking) for ended in part.values() for held, _ in ended]

    async def drain(self) -> None:
        """Until every ended job is acked."""
        while self._flushing:
            await asyncio.wait(self._flushing.values())

    async def close(self, timeout_s: float) -> None:
        """As drain, for so long; jobs that are not acked then run again."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.drain()
        except TimeoutError:
            log.error("%d ended jobs not acked in time; they run again when their leases run out", self.count)
            for task in self._flushing.values():
                task.cancel()
            await self.drain()

    async def release(self, held: Iterable[Held]) -> None:
        """Releases jobs that did not end."""
        queue_shards: dict[QueueShard, list[Held]] = {}
        for one in held:
            if one.lease.lost:
                self.stale(one)
            else:
                queue_shards.setdefault(one.lease.queue_shard, []).append(one)
        batches = [batch for held in queue_shards.values() for batch in _batches(held)]
        try:
            await asyncio.gather(*map(self._release_at, batches))
        except asyncio.CancelledError:
            count = sum(map(len, batches))
            log.error("%d jobs not released in time; they run again when their leases run out", count)
            raise

    def removed(self, held: Held) -> None:
        """The job was removed while the worker held it: there is nothing to ack."""
        self._lease_renewal.done(held.lease)
        self._stats.cancelled += 1
        log.info("job %s: it was removed, and is not run any further", held.job.descriptor)

    def stale(self, held: Held) -> None:
        """Logs and counts a job that this worker does not hold any more."""
        self._stats.stale += 1
        log.warning(
            "job %s: its claim went stale, so it is not acked here; unless it was removed, it runs again",
            held.job.descriptor,
            extra={"job": held.job},
        )

    async def _release_at(self, held: list[Held]) -> None:
        jobs = [one.job for one in held]
        refused = {id(job) for job in await self._persist(lambda: self._source.release(jobs), jobs)}
        for one in held:
            self._lease_renewal.done(one.lease)
            if id(one.job) in refused:
                self.stale(one)
            else:
                self._stats.released += 1

    async def _flush(self, queue_shard: QueueShard) -> None:
        """Acks what has ended, batch by batch, until nothing is left."""
        try:
            await asyncio.sleep(0)  # jobs that end in this turn of the loop share the first batch
            while ended := self._ended.pop(queue_shard, None):
                self._acking[queue_shard] = ended
                for batch in _batches(ended):
                    await self._settle(batch)
                    self.count -= len(batch)
                    self._changed()
        finally:
            del self._flushing[queue_shard]
            self._acking.pop(queue_shard, None)

    async def _settle(self, batch: list[_Ended]) -> None:
        """Checkpoints and results go before the acks, which cannot express them. Each is one script call."""
        live = [one for one in batch if not one[0].lease.lost]
        for held, _ in batch:
            if held.lease.lost:
                self.stale(held)
        special = [one for one in live if one[1] is not None]
        refused = await self._checkpoint(special) | await self._store(special) if special else set()
        refused |= await self._ack([one for one in live if id(one[0].job) not in refused])
        if special:
            await self._notify(special)
        for held, end in live:
            self._count(held, end, id(held.job) in refused)

    async def _store(self, special: list[_Ended]) -> set[int]:
        """Keeps results before the ack ends the claim, which proves the right to keep them. Returns refused jobs.

        If the process dies between the two, the job runs again, and its next result replaces this one.
        """
        kept = [(held.job, end.result, end.keep_ms) for held, end in special if isinstance(end, Succeeded)]
        if not kept:
            return set()
        jobs = [job for job, _, _ in kept]
        return {id(job) for job in await self._persist(lambda: self._source.store_results(kept), jobs)}

    async def _notify(self, special: list[_Ended]) -> None:
        """Notifies clients that wait for results of jobs that failed for good."""
        failed = [
            held.job.descriptor
            for held, end in special
            if isinstance(end, Failed) and end.awaited and (end.final or held.job.attempts_remaining <= 1)
        ]
        if failed:
            with suppress(PinLaterError):  # they look for themselves from time to time
                await self._source.notify_failed(failed)

    async def _checkpoint(self, live: list[_Ended]) -> set[int]:
        """Enqueues postponed jobs again, and leaves one attempt to those that failed for good. Returns refused jobs.

        If the process dies before the ack, that last attempt ends with the lease.
        """
        checkpoints = [
            made for held, end in live if end is not None and (made := _checkpoint(held.job, end)) is not None
        ]
        if not checkpoints:
            return set()
        refused = await self._persist(lambda: self._source.checkpoint(checkpoints), checkpoints)
        return {id(checkpoint.job) for checkpoint in refused}

    async def _ack(self, live: list[_Ended]) -> set[int]:
        """Returns refused jobs."""
        good = [held.job for held, end in live if end is None or isinstance(end, Succeeded)]
        bad = [
            Ack(held.job, end.status, self._retry_delay_ms if end.delay_ms is None else end.delay_ms)
            for held, end in live
            if isinstance(end, Failed)
        ]
        if not good and not bad:
            return set()
        refused = await self._persist(lambda: self._source.ack(good, bad), [*good, *bad])
        return {id(item.job if isinstance(item, Ack) else item) for item in refused}

    def _count(self, held: Held, end: End, refused: bool) -> None:
        self._lease_renewal.done(held.lease)
        if refused:
            self.stale(held)
        elif end is None or isinstance(end, Succeeded):
            self._stats.succeeded += 1
        elif isinstance(end, Failed):
            self._stats.failed += 1
        else:
            self._stats.postponed += 1

    async def _persist(self, call: Callable[[], Awaitable[list[Any]]], items: list[Any]) -> list[Any]:
        """Makes a call until it is answered, however long the server is away; returns refused items."""
        pauses = Pauses()
        resolve: Callable[[], Any] | None = None
        why: PinLaterError
        while True:
            try:
                refused: list[Any] = await (resolve or call)()
                return refused
            except OutcomeUnknown as error:
                resolve, why = error.resolve, error
            except QueueNotFound:
                return items  # the queue was deleted, and its jobs with it
            except PinLaterError as error:
                resolve, why = None, error
            pause_s = pauses.take()
            log.warning("%d jobs not acked yet, trying again in %.1f s: %s", len(items), pause_s, why)
            await asyncio.sleep(pause_s)


def _checkpoint(job: Job, end: Failed | Postponed | Succeeded) -> Checkpoint | None:
    if isinstance(end, Succeeded):
        return None
    if isinstance(end, Postponed):
        return Checkpoint(job=job, body=end.body, move_to_pending=True, delay_ms=end.delay_ms)
    return Checkpoint(job=job, attempts=1) if end.final and job.attempts_remaining > 1 else None


def _batches(items: list[_Item]) -> Iterator[list[_Item]]:
    """Each is one script call, so that it applies to all of its jobs or to none."""
    return (items[first : first + CALL_JOBS] for first in range(0, len(items), CALL_JOBS))
