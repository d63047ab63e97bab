"""Worker processes that died: what they held is given back at once, with how they ended as evidence.

Promises that only leases of that very process end: its claims carry a mark that its supervisor made for it alone.
Risks: where the servers do not answer in time, or the supervisor dies too, the leases run out by themselves, without
evidence.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from pinlater.async_client import AsyncClient
from pinlater.errors import PinLaterError, QueueNotFound
from pinlater.exchange import write
from pinlater.flows import Flow
from pinlater.process import Process, how
from pinlater.queues import known_places
from pinlater.shards import QueueShard

log: Final = logging.getLogger("pinlater.supervisor")

#: How long a supervisor that stops waits for what is under way.
LAST_S: Final = 2.0
_COUNTS: Final = struct.Struct(">IIIB")


class Deaths:
    """make: a client for the supervisor's loop. queues: what its processes work on."""

    def __init__(self, make: Callable[[], AsyncClient], queues: Sequence[str]) -> None:
        self._make = make
        self._queues: dict[str, None] = dict.fromkeys(queues)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, queues: Sequence[str]) -> None:
        """Its processes work on these too, from now on."""
        self._queues |= dict.fromkeys(queues)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Around the supervisor's run, on its loop."""
        async with self._make() as self._client:
            try:
                yield
            finally:
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=LAST_S)
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def __call__(self, process: Process, code: int) -> None:
        """That process ended with this code."""
        task = asyncio.get_running_loop().create_task(self._end(process, how(code)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, process: Process, told: str) -> None:
        for queue in list(self._queues):
            try:
                await self._end_in(queue, process, told)
            except QueueNotFound:
                continue
            except PinLaterError as error:
                log.warning("queue %s: what process %d held comes back later: %s", queue, process.pid, error)

    async def _end_in(self, queue: str, process: Process, told: str) -> None:
        session = self._client._session
        places = await self._client._run(lambda end: known_places(session, queue, end))
        ended = await asyncio.gather(*(self._end_at(place, process.source, told) for place in places))
        leases, retried, failed = (sum(counts) for counts in zip(*ended, strict=True))
        if leases:
            log.warning(
                "queue %s: process %d %s, its %d leases end: %d jobs tried again, %d failed",
                queue,
                process.pid,
                told,
                leases,
                retried,
                failed,
            )

    async def _end_at(self, place: QueueShard, source: str, told: str) -> tuple[int, int, int]:
        """Returns leases, jobs tried again, jobs failed."""
        return await self._client._run(lambda end: _end_leases(place, source, told, end))


def _end_leases(place: QueueShard, source: str, told: str, deadline_s: float) -> Flow[tuple[int, int, int]]:
    leases = retried = failed = 0
    cursor, more = b"0", True
    while more:
        reply = yield from write(place, "end_leases", [source, told, cursor], deadline_s, patient=False)
        *counts, more = _COUNTS.unpack_from(reply[2])
        cursor = reply[2][_COUNTS.size :]
        leases, retried, failed = leases + counts[0], retried + counts[1], failed + counts[2]
    return leases, retried, failed
