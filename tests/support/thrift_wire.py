"""Thrift messages for tests: by thriftpy2 from the IDL, or field by field, good and malformed.

Promises: nothing here is code of the product. `encode` writes what it gets, so that tests can send wrong values.
Risks: thriftpy2 reads text that is no UTF-8 as bytes.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple, TypeAlias

import thriftpy2
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.transport import TMemoryBuffer

from tests.support.paths import ROOT

IDL: Final = thriftpy2.load(
    str(ROOT / "python" / "pinlater" / "server" / "pinlater.thrift"), module_name="tests_pinlater_thrift"
)
STOP, BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 0, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
PACKED: Final = {BOOL: ">B", BYTE: ">b", DOUBLE: ">d", I16: ">h", I32: ">i", I64: ">q"}
CONTEXT: Final = IDL.RequestContext(source="web:1")


class Elements(NamedTuple):
    """A list or a set."""

    kind: int
    values: list[Any]


class Pairs(NamedTuple):
    """A map."""

    key: int
    value: int
    pairs: list[tuple[Any, Any]]


#: Type, id and value of each field.
Fields: TypeAlias = list[tuple[int, int, Any]]


def encode(kind: int, value: Any) -> bytes:
    """A value of a type: an int, a float, bytes, Fields, Elements or Pairs."""
    if kind in PACKED:
        return struct.pack(PACKED[kind], value)
    if kind == STRING:
        return struct.pack(">i", len(value)) + bytes(value)
    if kind == STRUCT:
        fields = (struct.pack(">Bh", field, id_) + encode(field, inner) for field, id_, inner in value)
        return b"".join(fields) + bytes([STOP])
    if kind == MAP:
        pairs = b"".join(encode(value.key, left) + encode(value.value, right) for left, right in value.pairs)
        return struct.pack(">BBi", value.key, value.value, len(value.pairs)) + pairs
    elements = b"".join(encode(value.kind, each) for each in value.values)
    return struct.pack(">Bi", value.kind, len(value.values)) + elements


def message(
    method: str, fields: Fields | bytes = b"\0", *, kind: int = 1, sequence: int = 1, strict: bool = True
) -> bytes:
    """A framed call with these arguments."""
    name = struct.pack(">i", len(method)) + method.encode()
    body = fields if isinstance(fields, bytes) else encode(STRUCT, fields)
    head = struct.pack(">HBB", 0x8001, 0, kind) + name if strict else name + bytes([kind])
    return frame(head + struct.pack(">i", sequence) + body)


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def struct_of(method: str, part: str, **values: Any) -> Any:
    """A struct that thriftpy2 made for a method. part: args, result."""
    name = f"{method}_{part}"
    return getattr(IDL.PinLater, name)(**values)


def arguments(method: str, request: Any, context: Any = CONTEXT) -> bytes:
    """The struct of the arguments of a call, as thriftpy2 writes it."""
    buffer = TMemoryBuffer()
    TBinaryProtocol(buffer).write_struct(struct_of(method, "args", context=context, request=request))
    return bytes(buffer.getvalue())


def read_arguments(method: str, message: bytes) -> Any:
    """The arguments of a call, as thriftpy2 reads them."""
    values = struct_of(method, "args")
    TBinaryProtocol(TMemoryBuffer(message)).read_struct(values)
    return values


class Answer(NamedTuple):
    """An answer, as thriftpy2 reads it."""

    method: str
    kind: int
    sequence: int
    result: Any


def read_answer(frame: bytes) -> Answer:
    """A framed answer with its result. It must be whole, and nothing may follow."""
    (length,) = struct.unpack_from(">i", frame)
    assert length == len(frame) - 4
    buffer: Any = TMemoryBuffer(frame[4:])
    protocol = TBinaryProtocol(buffer)
    method, kind, sequence = protocol.read_message_begin()
    result = struct_of(method, "result")
    protocol.read_struct(result)
    assert buffer.read(1) == b""
    return Answer(method, kind, sequence, result)
