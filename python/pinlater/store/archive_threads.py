"""Threads in which an event loop runs transactions of the archive.

Promises that they never keep a process from ending, though a MySQL that is silent holds a transaction for half a
minute. Risk: the end of the process cuts a transaction off, as SIGKILL does.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeAlias

_Call: TypeAlias = tuple[Future[Any], Callable[[], Any]]

#: So many transactions of a loop run at a time.
MAX_THREADS: Final = 4


class ArchiveThreads:
    """Up to MAX_THREADS threads, which start when they are needed."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0

    def start(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Runs `work` in a thread. Once started it goes on to its end, also if the future is cancelled."""
        future: Future[Any] = Future()
        self._calls.put((future, work))
        if not self._idle.acquire(blocking=False) and self._threads < MAX_THREADS:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"pinlater-archive-{self._threads}", daemon=True).start()
        return asyncio.wrap_future(future)

    def close(self) -> None:
        """Lets the threads end behind what they run."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _serve(self) -> None:
        while _run(self._calls.get()):
            self._idle.release()


def _run(call: _Call | None) -> bool:
    """Runs a call and forgets it, as its jobs take memory. False: there is none any more."""
    if call is None:
        return False
    future, work = call
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
    return True
