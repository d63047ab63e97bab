"""Pauses of queues: those that the jobs of this worker ask for, and those that it hears of.

Promises that a job which pauses its queue ends after the pause is set, that jobs which ask at once make one pause, and
that the worker starts no job of a queue that it claimed before it knew of the pause: those go back.
Risk: a shard that does not answer is not paused. The job ends all the same, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pinlater.model.clocks import boot_s
from pinlater.model.errors import PinLaterError
from pinlater.worker.acker import Acker
from pinlater.worker.executor import End, Postponed
from pinlater.worker.held_jobs import Held, HeldJobs
from pinlater.worker.job_source import JobSource

log: Final = logging.getLogger("pinlater.worker")

#: A pause makes another one needless that would end at most so much later, or a tenth of its length.
NEAR_S: Final = 1.0


@dataclass(slots=True)
class _Pause:
    """The last pause of one queue.

    until_s: the pause that this worker set last ends then (monotonic); 0: it has set none.
    call: sets the pause now; done once it is set, or could not be set.
    known_s: since when the worker knows of the pause (boot_s). Jobs of claims from before do not start.
    unstarted: they go back once the pause is set.
    """

    until_s: float = 0.0
    call: asyncio.Future[None] | None = None
    known_s: float = 0.0
    unstarted: set[Held] = field(default_factory=set)


class QueuePauses:
    """The pauses of one worker.

    hold_back: called with a queue when the worker sets a pause. Nothing is claimed from it before go_on().
    changed: called when there may be room for a claim.
    """

    def __init__(
        self,
        source: JobSource,
        jobs: HeldJobs,
        acker: Acker,
        hold_back: Callable[[str], None],
        go_on: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._source, self._jobs, self._acker = source, jobs, acker
        self._hold_back, self._go_on, self._changed = hold_back, go_on, changed
        self._pauses: dict[str, _Pause] = {}
        #: What sets pauses, and what releases jobs.
        self.tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Cancels what is not done."""
        for task in self.tasks:
            task.cancel()

    def ended(self, held: Held, end: Postponed) -> Coroutine[Any, Any, End]:
        """Keeps the other jobs of the queue from their start. The coroutine returns how the job ends, once the pause is
        set.
        """
        until_s = time.monotonic() + end.delay_ms / 1000
        self._set_unless_near(held.job.queue, until_s, end)
        return self._end_when_set(held.job.queue, until_s, end)

    async def _end_when_set(self, queue: str, until_s: float, end: Postponed) -> End:
        while (call := self._pauses[queue].call) is not None:
            await asyncio.wait([call])  # the call is of other jobs too, so a cancellation of this one leaves it
            self._set_unless_near(queue, until_s, end)
        return replace(end, pause_reason="")

    def _set_unless_near(self, queue: str, until_s: float, end: Postponed) -> None:
        pause = self._pauses.setdefault(queue, _Pause())
        near_s = min(NEAR_S, end.delay_ms / 10_000)
        if pause.call is None and pause.until_s < until_s - near_s:
            pause.until_s, pause.call = until_s, asyncio.get_running_loop().create_future()
            self._hold_back(queue)
            self._let_go(queue, pause)
            self._background(self._set(queue, pause, pause.call, end))

    async def _set(self, queue: str, pause: _Pause, call: asyncio.Future[None], end: Postponed) -> None:
        """Sets a pause, then releases the jobs that have not started: before, they would be claimed again."""
        try:
            await self._source.pause(queue, end.delay_ms, end.pause_reason)
            log.info("queue %s: paused for %g s: %s", queue, end.delay_ms / 1000, end.pause_reason)
        except PinLaterError as error:
            log.warning("queue %s: not paused on every shard, though %s: %s", queue, end.pause_reason, error)
        finally:
            pause.call, pause.known_s = None, boot_s()
            unstarted, pause.unstarted = pause.unstarted, set()
            call.set_result(None)
            self._go_on(queue)
        await self._acker.release(unstarted)

    def on_pause(self, queue: str) -> None:
        """See JobEvents."""
        pause = self._pauses.setdefault(queue, _Pause())
        pause.known_s = boot_s()
        self._let_go(queue, pause)

    def took(self, queue: str, sent_s: float) -> None:
        """The jobs of a claim from the queue are held. sent_s: when it was sent (boot_s)."""
        pause = self._pauses.get(queue)
        if pause is not None and (pause.call is not None or sent_s < pause.known_s):
            self._let_go(queue, pause)

    def _let_go(self, queue: str, pause: _Pause) -> None:
        """Keeps the prefetched jobs of the queue from their start, and releases them as soon as it is paused."""
        if unstarted := {held for held in self._jobs.prefetched if held.job.queue == queue}:
            self._jobs.drop(unstarted)
            if pause.call is None:
                self._background(self._acker.release(unstarted))
            else:
                pause.unstarted |= unstarted

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.result()
            self._changed()
