"""How long a spill rests after each transaction, so that workers keep most of their speed. No I/O of its own.

Promises that a spill does not rest while jobs come faster than they leave: then room counts for more than speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pinlater.model.jobs import CountsByState

#: A rest is so many times as long as MySQL took for the transaction.
REST: Final = 3.0
#: Counts are read so often.
LOOK_S: Final = 1.0


@dataclass(slots=True)
class Pace:
    """What the last look at the queue shard saw."""

    _rests: bool = False
    _waiting: float = float("inf")
    _looked_s: float = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to look again."""
        return now_s - self._looked_s >= LOOK_S

    def look(self, counts: Iterable[CountsByState], now_s: float) -> None:
        """counts: by priority. A spill rests if jobs run and no more wait than at the last look."""
        total = sum(counts, CountsByState())
        waiting = total.pending + total.scheduled
        self._rests = total.in_progress > 0 and waiting <= self._waiting
        self._waiting, self._looked_s = waiting, now_s

    def rest_s(self, worked_s: float) -> float:
        """After a transaction that took so long."""
        return REST * worked_s if self._rests else 0.0
