"""Pauses between tries: each is twice as long as the one before, up to a limit. The caller sleeps."""

from __future__ import annotations

from typing import Final

#: Pauses of a worker whose server does not answer: short at first, then often enough to notice that it is back.
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 2.0


class Pauses:
    """The pauses of one retry loop.

    - first_s, last_s: the first pause and the longest one.
    - at_once: the first retry follows without a pause.
    - next_s: the pause that take() returns next.
    """

    __slots__ = ("_first_s", "_last_s", "next_s")

    def __init__(self, first_s: float = FIRST_RETRY_S, last_s: float = LAST_RETRY_S, *, at_once: bool = False) -> None:
        self._first_s, self._last_s = first_s, last_s
        self.next_s = 0.0 if at_once else first_s

    @property
    def is_first(self) -> bool:
        """Whether no pause was taken since the start or reset()."""
        return self.next_s == self._first_s

    def take(self) -> float:
        """Returns the pause before the next try, and lengthens the one after it."""
        pause_s = self.next_s
        self.next_s = min(max(2 * pause_s, self._first_s), self._last_s)
        return pause_s

    def reset(self) -> None:
        """Call after a success: the next pause is the first one again."""
        self.next_s = self._first_s
