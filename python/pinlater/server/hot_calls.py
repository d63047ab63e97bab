"""The three hot methods: enqueueJobs, dequeueJobs and ackDequeuedJobs.

Promises that close() gives back what this process holds: tokens of limits, and jobs of claims whose answers were lost.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pinlater._core as _core
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError
from pinlater.operations import limits
from pinlater.server import ack_calls
from pinlater.server.ack_calls import AckCalls
from pinlater.server.answer_room import AnswerRoom
from pinlater.server.calls import Calls
from pinlater.server.dequeue_calls import DequeueCalls
from pinlater.server.enqueue_calls import EnqueueCalls
from pinlater.server.settings import ServerSettings


class HotCalls:
    """Makes the three methods the hot ones of `calls`."""

    def __init__(self, client: AsyncClient, settings: ServerSettings, calls: Calls, room: AnswerRoom) -> None:
        self._client, self._calls = client, calls
        enqueues = EnqueueCalls(client, calls)
        acks = AckCalls(client, settings, calls)
        self._dequeues = DequeueCalls(client, acks, calls, room)
        calls.add_hot(_core.EnqueueCall, "enqueueJobs", enqueues.answer)
        calls.add_hot(_core.DequeueCall, "dequeueJobs", self._dequeues.answer)
        calls.add_hot(_core.AckCall, ack_calls.METHOD, lambda call, request: calls.start(acks.answer(call, request)))

    async def close(self) -> None:
        """Gives back what this process holds, when no call is under way any more."""
        session = self._client.session
        for queue in session.known_queues():
            await self._dequeues.release_lost(queue)
            with suppress(PinLaterError):  # lost tokens are never doubled
                await self._client.run(partial(limits.return_tokens, session, queue))
