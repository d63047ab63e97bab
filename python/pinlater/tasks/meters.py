"""What is counted of each run of a task.

Promises that a run that succeeds costs one float in a list. Risks: lists grow until they are folded.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final, Literal, TypeAlias

#: How the run of a task ended: see docs/running.md.
RunEnd: TypeAlias = Literal["succeeded", "retried", "failed", "snoozed", "cancelled", "expired"]
BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Meter:
    """Of one task. buckets: runs no longer than each of BOUNDS_S and longer than the one before; the last: longer.

    succeeded: gets the seconds of each run that succeeded; fold() counts them.
    """

    __slots__ = ("_unfolded", "buckets", "ends", "seconds", "succeeded")

    def __init__(self) -> None:
        self.ends: dict[RunEnd, int] = dict.fromkeys(RunEnd.__args__, 0)  # type: ignore[attr-defined]
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0
        self._unfolded: list[float] = []
        self.succeeded = self._unfolded.append

    def ended(self, end: RunEnd, seconds: float) -> None:
        """A run ended."""
        self._count(end, [seconds])

    def fold(self) -> None:
        """Counts the runs that succeeded since the last time."""
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
