"""Process slots of a supervisor: each slot has one running process.

Promises that a slot keeps the name of its process set when a reload changes the sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pinlater.model.pauses import Pauses
from pinlater.running.worker_process import RECYCLED, Process, ProcessSet

#: The first and the longest pause before a restart in one slot.
FIRST_RESTART_S: Final = 0.5
LAST_RESTART_S: Final = 30.0


@dataclass(slots=True, eq=False)
class ProcessSlot:
    """The position of one process.

    successor: a new process, which replaces `process` as soon as the new one is ready.
    next_start_s: time at which the next process may start here (monotonic seconds).
    """

    process_set: ProcessSet
    process: Process | None = None
    successor: Process | None = None
    restarts: Pauses = field(default_factory=lambda: Pauses(FIRST_RESTART_S, LAST_RESTART_S))
    next_start_s: float = 0.0

    def put_off(self, now_s: float) -> None:
        """Delays the next start in this slot. Each call doubles the delay, up to LAST_RESTART_S."""
        self.next_start_s = now_s + self.restarts.take()


class ProcessTable:
    """All processes of a supervisor.

    slots: as many as the sets have processes.
    leaving: processes without a slot. They are ending, or they run until all successors are ready.
    """

    def __init__(self, process_sets: Sequence[ProcessSet]) -> None:
        self.slots, _ = rearrange([], process_sets)
        self.leaving: list[Process] = []

    @property
    def processes(self) -> list[Process]:
        """All running processes, with successors and leaving processes."""
        running = [process for slot in self.slots for process in (slot.process, slot.successor) if process is not None]
        return running + self.leaving

    def rearrange(self, process_sets: Sequence[ProcessSet]) -> None:
        """Changes the sets. The processes of surplus slots join `leaving`."""
        self.slots, surplus = rearrange(self.slots, process_sets)
        self.leaving += [slot.process for slot in surplus if slot.process is not None]

    def leave(self, process: Process, why: str) -> None:
        """Stops a process that lost its slot. A process that recycles itself ends without a signal."""
        if process.ending != RECYCLED:
            process.stop(why, process.process_set.kill_after_s)
        self.leaving.append(process)


def rearrange(
    slots: Sequence[ProcessSlot], process_sets: Sequence[ProcessSet]
) -> tuple[list[ProcessSlot], list[ProcessSlot]]:
    """Returns the slots for the new sets, and the surplus slots. A slot keeps the name of its set, if possible."""
    wanted = [process_set for process_set in process_sets for _ in range(process_set.processes)]
    surplus, kept = list(slots), dict[int, ProcessSlot]()
    for same_name in (True, False):
        for position, process_set in enumerate(wanted):
            found = next((slot for slot in surplus if slot.process_set.name == process_set.name or not same_name), None)
            if position not in kept and found is not None:
                kept[position] = found
                surplus.remove(found)
    for position, slot in kept.items():
        slot.process_set = wanted[position]
    return [kept.get(position) or ProcessSlot(process_set) for position, process_set in enumerate(wanted)], surplus
