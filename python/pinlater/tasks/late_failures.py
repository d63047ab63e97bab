"""Jobs that failed for good outside of their function: what their task does then, in a process that lives.

A crash fails such a job, or no server takes its end.

Promises that each gets an ERROR record, that a crash is counted, and that the task's `on_failure` is called once at
most.
Risk: if this process dies meanwhile, or stops and the hook takes longer than CLOSE_S, `on_failure` is not called again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from pinlater._core import parse_descriptor
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import BodyUnreadable, PinLaterError
from pinlater.model.jobs import Job, JobInfo, State
from pinlater.model.tracebacks import exc_info_of
from pinlater.tasks import envelope
from pinlater.tasks.outcomes import ProcessDied
from pinlater.tasks.reports import Failure
from pinlater.tasks.task import Task, task_parts
from pinlater.worker.executor import ThreadPool, is_async
from pinlater.worker.time_limits import hooks_limit_s

log: Final = logging.getLogger("pinlater.worker")

#: At its end, a process lets hooks that are under way take so long.
CLOSE_S: Final = 5.0
_NO_TOKEN: Final = bytes(8)
#: How a queue's crash limit says in the status that a job crashed. Without a limit the status says nothing.
_CRASHES: Final = ("worker process ", "lease ran out")


class LateFailures:
    """Those that this process was told of.

    task_of: finds the task of a job; None if there is none.
    threads: for plain hooks.
    counts: crashed jobs by task and queue.
    """

    def __init__(
        self, client: AsyncClient, task_of: Callable[[Job], Task[..., Any] | None], threads: ThreadPool
    ) -> None:
        self._client, self._task_of, self._threads = client, task_of, threads
        self._reports: set[asyncio.Task[None]] = set()
        self.counts = Counter[tuple[str, str]]()

    def report(self, descriptors: list[str], error: Exception | None) -> None:
        """Reports these jobs in the background, if they are still failed. error: see OnFailed."""
        task = asyncio.get_running_loop().create_task(self._report_all(descriptors, error))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def close(self) -> None:
        """Awaits reports that are under way, for a while."""
        if not self._reports:
            return
        _, late = await asyncio.wait(self._reports, timeout=CLOSE_S)
        for task in late:
            task.cancel()
        if late:
            log.error("on_failure of jobs that failed for good did not end in time: %d reports cut short", len(late))

    async def _report_all(self, descriptors: list[str], error: Exception | None) -> None:
        try:
            infos = await self._client.lookup(descriptors, with_body=True)
        except PinLaterError as wrong:
            log.error("jobs %s failed for good, and on_failure is not called: %s", descriptors, wrong)
            return
        for info in infos.values():
            if info.state is State.FAILED:
                await self._report(info, error)

    async def _report(self, info: JobInfo, error: Exception | None) -> None:
        job = _job_of(info)
        task = self._task_of(job)
        name = _name_in(job.body) if task is None else task.name
        if error is None:
            error = _crash(info)
            self.counts["unknown" if task is None else name, job.queue] += 1
        log.error("job %s: task %s failed for good: %s", job.descriptor, name, error, extra={"job": job})
        if task is None or task.options.on_failure is None:
            return
        try:
            args, kwargs = ([job.body], {}) if task.codec == "raw" else envelope.read(job.body)[1:3]
            args, kwargs = task_parts(task).arguments.restore(args, kwargs)
            await self._call(task, Failure(job, name, args, kwargs, error, info.status))
        except Exception as raised:
            text = "job %s: on_failure of task %s failed"
            log.error(text, job.descriptor, name, exc_info=exc_info_of(raised, task.options.on_failure))

    async def _call(self, task: Task[..., Any], failure: Failure) -> None:
        hook, most_s = task.options.on_failure, hooks_limit_s(task.options.timeout_s)
        assert hook is not None
        if is_async(hook):
            async with asyncio.timeout(most_s):
                await hook(failure)
        else:
            await self._threads.run(lambda _: hook(failure), failure.job, most_s)


def _crash(info: JobInfo) -> ProcessDied:
    """The crash that failed a job."""
    said = info.headline.startswith(_CRASHES)
    return ProcessDied(info.headline if said else "its worker process died, or its lease ran out")


def _name_in(body: bytes) -> str:
    """The name of the task that the body of a job names."""
    try:
        return envelope.read(body)[0].decode("utf-8", "replace")
    except BodyUnreadable:
        return "unknown"


def _job_of(info: JobInfo) -> Job:
    queue, shard, priority, id_ = parse_descriptor(info.descriptor)
    body = info.body or b""
    return Job(queue, shard, priority, id_, body, _NO_TOKEN, info.attempts_allowed, info.attempts_remaining)
