"""The envelope: the bytes of a task's body. docs/tasks.md has the format, for producers in any language.

Promises that what is read is a name, a list, and two maps with text keys, or BodyUnreadable; nothing in a body is ever
run. Risks: a codec changes what it has no word for: tuples come back as lists, and JSON gives dates back as text.
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

#: The first byte: it stands in no UTF-8 text, so a text that went to a task's queue is told from an envelope.
MARK: Final = 0xFE
VERSION: Final = 1
#: Codec byte of an envelope. A raw body has no envelope.
CODEC_BYTES: Final[dict[str, int]] = {"msgpack": 1, "json": 2}
#: Its length is one byte.
MAX_NAME_BYTES: Final = 255

#: The two first bytes of UTF-16 text are the mark and this: never a version.
_NO_VERSION: Final = 0xFF
_HEAD_BYTES: Final = 4
#: No time zone is further from UTC.
_DAY: Final = datetime.timedelta(hours=23, minutes=59, seconds=59)
_EAST: Final = datetime.timezone(_DAY)
_WEST: Final = datetime.timezone(-_DAY)
START: Final = bytes([MARK, VERSION])


class NewerVersion(BodyUnreadable):
    """An envelope of a later version than is known here: a newer worker can read it."""

    def __init__(self, version: int) -> None:
        super().__init__(f"envelope: expected version {VERSION}, got {version}, which is newer")
        self.version = version


#: A body that was read: name (UTF-8 bytes), arguments, named arguments, headers (what docs/tasks.md names, and others).
#: A bare tuple, as each job needs one.
Envelope: TypeAlias = tuple[bytes, list[Any], dict[str, Any], dict[str, Any]]


def head(name: str, codec: Codec) -> bytes:
    """What stands before the document: mark, version, codec, length of the name, name. Once a task; checks the name."""
    if not isinstance(name, str):
        raise InvalidArgument(f"task name: expected text, got {name!r:.60}")
    told = name.encode()
    if not 1 <= len(told) <= MAX_NAME_BYTES:
        raise InvalidArgument(f"task name: expected 1 to {MAX_NAME_BYTES} bytes, got {len(told)} ({name!r:.40})")
    return bytes([MARK, VERSION, CODEC_BYTES.get(codec, 0), len(told)]) + told


class Packers(Protocol):
    """pack: packs a document in this thread; raises what its codec raises."""

    @property
    def pack(self) -> Callable[[Any], bytes]:
        """Of the thread that asks."""


def packers(codec: Codec) -> Packers:
    """What packs documents; of a raw task, which has none, any."""
    if codec != "json":
        return _packers
    import orjson  # not every app has a use for it

    return SimpleNamespace(pack=orjson.dumps)


def packer(codec: Codec) -> Callable[[Any], bytes]:
    """The function that packs a document in this thread; raises what its codec raises."""
    return packers(codec).pack


def document(args: Sequence[Any], kwargs: Mapping[str, Any], headers: Mapping[str, Any]) -> tuple[Any, ...]:
    """The list that is packed; what is empty at its end is left out."""
    if headers:
        return (args, kwargs, headers)
    return (args, kwargs) if kwargs else (args,)


def read(body: bytes) -> Envelope:
    """A body's parts, or BodyUnreadable; NewerVersion of one that is not for this version to read."""
    if body[:2] != START:
        raise _wrong_start(body)
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


def with_headers(body: bytes, changes: Mapping[str, Any]) -> bytes:
    """The same body with these headers; None takes one away. Raises InvalidArgument for what can not be packed."""
    name, args, kwargs, headers = read(body)
    codec: Codec = "msgpack" if body[2] == CODEC_BYTES["msgpack"] else "json"
    changed = {key: value for key, value in {**headers, **changes}.items() if value is not None}
    try:
        packed = packer(codec)(document(args, kwargs, changed))
    except Exception as error:
        raise InvalidArgument(f"checkpoint: the state can not be packed as {codec}: {error}") from None
    return body[: _HEAD_BYTES + len(name)] + packed


