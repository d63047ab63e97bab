"""What the operating system knows of a process: how it ended, its memory, and its parent.

Risk: memory is what /proc says, with pages that it shares; what cannot be read counts as 0.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def exit_in_words(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants."""
    try:
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        children = _children(pid)
    except (OSError, IndexError):  # it ended
        return 0
    return used + sum(map(memory_bytes, children))


def reap_orphans(own: Container[int]) -> None:
    """Removes dead children that other processes left to this one, as to process 1 of a container.

    own: children that this process waits for. Those in its process group are its own too.
    """
    for pid in _children(os.getpid()):
        if pid not in own:
            with suppress(OSError):  # it was another thread's to wait for
                if os.getpgid(pid) != os.getpgrp():
                    os.waitpid(pid, os.WNOHANG)


def _children(pid: int) -> list[int]:
    """Raises OSError."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in texts for child in text.split()]


def end_with_parent(number: signal.Signals, parent: int) -> None:
    """In a new process: it gets this signal when its parent ends, and ends now if the parent has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)
