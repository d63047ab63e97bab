"""Running jobs that somebody removed, or that are somebody else's by now: the worker that runs them stops what it can.

Promises that a handler is told once, that the end of a removed job is neither acked nor reported as stale, and that
what was removed while the subscription was lost is found when it stands again: pub/sub keeps nothing. Risks: a
connection that ends without a word is noticed 25 s later (see Subscription); until then nothing is heard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from pinlater.model.backoff import Pauses
from pinlater.model.errors import PinLaterError, QueueNotFound
from pinlater.model.jobs import Job
from pinlater.store.keys import cancel_channel
from pinlater.worker.acker import Acker
from pinlater.worker.executor import Handler
from pinlater.worker.held_jobs import Held
from pinlater.worker.job_source import JobSource

log: Final = logging.getLogger("pinlater.worker")

#: So many are remembered for the claim under way.
MAX_CANCELLATIONS: Final = 1_000

#: When it was heard (monotonic s), on which channel, ids.
_Cancellation: TypeAlias = tuple[float, bytes, set[int]]


class Cancellations:
    """handler: its method `cancel`, if it has one, gets each Job first, and returns True where it sees to it; what is
    left of async handlers is cancelled.
    """

    def __init__(self, handler: Handler, is_async: bool, ending: Acker) -> None:
        self._cancel: Callable[[Job], bool] | None = getattr(handler, "cancel", None)
        self._is_async = is_async
        self._acker = ending
        #: Removed jobs, and stale ones, whose handlers have not ended yet, and what their end is told to.
        self.stopped: dict[Held, Callable[[Held], None]] = {}
        self._heard: deque[_Cancellation] = deque(maxlen=MAX_CANCELLATIONS)

    def hear(
        self, channel: bytes, packed: bytes, running: Mapping[asyncio.Future[Any], Held], waiting: Iterable[Held]
    ) -> set[Held]:
        """Ids, joined, of running jobs that were removed: those that run here stop. Returns those that wait here."""
        ids = {int.from_bytes(packed[at : at + 8], "big") for at in range(0, len(packed), 8)}
        cancellation = (time.monotonic(), channel, ids)
        self._heard.append(cancellation)
        for future, held in [one for one in running.items() if _is_of(one[1], cancellation)]:
            if held not in self.stopped:
                self._stop(future, held, self._acker.removed)
        return {held for held in waiting if _is_of(held, cancellation)}

    def stop_stale(self, running: Mapping[asyncio.Future[Any], Held], descriptors: set[str]) -> None:
        """Running jobs that are somebody else's by now stop too: nothing that they do still counts."""
        for future, held in list(running.items()):
            if held.lease.lost and held.job.descriptor in descriptors and held not in self.stopped:
                self._stop(future, held, self._acker.stale)

    def _stop(self, future: asyncio.Future[Any], held: Held, told: Callable[[Held], None]) -> None:
        self.stopped[held] = told
        if not (self._cancel is not None and self._cancel(held.job)) and self._is_async:
            future.cancel()

    def among(self, waiting: Iterable[Held], sent_s: float) -> set[Held]:
        """Which of the jobs that are held unstarted were removed while the claim that gave them was under way.

        sent_s: when that was sent; what was heard before is forgotten.
        """
        while self._heard and self._heard[0][0] < sent_s:
            self._heard.popleft()
        heard = self._heard
        return (
            {held for held in waiting if any(_is_of(held, cancellation) for cancellation in heard)} if heard else set()
        )

    def ended(self, held: Held, future: asyncio.Future[Any]) -> bool:
        """Whether the handler that ended was one of a job that was stopped; then there is nothing more to do."""
        told = self.stopped.pop(held, None)
        if told is None:
            return False
        if not future.cancelled():
            future.exception()  # nobody asks for it any more
        told(held)
        return True


def _is_of(held: Held, cancellation: _Cancellation) -> bool:
    job = held.job
    return job.id in cancellation[2] and cancel_channel(job.queue, job.shard) == cancellation[1]


async def find_missed(
    source: JobSource,
    jobs: Iterable[Job],
    tell: Callable[[bytes, bytes], None],
    there: Callable[[set[str]], None] | None = None,
) -> None:
    """Looks the jobs up, until it is answered, and tells of those that are gone what their channel would have told.

    there: gets descriptors of the others.
    """
    queue_shards: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        queue_shards.setdefault((job.queue, job.shard), []).append(job)
    await asyncio.gather(
        *(_find_missed_at(source, queue_shard, held, tell, there) for queue_shard, held in queue_shards.items())
    )


async def _find_missed_at(
    source: JobSource,
    queue_shard: tuple[str, str],
    jobs: list[Job],
    tell: Callable[[bytes, bytes], None],
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
    if gone := [job.id.to_bytes(8, "big") for job in jobs if job.descriptor not in found]:
        tell(cancel_channel(*queue_shard), b"".join(gone))
    if there is not None:
        there(found)
