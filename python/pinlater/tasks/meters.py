"""Meters: counts and durations of the runs of a task, for metrics.

Promises that a run that succeeds costs one append to a list. Risks: the list grows until fold() is called.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final, Literal, TypeAlias

#: How a run ended. docs/running.md explains each.
RunEnd: TypeAlias = Literal["succeeded", "retried", "failed", "snoozed", "rate_limited", "cancelled", "expired"]
#: Upper bounds of the buckets, in seconds.
BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Meter:
    """The meter of one task.

    ends: runs by how they ended.
    buckets: runs by duration: no longer than this bound of BOUNDS_S and longer than the one before. The last bucket has
        the runs longer than all bounds.
    seconds: the time that all runs took.
    succeeded: call it with the seconds of a run that succeeded. fold() adds those runs to the counts.
    """

    __slots__ = ("_unfolded", "buckets", "ends", "seconds", "succeeded")

    def __init__(self) -> None:
        self.ends: dict[RunEnd, int] = dict.fromkeys(RunEnd.__args__, 0)  # type: ignore[attr-defined]
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0
        self._unfolded: list[float] = []
        self.succeeded = self._unfolded.append

    def ended(self, end: RunEnd, seconds: float) -> None:
        """Counts a run that took this long."""
        self._count(end, [seconds])

    def fold(self) -> None:
        """Counts the runs that succeeded since the last fold()."""
        seconds = self._unfolded[:]
        self._unfolded.clear()
        self._count("succeeded", seconds)

    def _count(self, end: RunEnd, seconds: list[float]) -> None:
        seconds.sort()
        below = 0
        for index, bound_s in enumerate((*BOUNDS_S, math.inf)):
            upto = bisect_right(seconds, bound_s, below)
            self.buckets[index] += upto - below
            below = upto
        self.ends[end] += len(seconds)
        self.seconds += sum(seconds)
