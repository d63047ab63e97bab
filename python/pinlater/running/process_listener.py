"""The listener of a supervisor: a protocol, and a listener that ignores everything.

Promises a call for each report of a process, and a call for the end of each process.
"""

from __future__ import annotations

from typing import Protocol

from pinlater.running.worker_process import Process


class ProcessListener(Protocol):
    """Gets the reports and ends of a supervisor's processes."""

    def reported(self, process: Process) -> None:
        """Called when a process has sent a report; the report is `process.report`."""

    def ended(self, process: Process, why: str) -> None:
        """Called when a process has ended.

        why: crash, recycled, memory, loop or reload; "" if no other process replaces it.
        """


class IgnoreProcesses:
    """A listener that does nothing."""

    def reported(self, process: Process) -> None:
        """Does nothing."""

    def ended(self, process: Process, why: str) -> None:
        """Does nothing."""
