"""Runs what is due of an app's jobs and says what ran: for tests, and for immediate mode.

Promises that jobs run as in production: by the worker engine and the dispatcher, on whatever store the app's clients
have, and that it ends though jobs put themselves in line again at once. Risks: it is one worker, which stops when
nothing is due: what comes later waits for the next call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import BodyUnreadable, InvalidArgument
from pinlater.model.jobs import Job, JobInfo, State
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.outcomes import Expired, TaskEnd
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.executor import End, Failed, Postponed
from pinlater.worker.worker import WorkerConfig

if TYPE_CHECKING:
    from pinlater.tasks.app import PinLater

#: A drain whose jobs put so many more in line, or run so often again, goes on for ever.
MAX_RUNS: Final = 10_000

Outcome: TypeAlias = Literal["succeeded", "retried", "failed", "postponed"]


@dataclass(frozen=True, slots=True)
class Call:
    """What a body says. task: its name; "" for a body that is none of a task, with the body as its argument."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Enqueued(Call):
    """A job in line. due_ms: when it may run, in milliseconds since 1970 by the store's clock."""

    queue: str
    descriptor: str
    priority: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Ran(Call):
    """One attempt that was run. value: what the task returned, if it succeeded; of one in a process None, if that can
    not be packed. error: what the task raised, Retry and Cancel included, or that the app has no such
    task; None for other ends.
    """

    queue: str
    descriptor: str
    attempt: int
    outcome: Outcome
    error: BaseException | None
    value: Any = None


def call_of(app: PinLater, queue: str, body: bytes) -> Call:
    """The call that a body of a queue is."""
    raw = next((task.name for task in app.tasks.values() if task.codec == "raw" and task.queue == queue), None)
    if raw is not None:
        return Call(raw, (body,), {})
    try:
        name, args, kwargs, _ = envelope.read(body)
    except BodyUnreadable:
        return Call("", (body,), {})
    return Call(name.decode("utf-8", "replace"), tuple(args), kwargs)


class _Recorder:
    """The dispatcher, and a note of each job it ran. stop: is called when they go on for ever; it is set later."""

    def __init__(self, app: PinLater, ran: list[Ran], runner: TaskRunner) -> None:
        self._app, self._runner, self._ran = app, runner, ran
        self._errors: dict[str, BaseException] = {}
        self._values: dict[str, Any] = {}
        self._began_ms = 0
        self._seen: set[str] = set()
        self._again = 0
        self.stop: Callable[[], None]
        runner.on_error = self._keep
        runner.tell_values(self._keep_value)

    @property
    def endless(self) -> bool:
        """Whether it was stopped."""
        return self._again >= MAX_RUNS

    def _keep(self, job: Job, error: BaseException) -> None:
        self._errors[job.descriptor] = error

    def _keep_value(self, job: Job, value: Any) -> None:
        self._values[job.descriptor] = value

    def _count(self, job: Job) -> None:
        """Runs of what was not in line when the first was claimed, and those of one job after its first."""
        self._began_ms = self._began_ms or job.claimed_ms
        if job.descriptor in self._seen or job.created_ms > self._began_ms:
            self._again += 1
            if self._again == MAX_RUNS:
                self.stop()
        self._seen.add(job.descriptor)

    async def __call__(self, job: Job) -> End:
        self._count(job)
        end = await self._runner(job)
        call, outcome = call_of(self._app, job.queue, job.body), _outcome(job, end)
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
        """A task that is unknown in a queue of the app's own is an error; in another queue it may be another app's."""
        if task and job.queue in self._app.queue_names():
            told = ", ".join(sorted(self._app.tasks))
            self._keep(job, InvalidArgument(f"queue {job.queue!r}: expected a task of the app ({told}), got {task!r}"))


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
    made: Resolved | None = None,
) -> list[Ran]:
    """Runs jobs until nothing is due, in order if one at a time; returns the attempts in the order they ended.

    client, made: for the worker; see worker_of. Raises InvalidArgument when jobs go on for ever: see MAX_RUNS.
    """
    ran: list[Ran] = []
    config = WorkerConfig(concurrency=concurrency, monitor=False)
    around = partial(_Recorder, app, ran)
    async with worker_of(app, queues, config, client=client, around=around, made=made) as worker:
        recorder = worker.handler
        assert isinstance(recorder, _Recorder)
        recorder.stop = worker.request_stop
        await worker.run(burst=True)
        if recorder.endless:
            raise _endless(ran)
    return ran


def _endless(ran: Sequence[Ran]) -> InvalidArgument:
    [(task, runs)] = Counter(each.task for each in ran).most_common(1)
    return InvalidArgument(
        f"task {task!r}: expected its jobs to come to an end, got {runs:,} runs of it, {len(ran):,} of all, and still "
        "jobs are due: tasks put more in line each time, or themselves in line again"
    )


async def pending(app: PinLater, client: AsyncClient) -> list[Enqueued]:
    """The jobs in line, whenever they are due, by time, and of one queue and time by arrival."""
    found = [
        _enqueued(app, queue, info)
        for queue in await client.queue_names()
        for future in (False, True)
        async for info in client.scan(queue, State.PENDING, future=future, with_body=True)
    ]
    return sorted(found, key=lambda job: (job.due_ms, int(job.descriptor.rpartition(":")[2])))


def _enqueued(app: PinLater, queue: str, info: JobInfo) -> Enqueued:
    call = call_of(app, queue, info.body or b"")
    return Enqueued(
        call.task, call.args, call.kwargs, queue, info.descriptor, info.priority, info.run_after_ms or info.created_ms
    )


def raise_first(ran: Sequence[Ran]) -> None:
    """Raises the first error among attempts that no task meant to end so, with a note of where it came from."""
    bad = [each for each in ran if each.error is not None and not isinstance(each.error, TaskEnd | Expired)]
    if not bad:
        return
    error = bad[0].error
    assert error is not None
    more = f"; {len(bad) - 1} more attempts failed" if len(bad) > 1 else ""
    error.add_note(f"task {bad[0].task!r}, attempt {bad[0].attempt}, job {bad[0].descriptor}{more}")
    raise error
