"""Times on the command line: the types of options.

Promises that every option reads times alike (`model/times.py`). Each type has the unit that its command needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from pinlater.model.errors import InvalidArgument
from pinlater.model.times import parse_duration, parse_future, parse_past

_SIZES: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))


class _Time(click.ParamType[Any]):
    """A time. read: makes the command's value of the text, or raises InvalidArgument."""

    name = "time"

    def __init__(self, read: Callable[[str], float]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except InvalidArgument as error:
            self.fail(str(error), param, ctx)


def _whole_seconds(text: str) -> int:
    seconds = parse_duration(text)
    if seconds != int(seconds):
        raise InvalidArgument(f"expected whole seconds, got {text!r}")
    return int(seconds)


def written(ms: int) -> str:
    """A length of time as an option takes it: `30s`, `1d`."""
    size, unit = next((size, unit) for size, unit in _SIZES if ms % size == 0)
    return f"{ms // size}{unit}"


#: Lengths of time, in the unit of the value: `30s`, `5m`, `2h`, `1d`, or seconds.
SECONDS: Final = _Time(parse_duration)
WHOLE_SECONDS: Final = _Time(_whole_seconds)
MILLISECONDS: Final = _Time(lambda text: math.ceil(parse_duration(text) * 1000))
#: Moments, as milliseconds since 1970.
PAST: Final = _Time(lambda text: parse_past(text, datetime.now()))
FUTURE: Final = _Time(lambda text: parse_future(text, datetime.now()))
