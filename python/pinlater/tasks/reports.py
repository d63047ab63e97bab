"""The report of a failed attempt: the text for the custom status, and the Failure that a task's hook gets.

Promises that the newest report fits whole: a status keeps 3,000 bytes, and a report has less. Risks: times are by the
worker's clock.
"""

from __future__ import annotations

import asyncio
import datetime
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pinlater.model.jobs import Job
from pinlater.model.text import clip, describe
from pinlater.model.tracebacks import is_ours
from pinlater.tasks.outcomes import Expired, TaskEnd
from pinlater.worker.time_limits import TimedOut

#: The most bytes of an error that is tried again: five of them fit into a status.
ERROR_BYTES: Final = 400
#: The most bytes of the last error, and of its traceback: they fit together.
LAST_ERROR_BYTES: Final = 1_000
TRACEBACK_BYTES: Final = 1_500
#: The most causes of an error that a report has (members of a group, and what it was raised from), and bytes of each.
MAX_CAUSES: Final = 3
CAUSE_BYTES: Final = 120


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed for good, as `on_failure` gets it.

    job: the job.
    task: the task's name.
    args, kwargs: the arguments of the call.
    error: what ended the last attempt; also Cancel, and Expired if the job was not run.
    status: the text that this attempt adds to the job's custom status.
    """

    job: Job
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    error: BaseException
    status: str


def report(error: BaseException, job: Job, worker: str, lasted_s: float, *, last: bool) -> str:
    """The text for the custom status: the error, its causes, the attempt, its worker, its start and how long it took.

    worker: its name.
    lasted_s: how long the attempt took, in seconds.
    last: whether the job is failed for good; then the report has the end of the traceback too.
    """
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=lasted_s)
    lines = [
        describe(error, LAST_ERROR_BYTES if last else ERROR_BYTES),
        *[f"  {how} {describe(each, CAUSE_BYTES)}" for how, each in islice(_causes(error), MAX_CAUSES)],
        f"  attempt {job.attempt} of {job.attempts_allowed} by {worker}, {start:%Y-%m-%dT%H:%M:%SZ}, {lasted_s:.3f} s",
    ]
    if last and not isinstance(error, TaskEnd | Expired):
        lines += _tail(error)
    return "\n".join(lines) + "\n"


def _causes(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """Causes of an error, the nearest first, each with "of" (a group) or "from". Endless if they form a circle."""
    queue = deque([("", error)])
    while queue:
        how, each = queue.popleft()
        if how:
            yield how, each
        if isinstance(each, BaseExceptionGroup):
            queue.extend(("of", member) for member in each.exceptions[:MAX_CAUSES])
        if each.__cause__ is not None and not isinstance(each.__cause__, asyncio.CancelledError):  # that of a timeout
            queue.append(("from", each.__cause__))


def _tail(error: BaseException) -> list[str]:
    """The innermost frames that fit, outermost first.

    Of a timeout: where the task was at that time. Of a group: where its first error was raised.
    """
    where = error.__cause__ if isinstance(error, TimedOut) and error.__cause__ is not None else error
    while isinstance(where, BaseExceptionGroup):
        where = where.exceptions[0]
    users = (each for each in traceback.walk_tb(where.__traceback__) if not is_ours(each[0]))
    frames = traceback.StackSummary.extract(users)
    kept: list[str] = []
    room = TRACEBACK_BYTES
    for text in reversed(traceback.format_list(frames)):
        room -= len(text.encode("utf-8", "replace"))
        if room < 0:
            break
        kept.insert(0, clip(text.rstrip("\n"), TRACEBACK_BYTES))
    return kept
