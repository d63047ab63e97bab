"""How many calls a process may have at once: their number, and the bytes of their frames. No I/O.

Promises that a call which finds no room takes none, and that whoever was refused hears when there is room again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: After a refusal, the waiting connections go on when one part in so many is free, so that they wake in groups.
FREE_AGAIN: Final = 8


class Capacity:
    """The calls of a process, with room for so many.

    - most, most_bytes: calls at once, and bytes of their frames.
    - under_way, held_bytes: as many are there now.
    - on_room: called once there is room again, if a call was refused before.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self._most_bytes = most, most_bytes
        self.under_way = self.held_bytes = 0
        self.on_room: Callable[[], None] = lambda: None
        self._was_short = False

    def take(self, size: int) -> bool:
        """Whether there was room for a call. size: bytes of its frame."""
        under_way, held_bytes = self.under_way, self.held_bytes + size
        if under_way >= self.most or (held_bytes > self._most_bytes and under_way):
            self._was_short = True
            return False
        self.under_way, self.held_bytes = under_way + 1, held_bytes
        return True

    def give(self, size: int) -> None:
        """A call ended."""
        self.under_way -= 1
        self.held_bytes -= size
        if self._was_short and _is_free(self.under_way, self.most) and _is_free(self.held_bytes, self._most_bytes):
            self._was_short = False
            self.on_room()


def _is_free(used: int, most: int) -> bool:
    return used < max(1, most - most // FREE_AGAIN)
