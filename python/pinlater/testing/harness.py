"""The harness: runs an app's jobs in a test, on a store in memory.

Promises that jobs run as in production, by a worker and the Lua scripts of the package; only the store is in this
process, and its clock can be moved. Risks: a harness redirects its app for all threads. Needs the package lupa
(`pinlater[testing]`). The pytest plugin is the package pinlater_pytest.
"""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Self

import uvloop

from pinlater.memory.server import MemoryServer
from pinlater.model.errors import InvalidArgument
from pinlater.model.times import Seconds, as_seconds
from pinlater.tasks import envelope
from pinlater.tasks.app import PinLater, parts_of
from pinlater.tasks.app_clients import UrlProvider
from pinlater.tasks.loading import import_included
from pinlater.tasks.producer import Producer, SendOptions
from pinlater.testing.drain import DecodedCall, Enqueued, Ran, decode_call, drain, pending, raise_first
from pinlater.testing.lifespan_keeper import LifespanKeeper


class MovableClock:
    """The clock of a harness's store: `harness.clock`."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def advance(self, seconds: Seconds) -> None:
        """Moves the clock on. Delayed jobs and retries become due, and leases of running jobs expire. Runs nothing."""
        self._server.advance(as_seconds(seconds))

    def now(self) -> datetime.datetime:
        """The time by this clock, in UTC."""
        return datetime.datetime.fromtimestamp(self._server.clock.now_us() / 1e6, datetime.UTC)


class _Store(UrlProvider):
    """Gives clients of the harness's store to the app. Closing the app also ends the lifespan that all drains share."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(harness.server.url)
        self._harness = harness

    def close(self) -> None:
        if self._harness._drain_lock.acquire(blocking=False):  # else a task of a running drain closes the app
            try:
                self._harness._lifespans.close(parts_of(self._harness.app).clients.aclose)
            finally:
                self._harness._drain_lock.release()

    async def aclose(self) -> None:
        await self._harness._lifespans.aclose()

    def loops(self) -> Iterable[asyncio.AbstractEventLoop]:
        return self._harness._lifespans.loops()


