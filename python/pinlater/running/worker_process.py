"""One process of a supervisor: starts it, reads its reports, checks its memory, stops it.

Promises that the process ends when its supervisor is killed, and that its last complete report is kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import orjson

from pinlater.client.base import MARK_VARIABLE, source_of
from pinlater.running.loop_watch import END_WITH_STACKS, LoopWatch
from pinlater.worker.os_process import end_with_parent, exit_in_words, memory_bytes
from pinlater.worker.started_jobs import STARTED_VARIABLE, shared_memory
from pinlater.worker.stop_signals import OVERTIME_S, PARENT_DIED
from pinlater.worker.suspect_turn import TURN_VARIABLE, turn_file

log: Final = logging.getLogger("pinlater.supervisor")

#: Environment variable with the file descriptor for reports to the supervisor.
REPORT_VARIABLE: Final = "PINLATER_REPORT_FD"
#: A process that ends with this exit code is replaced at once (EX_TEMPFAIL).
RECYCLE: Final = 75
#: The reason of an end with RECYCLE.
RECYCLED: Final = "recycled"
#: A process of a burst ends with this exit code if it reached no server. Another process would reach none either.
NO_SERVER: Final = 3
#: The reason of an end because the event loop did not turn. STACKS_S: the time for such a process to write its stacks.
STUCK: Final = "loop"
STACKS_S: Final = 5.0
#: A process recycles itself at its memory cap. The supervisor kills it at this multiple of the cap.
KILL_FACTOR: Final = 1.5
MIB: Final = 1024 * 1024
NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSet:
    """A set of processes that run the same command.

    command: the argument list.
    processes: the number of processes.
    name: the log's name for a process.
    memory_mb: the memory cap of each process, in MiB.
    kill_after_s: a process that has not ended this long after a stop signal is killed.
    loop_timeout_s: a process whose loop has not turned for this long is ended.
    descriptors: open files that each process gets, by the environment variables that will hold their numbers.
    """

    command: Sequence[str]
    processes: int = 1
    name: str = "worker process"
    memory_mb: int | None = None
    kill_after_s: float = 60.0
    loop_timeout_s: float | None = None
    descriptors: Mapping[str, int] = field(default_factory=dict)


def kill_after_s(stop_timeout_s: float) -> float:
    """The time after a stop signal at which a worker that has not ended is killed."""
    return stop_timeout_s + 2 * OVERTIME_S


class Process:
    """A running process. The constructor starts it, and raises OSError or SubprocessError if the system refuses.

    on_report: called with this process after each report.
    """

    def __init__(self, process_set: ProcessSet, on_report: Callable[[Process], None]) -> None:
        file, memory = shared_memory()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.process_set, self._socket, self._on_report, self._unread = process_set, ours, on_report, b""
        descriptors = {STARTED_VARIABLE: file.fileno(), REPORT_VARIABLE: theirs.fileno(), **process_set.descriptors}
        descriptors[TURN_VARIABLE] = turn_file(process_set.name).fileno()
        mark = secrets.token_hex(4)
        try:
            with theirs, file:
                self._process = _spawn(process_set.command, descriptors, mark)
        except BaseException:
            ours.close()
            raise
        asyncio.get_running_loop().add_reader(ours, self._read)
        self.pid = self._process.pid
        #: The source in the claims of this process. No other process has the same source.
        self.source = source_of(self.pid, mark)
        self.started_s = time.monotonic()
        #: The last report (fields of `reports.Report`). reported_s: the time when it came.
        self.report: dict[str, Any] = {}
        self.reported_s = self.started_s
        #: The jobs that the process has started (see started_ids). It is readable after the end of the process too.
        self.started = memory
        #: The time at which the supervisor kills the process.
        self.kill_s = NEVER_S
        #: The reason of the coming end: recycled, memory, loop or reload. "" before, and at a stop of the supervisor.
        self.ending = ""
        self._loop_watch = None if process_set.loop_timeout_s is None else LoopWatch(process_set.loop_timeout_s)
        log.info("%s %d started", process_set.name, self.pid)

    @property
    def ready(self) -> bool:
        """Whether the process reported that it is ready."""
        return bool(self.report.get("ready"))

    @property
    def has_ended(self) -> bool:
        """Whether poll() has returned the exit code, or will return it in its next call."""
        return self._process.returncode is not None

    def poll(self) -> int | None:
        """The exit code, or None while the process runs. Reads the last report before it returns an exit code."""
        code = self._process.poll()
        if code is not None and self._socket.fileno() >= 0:
            self._read()
            self._close()
        return code

    def is_orderly(self, code: int) -> bool:
        """Whether a report announced this exit code. If a handler ends the process, no report announces it."""
        return self.report.get("code") == code

    def send_message(self, message: Mapping[str, Any]) -> bool:
        """Sends a line of JSON. Returns False if that is not possible now."""
        line = orjson.dumps(message) + b"\n"
        try:
            return self._socket.send(line) == len(line)
        except OSError:
            return False

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def stop(self, why: str, kill_after_s: float) -> None:
        """Sends SIGTERM, and sets the time of the kill. A second call can only make this time earlier."""
        self.ending = self.ending or why
        self.kill_s = min(self.kill_s, time.monotonic() + kill_after_s)
        self.send(signal.SIGTERM)

    def check_memory(self) -> None:
        """Kills the process if it uses far more memory than its cap. Until its first report it checks itself."""
        cap_mb = self.process_set.memory_mb
        if cap_mb is None or not self.report or self.ending == "memory":
            return
        used_mb = memory_bytes(self.pid) / MIB
        if used_mb > cap_mb * KILL_FACTOR:
            log.error("%s %d uses %d MiB, its cap is %d: killed", self.process_set.name, self.pid, used_mb, cap_mb)
            self.ending = "memory"
            self.send(signal.SIGKILL)

    def check_loop(self) -> None:
        """Ends it, with its stacks in the log, if its loop does not turn. It is watched between its first report and
        its last.
        """
        watch = self._loop_watch
        if watch is None or not self.report or self.report.get("code") is not None or self.ending == STUCK:
            return
        if watch.is_stuck(self.reported_s, now_s := time.monotonic()):
            limit_s, name = self.process_set.loop_timeout_s, self.process_set.name
            log.error("%s %d: its loop has not turned for %g s: ended; its stacks follow", name, self.pid, limit_s)
            self.ending, self.kill_s = STUCK, now_s + STACKS_S
            self.send(END_WITH_STACKS)

    def end_in_words(self, code: int) -> str:
        """How it ended. code: its exit code."""
        if self.ending == STUCK:
            return f"was ended, as its loop had not turned for {self.process_set.loop_timeout_s:g} s"
        return exit_in_words(code)

    def _read(self) -> None:
        """Reads reports. Each report has all fields, so only the last one counts."""
        with suppress(BlockingIOError, ConnectionError):
            while data := self._socket.recv(1 << 16):
                self._unread += data
            self._close()
        lines, newline, rest = self._unread.rpartition(b"\n")
        if newline:
            self._unread = rest
            self.report, self.reported_s = json.loads(lines.rpartition(b"\n")[2]), time.monotonic()
            self._on_report(self)

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()


def _spawn(command: Sequence[str], descriptors: Mapping[str, int], mark: str) -> subprocess.Popen[bytes]:
    """Starts a program. descriptors: file descriptors for it, by the variables that name them."""
    variables = {name: str(number) for name, number in descriptors.items()}
    # The process has its own process group. Otherwise Ctrl-C in a terminal would reach it twice, from the terminal and
    # from this supervisor, and the second signal means "at once".
    return subprocess.Popen(
        command,
        env={**os.environ, **variables, MARK_VARIABLE: mark},
        pass_fds=list(descriptors.values()),
        process_group=0,
        preexec_fn=partial(_prepare, os.getpid()),
    )


def _prepare(parent: int) -> None:
    """Runs in the new process before its program starts.

    The process gets PARENT_DIED when the supervisor dies. SIGUSR1 does not end it before it has a handler.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    end_with_parent(PARENT_DIED, parent)
