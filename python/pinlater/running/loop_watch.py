"""Whether the event loop of a worker process turns, judged by its reports.

Promises that a process is not blamed for time in which its supervisor stood still.
"""

from __future__ import annotations

import signal
from typing import Final

from pinlater.running.reports import REPORT_S

#: The signal for a process whose loop does not turn: it writes the stacks of its threads to stderr and ends, also if a
#: handler holds the GIL (see composition).
END_WITH_STACKS: Final = signal.SIGQUIT
#: Interval at which loops are checked.
LOOP_CHECK_S: Final = 1.0


class LoopWatch:
    """Watches one process.

    limit_s: its loop must turn in this time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._reported_s = self._checked_s = self._silent_s = 0.0

    def is_stuck(self, reported_s: float, now_s: float) -> bool:
        """Whether the loop has not turned for too long. reported_s: when its last report came."""
        if reported_s != self._reported_s:
            self._reported_s = self._checked_s = reported_s
            self._silent_s = 0.0
        self._silent_s += min(now_s - self._checked_s, 2 * LOOP_CHECK_S)
        self._checked_s = now_s
        # the loop may have turned until the next report was due
        return self._silent_s > self._limit_s + REPORT_S
