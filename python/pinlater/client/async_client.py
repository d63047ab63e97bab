"""The asyncio client.

Promises what the blocking client promises, on one event loop. Concurrent enqueues (or acks) in one turn of the loop are
sent as one script call. Risks: a cancelled call may still be carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from pinlater.client import methods
from pinlater.client.base import BaseClient, ClientSettings, make_resolvable
from pinlater.client.methods import MakeFlow, documented_as, listed
from pinlater.model.errors import PinLaterError, checked
from pinlater.model.jobs import Ack, Claimed, JobInfo, NewJob, State
from pinlater.model.queue_config import check_queue_name
from pinlater.operations import leases
from pinlater.operations.enqueue import pack_jobs
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.archive_url import ArchiveUrl
from pinlater.store.async_driver import AsyncDriver
from pinlater.store.call_batches import Coalescer, make_room
from pinlater.store.effects import complete
from pinlater.store.shards import NamedShards, shard_for_key

P = ParamSpec("P")
T = TypeVar("T")

#: The arguments of one ack: the succeeded items and the failed items.
_Ended: TypeAlias = tuple[list[Any], list[Any]]


def _awaited(
    method: Callable[Concatenate[BaseClient, P], MakeFlow[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Makes an async method from a shared method: it awaits the end of the flow."""

    @documented_as(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(method(self, *args, **kwargs))

    return call


class AsyncClient(BaseClient):
    """A client for one event loop. Use it in an `async with` block, or close() it.

    Its arguments, methods and errors are those of Client.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: NamedShards | None = None,
        source: str | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 5.0,
        archive: str | ArchiveUrl | None = None,
    ) -> None:
        super().__init__(
            ClientSettings(
                url,
                shards=shards,
                source=source,
                timeout_s=timeout_s,
                connect_timeout_s=connect_timeout_s,
                read_timeout_s=read_timeout_s,
                archive=archive,
            )
        )
        self.driver = AsyncDriver(*self.settings.timeouts)
        self._tasks: set[asyncio.Task[None]] = set()
        #: By queue; those of jobs with a key by queue and shard, as another shard may not answer.
        self._enqueues: dict[str | tuple[str, str], Coalescer[NewJob]] = {}
        self._acks: dict[tuple[str, str], Coalescer[_Ended]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for calls under way, closes all connections and releases an embedded server. A second call does
        nothing.
        """
        self._check_fork()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.driver.close()
        if self.settings.database is not None:
            self.settings.database.close()
        for server in (*self.session.servers, *self.session.former_servers):
            server.release()

    async def run(self, make: MakeFlow[T]) -> T:
        """Runs the flow that `make` returns for a deadline, and returns its result."""
        self._check_fork()
        try:
            return await self.driver.drive(make(self.settings.deadline_s()))
        except PinLaterError as error:
            make_resolvable(error, self.run)
            raise

    def _separate(self, other: Self) -> None:
        self._check_fork()
        other._tasks, other._enqueues, other._acks = self._tasks, {}, {}

    def _check_fork(self) -> None:
        """A forked child starts with nothing: the calls under way belong to the parent."""
        if self.session.forked:
            self.session.renew()
            self.driver.after_fork()
            self._tasks, self._enqueues, self._acks = set(), {}, {}

    async def enqueue(
        self,
        queue: str,
        body: bytes,
        *,
        priority: int = 1,
        run_after_ms: int | None = None,
        delay_ms: int | None = None,
        attempts: int = 2,
        status: str = "",
        key: str | bytes | None = None,
    ) -> str:
        """See Client.enqueue. Enqueues of one queue that wait in the same turn of the loop leave together. A bad one
        fails alone. A cancelled enqueue may still be carried out.
        """
        job: NewJob = checked(
            NewJob,
            body,
            priority=priority,
            run_after_ms=run_after_ms,
            delay_ms=delay_ms,
            attempts=attempts,
            status=status,
            key=key,
        )
        return await self.enqueue_job(queue, job)

    def enqueue_job(self, queue: str, job: NewJob) -> Awaitable[str]:
        """See Client.enqueue_job. The job leaves with the next call, whether or not the result is awaited."""
        if self.session.forked:
            self._check_fork()
        known, size = self.session.known_config(queue), len(job.body)
        if known is None:
            return self._enqueue_first(queue, job)
        if job.priority > known.priorities or size > known.body_limit:
            pack_jobs([job], known)  # raises InvalidArgument before the job joins others
        names = self.session.taking or list(self.session.shards)  # without such a shard the enqueue is refused
        target = queue if job.key is None else (queue, shard_for_key(job.key, names))
        coalescer = self._enqueues.get(target)
        if coalescer is None:
            make_room(self._enqueues)
            coalescer = self._enqueues[target] = Coalescer(partial(self.enqueue_many, queue), self._tasks)
        future: Awaitable[str] = coalescer.add(job, size)
        return future

    async def _enqueue_first(self, queue: str, job: NewJob) -> str:
        """Reads the configuration of the queue first."""
        await self.run(lambda end: known_queue_shards(self.session, check_queue_name(queue), end))
        return await self.enqueue_job(queue, job)

    async def ack(
        self,
        *,
        succeeded: Iterable[Claimed | Ack | str] = (),
        failed: Iterable[Claimed | Ack | str] = (),
        source: str = "",
    ) -> list[Any]:
        """See Client.ack. Acks of one queue shard that wait in the same turn of the loop leave together. Two acks of
        one job leave one after the other.
        """
        ended = listed("succeeded", succeeded), listed("failed", failed)
        queue_shards = {} if source else leases.queue_shards_of_acks(*ended)
        if len(queue_shards) != 1:
            return await self.run(methods.ack(self, succeeded=ended[0], failed=ended[1], source=source))
        # acks of one queue shard share one outcome; another queue may be deleted, another server down
        [(queue_shard, (ids, size))] = queue_shards.items()
        self._check_fork()
        coalescer = self._acks.get(queue_shard)
        if coalescer is None:
            make_room(self._acks)
            coalescer = self._acks[queue_shard] = Coalescer(
                self._ack_together, self._tasks, partial(self._ack_parts, queue_shard)
            )
        refused: list[Any] = await coalescer.add(ended, size, ids)
        return refused

    def _ack_parts(self, queue_shard: tuple[str, str], calls: list[_Ended]) -> list[slice]:
        """The calls in parts that are one script call each: each caller gets the outcome of its own."""
        most = leases.most_of_ack(self.session, *queue_shard, any(failed for _, failed in calls))
        starts, total = [0], 0
        for at, (succeeded, failed) in enumerate(calls):
            total += (own := len(succeeded) + len(failed))
            if at and total > most:
                starts.append(at)
                total = own
        return [slice(*ends) for ends in pairwise([*starts, len(calls)])]

    async def _ack_together(self, calls: list[_Ended]) -> list[list[Any]]:
        succeeded = [item for ended, _ in calls for item in ended]
        failed = [item for _, ended in calls for item in ended]
        flow = methods.ack(self, succeeded=succeeded, failed=failed)
        return await self.run(lambda end: complete(flow(end), lambda refused: _by_call(calls, refused)))

    async def scan(
        self,
        queue: str,
        state: State | str = State.PENDING,
        *,
        priority: int | None = None,
        future: bool = False,
        with_body: bool = False,
        page_size: int = 100,
    ) -> AsyncIterator[JobInfo]:
        """See Client.scan."""
        cursor, seen = "", set[str]()
        while True:
            page, cursor = await self.scan_page(
                queue, state, priority=priority, future=future, with_body=with_body, limit=page_size, cursor=cursor
            )
            for info in methods.unseen(page, state, seen):
                yield info
            if not cursor:
                return

    create_queue = _awaited(methods.create_queue)
    configure_queue = _awaited(methods.configure_queue)
    queue_config = _awaited(methods.queue_config)
    delete_queue = _awaited(methods.delete_queue)
    queue_names = _awaited(methods.queue_names)

    pause_queue = _awaited(methods.pause_queue)
    resume_queue = _awaited(methods.resume_queue)
    drain_queue = _awaited(methods.drain_queue)
    queue_limits = _awaited(methods.queue_limits)
    change_shards = _awaited(methods.change_shards)

    enqueue_many = _awaited(methods.enqueue_many)

    dequeue = _awaited(methods.dequeue)
    release = _awaited(methods.release)
    renew = _awaited(methods.renew)
    checkpoint = _awaited(methods.checkpoint)

    lookup = _awaited(methods.lookup)
    count = _awaited(methods.count)
    peek = _awaited(methods.peek)
    scan_page = _awaited(methods.scan_page)

    retry_failed = _awaited(methods.retry_failed)
    retry_jobs = _awaited(methods.retry_jobs)
    delete_jobs = _awaited(methods.delete_jobs)
    purge = _awaited(methods.purge)
    reset_lost = _awaited(methods.reset_lost)


def _by_call(calls: list[_Ended], refused: list[Any]) -> list[list[Any]]:
    """The refused items of each call. They are compared by identity: two calls may name equal items."""
    refused_ids = {id(item) for item in refused}
    return [[item for item in (*succeeded, *failed) if id(item) in refused_ids] for succeeded, failed in calls]
