"""Lanes: how a request whose answer was lost is sent again without being carried out twice.

A lane is a session (8 random bytes of a client in a process) and a slot; it carries one request at a time, numbered.
The scripts keep the last reply of each lane for an hour. Promises that a number is used for one request only, and that
a lane whose outcome is unknown is not used again.
"""

from __future__ import annotations

import struct
from typing import Final

from pinlater.model.errors import PinLaterError

MAX_SLOTS: Final = 65_536  # a slot is a u16 on the wire
_MAX_SEQUENCE: Final = 2**32 - 1
_pack_sequence: Final = struct.Struct(">I").pack


class Lane:
    """One slot: `field` names it in Redis, `sequence` is its present request (4 bytes), the `number`-th."""

    __slots__ = ("field", "number", "sequence")

    def __init__(self, session: bytes, slot: int) -> None:
        self.field = session + struct.pack(">H", slot)
        self.number = 0
        self.sequence = b""


class LanePool:
    """The lanes of one session on one queue and shard. Safe for threads: each method is one list operation."""

    def __init__(self, session: bytes) -> None:
        self._session = session
        self._free: list[Lane] = []
        self._made = 0
        #: The request's outcome is known: the lane may carry another.
        self.give_back = self._free.append

    def take(self) -> Lane:
        """A lane with a fresh sequence, for one request."""
        while True:
            try:
                lane = self._free.pop()
            except IndexError:
                lane = self._make()
            if lane.number < _MAX_SEQUENCE:  # else its numbers are used up
                lane.number += 1
                lane.sequence = _pack_sequence(lane.number)
                return lane

    def _make(self) -> Lane:
        slot = self._made
        self._made += 1
        if slot >= MAX_SLOTS:
            raise PinLaterError(
                f"more than {MAX_SLOTS:,} requests of one client are in flight or unknown on one queue and shard"
            )
        return Lane(self._session, slot)
