"""Which jobs a worker process has begun, where its supervisor can still read it when the process is dead: in memory
that both have.

Promises that a job stands there from before its handler can do anything until it is acked, however the process dies.
Risks: it stays until its place is used again; and ids of all queues and shards stand together, so that a job can be
taken for one of another queue.
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
STARTED_VARIABLE: Final = "PINLATER_BEGUN_FD"
_NAME: Final = "pinlater-begun"
#: Half of them are more than can run at once; what is not written to takes no memory.
_IDS: Final = 1 << 18
_BYTES: Final = 8 * _IDS


def record_started(unacked: Callable[[], list[Held]], queue_shards: int) -> Callable[[int], object] | None:
    """What the first worker of a process that a supervisor started calls with the id of each job before it begins; for
    any other worker None.

    unacked: what runs, and then what waits for its ack. places: for so many ids, twice as many as that can be.
    """
    number = os.environ.pop(STARTED_VARIABLE, "")
    with suppress(OSError):  # the variable came from a parent, the descriptor did not
        if number and _NAME in str(Path(f"/proc/self/fd/{number}").readlink()):
            with os.fdopen(int(number), "r+b") as file:
                memory = mmap.mmap(file.fileno(), _BYTES)
            writing = _write(memoryview(memory).cast("Q"), unacked, [*range(min(queue_shards, _IDS))])
            next(writing)
            return writing.send
    return None


def _write(
    ids: memoryview[int], unacked: Callable[[], list[Held]], queue_shards: list[int]
) -> Generator[None, int, None]:
    """Each id in the next place; when all are used, from the first on again, behind those not acked."""
    first = 0
    while True:
        for at in queue_shards[first:]:
            ids[at] = yield
        kept = array("Q", [held.job.id for held in unacked()[: len(queue_shards) // 2]])
        first = len(kept)
        ids[:first] = memoryview(kept)


def shared_memory() -> tuple[BinaryIO, mmap.mmap]:
    """A file for a process that is to be started, and its memory. Raises OSError."""
    file = os.fdopen(os.memfd_create(_NAME), "r+b")
    file.truncate(_BYTES)
    return file, mmap.mmap(file.fileno(), _BYTES)


def ids_in(memory: mmap.mmap) -> bytes:
    """Ids, joined, 8 bytes each; b"" if no worker began anything."""
    told = memory[:].rstrip(b"\0")
    ids = {*array("Q", told + bytes(-len(told) % 8))}
    return struct.pack(f">{len(ids)}Q", *ids)
