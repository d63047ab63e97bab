"""Which jobs of a load were enqueued, ran and were acked: a tally in each process of locust, the ledger in its master.

Promises: each job has a number of its own in its body, the number of its process and a count. The ledger names jobs
that were lost, or that ran or were acked twice, whichever process they ran in. Jobs of other loads in the same queue
are counted apart.
"""

from __future__ import annotations

import os
import struct
import time
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

#: Of each body: marker, origin, number, time of its enqueue in ms since 1970.
_HEAD: Final = struct.Struct(">4sIIQ")
_MARKER: Final = b"load"
BODY_BYTES: Final = 100
_PADDING: Final = b"." * (BODY_BYTES - _HEAD.size)

#: Flags of a job. An issued job was given to a call; it is enqueued once the call is answered.
_ISSUED: Final = 1
_ENQUEUED: Final = 2
_RAN: Final = 4
_ACKED: Final = 8
_TWICE: Final = 16


def read_body(body: bytes) -> tuple[int, int]:
    """The key of a job, and its time of enqueue in ms since 1970. Both are 0 if it is of no load."""
    if len(body) != BODY_BYTES or not body.startswith(_MARKER):
        return 0, 0
    _, origin, number, enqueued_ms = _HEAD.unpack_from(body)
    return origin << 32 | number, enqueued_ms


class Tally:
    """What the users of one process did since the last report."""

    def __init__(self) -> None:
        self.origin = int.from_bytes(os.urandom(4), "big") | 1
        self._next = 0
        self._issued: list[tuple[int, int]] = []
        self._enqueued: list[tuple[int, int]] = []
        self._ran, self._acked = array("Q"), array("Q")

    def issue(self, count: int) -> tuple[range, list[bytes]]:
        """New numbers and the bodies of their jobs."""
        numbers = range(self._next, self._next + count)
        self._next += count
        self._issued.append((numbers.start, numbers.stop))
        now_ms = int(time.time() * 1000)
        return numbers, [_HEAD.pack(_MARKER, self.origin, number, now_ms) + _PADDING for number in numbers]

    def enqueued(self, numbers: range) -> None:
        """The call that enqueued these jobs was answered."""
        self._enqueued.append((numbers.start, numbers.stop))

    def ran(self, keys: Iterable[int]) -> None:
        """Workers were given these jobs."""
        self._ran.extend(keys)

    def acked(self, keys: Iterable[int]) -> None:
        """The acks of these jobs were answered."""
        self._acked.extend(keys)

    def report(self, users: int) -> dict[str, Any]:
        """What happened since the last report, for Ledger.merge. users: of this process, now."""
        issued, self._issued = self._issued, []
        enqueued, self._enqueued = self._enqueued, []
        ran, self._ran = self._ran, array("Q")
        acked, self._acked = self._acked, array("Q")
        return {
            "origin": self.origin,
            "users": users,
            "issued": issued,
            "enqueued": enqueued,
            "ran": ran.tobytes(),
            "acked": acked.tobytes(),
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of jobs.

    - enqueued, acked: of this load.
    - lost: enqueued and not acked.
    - twice: ran or acked more than once.
    - stray: ran, but no process of this load made them.
    - unclear: the call that enqueued them failed, so they may run or not.
    - foreign: acks of jobs of other loads.
    - seconds: from the first report to the last one that had jobs.
    """

    enqueued: int
    acked: int
    lost: int
    twice: int
    stray: int
    unclear: int
    foreign: int
    seconds: float

    @property
    def is_once(self) -> bool:
        """Whether there were jobs, and each ran once."""
        return self.enqueued > 0 and not self.lost and not self.twice and not self.stray

    @property
    def sentence(self) -> str:
        """For people."""
        rate = self.acked / max(self.seconds, 1)
        said = [f"jobs: {self.enqueued:,} enqueued, {self.acked:,} acked in {self.seconds:.0f} s ({rate:,.0f}/s)"]
        said += [
            f"{count:,} {name}"
            for name, count in (
                ("lost", self.lost),
                ("run or acked twice", self.twice),
                ("that nobody enqueued", self.stray),
                ("of failed enqueues", self.unclear),
                ("of other loads", self.foreign),
            )
            if count
        ]
        said.append("each ran once" if self.is_once else "NOT each ran once")
        return ", ".join(said)


class Ledger:
    """What all processes reported."""

    def __init__(self) -> None:
        self._jobs: dict[int, bytearray] = {}
        self._origins: set[int] = set()
        self._idle: set[int] = set()
        self._start_s = self._last_s = time.monotonic()

    def merge(self, report: dict[str, Any]) -> None:
        """Adds a report of Tally.report."""
        origin = report["origin"]
        if not self._origins:
            self._start_s = self._last_s = time.monotonic()
        if report["enqueued"] or report["acked"]:
            self._last_s = time.monotonic()
        self._origins.add(origin)
        (self._idle.discard if report["users"] else self._idle.add)(origin)
        for flag, name in ((_ISSUED, "issued"), (_ENQUEUED, "enqueued")):
            for start, stop in report[name]:
                for number in range(start, stop):
                    self._flag(origin, number, flag)
        for flag, name in ((_RAN, "ran"), (_ACKED, "acked")):
            for key in array("Q", report[name]):
                self._flag(key >> 32, key & 0xFFFFFFFF, flag)

    def _flag(self, origin: int, number: int, flag: int) -> None:
        jobs = self._jobs.setdefault(origin, bytearray())
        if number >= len(jobs):
            jobs.extend(bytes(number + 1 - len(jobs)))
        jobs[number] |= flag | (_TWICE if jobs[number] & flag else 0)

    def await_idle(self) -> None:
        """From now on `is_idle` needs a new report of each process."""
        self._idle.clear()

    def is_idle(self, processes: int) -> bool:
        """Whether the last report of each process had no users. processes: how many have users at least."""
        return len(self._idle) >= processes and self._idle >= self._origins

    def outcome(self) -> Outcome:
        """The counts until now."""
        flags: Counter[int] = Counter()
        foreign = 0
        for origin, jobs in self._jobs.items():
            if origin in self._origins:
                flags.update(jobs)
            else:
                foreign += sum(1 for each in jobs if each & _ACKED)

        def count(have: int, lack: int = 0) -> int:
            return sum(jobs for each, jobs in flags.items() if each & have and not each & lack)

        return Outcome(
            enqueued=count(_ENQUEUED),
            acked=count(_ACKED),
            lost=count(_ENQUEUED, _ACKED),
            twice=count(_TWICE),
            stray=count(_RAN | _ACKED, _ISSUED),
            unclear=count(_ISSUED, _ENQUEUED),
            foreign=foreign,
            seconds=self._last_s - self._start_s,
        )
