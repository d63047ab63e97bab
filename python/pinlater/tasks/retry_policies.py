"""Retry policies: how long a failed job waits for its next attempt.

A policy is any function that takes the number of the failed attempt (the first is 1) and its error, and returns
seconds, a timedelta, or None for the default policy, Exponential(). Promises delays that the server accepts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeGuard

from pinlater.model.errors import InvalidArgument
from pinlater.model.times import Seconds, as_seconds, milliseconds

Backoff: TypeAlias = Callable[[int, BaseException], Seconds | None]

#: The greatest factor, and the highest power of it: the result is still a float.
MAX_FACTOR: Final = 1_000
_MAX_EXPONENT: Final = 64


@dataclass(frozen=True, slots=True)
class Constant:
    """The same pause after every attempt, in seconds: `backoff=Constant(5)`."""

    seconds: Seconds

    def __post_init__(self) -> None:
        milliseconds("Constant: seconds", self.seconds)

    def __call__(self, attempt: int, error: BaseException) -> float:
        return as_seconds(self.seconds)


@dataclass(frozen=True, slots=True)
class Linear:
    """A pause of `step`, 2 x `step`, 3 x `step` … seconds, at most `cap`: `backoff=Linear(10)`."""

    step: Seconds
    cap: Seconds = 3600.0

    def __post_init__(self) -> None:
        milliseconds("Linear: step", self.step)
        milliseconds("Linear: cap", self.cap)

    def __call__(self, attempt: int, error: BaseException) -> float:
        return min(as_seconds(self.cap), as_seconds(self.step) * attempt)


@dataclass(frozen=True, slots=True)
class Exponential:
    """A pause of `first`, `first * factor`, `first * factor ** 2` … seconds, at most `cap`. The default.

    first: seconds before the second attempt.
    factor: how much longer each pause is than the one before, 0 to 1,000.
    cap: the longest pause, in seconds.
    jitter: the part of each pause, 0 to 1, that chance may take off, so that jobs that failed together come back apart.
    """

    first: Seconds = 1.0
    factor: float = 2.0
    cap: Seconds = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        milliseconds("Exponential: first", self.first)
        milliseconds("Exponential: cap", self.cap)
        for name, value, most in (("factor", self.factor, MAX_FACTOR), ("jitter", self.jitter, 1)):
            if not _is_number(value, 0, most):
                raise InvalidArgument(f"Exponential: {name}: expected a number from 0 to {most:,}, got {value!r:.60}")

    def __call__(self, attempt: int, error: BaseException) -> float:
        full = min(as_seconds(self.cap), as_seconds(self.first) * self.factor ** min(attempt - 1, _MAX_EXPONENT))
        return full * (1 - random.random() * self.jitter)


def default_pause_s(attempt: int, error: BaseException) -> float:
    """The pause of the default policy."""
    return Exponential()(attempt, error)


def _is_number(value: object, least: float, most: float) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
