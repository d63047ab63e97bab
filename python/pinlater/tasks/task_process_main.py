"""A task process: runs tasks with runs_in="process" in its main thread, one after the other, for one worker.

Promises that it ends with its worker, that stop signals are the worker's to act on, that whatever a task raises is told
as it counts, and that no thread that a task left behind reaches the next one's job. Risks: a task that ends the
interpreter ends this.
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
from pinlater.tasks import envelope
from pinlater.tasks import task_messages as pipes
from pinlater.tasks.app import PinLater, load_app
from pinlater.tasks.app_clients import UrlProvider
from pinlater.tasks.context import current_trace
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.invoke import call_plain_task, with_context, with_progress
from pinlater.tasks.logs import current_job, set_up
from pinlater.tasks.outcomes import Cancel, Retry, Snooze, TaskEnd
from pinlater.tasks.runner import judged
from pinlater.tasks.task import Task
from pinlater.tasks.task_messages import Said
from pinlater.worker.os_process import end_with_parent
from pinlater.worker.stop_signals import HANDLED, free_children_of_handlers

#: Of an error and its traceback, in the worker's log.
ERROR_BYTES: Final = 1_000
#: A pipe takes so much at once.
START_TRACEBACK_BYTES: Final = 10_000
TRACEBACK_BYTES: Final = 100_000


class Link:
    """The end of the pipe, on a loop in a thread of its own. jobs: what to run, a task's name and its job; None: the
    worker has no more.
    """

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.jobs: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._running: Job | None = None
        #: Checkpoints that wait for the worker, which answers them in their order.
        self._keeping: deque[asyncio.Future[list[Any]]] = deque()
        self._writer: asyncio.StreamWriter
        self._thread = threading.Thread(target=self.loop.run_forever, name="pinlater-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the loop makes of it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def open(self, number: int) -> None:
        """number: the socket's descriptor."""
        reader, self._writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=number))
        self._writer.transport.set_write_buffer_limits(0)  # what is said is written
        self._listening = self.loop.create_task(self._listen(reader))

    async def say(self, message: bytes) -> None:
        self._writer.write(message)
        await self._writer.drain()

    async def end(self, message: bytes) -> None:
        """Says how the running job ended; no checkpoint of it goes out behind that."""
        self._running = None
        await self.say(message)

    def keep(self, job: Job, headers: Mapping[str, Any]) -> Coroutine[Any, Any, None]:
        """A checkpoint, by the worker; raises what it raised there. From any thread of the running job, many at once;
        ClaimLost from one that outlived its job, and in a fork.
        """
        if os.getpid() != self._pid:  # where nothing turns the loop
            raise errors.ClaimLost(f"checkpoint: job {job.descriptor} is of the process that forked this one")
        return self._keep(job, headers)

    async def _keep(self, job: Job, headers: Mapping[str, Any]) -> None:
        body = envelope.with_headers(job.body, headers)
        if job is not self._running:
            raise errors.ClaimLost(f"checkpoint: job {job.descriptor} has ended in this process")
        kept = self.loop.create_future()
        self._keeping.append(kept)
        await self.say(pipes.pack(Said.KEEP, body))
        if refused := await kept:
            name, text = refused
            raise _error(name, text)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                said, *rest = await pipes.read(reader)
                if said == Said.JOB:
                    name, *parts = rest
                    self._running = Job(*parts)
                    await self.say(pipes.pack(Said.STARTED))
                    self.jobs.put((name, self._running))
                elif not (kept := self._keeping.popleft()).done():
                    kept.set_result(rest)
        self.jobs.put(None)


def _error(name: str, text: str) -> errors.PinLaterError:
    kind: type[errors.PinLaterError] = getattr(errors, name, errors.PinLaterError)
    try:
        return kind(text)
    except TypeError:  # it is made of more than a text
        return errors.PinLaterError(f"{name}: {text}")


