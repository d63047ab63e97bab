"""Running jobs that somebody removed: the worker that holds them stops what it can.

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

from pinlater.async_client import AsyncClient
from pinlater.ending import FIRST_RETRY_S, LAST_RETRY_S, Ending, Held
from pinlater.errors import PinLaterError, QueueNotFound
from pinlater.handlers import Handler
from pinlater.jobs import Job
from pinlater.keys import gone_channel

log: Final = logging.getLogger("pinlater.worker")

#: So many are remembered for the claim under way.
MAX_REMOVALS: Final = 1_000

#: When it was heard (monotonic s), on which channel, ids.
_Removal: TypeAlias = tuple[float, bytes, set[int]]


class Removals:
    """handler: its method `cancel`, if it has one, gets each Job first, and returns True where it sees to it; what is
    left of async handlers is cancelled.
    """

    def __init__(self, handler: Handler, is_async: bool, ending: Ending) -> None:
        self._cancel: Callable[[Job], bool] | None = getattr(handler, "cancel", None)
        self._is_async = is_async
        self._ending = ending
        #: Removed jobs whose handlers have not ended yet.
        self.stopped: set[Held] = set()
        self._heard: deque[_Removal] = deque(maxlen=MAX_REMOVALS)

    def hear(
        self, channel: bytes, packed: bytes, running: Mapping[asyncio.Future[Any], Held], waiting: Iterable[Held]
    ) -> set[Held]:
        """Ids, joined, of running jobs that were removed: those that run here stop. Returns those that wait here."""
        ids = {int.from_bytes(packed[at : at + 8], "big") for at in range(0, len(packed), 8)}
        removal = (time.monotonic(), channel, ids)
        self._heard.append(removal)
        for future, held in [one for one in running.items() if _is_of(one[1], removal)]:
            if held not in self.stopped:
                self.stopped.add(held)
                if not (self._cancel is not None and self._cancel(held.job)) and self._is_async:
                    future.cancel()
        return {held for held in waiting if _is_of(held, removal)}

    def among(self, waiting: Iterable[Held], sent_s: float) -> set[Held]:
        """Which of the jobs that are held unstarted were removed while the claim that gave them was under way.

        sent_s: when that was sent; what was heard before is forgotten.
        """
        while self._heard and self._heard[0][0] < sent_s:
            self._heard.popleft()
        heard = self._heard
        return {held for held in waiting if any(_is_of(held, removal) for removal in heard)} if heard else set()

    def ended(self, held: Held, future: asyncio.Future[Any]) -> bool:
        """Whether the handler that ended was one of a removed job; then there is nothing more to do."""
        if held not in self.stopped:
            return False
        self.stopped.discard(held)
        if not future.cancelled():
            future.exception()  # nobody asks for it any more
        self._ending.removed(held)
        return True


def _is_of(held: Held, removal: _Removal) -> bool:
    job = held.job
    return job.id in removal[2] and gone_channel(job.queue, job.shard) == removal[1]


async def find_missed(client: AsyncClient, jobs: Iterable[Job], tell: Callable[[bytes, bytes], None]) -> None:
    """Looks the jobs up, until it is answered, and tells of those that are gone what their channel would have told."""
    places: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        places.setdefault((job.queue, job.shard), []).append(job)
    await asyncio.gather(*(_find_missed_at(client, place, held, tell) for place, held in places.items()))


async def _find_missed_at(
    client: AsyncClient, place: tuple[str, str], jobs: list[Job], tell: Callable[[bytes, bytes], None]
) -> None:
    pause_s = FIRST_RETRY_S
    while True:
        try:
            found = await client.lookup([job.descriptor for job in jobs])
        except QueueNotFound:
            return  # its jobs are refused when they end, as they are where the subscription stood
        except PinLaterError as error:
            log.warning("%d jobs not looked up yet, trying again in %.1f s: %s", len(jobs), pause_s, error)
        else:
            break
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_RETRY_S)
    if gone := [job.id.to_bytes(8, "big") for job in jobs if job.descriptor not in found]:
        tell(gone_channel(*place), b"".join(gone))
