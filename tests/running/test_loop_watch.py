"""Whether a loop turns, judged at times that the test gives.

Promises: shown without processes. test_running.py ends a real one.
"""

from __future__ import annotations

from pinlater.running.loop_watch import LoopWatch

LIMIT_S = 3.0


def stuck_after(watch: LoopWatch, reported_s: float, checks_s: list[float]) -> list[float]:
    """The checks that find the loop stuck."""
    return [now_s for now_s in checks_s if watch.is_stuck(reported_s, now_s)]


def test_a_loop_that_does_not_turn_is_stuck() -> None:
    assert stuck_after(LoopWatch(LIMIT_S), 100.0, [100.0 + second for second in range(10)])


def test_a_process_is_not_blamed_for_a_stop_of_its_supervisor() -> None:
    """The supervisor stood still for 9 s, and has not read the reports of that time yet."""
    assert stuck_after(LoopWatch(LIMIT_S), 100.0, [100.5, 109.5]) == []
