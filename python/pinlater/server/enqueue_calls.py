"""Enqueues, from bytes to bytes.

Promises:
- Enqueues of one queue that arrive together leave as one script call a shard. Each call has its own outcome: a wrong
  one fails alone.
- The jobs of a call are enqueued all or not at all, as long as they fit one script call.
Risks: of a call that is too large for one script call, a part may be enqueued when a shard fails. The error says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import pinlater._core as _core
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import checked
from pinlater.model.queue_config import QueueConfig
from pinlater.operations import enqueue
from pinlater.operations.enqueue import MAX_BATCH, PART_BYTES, PackedJobs, start_packed
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.server.calls import Call, Calls
from pinlater.server.errors import ErrorCode, Refused
from pinlater.server.wire_values import may_exist
from pinlater.store.call_batches import Coalescer, make_room

#: An enqueue that waits for others, and its call.
_Enqueue: TypeAlias = tuple[Call, _core.EnqueueCall]


class EnqueueCalls:
    """The enqueues of a process."""

    def __init__(self, client: AsyncClient, calls: Calls) -> None:
        self._client, self._session, self._calls, self._stats = client, client.session, calls, calls.stats
        self._coalescers: dict[str, Coalescer[_Enqueue]] = {}

    def answer(self, call: Call, request: _core.EnqueueCall) -> None:
        """Carries out a call of enqueueJobs."""
        queue = request.queue
        coalescer = self._coalescers.get(queue)
        config = self._session.known_config(queue) if coalescer is not None or may_exist(queue) else None
        if config is None or not request.fits(config.body_limit, config.priorities, MAX_BATCH, PART_BYTES):
            self._calls.start(self._enqueue_other(call, request))
            return
        if coalescer is None:
            make_room(self._coalescers)
            coalescer = self._coalescers[queue] = Coalescer(
                partial(self._enqueue_together, queue), self._calls.tasks, patient=True
            )
        coalescer.add((call, request), request.size, jobs=request.count, receiver=call)

    async def _enqueue_together(self, queue: str, enqueues: list[_Enqueue]) -> list[bytes]:
        """Enqueues the jobs of several calls in one part. Returns the frames of the answers."""
        requests = [request for _, request in enqueues]

        def pack(config: QueueConfig) -> PackedJobs:
            if len(requests) == 1:
                _check(requests[0], config)  # the queue may have changed
            packed: PackedJobs = checked(_core.pack_enqueues, requests, config.body_limit, config.priorities)
            return packed

        shard, first_id = await self._enqueue_packed(queue, pack)
        frames, count = _core.enqueue_answers(requests, [call.sequence for call, _ in enqueues], shard, first_id)
        self._stats.add(queue, "enqueue", count)
        return frames

    async def _enqueue_packed(self, queue: str, pack: Callable[[QueueConfig], PackedJobs]) -> tuple[str, int]:
        started = start_packed(self._session, queue, pack)
        if started is None:
            return await self._client.run(partial(enqueue.enqueue_packed, self._session, queue, pack))
        deadline_s = self._client.settings.deadline_s()
        try:
            [answer] = await self._client.driver.send(started.server, [started.command], deadline_s)
        except BaseException:
            started.drop()
            raise
        found = started.result(answer)
        return await self._client.driver.drive(started.go_on(answer, deadline_s)) if found is None else found

    async def _enqueue_other(self, call: Call, request: _core.EnqueueCall) -> None:
        """Enqueues on a queue that is not known yet, or more than one script call takes."""
        queue = request.queue
        try:
            config = await self._config_of(queue)
            if request.fits(config.body_limit, config.priorities, MAX_BATCH, PART_BYTES):
                self.answer(call, request)
                return
            _check(request, config)
            flow = partial(enqueue.enqueue_many, self._session, queue, request.jobs())
            frame = _core.enqueue_answer(call.sequence, await self._client.run(flow))
        except Exception as error:
            call.fail(error)
        else:
            self._stats.add(queue, "enqueue", request.count)
            call.end(frame)

    async def _config_of(self, queue: str) -> QueueConfig:
        if not may_exist(queue):
            raise Refused(ErrorCode.QUEUE_NOT_FOUND, f"queue {queue!r:.80}: not found; createQueue makes it")
        known = await self._client.run(partial(known_queue_shards, self._session, queue))
        assert known[0].stored is not None
        return known[0].stored.config


def _check(request: _core.EnqueueCall, config: QueueConfig) -> None:
    """Raises Refused for a job that the queue does not take."""
    try:
        request.check(config.body_limit, config.priorities)
    except _core.PriorityNotSupported as error:
        raise Refused(ErrorCode.PRIORITY_NOT_SUPPORTED, str(error)) from None
    except ValueError as error:
        raise Refused(ErrorCode.UNKNOWN, str(error)) from None
