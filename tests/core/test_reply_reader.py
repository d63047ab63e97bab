"""Replies of a Redis server, cut anywhere, become the values that hiredis makes of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pinlater._core as _core
from pinlater.store.effects import ReplyError

REPLIES = [b"", b"a\r\nb", None, 0, -5, 2**63 - 1, [], [b"x"], [1, None], [[b"x", b""], [], [1]], [b"0", [b"k", b"v"]]]

values = st.recursive(
    st.one_of(
        st.none(), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20), st.builds(ReplyError, st.just("ERR x"))
    ),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def packed(value: Any) -> bytes:
    """A reply."""
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(value), value)
        case ReplyError(text):
            return b"-%s\r\n" % text.encode()
        case _:
            return b"*%d\r\n%s" % (len(value), b"".join(map(packed, value)))


def plain(value: Any) -> Any:
    """The value with lists instead of Records."""
    if isinstance(value, _core.Records):
        return list(value)
    return [plain(each) for each in value] if isinstance(value, list) else value


def read(data: bytes, cuts: list[int]) -> list[Any]:
    """What a reader makes of bytes that come in pieces."""
    reader, found = _core.ReplyReader(ReplyError), []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        found += reader.read(data[start:end])
    reader.end(found, len(found))
    return plain(found)  # type: ignore[no-any-return]


@given(st.lists(values, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
def test_replies_are_those_of_hiredis_wherever_they_are_cut(replies: list[Any], cuts: list[int]) -> None:
    data = b"".join(map(packed, replies))
    twin = hiredis.Reader(replyError=ReplyError)  # type: ignore[arg-type]
    twin.feed(data)
    expected = [twin.gets() for _ in replies]
    assert read(data, cuts) == expected == replies


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_may_come_byte_by_byte(reply: Any) -> None:
    data = packed(reply) + packed(b"next")
    assert read(data, list(range(len(data)))) == [reply, b"next"]


def test_strings_in_an_array_in_an_array_are_records() -> None:
    [[sequence, records, more]] = _core.ReplyReader(ReplyError).read(packed([b"s", [b"a", b"", b"cc"], [b"d", 1]]))
    assert (sequence, type(records), more) == (b"s", _core.Records, [b"d", 1])
    assert (len(records), list(records), records.sizes()) == (3, [b"a", b"", b"cc"], [1, 0, 2])
    assert (records[0], records[2], records[-1], records[-3]) == (b"a", b"cc", b"cc", b"a")
    for position in (3, -4, 2**40, -(2**40)):
        with pytest.raises(IndexError, match=f"expected a position below 3, got {position}"):
            records[position]
    assert repr(records) == "<Records: 3 strings, 3 bytes>"
    assert (records == [b"a", b"", b"cc"], records == [b"a", b"", b"c"], records == [b"a"], records == 3) == (
        *(True, False, False, False),
    )


def test_a_command_has_each_string_of_records_as_an_argument() -> None:
    [[records]] = _core.ReplyReader(ReplyError).read(packed([[b"a", b"bb", b"cc"]]))
    head = _core.CommandHead(("EVALSHA", b"x"))
    assert head.command([b"1", records, 2]) == head.command([b"1", b"a", b"bb", b"cc", 2])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"%1\r\n", r"expected a line of RESP 2, got one that begins with Some\(25\)"),
        (b"\r\n", "expected a line of RESP 2"),
        (b"+a\rb\r\n", "expected a line of RESP 2"),
        (b"$-2\r\n", "expected a length, got -2"),
        (b"*9223372036854775807\r\n", "expected a length"),
        (b":\r\n", "expected a number, got "),
        (b":1x\r\n", "expected a number, got 1x"),
        (b":9223372036854775808\r\n", "expected a number, got 9223372036854775808"),
        (b"$1\r\nab\r\n", "expected a string that ends with a line, got more bytes"),
        (b"*1\r\n" * 9 + b":1\r\n", "expected arrays at most 8 deep, got a deeper one"),
        (b"+" + bytes(2**20), "expected a line of at most 1048576 bytes, got a longer one"),
    ],
)
def test_what_is_no_reply_is_refused_whole_or_in_pieces(data: bytes, why: str) -> None:
    with pytest.raises(_core.BadReply, match=f"^reply: {why}"):
        _core.ReplyReader(ReplyError).read(data)
    step = 4096 if len(data) > 100 else 1
    with pytest.raises(_core.BadReply, match=f"^reply: {why}"):
        read(data, list(range(0, len(data), step)))


def test_a_length_takes_no_memory_before_its_bytes_are_there() -> None:
    reader = _core.ReplyReader(ReplyError)
    assert reader.read(b"*1000000000000\r\n") == []
    assert reader.read(b"$1000000000000\r\nabc") == []


@pytest.mark.parametrize("surplus", [b":2\r\n", b":"])
def test_more_than_was_asked_for_is_an_error_and_taken_out(surplus: bytes) -> None:
    reader = _core.ReplyReader(ReplyError)
    replies = reader.read(b":1\r\n" + surplus)
    with pytest.raises(_core.BadReply, match="expected 1 replies, got more"):
        reader.end(replies, 1)
    assert replies == [1]


def test_what_makes_the_error_values_may_raise() -> None:
    with pytest.raises(ZeroDivisionError):
        _core.ReplyReader(lambda _: 1 / 0).read(b"-ERR x\r\n")
