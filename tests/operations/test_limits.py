"""The limits of a queue as one client meets them: changes between its requests, and a home shard that goes away.

Promises: no call waits, and the time is the test's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater import InvalidArgument, Job, NewJob, QueueConfig
from pinlater.operations.dequeue import dequeue
from pinlater.operations.enqueue import enqueue_many
from pinlater.operations.limits import pause_for, queue_limits, rest_of, return_tokens
from pinlater.operations.queues import configure_queue, create_queue
from pinlater.store.effects import Flow, Sleep
from pinlater.store.shards import Session
from tests.support.fleet import Fate, Fleet, client_time

MakeFleet = Callable[[int], Fleet]


@pytest.fixture
def fleet_of() -> Iterator[MakeFleet]:
    made: list[Any] = []

    def make(shards: int) -> Fleet:
        fleet = Fleet("q", shards)
        made.append(client_time(fleet.time))
        made[-1].__enter__()
        return fleet

    yield make
    for patched in reversed(made):
        patched.__exit__(None, None, None)


def create(fleet: Fleet, jobs: int, **words: Any) -> Session:
    session = fleet.session()
    fleet.drive(create_queue(session, "q", QueueConfig(**words), end(fleet)), session)
    for _ in range(jobs):  # each call goes to a shard of its own choice
        fleet.drive(enqueue_many(session, "q", [b"x"], end(fleet)), session)
    return session


def end(fleet: Fleet) -> float:
    return fleet.time.monotonic() + 5


def claim(fleet: Fleet, session: Session, limit: int, wait: float | None = None, fate: Fate | None = None) -> list[Job]:
    flow: Flow[list[Job]] = dequeue(session, "q", limit, wait, "test", 5)
    return fleet.drive(flow, session, fate)


def configure(fleet: Fleet, **changes: Any) -> None:
    """By another client."""
    session = fleet.session()
    fleet.drive(configure_queue(session, "q", changes, end(fleet)), session)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_rate_that_goes_while_a_client_asks_for_tokens_keeps_no_job_back(fleet_of: MakeFleet, shards: int) -> None:
    fleet = fleet_of(shards)
    session = create(fleet, 5, rate="1/h")
    fleet.before["grant"] = lambda: configure(fleet, rate=None)
    assert len(claim(fleet, session, 5)) == 5


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("limit", [1, 5])
def test_a_claim_that_was_sent_before_the_queue_had_a_rate_gets_nothing(
    fleet_of: MakeFleet, shards: int, limit: int
) -> None:
    fleet = fleet_of(shards)
    session = create(fleet, 20)
    for _ in range(4):  # now it sends the script for one simple job
        assert len(claim(fleet, session, 1)) == 1
    fleet.before["claim"] = lambda: configure(fleet, rate="1/h")
    assert claim(fleet, session, limit) == []


@pytest.mark.parametrize("shards", [1, 3])
def test_no_token_comes_from_a_time_without_a_rate(fleet_of: MakeFleet, shards: int) -> None:
    fleet = fleet_of(shards)
    session = create(fleet, 5, rate="1/h")

    def remove_then_set() -> None:
        configure(fleet, rate=None)
        fleet.before["claim"] = lambda: configure(fleet, rate="1/h")

    fleet.before["grant"] = remove_then_set
    assert claim(fleet, session, 5) == []


def test_a_home_that_moves_while_a_client_asks_for_tokens_keeps_nobody_waiting(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(3)
    session = create(fleet, 5, rate="10/s", home="1")
    assert claim(fleet, session, 1) == []  # the account begins
    fleet.pass_ms(1_000)
    fleet.before["grant"] = lambda: configure(fleet, home="2")
    before_ms = fleet.time.ms
    assert len(claim(fleet, session, 5, wait=20)) >= 1
    assert fleet.time.ms - before_ms < 5_000


def test_a_client_asks_again_where_it_was_given_too_little(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(1)
    session = create(fleet, 10, rate="10/s", burst=1)
    claim(fleet, session, 1)
    before_ms, got = fleet.time.ms, 0
    while fleet.time.ms - before_ms < 10_000:
        fleet.drive(enqueue_many(session, "q", [b"x"], end(fleet)), session)
        got += len(claim(fleet, session, 5, wait=1))
    assert 95 <= got <= 100


def test_max_running_is_taken_back_if_jobs_come_to_other_shards_meanwhile(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(3)
    producer = create(fleet, 0)
    claim(fleet, producer, 1)

    def enqueue_everywhere() -> None:
        for number in range(9):
            job = NewJob(b"x", key=str(number))
            fleet.drive(enqueue_many(producer, "q", [job], end(fleet)), producer)

    fleet.before["configure"] = enqueue_everywhere
    with pytest.raises(InvalidArgument, match="max_running: expected all jobs on the home shard"):
        configure(fleet, max_running=2)
    assert len(claim(fleet, fleet.session(), 9)) == 9


def away(fleet: Fleet, name: str, is_away: bool = True) -> None:
    fleet.shards[name].is_up = not is_away


def home_lost(fleet: Fleet, *, runs: bool, clients: int = 2) -> list[Session]:
    """Clients that have asked the home shard, which is then away."""
    sessions = [create(fleet, 60, rate="10/s", burst=10, home="1", run_on_home_loss=runs)]
    sessions += [fleet.session() for _ in range(clients - 1)]
    for session in [*sessions, *sessions]:  # so that each heard of the other
        claim(fleet, session, 1)
        fleet.pass_ms(20_000)
    away(fleet, "1")
    return sessions


def test_without_its_home_a_queue_rests(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(3)
    sessions = home_lost(fleet, runs=False)
    assert [claim(fleet, session, 5, wait=10) for session in sessions] == [[], []]
    away(fleet, "1", False)
    fleet.pass_ms(5_000)
    assert len(claim(fleet, sessions[0], 5)) == 5


def test_a_queue_that_may_go_on_without_its_home_goes_on_with_its_part(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(3)
    first, second = home_lost(fleet, runs=True)
    fleet.check = lambda: None  # type: ignore[method-assign]  # its tokens do not come from the account
    claim(fleet, first, 5)
    claim(fleet, second, 5)
    fleet.pass_ms(2_000)
    assert [len(claim(fleet, session, 20)) for session in (first, second)] == [5, 5]


def test_after_the_home_is_back_tokens_are_its_own_again(fleet_of: MakeFleet) -> None:
    """A client that went on without it asks it again, though it has tokens, and returns none of its own making."""
    fleet = fleet_of(3)
    first, second = home_lost(fleet, runs=True)
    fleet.check = lambda: None  # type: ignore[method-assign]  # its tokens do not come from the account
    claim(fleet, first, 5)
    fleet.pass_ms(2_000)
    assert len(claim(fleet, first, 1)) == 1  # four are left in its hands
    away(fleet, "1", False)
    fleet.pass_ms(6_000)
    assert len(claim(fleet, second, 5)) == 5
    before = fleet.drive(queue_limits(first, "q", end(fleet)), first).tokens
    fleet.drive(return_tokens(first, "q", end(fleet)), first)
    assert fleet.drive(queue_limits(first, "q", end(fleet)), first).tokens == before == 5
    fleet.verbs.clear()
    assert len(claim(fleet, first, 1)) == 1
    assert "grant" in fleet.verbs


def test_a_client_that_rests_sends_nothing(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(1)
    session = create(fleet, 5, rate="1/h")
    claim(fleet, session, 5)
    fleet.verbs.clear()
    for _ in range(3):
        fleet.pass_ms(10_000)
        assert claim(fleet, session, 5) == []
    assert fleet.verbs == []


def test_tokens_end_with_their_second(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(1)
    session = create(fleet, 20, rate="1/h", burst=10)
    claim(fleet, session, 1)
    fleet.pass_ms(36_000_000)
    assert [len(claim(fleet, session, 1)) for _ in range(4)] == [1] * 4  # of grants of 1, 2 and 4: three are left
    fleet.verbs.clear()
    fleet.pass_ms(999)
    assert len(claim(fleet, session, 1)) == 1
    assert "grant" not in fleet.verbs
    fleet.pass_ms(1)
    claim(fleet, session, 1)
    assert "grant" in fleet.verbs


def test_tokens_end_with_their_configuration(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(1)
    session = create(fleet, 20, rate="1/h", burst=10)
    claim(fleet, session, 1)
    session.queue_shard("q", "1").allowance.granted(5, int(fleet.time.monotonic() * 1000) + 1000)
    fleet.check = lambda: None  # type: ignore[method-assign]  # these did not come from the account
    configure(fleet, rate="2/h")
    fleet.verbs.clear()
    claim(fleet, session, 1)
    fleet.verbs.clear()
    assert claim(fleet, session, 1) == []


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("limit", ["pause", "max_running"])
def test_another_limit_is_not_asked_for_at_the_pace_of_the_rate(fleet_of: MakeFleet, shards: int, limit: str) -> None:
    fleet = fleet_of(shards)
    places = 1 if limit == "max_running" else None
    session, other = create(fleet, 20, rate="1000/s", burst=3, max_running=places), fleet.session()
    fleet.pass_ms(1_000)
    claim(fleet, session, 1)
    fleet.pass_ms(1_000)
    claim(fleet, session, 1)
    if limit == "pause":
        fleet.drive(pause_for(session, "q", 1000, "test", end(fleet)), session)
    calls = 0
    for _ in range(2):
        fleet.pass_ms(1_000)
        fleet.verbs.clear()
        assert claim(fleet, other, 8, wait=20) == []
        calls += len(fleet.verbs)
    assert calls < 200


def test_tokens_that_ended_do_not_end_a_rest(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(1)
    session = create(fleet, 40, rate="1/h", burst=10)
    claim(fleet, session, 1)
    fleet.pass_ms(36_000_000)
    for _ in range(8):  # grants of 1, 2, 4, and 3 of 8: it rests once they are used or over
        claim(fleet, session, 1)
    fleet.verbs.clear()
    fleet.pass_ms(2_000)
    assert claim(fleet, session, 1) == []
    assert fleet.verbs == []


def test_tokens_for_jobs_that_another_client_took_go_back_at_once(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(1)
    session, other = create(fleet, 3, rate="1/h", burst=10), fleet.session()
    assert claim(fleet, session, 5) == []
    fleet.pass_ms(36_000_000)
    fleet.before["claim"] = lambda: claim(fleet, other, 5)
    assert claim(fleet, session, 5) == []
    seen = fleet.drive(queue_limits(session, "q", end(fleet)), session)
    assert (seen.tokens, seen.granted, seen.running) == (7, 3, 3)


@pytest.mark.parametrize("verb", ["grant", "claim"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_lost_answer_costs_tokens_and_makes_none(fleet_of: MakeFleet, verb: str, is_late: bool) -> None:
    fleet = fleet_of(3)
    session = create(fleet, 20, rate="10/s", burst=10)
    claim(fleet, session, 5)
    fleet.pass_ms(20_000)
    claim(fleet, session, 5, fate=Fate(verb, 100, is_late))
    while fleet.late:
        fleet.carry_out_late()
    fleet.pass_ms(60_000)
    assert len(claim(fleet, session, 30, wait=10)) >= 5


@pytest.mark.parametrize("wait", [None, 0.05, 3.0])
def test_a_wait_that_ends_before_its_rest_leaves_the_rest(fleet_of: MakeFleet, wait: float | None) -> None:
    """Else a client that waits a short time again and again would take a place in the line each time."""
    fleet = fleet_of(1)
    session = create(fleet, 5, rate="1/h")
    claim(fleet, session, 1, wait)
    fleet.verbs.clear()
    for _ in range(3):
        assert claim(fleet, session, 1, wait) == []
    assert "grant" not in fleet.verbs


def test_a_wait_that_outlasts_its_rest_has_a_place_in_the_line(fleet_of: MakeFleet) -> None:
    fleet = fleet_of(1)
    session = create(fleet, 5, rate="1/s", burst=1)
    home = session.queue_shard("q", "1")
    places: list[bool] = []

    def note() -> None:
        places.append(home.allowance.has_place)
        fleet.before["grant"] = note

    claim(fleet, session, 1)
    note()
    assert len(claim(fleet, session, 1, wait=5)) == 1
    assert places == [False, True]


def test_a_rate_of_0_holds_a_client_back_as_a_pause_does(fleet_of: MakeFleet) -> None:
    """No message says that the queue was deleted, or that its data is lost, so a client may not rest for ever."""
    fleet = fleet_of(1)
    session = create(fleet, 5, rate="10/s", burst=1)
    claim(fleet, session, 1)
    configure(fleet, rate=0)
    fleet.pass_ms(20_000)
    session.queue_shard("q", "1").left = [5, 0, 0]
    fleet.verbs.clear()
    assert claim(fleet, session, 1) == []
    assert "grant" in fleet.verbs
    assert rest_of(session, "q") is None


def test_calls_of_one_client_take_one_place_in_the_line(fleet_of: MakeFleet) -> None:
    """Each would get a place of its own, and all would rest until the last one."""
    fleet = fleet_of(1)
    session = create(fleet, 9, rate="1/s", burst=1)
    home = session.queue_shard("q", "1")
    others: list[Flow[list[Job]]] = []

    def ask_too() -> None:
        for _ in range(3):
            others.append(dequeue(session, "q", 1, None, "test", 5))
            effect = next(others[-1])
            assert isinstance(effect, Sleep)

    fleet.pass_ms(100)
    home.left = [9, 0, 0]
    fleet.before["grant"] = ask_too
    assert claim(fleet, session, 1) == []
    assert [fleet.drive(other, session) for other in others] == [[], [], []]
    assert fleet.verbs.count("grant") == 1
