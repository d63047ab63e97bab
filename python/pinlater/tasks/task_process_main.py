"""A task process: runs tasks with runs_in="process" in its main thread, one after the other, for one worker.

Promises:
    It ends with its worker, and leaves stop signals to the worker.
    It reports whatever a task raises, and how that ends the job.
    A thread that a task left behind can not change the next task's job.
Risks: a task that ends the interpreter ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NoReturn

import uvloop

from pinlater.model import errors
from pinlater.model.jobs import Job
from pinlater.model.text import clip, describe
from pinlater.model.tracebacks import exc_info_of, of_user
from pinlater.tasks import envelope
from pinlater.tasks import task_messages as messages
from pinlater.tasks.app import PinLater, parts_of
from pinlater.tasks.app_clients import UrlProvider
from pinlater.tasks.context import current_trace
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.failed_attempts import failed_end
from pinlater.tasks.invoke import call_plain_task, with_context, with_progress
from pinlater.tasks.loading import import_name, load_app
from pinlater.tasks.logs import current_job, set_up
from pinlater.tasks.outcomes import Cancel, RateLimited, Retry, Snooze, TaskEnd
from pinlater.tasks.task import Task, task_parts
from pinlater.tasks.task_messages import MessageKind
from pinlater.worker.os_process import end_with_parent
from pinlater.worker.stop_signals import HANDLED, free_children_of_handlers, ignore

#: The most bytes of an error, and of its traceback, in the worker's log.
ERROR_BYTES: Final = 1_000
TRACEBACK_BYTES: Final = 100_000
#: The most bytes of a traceback from the start: a socket takes so much in one write that nobody reads yet.
START_TRACEBACK_BYTES: Final = 10_000


class WorkerConnection:
    """The process's end of the socket, on a loop in a thread of its own.

    jobs: what to run: the name of a task, and its job. None comes last, when the worker closed the socket.
    """

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.jobs: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._running: Job | None = None
        #: Checkpoints that wait for the worker. It answers them in order.
        self._checkpoints: deque[asyncio.Future[list[Any]]] = deque()
        self._writer: asyncio.StreamWriter
        self._thread = threading.Thread(target=self.loop.run_forever, name="pinlater-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs async work on the loop and returns its value, in another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def open(self, number: int) -> None:
        """number: the file descriptor of the socket."""
        reader, self._writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=number))
        self._writer.transport.set_write_buffer_limits(0)  # drain() returns only when everything is written
        self._listening = self.loop.create_task(self._listen(reader))

    async def send(self, message: bytes) -> None:
        self._writer.write(message)
        await self._writer.drain()

    async def end(self, message: bytes) -> None:
        """Sends how the running job ended. No checkpoint of the job is sent after it."""
        self._running = None
        await self.send(message)

    def keep(self, job: Job, headers: Mapping[str, Any]) -> Coroutine[Any, Any, None]:
        """Has the worker store a checkpoint; raises what that raised in the worker.

        Any thread of the running job may call it, several at once. Raises ClaimLost in a thread that outlived its job,
        and in a fork.
        """
        if os.getpid() != self._pid:  # a fork has no thread that runs the loop
            raise errors.ClaimLost(f"checkpoint: job {job.descriptor} is of the process that forked this one")
        return self._keep(job, headers)

    async def _keep(self, job: Job, headers: Mapping[str, Any]) -> None:
        body = envelope.with_headers(job.body, headers)
        if job is not self._running:
            raise errors.ClaimLost(f"checkpoint: job {job.descriptor} has ended in this process")
        answer = self.loop.create_future()
        self._checkpoints.append(answer)
        await self.send(messages.pack(MessageKind.KEEP, body))
        if refused := await answer:
            name, text = refused
            raise _error(name, text)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, *items = await messages.read(reader)
                if kind == MessageKind.JOB:
                    name, *parts = items
                    self._running = Job(*parts)
                    await self.send(messages.pack(MessageKind.STARTED))
                    self.jobs.put((name, self._running))
                elif not (answer := self._checkpoints.popleft()).done():
                    answer.set_result(items)
        self.jobs.put(None)


def _error(name: str, text: str) -> errors.PinLaterError:
    kind: type[errors.PinLaterError] = getattr(errors, name, errors.PinLaterError)
    try:
        return kind(text)
    except TypeError:  # an error whose constructor takes more than a text
        return errors.PinLaterError(f"{name}: {text}")


def main() -> None:
    """Runs jobs until the worker closes the socket. sys.argv[1]: a JSON object from ProcessPool."""
    settings = json.loads(sys.argv[1])
    sys.argv[1:] = []
    _set_up(settings)
    with contextlib.ExitStack() as stack:
        try:
            app = load_app(settings["app"], settings["include"])
            if settings["url"] is not None:
                parts_of(app).clients.provider = UrlProvider(settings["url"])
            connection = WorkerConnection()
            connection.wait(connection.open(settings["socket"]))
            lifespan = parts_of(app).entered_lifespan(in_process=True)
            resolved = connection.wait(lifespan.__aenter__())
        except BaseException as error:
            text = _end(of_user(error), START_TRACEBACK_BYTES)
            os.write(settings["socket"], messages.pack(MessageKind.BROKEN, describe(error, ERROR_BYTES), text))
            sys.exit(1)
        stack.callback(lambda: connection.wait(lifespan.__aexit__(None, None, None)))
        for task in app.tasks.values():
            task.function = _ending_forks(task.function)
        connection.wait(connection.send(messages.pack(MessageKind.READY)))
        while (task_and_job := connection.jobs.get()) is not None:
            connection.wait(connection.end(_run(app, connection, resolved, settings, *task_and_job)))
    app.close()
    connection.close()


def _set_up(settings: dict[str, Any]) -> None:
    """Ends with the worker, leaves signals to it, and logs as it does."""
    end_with_parent(signal.SIGKILL, settings["parent"])
    os.set_inheritable(settings["socket"], False)
    _ignore_stop_signals()
    logging.basicConfig(level=settings["log_level"], format=settings["log_line"])
    if "log_format" in settings:
        set_up(settings["log_format"])


def _ignore_stop_signals() -> None:
    """The worker acts on stop signals. A process that a task forks (multiprocessing) handles them as any process."""
    free_children_of_handlers()
    ignore(HANDLED)


def _ending_forks(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; a fork that returns from it ends there, as at the end of a program."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        pid, error = os.getpid(), None
        try:
            return function(*args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if os.getpid() != pid:
                _end_fork(error)

    return call


def _end_fork(error: BaseException | None) -> NoReturn:
    code = error.code if isinstance(error, SystemExit) else error
    try:
        if code is not None and not isinstance(code, int):
            traceback.print_exception(error) if code is error else print(code, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _run(
    app: PinLater,
    connection: WorkerConnection,
    resolved: Resolved,
    settings: dict[str, Any],
    name: str,
    job: Job,
) -> bytes:
    """Runs a task. Returns the message that says how it ended."""
    task, worker, start_s = app.tasks.get(name), settings["worker"], time.monotonic()
    if task is None:
        text = f"the app {import_name(app)}, as its process imports it, has no task {name!r}"
        return messages.pack(MessageKind.FAILED, text, "", f"{text}\n", None, False)
    all_args: list[Any] = []
    try:
        args, kwargs, headers = ([job.body], {}, {}) if task.codec == "raw" else envelope.read(job.body)[1:]
        current_job.set(job)
        trace = headers.get("trace")
        current_trace.set(trace if type(trace) is str else None)
        arguments = task_parts(task).arguments
        if arguments.convert:
            args, kwargs = arguments.restore(args, kwargs)
        all_args = with_context(task, job, args, headers, connection.keep, connection.loop)
        value = call_plain_task(task, all_args, kwargs, connection.loop, resolved)
        if task.options.result_ttl_ms is not None:
            return messages.pack(MessageKind.RETURNED, arguments.pack_result(value))
    except (Retry, Snooze, Cancel) as end:
        try:
            return _ended(end, all_args)
        except Exception as error:
            return _failed(task, job, error, worker, start_s)
    except BaseException as error:
        return _failed(task, job, error, worker, start_s)
    return messages.pack(MessageKind.RETURNED, _packed(value) if settings["values"] else None)


def _packed(value: Any) -> bytes | None:
    """A value that only middleware sees, packed; None if it can not be packed, or not be read again."""
    try:
        packed = envelope.pack_result("msgpack", value)
        envelope.read_result(packed)
    except Exception:
        return None
    return packed


def _ended(end: TaskEnd, all_args: list[Any]) -> bytes:
    """The message for the end of a task. Raises InvalidArgument for values that can not be packed."""
    name = next(kind.__name__ for kind in (Retry, RateLimited, Snooze, Cancel) if isinstance(end, kind))
    headers = with_progress(end, all_args).headers if isinstance(end, Snooze) else None
    reason, delay = clip(str(end), ERROR_BYTES), getattr(end, "delay", None)
    try:
        return messages.check_readable(messages.pack(MessageKind.ENDED, name, reason, delay, headers))
    except Exception as error:
        text = describe(error, ERROR_BYTES)
        refused = f"{name}: its delay or state can not be packed and read back: {text}"
        raise errors.InvalidArgument(f"{refused}; {envelope.STATE_TAKES}") from None


def _end(text: str, limit_bytes: int) -> str:
    """The last lines of a traceback, which say most, without a final line break. A character has 4 bytes at most."""
    return clip(text.rstrip("\n")[-limit_bytes // 4 :], limit_bytes)


def _failed(task: Task[..., Any], job: Job, error: BaseException, worker: str, start_s: float) -> bytes:
    """The message for an error. Only this process has the error itself, so it applies backoff and give_up_on."""
    end = failed_end(task, job, error, worker, time.monotonic() - start_s)
    text = _end("".join(traceback.format_exception(*exc_info_of(error))), TRACEBACK_BYTES)
    return messages.pack(MessageKind.FAILED, describe(error, ERROR_BYTES), text, end.status, end.delay_ms, end.final)
