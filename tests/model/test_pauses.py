"""The pauses of retry loops."""

from __future__ import annotations

import pytest

from pinlater.model.pauses import FIRST_RETRY_S, LAST_RETRY_S, Pauses


@pytest.mark.parametrize(
    ("pauses", "taken"),
    [
        (Pauses(), [FIRST_RETRY_S, 0.2, 0.4, 0.8, 1.6, LAST_RETRY_S, LAST_RETRY_S]),
        (Pauses(0.5, 0.5), [0.5, 0.5]),
        (Pauses(1, 3, at_once=True), [0, 1, 2, 3, 3]),
    ],
)
def test_each_pause_is_twice_the_one_before_up_to_the_last(pauses: Pauses, taken: list[float]) -> None:
    assert [pauses.take() for _ in taken] == taken


def test_a_reset_returns_to_the_first_pause() -> None:
    pauses = Pauses(1, 8)
    assert pauses.is_first
    assert (pauses.take(), pauses.take(), pauses.is_first) == (1, 2, False)
    pauses.reset()
    assert (pauses.is_first, pauses.take()) == (True, 1)
