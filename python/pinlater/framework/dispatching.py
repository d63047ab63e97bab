"""The dispatcher: the engine's handler that finds each job's task, runs it, and says how it ended.

Promises that nothing in a body or a task ends the worker, and an end for every job as docs/tasks.md has them. Risks: a
plain function that is past its timeout goes on in its thread, beside the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from pinlater.async_client import AsyncClient
from pinlater.errors import BodyUnreadable, ClaimLost, InvalidArgument
from pinlater.framework import envelope
from pinlater.framework.app import PinLater
from pinlater.framework.backoff import milliseconds
from pinlater.framework.batches import Batcher, HandedBack
from pinlater.framework.calling import Calling
from pinlater.framework.context import SyncContext, current_trace
from pinlater.framework.depending import Made
from pinlater.framework.ends import Cancel, Expired, RaisedInProcess, Retry, Snooze
from pinlater.framework.logs import current_job, raw_tasks
from pinlater.framework.meters import Meter, RunEnd
from pinlater.framework.middleware import Runner, wrapped
from pinlater.framework.processes import ProcessPool, cores
from pinlater.framework.reports import Failure, report
from pinlater.framework.tasks import Task
from pinlater.handlers import End, Failed, Postponed, Succeeded, ThreadPool, TimedOut, clip, describe
from pinlater.jobs import Checkpoint, Job

log: Final = logging.getLogger("pinlater.worker")

#: A job of a task, or of an envelope's version, that is not known here waits so long: another worker may know it by
#: then, in a rolling deploy.
UNKNOWN_PAUSE_MS: Final = 5_000
#: So many unknown names are told apart: they come from bodies.
MAX_UNKNOWN_NAMES: Final = 1_000


@dataclass(slots=True)
class TaskStats:
    """Counts since the start, beside those of the engine. unknown: jobs put back, by the name of their task. newer:
    jobs put back, by the version of their envelope.
    """

    unknown: Counter[str] = field(default_factory=Counter)
    newer: Counter[int] = field(default_factory=Counter)
    unreadable: int = 0
    expired: int = 0
    timeouts: int = 0


class Known(NamedTuple):
    """A task as it is run here. plain: its function, where a call of it is all there is to do; else run does it.
    limit_s: past that, and a grace, its job is given up; None: never, or its process is killed in time.
    """

    task: Task[..., Any]
    plain: Callable[..., Awaitable[Any]] | None
    run: Runner
    limit_s: float | None


class Dispatcher:
    """client: the worker's. concurrency: how many tasks run at once; of those that are plain functions, as many in
    threads. processes: how many in processes. made: what the app's lifespan shares. Made on the worker's loop.
    """

    def __init__(
        self,
        app: PinLater,
        client: AsyncClient,
        concurrency: int,
        processes: int | None = None,
        made: Made | None = None,
    ) -> None:
        self._client = client
        self._worker = client._settings.source
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPool(concurrency, self._loop)
        name = app.import_name() if any(task.kind == "process" for task in app.tasks.values()) else ""
        url = None if app.clients.source is None else app.clients.source.url()
        self._processes = ProcessPool(name, processes or cores(), self._worker, self._keep_body, url)
        self._batchers: list[Batcher] = []
        #: By descriptor, of tasks in threads: gone with its task.
        self._contexts: WeakValueDictionary[str, SyncContext] = WeakValueDictionary()
        calling = Calling(
            self._loop,
            self._threads,
            self._processes,
            self._keep_headers,
            made or {},
            concurrency,
            self._batchers,
            self._contexts,
        )
        known = {name: _known(app, calling, task) for name, task in app.tasks.items()}
        self._tasks = {name.encode(): each for name, each in known.items() if each.task.codec != "raw"}
        self._raw = {each.task.queue: each for each in known.values() if each.task.codec == "raw"}
        raw_tasks.update({queue: each.task.name for queue, each in self._raw.items()})
        self.stats = TaskStats()
        #: Told of each attempt that failed, with its error.
        self.on_error: Callable[[Job, BaseException], None] | None = None
        #: Worker.limit, where there is a worker.
        self.limit: Callable[[float, Callable[[], Coroutine[Any, Any, End]]], None] | None = None
        #: By task; empty: nothing is counted but stats.
        self.meters: dict[str, Meter] = {}

    async def close(self) -> None:
        """Lets the threads end, and ends the processes."""
        self._threads.close()
        await self._processes.close()

    def on_stop(self) -> None:
        """The worker begins to stop: batches that were not started are handed back."""
        for batcher in self._batchers:
            batcher.hand_back()

    async def __call__(self, job: Job) -> End:
        """Runs the task of a job."""
        if job.queue in self._raw:
            return await self._run(self._raw[job.queue], job, [job.body], {}, {})
        try:
            name, args, kwargs, headers = envelope.read(job.body)
        except envelope.NewerVersion as error:
            return self._newer(job, error.version)
        except BodyUnreadable as error:
            return self._unreadable(job, error)
        known = self._tasks.get(name)
        if known is None:
            return self._unknown(job, name.decode("utf-8", "replace"))
        return await self._run(known, job, args, kwargs, headers)

    def _unreadable(self, job: Job, error: BodyUnreadable) -> End:
        self.stats.unreadable += 1
        if self.on_error is not None:
            self.on_error(job, error)
        log.error("job %s: its body can not be read: %s", job.descriptor, error, extra={"job": job})
        return Failed(report(error, job, self._worker, 0.0, last=True), final=True)

    def _newer(self, job: Job, version: int) -> End:
        newer = self.stats.newer
        if version not in newer:
            log.warning(
                "job %s: its envelope is of version %d, and this worker reads %d; such jobs are put back for %d s each "
                "time, for a newer worker",
                job.descriptor,
                version,
                envelope.VERSION,
                UNKNOWN_PAUSE_MS // 1000,
                extra={"job": job},
            )
        newer[version] += 1
        return Postponed(UNKNOWN_PAUSE_MS)

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
        self, known: Known, job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]
    ) -> End:
        began_s = time.monotonic()
        task, plain, run, limit_s = known
        expires_ms = task.running.expires_ms
        current_job.set(job)  # in this job's own asyncio task
        try:
            if expires_ms is not None:
                self._check_expiry(job, expires_ms, headers)
            if headers and type(trace := headers.get("trace")) is str:
                current_trace.set(trace)
            if limit_s is not None and self.limit is not None:
                self.limit(limit_s, lambda: self._overdue(task, job, args, kwargs, began_s))
            value = await (run(job, args, kwargs, headers) if plain is None else plain(*args, **kwargs))
            end = None if task.running.result_ttl_ms is None else self._result(task, job, value)
        except Snooze as snooze:
            try:
                postponed = self._snoozed(job, snooze)
            except InvalidArgument as error:
                return await self._failed(task, job, args, kwargs, error, began_s)
            self._meter(task, "snoozed", began_s)
            return postponed
        except HandedBack:
            raise asyncio.CancelledError from None  # as the worker's own at a stop
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():  # the worker gives it up at a stop
                raise
            return await self._failed(task, job, args, kwargs, error, began_s)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return await self._failed(task, job, args, kwargs, error, began_s)
        if self.meters:
            self.meters[task.name].succeeded(time.monotonic() - began_s)
        return end

    def _result(self, task: Task[..., Any], job: Job, value: Any) -> Succeeded:
        """The end of a task whose result is kept."""
        assert task.running.result_ttl_ms is not None
        packed = envelope.pack_result(task.codec, value)
        self._check_size("result", job, packed)
        return Succeeded(packed, task.running.result_ttl_ms)

    def _snoozed(self, job: Job, snooze: Snooze) -> End:
        """Back in line, with a state if one was given, and the progress told last."""
        delay_ms = milliseconds("Snooze: delay", snooze.delay)
        if snooze.headers is None:
            return Postponed(delay_ms)
        if job.queue in self._raw:
            raise InvalidArgument("Snooze: a raw body has no place for a state")
        body = envelope.with_headers(job.body, snooze.headers)
        self._check_size("Snooze: the body with its state", job, body)
        return Postponed(delay_ms, body)

    def _check_size(self, what: str, job: Job, packed: bytes) -> None:
        known = self._client._session.known_config(job.queue)
        if known is not None and len(packed) > known.body_limit:
            raise InvalidArgument(
                f"{what}: expected at most {known.body_limit:,} bytes (the queue's body limit), got {len(packed):,}"
            )

    def _check_expiry(self, job: Job, expires_ms: int, headers: dict[str, Any]) -> None:
        """By Redis's clock: ids and tokens carry its time."""
        due_ms = headers.get("at") or job.created_ms + headers.get("delay", 0)
        if job.claimed_ms > due_ms + expires_ms:
            self.stats.expired += 1
            raise Expired(
                f"not run: it came {job.claimed_ms - due_ms} ms after it was due, and expires after {expires_ms}"
            )

    def cancel(self, job: Job) -> bool:
        """A running job was removed. True if its thread is told here; else the worker cancels what it awaits."""
        try:
            known = self._raw.get(job.queue) or self._tasks.get(envelope.read(job.body)[0])
        except BodyUnreadable:
            return False
        if known is None or known.task.kind != "thread":
            return False
        context = self._contexts.get(job.descriptor)
        if context is not None:
            context.cancelled = True
        return True

    async def _keep_headers(self, job: Job, headers: Mapping[str, Any]) -> None:
        await self._keep_body(job, envelope.with_headers(job.body, headers))

    async def _keep_body(self, job: Job, body: bytes) -> None:
        if await self._client.checkpoint(Checkpoint(job=job, body=body)):
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
        if self.on_error is not None:
            self.on_error(job, error)
        if isinstance(error, RaisedInProcess):
            end = error.end
        else:
            end = judged(task, job, error, self._worker, time.monotonic() - began_s)
        last = end.final or job.attempts_remaining <= 1
        self._meter(task, _run_end(error, last), began_s)
        deliberate = isinstance(error, Retry | Cancel | Expired)
        log.log(
            logging.INFO if deliberate else logging.WARNING,
            "job %s: task %s failed in attempt %d of %d: %s",
            job.descriptor,
            task.name,
            job.attempt,
            job.attempts_allowed,
            clip(str(error), 200) if isinstance(error, RaisedInProcess) else describe(error, 200),
            exc_info=None if deliberate else error,
        )
        if task.running.on_failure is not None and (end.final or job.attempts_remaining <= 1):
            await self._tell(task, Failure(job, task.name, args, kwargs, error, end.status))
        return end if task.running.result_ttl_ms is None else replace(end, awaited=True)

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


