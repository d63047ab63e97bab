"""The supervisor: keeps worker processes running until a stop signal.

Promises:
    A process that dies is replaced.
    A stop lets running jobs end. A second stop signal ends the processes at once.
    If the supervisor is killed, its processes end.
    Orphans that it inherits, as process 1 of a container, leave no zombies.
Risks: a synchronous handler that hangs is cut off at a stop. Its job may already run in another process then.

The supervisor has four helpers, one in each file: `restarter`, `replacer`, `stopper`, `announcer`. They share
`process_slots`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from pinlater.model.errors import InvalidArgument
from pinlater.running.announcer import Announcer
from pinlater.running.process_listener import IgnoreProcesses, ProcessListener
from pinlater.running.process_slots import LAST_RESTART_S, ProcessSlot, ProcessTable
from pinlater.running.replacer import Replacer
from pinlater.running.restarter import Restarter
from pinlater.running.stopper import Stopper
from pinlater.running.worker_process import NEVER_S, RECYCLED, Process, ProcessSet
from pinlater.worker.os_process import reap_orphans
from pinlater.worker.stop_signals import JOB_LINES, STOP_SIGNALS, StopLines

log: Final = logging.getLogger("pinlater.supervisor")

#: Interval at which memory and loops of processes with such a limit are checked.
CHECK_S: Final = 1.0


class Supervisor:
    """Keeps processes running.

    burst: do not replace a process that ended with exit code 0 or reached no server. The supervisor ends after the last
        process.
    reloaded: returns the sets after a reload. If it raises InvalidArgument, nothing changes. By default the sets do not
        change.
    listener: gets the reports and the ends of processes.
    recover: called with each process that may have left running jobs, and its exit code.
    stop_lines: what the log says of a stop.
    ready: the start of the log line that comes when all processes are ready for the first time.
    """

    def __init__(
        self,
        process_sets: Sequence[ProcessSet],
        *,
        burst: bool = False,
        reloaded: Callable[[], Sequence[ProcessSet]] | None = None,
        listener: ProcessListener | None = None,
        recover: Callable[[Process, int], None] | None = None,
        stop_lines: StopLines = JOB_LINES,
        ready: str = "ready",
    ) -> None:
        self._reloaded = reloaded or (lambda: process_sets)
        self._listener: ProcessListener = listener or IgnoreProcesses()
        self._recover = recover
        self._table = ProcessTable(process_sets)
        self._announcer = Announcer(self._table, ready)
        self._stopper = Stopper(self._table, burst=burst, lines=stop_lines)
        self._restarter = Restarter(
            self._stopper,
            self._listener,
            burst=burst,
            on_report=self._on_report,
        )
        self._replacer = Replacer(self._table, self._restarter, self._listener, burst=burst)

    def run(self, beside: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext) -> int:
        """Runs until SIGTERM or SIGINT, passes the signal on, and waits for the processes. Returns `Stopper.exit_code`.

        beside: a context that is entered on the supervisor's loop before the first process starts.
        """
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # an app may have set another default
            return runner.run(self._run(beside))

    def reload(self) -> None:
        """Starts a successor for each process. An old process stops when its successor is ready."""
        if self._stopper.requested:
            return
        try:
            process_sets = self._reloaded()
        except InvalidArgument as error:
            log.error("reload: %s; nothing changes", error)
            return
        log.info("reload: starting successors of all processes")
        self._announcer.reload_begins()
        self._replacer.reload(process_sets)
        self.wake()

    def wake(self) -> None:
        """Checks all processes now."""
        self._wake.set()

    async def _run(self, beside: Callable[[], AbstractAsyncContextManager[object]]) -> int:
        self._wake = asyncio.Event()
        with self._signals():
            async with beside():
                await self._supervise()
        return self._stopper.exit_code

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], object]] = {
            signal.SIGCHLD: self.wake,
            signal.SIGHUP: self.reload,
            signal.SIGUSR1: self._dump,
            **dict.fromkeys(STOP_SIGNALS, self._stop),
        }
        previous = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
                signal.signal(number, previous[number])

    def _stop(self) -> None:
        self._stopper.request()
        self.wake()

    def _dump(self) -> None:
        """Asks each process to log its running jobs."""
        for process in self._table.processes:
            process.send(signal.SIGUSR1)

    async def _supervise(self) -> None:
        while True:
            self._wake.clear()
            self._check()
            if self._is_over():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()

    def _check(self) -> None:
        now_s = time.monotonic()
        for slot in self._table.slots:
            self._check_slot(slot, now_s)
        self._table.leaving = [process for process in self._table.leaving if not self._has_left(process)]
        if not self._stopper.requested:
            self._replacer.stop_surplus()
            self._announcer.look()
        self._stopper.pass_on()
        self._stopper.kill_late()
        reap_orphans({process.pid for process in self._table.processes})

    def _check_slot(self, slot: ProcessSlot, now_s: float) -> None:
        """Checks the processes of a slot for their end, and starts the next process when it is due."""
        successor = slot.successor
        # _exit_code() reads the last report, which may have promoted the successor
        if successor is not None and (code := self._exit_code(successor)) is not None and slot.successor is successor:
            self._replacer.successor_ended(slot, code, stopping=self._stopper.requested)
        if slot.process is not None and (code := self._exit_code(slot.process)) is not None:
            process, slot.process, slot.successor = slot.process, slot.successor, None
            self._stopper.note_end(process, code)
            self._restarter.plan(slot, process, code)
        if slot.process is None and slot.next_start_s <= now_s and not self._stopper.requested:
            slot.process = self._restarter.start(slot)

    def _has_left(self, process: Process) -> bool:
        """Whether a process without a slot has ended."""
        code = self._exit_code(process)
        if code is None:
            return False
        crashed = process.ending == RECYCLED and not process.is_orderly(code)
        self._listener.ended(process, "crash" if crashed else process.ending)
        self._stopper.note_end(process, code)
        return True

    def _exit_code(self, process: Process) -> int | None:
        """The exit code of a process that has ended, or None. Starts to recover the jobs that it may have left."""
        code = process.poll()
        if code is not None and self._recover is not None and not process.is_orderly(code):
            self._recover(process, code)
        return code

    def _is_over(self) -> bool:
        finished = all(slot.next_start_s == NEVER_S for slot in self._table.slots)
        return (self._stopper.requested or finished) and not self._table.processes

    def _pause_s(self) -> float:
        """Time until the next start, kill or check is due."""
        now_s = time.monotonic()
        starts = [slot.next_start_s for slot in self._table.slots if slot.process is None]
        kills = [process.kill_s for process in self._table.processes]
        sets = [process.process_set for process in self._table.processes]
        has_limit = any((each.memory_mb, each.loop_timeout_s) != (None, None) for each in sets)
        longest_s = CHECK_S if has_limit else LAST_RESTART_S
        return max(0.0, min([now_s + longest_s, *kills, *([] if self._stopper.requested else starts)]) - now_s)

    def _on_report(self, process: Process) -> None:
        self._listener.reported(process)
        if self._stopper.requested:
            return
        if not process.ending:
            process.kill_s = NEVER_S
        if self._replacer.on_report(process):
            self.wake()
        self._announcer.look()
