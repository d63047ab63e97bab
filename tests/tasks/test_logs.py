"""Log formats: a record is one document or one line, whatever values it has.

The formatters are those that `pinlater run` sets up. Tests on real processes are in test_run_signals.py.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater import InvalidArgument
from pinlater.model.jobs import Job
from pinlater.tasks import envelope
from pinlater.tasks.logs import JobFilter, JsonFormatter, Lines, TextFormatter, current_job


class Raises:
    """Can not be shown."""

    def __repr__(self) -> str:
        raise InvalidArgument("not this one")


class Logger:
    """A logger with one of the formats, and what it wrote."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stream = io.StringIO()
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(formatter)
        handler.addFilter(JobFilter())
        self.log = logging.Logger("shop")
        self.log.addHandler(handler)

    @property
    def text(self) -> str:
        return self._stream.getvalue()


Run = Callable[[str], Job]


@pytest.fixture
def run_for() -> Iterator[Run]:
    """`run_for(task)`: the code runs for a job of that task from now on."""
    token = current_job.set(None)

    def begin(task: str) -> Job:
        job = Job("mail", "s1", 1, 7, envelope.head(task, "json") + b"[[]]", bytes(8), 3, 3)
        current_job.set(job)
        return job

    yield begin
    current_job.reset(token)


cyclic: dict[str, Any] = {}
cyclic["again"] = cyclic


@pytest.mark.parametrize(
    ("message", "arguments", "extra", "found"),
    [
        ("file %s", (os.fsdecode(b"\xff.txt"),), {}, {"message": "file \\udcff.txt"}),
        ("x", (), {"n": 2**70, "m": 3}, {"n": str(2**70), "m": 3}),
        ("x", (), {"n": {(1, 2): 3}}, {"n": "{(1, 2): 3}"}),
        ("x", (), {"n": cyclic}, {"n": "{'again': {...}}"}),
        ("x", (), {"n": Raises(), "m": [1]}, {"n": "<Raises>", "m": [1]}),
        ("x %d", ("y",), {}, {"message": "x %d ('y',)"}),
        ("x %s", (Raises(),), {}, {"message": "x %s <tuple>"}),
        ("x", (), {"\udcff": 1}, {"\\udcff": 1}),
        ("x", (), {"time": 1, "level": 1, "logger": 1, "queue": 1, "error": 1}, {"level": "INFO", "logger": "shop"}),
    ],
)
def test_each_record_is_one_document(
    run_for: Run, message: str, arguments: tuple[Any, ...], extra: dict[str, Any], found: dict[str, Any]
) -> None:
    job, logger = run_for("send"), Logger(JsonFormatter())
    logger.log.info(message, *arguments, extra=extra)
    [line] = logger.text.splitlines()
    document = json.loads(line)
    assert document.items() >= {**found, "queue": "mail", "task": "send", "job": job.descriptor}.items()
    assert document["time"].endswith("Z")


def test_the_traceback_is_not_overwritten() -> None:
    logger = Logger(JsonFormatter())
    try:
        raise ValueError(os.fsdecode(b"\xff.txt"))
    except ValueError:
        logger.log.exception("failed", extra={"error": "none"})
    assert "ValueError: \\udcff.txt" in json.loads(logger.text)["error"]


def test_no_field_and_no_message_makes_a_line_of_its_own(run_for: Run) -> None:
    forged = "x] y\n2026-11-21 20:36:07,565 ERROR root: forged \x1b[31m\u2028"
    job, logger = run_for(forged), Logger(TextFormatter())
    logger.log.info("said %s", forged)
    [line] = logger.text.splitlines()
    shown = forged.replace("\n", "\\n").replace("\x1b", "\\x1b").replace("\u2028", "\\u2028")
    assert line.endswith(f"INFO shop: said {shown} [job={job.descriptor} task={json.dumps(forged)} attempt=1]")


def test_tracebacks_and_dumps_have_their_lines(run_for: Run) -> None:
    logger = Logger(TextFormatter())
    try:
        raise ValueError("as told")
    except ValueError:
        logger.log.exception("failed")
    logger.log.warning(Lines("first\nsecond"))
    assert "failed\nTraceback (most recent call last):\n" in logger.text
    assert "\nValueError: as told\n" in logger.text
    assert logger.text.endswith("WARNING shop: first\nsecond\n")
