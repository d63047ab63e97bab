"""What is kept of a failed attempt: the text in the custom status, and the Failure a task's hook gets.

Promises that the newest error is whole: a status keeps 3,000 bytes, and what stands here is less. Risks: times are of
the worker's clock.
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
from pinlater.worker.executor import TimedOut

#: Of an error that is tried again: so that five fit. Of the last one, and of its traceback: they fit together.
ERROR_BYTES: Final = 400
LAST_ERROR_BYTES: Final = 1_000
TRACEBACK_BYTES: Final = 1_500
#: Of what is behind an error: the members of a group, and what it was raised from.
BEHIND: Final = 3
BEHIND_BYTES: Final = 120


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that stays failed, as `on_failure` gets it.

    args, kwargs: of the call. error: what ended its last attempt; Cancel and Expired (it was not run) among them.
    status: the text that goes to the custom status.
    """

    job: Job
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    error: BaseException
    status: str


def report(error: BaseException, job: Job, worker: str, lasted_s: float, *, last: bool) -> str:
    """The error, and what is behind it; the attempt, where and when it was; of the last attempt the end of the
    traceback too.
    """
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=lasted_s)
    lines = [
        describe(error, LAST_ERROR_BYTES if last else ERROR_BYTES),
        *[f"  {how} {describe(each, BEHIND_BYTES)}" for how, each in islice(_behind(error), BEHIND)],
        f"  attempt {job.attempt} of {job.attempts_allowed} by {worker}, {began:%Y-%m-%dT%H:%M:%SZ}, {lasted_s:.3f} s",
    ]
    if last and not isinstance(error, TaskEnd | Expired):
        lines += _tail(error)
    return "\n".join(lines) + "\n"


def _behind(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """The nearest first. Without end, where errors are each other's causes."""
    found = deque([("", error)])
    while found:
        how, each = found.popleft()
        if how:
            yield how, each
        if isinstance(each, BaseExceptionGroup):
            found.extend(("of", member) for member in each.exceptions[:BEHIND])
        if each.__cause__ is not None and not isinstance(each.__cause__, asyncio.CancelledError):  # that of a timeout
            found.append(("from", each.__cause__))


def _tail(error: BaseException) -> list[str]:
    """The innermost frames that fit, outermost first; of a timeout, where the task was then; of a group, where its
    first error was.
    """
    where = error.__cause__ if isinstance(error, TimedOut) and error.__cause__ is not None else error
    while isinstance(where, BaseExceptionGroup):
        where = where.exceptions[0]
    found = (each for each in traceback.walk_tb(where.__traceback__) if not is_ours(each[0]))
    frames = traceback.StackSummary.extract(found)
    kept: list[str] = []
    room = TRACEBACK_BYTES
    for text in reversed(traceback.format_list(frames)):
        room -= len(text.encode("utf-8", "replace"))
        if room < 0:
            break
        kept.insert(0, clip(text.rstrip("\n"), TRACEBACK_BYTES))
    return kept
