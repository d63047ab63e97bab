"""The nine methods whose calls are not hot: values of the interface in, values of the interface out.

Promises the behaviour that docs/thrift.md lists. The three hot methods are in hot_calls.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from pinlater.client.async_client import AsyncClient
from pinlater.client.methods import MakeFlow
from pinlater.model.errors import InvalidArgument, PinLaterError, QueueNotFound
from pinlater.model.jobs import CountsByState, JobInfo, State
from pinlater.operations import admin, body_match, inspect, leases, queues, scans
from pinlater.operations.inspect import DEQUEUE_BYTES
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.server.answer_room import AnswerRoom
from pinlater.server.errors import ErrorCode, Refused
from pinlater.server.interface import structs
from pinlater.server.passwords import Password
from pinlater.server.queue_config_file import QueueConfigFile
from pinlater.server.settings import ServerSettings
from pinlater.server.stats import ServerStats
from pinlater.server.wire_values import (
    MAX_I32,
    attempts_of,
    by_queue,
    checkpoints_of,
    existing,
    job_info,
    limit_of,
    mark_of_scan,
    may_exist,
    new_queue_name,
    position_of,
    source_of,
    state_of,
    time_of,
)
from pinlater.store.effects import Flow, together
from pinlater.store.shards import Session

T = TypeVar("T")

#: A lookup takes room for so many bytes of each body, until more is known.
LOOKUP_BYTES: Final = 1024 * 1024
#: A lookup asks for the jobs of so many queues at a time.
QUEUES_AT_ONCE: Final = 100
#: The continuation behind the last page.
END: Final[str] = structs.CONTINUATION_END


class Methods:
    """The methods by their names.

    password: of deleteQueue.
    rates: of queues that createQueue makes.
    room: for bodies.
    """

    def __init__(
        self,
        client: AsyncClient,
        settings: ServerSettings,
        password: Password,
        stats: ServerStats,
        rates: QueueConfigFile,
        room: AnswerRoom,
    ) -> None:
        self._client, self._session = client, client.session
        self._settings, self._password, self._stats, self._rates, self._room = settings, password, stats, rates, room
        self.by_name: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "createQueue": self._create_queue,
            "deleteQueue": self._delete_queue,
            "checkpointJobs": self._checkpoint,
            "lookupJobs": self._lookup,
            "getJobCount": self._count,
            "getQueueNames": self._queue_names,
            "scanJobs": self._scan,
            "retryFailedJobs": self._retry_failed,
            "deleteJobs": self._delete_jobs,
        }

    async def _create_queue(self, call: Any) -> None:
        name = new_queue_name(call.name)
        rates = await asyncio.to_thread(self._rates.latest)
        config = replace(self._settings.queue_config, rate=rates.get(name))
        await self._client.run(partial(queues.create_queue, self._session, name, config))

    async def _delete_queue(self, call: Any) -> None:
        if not await self._password.matches(call.password, call.name, source_of(call.context)):
            raise Refused(ErrorCode.PASSWORD_INVALID, "wrong password: deleteQueue needs the password of this server")
        if may_exist(call.name):
            await self._client.run(partial(queues.delete_queue, self._session, call.name))

    async def _queue_names(self, _: Any) -> set[str]:
        return set(await self._client.queue_names())

    async def _checkpoint(self, call: Any) -> None:
        queue = call.request.queueName
        checkpoints, source = checkpoints_of(call.request, self._session.shards_of_jobs), source_of(call.context)
        if not checkpoints:
            return
        make = partial(leases.checkpoint_by_source, self._session, checkpoints, source)
        nothing: list[Any] | None = None  # callers can make up queues: those are not counted
        try:
            refused = await self._of_queue(queue, None, make, nothing)
        except InvalidArgument as error:  # a body is larger than its queue allows
            raise Refused(ErrorCode.UNKNOWN, str(error)) from None
        if refused is None:
            return
        self._stats.add(queue, "checkpoint", len(checkpoints) - len(refused))
        self._stats.add(queue, "checkpoint_noop", len(refused))

    async def _lookup(self, call: Any) -> dict[str, Any]:
        with_body, bodies = bool(call.request.includeBody), _Bodies(self._settings.max_frame)
        named = by_queue(existing(call.request.jobDescriptors, self._session.shards_of_jobs))
        most_bytes = min(LOOKUP_BYTES * len(call.request.jobDescriptors), self._settings.max_frame)
        async with self._room.taken(most_bytes if with_body else 0):
            found = await self._client.run(partial(_lookup_of_queues, self._session, named, with_body, bodies.take))
            return {descriptor: job_info(info) for descriptor, info in found.items()}

    async def _count(self, call: Any) -> int:
        request, pattern = call.request, call.request.bodyRegexToMatch
        queue, state, priority = request.queueName, state_of(request.jobState), request.priority
        future = bool(request.countFutureJobs)
        if future and state is not State.PENDING:
            return 0
        if pattern is not None:
            make = partial(body_match.count_matching, self._session, queue, state, priority, future, pattern)
            async with self._room.taken(DEQUEUE_BYTES):
                return min(await self._of_queue(queue, priority, make, 0), MAX_I32)
        counts = await self._of_queue(
            queue, priority, partial(inspect.count, self._session, queue, priority), CountsByState()
        )
        return min(counts.scheduled if future else getattr(counts, state.value), MAX_I32)

    async def _scan(self, call: Any) -> Any:
        request, pattern = call.request, call.request.bodyRegexToMatch
        queue, state, priority = request.queueName, state_of(request.jobState), request.priority
        future, limit, mark = bool(request.scanFutureJobs), request.limit, mark_of_scan(request)
        at = position_of(request.continuation, mark)
        nothing: tuple[list[JobInfo], str] = [], ""
        infos, position = nothing
        if limit > 0 and not (future and state is not State.PENDING):
            page = self._session, queue, state, priority, future, False
            make = partial(scans.scan_merged, *page, limit, at)
            if pattern is not None:
                make = partial(body_match.scan_matching, *page, pattern, limit, at)
            async with self._room.taken(DEQUEUE_BYTES if pattern is not None else 0):
                infos, position = await _page_of(self._of_queue(queue, priority, make, nothing))
        continuation = mark + position if position else END
        return structs.PinLaterScanJobsResponse(scannedJobs=[*map(job_info, infos)], continuation=continuation)

    async def _retry_failed(self, call: Any) -> int:
        request, limit = call.request, limit_of(call.request)
        attempts, run_after_ms = attempts_of(request.attemptsToAllow), time_of(request.runAfterTimestampMillis)
        queue, priority = request.queueName, request.priority
        make = partial(admin.retry_failed, self._session, queue, priority, limit, attempts, run_after_ms, None)
        return await self._of_queue(queue, priority, make, 0)

    async def _delete_jobs(self, call: Any) -> int:
        request, limit, pattern = call.request, limit_of(call.request), call.request.bodyRegexToMatch
        queue, state, priority = request.queueName, state_of(request.jobState), request.priority
        make = partial(admin.delete_jobs, self._session, queue, state, priority, limit)
        if pattern is not None:
            make = partial(body_match.delete_matching, self._session, queue, state, priority, pattern, limit)
        async with self._room.taken(DEQUEUE_BYTES if pattern is not None else 0):
            return await self._of_queue(queue, priority, make, 0)

    async def _of_queue(self, queue: str, priority: int | None, make: MakeFlow[T], nothing: T) -> T:
        """What a flow returns; `nothing` if the queue does not exist, or has no such priority."""
        if not may_exist(queue):
            return nothing
        try:
            known = await self._client.run(partial(known_queue_shards, self._session, queue))
            priorities = known[0].stored.config.priorities if known[0].stored is not None else 0
            if priority is not None and not 1 <= priority <= priorities:
                return nothing
            return await self._client.run(make)
        except QueueNotFound:
            return nothing


def _lookup_of_queues(
    session: Session, named: Mapping[str, Sequence[str]], with_body: bool, take: inspect.TakeFound, deadline_s: float
) -> Flow[dict[str, JobInfo]]:
    """The jobs of several queues, by descriptor. named: descriptors by queue."""
    found: dict[str, JobInfo] = {}
    queues = [*filter(may_exist, named)]
    for first in range(0, len(queues), QUEUES_AT_ONCE):
        chosen = queues[first : first + QUEUES_AT_ONCE]
        flows = [_lookup_of_queue(session, queue, named[queue], with_body, take, deadline_s) for queue in chosen]
        for result in (yield from together(flows)):
            if isinstance(result, PinLaterError) and not isinstance(result, QueueNotFound):
                raise result
            if not isinstance(result, PinLaterError):
                found |= result
    return found


def _lookup_of_queue(
    session: Session, queue: str, named: Sequence[str], with_body: bool, take: inspect.TakeFound, deadline_s: float
) -> Flow[dict[str, JobInfo]]:
    yield from known_queue_shards(session, queue, deadline_s)
    return (yield from inspect.lookup(session, named, with_body, deadline_s, take=take))


class _Bodies:
    """The bodies of a lookup, which stand in memory until they are one answer. most_bytes: as many may be there."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes, self._count = most_bytes, 0, 0

    def take(self, infos: list[JobInfo]) -> None:
        """Counts more of them. A single body is never too much. Raises Refused."""
        sizes = [len(info.body) for info in infos if info.body is not None]
        self._bytes, self._count = self._bytes + sum(sizes), self._count + len(sizes)
        if self._count > 1 and self._bytes > self._most_bytes:
            expected = f"lookupJobs: expected bodies of up to {self._most_bytes:,} bytes together, got more"
            raise Refused(ErrorCode.UNKNOWN, f"{expected}; name fewer jobs")


async def _page_of(page: Awaitable[T]) -> T:
    """A page of a scan. Raises Refused for a continuation that this server never gave."""
    try:
        return await page
    except InvalidArgument as error:
        if str(error).startswith("continuation: "):
            raise Refused(ErrorCode.CONTINUATION_INVALID, str(error)) from None
        raise
