"""Reports the ends of a worker's jobs: results, acks and postponements in batches, and releases.

Promises that an ack is tried until it is answered, and that one ack is under way a queue shard: an outage of a server
holds up its own jobs only. Jobs that end meanwhile go with the next ack. An end that no server takes fails its own job,
with the reason.
Risk: at a stop, a job that is not acked in time runs again once its lease is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from pinlater._core import MAX_STATUS_BYTES
from pinlater.model.errors import PinLaterError
from pinlater.model.jobs import Ack, Checkpoint
from pinlater.model.text import describe
from pinlater.operations.enqueue import CALL_JOBS
from pinlater.operations.parts import in_parts
from pinlater.store.shards import QueueShard
from pinlater.worker.executor import End, Failed, Postponed, Succeeded
from pinlater.worker.failed_jobs import OnFailed, log_failed
from pinlater.worker.held_jobs import Held
from pinlater.worker.job_source import JobSource
from pinlater.worker.lease_renewal import LeaseRenewal
from pinlater.worker.persistent_call import PersistentCall
from pinlater.worker.stats import WorkerStats

log: Final = logging.getLogger("pinlater.worker")

_Ended: TypeAlias = tuple[Held, End]
#: Jobs that are not acked: because the worker does not hold them (None), or because no server takes their end (why).
_Out: TypeAlias = dict[Held, Exception | None]

#: Jobs that take no time are acked so many at once, if they end within so long: small calls cost a job more CPU.
GATHERED: Final = 200
GATHER_S: Final = 0.005
#: From the end of a job to the end of one that starts in its slot: so many turns of the loop, if both take no time.
_TURNS: Final = 3

#: Of the reason why an end was not taken, in the custom status: so that a few attempts fit.
_REASON_BYTES: Final = MAX_STATUS_BYTES // 3


def _size(ended: _Ended) -> int:
    """The bytes that an end sends, about."""
    end = ended[1]
    sent: Any = b""
    if isinstance(end, Succeeded):
        sent = end.result
    elif isinstance(end, Postponed):
        sent = end.body
    elif isinstance(end, Failed):
        sent = end.status
    return len(sent) if isinstance(sent, bytes | str) else 0


class Acker:
    """changed: called when fewer jobs wait for their ack. on_failed: see Worker."""

    def __init__(
        self,
        source: JobSource,
        renewal: LeaseRenewal,
        stats: WorkerStats,
        retry_delay_ms: int,
        changed: Callable[[], None],
        on_failed: OnFailed = log_failed,
    ) -> None:
        self._source = source
        self._lease_renewal = renewal
        self._stats = stats
        self._retry_delay_ms = retry_delay_ms
        self._changed, self._on_failed = changed, on_failed
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
        batches = [batch for held in queue_shards.values() for batch in in_parts(held, lambda _: 0)]
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
        out: _Out = {}
        await self._step(self._release, [(one, None) for one in held], out)
        for one in held:
            if one not in out:
                self._lease_renewal.done(one.lease)
                self._stats.released += 1
            elif (why := out[one]) is not None:
                self._abandon(one, why)
            else:
                self._lease_renewal.done(one.lease)
                self.stale(one)

    async def _release(self, ended: list[_Ended]) -> list[Any]:
        return await self._source.release([held.job for held, _ in ended])

    async def _flush(self, queue_shard: QueueShard) -> None:
        """Acks what has ended, batch by batch, until nothing is left."""
        try:
            while ended := await self._gathered(queue_shard):
                self._acking[queue_shard] = ended
                for first in range(0, len(ended), CALL_JOBS):
                    batch = ended[first : first + CALL_JOBS]
                    await self._settle(batch)
                    self.count -= len(batch)
                    self._changed()
        finally:
            del self._flushing[queue_shard]
            self._acking.pop(queue_shard, None)

    async def _gathered(self, queue_shard: QueueShard) -> list[_Ended]:
        """What has ended. It waits for more while more ends come at once, up to many or for a short time."""
        seen, quiet, end_s = 0, 0, time.monotonic() + GATHER_S
        while 0 < (count := self._ended_at(queue_shard)) < GATHERED and quiet < _TURNS and time.monotonic() < end_s:
            seen, quiet = count, quiet + 1 if count == seen else 0
            await asyncio.sleep(0)
        return self._ended.pop(queue_shard, [])

    def _ended_at(self, queue_shard: QueueShard) -> int:
        return len(self._ended.get(queue_shard, ()))

    async def _settle(self, batch: list[_Ended], *, again: bool = False) -> _Out:
        """Acks jobs. Returns those whose end was not taken.

        Checkpoints and results go before the acks, which cannot express them. Each is one script call, or several if
        they are many bytes.

        again: these ends take the place of ends that no server took.
        """
        live = [one for one in batch if not one[0].lease.lost]
        out: _Out = {}
        for held, _ in batch:
            if held.lease.lost:
                out[held] = None
                self.stale(held)
        special = [one for one in live if one[1] is not None]
        if special:
            await self._step(self._checkpoint, [one for one in special if _checkpoint(*one) is not None], out, _size)
            await self._step(self._store, [one for one in special if isinstance(one[1], Succeeded)], out, _size)
            await self._step(self._ack, [one for one in live if not isinstance(one[1], Postponed)], out, _size)
            await self._notify([one for one in special if one[0] not in out])
        else:
            await self._step(self._ack, live, out)
        rejected: list[tuple[Held, End, Exception]] = []
        for held, end in live:
            if held not in out:
                self._count(held, end)
            elif (why := out[held]) is not None:
                rejected.append((held, end, why))
            else:
                self._lease_renewal.done(held.lease)
                self.stale(held)
        if rejected:
            await self._fail_rejected(rejected, again)
        return out

    async def _step(
        self,
        call: Callable[[list[_Ended]], Awaitable[list[Any]]],
        ended: list[_Ended],
        out: _Out,
        size: Callable[[_Ended], int] | None = None,
    ) -> None:
        """Makes a call for those that are not out yet, and adds those that it puts out."""
        ended = [one for one in ended if one[0] not in out] if out else ended
        if ended:
            answer = await PersistentCall(call, _refused_of, self._answers, size).run(ended)
            out.update(dict.fromkeys(held for held, _ in answer.refused))
            out.update({held: why for (held, _), why in answer.rejected})

    async def _answers(self, ended: _Ended) -> bool:
        """Whether the server of a job answers a small request."""
        try:
            await self._source.renew([ended[0].job])
        except PinLaterError:
            return False
        return True

    async def _fail_rejected(self, rejected: list[tuple[Held, End, Exception]], again: bool) -> None:
        """Fails jobs whose ends no server takes, with the reason."""
        if again:
            for held, _, why in rejected:
                self._abandon(held, why)
            return
        for held, _, why in rejected:
            text = "job %s: no server takes its end, so its attempt failed: %s"
            log.error(text, held.job.descriptor, describe(why, _REASON_BYTES), extra={"job": held.job})
        out = await self._settle([(held, _failed(end, why)) for held, end, why in rejected], again=True)
        for held, end, why in rejected:
            # its handler did not say that it failed, and this was its last attempt
            if held not in out and not isinstance(end, Failed) and held.job.attempts_remaining <= 1:
                self._on_failed([held.job.descriptor], why)

    def _abandon(self, held: Held, why: Exception) -> None:
        """Renews the lease of this job no more: it runs again when that has run out."""
        self._lease_renewal.limit(held.lease, held.job, 0.0)
        self._lease_renewal.done(held.lease)
        self._stats.stale += 1
        text = "job %s: no server takes its end; it runs again when its lease runs out: %s"
        log.error(text, held.job.descriptor, describe(why, _REASON_BYTES), extra={"job": held.job})

    async def _store(self, ended: list[_Ended]) -> list[Any]:
        """Keeps results before the ack ends the claim, which proves the right to keep them. Returns refused jobs.

        If the process dies between the two, the job runs again, and its next result replaces this one.
        """
        kept = [(held.job, end.result, end.keep_ms) for held, end in ended if isinstance(end, Succeeded)]
        return await self._source.store_results(kept)

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

    async def _checkpoint(self, ended: list[_Ended]) -> list[Any]:
        """Enqueues postponed jobs again, and leaves one attempt to those that failed for good. Returns refused ones.

        If the process dies before the ack, that last attempt ends with the lease.
        """
        return await self._source.checkpoint([made for one in ended if (made := _checkpoint(*one)) is not None])

    async def _ack(self, ended: list[_Ended]) -> list[Any]:
        """Returns refused ones."""
        good = [held.job for held, end in ended if end is None or isinstance(end, Succeeded)]
        bad = [
            Ack(held.job, end.status, self._retry_delay_ms if end.delay_ms is None else end.delay_ms)
            for held, end in ended
            if isinstance(end, Failed)
        ]
        return await self._source.ack(good, bad)

    def _count(self, held: Held, end: End) -> None:
        self._lease_renewal.done(held.lease)
        if end is None or isinstance(end, Succeeded):
            self._stats.succeeded += 1
        elif isinstance(end, Failed):
            self._stats.failed += 1
        else:
            self._stats.postponed += 1


def _checkpoint(held: Held, end: End) -> Checkpoint | None:
    if isinstance(end, Postponed):
        return Checkpoint(job=held.job, body=end.body, move_to_pending=True, delay_ms=end.delay_ms)
    if isinstance(end, Failed) and end.final and held.job.attempts_remaining > 1:
        return Checkpoint(job=held.job, attempts=1)
    return None


def _failed(end: End, why: Exception) -> Failed:
    """The end of an attempt whose own end no server takes."""
    awaited = isinstance(end, Succeeded) or (isinstance(end, Failed) and end.awaited)
    return Failed(f"its end was not taken: {describe(why, _REASON_BYTES)}\n", awaited=awaited)


def _refused_of(ended: list[_Ended], refused: list[Any]) -> list[_Ended]:
    """refused: jobs, acks or checkpoints."""
    ids = {id(item.job if isinstance(item, Ack | Checkpoint) else item) for item in refused}
    return [one for one in ended if id(one[0].job) in ids] if ids else []
