"""Logs of workers, as text or as JSON, with the job that a line is about: also lines that a task itself logs.

Promises the job's descriptor, queue, task and attempt as fields of every record made while its task runs, in threads
and in what the task awaits too. Risks: a thread that a task starts on its own knows no job.
"""

from __future__ import annotations

import datetime
import logging
import os
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, get_args

import orjson

from pinlater.errors import BodyUnreadable
from pinlater.framework import envelope
from pinlater.jobs import Job

LogFormat: TypeAlias = Literal["text", "json"]
LOG_FORMATS: Final = get_args(LogFormat)

#: The job that the code runs for.
current_job: ContextVar[Job | None] = ContextVar("pinlater_job", default=None)
#: Tasks whose bodies do not name them, by queue.
raw_tasks: Final[dict[str, str]] = {}
_OURS: Final = str(Path(__file__).parent.parent) + os.sep
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: What every record has; the rest is what the caller gave as extra=.
_USUAL: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "job", "job_fields", "taskName"}


class JobFilter(logging.Filter):
    """Adds `job_fields` to each record: job (its descriptor), queue, task, attempt; empty where there is no job.

    For handlers of your own; those of `pinlater run` have it. A record with a Job as extra={"job": …} is about that.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass."""
        told = getattr(record, "job", None)
        job = told if isinstance(told, Job) else current_job.get()
        record.job_fields = {} if job is None else _fields(job)
        return True


class TextFormatter(logging.Formatter):
    """A line a record, with the job at its end."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """See logging.Formatter."""
        fields = getattr(record, "job_fields", {})
        told = " ".join(f"{name}={value}" for name, value in fields.items() if name != "queue")
        return super().formatMessage(record) + (f" [{told}]" if told else "")


class JsonFormatter(logging.Formatter):
    """A JSON document a record: time, level, logger, process, message, the job's fields, error (the traceback), and
    what the caller gave as extra=.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        given = {name: value for name, value in vars(record).items() if name not in _USUAL}
        document: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "job_fields", {}),
            **given,
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def set_up(log_format: LogFormat) -> None:
    """Gives the handlers of the root logger this format."""
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
        handler.addFilter(JobFilter())


def raised(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """exc_info of what a task raised: from the first frame that is not ours; all of them where there is none such."""
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_OURS):
        where = where.tb_next
    return type(error), error, where or error.__traceback__


def task_of(job: Job) -> str:
    """The name of its task; "" if its body can not be read."""
    if job.queue in raw_tasks:
        return raw_tasks[job.queue]
    try:
        return envelope.read(job.body)[0].decode("utf-8", "replace")
    except BodyUnreadable:
        return ""


def _fields(job: Job) -> dict[str, Any]:
    return {"job": job.descriptor, "queue": job.queue, "task": task_of(job), "attempt": job.attempt}
