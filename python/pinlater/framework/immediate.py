"""Immediate mode: what is put in line has run when the call returns.

Promises the path of production: the arguments are packed, a store takes the job, a worker claims and runs it, it fails
and is tried again as it would be; only the store is in this process, and its clock does not wait. Risks: calls of
several threads wait for each other; a fork of a process that used it leaves its jobs to that process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from pinlater.async_client import AsyncClient
from pinlater.client import Client
from pinlater.errors import InvalidArgument
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

_inside: Final[ContextVar[bool]] = ContextVar("_inside", default=False)


class Immediate:
    """A source of clients whose enqueues run what they put in line. Its store is made with the first client."""

    def __init__(self, app: PinLater) -> None:
        self._app = app
        self._server: MemoryServer | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()

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
        return _Client(self._run_out, self._url())

    def of_loop(self) -> AsyncClient:
        """See clients.Source."""
        return _AsyncClient(self._arun_out, self._url())

    def new(self) -> AsyncClient:
        """See clients.Source."""
        return AsyncClient(self._url())

    def _url(self) -> str:
        if self._server is None:
            from pinlater.memory.server import MemoryServer  # needs a package that not everybody has

            self._server, self._pid = MemoryServer(), os.getpid()
        return self._server.url

    def _deferred(self) -> bool:
        """Whether a task puts it in line: then whoever runs the task runs it."""
        thread = threading.current_thread().name
        return _inside.get() or thread.startswith(_HANDLER_THREAD) or os.getpid() != self._pid

    def _run_out(self) -> None:
        if self._deferred():
            return
        with self._turn:
            _run(self._rounds_of_thread)

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
            await self._app.clients.aclose()  # what the tasks used; their loop ends now

    async def _rounds(self) -> None:
        from pinlater.framework.draining import drain, pending, raise_first

        _inside.set(True)
        failed: list[Ran] = []
        async with self.new() as client:
            for _ in range(MAX_ROUNDS):
                failed += [ran for ran in await drain(self._app, client) if ran.outcome == "failed"]
                due_ms = [job.due_ms for job in await pending(self._app, client) if job.task in self._app.tasks]
                if not due_ms:
                    raise_first(failed)
                    return
                assert self._server is not None
                self._server.advance(max(0.0, (due_ms[0] + 1) / 1000 - self._server.clock.now_us() / 1e6))
        raise InvalidArgument(
            f"immediate mode: a task is not at an end after {MAX_ROUNDS} rounds: expected it to return or fail"
        )


def _run(work: Callable[[], Any]) -> None:
    """Runs async work to its end: in this thread, or in another one where a loop runs in this one."""
    import uvloop  # producers have no use for it

    if asyncio._get_running_loop() is None:
        uvloop.run(work())
        return
    errors: list[BaseException] = []

    def carry_out() -> None:
        try:
            uvloop.run(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=carry_out, name="pinlater-immediate")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


class _Client(Client):
    """A blocking client whose enqueues run out."""

    def __init__(self, run_out: Callable[[], None], url: str) -> None:
        super().__init__(url)
        self._run_out = run_out

    def _enqueue_job(self, queue: str, job: NewJob) -> str:
        descriptor = super()._enqueue_job(queue, job)
        self._run_out()
        return descriptor

    def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """See Client.enqueue_many."""
        descriptors = super().enqueue_many(queue, jobs)
        self._run_out()
        return descriptors


class _AsyncClient(AsyncClient):
    """An asyncio client whose enqueues run out."""

    def __init__(self, run_out: Callable[[], Any], url: str) -> None:
        super().__init__(url)
        self._run_out = run_out

    # an enqueue of one job leaves as one of many

    async def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """See Client.enqueue_many."""
        descriptors = await super().enqueue_many(queue, jobs)
        await self._run_out()
        return descriptors
