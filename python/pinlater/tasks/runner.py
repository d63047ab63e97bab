"""The task runner: the worker's handler. It finds the task of each job, runs it, and returns how the job ends.

Promises that nothing in a body or a task ends the worker, and that every job ends as docs/tasks.md says. Risks: a
plain function continues in its thread after its timeout, beside the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import BodyUnreadable, ClaimLost, InvalidArgument, PinLaterError
from pinlater.model.jobs import Checkpoint, Job
from pinlater.model.times import milliseconds
from pinlater.operations.inspect import server_time_ms
from pinlater.tasks import envelope, hooks
from pinlater.tasks.app import PinLater, parts_of
from pinlater.tasks.arguments import Arguments, ResultNotKept
from pinlater.tasks.context import current_trace
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.failed_attempts import failed_end, log_failure, run_end
from pinlater.tasks.invoke import Invoker
from pinlater.tasks.late_failures import LateFailures
from pinlater.tasks.loading import import_name, task_modules
from pinlater.tasks.logs import current_job, raw_tasks
from pinlater.tasks.meters import Meter, RunEnd
from pinlater.tasks.middleware import Runner, sees_values, wrapped
from pinlater.tasks.outcomes import Expired, RaisedInProcess, RateLimited, Snooze
from pinlater.tasks.reports import Failure, report
from pinlater.tasks.task import Task, task_parts
from pinlater.tasks.task_processes import ProcessPool, cores, sent_s
from pinlater.tasks.unknown_jobs import postpone_newer, postpone_unknown
from pinlater.worker.executor import End, Failed, Postponed, Succeeded, ThreadPool
from pinlater.worker.time_limits import Limit, TimedOut, hooks_limit_s
from pinlater.worker.worker import Worker
from pinlater.worker.worker_slots import Judge

log: Final = logging.getLogger("pinlater.worker")


@dataclass(slots=True)
class TaskStats:
    """Counts since the start, beside those of the worker.

    unknown: jobs postponed because no task here has their name, by that name.
    newer: jobs postponed because their envelope is of a newer version, by that version.
    unreadable: jobs failed because their body can not be read.
    expired: jobs failed because they came after their task's `expires`.
    crashed: jobs failed by a crash that this process was told of, by task and queue.
    timeouts: attempts that ran longer than the task's timeout.
    """

    unknown: Counter[str] = field(default_factory=Counter)
    newer: Counter[int] = field(default_factory=Counter)
    unreadable: int = 0
    expired: int = 0
    timeouts: int = 0
    crashed: Counter[tuple[str, str]] = field(default_factory=Counter)


class RunnableTask(NamedTuple):
    """A task, ready to run.

    function: the task's own function, if awaiting it is all there is to do; else None.
    run: runs the task in every case.
    arguments: what the function takes and returns.
    """

    task: Task[..., Any]
    function: Callable[..., Awaitable[Any]] | None
    run: Runner
    arguments: Arguments


class TaskRunner:
    """The handler of a worker that runs an app's tasks. Create it on the worker's loop.

    client: the worker's client.
    concurrency: the most tasks at once, and the most threads for plain functions.
    processes: the most processes for tasks that run in one; None: one a core.
    resolved: what the app's lifespan shares.
    """

    def __init__(
        self,
        app: PinLater,
        client: AsyncClient,
        concurrency: int,
        processes: int | None = None,
        resolved: Resolved | None = None,
    ) -> None:
        self._client = client
        self._worker = client.settings.source
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPool(concurrency, self._loop)
        name = import_name(app) if any(task.kind == "process" for task in app.tasks.values()) else ""
        values = sees_values(app.middleware)
        self._clients = parts_of(app).clients
        provider = self._clients.provider
        url = None if provider is None else provider.url()
        self._processes = ProcessPool(
            name, processes or cores(), self._worker, self._store_body, values, url, app.include
        )
        invoker = Invoker(
            self._loop,
            self._threads,
            self._processes,
            self._store_headers,
            resolved or {},
            concurrency,
            self._is_stopping,
        )
        self._batchers, self._in_threads, self._contexts = invoker.batchers, invoker.in_threads, invoker.contexts
        runnable = [self._runnable(app, invoker, task) for task in app.tasks.values()]
        #: By the name in the envelope; raw tasks by their queue.
        self._tasks = {each.task.name.encode(): each for each in runnable if each.task.codec != "raw"}
        self._raw = {each.task.queue: each for each in runnable if each.task.codec == "raw"}
        raw_tasks.update({queue: each.task.name for queue, each in self._raw.items()})
        self._modules = task_modules(app)
        self.stats = TaskStats()
        self._late_failures = LateFailures(client, self._task_of, self._threads)
        self.stats.crashed = self._late_failures.counts
        #: See Worker.
        self.on_failed = self._late_failures.report
        #: Called with each attempt that failed, and its error.
        self.on_error: Callable[[Job, BaseException], None] | None = None
        #: The worker whose handler this is. Set it before the first job.
        self.worker: Worker
        #: The log level of a job that succeeded.
        self.success_level = logging.DEBUG
        #: By the task's name. Empty: only `stats` are counted.
        self.meters: dict[str, Meter] = {}

    def on_value(self, callback: Callable[[Job, Any], None]) -> None:
        """Calls back with each value that a task returns from now on, and its job."""
        self._processes.values = True
        tables: list[dict[Any, RunnableTask]] = [self._tasks, self._raw]
        for table in tables:
            for key, each in table.items():
                table[key] = each._replace(function=None, run=partial(_run_and_call_back, callback, each.run))

    def tasks(self) -> list[Task[..., Any]]:
        """The tasks that it runs."""
        return [each.task for each in (*self._tasks.values(), *self._raw.values())]

    async def close(self) -> None:
        """Lets late hooks and the threads end, and ends the processes."""
        await self._late_failures.close()
        self._threads.close()
        await self._processes.close()

    def on_stop(self) -> None:
        """Call it when the worker begins to stop: it then releases the jobs of batches that did not start."""
        for batcher in self._batchers.values():
            batcher.cancel_collected()

    def _is_stopping(self) -> bool:
        return self.worker.stopping

    async def __call__(self, job: Job) -> End:
        """Runs the task of a job."""
        if job.queue in self._raw:
            return await self._run(self._raw[job.queue], job, [job.body], {}, {})
        try:
            name, args, kwargs, headers = envelope.read(job.body)
        except envelope.NewerVersion as error:
            return postpone_newer(job, error.version, self.stats.newer)
        except BodyUnreadable as error:
            return self._unreadable(job, error)
        runnable = self._tasks.get(name)
        if runnable is None:
            return postpone_unknown(job, name.decode("utf-8", "replace"), self.stats.unknown, self._modules)
        return await self._run(runnable, job, args, kwargs, headers)

    def _unreadable(self, job: Job, error: BodyUnreadable) -> End:
        self.stats.unreadable += 1
        if self.on_error is not None:
            self.on_error(job, error)
        log.error("job %s: its body can not be read: %s", job.descriptor, error, extra={"job": job})
        return Failed(report(error, job, self._worker, 0.0, last=True), final=True)

    async def _run(
        self, runnable: RunnableTask, job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]
    ) -> End:
        start_s = time.monotonic()
        task, function, run, arguments = runnable
        expires_ms = task.options.expires_ms
        if headers and expires_ms is not None and (wrong := _wrong_time(headers)):
            return self._unreadable(job, BodyUnreadable(wrong))
        current_job.set(job)  # each job has an asyncio task of its own, and so a context of its own
        try:
            if expires_ms is not None:
                await self._check_expiry(job, expires_ms, headers)
            if headers and type(trace := headers.get("trace")) is str:
                current_trace.set(trace)
            if arguments.convert:
                args, kwargs = arguments.restore(args, kwargs)
            value = await (run(job, args, kwargs, headers) if function is None else function(*args, **kwargs))
            end = None if task.options.result_ttl_ms is None else self._result(task, job, value)
        except Snooze as snooze:
            try:
                postponed = self._snoozed(task, job, snooze)
            except InvalidArgument as error:
                return await self._failed(task, job, args, kwargs, error, start_s)
            self._meter(task, "rate_limited" if isinstance(snooze, RateLimited) else "snoozed", start_s)
            return postponed
        except asyncio.CancelledError as error:
            if hooks.is_cancelled() or self._is_stopping():
                raise  # the worker releases the job; a middleware may have hidden the cancellation from the task
            return await self._failed(task, job, args, kwargs, error, start_s)
        except GeneratorExit:
            raise
        except BaseException as error:
            return await self._failed(task, job, args, kwargs, error, start_s)
        if self.meters:
            self.meters[task.name].succeeded(_lasted_s(start_s))
        if log.isEnabledFor(self.success_level):
            log.log(
                self.success_level, "job %s: task %s succeeded in %.3f s", job.descriptor, task.name, _lasted_s(start_s)
            )
        return end

    def _result(self, task: Task[..., Any], job: Job, value: Any) -> Succeeded:
        """The end of a job whose result is kept."""
        assert task.options.result_ttl_ms is not None
        packed = task_parts(task).arguments.pack_result(value)
        try:
            self._check_size("result", job, packed)
        except InvalidArgument as error:
            raise ResultNotKept(str(error)) from None
        return Succeeded(packed, task.options.result_ttl_ms)

    def _snoozed(self, task: Task[..., Any], job: Job, snooze: Snooze) -> End:
        """The end of a job that snoozes: postponed, with its new state and last progress if there are any."""
        limited = isinstance(snooze, RateLimited)
        what = "RateLimited" if limited else "Snooze"
        reason = f"task {task.name} raised RateLimited" if limited and self._clients.limited else ""
        delay_ms = milliseconds(f"{what}: delay", snooze.delay)
        if snooze.headers is None:
            return Postponed(delay_ms, pause_reason=reason)
        if job.queue in self._raw:
            raise InvalidArgument(f"{what}: a raw body has no place for a state")
        body = envelope.with_headers(job.body, snooze.headers, what)
        self._check_size(f"{what}: the body with its state", job, body)
        return Postponed(delay_ms, body, reason)

    def _check_size(self, what: str, job: Job, packed: bytes) -> None:
        config = self._client.session.known_config(job.queue)
        if config is not None and len(packed) > config.body_limit:
            raise InvalidArgument(
                f"{what}: expected at most {config.body_limit:,} bytes (the queue's body limit), got {len(packed):,}"
            )

    async def _check_expiry(self, job: Job, expires_ms: int, headers: dict[str, Any]) -> None:
        """Raises Expired for a job that came too late, by the server's clock: ids and tokens carry its time."""
        at_ms, came_ms = headers.get("at"), job.claimed_ms
        due_ms = at_ms or job.created_ms + headers.get("delay", 0)
        if came_ms > due_ms + expires_ms and at_ms:
            # ids stay ahead after the server's clock ran ahead, and `at` knows nothing of that
            came_ms = min(came_ms, await self._server_time_ms(job))
        if came_ms > due_ms + expires_ms:
            self.stats.expired += 1
            raise Expired(f"not run: it came {came_ms - due_ms} ms after it was due, and expires after {expires_ms}")

    async def _server_time_ms(self, job: Job) -> int:
        """TIME of the job's server. The time of the claim, if the server does not answer."""
        shard = self._client.session.queue_shard(job.queue, job.shard).shard
        try:
            return await self._client.run(lambda end: server_time_ms(shard, end))
        except PinLaterError:
            return job.claimed_ms

    def cancel(self, job: Job) -> bool:
        """Cancels a job whose function runs in a thread: sets `context.cancelled`. The worker calls it.

        Returns False for all other jobs: those the worker cancels itself. A job that waits for its batch, or for its
        middleware, is one of them, as it has no thread yet.
        """
        task = self._task_of(job)
        if task is None or task.kind != "thread":
            return False
        batcher = self._batchers.get(task.name)
        if batcher is not None:
            return not batcher.collects(job)
        if id(job) not in self._in_threads:
            return False
        context = self._contexts.get(id(job))
        if context is not None:
            context.cancelled = True
        return True

    def _task_of(self, job: Job) -> Task[..., Any] | None:
        try:
            runnable = self._raw.get(job.queue) or self._tasks.get(envelope.read(job.body)[0])
        except BodyUnreadable:
            return None
        return None if runnable is None else runnable.task

    async def _store_headers(self, job: Job, headers: Mapping[str, Any]) -> None:
        await self._store_body(job, envelope.with_headers(job.body, headers))

    async def _store_body(self, job: Job, body: bytes) -> None:
        if await self._client.checkpoint(Checkpoint(job=job, body=body)):
            raise ClaimLost(f"checkpoint: job {job.descriptor} is not this worker's any more")

    def _meter(self, task: Task[..., Any], end: RunEnd, start_s: float) -> None:
        if self.meters:
            self.meters[task.name].ended(end, _lasted_s(start_s))

    # failing

    async def _failed(
        self,
        task: Task[..., Any],
        job: Job,
        args: list[Any],
        kwargs: dict[str, Any],
        error: BaseException,
        start_s: float,
    ) -> End:
        if not self.worker.is_current():
            return None  # the job was removed or given up, so this end is not reported
        self.stats.timeouts += isinstance(error, TimedOut)
        if self.on_error is not None:
            self.on_error(job, error)
        if isinstance(error, RaisedInProcess):
            end = error.end
        else:
            end = failed_end(task, job, error, self._worker, _lasted_s(start_s))
        last = end.final or job.attempts_remaining <= 1
        self._meter(task, run_end(error, last=last), start_s)
        log_failure(task, job, error, last=last)
        if task.options.result_ttl_ms is not None:
            end = replace(end, awaited=True)
        if (hook := task.options.on_failure) is not None and last:
            failure = Failure(job, task.name, args, kwargs, error, end.status)
            await hooks.call_on_failure(
                hook,
                hooks_limit_s(task.options.timeout_s),
                failure,
                end,
                self._threads,
                self._limit_hooks,
            )
        return end

    def _runnable(self, app: PinLater, invoker: Invoker, task: Task[..., Any]) -> RunnableTask:
        call = invoker.runner(task)
        timeout_s, wait_s = task.options.timeout_s, 0.0 if task.options.batch is None else task.options.batch_wait_s
        if timeout_s is not None and task.kind != "process":  # a process is killed at its timeout
            call = partial(self._limited, task, call, timeout_s + wait_s)
        wrap = partial(wrapped, task.name, all_middleware=app.middleware)
        run = hooks.limited(call, wrap, hooks_limit_s(timeout_s), partial(self._failed, task), self._limit_hooks)
        arguments, needs, context = task_parts(task)
        options = (context, task.options.timeout_s, task.options.batch)
        direct = task.kind == "loop" and options == (None, None, None) and not needs and run is call
        return RunnableTask(task, task.function if direct else None, run, arguments)

    async def _limited(
        self,
        task: Task[..., Any],
        run: Runner,
        limit_s: float,
        job: Job,
        args: list[Any],
        kwargs: dict[str, Any],
        headers: dict[str, Any],
    ) -> Any:
        """Runs the call. The worker gives the job up if the call takes longer than limit_s and a grace."""
        start_s = time.monotonic()
        limit = self.worker.limit_function(job, limit_s, lambda: self._overdue(task, job, args, kwargs, start_s))
        limit.begin()
        try:
            return await run(job, args, kwargs, headers)
        finally:
            limit.lift()

    async def _overdue(
        self, task: Task[..., Any], job: Job, args: list[Any], kwargs: dict[str, Any], start_s: float
    ) -> End:
        """The end of a job whose task was cancelled at its timeout and still runs."""
        assert task.options.timeout_s is not None
        error = TimedOut("it was cancelled in vain, and", task.options.timeout_s)
        return await self._failed(task, job, args, kwargs, error, start_s)

    def _limit_hooks(self, job: Job, most_s: float, judge: Judge) -> Limit:
        return self.worker.limit_hooks(job, most_s, judge)


async def _run_and_call_back(callback: Callable[[Job, Any], None], run: Runner, job: Job, *call: Any) -> Any:
    value = await run(job, *call)
    callback(job, value)
    return value


def _lasted_s(start_s: float) -> float:
    """How long the job of this asyncio task has run, in seconds, without its wait for a free process."""
    return time.monotonic() - max(start_s, sent_s.get())


def _wrong_time(headers: dict[str, Any]) -> str:
    """What is wrong with the headers that say when a job is due; "" if they are right."""
    for name in ("delay", "at"):
        if type(value := headers.get(name, 0)) not in (int, float):
            return f"envelope: expected the header {name} in milliseconds, got {value!r:.60}"
    return ""
