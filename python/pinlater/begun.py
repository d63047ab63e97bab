"""Which jobs a worker process has begun, where its supervisor can still read it when the process is dead: in memory
that both have.

Promises that a job stands there from before its handler can do anything until it has ended, however the process dies.
Risks: it stays until its place is used again, as a rule past its ack; and ids of all queues and shards stand together,
so a job can be taken for one of another queue.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from pinlater.ending import Held

#: Names the descriptor of that memory, for a process that a supervisor started.
BEGUN_VARIABLE: Final = "PINLATER_BEGUN_FD"
_NAME: Final = "pinlater-begun"
_ID: Final = struct.Struct(">Q")
#: More ids than a worker can run jobs at once; what is not written to takes no memory.
_BYTES: Final = 1 << 20


class Begun:
    """What one worker has begun. descriptor: of that memory. places: for so many ids, more than can run at once."""

    def __init__(self, descriptor: int, places: int) -> None:
        self._memory = mmap.mmap(descriptor, _BYTES)
        #: The one that was left first is used first.
        self._free = deque(range(0, min(places * _ID.size, _BYTES), _ID.size))

    def begin(self, held: Held) -> None:
        """Its handler is called next."""
        held.begun_at = at = self._free.popleft()
        _ID.pack_into(self._memory, at, held.job.id)

    def end(self, held: Held) -> None:
        """Its handler ended, or was given up."""
        self._free.append(held.begun_at)


def begun_here(places: int) -> Begun | None:
    """For the first worker of a process that a supervisor started; None for any other."""
    number = os.environ.pop(BEGUN_VARIABLE, "")
    with suppress(OSError):  # the variable came from a parent, the descriptor did not
        if number and _NAME in str(Path(f"/proc/self/fd/{number}").readlink()):
            try:
                return Begun(int(number), places)
            finally:
                os.close(int(number))
    return None


def shared_memory() -> tuple[BinaryIO, mmap.mmap]:
    """A file for a process that is to be started, and its memory. Raises OSError."""
    file = os.fdopen(os.memfd_create(_NAME), "r+b")
    file.truncate(_BYTES)
    return file, mmap.mmap(file.fileno(), _BYTES)


def ids_in(memory: mmap.mmap) -> bytes:
    """Ids, joined, 8 bytes each; b"" if no worker began anything."""
    told = memory[:].rstrip(b"\0")
    return told + bytes(-len(told) % _ID.size)
