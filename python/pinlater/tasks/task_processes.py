"""The task processes of a worker: tasks with runs_in="process" run in them, one job each at a time.

Promises that a process is started when there is work for it, as a new interpreter that imports the app; that one whose
task is past its timeout, or given up at a stop, is killed; that one that dies costs its own job's attempt and nothing
else, and one that can not start none; and that none outlives its worker. Risks: what a task started in turn is its own
to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

from pinlater.model.backoff import Pauses
from pinlater.model.errors import BodyUnreadable, InvalidArgument, PinLaterError
from pinlater.model.jobs import Job
from pinlater.tasks import envelope
from pinlater.tasks import task_messages as pipes
from pinlater.tasks.logs import JsonFormatter, TextFormatter
from pinlater.tasks.outcomes import Cancel, ProcessDied, RaisedInProcess, Retry, Snooze
from pinlater.tasks.task import Task
from pinlater.tasks.task_messages import Said
from pinlater.worker.executor import Failed, TimedOut
from pinlater.worker.os_process import exit_in_words

log: Final = logging.getLogger("pinlater.worker")

#: When the job of this asyncio task was given to its process (time.monotonic); 0: it was not.
given_s: Final[ContextVar[float]] = ContextVar("pinlater_given_s", default=0.0)

#: For the interpreter, the app's imports and its lifespan.
START_TIMEOUT_S: Final = 60.0
#: When one can not start, the next is tried after this, doubled, up to that; jobs are put back until then.
FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 60.0
#: For an idle process to leave the lifespan; after that it is killed.
CLOSE_TIMEOUT_S: Final = 5.0
#: Between the end of a process's socket and its own.
EXIT_TIMEOUT_S: Final = 1.0
_BOOT: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])["path"]
from pinlater.tasks import task_process_main
task_process_main.main()
"""


def cores() -> int:
    """How many processes can run at once."""
    return len(os.sched_getaffinity(0))


