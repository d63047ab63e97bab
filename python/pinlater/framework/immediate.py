"""Immediate mode: what is put in line has run when the call returns.

Promises the path of production: the arguments are packed, a store takes the job, a worker claims and runs it, it fails
and is tried again as it would be; only the store is in this process, and its clock does not wait. Risks: calls of
several threads wait for each other; a fork of a process that used it leaves its jobs to that process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pinlater.async_client import AsyncClient
from pinlater.client import Client, listed
from pinlater.errors import InvalidArgument
from pinlater.framework.clients import Source
from pinlater.jobs import NewJob

if TYPE_CHECKING:
    from pinlater.framework.app import PinLater
    from pinlater.framework.draining import Ran
    from pinlater.memory.server import MemoryServer

#: A task that is still not at an end after so many rounds goes on for ever.
MAX_ROUNDS: Final = 100
_TURN_S: Final = 0.001
#: As handlers.ThreadPool names its threads.
_HANDLER_THREAD: Final = "pinlater-handler-"

#: Told of jobs that were put in line.
_Put: TypeAlias = Callable[[str, Sequence[bytes | NewJob]], None]

_inside: Final[ContextVar[bool]] = ContextVar("_inside", default=False)


class Immediate(Source):
    """A source of clients whose enqueues run what they put in line. Its store is made with the first client.

    A worker starts with each call; its connections stay from call to call, and so does the loop of sync calls.
    """

    def __init__(self, app: PinLater) -> None:
        self._app = app
        self._server: MemoryServer | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._runner: asyncio.Runner | None = None
        #: The worker's client of each loop.
        self._kept: dict[asyncio.AbstractEventLoop, AsyncClient] = {}
        #: Queues that got jobs since they were worked on. Whether jobs may be due later.
        self._used: set[str] = set()
        self._later = False

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """For the block the app's clients come from here."""
        self._url()  # where it can not be, that is told here
        try:
            with self._app.clients.redirected(self):
                yield
        finally:
            if self._server is not None:
                self._server.close()

    def sync(self) -> Client:
        """See clients.Source."""
        return _Client(self._put, self._run_out, self._url())

    def of_loop(self) -> AsyncClient:
        """See clients.Source."""
        return _AsyncClient(self._put, self._arun_out, self._url())

    def new(self) -> AsyncClient:
        """See clients.Source."""
        return AsyncClient(self._url())

    def close(self) -> None:
        """See clients.Source."""
        if self._runner is None or self._deferred() or not self._turn.acquire(blocking=False):
            return
        runner, self._runner = self._runner, None
        try:
            _run(runner, self._app.clients.aclose)
            runner.close()
        finally:
            self._turn.release()

    async def aclose(self) -> None:
        """See clients.Source."""
        kept = self._kept.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.close()

    def _url(self) -> str:
        if self._server is None:
            from pinlater.memory.server import MemoryServer  # needs a package that not everybody has

            self._server, self._pid = MemoryServer(), os.getpid()
        return self._server.url

    def _put(self, queue: str, jobs: Sequence[bytes | NewJob]) -> None:
        """Jobs were put in line."""
        self._used.add(queue)
        if any(isinstance(job, NewJob) and (job.delay_ms or job.run_after_ms) for job in jobs):
            self._later = True

    def _deferred(self) -> bool:
        """Whether a task puts it in line: then whoever runs the task runs it."""
        thread = threading.current_thread().name
        return _inside.get() or thread.startswith(_HANDLER_THREAD) or os.getpid() != self._pid

    def _run_out(self) -> None:
        if self._deferred():
            return
        with self._turn:
            if self._runner is None:
                import uvloop  # producers have no use for it

                self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
            _run(self._runner, self._rounds_of_thread)

    async def _arun_out(self) -> None:
        if self._deferred():
            return
        while not self._turn.acquire(blocking=False):  # noqa: ASYNC110  (threads take turns with loops)
            await asyncio.sleep(_TURN_S)
        try:
            # a task of its own, so that what is told of the inside stays there
            await asyncio.create_task(self._rounds())
        finally:
            self._turn.release()

    async def _rounds_of_thread(self) -> None:
        try:
            await self._rounds()
        finally:
            await _end_others()

    async def _rounds(self) -> None:
        from pinlater.framework.draining import drain, pending, raise_first

        _inside.set(True)
        failed: list[Ran] = []
        loop = asyncio.get_running_loop()
        if loop not in self._kept:
            self._kept = {each: kept for each, kept in self._kept.items() if not each.is_closed()} | {loop: self.new()}
        client = self._kept[loop]
        for _ in range(MAX_ROUNDS):
            queues = [self._used.pop() for _ in range(len(self._used))]
            try:
                ran = await drain(self._app, queues, client) if queues else []  # another thread's turn ran them
            except BaseException:
                self._used.update(queues)
                await self.aclose()
                raise
            failed += [each for each in ran if each.outcome == "failed"]
            later = self._later or any(each.outcome in ("retried", "postponed") for each in ran)
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


async def _end_others() -> None:
    """What tasks left running ends with the call."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _run(runner: asyncio.Runner, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs async work to its end: in this thread, or in another one where a loop runs in this one."""
    if asyncio._get_running_loop() is None:
        runner.run(work(), context=copy_context())
        return
    errors: list[BaseException] = []

    def carry_out() -> None:
        try:
            runner.run(work(), context=copy_context())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=carry_out, name="pinlater-immediate")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


class _Client(Client):
    """A blocking client whose enqueues run out."""

    def __init__(self, put: _Put, run_out: Callable[[], None], url: str) -> None:
        super().__init__(url)
        self._put, self._run_out = put, run_out

    def _enqueue_job(self, queue: str, job: NewJob) -> str:
        descriptor = super()._enqueue_job(queue, job)
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
