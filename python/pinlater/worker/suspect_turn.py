"""The turn to run suspects: of the processes of a supervisor's set, and of the workers of a process, one has it.

Promises that the turn of a process that dies goes to another. So suspects run one after the other, and the other
processes go on with other jobs.
Risk: a suspect that hangs keeps the turn until it ends.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

#: Names the descriptor of a file that the processes of a set lock, for a process that a supervisor started.
TURN_VARIABLE: Final = "PINLATER_TURN_FD"
_NAME: Final = "pinlater-turn"

_in_process: Final = threading.Lock()


class SuspectTurn:
    """The turn, as one worker sees it."""

    def __init__(self) -> None:
        self._mine = False
        _inherited()  # programs that a handler starts do not get the file

    def take(self) -> bool:
        """Whether this worker has the turn now."""
        self._mine = self._mine or _taken()
        return self._mine

    def give_back(self) -> None:
        """Another may take the turn; no error if this worker does not have it."""
        if self._mine:
            self._mine = False
            if (file := _inherited()) is not None:
                fcntl.lockf(file, fcntl.LOCK_UN)
            _in_process.release()


def _taken() -> bool:
    if not _in_process.acquire(blocking=False):
        return False
    try:
        if (file := _inherited()) is not None:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel unlocks it when the process ends
    except OSError:
        _in_process.release()
        return False
    return True


@cache
def _inherited() -> BinaryIO | None:
    """The file that a supervisor made; None if there is no supervisor."""
    number = os.environ.pop(TURN_VARIABLE, "")
    with suppress(OSError):  # the variable came from a parent, the descriptor did not
        if number and _NAME in str(Path(f"/proc/self/fd/{number}").readlink()):
            os.set_inheritable(int(number), False)
            return os.fdopen(int(number), "r+b")
    return None


@cache
def turn_file(name: str) -> BinaryIO:
    """The file of the set with this name, for its processes. Raises OSError."""
    return os.fdopen(os.memfd_create(f"{_NAME}-{name}"[:200]), "r+b")
