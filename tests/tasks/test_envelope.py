"""The envelope, byte by byte as docs/tasks.md shows it, and the errors for bodies that are none.

The worked examples are read from that page.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any

import msgpack
import orjson
import pytest

from pinlater import BodyUnreadable, InvalidArgument
from pinlater.tasks import envelope
from pinlater.tasks.envelope import Codec
from tests.support.pages import page, table

PAGE = page("tasks")


def packed(name: str, codec: Codec, args: Any, kwargs: Any, headers: Any = None) -> bytes:
    parts = envelope.document(args, kwargs, headers or {})
    return envelope.head(name, codec) + envelope.packer(codec)(parts)


def of_the_page(codec: str) -> bytes:
    """The bytes of a worked example: the hexadecimal column of its table."""
    return bytes.fromhex("".join(cell.strip("`") for cell, *_ in table(PAGE, f"bytes-{codec}")))


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_the_worked_example_byte_by_byte(codec: Codec) -> None:
    body = packed("mail.send", codec, ("a@b.c",), {"n": 2}, {"trace": "00-ab-cd-01"})
    assert body.hex(" ") == of_the_page(codec).hex(" ")
    assert envelope.read(body) == (b"mail.send", ["a@b.c"], {"n": 2}, {"trace": "00-ab-cd-01"})


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@pytest.mark.parametrize(
    ("args", "kwargs", "headers"), [((), {}, {}), ((1,), {}, {}), ((), {"a": None}, {}), ((), {}, {"state": [1]})]
)
def test_what_is_empty_at_the_end_is_left_out_and_read_as_empty(
    codec: Codec, args: Any, kwargs: Any, headers: Any
) -> None:
    body = packed("t", codec, args, kwargs, headers)
    assert envelope.read(body) == (b"t", list(args), kwargs, headers)
    wanted = 3 if headers else 2 if kwargs else 1
    loads = {"msgpack": msgpack.unpackb, "json": orjson.loads}[codec]
    assert len(loads(body[5:])) == wanted


def test_msgpack_keeps_bytes_integer_keys_and_aware_dates() -> None:
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=datetime.UTC)
    args = [b"\0\xff", {1: "one"}, when, 2**64 - 1, -1, 0.5, None, True]
    assert envelope.read(packed("t", "msgpack", args, {}))[1] == args


_FAR = datetime.timedelta(hours=23, minutes=59)
ODD_VALUES = {
    "tuples as keys": {(1, (2, b"x")): {"a": [{(): 1}]}, None: 2},
    "the last date, west": datetime.datetime.max.replace(tzinfo=datetime.timezone(-_FAR)),
    "the first date, east": datetime.datetime.min.replace(tzinfo=datetime.timezone(_FAR)),
    "both, and usual dates": [
        {(1, 2): datetime.datetime(1965, 1, 2, 3, 4, 5, 999_999, tzinfo=datetime.UTC)},
        datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-1))),
    ],
}


@pytest.mark.parametrize("value", ODD_VALUES.values(), ids=ODD_VALUES)
def test_what_msgpack_packs_is_read_back_wherever_it_stands(value: Any) -> None:
    body = packed("t", "msgpack", [value], {"a": value}, {"state": value})
    assert envelope.read(body) == (b"t", [value], {"a": value}, {"state": value})
    assert envelope.read(envelope.with_headers(body, {"trace": "x"}))[3] == {"state": value, "trace": "x"}
    assert envelope.read_result(envelope.pack_result("msgpack", value)) == value


class Text(enum.StrEnum):
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


class Thing(enum.Enum):
    A = 1


@dataclasses.dataclass
class Point:
    x: int = 1


_EAST = datetime.timezone(datetime.timedelta(hours=2))
REFUSED: Any = "refused"
#: As the page has them: value, what msgpack makes of it, what JSON makes of it.
CHANGES: list[tuple[Any, Any, Any]] = [
    ((1, 2), [1, 2], [1, 2]),
    ({1: 2}, {1: 2}, REFUSED),
    ({(1, 2): 3}, {(1, 2): 3}, REFUSED),
    (float("inf"), float("inf"), None),
    (2**64, REFUSED, REFUSED),
    (
        datetime.datetime(2020, 1, 1, tzinfo=_EAST),
        datetime.datetime(2020, 1, 1, tzinfo=_EAST),
        "2020-01-01T00:00:00+02:00",
    ),
    (datetime.datetime(2020, 1, 1), REFUSED, "2020-01-01T00:00:00"),
    (datetime.date(2020, 1, 1), REFUSED, "2020-01-01"),
    (b"x", b"x", REFUSED),
    (bytearray(b"x"), b"x", REFUSED),
    (Point(), REFUSED, {"x": 1}),
    (uuid.UUID(int=1), REFUSED, str(uuid.UUID(int=1))),
    (Thing.A, REFUSED, 1),
    ((Text.A, Number.ONE), ["a", 1], ["a", 1]),
    ({1}, REFUSED, REFUSED),
    (decimal.Decimal(1), REFUSED, REFUSED),
    (datetime.timedelta(1), REFUSED, REFUSED),
]


@pytest.mark.parametrize(("value", "in_msgpack", "in_json"), CHANGES, ids=repr)
def test_what_a_codec_makes_of_values(value: Any, in_msgpack: Any, in_json: Any) -> None:
    for codec, wanted in (("msgpack", in_msgpack), ("json", in_json)):
        if wanted is REFUSED:
            with pytest.raises((TypeError, ValueError, OverflowError)):
                packed("t", codec, [value], {})  # type: ignore[arg-type]
        else:
            assert envelope.read(packed("t", codec, [value], {}))[1] == [wanted]  # type: ignore[arg-type]


def test_an_integer_past_64_bits_in_json_of_others_is_a_float() -> None:
    read = envelope.read(envelope.head("t", "json") + b"[[118059162071741130342400]]")[1]
    assert (type(read[0]), read) == (float, [118059162071741130342400.0])


def test_a_result_that_can_not_be_read_is_said_to_be_so() -> None:
    for wrong in (b"\x01\xc1", b"\x01\x81\x80\x01", b"\x02{", b"\x09"):
        with pytest.raises(BodyUnreadable, match="result: it can not be read: "):
            envelope.read_result(wrong)


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_a_state_is_added_and_replaced_and_nothing_else_changes(codec: Codec) -> None:
    body = packed("t", codec, [1], {"a": 2}, {"trace": "x"})
    once = envelope.with_headers(body, {"state": {"row": 7}})
    assert envelope.read(once) == (b"t", [1], {"a": 2}, {"trace": "x", "state": {"row": 7}})
    assert envelope.read(envelope.with_headers(once, {"state": 8}))[3] == {"trace": "x", "state": 8}
    assert envelope.read(envelope.with_headers(once, {"state": None}))[3] == {"trace": "x"}
    assert once[2] == body[2]
    with pytest.raises(InvalidArgument, match=f"checkpoint: the state can not be packed as {codec}"):
        envelope.with_headers(body, {"state": object()})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", r"expected an envelope \(bytes 0xfe and 1\), got b''"),
        (b"hello", r"expected an envelope \(bytes 0xfe and 1\), got b'hello'"),
        (b"\xfe", r"expected an envelope \(bytes 0xfe and 1\), got b'\\xfe'"),
        ("\ufeffhello".encode("utf-16-be"), r"expected an envelope \(bytes 0xfe and 1\), got"),
        (b"\xfe\x00\x01\x01t\x91\x90", "expected version 1, got 0$"),
        (b"\xfe\x01", r"expected a codec of \[1, 2\] and a name"),
        (b"\xfe\x01\x01\x00\x91\x90", r"expected a codec of \[1, 2\] and a name"),
        (b"\xfe\x01\x03\x01t\x91\x90", r"expected a codec of \[1, 2\] and a name"),
        (b"\xfe\x01\x01\x01t", "its document can not be read"),
        (b"\xfe\x01\x01\x09t\x91\x90", "its document can not be read"),
        (b"\xfe\x01\x01\x01t\x91\x90\x00", "its document can not be read: ExtraData"),
        (b"\xfe\x01\x01\x01t" + b"\x91" * 5000, "its document can not be read"),
        (b"\xfe\x01\x02\x01t[[]", "its document can not be read: JSONDecodeError"),
        (b"\xfe\x01\x01\x01t\x90", "expected a list of arguments, named arguments and headers"),
        (b"\xfe\x01\x01\x01t\x94\x90\x80\x80\x80", "expected a list of arguments, named arguments and headers"),
        (b"\xfe\x01\x01\x01t\x91\x80", "expected the arguments as a list"),
        (b"\xfe\x01\x01\x01t\x92\x90\x90", "expected the named arguments as a map with text keys"),
        (b"\xfe\x01\x01\x01t\x92\x90\x81\x01\x02", "expected the named arguments as a map with text keys"),
        (b"\xfe\x01\x01\x01t\x93\x90\x80\xc0", "expected the headers as a map with text keys"),
    ],
)
def test_a_body_that_is_none_is_said_to_be_none(body: bytes, said: str) -> None:
    with pytest.raises(BodyUnreadable, match=said):
        envelope.read(body)


def test_names_have_1_to_255_bytes() -> None:
    assert len(envelope.head("ä" * 127, "json")) == 4 + 254
    for name in ("", "ä" * 128):
        with pytest.raises(InvalidArgument, match="task name: expected 1 to 255 bytes"):
            envelope.head(name, "msgpack")


@pytest.mark.parametrize("version", [2, 254])
def test_a_newer_version_is_not_taken_for_an_unreadable_body(version: int) -> None:
    with pytest.raises(envelope.NewerVersion, match=f"expected version 1, got {version}, which is newer") as raised:
        envelope.read(bytes([0xFE, version]) + b"whatever")
    assert raised.value.version == version
