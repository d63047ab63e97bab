"""One process of a supervisor: starts it, reads its reports, checks its memory, stops it.

Promises that the process ends when its supervisor is killed, and that its last whole report is kept.
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
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pinlater.client.base import MARK_VARIABLE, source_of
from pinlater.worker.os_process import end_with_parent, memory_bytes
from pinlater.worker.started_jobs import STARTED_VARIABLE, shared_memory
from pinlater.worker.stop_signals import OVERTIME_S
from pinlater.worker.suspect_turn import TURN_VARIABLE, turn_file

log: Final = logging.getLogger("pinlater.supervisor")

#: Environment variable with the file descriptor for reports to the supervisor.
REPORT_VARIABLE: Final = "PINLATER_REPORT_FD"
#: A process ends with this exit code to be replaced at once (EX_TEMPFAIL).
RECYCLE: Final = 75
#: The reason of such an end.
RECYCLED: Final = "recycled"
#: A process of a burst ends with this exit code if it reached no server. Another would not either.
NO_SERVER: Final = 3
#: A process is killed at its memory cap times this. It recycles itself at the cap.
KILL_FACTOR: Final = 1.5
MIB: Final = 1024 * 1024
NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSet:
    """Processes of one command.

    command: the argument list.
    processes: how many.
    name: how the log calls one.
    memory_mb: the memory cap of one, in MiB.
    kill_after_s: a process that has not ended this long after a stop signal is killed.
    """

    command: Sequence[str]
    processes: int = 1
    name: str = "worker process"
    memory_mb: int | None = None
    kill_after_s: float = 60.0


def kill_after_s(stop_timeout_s: float) -> float:
    """A worker that has not ended this long after a stop signal hangs."""
    return stop_timeout_s + 2 * OVERTIME_S


class Process:
    """A running process. Making one starts it, and raises OSError or SubprocessError if the system refuses.

    on_report: called with this process after each report.
    """

    def __init__(self, process_set: ProcessSet, on_report: Callable[[Process], None]) -> None:
        file, memory = shared_memory()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.process_set, self._socket, self._on_report, self._unread = process_set, ours, on_report, b""
        descriptors = {STARTED_VARIABLE: file.fileno(), REPORT_VARIABLE: theirs.fileno()}
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
        #: The source in its claims; no other process has the same.
        self.source = source_of(self.pid, mark)
        self.started_s = time.monotonic()
        #: The last report (fields of `reports.Report`), and when it came.
        self.report: dict[str, Any] = {}
        self.reported_s = self.started_s
        #: The jobs it has started, see started_ids. Readable after its end too.
        self.started = memory
        #: When it is killed.
        self.kill_s = NEVER_S
        #: Why it is to end: recycled, memory, reload; "" before, and at a stop.
        self.ending = ""
        log.info("%s %d started", process_set.name, self.pid)

    @property
    def ready(self) -> bool:
        """Whether it reported that it works."""
        return bool(self.report.get("ready"))

    @property
    def has_ended(self) -> bool:
        """Whether poll() has given its exit code, or is about to."""
        return self._process.returncode is not None

    def poll(self) -> int | None:
        """Its exit code, if it has ended; its last report is read by then."""
        code = self._process.poll()
        if code is not None and self._socket.fileno() >= 0:
            self._read()
            self._close()
        return code

    def is_orderly(self, code: int) -> bool:
        """Whether it announced this exit code. A handler that ends the process, with any code, does not."""
        return self.report.get("code") == code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def stop(self, why: str, kill_after_s: float) -> None:
        """Sends SIGTERM, and sets when it is killed; a second call can only make that earlier."""
        self.ending = self.ending or why
        self.kill_s = min(self.kill_s, time.monotonic() + kill_after_s)
        self.send(signal.SIGTERM)

    def check_memory(self) -> None:
        """Kills it if it uses far more than its cap. Before its first report it checks that itself."""
        cap_mb = self.process_set.memory_mb
        if cap_mb is None or not self.report or self.ending == "memory":
            return
        used_mb = memory_bytes(self.pid) / MIB
        if used_mb > cap_mb * KILL_FACTOR:
            log.error("%s %d uses %d MiB, its cap is %d: killed", self.process_set.name, self.pid, used_mb, cap_mb)
            self.ending = "memory"
            self.send(signal.SIGKILL)

    def _read(self) -> None:
        """Reads reports. Each is complete, so only the last one counts."""
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
    # A process group of its own: Ctrl-C in a terminal would reach it twice, from there and from here, and twice is
    # "at once".
    return subprocess.Popen(
        command,
        env={**os.environ, **variables, MARK_VARIABLE: mark},
        pass_fds=list(descriptors.values()),
        process_group=0,
        preexec_fn=partial(_prepare, os.getpid()),
    )


def _prepare(parent: int) -> None:
    """Runs in the new process before its program: SIGTERM reaches it when the supervisor dies, and the signal for a
    dump does not end it before it listens.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    end_with_parent(signal.SIGTERM, parent)
