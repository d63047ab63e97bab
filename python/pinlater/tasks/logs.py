"""Logs of workers, as text or JSON. Each line names the job it is about, also lines that a task itself logs.

Promises:
    Every record made while a task runs has the job's descriptor, queue, task and attempt, also in the thread that the
    worker runs the task in, and in what the task awaits.
    A record is one JSON document, whatever its values are.
    No message and no field of a text line can begin a line of its own.
Risks: a thread that a task starts itself has no job. The text of a traceback is not escaped.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeAlias

import orjson

from pinlater.model.errors import BodyUnreadable
from pinlater.model.jobs import Job
from pinlater.tasks import envelope

LogFormat: TypeAlias = Literal["text", "json"]

#: The job whose task runs in this context.
current_job: ContextVar[Job | None] = ContextVar("pinlater_job", default=None)
#: The names of raw tasks, by their queue: a raw body does not name its task.
raw_tasks: Final[dict[str, str]] = {}
_TEXT_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS
#: Characters that end or hide a line, and their escapes: control characters but tab, and Unicode's line separators.
_CONTROLS: Final = {
    number: ascii(chr(number))[1:-1] for number in (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)
}
_PLAIN_VALUE: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\"=\[\]]+")
#: The fields of every record. All others come from the caller's extra=.
_STANDARD_FIELDS: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "job", "job_fields", "taskName"}


class Lines(str):
    """A message of several lines. Each line is escaped already."""

    __slots__ = ()


def escaped(text: str) -> str:
    """The text on one line."""
    return text.translate(_CONTROLS)


class JobFilter(logging.Filter):
    """Adds `job_fields` to each record: job (the descriptor), queue, task, attempt. Empty if there is no job.

    Add it to log handlers of your own; those of `pinlater run` have it. The job is the one that runs, or the Job that
    the caller passed as extra={"job": …}.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns True for every record."""
        given = getattr(record, "job", None)
        job = given if isinstance(given, Job) else current_job.get()
        record.job_fields = {} if job is None else _fields(job)
        return True


class TextFormatter(logging.Formatter):
    """Formats a record as a line, with the job at its end and a traceback below it."""

    def __init__(self) -> None:
        super().__init__(_TEXT_LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """See logging.Formatter."""
        fields = getattr(record, "job_fields", {})
        job = " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items() if name != "queue")
        text = super().formatMessage(record)
        return (text if isinstance(record.msg, Lines) else escaped(text)) + (f" [{job}]" if job else "")


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON document: time, level, logger, process, message, the job's fields, error (the
    traceback), and the caller's extra= unless one of these has its name.
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
            document["error"] = record.exc_text or self.formatException(record.exc_info)
        for name, value in vars(record).items():
            if name not in _STANDARD_FIELDS:
                document.setdefault(name, value)
        try:
            return orjson.dumps(document, default=str, option=_OPTIONS).decode()
        except Exception:
            return orjson.dumps({_printable(name): _json_value(value) for name, value in document.items()}).decode()


def set_up(log_format: LogFormat) -> None:
    """Gives the handlers of the root logger this format and a JobFilter."""
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
        handler.addFilter(JobFilter())


def task_name_of(job: Job) -> str:
    """The name of the job's task; "" if the body can not be read."""
    if job.queue in raw_tasks:
        return raw_tasks[job.queue]
    try:
        return envelope.read(job.body)[0].decode("utf-8", "replace")
    except BodyUnreadable:
        return ""


def _quoted(text: str) -> str:
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        return f"{_printable(record.msg)} {_printable(record.args)}"


def _json_value(value: Any) -> Any:
    """The value as JSON, or else its text."""
    try:
        return orjson.Fragment(orjson.dumps(value, default=str, option=_OPTIONS))
    except Exception:
        return _printable(value)


def _printable(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()


def _fields(job: Job) -> dict[str, Any]:
    return {"job": job.descriptor, "queue": job.queue, "task": task_name_of(job), "attempt": job.attempt}
