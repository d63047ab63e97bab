"""A spill rests for workers, but not while jobs come faster than they leave."""

from __future__ import annotations

import pytest

from pinlater import NewJob
from pinlater.archive.pace import LOOK_S, REST, Pace
from pinlater.model.jobs import CountsByState
from tests.archive.rig import EVERYSEC, QUEUE, Rig
from tests.conftest import FreshServer


def seen(*looks: CountsByState) -> Pace:
    pace = Pace()
    for at, counts in enumerate(looks):
        pace.look([counts, CountsByState()], float(at))
    return pace


@pytest.mark.parametrize(
    ("looks", "rests"),
    [
        ([], False),
        ([CountsByState(9, 9)], False),
        ([CountsByState(9, 9, in_progress=1)], True),
        ([CountsByState(9, 9, in_progress=1), CountsByState(9, 9, in_progress=1)], True),
        ([CountsByState(9, 9, in_progress=1), CountsByState(8, 9, in_progress=1)], True),
        ([CountsByState(9, 9, in_progress=1), CountsByState(8, 9)], False),
        ([CountsByState(9, 9, in_progress=1), CountsByState(10, 9, in_progress=1)], False),
        ([CountsByState(9, 9, in_progress=1), CountsByState(9, 10, in_progress=1)], False),
        ([CountsByState(9, 9), CountsByState(99, 9, in_progress=1), CountsByState(98, 9, in_progress=1)], True),
    ],
)
def test_when_a_spill_rests(looks: list[CountsByState], rests: bool) -> None:
    assert seen(*looks).rest_s(0.5) == (0.5 * REST if rests else 0)


def test_it_looks_now_and_then() -> None:
    pace = Pace()
    assert pace.is_due(0.0)
    pace.look([], 0.0)
    assert not pace.is_due(LOOK_S / 2)
    assert pace.is_due(LOOK_S)


@pytest.mark.parametrize("works", [True, False])
def test_a_spill_rests_after_each_transaction(
    works: bool, fresh_server: FreshServer, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests_s: list[float] = []

    def rest_s(pace: Pace, worked_s: float) -> float:
        rests_s.append(found := real(pace, worked_s))
        return found

    real = Pace.rest_s
    monkeypatch.setattr(Pace, "rest_s", rest_s)
    with Rig({"1": fresh_server("valkey", config=EVERYSEC).url}, mysql_url) as rig:
        rig.create()
        rig.client.enqueue_many(QUEUE, [NewJob(b"x")] * 1_100)
        held = rig.client.dequeue(QUEUE, 1) if works else []
        assert rig.spill() == 1_100 - len(held)
    assert 2 <= len(rests_s) <= 5  # five batches, four a transaction at most
    assert all(each_s > 0 for each_s in rests_s) is works
