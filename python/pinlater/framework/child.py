"""A task process: runs tasks with runs_in="process" in its main thread, one after the other, for one worker.

Promises that it ends with its worker, that stop signals are the worker's to act on, and that whatever a task raises is
told as it counts. Risks: a task that ends the interpreter ends this.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
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
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import uvloop

from pinlater import errors
from pinlater.framework import envelope, pipes
from pinlater.framework.app import PinLater
from pinlater.framework.calling import call_plain_task, with_context, with_progress
from pinlater.framework.clients import Direct
from pinlater.framework.context import current_trace
from pinlater.framework.depending import Made
from pinlater.framework.dispatching import judged
from pinlater.framework.ends import Cancel, Retry, Snooze, TaskEnd
from pinlater.framework.logs import current_job, set_up
from pinlater.framework.pipes import Said
from pinlater.framework.running import load_app
from pinlater.framework.tasks import Task
from pinlater.handlers import Failed, clip, describe
from pinlater.jobs import Job
from pinlater.process import PR_SET_PDEATHSIG

#: Of an error and its traceback, in the worker's log.
ERROR_BYTES: Final = 1_000
TRACEBACK_BYTES: Final = 100_000


class Link:
    """The end of the pipe, on a loop in a thread of its own. jobs: what to run; None: the worker has no more."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.jobs: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._kept: asyncio.Future[list[Any]] | None = None
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
        self._listening = self.loop.create_task(self._listen(reader))

    async def say(self, message: bytes) -> None:
        self._writer.write(message)
        await self._writer.drain()

    async def keep(self, job: Job, headers: Mapping[str, Any]) -> None:
        """A checkpoint, by the worker; raises what it raised there."""
        self._kept = self.loop.create_future()
        await self.say(pipes.pack(Said.KEEP, envelope.with_headers(job.body, headers)))
        refused = await self._kept
        if refused:
            name, text = refused
            raise _error(name, text)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                said, *rest = await pipes.read(reader)
                if said == Said.JOB:
                    self._writer.write(pipes.pack(Said.BEGUN))
                    self.jobs.put(rest)
                elif self._kept is not None:
                    self._kept.set_result(rest)
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
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != told["parent"]:  # it died before that
        os._exit(1)
    os.set_inheritable(told["socket"], False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # they are the worker's to act on
    logging.basicConfig(level=told["log_level"], format=told["log_line"])
    if "log_format" in told:
        set_up(told["log_format"])
    sys.argv[1:] = []
    app = load_app(told["app"])
    if told["url"] is not None:
        app.clients.source = Direct(told["url"])
    link = Link()
    link.wait(link.open(told["socket"]))
    with contextlib.ExitStack() as stack:
        lifespan = app.living(in_process=True)
        made = link.wait(lifespan.__aenter__())
        stack.callback(lambda: link.wait(lifespan.__aexit__(None, None, None)))
        link.wait(link.say(pipes.pack(Said.READY)))
        while (message := link.jobs.get()) is not None:
            link.wait(link.say(_run(app, link, made, told["worker"], *message)))
    app.close()
    link.close()


def _run(app: PinLater, link: Link, made: Made, worker: str, name: str, *parts: Any) -> bytes:
    """Runs a task; what became of it."""
    job, task, began_s = Job(*parts), app.tasks.get(name), time.monotonic()
    if task is None:
        told = f"the app {app.import_name()}, as its process imports it, has no task {name!r}"
        return pipes.pack(Said.FAILED, told, "", f"{told}\n", None, False)
    called: list[Any] = []
    try:
        args, kwargs, headers = ([job.body], {}, {}) if task.codec == "raw" else envelope.read(job.body)[1:]
        current_job.set(job)
        trace = headers.get("trace")
        current_trace.set(trace if type(trace) is str else None)
        called = with_context(task, job, args, headers, link.keep, link.loop)
        value = call_plain_task(task, called, kwargs, link.loop, made)
        if task.running.result_ttl_ms is not None:
            return pipes.pack(Said.RETURNED, True, envelope.pack_result(task.codec, value))
    except (Retry, Snooze, Cancel) as end:
        kept = with_progress(end, called).headers if isinstance(end, Snooze) else None
        try:
            return pipes.pack(Said.ENDED, _word(end), str(end), getattr(end, "delay", None), kept)
        except Exception as error:  # of its delay or its state
            return _failed(task, job, error, worker, began_s)
    except Exception as error:
        return _failed(task, job, error, worker, began_s)
    except BaseException as error:
        return _failed(task, job, RuntimeError(f"the handler raised {error!r}"), worker, began_s)
    try:
        return pipes.pack(Said.RETURNED, False, value)
    except Exception:
        return pipes.pack(Said.RETURNED, False, None)  # only middleware would see it


def _word(end: TaskEnd) -> str:
    return next(word.__name__ for word in (Retry, Snooze, Cancel) if isinstance(end, word))


def _failed(task: Task[..., Any], job: Job, error: Exception, worker: str, began_s: float) -> bytes:
    """With what only this process can say of it: its backoff, and whether it is one to give up on."""
    try:
        end = judged(task, job, error, worker, time.monotonic() - began_s)
    except Exception as wrong:  # of the backoff
        end = Failed(describe(wrong, ERROR_BYTES) + "\n")
    told = clip("".join(traceback.format_exception(error)), TRACEBACK_BYTES)
    return pipes.pack(Said.FAILED, describe(error, ERROR_BYTES), told, end.status, end.delay_ms, end.final)
