"""The jobs that a worker process started, in memory that its supervisor can read when the process died.

Promises that an entry stands there before its job's handler runs and until the job is acked, however the process dies.
An entry names the job and its queue shard. Each worker of the process has entries of its own. They are written in
turn. When they run out, un-acked jobs move to the front, so a finished job needs no write.
Risk: an entry stays until it is written again.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

from pinlater.store.shards import QueueShard
from pinlater.worker.held_jobs import Held

#: Names the descriptor of that memory, for a process that a supervisor started.
STARTED_VARIABLE: Final = "PINLATER_STARTED_FD"
_NAME: Final = "pinlater-started"
#: An entry is two words: the id, and the number of its queue shard.
_WORDS: Final = 2
#: Half of them are more than can run at once; unwritten pages take no memory.
_ENTRIES: Final = 1 << 18
_BYTES: Final = 8 * _WORDS * _ENTRIES
#: In place of ids, where no job of that queue shard was started: no job has the id 0.
_NO_JOB: Final = bytes(8)


class _Entries:
    """The entries of this process, shared by its workers.

    words: None if no supervisor made the process.
    """

    def __init__(self) -> None:
        self.words = _opened()
        self._pid = os.getpid()
        self._free, self._returned = 0, defaultdict[int, list[range]](list)
        self._lock = threading.RLock()  # give_back() may run in a garbage collection within take()

    def take(self, count: int) -> range | None:
        """Entries for one worker; None if they are used up, or if this process is a fork."""
        with self._lock:
            if self.words is None or os.getpid() != self._pid:
                return None
            count = min(count, _ENTRIES)
            if self._returned[count]:
                return self._returned[count].pop()
            if self._free + count > _ENTRIES:
                return None
            first, self._free = self._free, self._free + count
            return range(first, self._free)

    def give_back(self, entries: range) -> None:
        """Entries of a worker that is gone."""
        with self._lock:
            self._returned[len(entries)].append(entries)


class _Numbers(dict[QueueShard, int]):
    """The numbers of queue shards, made when they are first asked for."""

    def __missing__(self, queue_shard: QueueShard) -> int:
        number = self[queue_shard] = _number(queue_shard)
        return number


def record_started(unacked: Callable[[], list[Held]], entries: int) -> Callable[[Held], object] | None:
    """A function that records a job, for a worker in a process that a supervisor started; None for others.

    unacked: running jobs of that worker, then those that wait for their ack.
    entries: so many jobs are kept, twice as many as can be unacked.
    """
    global _entries
    if _entries is None or STARTED_VARIABLE in os.environ:
        _entries = _Entries()
    taken, words = _entries.take(entries), _entries.words
    if taken is None or words is None:
        return None
    writing = _write(words, unacked, taken, _entries)
    next(writing)
    return writing.send


_entries: _Entries | None = None


def _opened() -> memoryview[int] | None:
    number = os.environ.pop(STARTED_VARIABLE, "")
    with suppress(OSError):  # the variable came from a parent, the descriptor did not
        if number and _NAME in str(Path(f"/proc/self/fd/{number}").readlink()):
            with os.fdopen(int(number), "r+b") as file:
                return memoryview(mmap.mmap(file.fileno(), _BYTES)).cast("Q")
    return None


def _write(
    words: memoryview[int], unacked: Callable[[], list[Held]], taken: range, entries: _Entries
) -> Generator[None, Held, None]:
    """Writes each job to the next entry; after the last, un-acked jobs first and the next job behind them."""
    numbers, start, kept = _Numbers(), _WORDS * taken.start, array("Q")
    try:
        while True:
            for at in range(start + len(kept), _WORDS * taken.stop, _WORDS):
                held = yield
                words[at] = held.job.id
                words[at + 1] = numbers[held.lease.queue_shard]
            jobs = unacked()[: len(taken) // 2]
            kept = array("Q", [word for held in jobs for word in (held.job.id, numbers[held.lease.queue_shard])])
            words[start : start + len(kept)] = memoryview(kept)
    finally:  # the worker is gone
        entries.give_back(taken)


def _number(queue_shard: QueueShard) -> int:
    """64 bits of a hash, the same in every process. Ids of two queue shards may coincide; these do not."""
    name = f"{queue_shard.queue}/{queue_shard.shard.name}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def shared_memory() -> tuple[BinaryIO, mmap.mmap]:
    """A file for a process to start, and its memory. Raises OSError."""
    file = os.fdopen(os.memfd_create(_NAME), "r+b")
    file.truncate(_BYTES)
    return file, mmap.mmap(file.fileno(), _BYTES)


def started_ids(memory: mmap.mmap, queue_shard: QueueShard) -> bytes:
    """Ids of this queue shard, joined, 8 bytes each: a zero id if there is none; b"" if no job at all was started."""
    written = memory[:].rstrip(b"\0")
    words = array("Q", written + bytes(-len(written) % (8 * _WORDS)))
    if not words:
        return b""
    number = _number(queue_shard)
    ids = {id_ for id_, of in zip(words[::_WORDS], words[1::_WORDS], strict=True) if of == number}
    return struct.pack(f">{len(ids)}Q", *ids) or _NO_JOB
