"""Worker processes: one in this process, or several under a supervisor that starts them again when they die.

Promises that SIGTERM (or SIGINT) stops claiming, lets running jobs end within the deadline and hands back the
rest, and that a second one gives them up at once; that a process ends soon after that whatever its handlers
do; and that the processes end when their supervisor is killed. Risks: a handler in a thread that hangs is cut
off, and its job may have begun elsewhere by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

import uvloop

from pinlater.async_client import AsyncClient
from pinlater.handlers import Handler, load_handler
from pinlater.monitor import TICK_S, Monitor
from pinlater.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.supervisor")

#: A process that dies is started again after this, doubled up to that; one that lived for HEALTHY_S starts
#: anew at the first.
FIRST_RESTART_S: Final = 0.5
LAST_RESTART_S: Final = 30.0
HEALTHY_S: Final = 60.0
#: A process that has not stopped so long after its deadline (or a second signal) is ended: a stop takes up to
#: 10 s longer than its deadline where the servers do not answer.
OVERTIME_S: Final = 12.0
#: A signal that the kernel gave to a thread other than the main one is seen by it when the GIL changes hands, and no
#: earlier (CPython before 3.13). Where a handler spins and no other thread runs, nothing else makes it change hands.
GIL_PERIOD_S: Final = 1.0
_NEVER_S: Final = float("inf")
_PR_SET_PDEATHSIG: Final = 1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_worker(
    handler: str | Handler,
    queues: Sequence[str],
    *,
    shards: Mapping[str, str],
    config: WorkerConfig | None = None,
) -> int:
    """Works in this process, on uvloop, until a signal; returns the exit code."""
    function = load_handler(handler) if isinstance(handler, str) else handler
    config = config or WorkerConfig()

    async def work() -> None:
        async with AsyncClient(shards=shards) as client:
            worker = Worker(client, queues, function, config)
            signals.connect(worker.request_stop)
            log.info("working on %s", ", ".join(queues))
            await worker.run()
            log.info("stopped: %s", worker.stats)

    with StopSignals(config.stop_timeout_s) as signals:
        uvloop.run(work())
    return 0


def run_monitor(queues: Sequence[str] | None, *, shards: Mapping[str, str], tick_s: float = TICK_S) -> int:
    """A monitor in this process until a signal; returns the exit code."""

    async def watch() -> None:
        async with AsyncClient(shards=shards) as client:
            monitor = Monitor(client, queues, tick_s=tick_s)
            signals.connect(monitor.request_stop)
            await monitor.run()

    with StopSignals(0.0) as signals:
        uvloop.run(watch())
    return 0


class StopSignals:
    """Stop signals of a role: each calls request_stop on its loop; where that is to no avail the process ends.

    Not loop.add_signal_handler, which waits for a loop that a handler may keep busy for ever; and not a
    Python thread, which waits for the GIL. The traceback of what was in the way goes to stderr. timeout_s: of
    an ordinary stop.
    """

    def __init__(self, timeout_s: float) -> None:
        self._limits_s = [timeout_s + OVERTIME_S, OVERTIME_S]
        self._signals = 0
        self._request: Callable[[], object] | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._on_signal) for number in _STOP_SIGNALS}
        threading.Thread(target=self._pass_the_gil_on, name="stop-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()

    def connect(self, request_stop: Callable[[], None]) -> None:
        """On the role's loop, before it runs; signals that came already count."""
        self._request = partial(asyncio.get_running_loop().call_soon_threadsafe, request_stop)
        for _ in range(self._signals):
            request_stop()

    def _pass_the_gil_on(self) -> None:
        while not self._ended.wait(GIL_PERIOD_S):
            pass

    def _on_signal(self, number: int, _: Any) -> None:
        self._signals += 1
        if self._limits_s:
            faulthandler.dump_traceback_later(self._limits_s.pop(0), exit=True)
        if self._request is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: all is done
                self._request()


@dataclass(slots=True)
class _Child:
    """One process and when it may be started again (monotonic seconds)."""

    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    restart_s: float = FIRST_RESTART_S
    next_start_s: float = 0.0


