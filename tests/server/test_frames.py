"""Frames, heads of messages and the room for calls, without a connection."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pinlater._core as _core
from pinlater.server.capacity import Capacity
from pinlater.server.frames import BadFrame, FrameReader, framed
from pinlater.server.messages import BadMessage, Failure, application_exception, read_head
from tests.support.thrift_frames import call, head, read_answer

LIMIT = 100


@given(messages=st.lists(st.binary(min_size=1, max_size=LIMIT)), cuts=st.lists(st.integers(1, 30), min_size=1))
def test_frames_come_out_as_they_went_in_wherever_they_were_cut(messages: list[bytes], cuts: list[int]) -> None:
    reader, sent, found = FrameReader(LIMIT), b"".join(map(framed, messages)), []
    at = 0
    while at < len(sent):
        step = cuts[at % len(cuts)]
        reader.add(sent[at : at + step])
        at += step
        while (frame := reader.next()) is not None:
            found.append(frame)
    assert found == [*map(framed, messages)]
    assert reader.kept_bytes == 0


@pytest.mark.parametrize("length", [0, -1, -(2**31), 2**31 - 1, LIMIT + 1, int.from_bytes(b"GET ", "big")])
def test_a_length_that_no_frame_has_is_refused_before_its_bytes_come(length: int) -> None:
    reader = FrameReader(LIMIT)
    reader.add(struct.pack(">i", length))
    with pytest.raises(BadFrame, match="expected a frame of 1 to 100 bytes"):
        reader.next()


def test_a_frame_of_the_limit_is_taken() -> None:
    reader = FrameReader(LIMIT)
    reader.add(framed(bytes(LIMIT))[:-1])
    assert reader.next() is None
    reader.add(b"\0")
    assert reader.next() == framed(bytes(LIMIT))


@pytest.mark.parametrize(
    ("data", "is_whole"),
    [
        (framed(b"x"), True),
        (framed(bytes(LIMIT)), True),
        (framed(bytes(LIMIT + 1)), False),
        (framed(b"x")[:-1], False),
        (framed(b"x") + b"y", False),
        (framed(b""), False),
        (b"", False),
        (b"\0\0\0", False),
    ],
)
def test_one_frame_alone_is_found_without_a_copy(data: bytes, is_whole: bool) -> None:
    assert _core.is_frame(data, LIMIT) is is_whole


def test_what_a_reader_keeps_is_counted() -> None:
    reader = FrameReader(LIMIT)
    reader.add(framed(b"x") + b"\0")
    assert reader.kept_bytes == 6
    assert reader.next() == framed(b"x")
    assert reader.kept_bytes == 1
    reader.clear()
    assert (reader.kept_bytes, reader.next()) == (0, None)


def test_heads_are_read() -> None:
    new = read_head(call("createQueue", 7, name="q"))
    assert (new.method, new.sequence, new.end) == ("createQueue", 7, 4 + len(head("createQueue")))
    old = framed(struct.pack(">i", 3) + b"abc" + struct.pack(">Bi", 1, -2) + b"\0")
    assert read_head(old) == ("abc", -2, len(old) - 1)
    assert read_head(framed(head("oneway", 3, kind=4))).sequence == 3
    assert read_head(framed(struct.pack(">HBBi", 0x8001, 0, 1, 1) + b"\xff" + bytes(4))).method == "\ufffd"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x80\x01\0\x01",
        b"\x80\x02" + head("m")[2:],  # another version: an old head with a negative length
        head("m", kind=2),
        head("m", kind=3),
        head("m", kind=0),
        head("m" * 256),
        head("m")[:-1],
        *(struct.pack(">HBBi", 0x8001, 0, 1, length) + bytes(40) for length in (-1, -8, -9, -(2**31), 41, 2**31 - 1)),
        *(struct.pack(">i", length) + bytes(40) for length in (-1, -5, -(2**31), 41, 2**31 - 1)),
    ],
)
def test_heads_that_cannot_be_read_are_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        read_head(framed(message))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_head_or_refused(message: bytes) -> None:
    frame = framed(message)
    try:
        found = read_head(frame)
    except BadMessage:
        return
    assert found.end <= len(frame)


def test_an_exception_names_the_method_and_the_sequence() -> None:
    frame = application_exception(read_head(framed(head("abc", 5))), Failure(1), "é\ud800")
    answer = read_answer(frame[4:])
    assert (answer.method, answer.sequence, answer.failure, answer.message) == ("abc", 5, 1, "é?")


def test_room_is_taken_and_given() -> None:
    room, heard = Capacity(8, 100), []
    room.on_room = lambda: heard.append(room.under_way)
    assert all(room.take(1) for _ in range(8))
    assert not room.take(1)
    room.give(1)
    assert heard == []  # one more: a share of it has to be free
    room.give(1)
    assert heard == [6]
    room.give(1)
    assert heard == [6]


def test_room_for_bytes_is_taken_and_given() -> None:
    room, heard = Capacity(8, 100), []
    room.on_room = lambda: heard.append(room.held_bytes)
    assert room.take(1_000)  # alone, any call has room
    assert not room.take(1)
    room.give(1_000)
    assert heard == [0]
    assert room.take(60)
    assert room.take(40)
    assert not room.take(1)
    room.give(40)
    assert heard == [0, 60]


def test_room_for_one_call_is_given_again() -> None:
    room, heard = Capacity(1, 100), []
    room.on_room = lambda: heard.append(room.under_way)
    assert room.take(1)
    assert not room.take(1)
    room.give(1)
    assert heard == [0]


def test_the_elements_of_a_call_are_bounded() -> None:
    def nested(outer: int, inner: int) -> bytes:
        """A list of lists of empty structs, as the one field of the arguments."""
        lists = (b"\x0c" + struct.pack(">i", inner) + bytes(inner)) * outer
        return b"\x0f\0\x01\x0f" + struct.pack(">i", outer) + lists + b"\0"

    _core.check_message(nested(1, 99_999), 0)
    for message in (nested(1, 100_000), nested(10, 10_000)):
        with pytest.raises(_core.BadMessage, match="100000 elements"):
            _core.check_message(message, 0)
