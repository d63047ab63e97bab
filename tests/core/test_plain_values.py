"""Which values a codec brings back by itself: `is_plain_value` against the packers, and `PlainCalls`."""

from __future__ import annotations

import datetime
import enum
import uuid
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinlater._core import PlainCalls, is_plain_value
from pinlater.tasks import envelope

DEEP: list[Any] = []
for _ in range(10_000):
    DEEP = [DEEP]


class Color(enum.StrEnum):
    RED = "red"


class Marked(str): ...


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
DATES = st.datetimes(timezones=st.just(datetime.UTC))
ODD = st.uuids() | st.dates() | st.datetimes() | st.timedeltas() | st.just(Color.RED) | st.just((1,)) | st.just({1})
KEYS = st.text() | st.tuples(SCALARS, SCALARS)
PLAIN = st.recursive(
    SCALARS | st.binary() | DATES,
    lambda each: (
        st.lists(each, max_size=4) | st.dictionaries(st.text() | st.tuples(SCALARS, SCALARS), each, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_what_is_plain_comes_back_from_msgpack(value: Any) -> None:
    assert is_plain_value(value, True)
    assert envelope.unpack_msgpack(envelope.packer("msgpack")(value)) == value


@given(PLAIN, ODD, st.integers(0, 3))
def test_an_odd_value_is_found_wherever_it_is(plain: Any, odd: Any, place: int) -> None:
    value = [odd, [plain, odd], {"a": plain, "b": odd}, {("k", odd): plain} if place == 3 and odd != {1} else odd][
        place
    ]
    assert not is_plain_value(value, True) or (place == 3 and isinstance(odd, tuple))
    assert not is_plain_value([plain, odd], False)


@pytest.mark.parametrize(
    ("value", "binary", "plain"),
    [
        (Marked("x"), False, True),
        (OrderedDict(a=1), False, True),
        (Color.RED, True, False),
        (b"x", True, True),
        (bytearray(b"x"), True, True),
        (memoryview(b"x"), True, True),
        (b"x", False, False),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), True, True),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), False, False),
        (datetime.datetime(2026, 1, 1), True, False),
        ({(1, (2, "x")): 1}, True, True),
        ({(1, 2): 1}, False, False),
        (DEEP, True, True),  # the codec refuses it
    ],
)
def test_edges(value: Any, binary: bool, plain: bool) -> None:
    assert is_plain_value(value, binary) is plain


def test_calls_are_known_by_their_shape_and_plain_by_their_values() -> None:
    calls = PlainCalls(True)
    assert not calls.knows((1,), {})
    calls.fits((1,), {})
    calls.fits((), {"a": 1, "b": 2})
    assert calls.knows(("x",), {})
    assert calls.knows((), {"a": [1], "b": None})
    for args, kwargs in [((), {}), ((1, 2), {}), ((), {"a": 1}), ((), {"a": 1, "c": 2}), ((1,), {"a": 1, "b": 2})]:
        assert not calls.knows(args, kwargs)
    assert not calls.knows((uuid.uuid4(),), {})
    assert not calls.knows((), {"a": 1, "b": {2}})


def test_a_function_with_many_shapes_forgets_the_oldest() -> None:
    calls = PlainCalls(True)
    for count in range(20):
        calls.fits((0,) * count, {})
    assert not calls.knows((), {})
    assert calls.knows((0,) * 19, {})
