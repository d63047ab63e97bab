"""Pings servers at an interval, for `operations/health.py`.

Promises that one silent server delays the pings of the others by the read timeout of the client at most.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from pinlater.client.async_client import AsyncClient
from pinlater.client.base import check_seconds
from pinlater.model.errors import PinLaterError
from pinlater.operations.health import Health, HealthRules

log: Final = logging.getLogger("pinlater.shards")

#: Seconds between two pings of a server.
PING_INTERVAL_S: Final = 5.0


class HealthChecks:
    """Runs the pings of one client's servers between start() and stop().

    interval_s: seconds between two pings of a server.
    """

    def __init__(
        self, client: AsyncClient, rules: HealthRules | None = None, *, interval_s: float = PING_INTERVAL_S
    ) -> None:
        self._interval_s = check_seconds("interval_s", interval_s)
        self._client = client.within(client.settings.timeouts[1])
        self._health = Health(client.session, rules)
        self._task: asyncio.Task[None] | None = None

    @property
    def states(self) -> dict[str, bool]:
        """Whether each shard is healthy, by name."""
        return self._health.states

    def start(self) -> None:
        """Pings in the background until stop()."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="pinlater-health")

    async def stop(self) -> None:
        """Ends the pings; unstarted or twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def ping_all(self) -> None:
        """Pings each server once."""
        await asyncio.gather(
            *(self._client.run(partial(self._health.ping, server)) for server in self._health.servers())
        )

    async def _run(self) -> None:
        while True:
            try:
                await self.ping_all()
            except PinLaterError as error:
                log.error("the shards were not pinged: %s", error)
            except Exception:
                log.exception("the shards were not pinged: an unexpected error")
            await asyncio.sleep(self._interval_s)
