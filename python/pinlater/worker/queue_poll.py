"""When a worker claims from one of its queues next."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pinlater._core import Claim
from pinlater.model.pauses import FIRST_RETRY_S, Pauses
from pinlater.operations.dequeue import SAFETY_S

NEVER_S: Final = float("inf")


@dataclass(slots=True)
class QueuePoll:
    """One queue. Times are monotonic seconds.

    empty: the last claim was answered and found nothing.
    due: the queue may have due jobs.
    notified: this worker or another must claim.
    unregistered: the server notified this worker, which is registered again by its next claim.
    safety_s: it claims then, even if nothing notified it.
    timer_s: a scheduled job is due then, and only this worker claims it.
    not_before_s: a claim failed; the next one comes then.
    """

    queue: str
    empty: bool = False
    due: bool = True
    notified: bool = False
    unregistered: bool = False
    safety_s: float = 0.0
    timer_s: float = NEVER_S
    not_before_s: float = 0.0
    retries: Pauses = field(default_factory=Pauses)

    def next_s(self) -> float:
        """When to claim next, if there is room."""
        return max(self.not_before_s, 0.0 if self.due else min(self.safety_s, self.timer_s))

    def gave_jobs(self) -> None:
        """A claim found jobs."""
        self.empty, self.due = False, True

    def gave_nothing(self, claims: Sequence[Claim], ask_again_s: float) -> None:
        """Claims, one a shard, found nothing. ask_again_s: see JobSource."""
        now_s = time.monotonic()
        self.empty = True
        self.safety_s = min(now_s + random.uniform(*SAFETY_S), max(now_s + FIRST_RETRY_S, ask_again_s))
        self.timer_s = min((now_s + claim.due_in_ms / 1000 for claim in claims if claim.due_in_ms), default=NEVER_S)
        self.due = self.notified or self.unregistered or any(any(claim.left) for claim in claims)

    def worked(self) -> bool:
        """A claim was answered; whether the one before failed."""
        failed_before = self.not_before_s > 0
        if failed_before:
            self.not_before_s = 0.0
            self.retries.reset()
        return failed_before

    def failed(self) -> bool:
        """A claim failed; whether it is the first in a row."""
        first = not self.not_before_s
        self.due = True
        self.not_before_s = time.monotonic() + self.retries.take()
        return first
