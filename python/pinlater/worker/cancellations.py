"""Stops handlers of running jobs that were removed, or that another worker holds by now.

A message on the channel of cancellations stops nothing by itself: its jobs are looked up first, since whoever may write
there may write anything.
Promises that a handler is cancelled once, that the end of a removed job is neither acked nor reported as stale, and
that a removal which was not heard is found when the subscription stands again: pub/sub keeps nothing.
Risk: a connection that dies without a word is noticed 25 s later; until then nothing is heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from pinlater.model.clocks import boot_s
from pinlater.model.errors import PinLaterError, QueueNotFound
from pinlater.model.jobs import Job
from pinlater.model.pauses import Pauses
from pinlater.store.keys import cancel_channel
from pinlater.worker.acker import Acker
from pinlater.worker.executor import Handler
from pinlater.worker.held_jobs import Held
from pinlater.worker.job_source import JobSource

log: Final = logging.getLogger("pinlater.worker")

#: So many are remembered, for jobs of a claim that is under way.
MAX_CANCELLATIONS: Final = 1_000

#: When it was heard (boot_s), the channel, ids.
_Cancellation: TypeAlias = tuple[float, bytes, set[int]]


class Cancellations:
    """handler: its method `cancel`, if it has one, gets each Job and returns True if it stops the job itself. All other
    async handlers are cancelled.
    """

    def __init__(self, handler: Handler, is_async: bool, acker: Acker) -> None:
        self._cancel: Callable[[Job], bool] | None = getattr(handler, "cancel", None)
        self._is_async = is_async
        self._acker = acker
        #: Jobs that are looked up, because they are said to be removed. None of them starts meanwhile.
        self.doubted: set[Held] = set()
        #: Removed and stale jobs whose handlers have not ended yet, and what reports each when it does.
        self.stopped: dict[Held, Callable[[Held], None]] = {}
        self._heard: deque[_Cancellation] = deque(maxlen=MAX_CANCELLATIONS)

    def hear(self, channel: bytes, packed: bytes, jobs: Iterable[Held]) -> set[Held]:
        """Jobs with these ids are said to be removed. packed: the ids, joined. Returns which of `jobs` to look up."""
        cancellation = _cancellation(channel, packed)
        self._heard.append(cancellation)
        return self._doubt(held for held in jobs if _is_of(held, cancellation))

    def _doubt(self, jobs: Iterable[Held]) -> set[Held]:
        doubted = {held for held in jobs if held not in self.doubted and held not in self.stopped}
        self.doubted |= doubted
        return doubted

    def stop_removed(
        self, channel: bytes, packed: bytes, running: Mapping[asyncio.Future[Any], Held], waiting: Iterable[Held]
    ) -> set[Held]:
        """Stops running jobs that were removed. packed: their ids, joined. Returns those of `waiting` that were."""
        cancellation = _cancellation(channel, packed)
        for future, held in [one for one in running.items() if _is_of(one[1], cancellation)]:
            if held not in self.stopped:
                self._stop(future, held, self._acker.removed)
        return {held for held in waiting if _is_of(held, cancellation)}

    def stop_stale(self, running: Mapping[asyncio.Future[Any], Held], descriptors: set[str]) -> None:
        """Stops running jobs with these descriptors whose lease is lost: nothing that they do still counts."""
        for future, held in list(running.items()):
            if held.lease.lost and held.job.descriptor in descriptors and held not in self.stopped:
                self._stop(future, held, self._acker.stale)

    def _stop(self, future: asyncio.Future[Any], held: Held, report: Callable[[Held], None]) -> None:
        self.stopped[held] = report
        if not self._stops_itself(held.job) and self._is_async:
            future.cancel()

    def _stops_itself(self, job: Job) -> bool:
        try:
            return self._cancel is not None and self._cancel(job)
        except Exception:  # the others must be stopped all the same
            log.exception("job %s: cancel() of its handler failed", job.descriptor, extra={"job": job})
            return False

    def among(self, waiting: Iterable[Held], sent_s: float) -> set[Held]:
        """Those of `waiting` to look up: they were said to be removed while their claim was under way.

        sent_s: when the claim was sent (boot_s); cancellations from before are forgotten.
        """
        while self._heard and self._heard[0][0] < sent_s:
            self._heard.popleft()
        heard = self._heard
        if not heard:
            return set()
        return self._doubt(held for held in waiting if any(_is_of(held, cancellation) for cancellation in heard))

    def ended(self, held: Held, future: asyncio.Future[Any]) -> bool:
        """Whether the handler that ended was stopped; then this reports its job."""
        report = self.stopped.pop(held, None)
        if report is None:
            return False
        if not future.cancelled():
            future.exception()  # so that asyncio does not log it
        report(held)
        return True


def _cancellation(channel: bytes, packed: bytes) -> _Cancellation:
    ids = {int.from_bytes(packed[at : at + 8], "big") for at in range(0, len(packed), 8)}
    return boot_s(), channel, ids


def _is_of(held: Held, cancellation: _Cancellation) -> bool:
    job = held.job
    return job.id in cancellation[2] and cancel_channel(job.queue, job.shard) == cancellation[1]


async def find_missed(
    source: JobSource,
    jobs: Iterable[Job],
    report: Callable[[bytes, bytes], None],
    there: Callable[[set[str]], None] | None = None,
) -> None:
    """Looks the jobs up until that is answered, and reports removed ones.

    report: gets the channel and the ids, joined.
    there: gets the descriptors of the others.
    """
    queue_shards: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        queue_shards.setdefault((job.queue, job.shard), []).append(job)
    await asyncio.gather(
        *(_find_missed_at(source, queue_shard, held, report, there) for queue_shard, held in queue_shards.items())
    )


async def _find_missed_at(
    source: JobSource,
    queue_shard: tuple[str, str],
    jobs: list[Job],
    report: Callable[[bytes, bytes], None],
    there: Callable[[set[str]], None] | None,
) -> None:
    pauses = Pauses()
    while True:
        try:
            found = await source.existing(jobs)
        except QueueNotFound:
            return  # its jobs are refused when they end, as they are where the subscription stood
        except PinLaterError as error:
            log.warning("%d jobs not looked up yet, trying again in %.1f s: %s", len(jobs), pauses.next_s, error)
        else:
            break
        await asyncio.sleep(pauses.take())
    if removed := [job.id.to_bytes(8, "big") for job in jobs if job.descriptor not in found]:
        report(cancel_channel(*queue_shard), b"".join(removed))
    if there is not None:
        there(found)
