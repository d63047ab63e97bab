"""The output of commands: JSON documents for programs, tables and sentences for people.

Promises that escape sequences in a body or status never reach the terminal, that piped tables are not cut, and that
only results go to stdout. Risks: times are relative to this machine's clock, which may differ from Redis's.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any, Final

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pinlater.model.errors import BodyUnreadable
from pinlater.model.jobs import Job, JobInfo
from pinlater.tasks import envelope
from pinlater.tasks.handles import TaskInfo

#: A piped table is as wide as its content; rich needs a number.
PIPED_WIDTH: Final = 100_000
#: Characters of a body, of arguments or of a status in a table. `--json` prints all of it.
PREVIEW: Final = 60
#: Characters of a task's arguments in a lookup without --body.
MOST_ARGUMENTS: Final = 1000
#: Arguments are cut at this depth, which JSON writers can still handle.
MOST_DEPTH: Final = 100

_STEPS: Final = ((86_400_000, "day"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_SIZES: Final = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


def print_json(value: object) -> None:
    """Prints one JSON document on one line."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")


def say(text: str) -> None:
    """Prints a line of a result for people."""
    sys.stdout.write(text + "\n")


def remark(text: str) -> None:
    """Prints a line about the result on stderr, for example the next command, or the number of rows left out."""
    sys.stderr.write(text + "\n")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, styles: dict[str, str] | None = None, indent: int = 0
) -> None:
    """Prints an aligned table. A `#` before a column's name makes it right-aligned, for numbers; it is not printed.

    styles: rich style of a cell by its text, such as {"error": "red"}; for terminals only.
    indent: spaces before each line.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(columns))
    for position, name in enumerate(columns):
        table.add_column(
            Text(name.lstrip("#")),
            justify="right" if name.startswith("#") else "left",
            overflow="fold",
            no_wrap=name.startswith("#") or position == 0,  # names are for copying
        )
    for row in rows:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    _print(table, indent)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Prints a line for each name and value, values aligned."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    _print(table)


def _print(table: Table, indent: int = 0) -> None:
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    with console.capture() as captured:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
    sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


# --- documents


def job_document(job: Job) -> dict[str, Any]:
    """A claimed job: the fields of Job, `token` in hex, and `claim` for `job ack`. Both are "" on a dry run."""
    names = ("descriptor", "queue", "shard", "priority", "attempt", "attempts_allowed", "attempts_remaining")
    return {
        **{name: getattr(job, name) for name in names},
        "created_ms": job.created_ms,
        "token": job.token.hex() if any(job.token) else "",
        "claim": claim_of(job),
        **body_fields(job.body),
    }


def info_document(info: JobInfo) -> dict[str, Any]:
    """The fields of JobInfo, the body as `body` or `body_base64`.

    A task's job also has `task` and `progress`, and `args` and `kwargs` if they are known.
    """
    document = {field.name: getattr(info, field.name) for field in fields(JobInfo) if field.name != "body"}
    if isinstance(info, TaskInfo) and info.task is not None:
        document |= {"task": info.task, "progress": None if info.progress is None else asdict(info.progress)}
        if info.args is not None:
            document |= {"args": as_json(info.args), "kwargs": as_json(info.kwargs)}
    return document if info.body is None else {**document, **body_fields(info.body)}


def task_info(info: JobInfo, *, body: bool, arguments: bool = True) -> TaskInfo:
    """A job, with the content of its envelope if it has one. body, arguments: whether to keep these."""
    task = TaskInfo.of(info)
    if not arguments:
        task = replace(task, args=None, kwargs=None)
    return task if body else replace(task, body=None)


def as_json(value: Any, depth: int = MOST_DEPTH) -> Any:
    """An argument of a task for JSON: dates as ISO text, bytes in base64, keys as text, other types as their repr."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, list | tuple):
        return [as_json(each, depth - 1) for each in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): as_json(each, depth - 1) for key, each in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def body_fields(body: bytes) -> dict[str, str]:
    """`body` if it is UTF-8, else `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def claim_of(job: Job) -> str:
    """The CLAIM of the command line: `descriptor@token in hex`. "" for a job of a dry run, whose token is zeros."""
    return f"{job.descriptor}@{job.token.hex()}" if any(job.token) else ""


# --- for people


def count(number: int) -> str:
    """`12,345`."""
    return f"{number:,}"


def jobs(number: int) -> str:
    """`1 job`, `12,345 jobs`."""
    return f"{number:,} job" + ("" if number == 1 else "s")


def size(number: int) -> str:
    """A number of bytes, as `1.5 MiB`."""
    for unit, name in _SIZES:
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number} bytes"


def duration(ms: float) -> str:
    """Milliseconds, as `30 s`: one unit, at most one decimal."""
    for unit, name in _STEPS:
        if ms >= unit:
            amount = f"{ms / unit:.1f}".removesuffix(".0")
            return f"{amount} {name}" + ("s" if name == "day" and amount != "1" else "")
    return f"{ms:.0f} ms"


def moment(ms: int | None) -> str:
    """Local time and distance from now; with the date unless that is today."""
    if ms is None:
        return "-"
    now_s = time.time()
    away_ms = ms - now_s * 1000
    relative = f"in {duration(away_ms)}" if away_ms > 0 else f"{duration(-away_ms)} ago"
    try:
        then, now = datetime.fromtimestamp(ms / 1000), datetime.fromtimestamp(now_s)
    except (ValueError, OverflowError):  # 2^44 ms is the year 2527; some C libraries end before
        return relative
    return f"{then:%H:%M:%S} ({relative})" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M:%S} ({relative})"


def printable(data: bytes | str) -> str:
    """A whole body or status on one line, without control characters."""
    if isinstance(data, bytes):
        try:
            data = data.decode()
        except UnicodeDecodeError:
            return f"({size(len(data))} of binary)"
    return data if data.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in data)


def call_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments of a task as in a call: `'ada', subject='welcome'`."""
    try:
        return printable(", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]))
    except RecursionError:  # codecs nest deeper than repr does
        return "…"


def claimed_text(body: bytes) -> str:
    """A task's body as a call, `mail.send('ada')`; any other body as it is."""
    try:
        name, args, kwargs, _ = envelope.read(body)
    except BodyUnreadable:
        return printable(body)
    return f"{printable(name.decode('utf-8', 'replace'))}({call_text(args, kwargs)})"


def body_text(info: TaskInfo) -> str:
    """The arguments of a task's job, the body of any other; "" if neither is known."""
    if info.args is not None and info.kwargs is not None:
        return call_text(info.args, info.kwargs)
    return printable(info.body or b"")


def preview(data: bytes | str, length: int = PREVIEW) -> str:
    """The beginning of printable()."""
    shown = printable(data)
    return shown if len(shown) <= length else shown[: length - 1] + "…"