def pack_result(codec: Codec, value: Any) -> bytes:
    """What a task returned: the codec's byte (0 of a raw task's, which are bytes) and the value. Or InvalidArgument."""
    if codec == "raw":
        if not isinstance(value, bytes):
            raise InvalidArgument(f"result: expected bytes of a raw task, got {value!r:.60}")
        return b"\0" + value
    try:
        return CODEC_BYTES[codec].to_bytes() + packer(codec)(value)
    except Exception as error:
        raise InvalidArgument(f"result: it can not be packed as {codec}: {error}") from None


def read_result(packed: bytes) -> Any:
    """The value that pack_result was given, or BodyUnreadable."""
    if packed[0] == 0:
        return packed[1:]
    try:
        return _UNPACK[packed[0]](packed[1:])
    except Exception as error:
        raise _unreadable("result: it", error) from None


def _unreadable(what: str, error: Exception) -> BodyUnreadable:
    return BodyUnreadable(f"{what} can not be read: {type(error).__name__}: {error}")


def _wrong_start(body: bytes) -> BodyUnreadable:
    version = body[1] if len(body) > 1 else _NO_VERSION
    if body[:1] != START[:1] or version == _NO_VERSION:
        return BodyUnreadable(f"expected an envelope (bytes 0x{MARK:02x} and {VERSION}), got {body[:16]!r}")
    if version > VERSION:
        return NewerVersion(version)
    return BodyUnreadable(f"envelope: expected version {VERSION}, got {version}")


def _checked(what: str, found: Any) -> dict[str, Any]:
    if type(found) is dict and all(type(key) is str for key in found):
        return found
    raise BodyUnreadable(f"envelope: expected the {what} as a map with text keys, got {found!r:.60}")


class _Packers(threading.local):
    """A packer a thread: it keeps its buffer from call to call, and is not safe to share."""

    def __init__(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer(datetime=True).pack


_packers: Final = _Packers()


def unpack_msgpack(packed: bytes) -> Any:
    """What a packer packed; raises what msgpack raises."""
    try:
        return msgpack.unpackb(packed, strict_map_key=False, timestamp=3)
    except (TypeError, OverflowError):  # what the packer packs, and the unpacker has no object for
        return _restored(msgpack.unpackb(packed, strict_map_key=False, timestamp=0, object_pairs_hook=_Pairs))


class _Pairs(tuple[tuple[Any, Any], ...]):
    """A map as it was read: its keys may be lists, which are tuples where they were packed."""


def _restored(found: Any) -> Any:
    """The value, with tuples as keys, and dates."""
    if isinstance(found, _Pairs):
        return {_key(key): _restored(value) for key, value in found}
    if isinstance(found, list):
        return [_restored(each) for each in found]
    return _date(found) if isinstance(found, msgpack.Timestamp) else found


def _key(found: Any) -> Any:
    return tuple(map(_key, found)) if isinstance(found, list) else _restored(found)


def _date(found: msgpack.Timestamp) -> datetime.datetime:
    """In UTC; where that is outside of years 1 to 9999, in a time zone of the date's far side."""
    when: datetime.datetime
    try:
        when = found.to_datetime()
    except OverflowError:
        zone, shift = (_EAST, _DAY.seconds) if found.seconds < 0 else (_WEST, -_DAY.seconds)
        when = msgpack.Timestamp(found.seconds + shift, found.nanoseconds).to_datetime().replace(tzinfo=zone)
    return when


def _unpack_json(packed: bytes) -> Any:
    import orjson  # as in packer

    return orjson.loads(packed)


_UNPACK: Final[dict[int, Callable[[bytes], Any]]] = {
    CODEC_BYTES["msgpack"]: unpack_msgpack,
    CODEC_BYTES["json"]: _unpack_json,
}
