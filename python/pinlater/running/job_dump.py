"""A dump of running jobs with their stacks: the answer to SIGUSR1.

Promises that running jobs do no extra work for the dump, and that the dump works while a task blocks the loop.
Risks:
    The stack of a task that waits for a future does not show the code that will set the future.
    While a thread holds the GIL, the dump waits.
"""

from __future__ import annotations

import datetime
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from pinlater.model.jobs import Job
from pinlater.tasks.logs import escaped, task_name_of
from pinlater.worker.executor import call_plain
from pinlater.worker.worker import Worker

#: A dump shows at most this many jobs.
MAX_SHOWN: Final = 1_000


def dump(worker: Worker) -> str:
    """Each running job with its stack, then each thread with its stack."""
    running = list(worker.running.items())
    threads = sys._current_frames()
    frames_by_job = {id(job): frame for frame in threads.values() if (job := _job_of(frame)) is not None}
    lines = [f"{len(running)} jobs run, {len(worker.prefetched)} wait for a worker slot"]
    for future, held in running[:MAX_SHOWN]:
        job = held.job
        claimed = datetime.datetime.fromtimestamp(job.claimed_ms / 1000, datetime.UTC)
        lines.append(
            f"job {job.descriptor}: task {task_name_of(job)}, attempt {job.attempt}, claimed {claimed:%H:%M:%SZ}"
        )
        frame = frames_by_job.get(id(job))
        frames = _stack_of(frame) if frame is not None else list(_awaited(getattr(future, "get_coro", lambda: None)()))
        lines += _formatted(frames)
    for thread in threading.enumerate():
        frame = threads.get(thread.ident or 0)
        lines.append(f"thread {thread.name}")
        lines += [] if frame is None else _formatted(_stack_of(frame))
    return "\n".join(map(escaped, lines))


def _job_of(frame: FrameType | None) -> Job | None:
    """The job whose synchronous function runs in this frame's thread, or None."""
    while frame is not None:
        if frame.f_code is call_plain.__code__:
            return frame.f_locals.get("job")
        frame = frame.f_back
    return None


def _stack_of(frame: FrameType) -> list[FrameType]:
    """The frames of a stack, outermost first."""
    return [found for found, _ in traceback.walk_stack(frame)][::-1]


def _awaited(awaiting: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of what it awaits, outermost first."""
    while awaiting is not None:
        frame = getattr(awaiting, "cr_frame", None) or getattr(awaiting, "gi_frame", None)
        if frame is not None:
            yield frame
        awaiting = getattr(awaiting, "cr_await", None) or getattr(awaiting, "gi_yieldfrom", None)


def _formatted(frames: list[FrameType]) -> list[str]:
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    return [f"  {line}" for entry in summary.format() for line in entry.rstrip().splitlines()]
