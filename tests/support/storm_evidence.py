"""What happened around a process in a span of time, so that a finding of the storm explains itself.

Promises: the faults, the runs of the process, its log lines, and the lines of other processes that name it, in the
order of their times. The folders of a test session do not last, but the message of a failure does.
Risk: lines of the log that are not JSON (of an interpreter that dies, say) are left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tests.support.app_runs import AppRuns

#: The span begins and ends so much earlier and later: crashes have times in whole seconds.
MARGIN_S = 2.0
MOST_LINES = 200


class Fault(NamedTuple):
    """One fault of the storm. Times by the clock of servers (s)."""

    name: str
    from_s: float
    until_s: float


class Event(NamedTuple):
    """A span of time, by the clock of servers (s), and what happened in it."""

    from_s: float
    until_s: float
    text: str


def account(app_runs: AppRuns, faults: Sequence[Fault], pid: int, from_s: float, until_s: float) -> str:
    """What happened in that time (by the clock of servers, s), a line an event. The lines count seconds from from_s."""
    events = [*map(_of_fault, faults), *_runs(app_runs, pid), *_log_lines(app_runs.log, pid)]
    near = sorted(one for one in events if one.from_s < until_s + MARGIN_S and one.until_s > from_s - MARGIN_S)
    lines = [f"  {one.from_s - from_s:+8.3f} to {one.until_s - from_s:+8.3f}  {one.text}" for one in near]
    return "\n".join([f"  process {pid}, for {until_s - from_s:g} s:", *lines[:MOST_LINES]])


def _of_fault(fault: Fault) -> Event:
    return Event(fault.from_s, fault.until_s, f"fault {fault.name}")


def _runs(app_runs: AppRuns, pid: int) -> Iterator[Event]:
    """Those of the process. One without an end lasts until now."""
    wall_s = time.time() - time.monotonic()
    ends = {note.run: note.time_ns for note in app_runs.notes("over") if note.pid == pid}
    for note in app_runs.notes("began"):
        if note.pid == pid:
            end_ns = ends.get(note.run, time.monotonic_ns())
            yield Event(wall_s + note.time_ns / 1e9, wall_s + end_ns / 1e9, f"run of {note.name}")


def _log_lines(log: str, pid: int) -> Iterator[Event]:
    for line in log.splitlines():
        record = _record(line)
        if record and (record.get("process") == pid or str(pid) in record["message"]):
            at_s = datetime.fromisoformat(record["time"]).timestamp()
            yield Event(
                at_s, at_s, f"{record.get('process')} {record.get('level')} {record['message'].splitlines()[0]}"
            )


def _record(line: str) -> dict[str, Any]:
    """A line of `--log-format json`; {} for another one."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) and record.get("message") else {}
