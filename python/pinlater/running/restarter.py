"""Starts processes, and replaces processes that ended.

Promises that pauses grow while the processes of a slot crash, and that a process that hangs at its start is killed.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable
from typing import Final

from pinlater.running.process_listener import ProcessListener
from pinlater.running.process_slots import FIRST_RESTART_S, ProcessSlot
from pinlater.running.stopper import Stopper
from pinlater.running.worker_process import NEVER_S, NO_SERVER, RECYCLE, RECYCLED, Process

log: Final = logging.getLogger("pinlater.supervisor")

#: If a process lived this long, the next pause has its first length again.
HEALTHY_S: Final = 60.0
#: A process that has sent no report this long after its start is killed. The limit of a slot grows with its pauses.
START_S: Final = 60.0


class Restarter:
    """Starts the processes of slots.

    burst: do not replace a process that ended with exit code 0 or reached no server.
    on_report: called with each process that sent a report.
    """

    def __init__(
        self,
        stopper: Stopper,
        listener: ProcessListener,
        *,
        burst: bool,
        on_report: Callable[[Process], None],
    ) -> None:
        self._stopper, self._listener = stopper, listener
        self._burst, self._on_report = burst, on_report

    def start(self, slot: ProcessSlot) -> Process | None:
        """Starts a process for a slot. Returns None if the system refuses; a later call tries again."""
        try:
            process = Process(slot.process_set, self._on_report)
        except (OSError, subprocess.SubprocessError) as error:
            log.error("%s: cannot start: %s", slot.process_set.name, error)
            slot.put_off(time.monotonic())
            return None
        process.kill_s = process.started_s + START_S * slot.restarts.next_s / FIRST_RESTART_S
        return process

    def plan(self, slot: ProcessSlot, process: Process, code: int) -> None:
        """Plans the next start in a slot whose process ended."""
        if self._stopper.requested or self._has_finished(process, code):
            slot.next_start_s = NEVER_S
            self._listener.ended(process, "")
            return
        now_s, why = time.monotonic(), _reason(process, code)
        if why == RECYCLED:
            slot.next_start_s = now_s
        else:
            if now_s - process.started_s >= HEALTHY_S and process.report:
                slot.restarts.reset()
            slot.put_off(now_s)
        self._listener.ended(process, why)
        next_step = f"starting another in {slot.next_start_s - now_s:.1f} s"
        if slot.process is not None:
            next_step = f"{slot.process.pid} takes its place"
        level = logging.INFO if why == RECYCLED else logging.ERROR
        log.log(level, "%s %d %s; %s", process.process_set.name, process.pid, process.end_in_words(code), next_step)

    def _has_finished(self, process: Process, code: int) -> bool:
        return self._burst and code in (0, NO_SERVER) and process.is_orderly(code)


def _reason(process: Process, code: int) -> str:
    """The reason of a process's end, for a listener."""
    if code == RECYCLE and process.is_orderly(code):
        return RECYCLED
    return "crash" if process.ending in ("", RECYCLED) else process.ending