class Harness:
    """An app on a fresh store in memory, for a `with` block. All clients of the app use this store meanwhile.

        with Harness(app) as harness:
            welcome.enqueue("a@b.c")
            [ran] = harness.drain()
            assert ran.value == "sent"

    app: the app.
    shared: objects by their type, for `Shared(type)`. With it the app's lifespan is not entered. Without it the first
        drain enters the lifespan, and the end of the block leaves it.
    server: the store. `server.url` is for clients that the app does not make.
    clock: moves the store's time.
    """

    def __init__(self, app: PinLater, *, shared: Mapping[type, Any] | None = None) -> None:
        if not isinstance(app, PinLater):
            raise InvalidArgument(f"app: expected a PinLater, got {app!r:.60}")
        if shared is not None and not (isinstance(shared, Mapping) and all(isinstance(kind, type) for kind in shared)):
            raise InvalidArgument(f"shared: expected a dict of objects by their type, got {shared!r:.60}")
        self.app = app
        self._shared = shared
        self._lifespans = LifespanKeeper(parts_of(app).entered_lifespan)
        self._drain_lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        import_included(self.app)
        with ExitStack() as stack:
            self.server = stack.enter_context(MemoryServer())
            self.clock = MovableClock(self.server)
            if self._shared is not None:
                stack.enter_context(parts_of(self.app).with_lifespan(self._stand_in))
            stack.enter_context(parts_of(self.app).clients.redirected(_Store(self)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def _stand_in(self) -> AsyncIterator[Mapping[type, Any] | None]:
        yield self._shared

    def drain(self, *, raising: bool = True, concurrency: int = 1) -> list[Ran]:
        """Runs jobs until nothing is due, also the jobs that they enqueue. Returns the attempts in order.

        raising: at the end, raise the first error of a task, also if the job will be tried again. Retry, Snooze, Cancel
            and Expired are no errors. A job of an unknown task, in a queue of the app, is one.
        concurrency: jobs at once.

        Raises InvalidArgument if the drain would never end, or where an event loop runs: use adrain() there.
        """
        if asyncio._get_running_loop() is not None:
            raise InvalidArgument("drain: expected no running loop; in async code: await adrain()")
        if not self._drain_lock.acquire(blocking=False):
            raise InvalidArgument("drain: expected one at a time, got one in a task or in another thread")
        try:
            return self._lifespans.run(partial(self.adrain, raising=raising, concurrency=concurrency))
        finally:
            self._drain_lock.release()

    async def adrain(self, *, raising: bool = True, concurrency: int = 1) -> list[Ran]:
        """See drain."""
        ran: list[Ran] = []
        queues, drained = dict.fromkeys(parts_of(self.app).queue_names()), 0
        resolved = await self._lifespans.resolved()
        async with parts_of(self.app).clients.new() as client:
            # once more if a task created a queue
            while len(queues := queues | dict.fromkeys(await client.queue_names())) > drained:
                drained = len(queues)
                ran += await drain(self.app, list(queues), concurrency=concurrency, resolved=resolved)
        if raising:
            raise_first(ran)
        return ran

    def enqueued(self) -> list[Enqueued]:
        """The pending jobs, due or not, by the time from which they may run; jobs of one queue and time by arrival."""

        async def read_pending() -> list[Enqueued]:
            async with parts_of(self.app).clients.new() as client:
                return await pending(self.app, client)

        if asyncio._get_running_loop() is None:
            return uvloop.run(read_pending())
        return _run_in_thread(read_pending)

    def assert_enqueued(
        self,
        task: Producer[..., Any] | str,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        count: int | None = None,
    ) -> list[Enqueued]:
        """Returns the pending jobs of a task. Raises AssertionError if there are none, or not `count`.

            harness.assert_enqueued(welcome, args=["a@b.c"], count=1)

        task: the task, or its name.
        args, kwargs: only jobs enqueued with exactly these arguments, as they are or as their codec writes them: a
            UUID or its text. `f(1)` and `f(x=1)` are different.
        queue: only jobs in this queue.
        count: the exact number of jobs; by default at least one.
        """
        if not isinstance(task, str | Producer):
            raise InvalidArgument(f"assert_enqueued: expected a task, or its name, got {task!r:.80}")
        name = task if isinstance(task, str) else task.send_options.name
        found, call = self.enqueued(), self._call(task, args or (), kwargs or {})
        matching = [
            job
            for job in found
            if job.task == name
            and (args is None or job.args == call.args)
            and (kwargs is None or job.kwargs == call.kwargs)
            and queue in (None, job.queue)
        ]
        if len(matching) == count or (count is None and matching):
            return matching
        wanted = {"args": args, "kwargs": kwargs, "queue": queue}
        criteria = ", ".join(f"{key}={value!r}" for key, value in wanted.items() if value is not None)
        number = "at least one job" if count is None else f"{count} jobs"
        enqueued = "".join(f"\n  {_call_text(job)}" for job in found) or " nothing"
        raise AssertionError(f"expected {number} of {name!r} ({criteria}), found {len(matching)}; enqueued:{enqueued}")

    def _call(self, task: Producer[..., Any] | str, args: Sequence[Any], kwargs: dict[str, Any]) -> DecodedCall:
        """The call as `enqueued()` shows it. Raises InvalidArgument for arguments that no job can have."""
        options = (self.app.by_name(task) if isinstance(task, str) else task).send_options
        if options.codec == "raw":
            return decode_call(self.app, options.queue, args[0] if args else b"")
        try:
            written = options.arguments.written(args, kwargs)
        except InvalidArgument:
            with suppress(Exception):  # another program may have sent what the codec packs all the same
                return self._packed(options, args, kwargs)
            raise
        return self._packed(options, *written)

    def _packed(self, options: SendOptions, args: Sequence[Any], kwargs: dict[str, Any]) -> DecodedCall:
        try:
            packed = envelope.packer(options.codec)(envelope.document(args, kwargs, {}))
        except Exception as error:
            raise InvalidArgument(f"assert_enqueued: no job has these arguments: {error}") from None
        return decode_call(self.app, "", envelope.head(options.name, options.codec) + packed)


def _call_text(job: Enqueued) -> str:
    named = [f"{key}={value!r}" for key, value in job.kwargs.items()]
    return f"{job.task}({', '.join([*map(repr, job.args), *named])}) in {job.queue!r}"


def _run_in_thread(work: Callable[[], Coroutine[Any, Any, list[Enqueued]]]) -> list[Enqueued]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: uvloop.run(work())).result()
