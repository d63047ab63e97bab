"""Worker processes: one in this process, or several under a supervisor that starts them again when they die.

Promises that SIGTERM (or SIGINT) stops claiming, lets running jobs end within the deadline and hands back the rest, and that a second one gives
them up at once; and that the processes end when their supervisor is killed. Risks: a handler in a thread that hangs is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from pinlater.async_client import AsyncClient
from pinlater.handlers import Handler, load_handler
from pinlater.monitor import TICK_S, Monitor
from pinlater.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.supervisor")

#: A process that dies is started again after this, doubled up to that; one that lived for HEALTHY_S starts anew at the first.
FIRST_RESTART_S: Final = 0.5
LAST_RESTART_S: Final = 30.0
HEALTHY_S: Final = 60.0
_PR_SET_PDEATHSIG: Final = 1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_worker(
    handler: str | Handler, queues: Sequence[str], *, shards: Mapping[str, str], config: WorkerConfig | None = None
) -> int:
    """Works in this process, on uvloop, until a signal; returns the exit code."""
    function = load_handler(handler) if isinstance(handler, str) else handler

    async def work() -> None:
        async with AsyncClient(shards=shards) as client:
            worker = Worker(client, queues, function, config)
            loop = asyncio.get_running_loop()
            for number in _STOP_SIGNALS:
                loop.add_signal_handler(number, worker.request_stop)
            log.info("working on %s", ", ".join(queues))
            await worker.run()
            log.info("stopped: %s", worker.stats)

    uvloop.run(work())
    return 0


def run_monitor(queues: Sequence[str] | None, *, shards: Mapping[str, str], tick_s: float = TICK_S) -> int:
    """Monitors in this process until a signal; returns the exit code."""

    async def watch() -> None:
        async with AsyncClient(shards=shards) as client:
            monitor = Monitor(client, queues, tick_s=tick_s)
            loop = asyncio.get_running_loop()
            for number in _STOP_SIGNALS:
                loop.add_signal_handler(number, monitor.request_stop)
            await monitor.run()

    uvloop.run(watch())
    return 0


@dataclass(slots=True)
class _Child:
    """One process and when it may be started again (monotonic seconds)."""

    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    restart_s: float = FIRST_RESTART_S
    next_start_s: float = 0.0


class Supervisor:
    """Keeps `processes` copies of a command running until a stop signal.

    command: the argument list. env: variables added to this process's own.
    """

    def __init__(self, command: Sequence[str], processes: int, *, env: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._children = [_Child() for _ in range(processes)]
        self._env = {**os.environ, **(env or {})}
        self._signals = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that run."""
        return [child.process.pid for child in self._children if child.process is not None]

    def run(self) -> int:
        """Until SIGTERM or SIGINT; then passes it on, waits for every child, and returns 0, or 1 if one ended badly."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        previous_wake = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        previous = {number: signal.signal(number, self._on_signal) for number in (*_STOP_SIGNALS, signal.SIGCHLD)}
        try:
            return self._supervise(wake_read)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_wake)
            os.close(wake_read)
            os.close(wake_write)

    def _on_signal(self, number: int, _: Any) -> None:
        if number == signal.SIGCHLD:
            return
        self._signals += 1
        for child in self._children:
            if child.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGTERM)

    def _supervise(self, wake: int) -> int:
        worst = 0
        while True:
            now_s = time.monotonic()
            for child in self._children:
                code = self._reap(child, now_s)
                if code and self._signals:
                    worst = 1
                if not self._signals and child.process is None and child.next_start_s <= now_s:
                    self._start(child)
            if self._signals and not self.pids:
                return worst
            _wait_readable(wake, self._pause_s())

    def _pause_s(self) -> float:
        """Until the next child may be started."""
        waits = [child.next_start_s - time.monotonic() for child in self._children if child.process is None]
        return max(0.0, min(waits, default=LAST_RESTART_S)) if not self._signals else LAST_RESTART_S

    def _start(self, child: _Child) -> None:
        child.process = subprocess.Popen(self._command, env=self._env, preexec_fn=_end_with_parent)
        child.started_s = time.monotonic()
        log.info("worker process %d started", child.process.pid)

    def _reap(self, child: _Child, now_s: float) -> int | None:
        """The exit code of a child that ended, and when it may be started again."""
        if child.process is None or (code := child.process.poll()) is None:
            return None
        pid, child.process = child.process.pid, None
        if now_s - child.started_s >= HEALTHY_S:
            child.restart_s = FIRST_RESTART_S
        child.next_start_s = now_s + child.restart_s
        child.restart_s = min(2 * child.restart_s, LAST_RESTART_S)
        if not self._signals:
            log.error("worker process %d %s; starting another in %.1f s", pid, _how(code), child.next_start_s - now_s)
        return code


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _end_with_parent() -> None:
    """In a new child: SIGTERM when the supervisor dies, so that a SIGKILL of it leaves nothing running."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_readable(descriptor: int, seconds: float) -> None:
    ready, _, _ = select.select([descriptor], [], [], seconds)
    if ready:
        os.read(descriptor, 4096)


def run_workers(
    handler: str,
    queues: Sequence[str],
    *,
    shards: Mapping[str, str],
    config: WorkerConfig,
    processes: int = 1,
    command: Sequence[str] = (),
) -> int:
    """`processes` worker processes; one runs here, several under a Supervisor. command: what starts one of several.

    Returns the exit code.
    """
    load_handler(handler)  # a mistyped name ends here, not in a loop of restarts
    if processes == 1:
        return run_worker(handler, queues, shards=shards, config=config)
    return Supervisor(command or [sys.executable, "-m", "pinlater", *sys.argv[1:]], processes).run()
