"""Logs when all processes of a start, or of a reload, are ready.

Promises one line for the start, and one for each reload unless another one follows before its end.
"""

from __future__ import annotations

import logging
from typing import Final

from pinlater.running.process_slots import ProcessTable
from pinlater.running.worker_process import Process

log: Final = logging.getLogger("pinlater.supervisor")


class Announcer:
    """Watches the processes of a table.

    ready: the start of the line of the start.
    """

    def __init__(self, table: ProcessTable, ready: str) -> None:
        self._table, self._ready = table, ready
        self._starts = True
        #: The processes that a reload replaces. None: no reload is under way.
        self._old: list[Process] | None = None

    def reload_begins(self) -> None:
        """Called before the successors start."""
        self._old = self._running()

    def look(self) -> None:
        """Logs if all processes are ready now."""
        if not (self._starts or self._old is not None):
            return
        slots, running = self._table.slots, self._running()
        if len(running) < len(slots) or any(slot.successor is not None for slot in slots):
            return
        if not all(process.ready for process in running):
            return
        if self._starts:
            log.info("%s: %s", self._ready, _counted(len(running), "process"))
        if self._old is not None:
            kept = sum(process in self._old for process in running)
            new = _counted(len(running) - kept, "new process")
            if kept:
                log.warning("reload: over, %s, %s kept", new, _counted(kept, "old process"))
            else:
                log.info("reload: done, %s", new)
        self._starts, self._old = False, None

    def _running(self) -> list[Process]:
        return [slot.process for slot in self._table.slots if slot.process is not None]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 'es'}"
