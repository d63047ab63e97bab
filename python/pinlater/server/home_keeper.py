"""Moves the homes of rates when shards are removed.

The original's files do not name a home shard, so this module chooses one.
Promises that each queue of the file of rates gets a home among the shards of this server, soon after its own was
removed. Risks: until then its claims fail. The new home begins with no tokens.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument, PinLaterError, QueueNotFound
from pinlater.server.queue_config_file import QueueConfigFile

log: Final = logging.getLogger("pinlater.server")

#: Seconds between two looks. One that finds the same shards and queues as the last one sends nothing.
LOOK_S: Final = 1.0


class HomeKeeper:
    """Gives the queues of a file of rates a home among the shards of a client."""

    def __init__(self, client: AsyncClient, file: QueueConfigFile) -> None:
        self._client, self._file = client, file
        #: The shards and queues of the last look, and the queues whose homes are not known to be good.
        self._seen: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        self._pending: set[str] = set()

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Moves homes if shards or queues have changed since the last look, or if the last look could not."""
        seen = frozenset(self._client.session.shards), frozenset(self._file.rates)
        if seen != self._seen:
            self._seen, self._pending = seen, set(seen[1])
        for queue in sorted(self._pending):
            try:
                await self._move(queue)
            except QueueNotFound:
                pass  # whoever creates it chooses a home that is there
            except InvalidArgument as error:
                log.error("queue %s: no other shard can count for its limits: %s", queue, error)
            except PinLaterError as error:
                log.warning("queue %s: no other shard counts for its limits yet: %s", queue, error)
                continue
            self._pending.discard(queue)

    async def _move(self, queue: str) -> None:
        home = (await self._client.queue_config(queue)).home
        if home and home not in self._client.session.shards:
            config = await self._client.configure_queue(queue, home="")
            log.warning(
                "queue %s: shard %s is not there, so shard %s counts for its rate now", queue, home, config.home
            )
