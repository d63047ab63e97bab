"""Stops processes: passes stop signals on, kills late processes, and keeps the exit code of the supervisor.

Promises that the first stop signal reaches each process once, and that each further signal makes the process end at
once.
"""

from __future__ import annotations

import logging
import signal
import time
from typing import Final

from pinlater.running.process_slots import ProcessTable
from pinlater.running.worker_process import NEVER_S, NO_SERVER, RECYCLED, Process
from pinlater.worker.stop_signals import JOB_LINES, OVERTIME_S, StopLines, log_stop

log: Final = logging.getLogger("pinlater.supervisor")


class Stopper:
    """The stop of a supervisor.

    burst: processes end by themselves. If a process ends with NO_SERVER, the supervisor's exit code is NO_SERVER too.
    lines: what the log says of it.
    """

    def __init__(self, table: ProcessTable, *, burst: bool, lines: StopLines = JOB_LINES) -> None:
        self._table, self._burst, self._lines = table, burst, lines
        self._received = self._passed = 0
        #: 0; 1 if a process failed during the stop; NO_SERVER if a process of a burst reached no server.
        self.exit_code = 0

    @property
    def requested(self) -> bool:
        """Whether a stop signal came."""
        return self._received > 0

    def request(self) -> None:
        """Records and logs a stop signal."""
        self._received += 1
        log_stop(self._received, self._lines)

    def pass_on(self) -> None:
        """Sends the recorded stop signals to all processes."""
        while self._passed < self._received:
            self._passed += 1
            for process in self._table.processes:
                if self._passed > 1:
                    process.stop("", 2 * OVERTIME_S)
                elif process.ending in (
                    "",
                    RECYCLED,
                ):  # any other process has had its signal; a second one means "at once"
                    process.stop("", process.process_set.kill_after_s)

    def kill_late(self) -> None:
        """Ends processes that have not stopped in time, use far more memory than their cap, or have a stuck loop."""
        for process in self._table.processes:
            if time.monotonic() >= process.kill_s:
                due = "stop" if self.requested or process.ending else "start"
                log.error("%s %d did not %s in time and is killed", process.process_set.name, process.pid, due)
                process.kill_s = NEVER_S
                process.send(signal.SIGKILL)
            else:
                process.check_memory()
                process.check_loop()

    def note_end(self, process: Process, code: int) -> None:
        """Records how a process ended. SIGTERM kills a process that has no handler yet; this counts as a good end."""
        if self._burst and code == NO_SERVER and process.is_orderly(code):
            self.exit_code = code
        elif self.requested and code != -signal.SIGTERM and not process.is_orderly(code):
            self.exit_code = 1
