"""The keys and values of a memory store, its clock, and its kinds of replies.

Promises that a key holds one kind of value, and that a key without elements does not exist.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pinlater.memory.values import Hash, SortedSet

V = TypeVar("V", Hash, SortedSet, set[bytes], list[bytes], bytes)


class CommandError(Exception):
    """An error reply. Its text begins with the code."""


class Status(bytes):
    """A simple string reply, such as +OK."""


OK: Final = Status(b"OK")
_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
SYNTAX: Final = "ERR syntax error"

Arguments = Sequence[bytes]


class Clock:
    """The wall clock of a store: the machine's clock, plus the seconds that a test added."""

    def __init__(self) -> None:
        self._moved_us = 0

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000 + self._moved_us

    def move(self, seconds: float) -> None:
        """Moves the clock on; back if negative."""
        self._moved_us += round(seconds * 1_000_000)


class Store:
    """Keys and values of one database.

    - publish: sends a message to a channel, and returns the number of its subscribers.
    - listeners: the number of subscribers of a channel.
    - expiries: key -> when it expires (microseconds since 1970).
    - calls: command -> number of calls.
    """

    def __init__(self, clock: Clock, publish: Callable[[bytes, bytes], int], listeners: Callable[[bytes], int]) -> None:
        self.clock = clock
        self.publish, self.listeners = publish, listeners
        self.values: dict[bytes, Hash | SortedSet | set[bytes] | list[bytes] | bytes] = {}
        self.expiries: dict[bytes, int] = {}
        self.calls: Counter[str] = Counter()

    def get(self, key: bytes, kind: type[V]) -> V | None:
        """The value of a key, or None. Raises CommandError for a value of another kind."""
        found = self.values.get(key)
        if found is not None and not isinstance(found, kind):
            raise CommandError(_WRONG_TYPE)
        return found

    def make(self, key: bytes, kind: type[V]) -> V:
        """The value of a key. Makes an empty one if the key does not exist."""
        found = self.get(key, kind)
        if found is None:
            found = kind()
            self.values[key] = found
        return found

    def clear(self) -> None:
        """Removes all keys."""
        self.values.clear()
        self.expiries.clear()

    def expire(self) -> None:
        """Removes the keys that have expired."""
        now_us = self.clock.now_us()
        for key in [key for key, end_us in self.expiries.items() if end_us <= now_us]:
            del self.expiries[key]
            self.values.pop(key, None)

    def drop_empty(self, key: bytes) -> None:
        """Removes a key whose value has no elements."""
        if not self.values.get(key, True):
            del self.values[key]
            self.expiries.pop(key, None)
