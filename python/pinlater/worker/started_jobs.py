"""The ids of the jobs that a worker process started, in memory that its supervisor can read when the process died.

Promises that an id stands there before its handler runs and until its job is acked, however the process dies. Entries
are written in turn. When they run out, un-acked ids move to the front, so a finished job needs no write.
Risks: an id stays until its entry is written again. Ids of all queues and shards stand together, so a job can be taken
for one of another queue.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from pinlater.worker.held_jobs import Held

#: Names the descriptor of that memory, for a process that a supervisor started.
STARTED_VARIABLE: Final = "PINLATER_STARTED_FD"
_NAME: Final = "pinlater-started"
#: Half of them are more than can run at once; unwritten pages take no memory.
_IDS: Final = 1 << 18
_BYTES: Final = 8 * _IDS


def record_started(unacked: Callable[[], list[Held]], entries: int) -> Callable[[int], object] | None:
    """A function that records a job's id, for the first worker of a process that a supervisor started; None for others.

    unacked: running jobs, then those that wait for their ack.
    entries: so many ids are kept, twice as many as can be unacked.
    """
    number = os.environ.pop(STARTED_VARIABLE, "")
    with suppress(OSError):  # the variable came from a parent, the descriptor did not
        if number and _NAME in str(Path(f"/proc/self/fd/{number}").readlink()):
            with os.fdopen(int(number), "r+b") as file:
                memory = mmap.mmap(file.fileno(), _BYTES)
            writing = _write(memoryview(memory).cast("Q"), unacked, [*range(min(entries, _IDS))])
            next(writing)
            return writing.send
    return None


def _write(ids: memoryview[int], unacked: Callable[[], list[Held]], entries: list[int]) -> Generator[None, int, None]:
    """Writes each id to the next entry; after the last, un-acked ids first and the next id behind them."""
    first = 0
    while True:
        for at in entries[first:]:
            ids[at] = yield
        kept = array("Q", [held.job.id for held in unacked()[: len(entries) // 2]])
        first = len(kept)
        ids[:first] = memoryview(kept)


def shared_memory() -> tuple[BinaryIO, mmap.mmap]:
    """A file for a process to start, and its memory. Raises OSError."""
    file = os.fdopen(os.memfd_create(_NAME), "r+b")
    file.truncate(_BYTES)
    return file, mmap.mmap(file.fileno(), _BYTES)


def ids_in(memory: mmap.mmap) -> bytes:
    """Ids, joined, 8 bytes each; b"" if no job was started."""
    written = memory[:].rstrip(b"\0")
    ids = {*array("Q", written + bytes(-len(written) % 8))}
    return struct.pack(f">{len(ids)}Q", *ids)
