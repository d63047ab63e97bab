"""The dispatcher: the engine's handler that finds each job's task, runs it, and says how it ended.

Promises that nothing in a body or a task ends the worker, and an end for every job as docs/tasks.md has them. Risks: a
plain function that is past its timeout goes on in its thread, beside the next attempt.
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
from pinlater.model.errors import BodyUnreadable, ClaimLost, InvalidArgument
from pinlater.model.jobs import Checkpoint, Job
from pinlater.model.text import clip, describe
from pinlater.tasks import envelope, hooks
from pinlater.tasks.app import PinLater
from pinlater.tasks.context import current_trace
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.invoke import Invoker
from pinlater.tasks.logs import current_job, raised, raw_tasks
from pinlater.tasks.meters import Meter, RunEnd
from pinlater.tasks.middleware import Runner, sees_values, wrapped
from pinlater.tasks.outcomes import Cancel, Expired, RaisedInProcess, Retry, Snooze
from pinlater.tasks.reports import ERROR_BYTES, Failure, report
from pinlater.tasks.retry_policies import Exponential, milliseconds
from pinlater.tasks.task import Task
from pinlater.tasks.task_processes import ProcessPool, cores, given_s
from pinlater.worker.executor import End, Failed, Postponed, Succeeded, ThreadPool, TimedOut
from pinlater.worker.worker import Worker

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
    """A task as it is run here. plain: its function, where a call of it is all there is to do; else run does it."""

    task: Task[..., Any]
    plain: Callable[..., Awaitable[Any]] | None
    run: Runner


class TaskRunner:
    """client: the worker's. concurrency: how many tasks run at once; of those that are plain functions, as many in
    threads. processes: how many in processes. made: what the app's lifespan shares. Made on the worker's loop.
    """

    def __init__(
        self,
        app: PinLater,
        client: AsyncClient,
        concurrency: int,
        processes: int | None = None,
        made: Resolved | None = None,
    ) -> None:
        self._client = client
        self._worker = client.settings.source
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPool(concurrency, self._loop)
        name = app.import_name() if any(task.kind == "process" for task in app.tasks.values()) else ""
        seen = sees_values(app.middleware)
        url = None if app.clients.source is None else app.clients.source.url()
        self._processes = ProcessPool(name, processes or cores(), self._worker, self._keep_body, seen, url)
        calling = Invoker(
            self._loop, self._threads, self._processes, self._keep_headers, made or {}, concurrency, self._is_stopping
        )
        self._batchers, self._contexts = calling.batchers, calling.contexts
        self._hooks = hooks.HookTimes(self._give_up)
        known = {name: self._known(app, calling, task) for name, task in app.tasks.items()}
        self._tasks = {name.encode(): each for name, each in known.items() if each.task.codec != "raw"}
        self._raw = {each.task.queue: each for each in known.values() if each.task.codec == "raw"}
        raw_tasks.update({queue: each.task.name for queue, each in self._raw.items()})
        self.stats = TaskStats()
        #: Told of each attempt that failed, with its error.
        self.on_error: Callable[[Job, BaseException], None] | None = None
        #: Whose handler this is, where there is one.
        self.worker: Worker | None = None
        #: By task; empty: nothing is counted but stats.
        self.meters: dict[str, Meter] = {}

    def tell_values(self, tell: Callable[[Job, Any], None]) -> None:
        """Each value that a task returns is told from now on, with its job."""
        self._processes.values = True
        tables: list[dict[Any, Known]] = [self._tasks, self._raw]
        for table in tables:
            for key, each in table.items():
                table[key] = each._replace(plain=None, run=partial(_run_and_tell, tell, each.run))

    async def close(self) -> None:
        """Lets the threads end, and ends the processes."""
        self._hooks.close()
        self._threads.close()
        await self._processes.close()

    def on_stop(self) -> None:
        """The worker begins to stop: batches that were not started are handed back."""
        for batcher in self._batchers.values():
            batcher.hand_back()

    def _is_stopping(self) -> bool:
        return self.worker is not None and self.worker.stopping

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
        task, plain, run = known
        expires_ms = task.running.expires_ms
        if headers and expires_ms is not None and (wrong := _wrong_time(headers)):
            return self._unreadable(job, BodyUnreadable(wrong))
        current_job.set(job)  # in this job's own asyncio task
        try:
            if expires_ms is not None:
                self._check_expiry(job, expires_ms, headers)
            if headers and type(trace := headers.get("trace")) is str:
                current_trace.set(trace)
            value = await (run(job, args, kwargs, headers) if plain is None else plain(*args, **kwargs))
            end = None if task.running.result_ttl_ms is None else self._result(task, job, value)
        except Snooze as snooze:
            try:
                postponed = self._snoozed(job, snooze)
            except InvalidArgument as error:
                return await self._failed(task, job, args, kwargs, error, began_s)
            self._meter(task, "snoozed", began_s)
            return postponed
        except asyncio.CancelledError as error:
            if hooks.cut_off() or self._is_stopping():
                raise  # handed back; it may have been cancelled behind a middleware
            return await self._failed(task, job, args, kwargs, error, began_s)
        except GeneratorExit:
            raise
        except BaseException as error:
            return await self._failed(task, job, args, kwargs, error, began_s)
        if self.meters:
            self.meters[task.name].succeeded(_lasted_s(began_s))
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
        known = self._client.session.known_config(job.queue)
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
        """A running job was removed. True if its thread is told here; else the worker cancels what it awaits, which is
        no thread yet where its batch has not begun.
        """
        try:
            known = self._raw.get(job.queue) or self._tasks.get(envelope.read(job.body)[0])
        except BodyUnreadable:
            return False
        if known is None or known.task.kind != "thread":
            return False
        batcher = self._batchers.get(known.task.name)
        if batcher is not None:
            return not batcher.collects(job)
        context = self._contexts.get(id(job))
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
            self.meters[task.name].ended(end, _lasted_s(began_s))

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
        if self.worker is not None and not self.worker.is_current():
            return None  # the job was removed, or given up: what becomes of this is nobody's business
        self.stats.timeouts += isinstance(error, TimedOut)
        if self.on_error is not None:
            self.on_error(job, error)
        if isinstance(error, RaisedInProcess):
            end = error.end
        else:
            end = judged(task, job, error, self._worker, _lasted_s(began_s))
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
            exc_info=None if deliberate else raised(error),
        )
        if task.running.result_ttl_ms is not None:
            end = replace(end, awaited=True)
        if (hook := task.running.on_failure) is not None and last:
            failure = Failure(job, task.name, args, kwargs, error, end.status)
            most_s = hooks.limit_s(task.running.timeout_s)
            await self._hooks.tell(hook, task.hook_is_async, most_s, failure, end, self._threads)
        return end

    def _known(self, app: PinLater, calling: Invoker, task: Task[..., Any]) -> Known:
        bare = calling.runner(task)
        timeout_s, waits_s = task.running.timeout_s, 0.0 if task.running.batch is None else task.running.batch_wait_s
        if timeout_s is not None and task.kind != "process":  # a process is killed in time
            bare = partial(self._limited, task, bare, timeout_s + waits_s)
        around = partial(wrapped, task.name, all_of_them=app.middleware)
        run = self._hooks.limited(bare, around, hooks.limit_s(timeout_s), partial(self._failed, task))
        asks = (task.context, task.running.timeout_s, task.running.batch)
        plain = task.kind == "loop" and asks == (None, None, None) and not task.needs and run is bare
        return Known(task, task.function if plain else None, run)

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
        """The call, whose job is given up when it lasts longer than that and a grace."""
        if self.worker is None:
            return await run(job, args, kwargs, headers)
        began_s = time.monotonic()
        lift = self.worker.limit(job, limit_s, lambda: self._overdue(task, job, args, kwargs, began_s))
        try:
            return await run(job, args, kwargs, headers)
        finally:
            lift()

    async def _overdue(
        self, task: Task[..., Any], job: Job, args: list[Any], kwargs: dict[str, Any], began_s: float
    ) -> End:
        """It goes on past its timeout, though it was cancelled."""
        assert task.running.timeout_s is not None
        error = TimedOut("it was cancelled in vain, and", task.running.timeout_s)
        return await self._failed(task, job, args, kwargs, error, began_s)

    def _give_up(self, running: asyncio.Task[Any], judge: hooks.Judge) -> None:
        if self.worker is not None:
            self.worker.give_up(running, judge)


async def _run_and_tell(tell: Callable[[Job, Any], None], run: Runner, job: Job, *call: Any) -> Any:
    value = await run(job, *call)
    tell(job, value)
    return value


def _lasted_s(began_s: float) -> float:
    """How long the job of this asyncio task has run; a wait for a free process is not counted."""
    return time.monotonic() - max(began_s, given_s.get())


def judged(task: Task[..., Any], job: Job, error: BaseException, worker: str, lasted_s: float) -> Failed:
    """How an attempt that failed counts, by its error and the task's options."""
    give_up_on = () if isinstance(error, Retry) else task.running.give_up_on
    final = isinstance(error, (Cancel, Expired, *give_up_on)) or task.never_fits(job, error)
    if final or job.attempts_remaining <= 1:
        return Failed(report(error, job, worker, lasted_s, last=True), 0, final)
    wrong = ""
    try:
        delay_ms = _delay_ms(task, job, error)
    except Exception as of_backoff:
        wrong = f"  how long it waits is not known, so as by default: {describe(of_backoff, ERROR_BYTES)}\n"
        log.warning("job %s: backoff of task %s failed", job.descriptor, task.name, exc_info=of_backoff)
        delay_ms = milliseconds("backoff", Exponential()(job.attempt, error))
    return Failed(report(error, job, worker, lasted_s, last=False) + wrong, delay_ms)


def _wrong_time(headers: dict[str, Any]) -> str:
    """What is wrong with the headers that tell when a job is due; "" if nothing is."""
    for name in ("delay", "at"):
        if type(value := headers.get(name, 0)) not in (int, float):
            return f"envelope: expected the header {name} in milliseconds, got {value!r:.60}"
    return ""


def _run_end(error: BaseException, last: bool) -> RunEnd:
    if isinstance(error, Cancel | Expired):
        return "cancelled" if isinstance(error, Cancel) else "expired"
    return "failed" if last else "retried"


def _delay_ms(task: Task[..., Any], job: Job, error: BaseException) -> int:
    if isinstance(error, Retry) and error.delay is not None:
        return milliseconds("Retry: delay", error.delay)
    return milliseconds("backoff", task.running.backoff(job.attempt, error))
