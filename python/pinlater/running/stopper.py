"""Stops processes: passes stop signals on, kills processes that are late, and keeps the exit code of the supervisor.

Promises that the first stop signal reaches each process once, and that each further one makes it end at once.
"""

from __future__ import annotations

import logging
import signal
import time
from typing import Final

from pinlater.running.process_slots import ProcessTable
from pinlater.running.worker_process import NEVER_S, NO_SERVER, RECYCLED, Process
from pinlater.worker.stop_signals import OVERTIME_S

log: Final = logging.getLogger("pinlater.supervisor")


class Stopper:
    """The stop of a supervisor.

    burst: processes end by themselves; NO_SERVER of one is the exit code of all.
    """

    def __init__(self, table: ProcessTable, *, burst: bool) -> None:
        self._table, self._burst = table, burst
        self._received = self._passed = 0
        #: 0; 1 if a process ended badly during the stop; NO_SERVER if one of a burst reached no server.
        self.exit_code = 0

    @property
    def requested(self) -> bool:
        """Whether a stop signal came."""
        return self._received > 0

    def request(self) -> None:
        """Takes a stop signal."""
        self._received += 1

    def pass_on(self) -> None:
        """Sends each stop signal that came to all processes."""
        while self._passed < self._received:
            self._passed += 1
            for process in self._table.processes:
                if self._passed > 1:
                    process.stop("", 2 * OVERTIME_S)
                elif process.ending in ("", RECYCLED):  # another had its signal; a second would mean "at once"
                    process.stop("", process.process_set.kill_after_s)

    def kill_late(self) -> None:
        """Ends processes that are late, far above their memory cap, or stuck."""
        for process in self._table.processes:
            if time.monotonic() >= process.kill_s:
                due = "stop" if self.requested or process.ending else "start"
                log.error("worker process %d did not %s in time and is killed", process.pid, due)
                process.kill_s = NEVER_S
                process.send(signal.SIGKILL)
            else:
                process.check_memory()
                process.check_loop()

    def note_end(self, process: Process, code: int) -> None:
        """Notes how a process ended. SIGTERM kills one that does not listen yet, and that is no bad end."""
        if self._burst and code == NO_SERVER and process.is_orderly(code):
            self.exit_code = code
        elif self.requested and code != -signal.SIGTERM and not process.is_orderly(code):
            self.exit_code = 1
