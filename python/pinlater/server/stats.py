"""What a server process has done: counts by queue, errors, and how long calls took.

Promises that a call costs a few additions. The names are those of the original's stats page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from pinlater.model.jobs import Job
from pinlater.server.interface import METHODS

#: Upper bounds of the buckets of a call's time, in seconds.
CALL_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
#: Those of the time from a job's enqueue to its first dequeue.
WAIT_BOUNDS_S: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
#: The label for calls of unknown methods.
UNKNOWN_METHOD: Final = "(unknown)"


class Timings:
    """How long something took, as a histogram. bounds_s: the upper bounds of its buckets; one more has the rest."""

    __slots__ = ("bounds_s", "buckets", "seconds")

    def __init__(self, bounds_s: tuple[float, ...] = CALL_BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        self.buckets = [0] * (len(bounds_s) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Adds one."""
        self.buckets[bisect_left(self.bounds_s, seconds)] += 1
        self.seconds += seconds

    def add_all(self, each: Sequence[float]) -> None:
        """Adds several, in seconds."""
        buckets, bounds_s = self.buckets, self.bounds_s
        for seconds in each:
            buckets[bisect_left(bounds_s, seconds)] += 1
        self.seconds += sum(each)


def first_wait_ms(jobs: Sequence[Job]) -> int | None:
    """From the enqueue of the middle job to its claim, as `Claim.first_wait_ms`."""
    job = jobs[len(jobs) // 2]
    return max(0, job.claimed_ms - job.created_ms) if job.attempt == 1 else None


class ServerStats:
    """The counts of a process.

    - counts: by queue and what happened, such as ("mail", "enqueue").
    - errors: by method and code, or kind of failure.
    - timings: by method.
    - first_waits: by queue, the time from a job's enqueue to its first dequeue; one job of each call is measured.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.timings: dict[str, Timings] = {}
        self.first_waits: dict[str, Timings] = {}

    def add(self, queue: str, what: str, count: int = 1) -> None:
        """Counts jobs or calls of a queue."""
        if count:
            self.counts[queue, what] += count

    def dequeued(self, queue: str, count: int, first_waits_ms: Iterable[int | None]) -> None:
        """Counts the jobs of dequeues. first_waits_ms: of one job of each dequeue, if that was its first."""
        if not count:
            return
        self.counts[queue, "dequeue"] += count
        waits_s = [wait_ms / 1000 for wait_ms in first_waits_ms if wait_ms is not None]
        if waits_s:
            waits = self.first_waits.get(queue)
            if waits is None:
                waits = self.first_waits[queue] = Timings(WAIT_BOUNDS_S)
            waits.add_all(waits_s)

    def failed(self, method: str, what: str) -> None:
        """Counts a call that raised. what: the name of its code, or of another failure."""
        self.errors[method if method in METHODS else UNKNOWN_METHOD, what] += 1

    def timings_of(self, method: str) -> Timings:
        """The timings of a method. Names that are no method share one entry, as clients may send any number of them."""
        timings = self.timings.get(method)
        if timings is None:
            timings = self.timings.setdefault(method if method in METHODS else UNKNOWN_METHOD, Timings())
        return timings
