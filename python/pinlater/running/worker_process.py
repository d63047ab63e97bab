"""One process that a supervisor started: how it is started and killed, what it reports, what memory it uses; and the
places where one runs at a time.

Promises that a process ends when its supervisor is killed, and that its last whole report is kept.
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

from pinlater.client.base import MARK_VARIABLE, source_of
from pinlater.model.backoff import Pauses
from pinlater.worker.os_process import end_with_parent, memory_bytes
from pinlater.worker.started_jobs import STARTED_VARIABLE, shared_memory

log: Final = logging.getLogger("pinlater.supervisor")

#: Names the descriptor that a process reports on to its supervisor: JSON documents, one a line. ready: it works;
#: recycling: it claims no more, and ends with RECYCLE; code: with which it ends now, else null; queues; samples.
REPORT_VARIABLE: Final = "PINLATER_REPORT_FD"
#: A process that ends with this exit code wants another to be started at once (EX_TEMPFAIL).
RECYCLE: Final = 75
#: Why it ends then.
RECYCLED: Final = "recycled"
#: One of a burst that ends with this exit code reached no server: so will another.
NO_SERVER: Final = 3
#: A process that uses so many times its cap, though it should have recycled itself, is killed.
KILL_FACTOR: Final = 1.5
#: A process that dies is started again after this at first, and after that at last.
FIRST_RESTART_S: Final = 0.5
LAST_RESTART_S: Final = 30.0
MIB: Final = 1024 * 1024
NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSet:
    """Processes of one command: the argument list, how many, what they are called in the log, and their memory cap.
    kill_after_s: one that has not ended so long after a stop signal is killed.
    """

    command: Sequence[str]
    processes: int = 1
    name: str = "worker process"
    memory_mb: int | None = None
    kill_after_s: float = 60.0


class Process:
    """on_report: called with this when it reported; None: it does not. Raises OSError or SubprocessError."""

    def __init__(self, of: ProcessSet, env: Mapping[str, str], on_report: Callable[[Process], None] | None) -> None:
        file, memory = shared_memory()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.of, self._socket, self._on_report, self._unread = of, ours, on_report, b""
        handed = {STARTED_VARIABLE: file.fileno()}
        if on_report is not None:
            handed[REPORT_VARIABLE] = theirs.fileno()
        mark = secrets.token_hex(4)
        # A process group of its own: Ctrl-C in a terminal would reach it twice, from there and from here, and
        # twice is "at once".
        try:
            with theirs, file:
                self._process = subprocess.Popen(
                    of.command,
                    env={**env, **{name: str(number) for name, number in handed.items()}, MARK_VARIABLE: mark},
                    pass_fds=list(handed.values()),
                    process_group=0,
                    preexec_fn=partial(_begin, os.getpid()),
                )
        except BaseException:
            ours.close()
            raise
        asyncio.get_running_loop().add_reader(ours, self._read)
        self.pid = self._process.pid
        #: Of its claims, and of no other process's.
        self.source = source_of(self.pid, mark)
        self.started_s = time.monotonic()
        #: The last report, and when it came.
        self.report: dict[str, Any] = {}
        self.reported_s = self.started_s
        #: The jobs it has begun, see ids_in; there when it has ended, too.
        self.started = memory
        #: When it is killed; after a stop signal.
        self.kill_s = NEVER_S
        #: Why it was told to end, or was killed, if it was.
        self.ending = ""
        log.info("%s %d started", of.name, self.pid)

    @property
    def ready(self) -> bool:
        """Whether it reported that it works."""
        return bool(self.report.get("ready"))

    @property
    def has_ended(self) -> bool:
        """Whether poll() has given its exit code, or is about to."""
        return self._process.returncode is not None

    def poll(self) -> int | None:
        """Its exit code, when it has ended; its last report is read by then."""
        code = self._process.poll()
        if code is not None and self._socket.fileno() >= 0:
            self._read()
            self._close()
        return code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def stop(self, why: str, kill_after_s: float) -> None:
        """Asks it to end, and kills it later; the second time sooner."""
        self.ending = self.ending or why
        self.kill_s = min(self.kill_s, time.monotonic() + kill_after_s)
        self.send(signal.SIGTERM)

    def check_memory(self) -> None:
        """Kills it if it uses far more than its cap; before its first report it looks at that itself."""
        cap_mb = self.of.memory_mb
        if cap_mb is None or not self.report or self.ending == "memory":
            return
        used_mb = memory_bytes(self.pid) / MIB
        if used_mb > cap_mb * KILL_FACTOR:
            log.error("%s %d uses %d MiB, its cap is %d: killed", self.of.name, self.pid, used_mb, cap_mb)
            self.ending = "memory"
            self.send(signal.SIGKILL)

    def _read(self) -> None:
        """Takes in what it wrote; each report tells all, so the last one counts."""
        with suppress(BlockingIOError, ConnectionError):
            while data := self._socket.recv(1 << 16):
                self._unread += data
            self._close()
        lines, newline, rest = self._unread.rpartition(b"\n")
        if newline:
            self._unread = rest
            self.report, self.reported_s = json.loads(lines.rpartition(b"\n")[2]), time.monotonic()
            if self._on_report is not None:
                self._on_report(self)

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()


@dataclass(slots=True, eq=False)
class ProcessSlot:
    """Where one process runs at a time, and when another may be started (monotonic seconds). fresh: takes the place of
    the process as soon as it is ready.
    """

    of: ProcessSet
    process: Process | None = None
    fresh: Process | None = None
    restarts: Pauses = field(default_factory=lambda: Pauses(FIRST_RESTART_S, LAST_RESTART_S))
    next_start_s: float = 0.0


def rearrange(slots: Sequence[ProcessSlot], sets: Sequence[ProcessSet]) -> tuple[list[ProcessSlot], list[ProcessSlot]]:
    """The places of other sets, and those that are left over; a place stays with the set of its name, if it can."""
    wanted = [of for of in sets for _ in range(of.processes)]
    left, kept = list(slots), dict[int, ProcessSlot]()
    for same_name in (True, False):
        for at, of in enumerate(wanted):
            found = next((slot for slot in left if slot.of.name == of.name or not same_name), None)
            if at not in kept and found is not None:
                kept[at] = found
                left.remove(found)
    for at, slot in kept.items():
        slot.of = wanted[at]
    return [kept.get(at) or ProcessSlot(of) for at, of in enumerate(wanted)], left


def _begin(parent: int) -> None:
    """In a new process: SIGTERM when the supervisor dies, so that a SIGKILL of it leaves nothing running; the signal
    for a dump of running jobs does not end it before it listens.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    end_with_parent(signal.SIGTERM, parent)
