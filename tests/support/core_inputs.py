"""Shared by the tests of `pinlater._core`: random input, good and malformed, and the comparison of outcomes.

Promises: `outcome` of a native piece and of its twin can be compared with ==.
Risks: of two faults, both must report the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from pinlater import _core
from tests.support import twins

TOKEN = (5 << 19).to_bytes(8, "big")
JOB = _core.Job("mail", "1", 2, (7 << 19) + 3, b"body", TOKEN, 3, 2)

ids = st.one_of(st.integers(1, 5), st.integers(1, twins.MAX_ID))
tokens = st.one_of(st.sampled_from([bytes(8), TOKEN]), st.binary(min_size=8, max_size=8))
queues = st.sampled_from(["a", "mail", "Q_9", "a" * 255])
shards = st.sampled_from(["1", "a-b", "_", "s" * 32])
priorities = st.one_of(st.integers(1, 3), st.integers(1, 100))
descriptors = st.builds(twins.format_descriptor, queues, shards, priorities, ids)
odd_texts = st.one_of(
    st.text(max_size=20),
    st.from_regex(r"\A[a-z_é]{0,3}:?s?[a-z0-9-]{0,3}:p?[0-9]{0,4}:[0-9+]{0,20}\Z"),
    st.sampled_from(["a:s1:p1:9223372036854775808", "a:s1:p1:01", "a:s1:p0:1", "a:s1:p101:1", "a:s1:p1:1\n"]),
)
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(),
    st.text(max_size=3),
    st.binary(max_size=9),
    st.just([]),
)
jobs = st.builds(_core.Job, queues, shards, priorities, ids, st.binary(max_size=4), tokens, *[st.integers(1, 9)] * 2)
new_jobs = st.builds(
    _core.NewJob,
    st.binary(max_size=9),
    priority=st.integers(1, 4),
    run_after_ms=st.one_of(st.none(), st.integers(0, twins.MAX_TIME_MS)),
    attempts=st.integers(1, 65_535),
    status=st.text(max_size=3),
)
delayed_jobs = st.builds(_core.NewJob, st.just(b"a"), delay_ms=st.integers(0, twins.MAX_TIME_MS))
bodies = st.one_of(st.binary(max_size=9), st.builds(bytearray, st.binary(max_size=9)))
targets = st.one_of(jobs, descriptors, st.tuples(descriptors, st.one_of(st.none(), tokens)))
statuses = st.one_of(st.just(""), st.text(max_size=5), st.sampled_from(["é" * 1500, "é" * 1500 + "a", "\ud800"]))
times_ms = st.one_of(st.integers(0, 3), st.sampled_from([twins.MAX_TIME_MS, twins.MAX_TIME_MS + 1, -1, 2**62]))


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The returned value, or the type of the error."""
    try:
        return call(*args, **options)
    except (TypeError, ValueError, OverflowError) as error:
        # a UnicodeEncodeError is a ValueError
        return next(kind for kind in (TypeError, ValueError, OverflowError) if isinstance(error, kind))


def refusal(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as raised:
        call(*args, **options)
    return f"{raised.type.__name__}: {raised.value}"


def fields(value: Any, of: type[Any]) -> Any:
    """A native value as its twin's tuple."""
    if isinstance(value, type):
        return value
    return of(*(getattr(value, name) for name in of._fields))
