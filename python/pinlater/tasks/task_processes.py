"""The task processes of a worker: each runs tasks with runs_in="process", one job at a time.

Promises:
    A process starts when there is work for it, as a new interpreter that imports the app.
    The worker kills a process if its task exceeds the timeout, or still runs when the time of a stop is over.
    If a process dies, its own job loses an attempt. No other job does.
    If a process can not start, no job loses an attempt.
    No process outlives its worker.
Risks: a task must end the processes that it starts.
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
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from pinlater.model.errors import BodyUnreadable, PinLaterError
from pinlater.model.jobs import Job
from pinlater.model.pauses import Pauses
from pinlater.tasks import envelope
from pinlater.tasks import task_messages as messages
from pinlater.tasks.arguments import ResultNotKept
from pinlater.tasks.logs import JsonFormatter, TextFormatter
from pinlater.tasks.outcomes import Cancel, ProcessDied, RaisedInProcess, RateLimited, Retry, Snooze, TaskEnd
from pinlater.tasks.task import Task
from pinlater.tasks.task_messages import MessageKind
from pinlater.worker.executor import Failed
from pinlater.worker.os_process import exit_in_words
from pinlater.worker.time_limits import TimedOut, in_time

log: Final = logging.getLogger("pinlater.worker")

#: When the job of this asyncio task was sent to its process (time.monotonic). 0: the job was not sent yet.
sent_s: Final[ContextVar[float]] = ContextVar("pinlater_sent_s", default=0.0)

#: A new process has this long to start the interpreter, import the app and enter the lifespan.
START_TIMEOUT_S: Final = 60.0
#: After a failed start the pool waits this long before the next start. Each further failure doubles the pause, up to
#: LAST_PAUSE_S. Jobs that need a process are postponed until the pause ends.
FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 60.0
#: An idle process has this long to leave the lifespan. Then it is killed.
CLOSE_TIMEOUT_S: Final = 5.0
#: A process has this long to exit after its socket closed. Then it is killed.
EXIT_TIMEOUT_S: Final = 1.0
_BOOT: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])["path"]
from pinlater.tasks import task_process_main
task_process_main.main()
"""


def cores() -> int:
    """The number of processes that can run at once: the CPUs this process may use."""
    return len(os.sched_getaffinity(0))


