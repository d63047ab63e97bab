"""Suspects: jobs whose last run ended in a crash. The worker runs each of them with no other job beside it.

The next suspect waits until no job of the worker runs or waits for its ack. Until its own end is acked, the worker
starts nothing else, claims nothing, and releases what it has prefetched. A worker that does not have the turn holds
its suspects, and runs its other jobs.

Promises that a suspect that ends its process takes no other job along.
Risks: a suspect waits for the longest job of its worker, and the free slots wait with it. Jobs of another worker of the
same process go on beside it. Where leases run out, what a worker only held has crashed too. So without a supervisor,
two workers in one process do not keep the promise: one may hold suspects while a suspect of the other ends the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from pinlater.worker.acker import Acker
from pinlater.worker.held_jobs import Held, HeldJobs
from pinlater.worker.suspect_turn import SuspectTurn

log: Final = logging.getLogger("pinlater.worker")

#: A worker that holds suspects asks for the turn at this interval.
TURN_S: Final = 0.5


class Suspects:
    """Those of one worker.

    changed: called when other jobs may start and be claimed again, and when the turn may be free.
    """

    def __init__(self, jobs: HeldJobs, acker: Acker, changed: Callable[[], None]) -> None:
        self._jobs, self._acker, self._changed = jobs, acker, changed
        self._turn = SuspectTurn()
        self._timer: asyncio.TimerHandle | None = None
        #: What releases prefetched jobs, so that they run elsewhere.
        self.releasing: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Leaves the turn to others."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self.releasing:
            task.cancel()
        self._jobs.alone, self._jobs.has_suspects = None, False
        self._turn.give_back()

    def sort_out(self) -> int:
        """How many of the prefetched jobs must not start now. They are the last ones."""
        jobs = self._jobs
        if jobs.alone is not None:
            return self._beside(jobs.alone)
        suspects = jobs.suspects()
        if not suspects:
            jobs.has_suspects = False
            return 0
        if self._turn.take():
            jobs.alone = suspects[0]
            log.info("job %s runs alone, as its last run ended in a crash", suspects[0].job.descriptor)
            return self._beside(suspects[0])
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TURN_S, self._ask_again)
        jobs.prefetched = deque([*(held for held in jobs.prefetched if not held.job.crashed), *suspects])
        return len(suspects)

    def _ask_again(self) -> None:
        self._timer = None
        self._changed()

    def _beside(self, alone: Held) -> int:
        """Nothing starts beside this job, and it starts beside nothing."""
        jobs = self._jobs
        if others := {held for held in jobs.prefetched if held is not alone}:
            self._release(others)
        busy = bool(jobs.running or self._acker.count or self.releasing)
        if not jobs.prefetched and not busy:  # it ended, and its end is acked
            jobs.alone = None
            self._turn.give_back()
            self._changed()
        return len(jobs.prefetched) if busy else 0

    def _release(self, others: set[Held]) -> None:
        self._jobs.drop(others)
        task = asyncio.get_running_loop().create_task(self._acker.release(others))
        self.releasing.add(task)
        task.add_done_callback(self._released)

    def _released(self, task: asyncio.Task[None]) -> None:
        self.releasing.discard(task)
        if not task.cancelled():
            task.result()
            self._changed()
