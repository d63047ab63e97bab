"""Jobs that failed by a crash: what their task does then, in another process than the one that died.

Promises that each gets an ERROR record and a count, and that its task's `on_failure` is called.
Risk: if this process dies meanwhile, `on_failure` is not called again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from pinlater._core import parse_descriptor
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError
from pinlater.model.jobs import Job, JobInfo, State
from pinlater.tasks import envelope
from pinlater.tasks.outcomes import ProcessDied
from pinlater.tasks.reports import Failure
from pinlater.tasks.task import Task
from pinlater.worker.executor import ThreadPool
from pinlater.worker.time_limits import hooks_limit_s

log: Final = logging.getLogger("pinlater.worker")

_NO_TOKEN: Final = bytes(8)


class CrashFailures:
    """Those that this process was told of.

    task_of: finds the task of a job; None if there is none.
    threads: for plain hooks.
    counts: jobs by task and queue.
    """

    def __init__(
        self, client: AsyncClient, task_of: Callable[[Job], Task[..., Any] | None], threads: ThreadPool
    ) -> None:
        self._client, self._task_of, self._threads = client, task_of, threads
        self.counts = Counter[tuple[str, str]]()

    async def report(self, descriptors: list[str]) -> None:
        """Reports these jobs, if they are still failed."""
        try:
            infos = await self._client.lookup(descriptors, with_body=True)
        except PinLaterError as error:
            log.error("jobs %s failed for good by a crash, and on_failure is not called: %s", descriptors, error)
            return
        for info in infos.values():
            if info.state is State.FAILED:
                await self._report(info)

    async def _report(self, info: JobInfo) -> None:
        job = _job_of(info)
        task = self._task_of(job)
        name = "unknown" if task is None else task.name
        self.counts[name, job.queue] += 1
        log.error("job %s: task %s failed for good: %s", job.descriptor, name, info.headline, extra={"job": job})
        if task is None or task.options.on_failure is None:
            return
        try:
            args, kwargs = ([job.body], {}) if task.codec == "raw" else envelope.read(job.body)[1:3]
            args, kwargs = task.arguments.restore(args, kwargs)
            failure = Failure(job, task.name, args, kwargs, ProcessDied(info.headline), info.status)
            await self._call(task, failure)
        except Exception as error:
            log.exception("job %s: on_failure of task %s failed", job.descriptor, task.name, exc_info=error)

    async def _call(self, task: Task[..., Any], failure: Failure) -> None:
        hook, most_s = task.options.on_failure, hooks_limit_s(task.options.timeout_s)
        assert hook is not None
        if task.hook_is_async:
            async with asyncio.timeout(most_s):
                await hook(failure)
        else:
            await self._threads.run(lambda _: hook(failure), failure.job, most_s)


def _job_of(info: JobInfo) -> Job:
    queue, shard, priority, id_ = parse_descriptor(info.descriptor)
    body = info.body or b""
    return Job(queue, shard, priority, id_, body, _NO_TOKEN, info.attempts_allowed, info.attempts_remaining)
