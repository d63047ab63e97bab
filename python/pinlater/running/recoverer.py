"""The recoverer: recovers the jobs of worker processes that died. The status of each job says how its process ended.

Promises:
    The recoverer ends only the leases of the process that died. Claims name the mark of their process.
    A job that had not started counts no crash.
    If a server does not answer, the recoverer tries again until the leases have run out.
Risks: if the supervisor dies too, the leases run out by themselves. Then each job counts a crash, and its status does
not say how the process ended.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError, QueueNotFound
from pinlater.model.pauses import Pauses
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.running.worker_process import Process
from pinlater.store.effects import Flow
from pinlater.store.requests import write
from pinlater.store.shards import QueueShard
from pinlater.worker.failed_jobs import OnFailed, log_failed, read_failed
from pinlater.worker.started_jobs import started_ids

log: Final = logging.getLogger("pinlater.supervisor")

#: A supervisor that stops waits this long for unfinished recoveries.
LAST_S: Final = 2.0
_COUNTS: Final = struct.Struct(">IIIIB")


#: Counts (leases, jobs tried again, failed, not started), and the descriptors of jobs that failed.
_Ended: TypeAlias = tuple[list[int], list[str]]


class Recoverer:
    """Recovers jobs of processes.

    new_client: makes a client for the supervisor's loop.
    queues: where to recover jobs of a process that died before its first report.
    on_failed: called with jobs that failed for good.
    """

    def __init__(
        self, new_client: Callable[[], AsyncClient], queues: Sequence[str], on_failed: OnFailed = log_failed
    ) -> None:
        self._new_client, self._on_failed = new_client, on_failed
        self._queues = list(queues)
        self._tasks: set[asyncio.Task[None]] = set()
        #: Numbers of recovered jobs: enqueued again, and failed.
        self.retried = self.failed = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Opens the client. The supervisor enters this context on its loop, around its run."""
        async with self._new_client() as self._client:
            try:
                yield
            finally:
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=LAST_S)
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def recover(self, process: Process, code: int) -> None:
        """Recovers the jobs of a process that ended with this code, in the background."""
        task = asyncio.get_running_loop().create_task(self._recover(process, process.end_in_words(code)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _recover(self, process: Process, ending: str) -> None:
        queues = process.report.get("queues") or self._queues
        await asyncio.gather(*(self._recover_in(queue, process, ending) for queue in queues))

    async def _recover_in(self, queue: str, process: Process, ending: str) -> None:
        """Recovers the jobs of one queue. Tries again until the leases have run out."""
        pauses, began_s = Pauses(), time.monotonic()
        while True:
            try:
                await self._end_leases(queue, process, ending)
            except QueueNotFound:
                return
            except PinLaterError as error:
                if pauses.is_first:
                    log.warning(
                        "queue %s: jobs of process %d not recovered yet: %s; trying again",
                        queue,
                        process.pid,
                        error,
                    )
            else:
                return
            config = self._client.session.known_config(queue) or QueueConfig()
            if time.monotonic() - began_s >= config.lease_ms / 1000:
                return
            await asyncio.sleep(pauses.take())

    async def _end_leases(self, queue: str, process: Process, ending: str) -> None:
        session = self._client.session
        queue_shards = await self._client.run(lambda end: known_queue_shards(session, queue, end))
        ended = await asyncio.gather(*(self._end_at(queue_shard, process, ending) for queue_shard in queue_shards))
        leases, retried, failed, not_started = (sum(counts) for counts in zip(*ended, strict=True))
        if leases:
            log.warning(
                "queue %s: process %d %s, its %d leases end: %d jobs tried again, %d failed, %d not started",
                queue,
                process.pid,
                ending,
                leases,
                retried,
                failed,
                not_started,
            )

    async def _end_at(self, queue_shard: QueueShard, process: Process, ending: str) -> list[int]:
        """Ends leases on one queue shard. Returns numbers: leases, jobs tried again, jobs failed, jobs not started."""
        arguments = [process.source, ending, started_ids(process.started, queue_shard)]
        counts, failed = await self._client.run(lambda end: end_leases(queue_shard, arguments, end))
        self._on_failed(failed, None)
        self.retried, self.failed = self.retried + counts[1], self.failed + counts[2]
        return counts


def end_leases(queue_shard: QueueShard, arguments: list[Any], deadline_s: float) -> Flow[_Ended]:
    """Ends the leases of a source on a queue shard. arguments: source, how its process ended, ids that had started."""
    total, failed = [0, 0, 0, 0], list[str]()
    cursor, more = b"0:0", True
    while more:
        reply = yield from write(queue_shard, "end_leases", [*arguments, cursor], deadline_s, patient=False)
        *counts, more = _COUNTS.unpack_from(reply[2])
        found, cursor = read_failed(queue_shard, reply[2], _COUNTS.size)
        failed += found
        total = [sum(pair) for pair in zip(total, counts, strict=True)]
    return total, failed
