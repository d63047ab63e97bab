"""Room for the answers that a process makes at once. No I/O.

Promises that the bodies of answers which are being made take a bounded number of bytes, and that calls which wait for
room start in the order in which they came. A single call always has room.
Risks: a call whose jobs are larger than those before takes more than it asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class AnswerRoom:
    """Room for so many bytes of bodies. held_bytes: as many are taken."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()

    def take(self, size: int, start: Callable[[], object]) -> None:
        """Calls `start` when there is room for so many bytes: now, if there is. 0 bytes need none. `give` ends it."""
        if not size or (not self._waiting and self._has_room(size)):
            self.held_bytes += size
            start()
        else:
            self._waiting.append((size, start))

    def give(self, size: int) -> None:
        """A call that took so many bytes ended."""
        self.held_bytes -= size
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, start = self._waiting.popleft()
            self.held_bytes += size
            start()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Waits for room, and gives it back behind the block."""
        has_room = asyncio.Event()
        self.take(size, has_room.set)
        await has_room.wait()
        try:
            yield
        finally:
            self.give(size)

    def _has_room(self, size: int) -> bool:
        return not self.held_bytes or self.held_bytes + size <= self._most_bytes
