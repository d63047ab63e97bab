"""Stop signals of a process that works, and what its own children have of them.

Promises that a process ends soon after its deadline whatever its handlers do, and that what it forks obeys signals as
any process does. Risks: a program that embeds a role and forks before its first one has what it set itself.
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
#: A signal that the kernel gave to a thread other than the main one is seen by it when the GIL changes hands, and no
#: earlier (CPython before 3.13). Where a handler spins and no other thread runs, nothing else makes it change hands.
GIL_PERIOD_S: Final = 1.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_OTHERS: Final = (signal.SIGHUP, signal.SIGUSR1)
#: Those that a process that works has handlers for, which mean nothing in its children.
HANDLED: Final = (*STOP_SIGNALS, *_OTHERS)


def ignore_others() -> None:
    """SIGHUP and SIGUSR1, which mean something while it works, do not end this process before and after that.

    Not by SIG_IGN, which programs that it starts would inherit.
    """
    for number in _OTHERS:
        signal.signal(number, lambda *_: None)


class StopSignals:
    """Stop signals of a role: each calls request_stop on its loop; where that is to no avail the process ends.

    Not loop.add_signal_handler, which waits for a loop that a handler may keep busy for ever; and not a
    Python thread, which waits for the GIL. The traceback of what was in the way goes to stderr. timeout_s: of
    an ordinary stop.
    """

    def __init__(self, timeout_s: float) -> None:
        self._limits_s = [timeout_s + OVERTIME_S, OVERTIME_S]
        self._signals = self._told = 0
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
        """On the role's loop, before it runs; signals that came already count, and each counts once."""

        def tell() -> None:
            while self._told < self._signals:
                self._told += 1
                request_stop()

        self._request = partial(asyncio.get_running_loop().call_soon_threadsafe, tell)
        tell()

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


@functools.cache
def free_children_of_handlers() -> None:
    """From now on, and once a process: what it forks (multiprocessing does) ends by signals as any process does.

    Signals wait while it forks, so that none reaches a child that still has our handlers.
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
