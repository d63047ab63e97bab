"""How a worker works: its settings, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import check_integer
from pinlater.worker.monitor import TICK_S
from pinlater.worker.queue_order import QueueOrder

#: Jobs that take no time are prefetched up to so many, at any concurrency. Fewer make claims that are too small: with
#: 100 a worker of default settings drains half. More than 400 drain no faster.
PREFETCH: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Settings of a worker.

    concurrency: jobs that run at once.
    prefetch: at most so many more are held unstarted, and no more than start within a tenth of a second at the present
    rate. None: twice the concurrency, PREFETCH at least.
    prefetch_bytes: no claim while the bodies held are as many bytes.
    retry_delay_ms: how long a failed job waits for its next attempt.
    stop_timeout_s: how long running jobs may take to end at a stop; the rest are released.
    monitor: also run a monitor for these queues.
    tick_s: seconds between two looks of that monitor.
    order: of the queues.
    max_jobs: the worker stops when so many have ended; None: never.
    """

    concurrency: int = 10
    prefetch: int | None = None
    prefetch_bytes: int = 64 * 1024 * 1024
    retry_delay_ms: int = 1_000
    stop_timeout_s: float = 30.0
    monitor: bool = True
    tick_s: float = TICK_S
    order: QueueOrder = QueueOrder()  # noqa: RUF009  (it is frozen)
    max_jobs: int | None = None

    def __post_init__(self) -> None:
        check_integer("concurrency", self.concurrency, 1, 100_000)
        check_integer("prefetch", 0 if self.prefetch is None else self.prefetch, 0, 100_000)
        check_integer("max_jobs", 1 if self.max_jobs is None else self.max_jobs, 1, 2**40)
        check_integer("prefetch_bytes", self.prefetch_bytes, 1, 2**40)
        check_integer("retry_delay_ms", self.retry_delay_ms, 0, 2**44 - 1)
        timeout_s = self.stop_timeout_s
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 <= timeout_s < float("inf"):
            raise InvalidArgument(f"stop_timeout_s: expected seconds, 0 or more, got {timeout_s!r}")
