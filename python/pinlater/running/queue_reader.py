"""What metrics show of queues: their jobs by state, how long the oldest due one waits, and what the archive has.

Promises that of all processes with an HTTP port one reads a queue shard at a time. The others send one small call, and
show nothing of it. Risks: values are up to READ_S old. When the reader ends, another one reads after HOLD_S at most.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import FormatUnsupported, PinLaterError, QueueNotFound, ServerUnavailable
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.operations.workers import QueueMeasures, measure
from pinlater.running.archive_reader import ArchiveReader
from pinlater.running.background import in_background
from pinlater.running.metrics import Samples, queue_samples
from pinlater.store.effects import Flow, together
from pinlater.store.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")

#: Interval of the readings.
READ_S: Final = 15.0
#: It looks again so soon while there are no queues, as before the first look of a monitor that finds them.
NO_QUEUES_S: Final = 1.0
#: A reader stays the only one for so long after a reading, and shows it for so long.
HOLD_S: Final = 40.0


@asynccontextmanager
async def reading_queues(
    new_client: Callable[[], AbstractAsyncContextManager[AsyncClient]], queues: Callable[[], Iterable[str]]
) -> AsyncIterator[Callable[[], Samples]]:
    """Reads queues beside the block. Gives the function that returns their samples. queues: gives their names."""
    async with new_client() as client:
        reader = _QueueReader(client, queues)
        if (database := client.settings.database) is None:
            async with in_background(reader.run()):
                yield reader.samples
            return
        archive = ArchiveReader(client, database, lambda: reader.current().keys())
        reader.on_read = archive.wanted.set
        async with in_background(reader.run(), archive.run()):
            yield lambda: reader.samples() | archive.samples()


class _QueueReader:
    """The readings of one process."""

    def __init__(self, client: AsyncClient, queues: Callable[[], Iterable[str]]) -> None:
        self._client, self._queues = client, queues
        self._id = secrets.token_bytes(8)
        #: The last reading of each queue shard that this process reads, and its time.
        self._readings: dict[QueueShard, tuple[QueueMeasures, float]] = {}
        self._logged: set[str] = set()
        #: Called after each reading.
        self.on_read: Callable[[], None] = lambda: None

    def current(self) -> dict[QueueShard, QueueMeasures]:
        """What the queue shards that this process reads had."""
        oldest_s = time.monotonic() - HOLD_S
        return {each: measures for each, (measures, read_s) in self._readings.items() if read_s > oldest_s}

    def samples(self) -> Samples:
        """Those of the queue shards that this process reads."""
        return queue_samples(self.current())

    async def run(self) -> None:
        """Reads until it is cancelled."""
        while True:
            try:
                await self._read()
                self.on_read()
            except Exception:
                log.exception("queues not read for metrics: an unexpected error")
            await asyncio.sleep(READ_S if any(self._queues()) else NO_QUEUES_S)

    async def _read(self) -> None:
        sent_s, queues = time.monotonic(), list(self._queues())
        readings: dict[QueueShard, tuple[QueueMeasures, float]] = {}
        found = await self._client.run(lambda end: together([self._measures(queue, end) for queue in queues]))
        for queue, results in zip(queues, found, strict=True):
            # an error of the whole queue stands for all its shards
            for queue_shard, result in results.items() if isinstance(results, dict) else [(None, results)]:
                if isinstance(result, PinLaterError):
                    self._note(queue, result)
                elif queue_shard is not None and result is not None:
                    readings[queue_shard] = result, sent_s
        self._readings = readings

    def _measures(self, queue: str, deadline_s: float) -> Flow[dict[QueueShard, QueueMeasures | PinLaterError | None]]:
        queue_shards = yield from known_queue_shards(self._client.session, queue, deadline_s)
        flows = [measure(queue_shard, self._id, int(HOLD_S * 1000), deadline_s) for queue_shard in queue_shards]
        return dict(zip(queue_shards, (yield from together(flows)), strict=True))

    def _note(self, queue: str, error: PinLaterError) -> None:
        """Logs once what stays as it is until somebody acts. The worker itself logs what its servers do."""
        if isinstance(error, ServerUnavailable | QueueNotFound | FormatUnsupported):
            log.debug("queue %s: not read for metrics: %s", queue, error)
        elif queue not in self._logged:
            self._logged.add(queue)
            log.warning("queue %s: not read for metrics: %s", queue, error)
