"""Rates and the limits of a configuration: what is read, what is written, and what is refused.

Promises that a rate is the fraction that its text names, and that bad input is refused with what was expected and what
came, before anything is sent.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinlater import QueueConfig
from pinlater.model.errors import InvalidArgument
from pinlater.model.limits import MAX_RATE, Rate
from pinlater.model.queue_config import MAX_MARK, MAX_UNITS, StoredConfig

MAX_U32 = 2**32 - 1
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    """Any rate that there is."""
    per_ms = draw(st.integers(1, MAX_U32))
    count = draw(st.integers(0, min(MAX_U32, per_ms * MAX_RATE // 1000)))
    return Rate.of(Rate(count, per_ms))


@given(rates())
def test_a_rate_reads_its_own_text(rate: Rate) -> None:
    assert Rate.of(str(rate)) == rate


@given(rates())
def test_a_rate_is_in_lowest_terms_so_that_equal_ones_are_equal(rate: Rate) -> None:
    found = Fraction(rate.count, rate.per_ms)
    assert (rate.count, rate.per_ms) == (found.numerator, found.denominator)
    assert rate.count * 1000 <= MAX_RATE * rate.per_ms


@given(st.integers(0, 9_999), st.integers(0, 999), st.one_of(st.none(), st.integers(1, 999)), st.sampled_from("smhd"))
def test_a_text_is_the_fraction_that_it_names(whole: int, part: int, times: int | None, unit: str) -> None:
    text = f" {whole}.{part:03d} / {'' if times is None else times}{unit} "
    named = Fraction(1000 * whole + part, 1000 * (times or 1) * UNITS_MS[unit])
    if named.denominator > MAX_U32:
        with pytest.raises(InvalidArgument, match="rate: expected a simpler number"):
            Rate.of(text)
    else:
        rate = Rate.of(text)
        assert Fraction(rate.count, rate.per_ms) == named


@given(st.one_of(st.integers(0, MAX_RATE), st.floats(0.001, 1e6).map(lambda each: round(each, 3))))
def test_a_number_is_jobs_a_second(jobs: float) -> None:
    rate = Rate.of(jobs)
    assert Fraction(rate.count, rate.per_ms) == Fraction(str(jobs)) / 1000


@pytest.mark.parametrize(
    ("value", "text", "burst"),
    [
        ("100/s", "100/s", 100),
        ("100", "100/s", 100),
        (100, "100/s", 100),
        ("5/m", "5/m", 1),
        ("0.5/s", "30/m", 1),
        ("3/10s", "18/m", 1),
        ("1/7s", "1/7s", 1),
        ("1/1.5s", "40/m", 1),
        ("1/36h", "1/36h", 1),
        ("2.5/s", "150/m", 2),
        ("0", "0/s", 1),
        (0.0, "0/s", 1),
        ("1000000/s", "1000000/s", 1_000_000),
        (Rate(10, 20), "500/s", 500),
    ],
)
def test_texts_of_rates(value: Any, text: str, burst: int) -> None:
    rate = Rate.of(value)
    assert str(rate) == text
    assert rate.default_burst == burst


BAD_RATES: list[Any] = [
    -1, -0.5, float("nan"), float("inf"), float("-inf"), True, False, b"1/s", [], {}, object,
    "", " ", "/s", "1/", "1/w", "1/ms", "1/S", "-1/s", "+1/s", "1e3/s", "nan", "inf", "1/0s", "1/-2s", "1//s", "1/s/s",
    "1.2.3/s", "1,5/s", "1 000/s", "1/s\n1", "\u0661/s", "0x10/s", "1" * 13 + "/d", "1/" + "1" * 10 + "s",
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_RATES, ids=repr)
def test_what_is_no_rate_is_refused_with_what_came(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="rate: expected jobs in a time such as 100/s, 5/m") as caught:
        Rate.of(value)
    assert repr(value)[:60] in str(caught.value)


@pytest.mark.parametrize("value", [2**62, 1e300, "1000001/s", "999999999999/s", "1000000.001/s", Rate(MAX_U32, 1)])
def test_a_rate_that_is_too_high_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="rate: expected at most 1,000,000 jobs a second, got"):
        Rate.of(value)


@pytest.mark.parametrize("value", ["0.123456789012/s", "1/999999999d", "1.000000000001/d", 1e-300])
def test_a_rate_with_more_digits_than_can_be_kept_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"rate: expected (a simpler number|at most)"):
        Rate.of(value)


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """The limits of a configuration, in any combination."""
    rate = draw(st.one_of(st.none(), rates()))
    most = 0 if rate is None else min(1_000_000, MAX_UNITS // rate.per_ms)
    return {
        "rate": rate,
        "burst": draw(st.one_of(st.none(), st.integers(1, most))) if most else None,
        "max_running": draw(st.one_of(st.none(), st.integers(1, MAX_U32))),
        "home": draw(st.one_of(st.just(""), st.from_regex(r"[A-Za-z0-9_-]{1,32}", fullmatch=True))),
        "run_on_home_loss": draw(st.booleans()),
        "open_when_empty": draw(st.booleans()),
        "refuse_above": draw(st.one_of(st.none(), st.integers(1, MAX_MARK))),
        "paused": draw(st.booleans()),
        "refuse_enqueue": draw(st.booleans()),
        "crash_limit": draw(st.integers(0, 0xFFFF)),
        "quarantine_queue": draw(st.sampled_from(["", "bad_ones"])),
    }


def stored(settings: bytes, version: bytes = b"version!") -> bytes:
    """The field `config` of the key `meta`, as the scripts make it of settings."""
    return b"\2" + settings[:2] + version + bytes([0, 0, 0, 1]) + bytes([0, 0, 0, 1]) + settings[2:]


@given(limits())
def test_a_configuration_with_limits_comes_back_as_it_was(words: dict[str, Any]) -> None:
    config = QueueConfig(**words)
    found = StoredConfig.unpack(stored(config.pack()))
    assert found.config == config
    assert found.settings == config.pack()
    assert not found.deleted


@given(limits())
def test_a_pause_that_ends_is_no_part_of_the_settings(words: dict[str, Any]) -> None:
    config = QueueConfig(**words)
    packed = config.pack()
    found = StoredConfig.unpack(stored(bytes([packed[0] | 16]) + packed[1:]))
    assert (found.config, found.settings) == (config, packed)


@given(limits())
def test_a_queue_gives_no_jobs_if_it_is_paused_or_has_a_rate_of_zero(words: dict[str, Any]) -> None:
    """Scripts look at this flag alone."""
    config = QueueConfig(**words)
    stopped = config.paused or (config.rate is not None and config.exact_rate == Rate.of(0))
    assert config.pack()[0] & 1 == stopped
    assert bool(config.pack()[0] & 8) == (config.max_running is not None)


def test_a_configuration_without_the_limits_of_a_newer_client_has_none() -> None:
    config = QueueConfig(crash_limit=3)
    older = config.pack()[: 2 + 20 + 3 + 1]
    assert StoredConfig.unpack(stored(older)).config == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rate": -1}, "rate: expected jobs in a time .* got -1"),
        ({"rate": "100/week"}, "rate: expected jobs in a time .* got '100/week'"),
        ({"rate": 2**62}, f"rate: expected at most 1,000,000 jobs a second, got {2**62}"),
        ({"rate": True}, "rate: .* got True"),
        ({"burst": 5}, "burst: expected a rate beside it, got a burst of 5 alone"),
        ({"rate": 1, "burst": 0}, "burst: expected an integer from 1 to 1,000,000, got 0"),
        ({"rate": 1, "burst": -1}, "burst: expected an integer from 1 to 1,000,000, got -1"),
        ({"rate": 1, "burst": True}, "burst: expected an integer .* got True"),
        ({"rate": 1, "burst": 2.0}, "burst: expected an integer .* got 2.0"),
        ({"rate": 1, "burst": 1_000_001}, "burst: expected an integer from 1 to 1,000,000, got 1000001"),
        ({"rate": 1, "burst": 2**62}, f"burst: expected an integer .* got {2**62}"),
        ({"rate": "1/30d", "burst": 200_000}, "burst: expected an integer from 1 to 108,593, got 200000"),
        ({"max_running": 0}, "max_running: expected an integer from 1 to 4,294,967,295, got 0"),
        ({"max_running": -1}, "max_running: expected an integer .* got -1"),
        ({"max_running": True}, "max_running: expected an integer .* got True"),
        ({"max_running": 1.5}, "max_running: expected an integer .* got 1.5"),
        ({"max_running": float("nan")}, "max_running: expected an integer .* got nan"),
        ({"max_running": 2**62}, f"max_running: expected an integer .* got {2**62}"),
        ({"max_running": "5"}, "max_running: expected an integer .* got '5'"),
        ({"home": "no shard"}, "shard name: expected 1 to 32 letters.* got 'no shard'"),
        ({"home": "x" * 33}, "shard name: expected 1 to 32 letters"),
        ({"home": "a/b"}, "shard name: expected 1 to 32 letters.* got 'a/b'"),
        ({"home": None}, "shard name: expected 1 to 32 letters.* got None"),
        ({"home": 1}, "shard name: expected 1 to 32 letters.* got 1"),
        ({"run_on_home_loss": 1}, "run_on_home_loss: expected True or False, got 1"),
        ({"open_when_empty": "yes"}, "open_when_empty: expected True or False, got 'yes'"),
    ],
)
def test_bad_limits_are_refused_with_what_was_expected_and_what_came(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        QueueConfig(**words)


@given(limits())
def test_the_largest_account_of_a_configuration_fits_into_its_field(words: dict[str, Any]) -> None:
    config = QueueConfig(**words)
    if (rate := config.exact_rate) is not None:
        assert (config.burst or rate.default_burst) * rate.per_ms <= MAX_UNITS
