"""Jobs that go on past their timeout, though all was done to end them.

Promises that such a job is given up so long after its timeout: by the loop, which reports it as failed and uses its
slot for another; or where the loop does not turn, by the renewer's thread, which takes it out of its claim's lease, so
that it comes back elsewhere when a lease of its own has run out, and its siblings do not. Risks: what it does goes on,
beside its next attempt, until its process ends.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from pinlater.worker.held_jobs import Held
from pinlater.worker.lease_renewal import LeaseRenewal

#: From its timeout on: for a handler to clean up.
GRACE_S = 5.0


class TimeLimits:
    """The running jobs that have a timeout."""

    def __init__(self, renewal: LeaseRenewal) -> None:
        self._lease_renewal = renewal
        #: When each is given up.
        self.timers: dict[asyncio.Future[Any], asyncio.TimerHandle] = {}
        #: What is done when one is given up, jobs that begin in its place included, has nothing of its context.
        self._context = contextvars.Context()

    def begin(self, future: asyncio.Future[Any], held: Held, timeout_s: float, give_up: Callable[[], object]) -> None:
        """The future runs the job held, and has to end within its timeout. give_up: called if it did not."""
        self.end(future, held)  # its middleware may call it twice
        after_s = timeout_s + GRACE_S
        self._lease_renewal.limit(held.lease, held.job, after_s)
        self.timers[future] = asyncio.get_running_loop().call_later(after_s, give_up, context=self._context)

    def end(self, future: asyncio.Future[Any], held: Held) -> None:
        """It ended; no error if it has no timeout."""
        timer = self.timers.pop(future, None)
        if timer is not None:
            timer.cancel()
            self._lease_renewal.drop_limit(held.lease, held.job)

    def leave_behind(self, future: asyncio.Future[Any], held: Held) -> None:
        """It was given up: nobody waits for its end any more, and an error of it is no news."""
        self.end(future, held)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
