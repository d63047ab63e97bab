"""The stop of a worker: running jobs get time to end, all others are released.

Promises that a stop ends soon after its deadline, even if no server answers.
Risk: a job that cannot be acked or released in time runs again once its lease is over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pinlater.operations.shard_quotas import PATIENCE_S
from pinlater.worker.acker import Acker
from pinlater.worker.held_jobs import HeldJobs
from pinlater.worker.progress import Progress
from pinlater.worker.worker_slots import WorkerSlots

log: Final = logging.getLogger("pinlater.worker")

#: Past the deadline of a stop: for cancelled handlers to end, and for the last acks and releases.
GRACE_S: Final = 2.0


class Stop:
    """One stop.

    at_once: says whether running jobs get no time.
    claiming: the claim loop, if it runs; it ends by itself.
    """

    def __init__(
        self,
        jobs: HeldJobs,
        slots: WorkerSlots,
        acker: Acker,
        progress: Progress,
        at_once: Callable[[], bool],
        claiming: asyncio.Task[None] | None,
    ) -> None:
        self._jobs, self._slots, self._acker = jobs, slots, acker
        self._progress, self._at_once, self._claiming = progress, at_once, claiming

    async def run(self, deadline_s: float) -> None:
        """Running jobs may end until then (monotonic s)."""
        releasing = await self._until_ended(deadline_s)
        await end_soon(releasing, self._claiming)
        if self._jobs.running:
            log.warning("stopping: %d jobs did not end in time and are released", len(self._jobs.running))
            await self._slots.cancel_running(GRACE_S)
        await end_soon(self._background(self._release()), *self._slots.suspects.releasing, *self._slots.pauses.tasks)
        await self._acker.close(GRACE_S if self._at_once() else max(GRACE_S, deadline_s - time.monotonic()))

    async def _until_ended(self, deadline_s: float) -> asyncio.Task[None]:
        """Until no job runs and all others are released, or the time is over; returns what releases them."""
        releasing = self._background(self._release_after_claims())
        while (self._jobs.running or not releasing.done()) and not self._at_once():
            if (left_s := deadline_s - time.monotonic()) <= 0:
                break
            await self._progress.wait(left_s)
            if self._jobs.prefetched and releasing.done():  # their handlers were cancelled
                releasing = self._background(self._release())
        return releasing

    async def _release_after_claims(self) -> None:
        """The claim loop would claim released jobs again; one that takes long is not waited for."""
        if self._claiming is not None and not (await asyncio.wait([self._claiming], timeout=PATIENCE_S))[0]:
            await self._release()
            await asyncio.wait([self._claiming])
        await self._release()

    async def _release(self) -> None:
        await self._acker.release(self._jobs.take_prefetched())

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._progress.made())
        return task


async def end_soon(*tasks: asyncio.Task[None] | None) -> None:
    """Cancels tasks that a server without answers holds up, after GRACE_S."""
    held_up = [task for task in tasks if task is not None]
    await asyncio.wait(held_up, timeout=GRACE_S)
    for task in held_up:
        task.cancel()
    for end in await asyncio.gather(*held_up, return_exceptions=True):
        if isinstance(end, Exception):
            log.error("stopping: %s", end, exc_info=end)