def _known(app: PinLater, calling: Calling, task: Task[..., Any]) -> Known:
    bare = calling.runner(task)
    run = wrapped(task.name, bare, app.middleware)
    asks = (task.context, task.running.timeout_s, task.running.batch)
    plain = task.kind == "loop" and asks == (None, None, None) and not task.needs and run is bare
    timeout_s, waits_s = task.running.timeout_s, 0.0 if task.running.batch is None else task.running.batch_wait_s
    limit_s = None if timeout_s is None or task.kind == "process" else timeout_s + waits_s
    return Known(task, task.function if plain else None, run, limit_s)


def judged(task: Task[..., Any], job: Job, error: BaseException, worker: str, lasted_s: float) -> Failed:
    """How an attempt that failed counts, by its error and the task's options. Raises what its backoff raises."""
    final = isinstance(error, (Cancel, Expired, *task.running.give_up_on))
    last = final or job.attempts_remaining <= 1
    status = report(error, job, worker, lasted_s, last=last)
    return Failed(status, 0 if last else _delay_ms(task, job, error), final)


def _run_end(error: BaseException, last: bool) -> RunEnd:
    if isinstance(error, Cancel | Expired):
        return "cancelled" if isinstance(error, Cancel) else "expired"
    return "failed" if last else "retried"


def _delay_ms(task: Task[..., Any], job: Job, error: BaseException) -> int:
    if isinstance(error, Retry) and error.delay is not None:
        return milliseconds("Retry: delay", error.delay)
    return milliseconds("backoff", task.running.backoff(job.attempt, error))
