"""For tests of apps: a store in memory, and a harness that runs an app's jobs on it.

Promises that jobs run as in production, by the worker engine and the shipped Lua scripts; only the store is in this
process and its clock can be moved. Risks: a harness redirects its app for all threads. Needs the package lupa
(`pinlater[testing]`). The pytest plugin is the package pinlater_pytest.
"""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import uvloop

from pinlater.memory.server import MemoryServer
from pinlater.model.errors import InvalidArgument
from pinlater.tasks import envelope
from pinlater.tasks.app import PinLater
from pinlater.tasks.app_clients import UrlProvider
from pinlater.tasks.producer import Producer
from pinlater.testing.drain import Enqueued, Ran, call_of, drain, pending, raise_first
from pinlater.testing.lifespan_keeper import LifespanKeeper

__all__ = ["Enqueued", "Harness", "MemoryServer", "MovableClock", "Ran"]


class MovableClock:
    """The clock of a harness's store."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def advance(self, seconds: float) -> None:
        """Moves it on: delayed jobs and backoffs become due, leases of jobs that run end. Nothing is run."""
        self._server.advance(seconds)

    def now(self) -> datetime.datetime:
        """The time by it, in UTC."""
        return datetime.datetime.fromtimestamp(self._server.clock.now_us() / 1e6, datetime.UTC)


class _Store(UrlProvider):
    """Of a harness. What lasts from drain to drain ends as the app is closed."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(harness.server.url)
        self._harness = harness

    def close(self) -> None:
        if self._harness._turn.acquire(blocking=False):  # else a task closes the app
            try:
                self._harness._lifespans.close(self._harness.app.clients.aclose)
            finally:
                self._harness._turn.release()

    async def aclose(self) -> None:
        await self._harness._lifespans.aclose()

    def loops(self) -> Iterable[asyncio.AbstractEventLoop]:
        return self._harness._lifespans.loops()


class Harness:
    """An app on a store of its own, for a `with` block: whatever its clients do meanwhile is done there.

    app: the app. shared: objects by their type, which tasks are given for `Shared(type)` instead of what the app's
    lifespan yields; that is not entered then. Without it the lifespan is entered by the first drain, and left at the
    end. server: the store; its `url` is for clients and programs that the app does not make. clock: moves its time.
    """

    def __init__(self, app: PinLater, *, shared: Mapping[type, Any] | None = None) -> None:
        if not isinstance(app, PinLater):
            raise InvalidArgument(f"app: expected a PinLater, got {app!r:.60}")
        if shared is not None and not (isinstance(shared, Mapping) and all(isinstance(kind, type) for kind in shared)):
            raise InvalidArgument(f"shared: expected a dict of objects by their type, got {shared!r:.60}")
        self.app = app
        self._shared = shared
        self._lifespans = LifespanKeeper(app.entered_lifespan)
        self._turn = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.server = stack.enter_context(MemoryServer())
            self.clock = MovableClock(self.server)
            if self._shared is not None:
                stack.enter_context(self.app.with_lifespan(self._stand_in))
            stack.enter_context(self.app.clients.redirected(_Store(self)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def _stand_in(self) -> AsyncIterator[Mapping[type, Any] | None]:
        yield self._shared

    def drain(self, *, raising: bool = True, concurrency: int = 1) -> list[Ran]:
        """Runs due jobs until nothing is due, those that they put in line too; returns the attempts, in order.

        raising: in the end the first error of a task is raised, whether it is tried again or not; Retry, Snooze,
        Cancel and a job that expired are no errors; a task that the app does not have, in one of its queues, is.
        concurrency: jobs at once. In async code: adrain. Raises InvalidArgument when jobs go on for ever.
        """
        if asyncio._get_running_loop() is not None:
            raise InvalidArgument("drain: expected no running loop; in async code: await adrain()")

        if not self._turn.acquire(blocking=False):
            raise InvalidArgument("drain: expected one at a time, got one in a task or in another thread")
        try:
            return self._lifespans.run(partial(self.adrain, raising=raising, concurrency=concurrency))
        finally:
            self._turn.release()

    async def adrain(self, *, raising: bool = True, concurrency: int = 1) -> list[Ran]:
        """See drain."""
        ran: list[Ran] = []
        queues, worked_on = dict.fromkeys(self.app.queue_names()), 0
        resolved = await self._lifespans.resolved()
        async with self.app.clients.new() as client:
            # once more if a task put a job in a queue that is new
            while len(queues := queues | dict.fromkeys(await client.queue_names())) > worked_on:
                worked_on = len(queues)
                ran += await drain(self.app, list(queues), concurrency=concurrency, resolved=resolved)
        if raising:
            raise_first(ran)
        return ran

    def enqueued(self) -> list[Enqueued]:
        """The jobs in line, due or not, by the time from which they may run, and of one queue and time by arrival."""

        async def look() -> list[Enqueued]:
            async with self.app.clients.new() as client:
                return await pending(self.app, client)

        if asyncio._get_running_loop() is None:
            return uvloop.run(look())
        return _in_a_thread(look)

    def assert_enqueued(
        self,
        task: Producer[..., Any] | str,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        count: int | None = None,
    ) -> list[Enqueued]:
        """Raises AssertionError unless jobs of a task (or its name) are in line; returns them.

        args, kwargs, queue: of those jobs, where given; arguments as they were put in line, not as the function calls
        them. count: exactly so many; without it one at least.
        """
        if not isinstance(task, str | Producer):
            raise InvalidArgument(f"assert_enqueued: expected a task, or its name, got {task!r:.80}")
        name = task if isinstance(task, str) else task.send_options.name
        found = self.enqueued()
        matching = [
            job
            for job in found
            if job.task == name
            and (args is None or job.args == self._packed(task, args, {}).args)
            and (kwargs is None or job.kwargs == self._packed(task, (), kwargs).kwargs)
            and queue in (None, job.queue)
        ]
        if len(matching) == count or (count is None and matching):
            return matching
        wanted = {"args": args, "kwargs": kwargs, "queue": queue}
        told = ", ".join(f"{key}={value!r}" for key, value in wanted.items() if value is not None)
        number = "at least one job" if count is None else f"{count} jobs"
        there = "".join(f"\n  {_line(job)}" for job in found) or " nothing"
        raise AssertionError(f"expected {number} of {name!r} ({told}), found {len(matching)}; in line:{there}")

    def _packed(self, task: Producer[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Arguments as they come out of a body: of tuples lists are made."""
        producer = self.app.by_name(task) if isinstance(task, str) else task
        options = producer.send_options
        if options.codec == "raw":
            return call_of(self.app, options.queue, args[0] if args else b"")
        body = envelope.packer(options.codec)(envelope.document(args, kwargs, {}))
        return call_of(self.app, "", envelope.head(options.name, options.codec) + body)


def _line(job: Enqueued) -> str:
    named = [f"{key}={value!r}" for key, value in job.kwargs.items()]
    return f"{job.task}({', '.join([*map(repr, job.args), *named])}) in {job.queue!r}"


def _in_a_thread(look: Any) -> list[Enqueued]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        found: list[Enqueued] = pool.submit(lambda: uvloop.run(look())).result()
    return found
