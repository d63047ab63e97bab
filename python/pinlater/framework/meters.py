"""What is counted of each run of a task.

Promises nothing but additions. Risks: none; it is read by the same loop.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Final, Literal, TypeAlias

from pinlater.jobs import Job

#: How the run of a task ended: see docs/running.md.
RunEnd: TypeAlias = Literal["succeeded", "retried", "failed", "snoozed", "cancelled", "expired"]
BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Meter:
    """Of one task. buckets: runs no longer than each of BOUNDS_S and longer than the one before; the last: longer."""

    __slots__ = ("buckets", "ends", "redelivered", "seconds")

    def __init__(self) -> None:
        self.ends: dict[RunEnd, int] = dict.fromkeys(RunEnd.__args__, 0)  # type: ignore[attr-defined]
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0
        self.redelivered = 0

    def ended(self, end: RunEnd, job: Job, began_s: float) -> None:
        """A run ended now that began then (monotonic)."""
        lasted_s = time.monotonic() - began_s
        self.ends[end] += 1
        self.buckets[bisect_left(BOUNDS_S, lasted_s)] += 1
        self.seconds += lasted_s
        if job.attempt > 1:
            self.redelivered += 1
