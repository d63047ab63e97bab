"""`TokenBucket` against its Python twin, and by itself: grants that end, flows that never drift.

Promises: a process never takes more than a grant or a rate allows, and over a year not one token less.
Risks: a mistake made in both, so the sums also stand here in exact arithmetic, and short stories by hand.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinlater import _core
from tests.support import twins
from tests.support.core_inputs import outcome, refusal

MOST = 2**63 - 1
MOST_RATE = 2**32 - 1
MOST_BURST = 1_000_000
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
GRANT_MS = 5

rates = st.tuples(
    st.one_of(st.integers(1, 20), st.sampled_from([999_983, MOST_RATE]), st.integers(1, MOST_RATE)),
    st.one_of(st.integers(1, 5000), st.sampled_from([3_600_000, DAY_MS, MOST_RATE]), st.integers(1, MOST_RATE)),
)
bursts = st.one_of(st.integers(1, 20), st.just(MOST_BURST), st.integers(1, MOST_BURST))
counts = st.one_of(st.integers(0, 20), st.integers(0, MOST))
steps_ms = st.one_of(st.integers(-50, 50), st.integers(0, 5000), st.sampled_from([YEAR_MS, 2**62]))


def flowing(count: int, per_ms: int, burst: int, now_ms: int = 0) -> _core.TokenBucket:
    bucket = _core.TokenBucket()
    bucket.flow(count, per_ms, burst, now_ms)
    return bucket


def granted(n: int, until_ms: int) -> _core.TokenBucket:
    bucket = _core.TokenBucket()
    bucket.grant(n, until_ms)
    return bucket


# The twin

few = [st.integers(0, most) for most in range(1, 10)]
odd_numbers = st.sampled_from([-1, 2**32 - 1, 2**32, MOST, 2**63, 2**64, True, None, 1.0, "1"])
numbers = st.one_of(*few, counts, odd_numbers)
grants = st.tuples(st.just("grant"), numbers)
flows = st.one_of(
    st.tuples(st.just("flow"), numbers, numbers, numbers),
    st.tuples(rates, bursts).map(lambda drawn: ("flow", *drawn[0], drawn[1])),
)
uses = st.one_of(
    st.tuples(st.just("take"), numbers),
    st.tuples(st.just("give_back"), numbers),
    st.tuples(st.just("wait_ms"), numbers),
    st.tuples(st.just("empty")),
)
waits_ms = st.one_of(*few, st.sampled_from([-5, 5000, YEAR_MS, 2**62]))
#: At least 10 calls: shorter sequences reach few states.
sequences = st.one_of(
    *(
        st.lists(st.tuples(calls, waits_ms), min_size=10)
        for calls in (flows | uses, grants | uses, grants | flows | uses)
    )
)


@given(sequences)
def test_a_token_bucket_is_its_twin(calls: list[tuple[tuple[Any, ...], int]]) -> None:
    native, twin = _core.TokenBucket(), twins.TokenBucket()
    now_ms = 0
    for (name, *args), step_ms in calls:
        now_ms += step_ms
        if name == "grant":
            args.append(now_ms + GRANT_MS)
        elif name != "give_back":
            args.append(now_ms)
        assert outcome(getattr(native, name), *args) == outcome(getattr(twin, name), *args)
        assert native.held == twin.held


# Grants


def test_a_new_bucket_is_empty() -> None:
    bucket = _core.TokenBucket()
    assert (bucket.held, bucket.take(1, 0), bucket.empty(0), bucket.wait_ms(1, 0)) == (0, 0, 0, None)
    assert bucket.wait_ms(0, 0) == 0


def test_a_grant_gives_its_tokens_until_it_ends() -> None:
    bucket = granted(5, 100)
    assert (bucket.held, repr(bucket)) == (5, "<TokenBucket of 5 tokens>")
    assert [bucket.take(2, 0), bucket.take(2, 99), bucket.held] == [2, 2, 1]
    assert [bucket.wait_ms(1, 99), bucket.wait_ms(2, 99)] == [0, None]
    assert [bucket.take(1, 100), bucket.held, bucket.wait_ms(1, 100)] == [0, 0, None]


def test_an_ended_grant_stays_ended() -> None:
    bucket = granted(5, 100)
    assert bucket.take(1, 100) == 0
    bucket.give_back(5)
    assert [bucket.held, bucket.take(1, 50)] == [0, 0]
    bucket.grant(5, 100)
    assert [bucket.held, bucket.empty(50)] == [0, 0]


def test_a_grant_replaces_what_was_held() -> None:
    bucket = granted(5, 100)
    bucket.grant(3, 200)
    assert bucket.held == 3
    bucket = flowing(1, 1, 10)
    assert bucket.take(1, 5) == 1
    bucket.grant(2, 20)
    assert [bucket.held, bucket.take(9, 15), bucket.take(9, 19)] == [2, 2, 0]


def test_no_more_comes_back_than_was_granted() -> None:
    bucket = granted(5, 100)
    assert bucket.take(3, 0) == 3
    bucket.give_back(2)
    assert bucket.held == 4
    bucket.give_back(MOST)
    assert bucket.held == 5


def test_what_was_emptied_does_not_come_back() -> None:
    bucket = granted(5, 100)
    assert [bucket.take(2, 0), bucket.empty(1), bucket.empty(1)] == [2, 3, 0]
    bucket.give_back(5)
    assert [bucket.held, bucket.empty(2)] == [2, 2]


@given(counts, st.lists(st.tuples(st.sampled_from(["take", "give_back", "empty"]), counts)))
def test_the_tokens_of_a_grant_are_each_in_one_place(n: int, calls: list[tuple[str, int]]) -> None:
    bucket = granted(n, 100)
    out = emptied = 0
    for name, wanted in calls:
        if name == "take":
            out += bucket.take(wanted, 0)
        elif name == "empty":
            emptied += bucket.empty(0)
        else:
            unused = min(wanted, out)
            bucket.give_back(unused)
            out -= unused
        assert bucket.held + out + emptied == n


# Flows


def test_a_flow_starts_empty_and_fills_up_to_its_burst() -> None:
    bucket = flowing(2, 1000, 3, 7000)
    assert [bucket.held, bucket.take(9, 7499), bucket.take(9, 7500)] == [0, 0, 1]
    assert [bucket.wait_ms(n, 7500) for n in (0, 1, 3, 4)] == [0, 500, 1500, None]
    assert [bucket.take(9, 100_000), bucket.wait_ms(1, 100_000)] == [3, 500]


def test_a_flow_starts_empty_after_a_grant() -> None:
    bucket = granted(5, 100)
    bucket.flow(1, 10, 5, 50)
    assert [bucket.held, bucket.take(5, 59), bucket.take(5, 60)] == [0, 0, 1]


def test_the_same_rate_again_changes_nothing() -> None:
    bucket = flowing(7, 3000, 100)
    for now_ms in range(0, 3000, 13):
        bucket.flow(7, 3000, 100, now_ms)
    assert [bucket.take(100, 2999), bucket.take(100, 3000)] == [6, 1]


def test_another_rate_keeps_the_part_of_a_token() -> None:
    bucket = flowing(1, 1000, 5)
    bucket.flow(1, 10, 5, 2999)  # 2.999 tokens are 2.9 and a rest that is dropped
    assert [bucket.held, bucket.take(5, 2999), bucket.take(5, 2999), bucket.take(5, 3000)] == [2, 2, 0, 1]
    bucket = flowing(1, 10, 5)
    bucket.flow(1, 1000, 5, 15)
    assert [bucket.take(5, 15), bucket.wait_ms(1, 15)] == [1, 500]


def test_a_smaller_burst_drops_what_is_above_it() -> None:
    bucket = flowing(1, 10, 5)
    bucket.flow(1, 10, 3, 49)
    assert [bucket.held, bucket.take(5, 49), bucket.wait_ms(1, 49)] == [3, 3, 10]


def test_a_pause_keeps_the_tokens_and_gives_none() -> None:
    bucket = flowing(1, 10, 5)
    bucket.flow(0, 10, 5, 25)
    assert [bucket.held, bucket.take(1, 90), bucket.wait_ms(1, 90), bucket.wait_ms(0, 90)] == [2, 0, None, 0]
    bucket.flow(1, 10, 5, 100)
    assert [bucket.take(5, 104), bucket.take(5, 105)] == [2, 1]


def test_a_paused_flow_can_be_emptied() -> None:
    bucket = flowing(1, 10, 5)
    bucket.flow(0, 10, 5, 25)
    assert [bucket.empty(30), bucket.held] == [2, 0]


def test_a_flow_is_emptied_of_its_whole_tokens() -> None:
    bucket = flowing(1, 10, 5)
    assert [bucket.empty(29), bucket.take(5, 29), bucket.take(5, 30)] == [2, 0, 1]


def test_no_more_comes_back_than_the_burst() -> None:
    bucket = flowing(1, 10, 5)
    assert bucket.take(5, 50) == 5
    bucket.give_back(3)
    assert bucket.held == 3
    bucket.give_back(MOST)
    assert [bucket.held, bucket.take(9, 50)] == [5, 5]


def test_nothing_flows_in_while_the_clock_stands_behind_its_latest_time() -> None:
    bucket = flowing(1, 10, 5)
    assert [bucket.take(5, now_ms) for now_ms in (100, 40, 90, 100, 115, 30, 120)] == [5, 0, 0, 0, 1, 0, 1]
    assert bucket.wait_ms(1, 90) == 40


@pytest.mark.parametrize(
    ("count", "per_ms"),
    [(7, 3000), (1, DAY_MS), (999_983, 3_600_000), (3, 7)],
    ids=["7 in 3 s", "1 a day", "999,983 an hour", "3 in 7 ms"],
)
def test_over_a_year_not_one_token_is_lost_or_made(count: int, per_ms: int) -> None:
    dice = random.Random(f"{count} {per_ms}")  # each step from 1 ms to a day, as long as no burst fills
    longest_ms = min(DAY_MS, (MOST_BURST - 1) * per_ms // count)
    bucket = flowing(count, per_ms, MOST_BURST)
    now_ms = taken = 0
    while now_ms < YEAR_MS:
        now_ms += int(longest_ms ** dice.random())
        taken += bucket.take(MOST, now_ms)
        assert taken == count * now_ms // per_ms


@given(rates, bursts, st.lists(st.tuples(counts, steps_ms), min_size=1, max_size=12))
def test_a_flow_never_gives_more_than_its_burst_and_its_rate(
    rate: tuple[int, int], burst: int, calls: list[tuple[int, int]]
) -> None:
    count, per_ms = rate
    bucket = flowing(count, per_ms, burst)
    now_ms = latest_ms = taken = 0
    sums = [(0, 0)]
    for n, step_ms in calls:
        now_ms = min(max(now_ms + step_ms, 0), MOST)
        latest_ms = max(latest_ms, now_ms)
        taken += bucket.take(n, now_ms)
        sums.append((latest_ms, taken))
        assert taken * per_ms <= count * latest_ms
    for (from_ms, before), (until_ms, after) in combinations(sums, 2):
        assert (after - before - burst) * per_ms <= count * (until_ms - from_ms)


@given(rates, bursts, st.integers(0, 2**50), counts, st.integers(0, 50), st.data())
def test_after_the_wait_the_tokens_are_there_and_not_before(
    rate: tuple[int, int], burst: int, passed_ms: int, taken: int, behind_ms: int, data: st.DataObject
) -> None:
    bucket = flowing(*rate, burst)
    bucket.take(taken, passed_ms)
    n = data.draw(st.integers(0, burst))
    now_ms = max(passed_ms - behind_ms, 0)
    wait_ms = bucket.wait_ms(n, now_ms)
    assert wait_ms is not None
    if wait_ms > 0:
        early = bucket.take(n, now_ms + wait_ms - 1)
        assert early < n
        bucket.give_back(early)
    assert bucket.take(n, now_ms + wait_ms) == n
    assert bucket.wait_ms(burst + 1, now_ms) is None


def test_the_largest_numbers_do_not_overflow() -> None:
    bucket = flowing(MOST_RATE, 1, MOST_BURST)
    assert bucket.take(MOST, MOST) == MOST_BURST
    assert flowing(4, 1, 5).take(9, 2**62) == 5
    bucket = flowing(1, MOST_RATE, MOST_BURST)
    assert bucket.wait_ms(MOST_BURST, 0) == MOST_BURST * MOST_RATE
    bucket.give_back(MOST)
    bucket.flow(1, MOST_RATE - 1, MOST_BURST, MOST)
    assert bucket.take(MOST, MOST) == MOST_BURST
    assert bucket.wait_ms(MOST_BURST, 0) == MOST + MOST_BURST * (MOST_RATE - 1)
    bucket = granted(MOST, MOST)
    bucket.give_back(MOST)
    assert [bucket.take(MOST, MOST - 1), bucket.empty(MOST)] == [MOST, 0]


# What is refused

ANY = "0 to 9,223,372,036,854,775,807"


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("grant", (-1, 9000), f"ValueError: n: expected {ANY}, got -1"),
        ("grant", (2**63, 9000), f"ValueError: n: expected {ANY}, got 9223372036854775808"),
        ("grant", (5, -1), f"ValueError: until_ms: expected {ANY}, got -1"),
        ("grant", (5, 9e3), f"TypeError: until_ms: expected an int from {ANY}, got 9000.0"),
        ("flow", (-1, 1, 1, 9000), "ValueError: count: expected 0 to 4,294,967,295, got -1"),
        ("flow", (2**32, 1, 1, 9000), "ValueError: count: expected 0 to 4,294,967,295, got 4294967296"),
        ("flow", (1, 0, 1, 9000), "ValueError: per_ms: expected 1 to 4,294,967,295, got 0"),
        ("flow", (1, 2**32, 1, 9000), "ValueError: per_ms: expected 1 to 4,294,967,295, got 4294967296"),
        ("flow", (1, 1, 0, 9000), "ValueError: burst: expected 1 to 1,000,000, got 0"),
        ("flow", (1, 1, 1_000_001, 9000), "ValueError: burst: expected 1 to 1,000,000, got 1000001"),
        ("flow", (1, 1, 1, -1), f"ValueError: now_ms: expected {ANY}, got -1"),
        ("take", (-1, 9000), f"ValueError: n: expected {ANY}, got -1"),
        ("take", (True, 9000), f"TypeError: n: expected an int from {ANY}, got True"),
        ("take", (1, 2**63), f"ValueError: now_ms: expected {ANY}, got 9223372036854775808"),
        ("give_back", (-1,), f"ValueError: n: expected {ANY}, got -1"),
        ("empty", (-1,), f"ValueError: now_ms: expected {ANY}, got -1"),
        ("empty", (None,), f"TypeError: now_ms: expected an int from {ANY}, got None"),
        ("wait_ms", (2**63, 9000), f"ValueError: n: expected {ANY}, got 9223372036854775808"),
        ("wait_ms", (1, -1), f"ValueError: now_ms: expected {ANY}, got -1"),
    ],
)
def test_a_token_bucket_says_what_is_wrong_and_stays_as_it_was(name: str, args: tuple[Any, ...], message: str) -> None:
    bucket = flowing(7, 3000, 10)
    assert bucket.take(1, 1000) == 1
    assert refusal(getattr(bucket, name), *args) == message
    assert [bucket.held, bucket.take(10, 2999), bucket.take(10, 3000), bucket.wait_ms(7, 3000)] == [1, 5, 1, 3000]
