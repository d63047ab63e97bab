"""Pauses between tries: each is twice as long as the one before, up to a limit.

Promises nothing but the numbers: the caller sleeps. Risks: none.
"""

from __future__ import annotations

from typing import Final

#: What a worker asks a server again for: soon at first, then often enough to notice that it is back.
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 2.0


class Pauses:
    """The pauses of one loop that tries again. at_once: the first try follows without one."""

    __slots__ = ("_first_s", "_last_s", "next_s")

    def __init__(self, first_s: float = FIRST_RETRY_S, last_s: float = LAST_RETRY_S, *, at_once: bool = False) -> None:
        self._first_s, self._last_s = first_s, last_s
        #: The pause that take() gives next.
        self.next_s = 0.0 if at_once else first_s

    @property
    def is_first(self) -> bool:
        """No pause was taken yet, or none since reset()."""
        return self.next_s == self._first_s

    def take(self) -> float:
        """The pause before the next try; the one after it is longer."""
        pause_s = self.next_s
        self.next_s = min(max(2 * pause_s, self._first_s), self._last_s)
        return pause_s

    def reset(self) -> None:
        """It worked: the next pause is the first again."""
        self.next_s = self._first_s
