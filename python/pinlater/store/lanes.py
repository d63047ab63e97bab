"""Lanes (request slots): a request whose answer was lost is sent again, and still carried out once.

A lane is a session (8 random bytes of a queue shard of a client in a process) and a slot number. It carries one
numbered request at a time. The scripts keep the last reply of each lane for an hour.

Promises that each number names one request, and that no other request uses a lane whose outcome is unknown.
"""

from __future__ import annotations

import struct
import threading
from typing import Final

from pinlater.model.errors import PinLaterError

MAX_SLOTS: Final = 65_536  # a slot number is a u16 on the wire
_MAX_SEQUENCE: Final = 2**32 - 1
_pack_sequence: Final = struct.Struct(">I").pack


class Lane:
    """One request slot.

    - field: its name in Redis.
    - number: of its current request. sequence: the same as 4 bytes.
    """

    __slots__ = ("field", "number", "sequence")

    def __init__(self, session: bytes, slot: int) -> None:
        self.field = session + struct.pack(">H", slot)
        self.number = 0
        self.sequence = b""


class LanePool:
    """The lanes of one session on one queue shard. Safe for threads: a free lane is taken by one list operation, and a
    new one is made under a lock.

    release: takes a lane whose outcome is known, for the next request.
    """

    def __init__(self, session: bytes) -> None:
        self._session = session
        self._free: list[Lane] = []
        self._slots = 0
        self._lock = threading.Lock()
        self.release = self._free.append

    def take(self) -> Lane:
        """A lane with a new number, for one request."""
        while True:
            try:
                lane = self._free.pop()
            except IndexError:
                lane = self._make()
            if lane.number < _MAX_SEQUENCE:  # drops a lane that has no numbers left
                lane.number += 1
                lane.sequence = _pack_sequence(lane.number)
                return lane

    def _make(self) -> Lane:
        with self._lock:
            slot = self._slots
            self._slots += 1
        if slot >= MAX_SLOTS:
            raise PinLaterError(
                f"expected at most {MAX_SLOTS:,} requests of one client in flight or unknown on one queue shard"
            )
        return Lane(self._session, slot)
