"""Pings servers at an interval, for `operations/health.py`.

Promises that pings start at a fixed rate: a silent server does not slow them down, nor those of the others.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from pinlater.client.async_client import AsyncClient
from pinlater.client.base import check_seconds
from pinlater.model.errors import PinLaterError
from pinlater.operations.health import PING_S, Health, HealthRules

log: Final = logging.getLogger("pinlater.shards")

#: Seconds from the start of a ping to that of the next one.
PING_INTERVAL_S: Final = 5.0


class HealthChecks:
    """Runs the pings of one client's servers between start() and stop().

    interval_s: seconds from the start of a ping to that of the next one. A longer ping delays the next one to its end.
    """

    def __init__(
        self, client: AsyncClient, rules: HealthRules | None = None, *, interval_s: float = PING_INTERVAL_S
    ) -> None:
        self._interval_s = check_seconds("interval_s", interval_s)
        self._client = client.within(PING_S)
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
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            try:
                await self.ping_all()
            except PinLaterError as error:
                log.error("the shards were not pinged: %s", error)
            except Exception:
                log.exception("the shards were not pinged: an unexpected error")
            next_s = max(next_s + self._interval_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
