"""Values of jobs: what their text says."""

from __future__ import annotations

from pinlater import State


def test_the_text_of_a_state_is_its_name() -> None:
    assert [str(state) for state in State] == ["pending", "in_progress", "succeeded", "failed"]
    assert f"{State.FAILED:>8}" == "  failed"
