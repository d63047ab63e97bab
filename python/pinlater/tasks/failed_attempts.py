"""What a failed attempt means for its job: another attempt after a pause, or failed for good.

Promises an end for every error, also if the task's own backoff raises.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from pinlater.model.jobs import Job
from pinlater.model.text import clip, describe
from pinlater.model.times import milliseconds
from pinlater.model.tracebacks import ExcInfo, exc_info_of
from pinlater.tasks.arguments import ResultNotKept, WrongArgument
from pinlater.tasks.batch_tasks import never_raised
from pinlater.tasks.meters import RunEnd
from pinlater.tasks.outcomes import Cancel, Expired, RaisedInProcess, Retry
from pinlater.tasks.reports import ERROR_BYTES, report
from pinlater.tasks.retry_policies import default_pause_s
from pinlater.tasks.task import Task, call_never_fits
from pinlater.worker.executor import Failed

log: Final = logging.getLogger("pinlater.worker")

#: The most bytes of an error in the line of the log.
LOGGED_BYTES: Final = 200
#: After these, another attempt is useless.
_FINAL: Final[tuple[type[BaseException], ...]] = (Cancel, Expired, WrongArgument, ResultNotKept)


def failed_end(task: Task[..., Any], job: Job, error: BaseException, worker: str, lasted_s: float) -> Failed:
    """How an attempt that raised this error ends.

    worker: its name, for the report.
    lasted_s: how long the attempt took, in seconds.
    """
    give_up_on = () if isinstance(error, Retry) else task.options.give_up_on
    final = isinstance(error, (*_FINAL, *give_up_on)) or call_never_fits(task, job, error)
    if final or job.attempts_remaining <= 1:
        return Failed(report(error, job, worker, lasted_s, last=True), 0, final)
    note = ""
    try:
        delay_ms = _delay_ms(task, job, error)
    except Exception as of_backoff:
        note = f"  its backoff failed, so the default one applies: {describe(of_backoff, ERROR_BYTES)}\n"
        log.warning("job %s: backoff of task %s failed", job.descriptor, task.name, exc_info=exc_info_of(of_backoff))
        delay_ms = milliseconds("backoff", default_pause_s(job.attempt, error))
    return Failed(report(error, job, worker, lasted_s, last=False) + note, delay_ms)


def _delay_ms(task: Task[..., Any], job: Job, error: BaseException) -> int:
    if isinstance(error, Retry) and error.delay is not None:
        return milliseconds("Retry: delay", error.delay)
    pause_s = task.options.backoff(job.attempt, error)
    return milliseconds("backoff", default_pause_s(job.attempt, error) if pause_s is None else pause_s)


def run_end(error: BaseException, *, last: bool) -> RunEnd:
    """How a failed run is counted. last: whether the job is failed for good."""
    if isinstance(error, Cancel | Expired):
        return "cancelled" if isinstance(error, Cancel) else "expired"
    return "failed" if last else "retried"


def log_failure(task: Task[..., Any], job: Job, error: BaseException, *, last: bool) -> None:
    """Logs a failed attempt: as an error if the job is failed for good, else as a warning.

    A job that its task cancelled is information. What a task ends on purpose has no traceback.
    """
    deliberate = isinstance(error, Retry | Cancel | Expired)
    log.log(
        logging.INFO if isinstance(error, Cancel) else logging.ERROR if last else logging.WARNING,
        "job %s: task %s failed%s in attempt %d of %d: %s",
        job.descriptor,
        task.name,
        " for good" if last else "",
        job.attempt,
        job.attempts_allowed,
        clip(str(error), LOGGED_BYTES) if isinstance(error, RaisedInProcess) else describe(error, LOGGED_BYTES),
        exc_info=None if deliberate else _exc_info(task, error),
    )


def _exc_info(task: Task[..., Any], error: BaseException) -> ExcInfo:
    """From the task's own frames on. An error without such frames here has no traceback, or has it as text."""
    if isinstance(error, RaisedInProcess) or never_raised(error):
        return type(error), error, None
    return exc_info_of(error, task.function)


def _show_text(record: logging.LogRecord) -> bool:
    """A filter of records: the traceback of an error in a process is its text, whatever formats the record."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, RaisedInProcess):
        record.exc_text = error.traceback or str(error)
    return True


log.addFilter(_show_text)
