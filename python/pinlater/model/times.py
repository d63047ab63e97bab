"""Times: as people write them (`30s`, `2026-11-23 08:00`), and as programs give them (seconds or a timedelta).

Promises one way to write a time on every command line and in TOML. Risks: a time without a zone is this machine's.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import datetime, time, timedelta
from typing import Final, TypeAlias

from pinlater._core import MAX_TIME_MS
from pinlater.model.errors import InvalidArgument

#: A length of time in the Python API: seconds or a timedelta.
Seconds: TypeAlias = float | timedelta

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZES: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))
_DURATION: Final = re.compile(r"((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?) ?(ms|[smhd])?")


def as_seconds(value: Seconds) -> float:
    """Seconds of a number or a timedelta."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def milliseconds(name: str, value: object, *, least: float = 0.0) -> int:
    """Seconds, or a timedelta, as whole milliseconds, rounded up. least: in seconds. Raises InvalidArgument."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= MAX_TIME_MS / 1000:
        raise InvalidArgument(f"{name}: expected seconds or a timedelta, {least:g} or more, got {value!r:.60}")
    return math.ceil(seconds * 1000)


def parse_duration(text: str) -> float:
    """Seconds of `30s`, `5m`, `2h`, `1d`, `250ms` or a plain number of seconds. Raises InvalidArgument."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else math.inf
    if seconds > MAX_TIME_MS / 1000:
        raise InvalidArgument(f"expected a time such as 30s, 5m, 2h or 1d, or seconds, got {text!r:.60}")
    return seconds


def written(ms: int) -> str:
    """A length of time as parse_duration reads it: `30s`, `1d`."""
    size, unit = next((size, unit) for size, unit in _SIZES if ms % size == 0)
    return f"{ms // size}{unit}"


def parse_past(text: str, now: datetime) -> int:
    """Milliseconds since 1970 of a time before now: `2h` (that long ago), a date or a time. Raises InvalidArgument."""
    with suppress(InvalidArgument):
        return max(0, round((now.timestamp() - parse_duration(text)) * 1000))
    moment = _moment(text, now)
    if moment is None:
        raise InvalidArgument(f"expected 2h (that long ago), 08:00 or '2026-11-23 08:00', got {text!r:.60}")
    return moment


def parse_future(text: str, now: datetime) -> int:
    """Milliseconds since 1970 of a time, such as `2026-11-23 08:00`, or `08:00` later today. Raises InvalidArgument."""
    moment = _moment(text, now)
    if moment is None:
        raise InvalidArgument(f"expected a time such as 08:00 or '2026-11-23 08:00', got {text!r:.60}")
    if _time_of_day(text) is not None and moment < now.timestamp() * 1000:
        raise InvalidArgument(f"expected a date too, as {text} is over today, got {text!r:.60}")
    return moment


def _moment(text: str, now: datetime) -> int | None:
    """Milliseconds since 1970, or None if the text is neither a date nor a time of day."""
    of_day = _time_of_day(text)
    with suppress(ValueError, OverflowError, OSError):
        found = datetime.fromisoformat(text) if of_day is None else datetime.combine(now.date(), of_day)
        moment = round(found.timestamp() * 1000)
        return moment if 0 <= moment <= MAX_TIME_MS else None
    return None


def _time_of_day(text: str) -> time | None:
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?", text):
        with suppress(ValueError):
            return time.fromisoformat(text.rjust(5, "0") if len(text) < 5 else text)
    return None
