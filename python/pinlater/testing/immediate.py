"""Immediate mode: what is put in line has run when the call returns.

Promises the path of production: the arguments are packed, a store takes the job, a worker claims and runs it, it fails
and is tried again as it would be; only the store is in this process, and its clock does not wait. No call waits for
itself. Risks: calls of several threads wait for each other, but not for ever, so that one may return before its job
has run; a fork of a process that used it leaves its jobs to that process.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pinlater.client.async_client import AsyncClient
from pinlater.client.client import Client, listed
from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import NewJob
from pinlater.tasks.app_clients import ClientProvider
from pinlater.testing.lifespan_keeper import LifespanKeeper

if TYPE_CHECKING:
    from pinlater.memory.server import MemoryServer
    from pinlater.tasks.app import PinLater
    from pinlater.testing.drain import Ran

#: A task that is still not at an end after so many rounds goes on for ever.
MAX_ROUNDS: Final = 100
#: So long a call waits for one of another thread. A task may wait for that thread; then its jobs run after the task.
PATIENCE_S: Final = 2.0
_TURN_S: Final = 0.001
#: As handlers.ThreadPool names its threads.
_HANDLER_THREAD: Final = "pinlater-handler-"

#: Told of jobs that were put in line.
_Put: TypeAlias = Callable[[str, Sequence[bytes | NewJob]], None]

_inside: Final[ContextVar[bool]] = ContextVar("_inside", default=False)


class Immediate(ClientProvider):
    """A source of clients whose enqueues run what they put in line. Its store is made with the first client.

    A worker starts with each call; its connections stay from call to call, and so do the loop of sync calls and what
    the app's lifespan shares.
    """

    #: They run on a loop of their own, in another thread.
    in_loops = True

    def __init__(self, app: PinLater) -> None:
        self._app = app
        self._server: MemoryServer | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._lifespans = LifespanKeeper(app.entered_lifespan)
        #: Where it is the turn of async code, its loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The worker's client of each loop.
        self._kept: dict[asyncio.AbstractEventLoop, AsyncClient] = {}
        #: Queues that got jobs since they were worked on. Whether jobs may be due later.
        self._used: set[str] = set()
        self._later = False

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """For the block the app's clients come from here."""
        self.url()  # where it can not be, that is told here
        try:
            with self._app.clients.redirected(self):
                yield
        finally:
            if self._server is not None:
                self._server.close()

    def sync(self) -> Client:
        """See ClientProvider."""
        return _Client(self._put, self._run_out, self.url())

    def of_loop(self) -> AsyncClient:
        """See ClientProvider."""
        return _AsyncClient(self._put, self._arun_out, self.url())

    def new(self) -> AsyncClient:
        """See ClientProvider."""
        return AsyncClient(self.url())

    def close(self) -> None:
        """See ClientProvider."""
        if self._deferred() or not self._turn.acquire(blocking=False):
            return
        try:
            self._lifespans.close(self._app.clients.aclose)
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
        return {*self._kept, *self._lifespans.loops()}

    async def _close_client(self) -> None:
        kept = self._kept.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.close()

    def url(self) -> str:
        """See ClientProvider."""
        if self._server is None:
            from pinlater.memory.server import MemoryServer  # needs a package that not everybody has

            self._server, self._pid = MemoryServer(), os.getpid()
        return self._server.url

    def _put(self, queue: str, jobs: Sequence[bytes | NewJob]) -> None:
        """Jobs were put in line."""
        self._used.add(queue)
        if any(isinstance(job, NewJob) and (job.delay_ms or job.run_after_ms) for job in jobs):
            self._later = True

    def deferring(self, *, blocking: bool) -> bool:
        """See ClientProvider: in a task, and where a call that blocks would block the loop of a task."""
        loop = asyncio._get_running_loop()
        return self._deferred() or (blocking and loop is not None and loop is self._loop)

    def _deferred(self) -> bool:
        """Whether a task puts it in line: then whoever runs the task runs it."""
        thread = threading.current_thread().name
        return _inside.get() or thread.startswith(_HANDLER_THREAD) or os.getpid() != self._pid

    def _run_out(self) -> None:
        while not self.deferring(blocking=True) and self._turn.acquire(timeout=PATIENCE_S):
            inside = _inside.set(True)  # the loop takes it over, and so does the lifespan
            try:
                self._lifespans.run(self._rounds)
            finally:
                _inside.reset(inside)
                self._turn.release()
            if not self._used:
                return  # else a thread lost its patience just now

    async def _arun_out(self) -> None:
        while not self._deferred() and await self._take_turn():
            self._loop = asyncio.get_running_loop()
            try:
                # a task of its own, so that what is told of the inside stays there
                await asyncio.create_task(self._rounds())
            finally:
                self._loop = None
                self._turn.release()
            if not self._used:
                return  # else a sync call came just now

    async def _take_turn(self) -> bool:
        """False: it is another thread's for too long. Those of one loop do not block each other."""
        loop, until_s = asyncio.get_running_loop(), time.monotonic() + PATIENCE_S
        while not self._turn.acquire(blocking=False):
            if self._loop is not loop and time.monotonic() > until_s:
                return False
            await asyncio.sleep(_TURN_S)
        return True

    async def _rounds(self) -> None:
        from pinlater.testing.drain import drain, pending, raise_first

        _inside.set(True)
        resolved = await self._lifespans.resolved()
        failed: list[Ran] = []
        loop = asyncio.get_running_loop()
        if loop not in self._kept:
            self._kept = {each: kept for each, kept in self._kept.items() if not each.is_closed()} | {loop: self.new()}
        client = self._kept[loop]
        for _ in range(MAX_ROUNDS):
            queues = [self._used.pop() for _ in range(len(self._used))]
            try:
                ran = (
                    await drain(self._app, queues, client, resolved=resolved) if queues else []
                )  # another thread's turn ran them
            except BaseException:
                self._used.update(queues)
                await self._close_client()
                raise
            failed += [each for each in ran if each.outcome == "failed"]
            later = self._later or any(self._may_be_due_later(each) for each in ran)
            self._later = False
            due = [job for job in await pending(self._app, client) if job.task in self._app.tasks] if later else []
            if due:
                self._later = True
                self._used.update(job.queue for job in due)
                assert self._server is not None
                self._server.advance(max(0.0, (due[0].due_ms + 1) / 1000 - self._server.clock.now_us() / 1e6))
            elif not self._used:  # else a task put jobs in one
                raise_first(failed)
                return
        told = ", ".join(sorted({repr(job.task) for job in due})) or "a task"
        raise InvalidArgument(
            f"immediate mode: {told}: not at an end after {MAX_ROUNDS} rounds: expected it to return or fail"
        )

    def _may_be_due_later(self, ran: Ran) -> bool:
        """Of what it ran, or of what its process put in line, which is not told here."""
        task = self._app.tasks.get(ran.task)
        return ran.outcome in ("retried", "postponed") or (task is not None and task.kind == "process")


class _Client(Client):
    """A blocking client whose enqueues run out."""

    def __init__(self, put: _Put, run_out: Callable[[], None], url: str) -> None:
        super().__init__(url)
        self._put, self._run_out = put, run_out

    def enqueue_job(self, queue: str, job: NewJob) -> str:
        descriptor = super().enqueue_job(queue, job)
        self._put(queue, [job])
        self._run_out()
        return descriptor

    def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """See Client.enqueue_many."""
        jobs = listed("jobs", jobs)
        descriptors = super().enqueue_many(queue, jobs)
        self._put(queue, jobs)
        self._run_out()
        return descriptors


class _AsyncClient(AsyncClient):
    """An asyncio client whose enqueues run out."""

    def __init__(self, put: _Put, run_out: Callable[[], Any], url: str) -> None:
        super().__init__(url)
        self._put, self._run_out = put, run_out

    # an enqueue of one job leaves as one of many

    async def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """See Client.enqueue_many."""
        jobs = listed("jobs", jobs)
        descriptors = await super().enqueue_many(queue, jobs)
        self._put(queue, jobs)
        await self._run_out()
        return descriptors
