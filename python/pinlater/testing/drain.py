"""Drain: runs an app's due jobs and returns what ran. For tests, and for immediate mode.

Promises that jobs run as in production, by a worker and its task runner, on the store of the app's clients; and that a
drain ends even if jobs enqueue themselves without end. Risks: it is one worker, and it stops when nothing is due. A job
that is due later waits for the next drain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import BodyUnreadable, InvalidArgument
from pinlater.model.jobs import Job, JobInfo, State
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks.app import PinLater, parts_of
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.outcomes import Expired, TaskEnd
from pinlater.tasks.runner import TaskRunner
from pinlater.tasks.task import Task, task_parts
from pinlater.worker.executor import End, Failed, Postponed
from pinlater.worker.worker import WorkerConfig

#: A drain stops after this many runs of jobs that are new, or that ran before: it would never end.
MAX_RUNS: Final = 10_000

Outcome: TypeAlias = Literal["succeeded", "retried", "failed", "postponed"]


@dataclass(frozen=True, slots=True)
class DecodedCall:
    """The call in a body.

    task: the task's name; "" for a body that is no call of a task.
    args, kwargs: the arguments as the annotations of the task's function say; as the body has them if the app has no
        such task, or they do not fit. Of a body that is no call, the body.
    """

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Enqueued(DecodedCall):
    """A pending job.

    queue, descriptor, priority: see JobInfo.
    due_ms: the time from which it may run, in ms since 1970 by the store's clock.
    """

    queue: str
    descriptor: str
    priority: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Ran(DecodedCall):
    """One attempt that ran.

    queue, descriptor, attempt: see Job.
    outcome: "succeeded", "retried", "failed" (for good), or "postponed" (snoozed, rate limited, or no task has its
        name).
    error: what the task raised, Retry and Cancel included; an InvalidArgument if the app has no such task; else None.
    value: what the task returned if it succeeded; None for a value from a process that can not be packed.
    """

    queue: str
    descriptor: str
    attempt: int
    outcome: Outcome
    error: BaseException | None
    value: Any = None


def decode_call(app: PinLater, queue: str, body: bytes) -> DecodedCall:
    """The call in a body of this queue."""
    raw = next((task.name for task in app.tasks.values() if task.codec == "raw" and task.queue == queue), None)
    if raw is not None:
        return DecodedCall(raw, (body,), {})
    try:
        name, args, kwargs, _ = envelope.read(body)
    except BodyUnreadable:
        return DecodedCall("", (body,), {})
    called = name.decode("utf-8", "replace")
    args, kwargs = _restored(app.tasks.get(called), args, kwargs)
    return DecodedCall(called, tuple(args), kwargs)


def _restored(task: Task[..., Any] | None, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as the annotations say, if they fit."""
    if task is not None and (arguments := task_parts(task).arguments).convert:
        with suppress(Exception):  # code of the user's types may raise anything
            return arguments.restore(args, kwargs)
    return args, kwargs


