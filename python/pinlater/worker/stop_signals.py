"""Stop signals of a process that runs a role (worker or monitor), and of its children.

Promises:
    The process ends soon after its deadline, even if a handler blocks.
    Signals have their default effect in a fork of this process.
Risk: a program can fork before its first role starts. That fork keeps the program's own signal handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, Self

log: Final = logging.getLogger("pinlater.worker")

#: If a process has not stopped this long after its deadline, or after a second signal, faulthandler ends it. If servers
#: do not answer, an ordinary stop takes up to 10 s longer than its deadline.
OVERTIME_S: Final = 12.0
#: The kernel may deliver a signal to any thread. Before CPython 3.13, the main thread sees such a signal only after
#: another thread took the GIL. A handler may spin while no other thread runs, so a thread takes the GIL this often.
GIL_PERIOD_S: Final = 1.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: A process of a supervisor gets it at the supervisor's death: once for each thread that the supervisor had. So it
#: begins a stop, and does not count as a second stop signal.
PARENT_DIED: Final = signal.SIGUSR2
#: They have a meaning while a role works: a reload, a dump. Before and after that a process ignores them.
OTHER_SIGNALS: Final = (signal.SIGHUP, signal.SIGUSR1)
#: Signals that a role handles. Children of the process do not inherit the handlers.
HANDLED: Final = (*STOP_SIGNALS, PARENT_DIED, *OTHER_SIGNALS)


def ignore(numbers: Iterable[signal.Signals]) -> None:
    """Makes the process ignore signals. Programs that it starts do not ignore them: they would inherit SIG_IGN."""
    for number in numbers:
        signal.signal(number, lambda *_: None)


class StopLines(NamedTuple):
    """What the log says at the first stop signal, and at the second one."""

    first: str
    second: str


#: Of a role that runs jobs.
JOB_LINES: Final = StopLines("stopping, press Ctrl-C again to give jobs up", "giving running jobs up")


def log_stop(signals: int, lines: StopLines = JOB_LINES) -> None:
    """Logs what a stop signal does. signals: how many have come."""
    if signals == 1:
        log.info("%s", lines.first)
    elif signals == 2:
        log.warning("%s", lines.second)


class StopSignals:
    """Stop signals of a role: each calls request_stop on its loop.

    If the role does not stop in time, faulthandler writes the tracebacks of all threads to stderr and ends the process.
    loop.add_signal_handler can not do this: a handler may block the loop. A Python thread can not do it either: a
    handler may hold the GIL.
    timeout_s: the time limit of an ordinary stop.
    """

    def __init__(self, timeout_s: float) -> None:
        self._limits_s = [timeout_s + OVERTIME_S, OVERTIME_S]
        self._signals = self._reported = 0
        self._request: Callable[[], object] | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        free_children_of_handlers()
        self._previous = {number: signal.signal(number, self._on_signal) for number in (*STOP_SIGNALS, PARENT_DIED)}
        threading.Thread(target=self._pass_the_gil_on, name="stop-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()

    def connect(self, request_stop: Callable[[], None]) -> None:
        """Calls request_stop for each stop signal, and for each one that came before. Call this on the role's loop."""

        def report() -> None:
            while self._reported < self._signals:
                self._reported += 1
                request_stop()

        self._request = partial(asyncio.get_running_loop().call_soon_threadsafe, report)
        report()

    def _pass_the_gil_on(self) -> None:
        while not self._ended.wait(GIL_PERIOD_S):
            pass

    def _on_signal(self, number: int, _: Any) -> None:
        if number == PARENT_DIED and self._signals:
            return
        self._signals += 1
        if self._limits_s:
            faulthandler.dump_traceback_later(self._limits_s.pop(0), exit=True)
        if self._request is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._request()


@functools.cache
def free_children_of_handlers() -> None:
    """Restores the default handlers in each fork of this process. multiprocessing makes such forks.

    Signals are blocked during a fork, so that no signal reaches a child that still has our handlers.
    """
    masks = threading.local()

    def before() -> None:
        masks.previous = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.previous)

    def after_in_child() -> None:
        for number in HANDLED:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after_in_child)
