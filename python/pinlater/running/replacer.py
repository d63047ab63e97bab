"""Replaces running processes: at a reload, and when a process recycles itself.

Promises that a reload leaves no gap: an old process stops when its successor is ready. If the successor fails, the old
process continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from pinlater.running.process_listener import ProcessListener
from pinlater.running.process_slots import ProcessSlot, ProcessTable
from pinlater.running.restarter import Restarter
from pinlater.running.worker_process import NEVER_S, RECYCLED, Process, ProcessSet
from pinlater.worker.os_process import exit_in_words

log: Final = logging.getLogger("pinlater.supervisor")


class Replacer:
    """Replaces processes of a table.

    burst: if a process recycles itself, the next process starts only after the first has ended.
    """

    def __init__(self, table: ProcessTable, restarter: Restarter, listener: ProcessListener, *, burst: bool) -> None:
        self._table, self._restarter, self._listener, self._burst = table, restarter, listener, burst

    def reload(self, process_sets: Sequence[ProcessSet]) -> None:
        """Starts a successor for each process, from the new sets. Successors of an earlier reload end."""
        for slot in self._table.slots:
            if slot.successor is not None:
                self._table.leave(slot.successor, "reload")
                slot.successor = None
        self._table.rearrange(process_sets)
        for slot in self._table.slots:
            if slot.process is not None:
                slot.successor = self._restarter.start(slot)
            elif slot.next_start_s != NEVER_S:
                slot.next_start_s = 0.0

    def on_report(self, process: Process) -> bool:
        """Acts on a report: a successor is ready, or a process recycles itself. Returns whether anything changed."""
        changed = False
        for slot in self._table.slots:
            recycles = bool(process.report.get("recycling"))
            if slot.successor is process and (process.ready or recycles):
                self._promote(slot, process)
                changed = True
            # The restarter replaces a process that has ended.
            if slot.process is process and recycles and not process.ending and not process.has_ended:
                self._recycle(slot, process)
                changed = True
        return changed

    def successor_ended(self, slot: ProcessSlot, code: int, *, stopping: bool) -> None:
        """Removes a successor from its slot. The successor ended before it was ready."""
        process, slot.successor = slot.successor, None
        assert process is not None
        self._listener.ended(process, "crash")
        if not stopping:
            consequence = "; the old one goes on" if slot.process is not None else ""
            log.error("reload: process %d %s before it was ready%s", process.pid, exit_in_words(code), consequence)

    def stop_surplus(self) -> None:
        """Stops processes without a slot, if no slot still waits for a successor."""
        if all(slot.successor is None for slot in self._table.slots):
            for process in self._table.leaving:
                if not process.ending:
                    process.stop("reload", process.process_set.kill_after_s)

    def _promote(self, slot: ProcessSlot, process: Process) -> None:
        old, slot.process, slot.successor = slot.process, process, None
        if old is not None:
            self._table.leave(old, "reload")

    def _recycle(self, slot: ProcessSlot, process: Process) -> None:
        """Records that a process recycles itself: it claims no more jobs, and ends when its jobs have ended.

        Another process starts at once. The set never has more recycling processes without a slot than `processes`.
        """
        log.info("%s %d is recycled: its jobs end", slot.process_set.name, process.pid)
        now_s = time.monotonic()
        process.ending, process.kill_s = RECYCLED, now_s + process.process_set.kill_after_s
        if slot.successor is None and not self._burst and self._recycling(slot) < slot.process_set.processes:
            self._table.leave(process, RECYCLED)
            slot.process, slot.next_start_s = None, now_s

    def _recycling(self, slot: ProcessSlot) -> int:
        """The number of processes of the slot's set that recycle themselves and have no slot."""
        return sum(
            process.ending == RECYCLED and process.process_set is slot.process_set for process in self._table.leaving
        )
