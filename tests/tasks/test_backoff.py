"""Backoffs: what a function of the task's may return, on a store in memory."""

from __future__ import annotations

import pytest

from pinlater import PinLater
from pinlater.testing import Harness

#: The pause of the default backoff after the first attempt, with its jitter.
LEAST_S, MOST_S = 0.9, 1.0


@pytest.mark.parametrize("pause_s", [None, 60])
def test_a_backoff_that_returns_none_leaves_the_pause_to_the_default_one(
    pause_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    app = PinLater()

    @app.task(backoff=lambda attempt, error: pause_s)
    def fail() -> None:
        raise ValueError

    with Harness(app) as harness:
        fail.enqueue()
        before_s = harness.clock.now().timestamp()
        [ran] = harness.drain(raising=False)
        after_s = harness.clock.now().timestamp()
        [job] = harness.enqueued()
    least_s, most_s = (LEAST_S, MOST_S) if pause_s is None else (pause_s, pause_s)
    assert ran.outcome == "retried"
    assert before_s + least_s <= job.due_ms / 1000 + 0.001 <= after_s + most_s + 0.002
    assert "backoff of task" not in caplog.text
