"""What metrics show of the archive: how many jobs of a queue it has, and how late the first of them is.

Promises that MySQL is read beside the servers of the queues, after a reading of these, and for a twentieth of the time
at most: a count of millions of rows takes seconds. Risks: values are as old as that makes them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from pinlater.archive.status import ArchiveStatus, archived_at
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import ArchiveError, PinLaterError
from pinlater.running.metrics import Samples, archive_samples
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")

#: After a reading that took 1 s the next one begins after so many seconds.
PAUSES: Final = 19


class ArchiveReader:
    """The readings of one process. queue_shards: gives those that it reads."""

    def __init__(
        self, client: AsyncClient, database: ArchiveDatabase, queue_shards: Callable[[], Collection[QueueShard]]
    ) -> None:
        self._client, self._database, self._queue_shards = client, database, queue_shards
        self._found: dict[QueueShard, ArchiveStatus] = {}
        #: Whether MySQL answered the last reading; None before the first.
        self._is_up: bool | None = None
        #: Set after each reading of the queue shards.
        self.wanted = asyncio.Event()

    def samples(self) -> Samples:
        """Nothing while this process reads no queue shard. While MySQL does not answer, only that."""
        current = self._queue_shards()
        if self._is_up is None or not current:
            return {}
        return archive_samples({each: self._found[each] for each in current if each in self._found}, is_up=self._is_up)

    async def run(self) -> None:
        """Reads when it is wanted, until it is cancelled."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            began_s = time.monotonic()
            try:
                await self._read()
            except Exception:
                log.exception("archive not read for metrics: an unexpected error")
            await asyncio.sleep(PAUSES * (time.monotonic() - began_s))

    async def _read(self) -> None:
        found: dict[QueueShard, ArchiveStatus] = {}
        queue_shards = self._queue_shards()
        try:
            for queue_shard in queue_shards:
                if (status := await self._status(queue_shard)) is not None:
                    found[queue_shard] = status
        except ArchiveError as error:
            if self._is_up is not False:
                log.warning("archive not read for metrics: %s", error)
            self._found, self._is_up = {}, False
        else:
            if queue_shards:
                self._found, self._is_up = found, True

    async def _status(self, queue_shard: QueueShard) -> ArchiveStatus | None:
        """None: Redis did not answer; the reader of the queue shards says so."""
        try:
            return await self._client.run(lambda end: archived_at(queue_shard, self._database, end))
        except ArchiveError:
            raise
        except PinLaterError as error:
            log.debug("%s: archive not read for metrics: %s", queue_shard, error)
            return None