def main() -> None:
    """Until the worker closes the socket. sys.argv: a JSON object, of processes.py."""
    told = json.loads(sys.argv[1])
    end_with_parent(signal.SIGKILL, told["parent"])
    os.set_inheritable(told["socket"], False)
    _leave_signals()
    logging.basicConfig(level=told["log_level"], format=told["log_line"])
    if "log_format" in told:
        set_up(told["log_format"])
    sys.argv[1:] = []
    with contextlib.ExitStack() as stack:
        try:
            app = load_app(told["app"])
            if told["url"] is not None:
                app.clients.source = UrlProvider(told["url"])
            link = Link()
            link.wait(link.open(told["socket"]))
            lifespan = app.entered_lifespan(in_process=True)
            made = link.wait(lifespan.__aenter__())
        except BaseException as error:
            text = _end_of_traceback(error, START_TRACEBACK_BYTES)
            os.write(told["socket"], pipes.pack(Said.BROKEN, describe(error, ERROR_BYTES), text))
            sys.exit(1)
        stack.callback(lambda: link.wait(lifespan.__aexit__(None, None, None)))
        for task in app.tasks.values():
            task.function = _ending_forks(task.function)
        link.wait(link.say(pipes.pack(Said.READY)))
        while (message := link.jobs.get()) is not None:
            link.wait(link.end(_run(app, link, made, told, *message)))
    app.close()
    link.close()


def _leave_signals() -> None:
    """Signals are the worker's to act on; to what a task forks (multiprocessing) they do as to any process."""
    free_children_of_handlers()
    for number in HANDLED:
        signal.signal(number, lambda *_: None)


def _ending_forks(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and a fork that comes out of it ends there, as it would at the end of a program."""

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


def _run(app: PinLater, link: Link, made: Resolved, told: dict[str, Any], name: str, job: Job) -> bytes:
    """Runs a task; what became of it."""
    task, worker, began_s = app.tasks.get(name), told["worker"], time.monotonic()
    if task is None:
        text = f"the app {app.import_name()}, as its process imports it, has no task {name!r}"
        return pipes.pack(Said.FAILED, text, "", f"{text}\n", None, False)
    called: list[Any] = []
    try:
        args, kwargs, headers = ([job.body], {}, {}) if task.codec == "raw" else envelope.read(job.body)[1:]
        current_job.set(job)
        trace = headers.get("trace")
        current_trace.set(trace if type(trace) is str else None)
        called = with_context(task, job, args, headers, link.keep, link.loop)
        value = call_plain_task(task, called, kwargs, link.loop, made)
        if task.running.result_ttl_ms is not None:
            return pipes.pack(Said.RETURNED, envelope.pack_result(task.codec, value))
    except (Retry, Snooze, Cancel) as end:
        try:
            return _ended(end, called)
        except Exception as error:
            return _failed(task, job, error, worker, began_s)
    except BaseException as error:
        return _failed(task, job, error, worker, began_s)
    return pipes.pack(Said.RETURNED, _packed(value) if told["values"] else None)


def _packed(value: Any) -> bytes | None:
    """A value that only middleware sees; None where there are no words for it, or none that can be read."""
    try:
        packed = envelope.pack_result("msgpack", value)
        envelope.read_result(packed)
    except Exception:
        return None
    return packed


def _ended(end: TaskEnd, called: list[Any]) -> bytes:
    """How a task wants its job to end. Or InvalidArgument."""
    word = next(word.__name__ for word in (Retry, Snooze, Cancel) if isinstance(end, word))
    kept = with_progress(end, called).headers if isinstance(end, Snooze) else None
    try:
        reason = clip(str(end), ERROR_BYTES)
        return pipes.readable(pipes.pack(Said.ENDED, word, reason, getattr(end, "delay", None), kept))
    except Exception as error:
        text = describe(error, ERROR_BYTES)
        raise errors.InvalidArgument(f"{word}: its delay or state can not be packed and read back: {text}") from None


def _end_of_traceback(error: BaseException, limit_bytes: int) -> str:
    """Its last lines say most. A character has 4 bytes at most."""
    return clip("".join(traceback.format_exception(error))[-limit_bytes // 4 :], limit_bytes)


def _failed(task: Task[..., Any], job: Job, error: BaseException, worker: str, began_s: float) -> bytes:
    """With what only this process can say of it: its backoff, and whether it is one to give up on."""
    end = judged(task, job, error, worker, time.monotonic() - began_s)
    told = _end_of_traceback(error, TRACEBACK_BYTES)
    return pipes.pack(Said.FAILED, describe(error, ERROR_BYTES), told, end.status, end.delay_ms, end.final)
