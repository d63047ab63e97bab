"""The three hot methods: enqueueJobs, dequeueJobs and ackDequeuedJobs.

Promises that nothing of theirs is left behind when they are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import pinlater._core as _core
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError
from pinlater.operations import limits
from pinlater.server import ack_calls
from pinlater.server.ack_calls import AckCalls
from pinlater.server.calls import Calls
from pinlater.server.dequeue_calls import DequeueCalls
from pinlater.server.enqueue_calls import EnqueueCalls
from pinlater.server.settings import ServerSettings
from pinlater.server.stats import ServerStats


class HotCalls:
    """The hot methods of a process. start: runs a coroutine."""

    def __init__(
        self,
        client: AsyncClient,
        settings: ServerSettings,
        stats: ServerStats,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._client, self._start = client, start
        self._tasks: set[asyncio.Task[None]] = set()
        self._enqueues = EnqueueCalls(client, stats, start, self._tasks)
        self._acks = AckCalls(client, settings, stats, self._tasks)
        self._dequeues = DequeueCalls(client, self._acks, stats, start, self._tasks)

    def join(self, calls: Calls) -> None:
        """Makes these methods the hot ones."""
        start, acks = self._start, self._acks
        calls.add_hot(_core.EnqueueCall, "enqueueJobs", self._enqueues.answer)
        calls.add_hot(_core.DequeueCall, "dequeueJobs", self._dequeues.answer)
        calls.add_hot(_core.AckCall, ack_calls.METHOD, lambda call, request: start(acks.answer(call, request)))

    async def close(self) -> None:
        """Waits for what is under way, then gives back what this process holds: tokens, and jobs that nobody got."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        session = self._client.session
        for queue in session.known_queues():
            await self._dequeues.release_lost(queue)
            with suppress(PinLaterError):  # lost tokens are never doubled
                await self._client.run(partial(limits.return_tokens, session, queue))
