"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pinlater.model.errors import InvalidArgument
from pinlater.model.times import as_seconds, milliseconds, parse_duration, parse_future, parse_past

NOW = datetime(2026, 11, 23, 12, 30, tzinfo=UTC)


def ms(*moment: int) -> int:
    return round(datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86_400), ("250ms", 0.25)),
        *(
            ("30", 30),
            ("0", 0),
            ("0.5", 0.5),
            (".5", 0.5),
            ("1.5h", 5400),
            ("30 s", 30),
            (" 5m ", 300),
            ("1e-05", 1e-05),
        ),
    ],
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "5x", "-5", "+5", "5 min", "1h30m", "inf", "nan", "1_000", "٣", "9" * 400, "1e400"]
)
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected a time such as 30s, 5m, 2h or 1d, or seconds, got '"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2h", ms(2026, 11, 23, 10, 30)),
        ("30", ms(2026, 11, 23, 12, 29, 30)),
        ("20d", ms(2026, 11, 3, 12, 30)),
        ("99999d", 0),
        ("2026-11-22T08:00Z", ms(2026, 11, 22, 8)),
        ("2026-11-22 08:00:01+01:00", ms(2026, 11, 22, 7, 0, 1)),
    ],
)
def test_a_time_before_now(text: str, moment: int) -> None:
    assert parse_past(text, NOW) == moment


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 22, 8)
    for text in ("2026-11-22 08:00", "2026-11-22T08:00:00"):
        assert parse_past(text, NOW) == parse_future(text, NOW) == local.timestamp() * 1000
    assert parse_past("2026-11-22", NOW) == datetime(2026, 11, 22).timestamp() * 1000


def test_a_time_of_day_is_today() -> None:
    noon = datetime(2026, 11, 23, 12, 30)
    assert parse_past("8:05", noon) == parse_past("08:05:00", noon) == datetime(2026, 11, 23, 8, 5).timestamp() * 1000
    assert parse_future("12:31", noon) == datetime(2026, 11, 23, 12, 31).timestamp() * 1000
    with pytest.raises(InvalidArgument, match="expected a date too, as 08:05 is over today"):
        parse_future("08:05", noon)


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01", "1969-01-01T00:00Z", "9999-01-01", "08:00 "])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected 2h \(that long ago\), 08:00 or '2026-11-23 08:00', got '"):
        parse_past(text, NOW)
    with pytest.raises(InvalidArgument, match=r"expected a time such as 08:00 or '2026-11-23 08:00', got '"):
        parse_future(text, NOW)


def test_a_length_is_no_time_to_come() -> None:
    with pytest.raises(InvalidArgument, match="expected a time such as 08:00"):
        parse_future("5m", NOW)


def test_seconds_and_timedeltas() -> None:
    assert as_seconds(timedelta(minutes=1)) == as_seconds(60) == 60
    assert milliseconds("x", timedelta(microseconds=1)) == 1
    assert milliseconds("x", timedelta(days=1)) == milliseconds("x", 86_400) == 86_400_000
    wrong: list[Any] = [timedelta(seconds=-1), -1, "5m", True, None, float("nan"), timedelta.max]
    for value in wrong:
        with pytest.raises(InvalidArgument, match="x: expected seconds or a timedelta, 0 or more, got "):
            milliseconds("x", value)
