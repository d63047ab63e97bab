"""Time limits of running jobs. A stop has limits of its own (stop.py).

| what is limited | to | by | then |
|---|---|---|---|
| a task's function | its timeout | `in_time` | it is cancelled; its thread is left behind, its process killed |
| middleware, `on_failure` | HOOKS_S or a longer timeout | `TimeLimits` | it is cancelled, and its job ends |
| a job whose function goes on | its timeout and GRACE_S | `TimeLimits` | it ends without its handler |
| the same, while the loop stands still | LOOK_S more | the native lease renewer | its lease runs out |

Promises that a given-up job frees its slot and is reported as failed. Where the loop stands still, the job runs again
elsewhere when its own lease ends, and the other jobs of its claim do not.
Risks: the handler of a given-up job goes on beside the next attempt, until its process ends. A hook that blocks the
loop is not limited.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from weakref import WeakSet

from pinlater.model.jobs import Job
from pinlater.worker.lease_renewal import Lease, LeaseRenewal

#: Hooks may take so long, or as long as the timeout of their task if that is longer.
HOOKS_S = 60.0
#: A function has this long to clean up after its timeout.
GRACE_S = 5.0
#: A worker looks at this interval for jobs whose time is over. One shared timer costs less than one a job.
LOOK_S = 1.0

_T = TypeVar("_T")


class TimedOut(TimeoutError):
    """A job ran longer than it may."""

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(f"{what} ran longer than its timeout, {timeout_s:g} s")


def hooks_limit_s(timeout_s: float | None) -> float:
    """How long the hooks of a task with this timeout may take, each time."""
    return max(HOOKS_S, timeout_s or 0.0)


async def in_time(what: str, timeout_s: float, call: Awaitable[_T]) -> _T:
    """Awaits the call, and cancels it at the timeout. what: the subject of the error's sentence.

    Raises TimedOut past the timeout, whatever the call returns or raises then. The call's own error is the cause.
    """
    cause: BaseException | None = None
    clock = asyncio.timeout(timeout_s)
    try:
        async with clock:
            value = await call
    except BaseException as error:
        if not clock.expired() or isinstance(error, asyncio.CancelledError):  # then the worker cancelled it too
            raise
        cancelled = _cancelled_by(error)
        cause = error if cancelled is None else cancelled
    if clock.expired():
        raise TimedOut(what, timeout_s) from cause
    return value


def _cancelled_by(error: BaseException) -> asyncio.CancelledError | None:
    """The cancellation that asyncio.timeout() made this error of: its cause, until Python 3.11.3 its context."""
    of_clock = type(error) is TimeoutError and not error.args
    chained = error.__cause__ or (error.__context__ if of_clock else None)
    return chained if isinstance(chained, asyncio.CancelledError) else None


class Limit:
    """The time limit of one running job, which can be lifted and started anew.

    future: of the job's end; None: the job does not run any more, so nothing is limited.
    lease: the job's, if the limit ends that too.
    give_up: gets the future once the time is over.
    """

    __slots__ = ("_limits", "after_s", "future", "give_up", "job", "lease", "until_s")

    def __init__(
        self,
        limits: TimeLimits,
        future: asyncio.Future[Any] | None,
        job: Job,
        lease: Lease | None,
        after_s: float,
        give_up: Callable[[asyncio.Future[Any]], object],
    ) -> None:
        self._limits, self.future, self.job, self.lease = limits, future, job, lease
        self.after_s, self.give_up, self.until_s = after_s, give_up, 0.0

    @property
    def over(self) -> bool:
        """Whether the job was given up, by this limit or by another."""
        return self.future in self._limits.given_up

    def begin(self) -> None:
        """From now on the job has `after_s`. Nothing happens if it is over."""
        if self.future is not None and not self.over:
            self.until_s = time.monotonic() + self.after_s
            self._limits.begin(self.future, self)

    def lift(self) -> None:
        """The job ended, or goes on without this limit."""
        if self.future is not None and self._limits.current.get(self.future) is self:
            self._limits.end(self.future)


class TimeLimits:
    """The limits of a worker's running jobs, at most one a job at a time."""

    def __init__(self, renewal: LeaseRenewal) -> None:
        self._lease_renewal = renewal
        #: By the future of the job's end.
        self.current: dict[asyncio.Future[Any], Limit] = {}
        #: Futures of handlers that go on without their jobs.
        self.given_up = WeakSet[asyncio.Future[Any] | None]()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0  # of the timer
        #: A given-up job's context is not that of jobs that start in its slot.
        self._context = contextvars.Context()

    def open(self) -> None:
        """Limits jobs from now on."""
        self._closed = False

    def close(self) -> None:
        """Limits nothing any more."""
        self._closed = True
        for future in list(self.current):
            self.end(future)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self, future: asyncio.Future[Any], limit: Limit) -> None:
        """The limit replaces the job's earlier one: middleware may call a function twice."""
        if self._closed:
            return
        self.current[future] = limit
        if limit.lease is not None:
            self._lease_renewal.limit(limit.lease, limit.job, limit.after_s + LOOK_S)
        if self._timer is None:
            self._look_later()

    def end(self, future: asyncio.Future[Any]) -> None:
        """The job has no limit any more. No error if it had none."""
        limit = self.current.pop(future, None)
        if limit is not None and limit.lease is not None:
            self._lease_renewal.drop_limit(limit.lease, limit.job)

    def leave_behind(self, future: asyncio.Future[Any]) -> None:
        """The job was given up: its handler goes on."""
        self.end(future)
        self.given_up.add(future)

    def _look_later(self) -> None:
        self._due_s = time.monotonic() + LOOK_S
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look, context=self._context)

    def _look(self) -> None:
        """Gives up every job whose time is over. A loop that was late may not have heard yet which jobs have ended."""
        self._timer = None
        now_s = time.monotonic()
        if now_s - self._due_s > LOOK_S:
            self._look_later()
            return
        for future, limit in [each for each in self.current.items() if each[1].until_s <= now_s]:
            limit.give_up(future)
        if self.current and self._timer is None:
            self._look_later()
