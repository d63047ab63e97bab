"""The keys and values of a memory store, its clock, and what a reply can be.

Promises that a key holds one kind of value, and that an empty one is gone. Risks: none of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pinlater.memory.values import Hash, SortedSet

V = TypeVar("V", Hash, SortedSet, set[bytes], list[bytes], bytes)


class CommandError(Exception):
    """An error reply: its text, code first."""


class Status(bytes):
    """A simple string reply, as +OK."""


OK: Final = Status(b"OK")
_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
SYNTAX: Final = "ERR syntax error"

Arguments = Sequence[bytes]


class Clock:
    """The wall clock of a store: the machine's, and what a test moved it by."""

    def __init__(self) -> None:
        self._moved_us = 0

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000 + self._moved_us

    def move(self, seconds: float) -> None:
        """Later; earlier if negative."""
        self._moved_us += round(seconds * 1_000_000)


class Store:
    """Keys and values of one database. publish: hands a message to a channel and returns how many got it; listeners:
    how many would.
    """

    def __init__(self, clock: Clock, publish: Callable[[bytes, bytes], int], listeners: Callable[[bytes], int]) -> None:
        self.clock = clock
        self.publish, self.listeners = publish, listeners
        self.values: dict[bytes, Hash | SortedSet | set[bytes] | list[bytes] | bytes] = {}
        #: Key -> when it goes (μs), if it is there by then.
        self.expiries: dict[bytes, int] = {}
        self.calls: Counter[str] = Counter()

    def get(self, key: bytes, kind: type[V]) -> V | None:
        """The value of a key, if it is there. Raises CommandError for one of another kind."""
        found = self.values.get(key)
        if found is not None and not isinstance(found, kind):
            raise CommandError(_WRONG_TYPE)
        return found

    def make(self, key: bytes, kind: type[V]) -> V:
        """The value of a key, made if it is not there."""
        found = self.get(key, kind)
        if found is None:
            found = kind()
            self.values[key] = found
        return found

    def clear(self) -> None:
        """Drops everything."""
        self.values.clear()
        self.expiries.clear()

    def expire(self) -> None:
        """Drops the keys whose time is over."""
        now_us = self.clock.now_us()
        for key in [key for key, end_us in self.expiries.items() if end_us <= now_us]:
            del self.expiries[key]
            self.values.pop(key, None)

    def drop_empty(self, key: bytes) -> None:
        """A key without elements is no key."""
        if not self.values.get(key, True):
            del self.values[key]
            self.expiries.pop(key, None)
