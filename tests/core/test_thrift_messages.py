"""The check of Thrift messages against its twin, its limits and its time.

Promises: any bytes are accepted or refused as the twin does, and a message that names more than it has costs nothing.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinlater import _core
from pinlater._core import BadMessage
from tests.support import thrift_twins
from tests.support.core_inputs import refusal
from tests.support.thrift_inputs import (
    changed,
    dequeue_messages,
    enqueue_messages,
    outcome_of,
    value_of,
)
from tests.support.thrift_wire import (
    BOOL,
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STOP,
    STRING,
    STRUCT,
    Elements,
    Pairs,
    encode,
    read_answer,
)

messages = st.one_of(value_of(STRUCT).map(lambda fields: encode(STRUCT, fields)), enqueue_messages, dequeue_messages)


@given(messages, st.binary(max_size=9), st.binary(max_size=3))
def test_every_struct_is_accepted_wherever_it_begins(message: bytes, head: bytes, rest: bytes) -> None:
    _core.check_message(head + message + rest, len(head))


@given(st.one_of(changed(messages), st.binary(max_size=40)), st.integers(0, 3), st.integers(0, 9))
def test_changed_bytes_are_refused_as_the_twin_does(message: bytes, start: int, depth: int) -> None:
    native = outcome_of(_core.check_message, message, start, depth)
    assert native == outcome_of(thrift_twins.check_message, message, start, depth)
    assert native in (None, BadMessage)


@given(messages)
def test_a_message_that_is_cut_off_is_refused(message: bytes) -> None:
    for end in range(len(message)):
        assert outcome_of(_core.check_message, message[:end], 0) is BadMessage


@pytest.mark.parametrize("most", [1, 5, 64, 255])
def test_structs_may_be_nested_as_deep_as_allowed(most: int) -> None:
    deepest = b"\x0c\0\1" * (most - 1) + bytes(most)
    _core.check_message(deepest, 0, most)
    assert outcome_of(_core.check_message, b"\x0c\0\1" * most + bytes(most + 1), 0, most) is BadMessage
    assert outcome_of(_core.check_message, deepest, 0, most - 1) is BadMessage


@pytest.mark.parametrize("one", [b"\x0f\0\0\0\1", b"\x0e\0\0\0\1", b"\x0d\0\0\0\1\7"], ids=["list", "set", "map"])
def test_containers_count_as_structs_do(one: bytes) -> None:
    kind = one[0]
    level = bytes([kind]) + one[1:] if kind != MAP else b"\x03\x0d" + one[1:]
    # a field that holds a container of containers … of an empty list of bytes
    for depth, expected in ((63, None), (64, BadMessage)):
        message = bytes([kind]) + b"\0\1" + level * (depth - 1) + (b"\3" if kind != MAP else b"\3\3") + bytes(4) + b"\0"
        assert outcome_of(_core.check_message, message, 0) is expected


def test_a_depth_bomb_is_refused_at_once() -> None:
    for bomb in (b"\x0c\0\1" * 10_000_000, b"\x0f\0\1" + b"\x0f\0\0\0\1" * 10_000_000):
        for read in (_core.check_message, _core.read_enqueue, _core.read_ack, _core.read_dequeue):
            assert "nested too deep" in refusal(read, bomb, 0)


REQUEST = b"\x0c\0\2"
COUNTS = [2**31 - 1, -1, -(2**31), 2**24]


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_bomb_is_refused_at_once(count: int) -> None:
    packed = struct.pack(">i", count)
    bombs = [b"\x0f\0\2" + bytes([kind]) + packed for kind in (BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT)]
    bombs += [b"\x0f\0\2" + bytes([kind]) + packed for kind in (LIST, SET, MAP)]
    bombs += [b"\x0d\0\2" + kinds + packed for kinds in (b"\x02\x02", b"\x0b\x0b", b"\x0c\x0c")]
    bombs += [b"\x0b\0\1" + packed]
    for bomb in bombs:
        for inside in (b"", REQUEST, REQUEST + b"\x0c\0\3"):
            for read in (_core.check_message, _core.read_enqueue, _core.read_ack, _core.read_dequeue):
                assert outcome_of(read, inside + bomb + bytes(99), 0) is BadMessage


@pytest.mark.parametrize(
    ("message", "start", "why"),
    [
        (b"", 0, "byte 0 of 0: expected 1 more bytes, got 0"),
        (b"\0", 2, "expected arguments from byte 2 of at most 2,147,483,647, got 1 bytes"),
        (b"\2\0\1\2\0", 0, "byte 4 of 5: expected a bool (0 or 1), got 2"),
        (b"\x10\0\1\0", 0, "byte 3 of 4: expected a type of Thrift, got 16"),
        (b"\x0b\0\1\xff\xff\xff\xff\0", 0, "byte 7 of 8: expected 4294967295 more bytes, got 1"),
        (b"\x0f\0\1\x0c\0\0\0\3\0\0", 0, "byte 8 of 10: expected 3 elements, got 2 bytes"),
        (b"\x0f\0\1\x01\0\0\0\1\0\0", 0, "byte 8 of 10: it is a container of an unknown type"),
    ],
)
def test_it_says_what_is_wrong(message: bytes, start: int, why: str) -> None:
    assert refusal(_core.check_message, message, start).endswith(why)


def test_an_empty_container_may_be_of_any_type() -> None:
    fields = [(LIST, 1, Elements(0, [])), (SET, 2, Elements(99, [])), (MAP, 3, Pairs(0, 1, []))]
    _core.check_message(encode(STRUCT, fields), 0)


def test_the_depth_and_the_start_are_numbers_in_range() -> None:
    for wrong in ((b"\0", -1), (b"\0", 0, 256), (b"\0", 0, -1)):
        with pytest.raises(OverflowError):
            _core.check_message(*wrong)
    for wrong_type in (bytearray(b"\0"), "a", None):
        with pytest.raises(TypeError):
            _core.check_message(wrong_type, 0)  # type: ignore[arg-type]


def test_the_answer_of_a_method_that_returns_nothing() -> None:
    for sequence in (0, 7, 2**31 - 1, -(2**31)):
        answer = read_answer(_core.void_answer("ackDequeuedJobs", sequence))
        assert (answer.method, answer.kind, answer.sequence) == ("ackDequeuedJobs", 2, sequence)
        assert vars(answer.result) == {"e": None}
    assert _core.void_answer("ackDequeuedJobs", 1)[-1] == STOP
