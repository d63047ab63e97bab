"""Patterns over bodies: what they match, and that neither a pattern nor a body makes a match long."""

from __future__ import annotations

import random

import pytest

from pinlater._core import BodyPattern


@pytest.mark.parametrize(
    ("pattern", "body", "found"),
    [
        ("b+c", b"abbc", True),
        ("^b", b"abbc", False),
        ("", b"", True),
        ("a.c", b"a\xffc", True),
        ("a.c", b"a\nc", False),
        ("a.c", b"a\0c", True),
        (r"^\w+$", "é".encode(), False),
        ("é", "café".encode(), True),
        ("(?i)KEY", b"my key", True),
        (r'"id": ?\d{3}\b', b'{"id": 117}', True),
        (r"\xff\xfe", b"\0\xff\xfe", True),
    ],
)
def test_what_matches(pattern: str, body: bytes, found: bool) -> None:
    assert BodyPattern(pattern).matches(body) is found


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "unclosed group"),
        ("*", "repetition operator missing expression"),
        (r"(a)\1", "backreferences are not supported"),
        ("a" * 5000, "at most 4096 bytes, got 5000"),
        ("(a{100}){100}", "compiles to 32768 bytes at most"),
        ("((a{9}){9}){9}" * 200, "compiles to 32768 bytes at most"),
        ("(" * 1000 + ")" * 1000, "number of nested parentheses"),
        ("[é]", "Unicode not allowed here"),
    ],
)
def test_a_bad_pattern_is_named(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^pattern: expected") as raised:
        BodyPattern(pattern)
    assert said in str(raised.value)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(a|a)*b$", "(.*)*=$", "([ab].{0,60}[cd].{0,60}){1,2}[ef]$"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    chance = random.Random(7)
    compiled = BodyPattern(pattern)
    for alphabet in (b"x", b"a", b"abcd"):  # backtracking would not end
        assert not compiled.matches(bytes(chance.choices(alphabet, k=1 << 17)))
