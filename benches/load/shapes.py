"""The shapes of a load: how many users there are when.

Promises that every shape ends after its seconds. What follows (the queue is drained, so that each job can be checked)
is the same for all and stands in benches/locustfile.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a shape.

    until: share of the time at which it ends. users: share of the users. ramps: the users come evenly over the stage;
    else at once. roles: of the users; empty: all.
    """

    until: float
    users: float
    ramps: bool = False
    roles: frozenset[str] = frozenset()


SHAPES: Final[dict[str, tuple[Stage, ...]]] = {
    "sustained": (Stage(1, 1),),
    "ramp": (Stage(1, 1, ramps=True),),
    "spike": (Stage(0.4, 0.25), Stage(0.6, 1), Stage(1, 0.25)),
    "backlog": (Stage(1, 1, roles=frozenset({"producer"})),),
}
#: Users that start or stop a second, where they come at once. locust warns above it.
AT_ONCE: Final = 100.0


@dataclass(frozen=True, slots=True)
class Target:
    """users: how many there should be. rate: how many start or stop a second. roles: see Stage."""

    users: int
    rate: float
    roles: frozenset[str]


def target(shape: str, users: int, seconds: float, elapsed_s: float) -> Target | None:
    """What a shape wants at a time; None behind its end."""
    for stage in SHAPES[shape]:
        if elapsed_s < stage.until * seconds:
            wanted = max(1, round(stage.users * users))
            return Target(wanted, max(0.1, wanted / seconds) if stage.ramps else AT_ONCE, stage.roles)
    return None


class Patience:
    """Says when a value has not changed for some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._value: object = self
        self._since_s = 0.0

    def is_over(self, value: object, now_s: float) -> bool:
        """Whether the value is the one of `seconds` ago. now_s: a monotonic time."""
        if value != self._value:
            self._value, self._since_s = value, now_s
        return now_s - self._since_s >= self._seconds
