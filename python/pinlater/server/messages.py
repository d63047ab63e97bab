"""Messages of Thrift's binary protocol: their heads, and the errors that belong to no method. No I/O.

Promises that every message whose head can be read gets an answer with its sequence id.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from pinlater.server.frames import LENGTH_BYTES, framed

_STRICT: Final = struct.Struct(">HBBi")
_INT: Final = struct.Struct(">i")
_OLD_TAIL: Final = struct.Struct(">Bi")
_VERSION: Final = 0x8001
#: No method has a longer name.
MAX_NAME_BYTES: Final = 255
_STRING, _I32, _STOP = 11, 8, 0


class MessageType(IntEnum):
    """The type of a message."""

    CALL = 1
    REPLY = 2
    EXCEPTION = 3
    ONEWAY = 4


class Failure(IntEnum):
    """The types of a TApplicationException that this server sends."""

    UNKNOWN_METHOD = 1
    INTERNAL_ERROR = 6
    PROTOCOL_ERROR = 7


class BadMessage(Exception):
    """The head cannot be read, so the server cannot answer."""


class Head(NamedTuple):
    """The head of a call. end: where the arguments begin."""

    method: str
    sequence: int
    end: int


def read_head(frame: bytes) -> Head:
    """The head of the call in a frame. Raises BadMessage.

    Calls with an old head, which has no version, and calls of the type "oneway" are answered like other calls.
    """
    head, kind = _read_head(frame, "a call")
    if kind not in (MessageType.CALL, MessageType.ONEWAY):
        raise BadMessage(f"expected a call, got a message of type {kind}")
    return head


def read_answer_head(frame: bytes) -> tuple[Head, MessageType]:
    """The head of the answer in a frame, and its type: REPLY or EXCEPTION. Raises BadMessage."""
    head, kind = _read_head(frame, "an answer")
    if kind not in (MessageType.REPLY, MessageType.EXCEPTION):
        raise BadMessage(f"expected an answer, got a message of type {kind}")
    return head, MessageType(kind)


def _read_head(frame: bytes, expected: str) -> tuple[Head, int]:
    """The head of a message, and its type."""
    try:
        version, _, kind, length = _STRICT.unpack_from(frame, LENGTH_BYTES)
        if version == _VERSION:
            end = LENGTH_BYTES + _STRICT.size + length
            name = frame[end - length : end]
            (sequence,) = _INT.unpack_from(frame, end)
            end += _INT.size
        else:
            (length,) = _INT.unpack_from(frame, LENGTH_BYTES)
            end = LENGTH_BYTES + _INT.size + length
            name = frame[end - length : end]
            kind, sequence = _OLD_TAIL.unpack_from(frame, end)
            end += _OLD_TAIL.size
    except struct.error:
        raise BadMessage(f"expected the head of {expected}, got a frame of {len(frame)} bytes") from None
    if not 0 <= length <= MAX_NAME_BYTES:
        raise BadMessage(f"expected the name of a method, up to {MAX_NAME_BYTES} bytes, got a length of {length}")
    return Head(name.decode("utf-8", "replace"), sequence, end), kind


def write_head(method: str, kind: MessageType, sequence: int) -> bytes:
    """The head of an answer."""
    name = method.encode()
    return _STRICT.pack(_VERSION, 0, kind, len(name)) + name + _INT.pack(sequence)


def application_exception(head: Head, failure: Failure, text: str) -> bytes:
    """The frame of the answer to a call that no method carried out: a TApplicationException."""
    message = text.encode("utf-8", "replace")
    return framed(
        b"".join(
            (
                write_head(head.method, MessageType.EXCEPTION, head.sequence),
                struct.pack(">BHi", _STRING, 1, len(message)),
                message,
                struct.pack(">BHi", _I32, 2, failure),
                bytes([_STOP]),
            )
        )
    )
