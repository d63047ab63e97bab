"""The jobs that a worker holds, and how many more it may claim.

Promises that no more is claimed than `concurrency` and `prefetch` allow, and nothing while the bodies held are as many
bytes as `prefetch_bytes`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pinlater.model.jobs import Job
from pinlater.worker.config import PREFETCH, WorkerConfig
from pinlater.worker.end_rate import PREFETCH_S, EndRate
from pinlater.worker.executor import End
from pinlater.worker.lease_renewal import Lease


class Held:
    """A job this worker holds."""

    __slots__ = ("job", "lease")

    def __init__(self, job: Job, lease: Lease) -> None:
        self.job = job
        self.lease = lease


class HeldJobs:
    """Running and prefetched jobs of one worker.

    running: by the future of their end.
    prefetched: claimed and not started, the next one first.
    bytes: of the bodies of both.
    has_suspects: some of the prefetched jobs may have crashed before; see suspects.py.
    alone: the job beside which nothing runs, from its choice until its end is acked.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.concurrency, self._most_bytes = config.concurrency, config.prefetch_bytes
        self.most_prefetched = config.prefetch if config.prefetch is not None else max(PREFETCH, 2 * config.concurrency)
        self.running: dict[asyncio.Future[End], Held] = {}
        self.prefetched: deque[Held] = deque()
        self.bytes = 0
        self.has_suspects = False
        self.alone: Held | None = None
        self.rate = EndRate()

    def room(self, unacked: int) -> int:
        """How many more jobs may be claimed; while jobs wait for a worker slot, none until a large claim fits.

        A large claim is half of the concurrency, or of what may be prefetched if that is more. The other half of the
        prefetched jobs runs meanwhile.
        """
        waiting, concurrency = len(self.prefetched), self.concurrency
        if self.has_suspects:
            if self.alone is not None:
                return 0
            waiting -= len(self.suspects())
        held = len(self.running) + waiting
        full = held > 0 and self.bytes >= self._most_bytes
        if full or unacked > concurrency + self.most_prefetched:
            return 0
        ahead = min(self.most_prefetched, int(self.rate.per_s() * PREFETCH_S))
        free = concurrency + ahead - held
        return 0 if waiting and 2 * free < (ahead if ahead > concurrency else concurrency) else free

    def suspects(self) -> list[Held]:
        """Prefetched jobs that have crashed before."""
        return [held for held in self.prefetched if held.job.crashed]

    def prefetch(self, jobs: Sequence[Job], lease: Lease, *, crashed: bool) -> None:
        """Holds jobs of one claim until they start. crashed: some of them have crashed before."""
        self.has_suspects = self.has_suspects or crashed
        self.bytes += sum([len(job.body) for job in jobs])
        self.prefetched.extend([Held(job, lease) for job in jobs])

    def sort(self, rank: Callable[[Job], Any]) -> None:
        """Puts prefetched jobs in the order of their ranks."""
        self.prefetched = deque(sorted(self.prefetched, key=lambda held: rank(held.job)))

    def drop(self, dropped: set[Held]) -> None:
        """Takes out prefetched jobs that must not start."""
        self.bytes -= sum(len(held.job.body) for held in dropped)
        self.prefetched = deque(held for held in self.prefetched if held not in dropped)

    def take_prefetched(self) -> list[Held]:
        """Takes out all prefetched jobs."""
        held, self.prefetched = list(self.prefetched), deque()
        self.bytes -= sum(len(one.job.body) for one in held)
        return held
