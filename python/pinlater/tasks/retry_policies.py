"""Retry policies: how long a failed job waits for its next attempt.

A policy is any function that takes the number of the failed attempt (the first is 1) and its error, and returns
seconds, or None for the default policy, Exponential(). Promises delays that the server accepts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeGuard

from pinlater._core import MAX_TIME_MS
from pinlater.model.errors import InvalidArgument

Backoff: TypeAlias = Callable[[int, BaseException], float | None]

#: The greatest factor, and the highest power of it: the result is still a float.
MAX_FACTOR: Final = 1_000
_MAX_EXPONENT: Final = 64


@dataclass(frozen=True, slots=True)
class Constant:
    """The same pause after every attempt, in seconds: `backoff=Constant(5)`."""

    seconds: float

    def __post_init__(self) -> None:
        milliseconds("Constant: seconds", self.seconds)

    def __call__(self, attempt: int, error: BaseException) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Linear:
    """A pause of `step`, 2 x `step`, 3 x `step` … seconds, at most `cap`: `backoff=Linear(10)`."""

    step: float
    cap: float = 3600.0

    def __post_init__(self) -> None:
        milliseconds("Linear: step", self.step)
        milliseconds("Linear: cap", self.cap)

    def __call__(self, attempt: int, error: BaseException) -> float:
        return min(self.cap, self.step * attempt)


@dataclass(frozen=True, slots=True)
class Exponential:
    """A pause of `first`, `first * factor`, `first * factor ** 2` … seconds, at most `cap`. The default.

    first: seconds before the second attempt.
    factor: how much longer each pause is than the one before, 0 to 1,000.
    cap: the longest pause, in seconds.
    jitter: the part of each pause, 0 to 1, that chance may take off, so that jobs that failed together come back apart.
    """

    first: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        milliseconds("Exponential: first", self.first)
        milliseconds("Exponential: cap", self.cap)
        for name, value, most in (("factor", self.factor, MAX_FACTOR), ("jitter", self.jitter, 1)):
            if not _is_number(value, 0, most):
                raise InvalidArgument(f"Exponential: {name}: expected a number from 0 to {most:,}, got {value!r:.60}")

    def __call__(self, attempt: int, error: BaseException) -> float:
        full = min(self.cap, self.first * self.factor ** min(attempt - 1, _MAX_EXPONENT))
        return full * (1 - random.random() * self.jitter)


def default_pause_s(attempt: int, error: BaseException) -> float:
    """The pause of the default policy."""
    return Exponential()(attempt, error)


def milliseconds(name: str, seconds: object, *, least: float = 0.0) -> int:
    """Seconds as whole milliseconds, rounded up. Raises InvalidArgument unless they are a number from `least` on."""
    if not _is_number(seconds, least, MAX_TIME_MS / 1000):
        raise InvalidArgument(f"{name}: expected seconds, {least:g} or more, got {seconds!r:.60}")
    return math.ceil(seconds * 1000)


def _is_number(value: object, least: float, most: float) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
