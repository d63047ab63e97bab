"""The subscriptions of a worker's wake channel, one a server, which are made again when they are lost.

Promises that a lost one is tried again until it stands or the worker stops, and told once. Risks: one that dies without
a word is noticed by TCP's probes only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pinlater.async_client import AsyncClient
from pinlater.ending import FIRST_RETRY_S, LAST_RETRY_S
from pinlater.errors import ServerRefused
from pinlater.servers import Server
from pinlater.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")


class Subscriptions:
    """background: runs what makes one. stands: told of the server of one that was made."""

    def __init__(
        self,
        client: AsyncClient,
        background: Callable[[Coroutine[Any, Any, None]], None],
        stands: Callable[[Server], None],
    ) -> None:
        self._client = client
        self._background, self._stands = background, stands
        self._making: set[Server] = set()
        self._closed = True

    def open(self) -> None:
        """They are kept up from now on."""
        self._closed = False
        self._client._transport.waker.on_lost = self._on_lost

    def close(self) -> None:
        """None is made again."""
        self._closed = True
        self._client._transport.waker.on_lost = None

    def heard(self, places: list[QueueShard]) -> list[QueueShard]:
        """The places whose server rings us; the others are subscribed meanwhile."""
        listening = self._client._transport.waker.listening
        heard = [place for place in places if listening(place.shard.server)]
        if len(heard) < len(places):
            for place in places:
                self._on_lost(place.shard.server)
        return heard

    def _on_lost(self, server: Server) -> None:
        if server not in self._making and not self._client._transport.waker.listening(server) and not self._closed:
            self._making.add(server)
            self._background(self._make(server))

    async def _make(self, server: Server) -> None:
        pause_s = FIRST_RETRY_S
        try:
            while (why := await self._listen(server)) and not self._closed:
                if pause_s == FIRST_RETRY_S:
                    log.warning("%s, trying again", why)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_RETRY_S)
        finally:
            self._making.discard(server)
        self._stands(server)

    async def _listen(self, server: Server) -> str:
        """Why the subscription does not stand; '' if it does."""
        waker = self._client._transport.waker
        try:
            await waker.listen([server])
        except ServerRefused as error:
            return str(error)
        return "" if waker.listening(server) else f"server {server} does not answer"
