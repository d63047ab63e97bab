"""Which of its queues a worker claims from next: by weight, or in strict order.

Promises that, by weight, each queue with jobs gets its share of the claimed jobs, and that a queue saves nothing up
while it is empty.
Risk: in strict order, a queue that never runs dry starves the queues after it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import check_integer

MAX_WEIGHT: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOrder:
    """Weighted or strict.

    weights: by queue, 1 to 1,000; 1 where none is given. Claimed jobs are shared by them while all queues have jobs.
    strict: a queue's turn comes while those named before it have no jobs.
    """

    weights: Mapping[str, int] = field(default_factory=dict)
    strict: bool = False

    def __post_init__(self) -> None:
        for queue, weight in self.weights.items():
            check_integer(f"weight of queue {queue!r}", weight, 1, MAX_WEIGHT)
        if self.strict and set(self.weights.values()) - {1}:
            raise InvalidArgument("order of queues: expected weights or strict, got both")


class QueueTurns:
    """Counts what each queue got."""

    def __init__(self, queues: Sequence[str], order: QueueOrder) -> None:
        if unknown := [queue for queue in order.weights if queue not in queues]:
            raise InvalidArgument(f"weights: expected queues of {', '.join(queues)}, got {unknown[0]!r}")
        self._strict = order.strict
        self._ranks = {queue: rank for rank, queue in enumerate(queues)}
        self._weights = {queue: order.weights.get(queue, 1) for queue in queues}
        #: Claimed jobs by weight; the queue with the least is next.
        self._served = dict.fromkeys(queues, 0.0)
        self._least = 0.0

    def rank(self, queue: str) -> int:
        """Prefetched jobs of a lower rank run first."""
        return self._ranks[queue] if self._strict else 0

    def took(self, queue: str, jobs: int) -> None:
        """A claim gave so many jobs. An empty claim counts too, so that another queue is next."""
        self._served[queue] += max(1, jobs) / self._weights[queue]

    def next(self, queues: Sequence[str], room: int) -> tuple[str, int]:
        """Which of these queues to claim from, and how many jobs: its share of the room."""
        served, weights = self._served, self._weights
        if self._strict:
            return min(queues, key=self._ranks.__getitem__), room
        if len(queues) == 1:
            self._least = max(served[queues[0]], self._least)
            return queues[0], room
        for queue in queues:
            served[queue] = max(served[queue], self._least)
        first, *others = sorted(queues, key=lambda queue: (served[queue], random.random()))
        self._least = served[first]
        # fills the room like water: the least served first, up to one height for all below it
        weight, filled = weights[first], served[first] * weights[first]
        for other in others:
            if (filled + room) / weight <= served[other]:
                break
            weight, filled = weight + weights[other], filled + served[other] * weights[other]
        share = ((filled + room) / weight - served[first]) * weights[first]
        return first, min(room, max(1, math.ceil(share - 1e-6)))
