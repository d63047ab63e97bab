"""Runs handlers, on the event loop or in threads, and says how a handler can end its job.

Promises that threads of plain functions never keep a process from ending, and that nothing a handler raises ends the
worker.
Risk: a thread cannot be stopped from outside. One that is past its time limit is left behind, and another replaces it.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pinlater._core import MAX_STATUS_BYTES, MAX_TIME_MS
from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import Job
from pinlater.model.queue_config import check_integer
from pinlater.model.text import clip
from pinlater.worker.time_limits import TimedOut, in_time

Handler: TypeAlias = Callable[[Job], Awaitable[Any]] | Callable[[Job], Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """What a handler returns when its attempt failed.

    status: appended to the custom status.
    delay_ms: until the next attempt; None: WorkerConfig.retry_delay_ms.
    final: there is no next attempt, even if some are left.
    awaited: a client may wait for the result, and is notified if the job failed for good.
    """

    status: str
    delay_ms: int | None = None
    final: bool = False
    awaited: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.status, str):
            raise InvalidArgument(f"status: expected text, got {self.status!r:.60}")
        object.__setattr__(self, "status", clip(self.status, MAX_STATUS_BYTES))
        if self.delay_ms is not None:
            check_integer("delay_ms", self.delay_ms, 0, MAX_TIME_MS)


@dataclass(frozen=True, slots=True)
class Postponed:
    """What a handler returns to run its job again after so long; that uses up no attempt.

    body: replaces the job's; at most as large as the queue allows.
    pause_reason: why the claims of the job's queue pause for as long (1 ms at least), on every shard, for `queue info`.
    "": they do not pause.
    """

    delay_ms: int
    body: bytes | None = None
    pause_reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.pause_reason, str):
            raise InvalidArgument(f"pause_reason: expected text, got {self.pause_reason!r:.60}")
        check_integer("delay_ms", self.delay_ms, 1 if self.pause_reason else 0, MAX_TIME_MS)
        if self.body is not None:
            _check_bytes("body", self.body)


@dataclass(frozen=True, slots=True)
class Succeeded:
    """What a handler returns to keep a result for so long."""

    result: bytes
    keep_ms: int

    def __post_init__(self) -> None:
        _check_bytes("result", self.result)
        check_integer("keep_ms", self.keep_ms, 0, MAX_TIME_MS)


def _check_bytes(name: str, value: object) -> None:
    if not isinstance(value, bytes):
        raise InvalidArgument(f"{name}: expected bytes, got {value!r:.60}")


#: How a job ended. None: it succeeded. Anything else that a handler returns counts as None.
End: TypeAlias = Failed | Postponed | Succeeded | None


class NotAHandler:
    """Base of what other workers run: called with a job, it would take the job for an argument of its own."""


def check_handler(handler: Any) -> Handler:
    """Returns the handler if it takes one argument, the job. Raises InvalidArgument."""
    if isinstance(handler, NotAHandler):
        raise InvalidArgument(f"handler: expected a function that takes the job, got {handler!r}; its app runs it")
    return check_function("handler", handler, "the job")  # type: ignore[no-any-return]


def check_function(name: str, function: Any, argument: str) -> Any:
    """Returns the function if it takes one argument. Raises InvalidArgument."""
    try:
        if callable(function):
            inspect.signature(function).bind(None)
            return function
    except TypeError:
        pass
    except ValueError:  # a built-in without a signature
        return function
    raise InvalidArgument(f"{name}: expected a function of one argument ({argument}), got {function!r}")


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling the handler gives a coroutine (an object with an async __call__ included)."""
    call = getattr(handler, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


async def call_async(handler: Handler, job: Job) -> End:
    """Awaits an async handler. SystemExit and KeyboardInterrupt, which would end the loop, fail the job."""
    try:
        end = await handler(job)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the handler raised {error!r}") from error
    return end if isinstance(end, Failed | Postponed | Succeeded) else None


def call_plain(handler: Handler, job: Job) -> BaseException | End:
    """Calls a plain handler; returns how it ended, or its error."""
    try:
        result = handler(job)
    except StopIteration as error:  # a future cannot carry it
        return RuntimeError(f"the handler raised {error!r}").with_traceback(error.__traceback__)
    except BaseException as error:
        return error
    if inspect.iscoroutine(result):
        result.close()
        return TypeError(
            "the handler returned a coroutine that nobody awaits; expected a plain function or `async def`"
        )
    return result if isinstance(result, Failed | Postponed | Succeeded) else None


class _Call:
    """One call in the pool.

    left_behind: nobody waits for it any more. It does not begin, or its end counts for nothing.
    """

    __slots__ = ("_lock", "end", "ended", "future", "handler", "job", "left_behind", "started")

    def __init__(self, handler: Handler, job: Job, future: asyncio.Future[End]) -> None:
        self.handler, self.job, self.future = handler, job, future
        self._lock = threading.Lock()
        self.started = self.ended = self.left_behind = False
        self.end: BaseException | End = None

    def run(self) -> bool:
        """Runs the call in this thread. False: it was left behind while it ran."""
        with self._lock:
            if self.left_behind:
                return True
            self.started = True
        end = call_plain(self.handler, self.job)
        with self._lock:
            self.end, self.ended = end, True
            return not self.left_behind

    def leave_behind(self) -> bool:
        """False: the call has ended."""
        with self._lock:
            self.left_behind = not self.ended
            return self.left_behind


class ThreadPool:
    """Daemon threads that run plain functions: concurrent.futures would wait for a hung one at exit."""

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._size = size
        self._loop = loop
        self._idle = 0
        self._threads = 0
        self._work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()

    def start(self, handler: Handler, job: Job) -> asyncio.Future[End]:
        """Runs handler(job) in a thread; the future gets its end. Call it on the event loop."""
        return self._start(handler, job).future

    async def run(self, handler: Handler, job: Job, timeout_s: float | None = None) -> End:
        """Runs handler(job) in a thread, and waits for its end.

        A call that does not end in its timeout, or whose caller is cancelled, is left behind in its thread; another
        thread may replace that. Raises TimedOut past the timeout, unless the call has ended by then.
        """
        call = self._start(handler, job)
        try:
            return await (call.future if timeout_s is None else in_time("its thread", timeout_s, call.future))
        except asyncio.CancelledError:
            self._leave_behind(call)
            raise
        except TimedOut as late:
            if self._leave_behind(call):
                raise late from None  # where it was awaited says nothing
            if isinstance(call.end, BaseException):
                raise call.end from None
            return call.end

    def close(self) -> None:
        """Lets idle threads end. One that hangs stays behind as a daemon."""
        for _ in range(self._threads):
            self._work.put(None)

    def _start(self, handler: Handler, job: Job) -> _Call:
        call = _Call(handler, job, self._loop.create_future())
        self._work.put(call)
        if self._idle:
            self._idle -= 1
        elif self._threads < self._size:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"pinlater-handler-{self._threads}", daemon=True).start()
        return call

    def _leave_behind(self, call: _Call) -> bool:
        """False: the call has ended."""
        left_behind = call.leave_behind()
        if left_behind and call.started:
            self._threads -= 1
        return left_behind

    def _serve(self) -> None:
        while (call := self._work.get()) is not None:
            if not call.run():
                return  # another thread replaces this one
            try:
                self._loop.call_soon_threadsafe(self._finish, call)
            except RuntimeError:
                return  # the loop is closed

    def _finish(self, call: _Call) -> None:
        """The thread of the call is free again."""
        self._idle += 1
        if call.future.done():
            return
        if isinstance(call.end, BaseException):
            call.future.set_exception(call.end)
        else:
            call.future.set_result(call.end)
