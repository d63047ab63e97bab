"""The envelope: how a call of a task is written in a body. docs/tasks.md has the format, for producers in any language.

Promises that a body gives a name, a list and two maps with text keys, or raises BodyUnreadable, and that nothing in a
body is ever executed. Risks: a codec converts values that it cannot represent: tuples come back as lists, and JSON
dates as text.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgpack

from pinlater.model.errors import BodyUnreadable, InvalidArgument

Codec: TypeAlias = Literal["msgpack", "json", "raw"]

#: The first byte of an envelope. No UTF-8 text has it, so a text in a task's queue is never taken for an envelope.
FIRST_BYTE: Final = 0xFE
VERSION: Final = 1
#: The codec byte of an envelope. A raw body has no envelope.
CODEC_BYTES: Final[dict[str, int]] = {"msgpack": 1, "json": 2}
#: The length of a name is one byte.
MAX_NAME_BYTES: Final = 255

#: UTF-16 text may begin with FIRST_BYTE and this, so this is never a version.
_NO_VERSION: Final = 0xFF
_HEAD_BYTES: Final = 4
#: No time zone may be further from UTC.
_DAY: Final = datetime.timedelta(hours=23, minutes=59, seconds=59)
_EAST: Final = datetime.timezone(_DAY)
_WEST: Final = datetime.timezone(-_DAY)
START: Final = bytes([FIRST_BYTE, VERSION])
#: What every codec carries without an annotation.
CARRIED: Final = "None, bool, int to 64 bits, float, text, list and dict"
#: What to do about a state that can not be packed.
STATE_TAKES: Final = f"a state is of {CARRIED}: give other values as text, and read them from it"


class NewerVersion(BodyUnreadable):
    """The envelope's version is newer than VERSION: a newer worker can read it."""

    def __init__(self, version: int) -> None:
        super().__init__(f"envelope: expected version {VERSION}, got {version}, which is newer")
        self.version = version


#: The parts of a body: name (UTF-8 bytes), arguments, named arguments, headers (docs/tasks.md lists those of PinLater).
#: A tuple, not a class, as every job needs one.
Envelope: TypeAlias = tuple[bytes, list[Any], dict[str, Any], dict[str, Any]]


def head(name: str, codec: Codec) -> bytes:
    """The bytes before the document: FIRST_BYTE, version, codec, length of the name, name. Raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(f"task name: expected text, got {name!r:.60}")
    encoded = name.encode()
    if not 1 <= len(encoded) <= MAX_NAME_BYTES:
        raise InvalidArgument(f"task name: expected 1 to {MAX_NAME_BYTES} bytes, got {len(encoded)} ({name!r:.40})")
    return bytes([FIRST_BYTE, VERSION, CODEC_BYTES.get(codec, 0), len(encoded)]) + encoded


class Packers(Protocol):
    """The packers of a codec, one a thread."""

    @property
    def pack(self) -> Callable[[Any], bytes]:
        """Packs a document in the calling thread; raises what the codec raises."""


def packers(codec: Codec) -> Packers:
    """The packers of a codec. A raw task has no documents, and gets any."""
    if codec != "json":
        return _packers
    import orjson  # only some apps use it

    return SimpleNamespace(pack=orjson.dumps)


def packer(codec: Codec) -> Callable[[Any], bytes]:
    """The function that packs a document in this thread; it raises what the codec raises."""
    return packers(codec).pack


def document(args: Sequence[Any], kwargs: Mapping[str, Any], headers: Mapping[str, Any]) -> tuple[Any, ...]:
    """The items that are packed: arguments, named arguments, headers. Empty ones at the end are left out."""
    if headers:
        return (args, kwargs, headers)
    return (args, kwargs) if kwargs else (args,)


def read(body: bytes) -> Envelope:
    """The parts of a body. Raises BodyUnreadable; NewerVersion for an envelope that only a newer version can read."""
    if body[:2] != START:
        raise _not_an_envelope(body)
    end = _HEAD_BYTES + body[3] if len(body) > _HEAD_BYTES else 0
    unpack = _UNPACK.get(body[2]) if end > _HEAD_BYTES else None
    if unpack is None:
        raise BodyUnreadable(f"envelope: expected a codec of {sorted(_UNPACK)} and a name, got {body[:8]!r}")
    try:
        parts = unpack(body[end:])
    except Exception as error:
        raise _unreadable("envelope: its document", error) from None
    count = len(parts) if type(parts) is list else 0
    if not 1 <= count <= 3:
        raise BodyUnreadable(f"envelope: expected a list of arguments, named arguments and headers, got {parts!r:.60}")
    args = parts[0]
    if type(args) is not list:
        raise BodyUnreadable(f"envelope: expected the arguments as a list, got {args!r:.60}")
    kwargs = _checked("named arguments", parts[1]) if count > 1 else {}
    return body[_HEAD_BYTES:end], args, kwargs, _checked("headers", parts[2]) if count > 2 else {}


def with_headers(body: bytes, changes: Mapping[str, Any], what: str = "checkpoint") -> bytes:
    """The body with these headers changed; None removes one. Raises InvalidArgument for values it can not pack.

    what: gave the state, as errors name it.
    """
    name, args, kwargs, headers = read(body)
    codec: Codec = "msgpack" if body[2] == CODEC_BYTES["msgpack"] else "json"
    changed = {key: value for key, value in {**headers, **changes}.items() if value is not None}
    try:
        packed = packer(codec)(document(args, kwargs, changed))
    except Exception as error:
        text = f"{what}: the state can not be packed as {codec}: {error}"
        raise InvalidArgument(f"{text}; {STATE_TAKES}") from None
    return body[: _HEAD_BYTES + len(name)] + packed


def pack_result(codec: Codec, value: Any) -> bytes:
    """A return value as bytes: the codec's byte (0 for raw) and the packed value. Raises InvalidArgument."""
    if codec == "raw":
        if not isinstance(value, bytes):
            raise InvalidArgument(f"result: expected bytes of a raw task, got {value!r:.60}")
        return b"\0" + value
    try:
        return CODEC_BYTES[codec].to_bytes() + packer(codec)(value)
    except Exception as error:
        raise InvalidArgument(f"result: it can not be packed as {codec}: {error}") from None


