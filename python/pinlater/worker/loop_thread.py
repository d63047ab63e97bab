"""A coroutine on a thread and an event loop of its own.

Promises that handlers that keep the worker's loop busy do not delay it.
Risk: a handler that holds the GIL holds this thread too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any


class LoopThread:
    """Runs a coroutine between start() and stop().

    name: of the thread.
    stop_s: the most that stop() waits. The thread is a daemon.
    """

    def __init__(self, name: str, stop_s: float) -> None:
        self._name, self._stop_s = name, stop_s
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """Whether start() was called, and not stop()."""
        return self._thread is not None

    async def start(self, run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        """Runs the coroutine in the background. It gets an event of its loop that stop() sets."""
        # Not uvloop: after a delay it runs timers first, so a request whose answer is there would time out.
        self._loop, self._stopping = asyncio.SelectorEventLoop(), asyncio.Event()
        self._caller, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(run,), name=self._name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Sets the event and waits for the end; unstarted or twice is fine."""
        if self._thread is None:
            return
        self._thread = None
        self._loop.call_soon_threadsafe(self._stopping.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stop_s):
                await self._ended.wait()

    def _run(self, run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
        """What the thread does."""
        caller, ended = self._caller, self._ended
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(run(self._stopping))
        finally:
            with suppress(RuntimeError):  # the caller's loop is closed
                caller.call_soon_threadsafe(ended.set)
