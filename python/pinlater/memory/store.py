"""The keys and values of a memory store, its clock, and what a reply can be.

Promises that a key holds one kind of value, and that an empty one is gone. Risks: none of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pinlater.memory.values import Hash, SortedSet

V = TypeVar("V", Hash, SortedSet, set[bytes], bytes)


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
    """Keys and values of one database. publish: hands a message to a channel and returns how many got it."""

    def __init__(self, clock: Clock, publish: Callable[[bytes, bytes], int]) -> None:
        self.clock = clock
        self.publish = publish
        self.values: dict[bytes, Hash | SortedSet | set[bytes] | bytes] = {}
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

    def drop_empty(self, key: bytes) -> None:
        """A key without elements is no key."""
        if not self.values.get(key, True):
            del self.values[key]
