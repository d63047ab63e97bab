"""Worker processes: one in this process, or several under a supervisor that starts them again when they die.

Promises that SIGTERM (or SIGINT) stops claiming, lets running jobs end within the deadline and hands back the rest, and
that a second one gives them up at once; that a process ends soon after that whatever its handlers do; that the
processes end when their supervisor is killed; and that a reload leaves no gap. Risks: a handler in a thread that hangs
is cut off, and its job may have begun elsewhere by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import uvloop

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument
from pinlater.running.recoverer import Recoverer
from pinlater.running.worker_process import (
    FIRST_RESTART_S,
    LAST_RESTART_S,
    NEVER_S,
    NO_SERVER,
    RECYCLE,
    RECYCLED,
    Process,
    ProcessSet,
    ProcessSlot,
    rearrange,
)
from pinlater.worker.executor import Handler
from pinlater.worker.load_object import load_handler
from pinlater.worker.monitor import TICK_S, Monitor
from pinlater.worker.os_process import exit_in_words
from pinlater.worker.stats import counts_of, in_words
from pinlater.worker.stop_signals import OVERTIME_S, STOP_SIGNALS, StopSignals
from pinlater.worker.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.supervisor")

#: After a process that lived for so long the pause before the next start is the first again.
HEALTHY_S: Final = 60.0
#: How often the memory of processes with a cap is looked at.
LOOK_S: Final = 1.0
#: A process that has not reported so long after its start hangs, in its imports or at their start, and is killed; each
#: further one of its place has as many times longer as the pause before it was.
START_S: Final = 60.0


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
            counts = counts_of(worker.stats)
            log.info("stopped: %s", in_words(counts), extra=counts)

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


class ProcessListener(Protocol):
    """Is told what becomes of a supervisor's processes."""

    def reported(self, process: Process) -> None:
        """There is a new report of it."""

    def ended(self, process: Process, why: str) -> None:
        """It ended; why: crash, recycled, memory, reload, or "" of one that is not started again."""


class _Nobody:
    def reported(self, process: Process) -> None: ...
    def ended(self, process: Process, why: str) -> None: ...


