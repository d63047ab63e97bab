"""Who hears of a supervisor's processes: a protocol, and the listener that ignores everything.

Promises a call for each report, and one for each end.
"""

from __future__ import annotations

from typing import Protocol

from pinlater.running.worker_process import Process


class ProcessListener(Protocol):
    """Hears of a supervisor's processes."""

    def reported(self, process: Process) -> None:
        """A process sent a report; `process.report` has it."""

    def ended(self, process: Process, why: str) -> None:
        """A process ended.

        why: crash, recycled, memory, loop or reload; "" if no other process replaces it.
        """


class IgnoreProcesses:
    """A listener that does nothing."""

    def reported(self, process: Process) -> None:
        """Does nothing."""

    def ended(self, process: Process, why: str) -> None:
        """Does nothing."""
