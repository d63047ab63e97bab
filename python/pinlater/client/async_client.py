"""The asyncio client.

Promises what the blocking client promises, on one event loop, and that concurrent enqueues (and acks) of one turn leave
as one script call. Risks: a cancelled call may still be carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from pinlater.client.client import ClientSettings, both_given, give_drive, listed, unseen
from pinlater.model.errors import PartialEnqueue, PinLaterError, checked
from pinlater.model.jobs import Ack, Checkpoint, Claimed, CountsByState, Job, JobInfo, NewJob, State
from pinlater.model.queue_config import QueueConfig, check_queue_name
from pinlater.operations import admin as maintaining
from pinlater.operations import claim as dequeuing
from pinlater.operations import enqueue as enqueuing
from pinlater.operations import inspect as inspecting
from pinlater.operations import leases as holding
from pinlater.operations import queues
from pinlater.store.async_driver import AsyncDriver
from pinlater.store.coalescer import Coalescer
from pinlater.store.effects import Flow, complete

T = TypeVar("T")


class AsyncClient:
    """A client for one event loop. Use it in an `async with` block, or close() it. Arguments, methods and errors are
    those of Client.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: Mapping[str, str] | None = None,
        source: str | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 5.0,
    ) -> None:
        self.settings = ClientSettings(
            url,
            shards=shards,
            source=source,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )
        self.session = self.settings.session
        self.driver = AsyncDriver(self.session.channel, *self.settings.timeouts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._enqueues: dict[str, Coalescer[NewJob]] = {}
        self._acks: dict[tuple[str, str], Coalescer[tuple[list[Any], list[Any]]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for what is on its way, closes all connections, lets go of an embedded server. Twice is fine."""
        self._check_fork()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.driver.close()
        for server in self.session.servers:
            server.release()

    async def run(self, make: Callable[[float], Flow[T]]) -> T:
        """Drives the flow that `make` gives for a deadline."""
        self._check_fork()
        try:
            return await self.driver.drive(make(self.settings.deadline_s()))
        except PinLaterError as error:
            give_drive(error, self.run)
            raise

    def _check_fork(self) -> None:
        """A forked child begins anew: what waits or is on its way in the parent is the parent's alone."""
        if self.session.forked:
            self.session.renew()
            self.driver.after_fork(self.session.channel)
            self._tasks, self._enqueues, self._acks = set(), {}, {}

    # queues

    async def create_queue(self, queue: str, config: QueueConfig | None = None) -> bool:
        """See Client.create_queue."""
        return await self.run(
            lambda end: queues.create_queue(self.session, queue, QueueConfig() if config is None else config, end)
        )

    async def configure_queue(self, queue: str, **changes: Any) -> QueueConfig:
        """See Client.configure_queue."""
        return await self.run(lambda end: queues.configure_queue(self.session, queue, changes, end))

    async def queue_config(self, queue: str) -> QueueConfig:
        """See Client.queue_config."""
        return await self.run(lambda end: queues.queue_config(self.session, queue, end))

    async def delete_queue(self, queue: str) -> bool:
        """See Client.delete_queue."""
        return await self.run(lambda end: queues.delete_queue(self.session, queue, end))

    async def queue_names(self) -> list[str]:
        """See Client.queue_names."""
        return await self.run(lambda end: queues.queue_names(self.session, end))

    # putting in

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
        """See Client.enqueue. Enqueues that wait in the same turn of the loop leave together; cancelling one cancels
        nothing.
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
        """As enqueue, of a job made before; it is in the next call that leaves, awaited or not."""
        if self.session.forked:
            self._check_fork()
        known, size = self.session.known_config(queue), len(job.body)
        if known is None:
            return self._enqueue_first(queue, job)
        if job.priority > known.priorities or size > known.body_limit:
            enqueuing.pack_jobs([job], known)  # says what is wrong with it
        coalescer = self._enqueues.get(queue)
        if coalescer is None:
            coalescer = self._enqueues[queue] = Coalescer(lambda jobs: self._enqueue_together(queue, jobs), self._tasks)
        return coalescer.add(job, size)

    async def _enqueue_first(self, queue: str, job: NewJob) -> str:
        """Before anything is known of the queue."""
        await self.run(lambda end: queues.known_queue_shards(self.session, check_queue_name(queue), end))
        return await self.enqueue_job(queue, job)

    async def _enqueue_together(self, queue: str, jobs: list[NewJob]) -> list[Any]:
        try:
            return await self.enqueue_many(queue, jobs)
        except PartialEnqueue as error:
            return error.results

    async def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """See Client.enqueue_many."""
        jobs = listed("jobs", jobs)
        return await self.run(lambda end: enqueuing.enqueue_many(self.session, queue, jobs, end))

    # working

    async def dequeue(
        self, queue: str, limit: int = 1, *, wait: float | None = None, dry_run: bool = False
    ) -> list[Job]:
        """See Client.dequeue."""
        if dry_run:
            return await self.run(lambda end: dequeuing.dry_run(self.session, queue, limit, end))
        source, timeout_s = self.settings.source, self.settings.timeout_s
        return await self.run(lambda _: dequeuing.dequeue(self.session, queue, limit, wait, source, timeout_s))

    async def ack(
        self,
        *,
        succeeded: Iterable[Claimed | Ack | str] = (),
        failed: Iterable[Claimed | Ack | str] = (),
        source: str = "",
    ) -> list[Any]:
        """See Client.ack. Acks of a queue and shard that wait in the same turn of the loop leave together; those of
        one job one after the other, in order.
        """
        ended = listed("succeeded", succeeded), listed("failed", failed)
        queue_shards = {} if source else holding.queue_shards_of_acks(*ended)
        if len(queue_shards) != 1:
            return await self.run(lambda end: holding.ack(self.session, *ended, source, False, end))
        # those of one queue and shard fare alike; another one's may be gone, or its server down
        [(queue_shard, ids)] = queue_shards.items()
        self._check_fork()
        coalescer = self._acks.get(queue_shard)
        if coalescer is None:
            coalescer = self._acks[queue_shard] = Coalescer(self._ack_together, self._tasks)
        refused: list[Any] = await coalescer.add(ended, 0, ids)
        return refused

    async def _ack_together(self, calls: list[tuple[list[Any], list[Any]]]) -> list[list[Any]]:
        succeeded = [item for ended, _ in calls for item in ended]
        failed = [item for _, ended in calls for item in ended]

        def share(refused: list[Any]) -> list[list[Any]]:
            gone = {id(item) for item in refused}
            return [[item for item in (*good, *bad) if id(item) in gone] for good, bad in calls]

        return await self.run(lambda end: complete(holding.ack(self.session, succeeded, failed, "", False, end), share))

    async def release(self, jobs: Iterable[Claimed]) -> list[Any]:
        """See Client.release."""
        held = listed("jobs", jobs)
        return await self.run(lambda end: holding.release(self.session, held, "", end))

    async def renew(self, jobs: Iterable[Claimed], *, own: bool = False) -> list[Any]:
        """See Client.renew."""
        held = listed("jobs", jobs)
        return await self.run(lambda end: holding.renew(self.session, held, own, end))

    async def checkpoint(self, *checkpoints: Checkpoint, source: str = "") -> list[Checkpoint]:
        """See Client.checkpoint."""
        return await self.run(lambda end: holding.checkpoint(self.session, checkpoints, source, end))

    # looking

    async def lookup(self, descriptors: Iterable[str], *, with_body: bool = False) -> dict[str, JobInfo]:
        """See Client.lookup."""
        asked = listed("descriptors", descriptors)
        return await self.run(lambda end: inspecting.lookup(self.session, asked, with_body, end))

    async def count(self, queue: str, *, priority: int | None = None) -> CountsByState:
        """See Client.count."""
        return await self.run(lambda end: inspecting.count(self.session, queue, priority, end))

    async def peek(self, queue: str) -> dict[int, int]:
        """See Client.peek."""
        return await self.run(lambda end: inspecting.peek(self.session, queue, end))

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
            for info in unseen(page, state, seen):
                yield info
            if not cursor:
                return

    async def scan_page(
        self,
        queue: str,
        state: State | str = State.PENDING,
        *,
        priority: int | None = None,
        future: bool = False,
        with_body: bool = False,
        limit: int = 100,
        cursor: str = "",
    ) -> tuple[list[JobInfo], str]:
        """See Client.scan_page."""
        return await self.run(
            lambda end: inspecting.scan_page(
                self.session, queue, state, priority, future, with_body, limit, cursor, end
            )
        )

    # bringing back and removing

    async def retry_failed(
        self,
        queue: str,
        *,
        priority: int | None = None,
        limit: int = 1000,
        attempts: int = 1,
        run_after_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> int:
        """See Client.retry_failed."""
        return await self.run(
            lambda end: maintaining.retry_failed(
                self.session, queue, priority, limit, attempts, run_after_ms, delay_ms, end
            )
        )

    async def retry_jobs(self, descriptors: Iterable[str], *, attempts: int = 1) -> int:
        """See Client.retry_jobs."""
        named = listed("descriptors", descriptors)
        return await self.run(lambda end: maintaining.retry_jobs(self.session, named, attempts, end))

    async def delete_jobs(
        self,
        queue: str | None = None,
        state: State | str | None = None,
        *,
        priority: int | None = None,
        limit: int = 1000,
        descriptors: Iterable[str] | None = None,
    ) -> int:
        """See Client.delete_jobs."""
        if descriptors is not None:
            named = listed("descriptors", descriptors)
            return await self.run(lambda end: maintaining.delete_named(self.session, named, end))
        wanted_queue, wanted_state = both_given(queue, state)
        return await self.run(
            lambda end: maintaining.delete_jobs(self.session, wanted_queue, wanted_state, priority, limit, end)
        )

    async def purge(self, queue: str) -> int:
        """See Client.purge."""
        return await self.run(lambda end: maintaining.purge(self.session, queue, end))

    async def reset_lost(self, queue: str) -> int:
        """See Client.reset_lost."""
        return await self.run(lambda end: maintaining.reset_lost(self.session, queue, end))
