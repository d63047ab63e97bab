"""The limits of a queue under several clients, in any order of their calls, faults, changes and clocks.

Promises: after every script call no token is there that did not flow in by the rate, and none is there twice: jobs
claimed, tokens held by clients and tokens in the account are together at most the flow so far. No more jobs run than
max_running, a paused queue gives nothing, and in the end each job is in one place. A limit holds jobs back no longer
than it must.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pinlater import Job, QueueConfig
from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError
from pinlater.operations.audit import audit
from pinlater.operations.dequeue import dequeue
from pinlater.operations.enqueue import enqueue_many
from pinlater.operations.inspect import count
from pinlater.operations.leases import ack, release
from pinlater.operations.limits import end_pause, pause_for, queue_limits, return_tokens
from pinlater.operations.queues import configure_queue, create_queue, delete_queue
from pinlater.store.effects import Flow
from pinlater.store.shards import Session
from tests.support.fleet import Fate, Fleet, client_time

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
QUEUE = "q"
CALL_S = 5.0

CLIENTS = st.integers(0, 2)
RATES = st.sampled_from([None, 0, "1/s", "5/m", "10/s", "1000/s", "3/7s", "1/h"])
BURSTS = st.sampled_from([None, 1, 3, 20])
PLACES = st.sampled_from([None, 1, 2, 5])
FATES = st.one_of(
    st.none(),
    st.none(),
    st.builds(Fate, st.sampled_from(["grant", "claim"]), st.sampled_from([1, 1, 2, 100]), st.booleans()),
)
TIMES_MS = st.sampled_from([1, 10, 99, 500, 999, 1000, 1001, 2500, 15_000, 61_000, 3_600_000])
JUMPS_MS = st.sampled_from([-3_600_000, -20_000, -1001, -1000, -5, 5, 1000, 60_000, 3_600_000])


class LimitsMachine(RuleBasedStateMachine):
    """Three clients of one queue; each may die, and another one comes."""

    shards = 1

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(QUEUE, self.shards)
        self._patched = client_time(self.fleet.time)
        self._patched.__enter__()
        self.clients = [self.fleet.session() for _ in range(3)]
        self.jobs: list[list[Job]] = [[] for _ in self.clients]
        self.unknown: list[tuple[int, OutcomeUnknown]] = []
        self.alive = set[str]()  # jobs that were not acked
        self.taken = set[str]()  # those that some client has, or had when it died
        self.made = 0

    @initialize(rate=RATES, burst=BURSTS, places=PLACES)
    def create(self, rate: Any, burst: int | None, places: int | None) -> None:
        config = QueueConfig(rate=rate, burst=None if rate is None else burst, max_running=places)
        assert self.call(0, lambda client, end: create_queue(client, QUEUE, config, end))

    def call(self, client: int, make: Any, fate: Fate | None = None) -> Any:
        session = self.clients[client]
        return self.fleet.drive(make(session, self.now_s + CALL_S), session, fate)

    @property
    def now_s(self) -> float:
        return self.fleet.time.monotonic()

    def all_up(self) -> bool:
        return all(shard.is_up for shard in self.fleet.shards.values())

    # jobs

    @precondition(all_up)
    @rule(client=CLIENTS, number=st.integers(1, 6))
    def enqueue(self, client: int, number: int) -> None:
        self.made += number
        bodies: list[Any] = [b"%d" % (self.made + each) for each in range(number)]
        self.alive |= set(self.call(client, lambda session, end: enqueue_many(session, QUEUE, bodies, end)))

    @rule(client=CLIENTS, limit=st.integers(1, 8), fate=FATES)
    def claim(self, client: int, limit: int, fate: Fate | None) -> None:
        self.dequeue(client, limit, None, fate)

    @rule(client=CLIENTS, limit=st.integers(1, 8), wait_s=st.sampled_from([0.05, 1.0, 20.0]), fate=FATES)
    def wait_for_jobs(self, client: int, limit: int, wait_s: float, fate: Fate | None) -> None:
        self.dequeue(client, limit, wait_s, fate)

    def dequeue(self, client: int, limit: int, wait_s: float | None, fate: Fate | None = None) -> int:
        def flow(session: Session, _: float) -> Flow[list[Job]]:
            return dequeue(session, QUEUE, limit, wait_s, "worker", CALL_S)

        fate = fate and Fate(fate.verb, fate.lost, fate.is_late)
        try:
            jobs = self.call(client, flow, fate)
        except OutcomeUnknown as error:
            self.unknown.append((client, error))
            return 0
        except PinLaterError:
            if self.all_up() and not fate:
                raise
            return 0
        assert len(jobs) <= limit
        self.take(client, jobs)
        return len(jobs)

    def take(self, client: int, jobs: list[Job]) -> None:
        names = {job.descriptor for job in jobs}
        assert len(names) == len(jobs)
        assert names <= self.alive, "a job that was acked came again"
        assert not names & self.taken, "a job was given twice"
        self.taken |= names
        self.jobs[client] += jobs

    @precondition(lambda self: self.unknown and self.all_up())
    @rule()
    def resolve(self) -> None:
        """The answer to a lost claim comes."""
        client, error = self.unknown.pop(0)
        try:
            self.take(client, self.call(client, lambda _, end: error.resume(end)))
        except PinLaterError:
            return  # a late request came first, or this one comes later still

    @precondition(all_up)
    @rule(client=CLIENTS, number=st.integers(1, 8), how=st.sampled_from(["succeeded", "failed", "released"]))
    def end(self, client: int, number: int, how: str) -> None:
        jobs, self.jobs[client] = self.jobs[client][:number], self.jobs[client][number:]
        if how == "released":
            self.call(client, lambda session, end: release(session, jobs, "", end))
        else:
            chosen: dict[str, Any] = {"succeeded": [], "failed": [], how: jobs}
            self.call(client, lambda session, end: ack(session, chosen["succeeded"], chosen["failed"], "", False, end))
        names = {job.descriptor for job in jobs}
        self.taken -= names
        if how == "succeeded":
            self.alive -= names

    # clients

    @rule(client=CLIENTS, returns=st.booleans())
    def replace_client(self, client: int, returns: bool) -> None:
        """A client dies, or stops and returns its tokens. Its jobs stay in progress."""
        if returns:
            self.call(client, lambda session, end: return_tokens(session, QUEUE, end))
        self.fleet.sessions.remove(self.clients[client])
        self.clients[client] = self.fleet.session()
        self.jobs[client] = []
        self.unknown = [each for each in self.unknown if each[0] != client]

    # settings

    @rule(client=CLIENTS, rate=RATES, burst=BURSTS)
    def set_rate(self, client: int, rate: Any, burst: int | None) -> None:
        self.configure(client, rate=rate, burst=None if rate is None else burst)

    @rule(client=CLIENTS, max_running=PLACES)
    def set_places(self, client: int, max_running: int | None) -> None:
        self.configure(client, max_running=max_running)

    @rule(client=CLIENTS, home=st.sampled_from("123"))
    def set_home(self, client: int, home: str) -> None:
        if home in self.fleet.shards:
            self.configure(client, home=home)

    @rule(client=CLIENTS, paused=st.booleans())
    def set_paused(self, client: int, paused: bool) -> None:
        self.configure(client, paused=paused)

    @rule(client=CLIENTS)
    def set_something_else(self, client: int) -> None:
        self.configure(client, lease_ms=30_000 + self.fleet.time.ms % 1000)

    def configure(self, client: int, **changes: Any) -> None:
        try:
            self.call(client, lambda session, end: configure_queue(session, QUEUE, changes, end))
        except InvalidArgument:  # jobs are on other shards than the home
            assert changes.keys() & {"max_running", "home"}
        except PinLaterError:
            if self.all_up():
                raise

    @precondition(all_up)
    @rule(client=CLIENTS, seconds=st.sampled_from([0.0, 0.5, 10, 100_000]))
    def pause(self, client: int, seconds: float) -> None:
        if seconds:
            self.call(client, lambda session, end: pause_for(session, QUEUE, seconds, "test", end))
        else:
            self.call(client, lambda session, end: end_pause(session, QUEUE, end))

    # time and faults

    @rule(ms=TIMES_MS)
    def pass_time(self, ms: int) -> None:
        self.fleet.pass_ms(ms)

    @rule(shard=st.sampled_from("123"), ms=JUMPS_MS)
    def jump(self, shard: str, ms: int) -> None:
        if shard in self.fleet.shards:
            self.fleet.jump(shard, ms)

    @rule(shard=st.sampled_from("123"))
    def go_away_or_come_back(self, shard: str) -> None:
        if shard in self.fleet.shards:
            self.fleet.shards[shard].is_up ^= True

    @precondition(lambda self: self.fleet.late)
    @rule()
    def come_late(self) -> None:
        self.fleet.carry_out_late()

    @precondition(all_up)
    @rule(client=CLIENTS, loses=st.booleans(), sure=st.integers(0, 4), rate=RATES)
    def make_anew(self, client: int, loses: bool, sure: int, rate: Any) -> None:
        """The data is lost, or the queue is deleted; then there is another one of its name."""
        if sure:
            return
        if loses:
            for shard in self.fleet.shards.values():
                shard.store.clear()
        else:
            self.call(client, lambda session, end: delete_queue(session, QUEUE, end))
        self.alive, self.taken, self.unknown = set(), set(), []
        self.jobs = [[] for _ in self.clients]
        self.fleet.late.clear()
        self.call(client, lambda session, end: create_queue(session, QUEUE, QueueConfig(rate=rate), end))

    # looking

    @precondition(all_up)
    @rule(client=CLIENTS)
    def look(self, client: int) -> None:
        seen = self.call(client, lambda session, end: queue_limits(session, QUEUE, end))
        # a client leaves out a shard that did not answer it lately
        assert seen.running <= sum(shard.running for shard in self.fleet.shards.values())
        if self.config.rate is not None and seen.tokens is not None:
            assert seen.tokens <= (self.config.burst or self.config.exact_rate.default_burst)  # type: ignore[union-attr]

    @property
    def config(self) -> QueueConfig:
        found = [shard.packed for shard in self.fleet.shards.values() if shard.packed]
        newest = max(found, key=lambda packed: (packed[15:19], packed[3:11]))
        shard = next(shard for shard in self.fleet.shards.values() if shard.packed == newest)
        assert shard.config is not None
        return shard.config

    @precondition(all_up)
    @rule(client=CLIENTS)
    def go_on(self, client: int) -> None:
        """What a limit held back comes when the limit allows it."""
        self.call(client, lambda session, end: configure_queue(session, QUEUE, {"paused": False}, end))
        self.call(client, lambda session, end: end_pause(session, QUEUE, end))
        config, rate = self.config, self.config.exact_rate
        counts = self.call(client, lambda session, end: count(session, QUEUE, None, end))
        places = 1 if config.max_running is None else config.max_running - counts.in_progress
        if not counts.pending or places < 1 or (rate is not None and not rate.count):
            return
        token_ms = 0 if rate is None else -(-rate.per_ms // rate.count)
        for _ in range(4):  # the first look of an account may only begin it
            if self.dequeue(client, 1, None):
                return
            self.fleet.pass_ms(token_ms + 15_000)
        raise AssertionError(f"expected one of {counts.pending} jobs")

    def teardown(self) -> None:
        try:
            if self.fleet.shards["1"].packed is not None:
                self.settle()
        finally:
            self._patched.__exit__(None, None, None)

    def settle(self) -> None:
        while self.fleet.late:
            self.fleet.carry_out_late()
        for shard in self.fleet.shards.values():
            shard.is_up = True
        self.fleet.pass_ms(10_000)
        report = self.call(0, lambda session, end: audit(session, QUEUE, end))
        assert report.findings == []
        found = report.jobs
        jobs = found.pending + found.scheduled + found.in_progress + found.succeeded + found.failed
        assert jobs == len(self.alive), "a job is lost, or there twice"


#: Examples by shards.
EXAMPLES = dict.fromkeys((1, 3), 5000) if CAMPAIGN else {1: 12, 3: 8}


@pytest.mark.timeout(3600 if CAMPAIGN else 300)
@pytest.mark.parametrize("shards", EXAMPLES)
def test_limits_hold_in_any_order(shards: int) -> None:
    run_state_machine_as_test(
        type("OnShards", (LimitsMachine,), {"shards": shards}),
        settings=settings(
            max_examples=EXAMPLES[shards],
            stateful_step_count=100 if CAMPAIGN else 50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
