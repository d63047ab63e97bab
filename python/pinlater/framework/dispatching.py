"""The dispatcher: the engine's handler that finds each job's task, runs it, and says how it ended.

Promises that nothing in a body or a task ends the worker, and an end for every job as docs/tasks.md has them. Risks: a
plain function that is past its timeout goes on in its thread, beside the next attempt.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pinlater.async_client import AsyncClient
from pinlater.errors import BodyUnreadable, ClaimLost, InvalidArgument
from pinlater.framework import envelope
from pinlater.framework.backoff import milliseconds
from pinlater.framework.context import BaseContext
from pinlater.framework.ends import Cancel, Expired, Retry, Snooze
from pinlater.framework.logs import current_job, raw_tasks
from pinlater.framework.meters import Meter, RunEnd
from pinlater.framework.reports import Failure, report
from pinlater.framework.tasks import Task
from pinlater.handlers import End, Failed, Postponed, ThreadPool, TimedOut, describe
from pinlater.jobs import Checkpoint, Job

log: Final = logging.getLogger("pinlater.worker")

#: A job of a task that is not known here waits so long: another worker may know it by then, in a rolling deploy.
UNKNOWN_PAUSE_MS: Final = 5_000
#: So many unknown names are told apart: they come from bodies.
MAX_UNKNOWN_NAMES: Final = 1_000


@dataclass(slots=True)
class TaskStats:
    """Counts since the start, beside those of the engine. unknown: jobs put back, by the name of their task."""

    unknown: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    expired: int = 0
    timeouts: int = 0


class Dispatcher:
    """tasks: by name. client: the worker's. threads: how many tasks that are plain functions run at once. Made on the
    worker's loop.
    """

    def __init__(self, tasks: Mapping[str, Task[..., Any]], client: AsyncClient, threads: int) -> None:
        self._tasks = {name.encode(): task for name, task in tasks.items() if task.codec != "raw"}
        self._raw = {task.queue: task for task in tasks.values() if task.codec == "raw"}
        raw_tasks.update({queue: task.name for queue, task in self._raw.items()})
        self._client = client
        self._worker = client._settings.source
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPool(threads, self._loop)
        self.stats = TaskStats()
        #: Worker.limit, where there is a worker.
        self.limit: Callable[[float, Callable[[], Coroutine[Any, Any, End]]], None] | None = None
        #: By task; empty: nothing is counted but stats.
        self.meters: dict[str, Meter] = {}

    def close(self) -> None:
        """Lets the threads end."""
        self._threads.close()

    async def __call__(self, job: Job) -> End:
        """Runs the task of a job."""
        if job.queue in self._raw:
            return await self._run(self._raw[job.queue], job, [job.body], {}, {})
        try:
            name, args, kwargs, headers = envelope.read(job.body)
        except BodyUnreadable as error:
            return self._unreadable(job, error)
        task = self._tasks.get(name)
        if task is None:
            return self._unknown(job, name.decode("utf-8", "replace"))
        return await self._run(task, job, args, kwargs, headers)

    def _unreadable(self, job: Job, error: BodyUnreadable) -> End:
        self.stats.unreadable += 1
        log.error("job %s: its body can not be read: %s", job.descriptor, error, extra={"job": job})
        return Failed(report(error, job, self._worker, 0.0, last=True), final=True)

    def _unknown(self, job: Job, name: str) -> End:
        unknown = self.stats.unknown
        if name not in unknown and len(unknown) < MAX_UNKNOWN_NAMES:
            log.warning(
                "job %s: no task %r here; its jobs are put back for %d s each time, for a worker that knows it",
                job.descriptor,
                name,
                UNKNOWN_PAUSE_MS // 1000,
                extra={"job": job},
            )
            unknown[name] = 0
        if name in unknown:
            unknown[name] += 1
        return Postponed(UNKNOWN_PAUSE_MS)

    async def _run(
        self, task: Task[..., Any], job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]
    ) -> End:
        began_s = time.monotonic()
        running = task.running
        current_job.set(job)
        try:
            if running.expires_ms is not None:
                self._check_expiry(job, running.expires_ms, headers)
            if running.timeout_s is not None and self.limit is not None:
                self.limit(running.timeout_s, lambda: self._overdue(task, job, args, kwargs, began_s))
            called = args if task.context is None else [self._context(task, job, headers), *args]
            if not task.is_async:
                inside = contextvars.copy_context().run
                await self._threads.run(lambda _: inside(task.function, *called, **kwargs), job, running.timeout_s)
            elif running.timeout_s is None:
                await task.function(*called, **kwargs)
            else:
                await self._in_time(running.timeout_s, task, called, kwargs)
        except Snooze as snooze:
            self._meter(task, "snoozed", began_s)
            return Postponed(milliseconds("Snooze: delay", snooze.delay))
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():  # the worker gives it up at a stop
                raise
            return await self._failed(task, job, args, kwargs, error, began_s)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return await self._failed(task, job, args, kwargs, error, began_s)
        if self.meters:
            self.meters[task.name].succeeded(time.monotonic() - began_s)
        return None

    async def _in_time(self, timeout_s: float, task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(timeout_s) as clock:
                await task.function(*args, **kwargs)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise TimedOut("it", timeout_s) from error.__cause__

    def _check_expiry(self, job: Job, expires_ms: int, headers: dict[str, Any]) -> None:
        """By Redis's clock: ids and tokens carry its time."""
        due_ms = headers.get("at") or job.created_ms + headers.get("delay", 0)
        if job.claimed_ms > due_ms + expires_ms:
            self.stats.expired += 1
            raise Expired(
                f"not run: it came {job.claimed_ms - due_ms} ms after it was due, and expires after {expires_ms}"
            )

    def _context(self, task: Task[..., Any], job: Job, headers: dict[str, Any]) -> BaseContext:
        assert task.context is not None
        timeout_s = task.running.timeout_s
        return task.context(
            job,
            task.name,
            self._keep_state,
            state=headers.get("state"),
            trace=headers.get("trace"),
            deadline_s=None if timeout_s is None else time.monotonic() + timeout_s,
            loop=self._loop,
        )

    async def _keep_state(self, job: Job, state: Any) -> None:
        if job.queue in self._raw:
            raise InvalidArgument("checkpoint: a raw body has no place for a state")
        if await self._client.checkpoint(Checkpoint(job=job, body=envelope.with_state(job.body, state))):
            raise ClaimLost(f"checkpoint: job {job.descriptor} is not this worker's any more")

    def _meter(self, task: Task[..., Any], end: RunEnd, began_s: float) -> None:
        if self.meters:
            self.meters[task.name].ended(end, time.monotonic() - began_s)

    # failing

    async def _failed(
        self,
        task: Task[..., Any],
        job: Job,
        args: list[Any],
        kwargs: dict[str, Any],
        error: BaseException,
        began_s: float,
    ) -> End:
        self.stats.timeouts += isinstance(error, TimedOut)
        final = isinstance(error, (Cancel, Expired, *task.running.give_up_on))
        last = final or job.attempts_remaining <= 1
        self._meter(task, _run_end(error, last), began_s)
        status = report(error, job, self._worker, time.monotonic() - began_s, last=last)
        deliberate = isinstance(error, Retry | Cancel | Expired)
        log.log(
            logging.INFO if deliberate else logging.WARNING,
            "job %s: task %s failed in attempt %d of %d: %s",
            job.descriptor,
            task.name,
            job.attempt,
            job.attempts_allowed,
            describe(error, 200),
            exc_info=None if deliberate else error,
        )
        if not last:
            return Failed(status, _delay_ms(task, job, error))
        if task.running.on_failure is not None:
            await self._tell(task, Failure(job, task.name, args, kwargs, error, status))
        return Failed(status, 0, final)

    async def _overdue(
        self, task: Task[..., Any], job: Job, args: list[Any], kwargs: dict[str, Any], began_s: float
    ) -> End:
        """It goes on past its timeout, though it was cancelled."""
        assert task.running.timeout_s is not None
        error = TimedOut("it was cancelled in vain, and", task.running.timeout_s)
        return await self._failed(task, job, args, kwargs, error, began_s)

    async def _tell(self, task: Task[..., Any], failure: Failure) -> None:
        """Calls the hook; what it raises is told, and changes nothing."""
        hook = task.running.on_failure
        assert hook is not None
        try:
            if task.hook_is_async:
                await hook(failure)
            else:
                await self._threads.run(lambda _: hook(failure), failure.job)
        except Exception:
            log.exception("job %s: on_failure of task %s failed", failure.job.descriptor, task.name)


def _run_end(error: BaseException, last: bool) -> RunEnd:
    if isinstance(error, Cancel | Expired):
        return "cancelled" if isinstance(error, Cancel) else "expired"
    return "failed" if last else "retried"


def _delay_ms(task: Task[..., Any], job: Job, error: BaseException) -> int:
    if isinstance(error, Retry) and error.delay is not None:
        return milliseconds("Retry: delay", error.delay)
    return milliseconds("backoff", task.running.backoff(job.attempt, error))
