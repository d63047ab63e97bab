"""What this process says of itself, for `pinlater worker ls`: a beat every 20 s, from a thread of its own.

The second beat follows soon after the first one, which comes before the first claims.

Promises that handlers that keep the event loop busy delay no beat, that a job costs nothing for it, and that a beat is
one round trip a server.
Risk: a handler that holds the GIL delays it. A process that has not said anything for a minute is not listed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import orjson

from pinlater._core import __version__
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError, QueueNotFound, ServerUnavailable
from pinlater.model.jobs import Job
from pinlater.operations.workers import beat
from pinlater.store.effects import Flow, together
from pinlater.store.shards import QueueShard
from pinlater.tasks.logs import task_name_of
from pinlater.worker.loop_thread import LoopThread
from pinlater.worker.worker import Worker

log: Final = logging.getLogger("pinlater.worker")

#: Interval of the beats. A server keeps a beat for a minute (lua/beat.lua).
BEAT_S: Final = 20.0
SECOND_BEAT_S: Final = 2.0
#: A stop waits so long for the last beat, which says that the process has ended.
STOP_S: Final = 2.0
#: A beat names at most so many jobs, the oldest ones. It counts the others.
MAX_NAMED: Final = 10
#: A beat has so many characters of a task's name.
MAX_TASK_NAME: Final = 200


@asynccontextmanager
async def beating(new_client: Callable[[], AsyncClient], queues: Sequence[str], worker: Worker) -> AsyncIterator[None]:
    """Sends beats beside the block. new_client: called in the thread."""
    thread = LoopThread("pinlater-heartbeat", STOP_S)

    async def run(stopping: asyncio.Event) -> None:
        async with new_client() as client:
            await _Heart(client, queues, worker).run(stopping)

    await thread.start(run)
    try:
        yield
    finally:
        await thread.stop()


class _Heart:
    """The beats of one process."""

    def __init__(self, client: AsyncClient, queues: Sequence[str], worker: Worker) -> None:
        self._client, self._worker = client, worker
        session = client.session
        self._sweeps = {queue_shard: b"0" for queue in queues for queue_shard in session.queue_shards(queue)}
        self._about = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "version": __version__,
            "concurrency": worker.config.concurrency,
            "started_ms": int(time.time() * 1000),
        }
        self._warned = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Beats until the event, and then says that the process has ended."""
        pause_s = SECOND_BEAT_S
        while not stopping.is_set():
            await self._beat(self._records())
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
            pause_s = BEAT_S
        await self._beat(dict.fromkeys(self._sweeps, b""))

    def _records(self) -> dict[QueueShard, bytes]:
        """The record of each queue shard, with its jobs alone."""
        # list() of a dict is one step under the GIL, so the worker's loop does not change it meanwhile
        running = [held.job for held in list(self._worker.running.values())]
        named = sorted(running, key=lambda job: job.claimed_ms)[:MAX_NAMED]
        return {
            queue_shard: orjson.dumps(
                {
                    **self._about,
                    "running": sum(_is_of(job, queue_shard) for job in running),
                    "jobs": [_named(job) for job in named if _is_of(job, queue_shard)],
                }
            )
            for queue_shard in self._sweeps
        }

    async def _beat(self, records: dict[QueueShard, bytes]) -> None:
        try:
            results = await self._client.run(lambda end: self._send(records, end))
        except PinLaterError as error:
            self._note(error)
            return
        for queue_shard, result in zip(records, results, strict=True):
            if isinstance(result, PinLaterError):
                self._note(result)
            else:
                self._sweeps[queue_shard] = result

    def _send(self, records: dict[QueueShard, bytes], deadline_s: float) -> Flow[list[bytes | PinLaterError]]:
        source = self._client.settings.source
        return together(
            [
                beat(queue_shard, source, record, self._sweeps[queue_shard], deadline_s)
                for queue_shard, record in records.items()
            ]
        )

    def _note(self, error: PinLaterError) -> None:
        """Logs once what stays as it is until somebody acts. The worker itself logs what its servers do."""
        if isinstance(error, ServerUnavailable | QueueNotFound):
            log.debug("no heartbeat: %s", error)
        elif not self._warned:
            self._warned = True
            log.warning("no heartbeat, so pinlater worker ls does not list this process: %s", error)


def _is_of(job: Job, queue_shard: QueueShard) -> bool:
    return (job.queue, job.shard) == (queue_shard.queue, queue_shard.shard.name)


def _named(job: Job) -> dict[str, Any]:
    """The fields of RunningJob."""
    return {
        "descriptor": job.descriptor,
        "task": task_name_of(job)[:MAX_TASK_NAME] or None,
        "attempt": job.attempt,
        "claimed_ms": job.claimed_ms,
    }
