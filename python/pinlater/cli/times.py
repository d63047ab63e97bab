"""Times and large numbers on the command line: the types of options.

Promises that every option reads times alike (`model/times.py`). Each type has the unit that its command needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from pinlater.model.counts import parse_count
from pinlater.model.errors import InvalidArgument
from pinlater.model.times import parse_duration, parse_future, parse_past


class _Read(click.ParamType[Any]):
    """read: makes the command's value of the text, or raises InvalidArgument."""

    def __init__(self, name: str, read: Callable[[str], float]) -> None:
        self.name, self._read = name, read

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


#: Lengths of time, in the unit of the value: `30s`, `5m`, `2h`, `1d`, or seconds.
SECONDS: Final = _Read("time", parse_duration)
WHOLE_SECONDS: Final = _Read("time", _whole_seconds)
MILLISECONDS: Final = _Read("time", lambda text: math.ceil(parse_duration(text) * 1000))
#: Moments, as milliseconds since 1970.
PAST: Final = _Read("time", lambda text: parse_past(text, datetime.now()))
FUTURE: Final = _Read("time", lambda text: parse_future(text, datetime.now()))
#: Large numbers: `5M`, `500k`.
COUNT: Final = _Read("count", parse_count)
