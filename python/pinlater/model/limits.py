"""Limits of a queue: its rate, and why a claim was given nothing.

Promises that a rate is exact: it is a fraction of whole numbers, so that no account which counts by it ever rounds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final, NamedTuple, Self

from pinlater.model.errors import InvalidArgument

#: The highest rate of a queue: so many jobs a second. Also the largest burst.
MAX_RATE: Final = 1_000_000
MAX_BURST: Final = 1_000_000
_MAX_U32: Final = 2**32 - 1
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE: Final = re.compile(
    r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(?:\s*/\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)?\s*([smhd]))?", re.ASCII
)
_EXPECTED: Final = "rate: expected jobs in a time such as 100/s, 5/m, 0.5/s or 3/10s; 0 pauses the queue"


@dataclass(frozen=True, slots=True)
class Rate:
    """How many jobs of a queue may be claimed: `count` in every `per_ms` milliseconds. A count of 0: none."""

    count: int
    per_ms: int

    @classmethod
    def of(cls, value: object) -> Self:
        """The rate that a text names, such as `100/s`, `5/m`, `0.5/s` or `3/10s`. A number is jobs a second.

        Raises InvalidArgument for anything else, for more than MAX_RATE jobs a second, and for a rate that is no
        fraction of whole numbers below 2^32.
        """
        found = Fraction(value.count, value.per_ms) if isinstance(value, Rate) else _jobs_a_ms(value)
        if found * 1000 > MAX_RATE:
            raise InvalidArgument(f"rate: expected at most {MAX_RATE:,} jobs a second, got {value!r:.60}")
        if found.numerator > _MAX_U32 or found.denominator > _MAX_U32:
            raise InvalidArgument(f"rate: expected a simpler number, such as 5/m or 3/10s, got {value!r:.60}")
        return cls(found.numerator, found.denominator)

    @property
    def default_burst(self) -> int:
        """What flows in within a second, and 1 at least."""
        return max(1, 1000 * self.count // self.per_ms)

    def __str__(self) -> str:
        """`100/s`, `5/m`, `3/10s`: the shortest text that `of` reads as this rate."""
        for unit, unit_ms in _UNITS_MS.items():
            if self.count * unit_ms % self.per_ms == 0:
                return f"{self.count * unit_ms // self.per_ms}/{unit}"
        for unit, unit_ms in reversed(_UNITS_MS.items()):
            if self.per_ms % unit_ms == 0:
                return f"{self.count}/{self.per_ms // unit_ms}{unit}"
        return f"{self.count}/{Decimal(self.per_ms) / 1000}s"


def _jobs_a_ms(value: object) -> Fraction:
    """Raises InvalidArgument."""
    if isinstance(value, str) and (parts := _RATE.fullmatch(value.strip())):
        number, count, unit = parts.groups()
        time_ms = Fraction(count or 1) * _UNITS_MS[unit or "s"]
        if time_ms > 0:
            return Fraction(number) / time_ms
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and math.isfinite(value):
        return Fraction(Decimal(repr(value))) / 1000
    raise InvalidArgument(f"{_EXPECTED}; got {value!r:.60}")


class Limit(StrEnum):
    """What keeps a queue's jobs from being claimed. The names are those of metrics."""

    RATE = "rate"
    MAX_RUNNING = "max_running"
    PAUSE = "pause"
    HOME = "home"  # the home shard does not answer


#: The limits by the number that a claim's reply has; the first one: nothing limits it.
CLAIM_LIMITS: Final = (None, Limit.PAUSE, Limit.PAUSE, Limit.MAX_RUNNING, Limit.HOME)


class Rest(NamedTuple):
    """Why a client claims nothing from a queue, and until when (monotonic seconds; inf: until it is notified)."""

    limit: Limit
    until_s: float