def read_result(packed: bytes) -> Any:
    """The value that pack_result packed. Raises BodyUnreadable."""
    if packed[0] == 0:
        return packed[1:]
    try:
        return _UNPACK[packed[0]](packed[1:])
    except Exception as error:
        raise _unreadable("result: it", error) from None


def _unreadable(what: str, error: Exception) -> BodyUnreadable:
    return BodyUnreadable(f"{what} can not be read: {type(error).__name__}: {error}")


def _not_an_envelope(body: bytes) -> BodyUnreadable:
    version = body[1] if len(body) > 1 else _NO_VERSION
    if body[:1] != START[:1] or version == _NO_VERSION:
        return BodyUnreadable(f"expected an envelope (bytes 0x{FIRST_BYTE:02x} and {VERSION}), got {body[:16]!r}")
    if version > VERSION:
        return NewerVersion(version)
    return BodyUnreadable(f"envelope: expected version {VERSION}, got {version}")


def _checked(what: str, found: Any) -> dict[str, Any]:
    if type(found) is dict and all(type(key) is str for key in found):
        return found
    raise BodyUnreadable(f"envelope: expected the {what} as a map with text keys, got {found!r:.60}")


class _Packers(threading.local):
    """One packer a thread: a packer reuses its buffer, so threads can not share one."""

    def __init__(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer(datetime=True).pack


_packers: Final = _Packers()


def unpack_msgpack(packed: bytes) -> Any:
    """The value that a packer packed; raises what msgpack raises."""
    try:
        return msgpack.unpackb(packed, strict_map_key=False, timestamp=3)
    except (TypeError, OverflowError):  # a tuple as a key, or a date outside of years 1 to 9999
        return _restored(msgpack.unpackb(packed, strict_map_key=False, timestamp=0, object_pairs_hook=_Pairs))


class _Pairs(tuple[tuple[Any, Any], ...]):
    """A map as it was unpacked. Its keys may be lists, where tuples were packed."""


def _restored(value: Any) -> Any:
    """The value with tuples as keys, and with dates."""
    if isinstance(value, _Pairs):
        return {_key(key): _restored(each) for key, each in value}
    if isinstance(value, list):
        return [_restored(each) for each in value]
    return _date(value) if isinstance(value, msgpack.Timestamp) else value


def _key(value: Any) -> Any:
    return tuple(map(_key, value)) if isinstance(value, list) else _restored(value)


def _date(timestamp: msgpack.Timestamp) -> datetime.datetime:
    """The time in UTC. If that is outside of years 1 to 9999: in the zone whose date is inside."""
    when: datetime.datetime
    try:
        when = timestamp.to_datetime()
    except OverflowError:
        zone, shift = (_EAST, _DAY.seconds) if timestamp.seconds < 0 else (_WEST, -_DAY.seconds)
        when = msgpack.Timestamp(timestamp.seconds + shift, timestamp.nanoseconds).to_datetime().replace(tzinfo=zone)
    return when


def _unpack_json(packed: bytes) -> Any:
    import orjson  # only some apps use it

    return orjson.loads(packed)


_UNPACK: Final[dict[int, Callable[[bytes], Any]]] = {
    CODEC_BYTES["msgpack"]: unpack_msgpack,
    CODEC_BYTES["json"]: _unpack_json,
}
