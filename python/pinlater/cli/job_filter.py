"""Which jobs of a queue and a state a command is for: the options --task, --error, --since and --until.

Promises that a scan reads page by page. Risks: times of updates are those of the server's clock.
"""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from itertools import takewhile
from typing import Any, Final, TypeVar

import click

from pinlater.cli.command_base import usage
from pinlater.cli.output import moment, task_info
from pinlater.cli.progress import counting
from pinlater.cli.settings import AnyClient, Settings
from pinlater.cli.times import PAST
from pinlater.model.jobs import JobInfo, State
from pinlater.tasks.handles import TaskInfo

F = TypeVar("F", bound=Callable[..., Any])

#: Jobs that a scan with a filter reads at once. A page is at most 1 MiB.
SCAN_PAGE: Final = 1000
#: What follows an error in the report of a task's attempt (`tasks/reports.py`): the attempt, and the traceback.
_ATTEMPT: Final = re.compile(r"  attempt \d+ of \d+ by ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """What jobs must be. None: anything.

    - task: the name of their task.
    - error: text in the newest entry of their status: the last error and its causes.
    - since_ms, until_ms: the time of their last update, from the first to before the second.
    """

    task: str | None = None
    error: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def __bool__(self) -> bool:
        return self != JobFilter()

    @property
    def options(self) -> list[str]:
        """The options that were given."""
        values = {"--task": self.task, "--error": self.error, "--since": self.since_ms, "--until": self.until_ms}
        return [option for option, value in values.items() if value is not None]

    @property
    def in_words(self) -> str:
        """What follows "no failed jobs"."""
        return f"of task {self.task}" if self == JobFilter(task=self.task) != JobFilter() else "match"

    def matches(self, info: TaskInfo) -> bool:
        """Whether a job is wanted."""
        return (
            (self.task is None or info.task == self.task)
            and (self.error is None or self.error in last_error(info.status))
            and (self.since_ms is None or info.updated_ms >= self.since_ms)
            and (self.until_ms is None or info.updated_ms < self.until_ms)
        )


def last_error(status: str) -> str:
    """The newest entry of a status, a line that is not indented and those after it, without a task's traceback."""
    lines = status.splitlines()
    first = max((at for at, line in enumerate(lines) if line[:1].strip()), default=0)
    return "\n".join(takewhile(lambda line: not _ATTEMPT.match(line), lines[first:]))


def filter_options(function: F) -> F:
    """Adds the options of a filter. The command gets them as `wanted`, a JobFilter."""

    @functools.wraps(function)
    def call(
        *args: Any, task: str | None, error: str | None, since: int | None, until: int | None, **options: Any
    ) -> Any:
        _check_window(since, until)
        wanted = JobFilter(task=task, error=error, since_ms=since, until_ms=until)
        return function(*args, wanted=wanted, **options)

    decorated: Any = call
    for option in (
        click.option("--until", type=PAST, metavar="WHEN", help="Only jobs whose last update was before then."),
        click.option("--since", type=PAST, metavar="WHEN", help="Only jobs updated since: 2h (ago), 08:00, or a date."),
        click.option("--error", metavar="TEXT", help="Only jobs with this text in their last error or status."),
        click.option("--task", metavar="NAME", help="Only jobs of this task."),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result


def _check_window(since_ms: int | None, until_ms: int | None) -> None:
    """Refuses a window that no update can be in."""
    if since_ms is not None and since_ms > time.time() * 1000:
        usage(f"--since: expected a time that is over, got {moment(since_ms)}")
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        usage(f"--since and --until: expected a time and a later one, got {moment(since_ms)} and {moment(until_ms)}")


def matching(jobs: Iterator[JobInfo], wanted: JobFilter, seen: Callable[[int], None]) -> Iterator[TaskInfo]:
    """The wanted ones of jobs that a scan reads with their bodies. seen: called with the number that was read."""
    for number, info in enumerate(jobs, 1):
        if number % SCAN_PAGE == 0:
            seen(number)
        task = task_info(info, body=True)
        if wanted.matches(task):
            yield task


def oldest(
    settings: Settings,
    client: AnyClient,
    queue: str,
    state: State,
    wanted: JobFilter,
    *,
    priority: int | None,
    limit: int,
) -> tuple[list[TaskInfo], bool]:
    """Up to `limit` wanted jobs, highest priority and oldest update first, and whether there are more.

    Pending jobs are those that are due and those that are scheduled.
    """
    scan = functools.partial(client.scan, queue, state, priority=priority, with_body=True, page_size=SCAN_PAGE)

    def jobs() -> Iterator[JobInfo]:
        if state is State.PENDING:
            yield from scan(future=True)
        yield from scan()

    with scanning(settings, queue) as seen:
        small = (task_info(info, body=False, arguments=False) for info in matching(jobs(), wanted, seen))
        found = nsmallest(limit + 1, small, key=lambda info: (info.priority, info.updated_ms, info.descriptor))
    chosen = list({info.descriptor: info for info in found}.values())  # one may have become due meanwhile
    return chosen[:limit], len(chosen) > limit


def scanning(settings: Settings, queue: str) -> Any:
    """Shows how many jobs were read, unless JSON goes to the same terminal."""
    return counting(f"reading jobs of {queue}", hidden=settings.as_json and sys.stdout.isatty())