class _Recorder:
    """A handler that runs jobs by the task runner, and records each run in `ran`.

    stop: called when the drain would never end. It must be set before the worker runs.
    """

    def __init__(self, app: PinLater, ran: list[Ran], runner: TaskRunner) -> None:
        self._app, self._runner, self._ran = app, runner, ran
        self._errors: dict[str, BaseException] = {}
        self._values: dict[str, Any] = {}
        self._first_claim_ms = 0
        self._seen: set[str] = set()
        self._extra_runs = 0
        self.stop: Callable[[], None]
        runner.on_error = self._keep_error
        runner.on_value(self._keep_value)

    @property
    def endless(self) -> bool:
        """Whether the drain was stopped as it would never end."""
        return self._extra_runs >= MAX_RUNS

    def _keep_error(self, job: Job, error: BaseException) -> None:
        self._errors[job.descriptor] = error

    def _keep_value(self, job: Job, value: Any) -> None:
        self._values[job.descriptor] = value

    def _count(self, job: Job) -> None:
        """Counts runs of jobs that were enqueued during the drain, and second and later runs of a job."""
        self._first_claim_ms = self._first_claim_ms or job.claimed_ms
        if job.descriptor in self._seen or job.created_ms > self._first_claim_ms:
            self._extra_runs += 1
            if self._extra_runs == MAX_RUNS:
                self.stop()
        self._seen.add(job.descriptor)

    async def __call__(self, job: Job) -> End:
        self._count(job)
        end = await self._runner(job)
        call, outcome = decode_call(self._app, job.queue, job.body), _outcome(job, end)
        value = self._values.pop(job.descriptor, None)
        if isinstance(end, Postponed) and call.task not in self._app.tasks:
            self._check_known(job, call.task)
        self._ran.append(
            Ran(
                call.task,
                call.args,
                call.kwargs,
                job.queue,
                job.descriptor,
                job.attempt,
                outcome,
                self._errors.pop(job.descriptor, None),
                value if outcome == "succeeded" else None,
            )
        )
        return end

    def _check_known(self, job: Job, task: str) -> None:
        """An unknown task in a queue of the app is an error. In another queue it may be a task of another app."""
        if task and job.queue in parts_of(self._app).queue_names():
            names = ", ".join(sorted(self._app.tasks))
            self._keep_error(
                job, InvalidArgument(f"queue {job.queue!r}: expected a task of the app ({names}), got {task!r}")
            )


def _outcome(job: Job, end: End) -> Outcome:
    if isinstance(end, Failed):
        return "failed" if end.final or job.attempts_remaining <= 1 else "retried"
    return "postponed" if isinstance(end, Postponed) else "succeeded"


async def drain(
    app: PinLater,
    queues: Sequence[str],
    client: AsyncClient | None = None,
    *,
    concurrency: int = 1,
    resolved: Resolved | None = None,
) -> list[Ran]:
    """Runs jobs until nothing is due. Returns the attempts in the order in which they ended.

    client, resolved: for the worker; see worker_of.
    concurrency: jobs at once; 1 keeps their order.

    Raises InvalidArgument if the drain would never end; see MAX_RUNS.
    """
    ran: list[Ran] = []
    config = WorkerConfig(concurrency=concurrency, monitor=False)
    around = partial(_Recorder, app, ran)
    async with worker_of(app, queues, config, client=client, around=around, resolved=resolved) as worker:
        recorder = worker.handler
        assert isinstance(recorder, _Recorder)
        recorder.stop = worker.request_stop
        await worker.run(burst=True, through_limits=False)
        if recorder.endless:
            raise _endless_error(ran)
    return ran


def _endless_error(ran: Sequence[Ran]) -> InvalidArgument:
    [(task, runs)] = Counter(each.task for each in ran).most_common(1)
    return InvalidArgument(
        f"task {task!r}: expected its jobs to come to an end, got {runs:,} runs of it, {len(ran):,} of all, and "
        "still jobs are due: each run enqueues more jobs, or the same job again"
    )


async def pending(app: PinLater, client: AsyncClient) -> list[Enqueued]:
    """The pending jobs, due or not, by the time from which they may run; jobs of one queue and time by arrival."""
    found = [
        _enqueued(app, queue, info)
        for queue in await client.queue_names()
        for future in (False, True)
        async for info in client.scan(queue, State.PENDING, future=future, with_body=True)
    ]
    return sorted(found, key=lambda job: (job.due_ms, int(job.descriptor.rpartition(":")[2])))


def _enqueued(app: PinLater, queue: str, info: JobInfo) -> Enqueued:
    call = decode_call(app, queue, info.body or b"")
    return Enqueued(
        call.task, call.args, call.kwargs, queue, info.descriptor, info.priority, info.run_after_ms or info.created_ms
    )


def raise_first(ran: Sequence[Ran]) -> None:
    """Raises the first error, with a note of its job. Retry, Snooze, Cancel and Expired are no errors."""
    failed = [each for each in ran if each.error is not None and not isinstance(each.error, TaskEnd | Expired)]
    if not failed:
        return
    first = failed[0]
    assert first.error is not None
    more = f"; {len(failed) - 1} more attempts failed" if len(failed) > 1 else ""
    first.error.add_note(f"task {first.task!r}, attempt {first.attempt}, job {first.descriptor}{more}")
    raise first.error
