"""Stop signals of a process that works, and of its children.

Promises that the process ends soon after its deadline, whatever its handlers do, and that its forks obey signals as any
process does.
Risk: a program that embeds a role and forks before its first one keeps its own signal handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Self

#: A process that has not stopped so long after its deadline (or a second signal) is ended: a stop takes up to
#: 10 s longer than its deadline where the servers do not answer.
OVERTIME_S: Final = 12.0
#: The main thread sees a signal that the kernel gave to another thread only when the GIL changes hands (CPython before
#: 3.13). Where a handler spins and no other thread runs, nothing else makes it change hands.
GIL_PERIOD_S: Final = 1.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_OTHERS: Final = (signal.SIGHUP, signal.SIGUSR1)
#: Signals that a process handles while it works; they mean nothing in its children.
HANDLED: Final = (*STOP_SIGNALS, *_OTHERS)


def ignore_others() -> None:
    """SIGHUP and SIGUSR1, which have a meaning while the process works, do not end it before and after that.

    Not by SIG_IGN, which programs that it starts would inherit.
    """
    for number in _OTHERS:
        signal.signal(number, lambda *_: None)


class StopSignals:
    """Stop signals of a role: each calls request_stop on its loop.

    If the role does not stop, the process ends, with the traceback of what was in the way on stderr. That is neither up
    to loop.add_signal_handler, which waits for a loop that a handler may keep busy, nor to a Python thread, which waits
    for the GIL.
    timeout_s: of an ordinary stop.
    """

    def __init__(self, timeout_s: float) -> None:
        self._limits_s = [timeout_s + OVERTIME_S, OVERTIME_S]
        self._signals = self._reported = 0
        self._request: Callable[[], object] | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        free_children_of_handlers()
        self._previous = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        threading.Thread(target=self._pass_the_gil_on, name="stop-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()

    def connect(self, request_stop: Callable[[], None]) -> None:
        """Call it on the role's loop before the role runs. Signals that came before count, each once."""

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
        self._signals += 1
        if self._limits_s:
            faulthandler.dump_traceback_later(self._limits_s.pop(0), exit=True)
        if self._request is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._request()


@functools.cache
def free_children_of_handlers() -> None:
    """Lets forks of this process (multiprocessing makes some) end by signals as any process does.

    Signals are blocked during a fork, so that none reaches a child that still has our handlers.
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
