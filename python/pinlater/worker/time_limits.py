"""Time limits of jobs: this file gives up jobs that go on past theirs.

| what is limited | by | which |
|---|---|---|
| an async function: its timeout | `tasks/invoke.py` | cancels it |
| a plain function in a thread: its timeout | `ThreadPool.run` | leaves the thread behind |
| a function in another process: its timeout | `tasks/task_processes.py` | kills the process |
| middleware, `on_failure`: HOOKS_S or the timeout | `tasks/hooks.py` | cancels it |
| a job that all this did not end: its timeout and GRACE_S | `TimeLimits` | ends it without its handler |
| the same, while the loop stands still | `LeaseRenewal.limit`, a native thread | lets the job's lease run out |

Promises that a given-up job frees its slot and is reported as failed. Where the loop stands still, it runs again
elsewhere when its own lease ends, and the other jobs of its claim do not.
Risk: its handler goes on beside its next attempt, until its process ends.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from pinlater.worker.held_jobs import Held
from pinlater.worker.lease_renewal import LeaseRenewal

#: After its timeout, for a handler to clean up.
GRACE_S = 5.0


class TimeLimits:
    """The running jobs of a worker that have a timeout."""

    def __init__(self, renewal: LeaseRenewal) -> None:
        self._lease_renewal = renewal
        #: Each gives up one job.
        self.timers: dict[asyncio.Future[Any], asyncio.TimerHandle] = {}
        #: A given-up job's context is not that of jobs that start in its slot.
        self._context = contextvars.Context()

    def begin(self, future: asyncio.Future[Any], held: Held, timeout_s: float, give_up: Callable[[], object]) -> None:
        """Limits the running job `held`. give_up: called if its future is not done in time."""
        self.end(future, held)  # middleware may call a function twice
        after_s = timeout_s + GRACE_S
        self._lease_renewal.limit(held.lease, held.job, after_s)
        self.timers[future] = asyncio.get_running_loop().call_later(after_s, give_up, context=self._context)

    def end(self, future: asyncio.Future[Any], held: Held) -> None:
        """The job ended, or its limit is lifted; no error if it has none."""
        timer = self.timers.pop(future, None)
        if timer is not None:
            timer.cancel()
            self._lease_renewal.drop_limit(held.lease, held.job)

    def leave_behind(self, future: asyncio.Future[Any], held: Held) -> None:
        """The job was given up: asyncio does not log its error."""
        self.end(future, held)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
