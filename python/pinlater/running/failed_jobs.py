"""Jobs that failed for good by a crash, as a supervisor hears of them: it passes them to a process that has the app.

Promises that each is passed on once, or logged.
Risk: the process may die before it has called their `on_failure`. They are not passed on again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pinlater.running.worker_process import Process
from pinlater.worker.failed_jobs import log_failed

#: At most so many go to a process in one message.
_MOST: Final = 100
#: While no process is ready, so many wait. Others are only logged.
_MOST_WAITING: Final = 10_000


class FailedJobs:
    """Those that no process has heard of yet, by their descriptors."""

    def __init__(self) -> None:
        self._waiting: list[str] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        """Logs at the end what no process has heard of."""
        try:
            yield
        finally:
            log_failed(self._waiting, None)

    def add(self, descriptors: list[str], error: Exception | None) -> None:
        """Keeps jobs for the next process that is ready."""
        room = max(0, _MOST_WAITING - len(self._waiting))
        self._waiting += descriptors[:room]
        log_failed(descriptors[room:], error)

    def reported(self, process: Process) -> None:
        """Passes jobs to this process if it is ready."""
        if self._waiting and process.ready and process.send_message({"failed": self._waiting[:_MOST]}):
            del self._waiting[:_MOST]