class Child:
    """One process. exited: with its exit code, negative if a signal ended it. begun: whether it has its last job."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process, self._reader, self._writer = process, reader, writer
        self.started = False
        self.exited = asyncio.get_running_loop().create_task(process.wait())
        # what it started may have the socket too, and so there may be no end of it
        self.exited.add_done_callback(lambda _: writer.transport.abort())

    def say(self, said: Said, *rest: Any) -> None:
        self._writer.write(pipes.pack(said, *rest))

    async def hear(self) -> list[Any]:
        """Its next message, or ProcessDied."""
        try:
            return await pipes.read(self._reader)
        except (EOFError, OSError):
            await asyncio.wait([self.exited], timeout=EXIT_TIMEOUT_S)
            self.kill()
            await asyncio.wait([self.exited])  # who is cancelled here does not end what others wait for
            raise ProcessDied(f"its process {exit_in_words(self.exited.result())}") from None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def close(self) -> None:
        self._writer.close()
        done, _ = await asyncio.wait([self.exited], timeout=CLOSE_TIMEOUT_S)
        if not done:
            log.warning("task process %d did not end in time and is killed", self.process.pid)
            self.kill()
        await asyncio.wait([self.exited])


class ProcessPool:
    """app: module:app, which the processes import. size: the most of them. worker: its name, for reports. keep: keeps a
    job's new body. values: whether somebody sees those that are not kept as results. url: of the store that stands in
    the place of the app's servers, if one does. Made on the worker's loop.
    """

    def __init__(
        self,
        app: str,
        size: int,
        worker: str,
        keep: Callable[[Job, bytes], Awaitable[None]],
        values: bool,
        url: str | None,
    ) -> None:
        self._app, self._worker, self._keep_body, self.values, self._url = app, worker, keep, values, url
        self._free = asyncio.Semaphore(size)
        self._idle: list[Child] = []
        self._leaving: set[asyncio.Task[Any]] = set()
        self._pauses = Pauses(FIRST_PAUSE_S, LAST_PAUSE_S)
        self._pause_s = self._paused_until_s = 0.0

    async def run(
        self, task: Task[..., Any], job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]
    ) -> Any:
        """Runs a job in a process that is free, or a new one; its value, or what it raised. The process reads the
        arguments from the job's body. The timeout begins when it has the job. Where none can start: Snooze.
        """
        async with self._free:
            answer = None
            while answer is None:
                idle = self._take()
                child = idle or await self._started()
                try:
                    answer = await self._in_time(child, task, job)
                except BaseException as error:
                    self._kill(child)
                    if child.started or not isinstance(error, ProcessDied):
                        raise
                    if idle is None:
                        raise self._put_off(error) from None
                    log.warning("task process %d was idle, and %s", child.process.pid, error)
            self._idle.append(child)
        return _value_of(answer)

    async def close(self) -> None:
        """Ends the processes: those that run a task were killed when that was given up."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.close() for child in idle), *self._leaving)

    def _take(self) -> Child | None:
        """The idle process that was used last; some may have died meanwhile."""
        while self._idle:
            child = self._idle.pop()
            if not child.exited.done():
                return child
        return None

    async def _started(self) -> Child:
        """A new process, or Snooze."""
        if (left_s := self._paused_until_s - time.monotonic()) > 0:
            raise Snooze(left_s)
        try:
            return await self._start()
        except (OSError, ProcessDied) as error:
            raise self._put_off(error) from None

    def _put_off(self, error: Exception) -> Snooze:
        """What a job ends with whose process could not start; of several at once, one counts."""
        if time.monotonic() >= self._paused_until_s:
            self._pause_s = self._pauses.take()
            self._paused_until_s = time.monotonic() + self._pause_s
            told = "no task process can start: %s; its job is put back, as others that need one in the next %g s"
            log.error(told, error, self._pause_s, exc_info=error)
        return Snooze(self._pause_s)

    async def _start(self) -> Child:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            reader, writer = await asyncio.open_unix_connection(sock=ours)  # a cancellation here leaves no process
            unless_started.pop_all()
            unless_started.callback(writer.transport.abort)
            told = {
                "path": sys.path,
                "app": self._app,
                "socket": theirs.fileno(),
                "parent": os.getpid(),
                "worker": self._worker,
                "values": self.values,
                "url": self._url,
                **_logging(),
            }
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _BOOT,
                json.dumps(told),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            child = Child(process, reader, writer)
            unless_started.pop_all()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                said, *broken = await child.hear()
            if said == Said.BROKEN:
                text, traceback = broken
                died = ProcessDied(text)
                died.add_note(traceback)
                raise died
        except BaseException as error:
            self._kill(child)
            if isinstance(error, TimeoutError):
                raise ProcessDied(f"its process was not ready after {START_TIMEOUT_S:g} s") from None
            raise
        return child

    def _kill(self, child: Child) -> None:
        child.kill()
        self._leaving.add(child.exited)
        child.exited.add_done_callback(self._leaving.discard)

    async def _in_time(self, child: Child, task: Task[..., Any], job: Job) -> list[Any]:
        timeout_s = task.running.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(child, task, job)
        except TimeoutError:
            assert timeout_s is not None
            raise TimedOut("its process", timeout_s) from None

    async def _ask(self, child: Child, task: Task[..., Any], job: Job) -> list[Any]:
        """Hands the job to the process; its last message about it."""
        child.started = False
        given_s.set(time.monotonic())
        child.say(Said.JOB, task.name, *pipes.parts_of(job))
        while True:
            said, *rest = await child.hear()
            if said == Said.STARTED:
                child.started = True
                self._pauses.reset()
            elif said == Said.KEEP:
                child.say(Said.KEPT, *await self._keep(job, rest[0]))
            else:
                return [said, *rest]

    async def _keep(self, job: Job, body: bytes) -> tuple[str, str] | tuple[()]:
        """A checkpoint, and what it raised."""
        try:
            await self._keep_body(job, body)
        except PinLaterError as error:
            return type(error).__name__, str(error)
        return ()


def _value_of(answer: list[Any]) -> Any:
    """What the task returned, or raised."""
    said, *rest = answer
    if said == Said.RETURNED:
        (packed,) = rest
        try:
            return None if packed is None else envelope.read_result(packed)
        except BodyUnreadable as error:
            raise InvalidArgument(str(error)) from None
    if said == Said.FAILED:
        text, traceback, status, delay_ms, final = rest
        raise RaisedInProcess(text, traceback, Failed(status, delay_ms, final))
    word, reason, delay, headers = rest
    if word == Snooze.__name__:
        snooze = Snooze(delay)
        snooze.headers = headers
        raise snooze
    raise Cancel(reason) if word == Cancel.__name__ else Retry(reason, delay=delay)


def _logging() -> dict[str, Any]:
    """How this process logs, for the others to do the same."""
    root = logging.getLogger()
    formatters = [handler.formatter for handler in root.handlers if handler.formatter is not None]
    told = {"log_level": root.level, "log_line": formatters[0]._fmt if formatters else None}
    for kind, name in ((JsonFormatter, "json"), (TextFormatter, "text")):
        told |= {"log_format": name} if formatters and isinstance(formatters[0], kind) else {}
    return told