class Supervisor:
    """Keeps `processes` copies of a command running until a stop signal.

    command: the argument list. env: variables added to this process's own. kill_after_s: a child that has not
    ended so long after a stop signal is killed. burst: a child that ends well is not started again, and when all
    have, it is over.
    """

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        *,
        env: Mapping[str, str] | None = None,
        kill_after_s: float = 60.0,
        burst: bool = False,
    ) -> None:
        self._command = list(command)
        self._children = [_Child() for _ in range(processes)]
        self._env = {**os.environ, **(env or {})}
        self._kill_after_s = kill_after_s
        self._burst = burst
        self._signals = self._passed = 0
        self._kill_s = float("inf")

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that run."""
        return [child.process.pid for child in self._children if child.process is not None]

    def run(self) -> int:
        """Until SIGTERM or SIGINT; then passes it on and waits. 1 if a child ended badly then, else 0."""
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
        """Only counts; what follows is done by the loop, which the wakeup descriptor wakes."""
        if number != signal.SIGCHLD:
            self._signals += 1

    def _supervise(self, wake: int) -> int:
        worst = 0
        while True:
            now_s = time.monotonic()
            for child in self._children:
                code = self._reap(child, now_s)
                if self._signals and code not in (
                    None,
                    0,
                    -signal.SIGTERM,
                ):  # it may not have been listening yet
                    worst = 1
                if not self._signals and child.process is None and child.next_start_s <= now_s:
                    self._start(child)
            self._pass_signals_on()
            if not self.pids and (self._signals or all(child.next_start_s == _NEVER_S for child in self._children)):
                return worst
            _wait_readable(wake, self._pause_s())

    def _pass_signals_on(self) -> None:
        while self._passed < self._signals:
            self._passed += 1
            self._kill_s = min(
                self._kill_s, time.monotonic() + (self._kill_after_s if self._passed == 1 else 2 * OVERTIME_S)
            )
            self._send(signal.SIGTERM)
        if time.monotonic() >= self._kill_s:
            log.error("worker processes %s did not stop in time and are killed", self.pids)
            self._send(signal.SIGKILL)
            self._kill_s = float("inf")

    def _send(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None:
                child.process.send_signal(number)

    def _pause_s(self) -> float:
        """Until the next child may be started, or must be killed."""
        waits = [child.next_start_s for child in self._children if child.process is None and not self._signals]
        return max(0.0, min([time.monotonic() + LAST_RESTART_S, self._kill_s, *waits]) - time.monotonic())

    def _start(self, child: _Child) -> None:
        # A process group of its own: Ctrl-C in a terminal would reach it twice, from there and from here, and
        # twice is "at once".
        end_with = partial(_end_with_parent, os.getpid())
        child.process = subprocess.Popen(self._command, env=self._env, process_group=0, preexec_fn=end_with)
        child.started_s = time.monotonic()
        log.info("worker process %d started", child.process.pid)

    def _reap(self, child: _Child, now_s: float) -> int | None:
        """The exit code of a child that ended, and when it may be started again."""
        if child.process is None or (code := child.process.poll()) is None:
            return None
        pid, child.process = child.process.pid, None
        if self._burst and code == 0:
            child.next_start_s = _NEVER_S
            return code
        if now_s - child.started_s >= HEALTHY_S:
            child.restart_s = FIRST_RESTART_S
        child.next_start_s = now_s + child.restart_s
        child.restart_s = min(2 * child.restart_s, LAST_RESTART_S)
        if not self._signals:
            log.error(
                "worker process %d %s; starting another in %.1f s",
                pid,
                _how(code),
                child.next_start_s - now_s,
            )
        return code


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _end_with_parent(parent: int) -> None:
    """In a new child: SIGTERM when the supervisor dies, so that a SIGKILL of it leaves nothing running."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


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
    processes: int,
    command: Sequence[str],
) -> int:
    """`processes` worker processes: one runs here, several under a Supervisor. command: starts one of them.

    Returns the exit code.
    """
    load_handler(handler)  # a mistyped name ends here, not in a loop of restarts
    if processes == 1:
        return run_worker(handler, queues, shards=shards, config=config)
    return supervise(command, processes, config)


def supervise(command: Sequence[str], processes: int, config: WorkerConfig, *, burst: bool = False) -> int:
    """Worker processes of this configuration under a Supervisor; returns the exit code."""
    kill_after_s = config.stop_timeout_s + 2 * OVERTIME_S
    return Supervisor(command, processes, kill_after_s=kill_after_s, burst=burst).run()
