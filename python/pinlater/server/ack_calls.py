"""Acks, from bytes to bytes: those of ackDequeuedJobs, and those that ride on a dequeue.

Promises that acks of one queue shard which arrive together leave as one script call, and that each call has its own
outcome: a wrong one fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import pinlater._core as _core
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import PinLaterError, QueueNotFound
from pinlater.operations import leases
from pinlater.operations.leases import NONE_REFUSED, RefusedAcks
from pinlater.server.calls import Call, Calls
from pinlater.server.errors import ErrorCode, Refused
from pinlater.server.settings import ServerSettings
from pinlater.server.wire_values import may_exist
from pinlater.store.call_batches import Coalescer, make_room

METHOD: Final = "ackDequeuedJobs"


class AckCalls:
    """The acks of a process.

    any_source: end a job whoever claimed it.
    """

    def __init__(self, client: AsyncClient, settings: ServerSettings, calls: Calls) -> None:
        self._client, self._session, self._stats, self._tasks = client, client.session, calls.stats, calls.tasks
        self.any_source = settings.ack_any_source
        #: By queue and shards: acks of one shard do not wait for another shard.
        self._coalescers: dict[tuple[str, ...], Coalescer[_core.AckCall]] = {}

    async def answer(self, call: Call, acks: _core.AckCall) -> None:
        """Carries out a call of ackDequeuedJobs."""
        try:
            self.check_shards(acks)
            await self.carry_out(acks)
        except Exception as error:
            call.fail(error)
        else:
            call.end(_core.void_answer(METHOD, call.sequence))

    def check_shards(self, acks: _core.AckCall) -> None:
        """Raises Refused for a descriptor of a shard that is not there: nothing is done then."""
        for shard in acks.shards():
            if shard not in self._session.shards_of_jobs:
                known = ", ".join(self._session.shards)
                raise Refused(ErrorCode.UNKNOWN, f"job descriptor: expected a shard of {known}, got {shard!r}")

    async def carry_out(self, acks: _core.AckCall) -> None:
        """Ends the jobs of a call, with those of other calls, and counts them. Jobs of no queue are no error."""
        if acks.count and may_exist(acks.queue):
            with suppress(QueueNotFound):
                self.count([acks], [await self._coalesced(acks)])

    def count(self, calls: Sequence[_core.AckCall], outcomes: Sequence[RefusedAcks | PinLaterError]) -> None:
        """Counts the acks of calls of one queue. outcomes: of each how many were refused, or its error."""
        if outcomes.count(NONE_REFUSED) < len(calls):
            known = [each for each in zip(calls, outcomes, strict=True) if isinstance(each[1], RefusedAcks)]
            calls, refused = [call for call, _ in known], [each for _, each in known]
        else:
            refused = [NONE_REFUSED]
        if not calls:
            return
        succeeded, failed = _core.count_acks(calls)
        not_succeeded, not_failed = map(sum, zip(*refused, strict=True))
        queue = calls[0].queue
        self._stats.add(queue, "ack_succeeded", succeeded - not_succeeded)
        self._stats.add(queue, "ack_failed", failed - not_failed)
        self._stats.add(queue, "ack_refused", not_succeeded + not_failed)

    async def _coalesced(self, acks: _core.AckCall) -> RefusedAcks:
        """Returns how many were refused."""
        target = acks.queue, *acks.shards()
        coalescer = self._coalescers.get(target)
        if coalescer is None:
            make_room(self._coalescers)
            coalescer = self._coalescers[target] = Coalescer(self._together, self._tasks)
        refused: RefusedAcks = await coalescer.add(acks, acks.size, acks.keys())
        return refused

    async def _together(self, acks: list[_core.AckCall]) -> list[RefusedAcks | PinLaterError]:
        """Ends the jobs of several calls. Returns the number of refused jobs of each."""
        return await self._client.run(partial(leases.ack_calls, self._session, acks, self.any_source))
