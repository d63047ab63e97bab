"""Logs of workers, as text or as JSON, with the job that a line is about: also lines that a task itself logs.

Promises the job's descriptor, queue, task and attempt as fields of every record made while its task runs, in threads
and in what the task awaits too; that each record is one JSON document whatever it is given, and that no message and no
field makes a line of text of its own. Risks: a thread that a task starts on its own knows no job; a traceback's text is
as the exception has it.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

import orjson

from pinlater.model.errors import BodyUnreadable
from pinlater.model.jobs import Job
from pinlater.model.tracebacks import is_ours
from pinlater.tasks import envelope

LogFormat: TypeAlias = Literal["text", "json"]

#: The job that the code runs for.
current_job: ContextVar[Job | None] = ContextVar("pinlater_job", default=None)
#: Tasks whose bodies do not name them, by queue.
raw_tasks: Final[dict[str, str]] = {}
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS
#: What ends or hides a line: control characters but tab, and Unicode's line separators.
_CONTROLS: Final = {
    number: ascii(chr(number))[1:-1] for number in (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)
}
_PLAIN_VALUE: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\"=\[\]]+")
#: What every record has; the rest is what the caller gave as extra=.
_USUAL: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "job", "job_fields", "taskName"}


class Lines(str):
    """A message of several lines, each of them escaped."""

    __slots__ = ()


def escaped(text: str) -> str:
    """On one line."""
    return text.translate(_CONTROLS)


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
    """A line a record, with the job at its end; a traceback below it."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """See logging.Formatter."""
        fields = getattr(record, "job_fields", {})
        told = " ".join(f"{name}={_value(str(value))}" for name, value in fields.items() if name != "queue")
        text = super().formatMessage(record)
        return (text if isinstance(record.msg, Lines) else escaped(text)) + (f" [{told}]" if told else "")


class JsonFormatter(logging.Formatter):
    """A JSON document a record: time, level, logger, process, message, the job's fields, error (the traceback), and
    what the caller gave as extra= under other names.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        document: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": _message(record),
            **getattr(record, "job_fields", {}),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        for name, value in vars(record).items():
            if name not in _USUAL:
                document.setdefault(name, value)
        try:
            return orjson.dumps(document, default=str, option=_OPTIONS).decode()
        except Exception:
            return orjson.dumps({_text(name): _sayable(value) for name, value in document.items()}).decode()


def set_up(log_format: LogFormat) -> None:
    """Gives the handlers of the root logger this format."""
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
        handler.addFilter(JobFilter())


def raised(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """exc_info of what a task raised: from the first frame that is not ours; all of them where there is none such."""
    where = error.__traceback__
    while where is not None and is_ours(where.tb_frame):
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


def _value(text: str) -> str:
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        return f"{_text(record.msg)} {_text(record.args)}"


def _sayable(value: Any) -> Any:
    """As it is, or its text."""
    try:
        return orjson.Fragment(orjson.dumps(value, default=str, option=_OPTIONS))
    except Exception:
        return _text(value)


def _text(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()


def _fields(job: Job) -> dict[str, Any]:
    return {"job": job.descriptor, "queue": job.queue, "task": task_of(job), "attempt": job.attempt}
