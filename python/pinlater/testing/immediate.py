"""Immediate mode: a job has run when the call that enqueues it returns.

Promises the path of production: the arguments are packed, a store takes the job, a worker claims and runs it, and a
failed job is tried again. Only the store is in this process, and its clock moves on without waiting. No call waits for
itself. Risks: calls of several threads wait for each other only so long, so one may return before its job has run. Jobs
that a fork of the process enqueues are left to the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from pinlater.client.async_client import AsyncClient
from pinlater.client.client import Client
from pinlater.client.methods import listed
from pinlater.memory.server import MemoryServer
from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import NewJob
from pinlater.tasks.app import PinLater, parts_of
from pinlater.tasks.app_clients import ClientProvider
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.loading import import_included
from pinlater.testing.drain import Enqueued, Ran, drain, pending, raise_first
from pinlater.testing.lifespan_keeper import LifespanKeeper

#: After this many rounds jobs are taken to go on without end.
MAX_ROUNDS: Final = 100
#: How long a call waits for a call of another thread. That one may run a task which waits for this thread: then the
#: jobs of this call run after that task.
PATIENCE_S: Final = 2.0
#: The pause between two attempts of async code to get its turn.
_TURN_S: Final = 0.001
#: The names of threads in which the worker runs plain functions begin with this (executor.ThreadPool).
_HANDLER_THREAD: Final = "pinlater-handler-"

#: Called with a queue and the jobs that were enqueued in it.
_OnEnqueued: TypeAlias = Callable[[str, Sequence[bytes | NewJob]], None]

_inside: Final[ContextVar[bool]] = ContextVar("_inside", default=False)


class Immediate(ClientProvider):
    """Provides clients whose enqueues run the jobs. The store is created with the first client.

    Each call starts a worker. Its connections stay from call to call, and so do the loop of sync calls and the app's
    lifespan.
    """

    #: Blocking calls run their jobs on a loop of their own, in another thread.
    in_loops = True
    #: A call would wait for a limit to let its jobs run.
    limited = False

    def __init__(self, app: PinLater) -> None:
        self._app = app
        self._server: MemoryServer | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._lifespans = LifespanKeeper(parts_of(app).entered_lifespan)
        #: The loop of the async call that runs jobs now; None if there is none.
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The client of the worker on each loop.
        self._worker_clients: dict[asyncio.AbstractEventLoop, AsyncClient] = {}
        #: Queues that got jobs since the last drain.
        self._used: set[str] = set()
        #: Whether there may be jobs that are due later.
        self._due_later = False

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """Provides the app's clients for a block."""
        self.url()  # raises here if the store can not be created
        try:
            with parts_of(self._app).clients.redirected(self):
                yield
        finally:
            if self._server is not None:
                self._server.close()

    def sync(self) -> Client:
        """See ClientProvider."""
        return _Client(self._on_enqueued, self._run_jobs, self.url())

    def of_loop(self) -> AsyncClient:
        """See ClientProvider."""
        return _AsyncClient(self._on_enqueued, self._arun_jobs, self.url())

    def new(self) -> AsyncClient:
        """See ClientProvider."""
        return AsyncClient(self.url())

    def close(self) -> None:
        """See ClientProvider."""
        if self._deferred() or not self._turn.acquire(blocking=False):
            return
        try:
            self._lifespans.close(parts_of(self._app).clients.aclose)
        finally:
            self._turn.release()

    async def aclose(self) -> None:
        """See ClientProvider."""
        try:
            await self._lifespans.aclose()
        finally:
            await self._close_client()

    def loops(self) -> Iterable[asyncio.AbstractEventLoop]:
        """See ClientProvider."""
        return {*self._worker_clients, *self._lifespans.loops()}

    async def _close_client(self) -> None:
        worker_client = self._worker_clients.pop(asyncio.get_running_loop(), None)
        if worker_client is not None:
            await worker_client.close()

    def url(self) -> str:
        """See ClientProvider."""
        if self._server is None:
            self._server, self._pid = MemoryServer(), os.getpid()
        return self._server.url

    def _on_enqueued(self, queue: str, jobs: Sequence[bytes | NewJob]) -> None:
        self._used.add(queue)
        if any(isinstance(job, NewJob) and (job.delay_ms or job.run_after_ms) for job in jobs):
            self._due_later = True

    def deferring(self, *, blocking: bool) -> bool:
        """See ClientProvider. True in a task, and for a call that would block the loop on which a task runs."""
        loop = asyncio._get_running_loop()
        return self._deferred() or (blocking and loop is not None and loop is self._loop)

    def _deferred(self) -> bool:
        """Whether a task makes this call. Then the call that runs the task runs the job too, after the task."""
        thread = threading.current_thread().name
        return _inside.get() or thread.startswith(_HANDLER_THREAD) or os.getpid() != self._pid

    def _run_jobs(self) -> None:
        while not self.deferring(blocking=True) and self._turn.acquire(timeout=PATIENCE_S):
            token = _inside.set(True)  # the loop and the lifespan run in a copy of this context
            try:
                self._lifespans.run(self._run_rounds)
            finally:
                _inside.reset(token)
                self._turn.release()
            if not self._used:
                return  # else another thread stopped waiting for its turn just now, and left its job

    async def _arun_jobs(self) -> None:
        while not self._deferred() and await self._acquire_turn():
            self._loop = asyncio.get_running_loop()
            try:
                # a task of its own, so that _inside is set only there
                await asyncio.create_task(self._run_rounds())
            finally:
                self._loop = None
                self._turn.release()
            if not self._used:
                return  # else a sync call left its job just now

    async def _acquire_turn(self) -> bool:
        """Waits for the turn of this loop. Returns False if another thread has it for too long."""
        loop, until_s = asyncio.get_running_loop(), time.monotonic() + PATIENCE_S
        while not self._turn.acquire(blocking=False):
            if self._loop is not loop and time.monotonic() > until_s:
                return False
            await asyncio.sleep(_TURN_S)
        return True

    async def _run_rounds(self) -> None:
        """Drains the queues that got jobs, and moves the clock to what is due later, until all jobs have ended."""
        _inside.set(True)
        import_included(self._app)
        resolved, client = await self._lifespans.resolved(), self._worker_client()
        failed: list[Ran] = []
        due: list[Enqueued] = []
        for _ in range(MAX_ROUNDS):
            ran = await self._drain_used(client, resolved)
            failed += [each for each in ran if each.outcome == "failed"]
            later = self._due_later or any(self._may_be_due_later(each) for each in ran)
            self._due_later = False
            due = [job for job in await pending(self._app, client) if job.task in self._app.tasks] if later else []
            if due:
                self._make_due(due)
            elif not self._used:  # a task may have enqueued jobs meanwhile
                raise_first(failed)
                return
        names = ", ".join(sorted({repr(job.task) for job in due})) or "a task"
        raise InvalidArgument(
            f"immediate mode: {names}: not at an end after {MAX_ROUNDS} rounds: expected it to return or fail"
        )

    def _worker_client(self) -> AsyncClient:
        """The worker's client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._worker_clients:
            self._worker_clients = {each: kept for each, kept in self._worker_clients.items() if not each.is_closed()}
            self._worker_clients[loop] = self.new()
        return self._worker_clients[loop]

    async def _drain_used(self, client: AsyncClient, resolved: Resolved) -> list[Ran]:
        queues = [self._used.pop() for _ in range(len(self._used))]
        if not queues:  # the turn of another thread drained them
            return []
        try:
            return await drain(self._app, queues, client, resolved=resolved)
        except BaseException:
            self._used.update(queues)
            await self._close_client()
            raise

    def _make_due(self, due: list[Enqueued]) -> None:
        """Moves the clock to the time of the first of these jobs. All of them are looked at in the next round."""
        self._due_later = True
        self._used.update(job.queue for job in due)
        assert self._server is not None
        self._server.advance(max(0.0, (due[0].due_ms + 1) / 1000 - self._server.clock.now_us() / 1e6))

    def _may_be_due_later(self, ran: Ran) -> bool:
        """Whether this run, or jobs that it enqueued from another process, left jobs that are due later."""
        task = self._app.tasks.get(ran.task)
        return ran.outcome in ("retried", "postponed") or (task is not None and task.kind == "process")


class _Client(Client):
    """A blocking client whose enqueues run the jobs."""

    def __init__(self, on_enqueued: _OnEnqueued, run_jobs: Callable[[], None], url: str) -> None:
        super().__init__(url)
        self._on_enqueued, self._run_jobs = on_enqueued, run_jobs

    def enqueue_job(self, queue: str, job: NewJob) -> str:
        descriptor = super().enqueue_job(queue, job)
        self._on_enqueued(queue, [job])
        self._run_jobs()
        return descriptor

    def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """See Client.enqueue_many."""
        jobs = listed("jobs", jobs)
        descriptors = super().enqueue_many(queue, jobs)
        self._on_enqueued(queue, jobs)
        self._run_jobs()
        return descriptors


class _AsyncClient(AsyncClient):
    """An asyncio client whose enqueues run the jobs."""

    def __init__(self, on_enqueued: _OnEnqueued, run_jobs: Callable[[], Any], url: str) -> None:
        super().__init__(url)
        self._on_enqueued, self._run_jobs = on_enqueued, run_jobs

    # enqueue_job calls this too

    async def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """See Client.enqueue_many."""
        jobs = listed("jobs", jobs)
        descriptors = await super().enqueue_many(queue, jobs)
        self._on_enqueued(queue, jobs)
        await self._run_jobs()
        return descriptors