class TaskProcess:
    """One task process, as its worker sees it.

    exited: a future that is done when the process has exited. Its result is the exit code, or -N if signal N killed
        the process.
    started: whether the process has confirmed the last job that the worker sent.
    """

    def __init__(
        self,
        os_process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.os_process, self._reader, self._writer = os_process, reader, writer
        self.started = False
        self.exited = asyncio.get_running_loop().create_task(os_process.wait())
        # the task may have forked a process that keeps the socket open; then the stream never ends by itself
        self.exited.add_done_callback(lambda _: writer.transport.abort())

    def send(self, kind: MessageKind, *items: Any) -> None:
        self._writer.write(messages.pack(kind, *items))

    async def receive(self) -> list[Any]:
        """The next message of the process. Raises ProcessDied."""
        try:
            return await messages.read(self._reader)
        except (EOFError, OSError):
            await asyncio.wait([self.exited], timeout=EXIT_TIMEOUT_S)
            self.kill()
            await asyncio.wait([self.exited])  # unlike `await self.exited`: a cancellation here must not cancel it
            raise ProcessDied(f"its process {exit_in_words(self.exited.result())}") from None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.os_process.kill()

    async def close(self) -> None:
        self._writer.close()
        done, _ = await asyncio.wait([self.exited], timeout=CLOSE_TIMEOUT_S)
        if not done:
            log.warning("task process %d did not end in time and is killed", self.os_process.pid)
            self.kill()
        await asyncio.wait([self.exited])


class ProcessPool:
    """The task processes of one worker. Create it on the worker's loop.

    app: the app that the processes import, as "module:app".
    size: the highest number of processes at a time.
    worker: the worker's name, for reports of failures.
    store_body: stores a new body of a job.
    values: whether processes also return values of tasks that keep no results.
    url: the URL of a store that replaces the app's servers, in tests. None: the app uses its own servers.
    include: the modules that the processes import beside the app.
    """

    def __init__(
        self,
        app: str,
        size: int,
        worker: str,
        store_body: Callable[[Job, bytes], Awaitable[None]],
        values: bool,
        url: str | None,
        include: Sequence[str] = (),
    ) -> None:
        self._app, self._worker, self._store_body, self.values, self._url = app, worker, store_body, values, url
        self._include = list(include)
        self._free = asyncio.Semaphore(size)
        self._idle: list[TaskProcess] = []
        self._leaving: set[asyncio.Task[Any]] = set()
        self._pauses = Pauses(FIRST_PAUSE_S, LAST_PAUSE_S)
        self._pause_s = self._paused_until_s = 0.0

    async def run(
        self, task: Task[..., Any], job: Job, args: list[Any], kwargs: dict[str, Any], headers: dict[str, Any]
    ) -> Any:
        """Runs a job in an idle process, or in a new one. Returns the task's result or raises the task's error.

        The process reads the arguments from the job's body. The timeout begins when the job is sent to the process.
        Raises Snooze if no process can start.
        """
        async with self._free:
            answer = None
            while answer is None:
                idle = self._take()
                process = idle or await self._started()
                try:
                    answer = await self._in_time(process, task, job)
                except BaseException as error:
                    self._kill(process)
                    if process.started or not isinstance(error, ProcessDied):
                        raise
                    if idle is None:
                        raise self._postpone(error) from None
                    log.warning("task process %d was idle, and %s", process.os_process.pid, error)
            self._idle.append(process)
        return _value_of(answer)

    async def close(self) -> None:
        """Ends the idle processes. The pool has already killed each process whose task was cancelled."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.close() for process in idle), *self._leaving)

    def _take(self) -> TaskProcess | None:
        """The idle process that ran a job last, or None. Drops processes that died while they were idle."""
        while self._idle:
            process = self._idle.pop()
            if not process.exited.done():
                return process
        return None

    async def _started(self) -> TaskProcess:
        """A new process. Raises Snooze if none can start, or during the pause after a failed start."""
        if (left_s := self._paused_until_s - time.monotonic()) > 0:
            raise Snooze(left_s)
        try:
            return await self._start()
        except (OSError, ProcessDied) as error:
            raise self._postpone(error) from None

    def _postpone(self, error: Exception) -> Snooze:
        """Returns the Snooze that postpones a job whose process could not start.

        Failures during a pause do not lengthen the pause.
        """
        if time.monotonic() >= self._paused_until_s:
            self._pause_s = self._pauses.take()
            self._paused_until_s = time.monotonic() + self._pause_s
            text = "no task process can start: %s; jobs that need one are postponed for the next %g s"
            log.error(text, error, self._pause_s, exc_info=(type(error), error, None))
        return Snooze(self._pause_s)

    async def _start(self) -> TaskProcess:
        process = await self._spawn()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                kind, *broken = await process.receive()
            if kind == MessageKind.BROKEN:
                text, traceback = broken
                died = ProcessDied(text)
                died.add_note(traceback)
                raise died
        except BaseException as error:
            self._kill(process)
            if isinstance(error, TimeoutError):
                raise ProcessDied(f"its process was not ready after {START_TIMEOUT_S:g} s") from None
            raise
        return process

    async def _spawn(self) -> TaskProcess:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            reader, writer = await asyncio.open_unix_connection(sock=ours)  # a cancellation here leaves no process
            unless_started.pop_all()
            unless_started.callback(writer.transport.abort)
            os_process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _BOOT,
                json.dumps(self._settings(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            process = TaskProcess(os_process, reader, writer)
            unless_started.pop_all()
        return process

    def _settings(self, socket_number: int) -> dict[str, Any]:
        """The settings that task_process_main.main() reads from its command line."""
        return {
            "path": sys.path,
            "app": self._app,
            "include": self._include,
            "socket": socket_number,
            "parent": os.getpid(),
            "worker": self._worker,
            "values": self.values,
            "url": self._url,
            **_log_settings(),
        }

    def _kill(self, process: TaskProcess) -> None:
        process.kill()
        self._leaving.add(process.exited)
        process.exited.add_done_callback(self._leaving.discard)

    async def _in_time(self, process: TaskProcess, task: Task[..., Any], job: Job) -> list[Any]:
        asked, timeout_s = self._ask(process, task, job), task.options.timeout_s
        if timeout_s is None:
            return await asked
        try:
            return await in_time("its process", timeout_s, asked)
        except TimedOut as late:
            raise late from None  # where it was awaited says nothing

    async def _ask(self, process: TaskProcess, task: Task[..., Any], job: Job) -> list[Any]:
        """Sends the job to the process, and returns the process's last message about the job."""
        process.started = False
        sent_s.set(time.monotonic())
        process.send(MessageKind.JOB, task.name, *messages.job_parts(job))
        while True:
            kind, *items = await process.receive()
            if kind == MessageKind.STARTED:
                process.started = True
                self._pauses.reset()
            elif kind == MessageKind.KEEP:
                process.send(MessageKind.KEPT, *await self._keep(job, items[0]))
            else:
                return [kind, *items]

    async def _keep(self, job: Job, body: bytes) -> tuple[str, str] | tuple[()]:
        """Stores a checkpoint. Returns the name and the text of an error, or () if the checkpoint was stored."""
        try:
            await self._store_body(job, body)
        except PinLaterError as error:
            return type(error).__name__, str(error)
        return ()


def _value_of(answer: list[Any]) -> Any:
    """Returns the task's result, or raises the task's error."""
    kind, *items = answer
    if kind == MessageKind.RETURNED:
        return _returned(*items)
    if kind == MessageKind.FAILED:
        text, traceback, status, delay_ms, final = items
        raise RaisedInProcess(text, traceback, Failed(status, delay_ms, final))
    raise _task_end(*items)


def _returned(packed: bytes | None) -> Any:
    try:
        return None if packed is None else envelope.read_result(packed)
    except BodyUnreadable as error:
        raise ResultNotKept(str(error)) from None


def _task_end(name: str, reason: str, delay: Any, headers: dict[str, Any] | None) -> TaskEnd:
    if name in (Snooze.__name__, RateLimited.__name__):
        snooze = RateLimited(delay) if name == RateLimited.__name__ else Snooze(delay)
        snooze.headers = headers
        return snooze
    return Cancel(reason) if name == Cancel.__name__ else Retry(reason, delay=delay)


def _log_settings() -> dict[str, Any]:
    """The log settings of this process. Task processes use the same."""
    root = logging.getLogger()
    formatters = [handler.formatter for handler in root.handlers if handler.formatter is not None]
    settings = {"log_level": root.level, "log_line": formatters[0]._fmt if formatters else None}
    for kind, name in ((JsonFormatter, "json"), (TextFormatter, "text")):
        settings |= {"log_format": name} if formatters and isinstance(formatters[0], kind) else {}
    return settings