class Supervisor:
    """Keeps processes running until a stop signal.

    env: variables added to this process's own. burst: one that ends well, or reaches no server, is not started again,
    and when all have, it is over. reloaded: the processes report; SIGHUP and reload() replace each by a fresh one of
    the sets that this gives, when that is ready; InvalidArgument of it: all goes on. observer: is told of them.
    deaths: called with each process that may have left jobs behind, and its exit code.
    """

    def __init__(
        self,
        sets: Sequence[ProcessSet],
        *,
        env: Mapping[str, str] | None = None,
        burst: bool = False,
        reloaded: Callable[[], Sequence[ProcessSet]] | None = None,
        listener: ProcessListener | None = None,
        recoverer: Callable[[Process, int], None] | None = None,
    ) -> None:
        self._slots, _ = rearrange([], sets)
        #: Those that end, and those that no place is left for, which end when no fresh process is waited for.
        self._leaving: list[Process] = []
        self._env = {**os.environ, **(env or {})}
        self._burst, self._reloaded = burst, reloaded
        self._listener: ProcessListener = listener or _Nobody()
        self._recoverer = recoverer
        self._signals = self._passed = self._worst = 0

    @property
    def processes(self) -> list[Process]:
        """Those that run; fresh ones and those that are about to end included."""
        running = [process for slot in self._slots for process in (slot.process, slot.fresh) if process is not None]
        return running + self._leaving

    def run(self, beside: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext) -> int:
        """Until SIGTERM or SIGINT; then passes it on and waits. 1 if a process ended badly then, NO_SERVER if one of a
        burst reached no server, else 0.

        beside: entered on the supervisor's loop before the first process is started.
        """
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # an app may have set another as default
            return runner.run(self._run(beside))

    def reload(self) -> None:
        """Starts a fresh process for each place; each that runs is stopped when its own is ready."""
        assert self._reloaded is not None
        if self._signals:
            return
        try:
            sets = self._reloaded()
        except InvalidArgument as error:
            log.error("reload: %s; all goes on as it is", error)
            return
        log.info("reload: starting fresh processes")
        for slot in self._slots:
            if slot.fresh is not None:
                self._leave(slot.fresh, "reload")
                slot.fresh = None
        self._slots, left = rearrange(self._slots, sets)
        self._leaving += [slot.process for slot in left if slot.process is not None]
        for slot in self._slots:
            if slot.process is not None:
                slot.fresh = self._start(slot)
            elif slot.next_start_s != NEVER_S:
                slot.next_start_s = 0.0
        self._wake.set()

    async def _run(self, beside: Callable[[], AbstractAsyncContextManager[object]]) -> int:
        loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        handlers: dict[signal.Signals, Callable[[], object]] = {signal.SIGCHLD: self._wake.set}
        handlers |= dict.fromkeys(STOP_SIGNALS, self._on_stop)
        if self._reloaded is not None:
            handlers |= {signal.SIGHUP: self.reload, signal.SIGUSR1: lambda: self._send(signal.SIGUSR1)}
        previous = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            async with beside():
                await self._supervise()
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
                signal.signal(number, previous[number])
        return self._worst

    def _on_stop(self) -> None:
        self._signals += 1
        self._wake.set()

    async def _supervise(self) -> None:
        while True:
            self._wake.clear()
            now_s = time.monotonic()
            for slot in self._slots:
                self._look_at(slot, now_s)
            self._leaving = [process for process in self._leaving if not self._has_left(process)]
            self._stop_left_over()
            self._pass_signals_on()
            self._kill_late()
            if self._over():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()

    def _over(self) -> bool:
        stopped = self._signals or all(slot.next_start_s == NEVER_S for slot in self._slots)
        return bool(stopped) and not self.processes

    def _stop_left_over(self) -> None:
        if not self._signals and all(slot.fresh is None for slot in self._slots):
            for process in self._leaving:
                if not process.ending:
                    process.stop("reload", process.of.kill_after_s)

    def _pass_signals_on(self) -> None:
        while self._passed < self._signals:
            self._passed += 1
            for process in self.processes:
                if self._passed > 1:
                    process.stop("", 2 * OVERTIME_S)
                elif process.ending in ("", RECYCLED):  # else it had one already, and twice is "at once"
                    process.stop("", process.of.kill_after_s)

    def _kill_late(self) -> None:
        for process in self.processes:
            if time.monotonic() >= process.kill_s:
                due = "stop" if self._signals or process.ending else "start"
                log.error("worker process %d did not %s in time and is killed", process.pid, due)
                process.kill_s = NEVER_S
                process.send(signal.SIGKILL)
            else:
                process.check_memory()

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes:
            process.send(number)

    def _pause_s(self) -> float:
        """Until the next process may be started, or must be killed or looked at."""
        now_s = time.monotonic()
        waits = [slot.next_start_s for slot in self._slots if slot.process is None and not self._signals]
        waits += [process.kill_s for process in self.processes]
        looks = any(process.of.memory_mb is not None for process in self.processes)
        return max(0.0, min([now_s + (LOOK_S if looks else LAST_RESTART_S), *waits]) - now_s)

    def _start(self, slot: ProcessSlot) -> Process | None:
        """None if that can not be done now."""
        try:
            process = Process(slot.of, self._env, None if self._reloaded is None else self._on_report)
        except (OSError, subprocess.SubprocessError) as error:
            log.error("%s: it can not be started: %s", slot.of.name, error)
            self._put_off(slot, time.monotonic())
            return None
        if self._reloaded is not None:
            process.kill_s = process.started_s + START_S * slot.restarts.next_s / FIRST_RESTART_S
        return process

    def _on_report(self, process: Process) -> None:
        self._listener.reported(process)
        if self._signals:
            return
        if not process.ending:
            process.kill_s = NEVER_S
        for slot in self._slots:
            if slot.fresh is process and (process.ready or process.report.get("recycling")):
                old, slot.process, slot.fresh = slot.process, process, None
                if old is not None:
                    self._leave(old, "reload")
                self._wake.set()
            recycling = process.report.get("recycling") and not process.ending
            if slot.process is process and recycling and not process.has_ended:  # else it is replaced as one that has
                self._recycle(slot, process)

    def _recycle(self, slot: ProcessSlot, process: Process) -> None:
        """It claims no more, and ends by itself when its jobs have ended. Another does not wait for that, unless as
        many of its set end already as it has processes.
        """
        log.info("%s %d is recycled: its jobs end", slot.of.name, process.pid)
        now_s = time.monotonic()
        process.ending, process.kill_s = RECYCLED, now_s + process.of.kill_after_s
        ending = sum(each.ending == RECYCLED and each.of is slot.of for each in self._leaving)
        if slot.fresh is None and not self._burst and ending < slot.of.processes:
            self._leave(process, RECYCLED)
            slot.process, slot.next_start_s = None, now_s
        self._wake.set()

    def _leave(self, process: Process, why: str) -> None:
        if process.ending != RECYCLED:
            process.stop(why, process.of.kill_after_s)
        self._leaving.append(process)

    def _has_left(self, process: Process) -> bool:
        """Whether a process that was replaced has ended."""
        code = self._poll(process)
        if code is None:
            return False
        crashed = process.ending == RECYCLED and not self._is_orderly(process, code)
        self._listener.ended(process, "crash" if crashed else process.ending)
        self._note(process, code)
        return True

    def _poll(self, process: Process) -> int | None:
        """Its exit code, when it has ended."""
        code = process.poll()
        if code is not None and self._recoverer is not None and not self._is_orderly(process, code):
            self._recoverer(process, code)
        return code

    def _is_orderly(self, process: Process, code: int) -> bool:
        """Whether it ended as it was to; a handler can end its process with any code, so one that reports says so."""
        if self._reloaded is not None:
            return process.report.get("code") == code
        return code == 0 and bool(self._signals or self._burst or process.ending)

    def _look_at(self, slot: ProcessSlot, now_s: float) -> None:
        """Takes note of processes that ended, and starts another when it is time."""
        fresh = slot.fresh
        if fresh is not None and (code := self._poll(fresh)) is not None and slot.fresh is fresh:
            slot.fresh = None
            self._listener.ended(fresh, "crash")
            if not self._signals:
                told = "; the old one goes on" if slot.process is not None else ""
                log.error("reload: process %d %s before it was ready%s", fresh.pid, exit_in_words(code), told)
        if slot.process is not None and (code := self._poll(slot.process)) is not None:
            process, slot.process, slot.fresh = slot.process, slot.fresh, None
            self._ended(slot, process, code, now_s)
        if slot.process is None and slot.next_start_s <= now_s and not self._signals:
            slot.process = self._start(slot)

    def _ended(self, slot: ProcessSlot, process: Process, code: int, now_s: float) -> None:
        """When another may be started: at once if it asked for that, else later each time."""
        self._note(process, code)
        orderly = self._is_orderly(process, code)
        if self._signals or (self._burst and code in (0, NO_SERVER) and orderly):
            slot.next_start_s = NEVER_S
            self._listener.ended(process, "")
            return
        if code == RECYCLE and orderly:
            why, level, slot.next_start_s = RECYCLED, logging.INFO, now_s
        else:
            why, level = "crash" if process.ending in ("", RECYCLED) else process.ending, logging.ERROR
            if now_s - process.started_s >= HEALTHY_S and (process.report or self._reloaded is None):
                slot.restarts.reset()
            self._put_off(slot, now_s)
        self._listener.ended(process, why)
        told = f"starting another in {slot.next_start_s - now_s:.1f} s"
        if slot.process is not None:
            told = f"{slot.process.pid} takes its place"
        log.log(level, "%s %d %s; %s", process.of.name, process.pid, exit_in_words(code), told)

    def _put_off(self, slot: ProcessSlot, now_s: float) -> None:
        """The next start there: later each time."""
        slot.next_start_s = now_s + slot.restarts.take()

    def _note(self, process: Process, code: int) -> None:
        """SIGTERM: it may not have been listening yet."""
        orderly = self._is_orderly(process, code)
        if self._burst and code == NO_SERVER and orderly:
            self._worst = code
        elif self._signals and code != -signal.SIGTERM and not orderly:
            self._worst = 1


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
    recoverer = Recoverer(lambda: AsyncClient(shards=shards), queues)
    sets = [ProcessSet(command=command, processes=processes, kill_after_s=kill_after_s(config))]
    return Supervisor(sets, recoverer=recoverer).run(recoverer.open)


def kill_after_s(config: WorkerConfig) -> float:
    """A worker of this configuration that has not ended so long after a stop signal hangs."""
    return config.stop_timeout_s + 2 * OVERTIME_S
