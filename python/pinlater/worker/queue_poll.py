"""Decides when a worker next claims from one of its queues."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pinlater._core import Claim
from pinlater.model.limits import Limit, Rest
from pinlater.model.pauses import FIRST_RETRY_S, Pauses
from pinlater.operations.dequeue import SAFETY_S

NEVER_S: Final = float("inf")
#: A worker that rests at a limit asks again after so long, in case it did not hear of a change. Jittered, so that idle
#: workers do not all ask at once. The home shard tells times of up to 15 s.
LONGEST_REST_S: Final = (20.0, 30.0)


@dataclass(slots=True)
class QueuePoll:
    """The times of the next claims from one queue. Times are monotonic seconds.

    empty: the last claim succeeded and found no job.
    due: the queue may have due jobs, so the worker claims at once.
    notified: a notification came. The worker must claim, or pass the notification on to another worker.
    unregistered: the server has notified this worker, so it is no longer a waiter. Its next empty claim registers it.
    safety_s: time of the next safety claim, which needs no notification.
    timer_s: time at which the next scheduled job is due. The server chose this worker to claim then.
    limits_changed: the limits may have changed while a claim was under way. Its answer is of the old ones.
    held_back: the worker pauses the queue just now, and claims nothing meanwhile.
    rests_until_s: a limit of the queue allows no claim before; 0: none does.
    not_before_s: earliest time of the next claim after a failed one; 0 after a success.
    retries: the pauses between failed claims.
    """

    queue: str
    empty: bool = False
    due: bool = True
    notified: bool = False
    unregistered: bool = False
    safety_s: float = 0.0
    timer_s: float = NEVER_S
    limits_changed: bool = False
    held_back: bool = False
    rests_until_s: float = 0.0
    not_before_s: float = 0.0
    retries: Pauses = field(default_factory=Pauses)

    def next_s(self) -> float:
        """Time of the next claim. The worker delays this claim while all its slots are taken."""
        if self.held_back:
            return NEVER_S
        return max(self.not_before_s, self.rests_until_s, 0.0 if self.due else min(self.safety_s, self.timer_s))

    def gave_jobs(self) -> None:
        """Records that a claim found jobs."""
        self.empty, self.due = False, True

    def gave_nothing(self, claims: Sequence[Claim], ask_again_s: float) -> None:
        """Records that a claim found no job on any shard.

        claims: the answers, one for each shard.
        ask_again_s: see JobSource.
        """
        now_s = time.monotonic()
        self.empty = True
        self.safety_s = min(now_s + random.uniform(*SAFETY_S), max(now_s + FIRST_RETRY_S, ask_again_s))
        self.timer_s = min((now_s + claim.due_in_ms / 1000 for claim in claims if claim.due_in_ms), default=NEVER_S)
        self.due = self.notified or self.unregistered or any(any(claim.left) for claim in claims)

    def rests(self, rest: Rest | None) -> None:
        """Records what kept a claim from jobs. A worker without tokens asks again when its rest ends. The server
        notifies it of the end of other limits.
        """
        self.rests_until_s = 0.0
        if rest is not None:
            self.rests_until_s = min(rest.until_s, time.monotonic() + random.uniform(*LONGEST_REST_S))
            self.due = self.due or rest.limit in (Limit.RATE, Limit.HOME)

    def worked(self) -> bool:
        """Records that a claim succeeded. Returns whether the claim before it failed."""
        failed_before = self.not_before_s > 0
        if failed_before:
            self.not_before_s = 0.0
            self.retries.reset()
        return failed_before

    def failed(self) -> bool:
        """Records that a claim failed. Returns whether the claim before it succeeded."""
        first = not self.not_before_s
        self.due = True
        self.not_before_s = time.monotonic() + self.retries.take()
        return first
