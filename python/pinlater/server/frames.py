"""Frames of the wire: a length of 4 bytes, then so many bytes. No I/O of its own.

Promises that a frame which is longer than allowed is refused by its length, before its bytes are kept.
"""

from __future__ import annotations

from typing import Final

#: A frame begins with its length, which does not count itself.
LENGTH_BYTES: Final = 4


class BadFrame(Exception):
    """What came is no frame. The connection cannot go on: nobody knows where the next frame begins."""


class FrameReader:
    """Cuts what a connection receives into frames.

    - limit: bytes of a frame at most, without its length.
    - kept_bytes: bytes that came and are no complete frame yet, or were not asked for.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._received = bytearray()
        self.kept_bytes = 0

    def add(self, data: bytes) -> None:
        """Keeps bytes that came."""
        self._received += data
        self.kept_bytes = len(self._received)

    def clear(self) -> None:
        """Forgets what came."""
        self._received = bytearray()
        self.kept_bytes = 0

    def next(self) -> bytes | None:
        """The next frame, with its length. None: it is not complete. Raises BadFrame."""
        received = self._received
        if len(received) < LENGTH_BYTES:
            return None
        length = int.from_bytes(received[:LENGTH_BYTES], "big", signed=True)
        if not 0 < length <= self.limit:
            raise BadFrame(f"expected a frame of 1 to {self.limit:,} bytes, got a length of {length:,}")
        end = LENGTH_BYTES + length
        if len(received) < end:
            return None
        frame = bytes(memoryview(received)[:end])
        del received[:end]
        self.kept_bytes = len(received)
        return frame


def framed(message: bytes) -> bytes:
    """A message as a frame."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message
