"""Every operation of the client in any order, against a model, on real servers whose clock the test moves.

Promises: after each step the audit finds nothing, and lookup, counts and the order of claims are
what the model says. PINLATER_CAMPAIGN=1 runs it for longer.
Risks: it has one client and one call at a time. Other tests have lost answers and races.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from pinlater import Job, NewJob, State
from pinlater._core import format_descriptor
from pinlater.model.errors import InvalidArgument
from pinlater.store.requests import write
from tests.support.audits import audit_queue
from tests.support.machine import FrozenClock, MemoryClock
from tests.support.machine_reservations import ReservationMachine
from tests.support.machine_working import ATTEMPTS, PICKS, PRIORITIES, RARELY, TIMES, WorkingMachine
from tests.support.memory import EVERY_KIND, MemoryKind
from tests.support.model import FAILED, HOUR_MS, PENDING, RUNNING, run_after, split
from tests.support.servers import Server

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
EXAMPLES = 3000 if CAMPAIGN else 12
FAR_MS = (1 << 44) - 1
MONITOR = b"monitor1"


class Machine(ReservationMachine):
    """The other operations: retries, removals, time, monitors, lost answers, looking."""

    @precondition(WorkingMachine.exists)
    @rule(priority=PRIORITIES, limit=st.integers(0, 4), attempts=ATTEMPTS, time=TIMES)
    def retry_failed(self, priority: int | None, limit: int, attempts: int, time: Any) -> None:
        self.lose()
        when = self.when(time)
        try:
            priorities = self.priorities(priority)
        except InvalidArgument:
            with pytest.raises(InvalidArgument, match="priority: expected 1 to"):
                self.client.retry_failed(self.queue, priority=priority, limit=limit, attempts=attempts, **when)
            return
        lines = [self.model.of(FAILED, priority, shard) for priority in priorities for shard in self.rig.shards]
        chosen = [job for line, count in zip(lines, split(limit, map(len, lines)), strict=True) for job in line[:count]]
        at_ms = run_after(when.get("run_after_ms"), when.get("delay_ms"), self.now_ms)
        for job in chosen:
            self.model.retry(job, attempts, at_ms, self.now_ms)
        answer = self.client.retry_failed(self.queue, priority=priority, limit=limit, attempts=attempts, **when)
        assert answer == len(chosen)

    @precondition(WorkingMachine.exists)
    @rule(picks=PICKS, attempts=ATTEMPTS)
    def retry_jobs(self, picks: list[int], attempts: int) -> None:
        self.lose()
        named = self.pick_named(picks)
        chosen = [job for name in set(named) if (job := self.model.jobs.get(name)) and job.state is FAILED]
        for job in chosen:
            self.model.retry(job, attempts, self.now_ms, self.now_ms)
        assert self.client.retry_jobs(named, attempts=attempts) == len(chosen)

    @precondition(WorkingMachine.exists)
    @rule(state=st.sampled_from(State), priority=PRIORITIES, limit=st.integers(0, 4))
    def delete_jobs(self, state: State, priority: int | None, limit: int) -> None:
        try:
            priorities = self.priorities(priority)
        except InvalidArgument:
            with pytest.raises(InvalidArgument, match="priority: expected 1 to"):
                self.client.delete_jobs(self.queue, state, priority=priority, limit=limit)
            return
        answer = self.client.delete_jobs(self.queue, state, priority=priority, limit=limit)
        left = self.client.lookup(self.model.jobs)
        lines = [self.model.of(state, priority, shard) for priority in priorities for shard in self.rig.shards]
        expected = list(split(limit, map(len, lines)))
        removed = [[job for job in line if job.descriptor not in left] for line in lines]
        assert [len(part) for part in removed] == expected
        assert answer == sum(expected)
        if state not in (PENDING, RUNNING):
            assert all(part == line[: len(part)] for part, line in zip(removed, lines, strict=True)), (
                "not the oldest first"
            )
        self.drop(job.descriptor for part in removed for job in part)

    @precondition(WorkingMachine.exists)
    @rule(picks=PICKS)
    def delete_named(self, picks: list[int]) -> None:
        named = self.pick_named(picks)
        there = {name for name in named if name in self.model.jobs}
        assert self.client.delete_jobs(descriptors=named) == len(there)
        self.drop(there)

    @precondition(WorkingMachine.exists)
    @rule(sure=RARELY)
    def purge(self, sure: bool) -> None:
        if sure:
            assert self.client.purge(self.queue) == len(self.model.jobs)
            self.drop(self.model.jobs)

    def drop(self, descriptors: Iterable[str]) -> None:
        names = list(descriptors)
        self.removed += names
        self.model.drop(names)

    # time, monitors, lost answers

    @rule(seconds=st.sampled_from([1, 1, 3, 10, 61, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(WorkingMachine.exists)
    @rule(seconds=st.sampled_from([0, 2, 6, 61]))
    def expire(self, seconds: int) -> None:
        """A monitor looks at every shard, some time later."""
        self.hold()
        self.clock.advance(seconds)
        self.look_for_leases(0)

    @precondition(WorkingMachine.exists)
    @rule(sure=RARELY, jumped=st.booleans())
    def find_an_unexpected_time(self, sure: bool, jumped: bool) -> None:
        """A monitor looks at a server with an unexpected time, and may know by its next look that the clock jumped."""
        if sure:
            self.look_for_leases(FAR_MS - 1)
            if jumped:
                self.look_for_leases(0, jumped=True)

    def look_for_leases(self, earliest_ms: int, *, jumped: bool = False) -> None:
        window = earliest_ms.to_bytes(6, "big") + 2 * FAR_MS.to_bytes(6, "big") + bytes([jumped])
        unexpected = earliest_ms > 0
        for reply, shard in self.look("expire", [MONITOR, 15_000, window, "1:0"]):
            active, rests, more, _, *counts, _, named = struct.unpack_from(">BBB6sIII6sH", reply)
            jobs = struct.iter_unpack(">BQ", reply[29 : 29 + 9 * named])
            failed = sorted(format_descriptor(self.queue, shard, *job) for job in jobs)
            *expected, expected_failed = self.model.expire(shard, unexpected, jumped, self.now_ms)
            assert (active, rests == 2, more, failed) == (1, unexpected or jumped, 0, expected_failed)
            assert counts == [*expected, len(failed)]

    @precondition(WorkingMachine.exists)
    @rule()
    def collect(self) -> None:
        for reply, shard in self.look("collect", ["0"]):
            succeeded, failed, _, reservations = struct.unpack_from(">IIII", reply)
            assert (succeeded, failed, reservations) == self.model.collect(shard, self.now_ms)

    @precondition(WorkingMachine.exists)
    @rule(sure=RARELY)
    def reservations_grow_old(self, sure: bool) -> None:
        if sure:
            self.prepare(2, 0)
            self.clock.advance(HOUR_MS // 1000 + 1)
            self.collect()
            assert self.model.reservations == []

    def look(self, verb: str, arguments: list[Any]) -> Iterator[tuple[bytes, str]]:
        for queue_shard in self.client.session.queue_shards(self.queue):
            reply = self.client.run(lambda end, queue_shard=queue_shard: write(queue_shard, verb, arguments, end))  # type: ignore[misc]
            yield reply[2], queue_shard.shard.name

    @rule(pick=st.integers(0, 5), followed=st.booleans())
    def resend(self, pick: int, followed: bool) -> None:
        """An answered request is repeated: it gets the same answer. The invariants check that nothing changed."""
        sent = self.rig.candidates(followed)
        if sent:
            chosen = sent[pick % len(sent)]
            self.rig.check_answer(chosen, self.rig.resend(chosen), self.model)

    @precondition(WorkingMachine.exists)
    @rule(limit=st.integers(1, 5), ended=st.integers(0, 3), again=st.booleans())
    def resend_a_claim(self, limit: int, ended: int, again: bool) -> None:
        """A claim whose jobs were ended meanwhile, or released and claimed by others."""
        before = len(self.claimed)
        self.put([NewJob(b"claimed")])
        self.dequeue(limit)
        mine = self.claimed[before:]
        if again:
            assert self.rig.other.release(mine[:ended]) == []
            for job in mine[:ended]:
                self.model.release(self.model.jobs[job.descriptor])
            self.rig.forget_hints()
            theirs = self.rig.other.dequeue(self.queue, limit)
            self.model.claim(theirs, self.now_ms)
            self.claimed += theirs
        else:
            self.end_elsewhere(mine[:ended])
        for sent in self.rig.candidates(False):
            self.rig.check_answer(sent, self.rig.resend(sent), self.model)

    def end_elsewhere(self, jobs: list[Job]) -> None:
        assert self.rig.other.ack(succeeded=jobs) == []
        for job in jobs:
            self.model.succeed(self.model.jobs[job.descriptor], "", self.now_ms)
        self.model.trim((job.shard, job.priority) for job in jobs)

    # looking

    @precondition(WorkingMachine.exists)
    @rule(state=st.sampled_from(State), priority=PRIORITIES, future=st.booleans(), page_size=st.integers(1, 3))
    def scan(self, state: State, priority: int | None, future: bool, page_size: int) -> None:
        if priority is not None and priority > self.model.settings.priorities:
            return
        if future and state is not PENDING:
            with pytest.raises(InvalidArgument, match="future: expected with pending jobs"):
                list(self.client.scan(self.queue, state, future=future))
            return
        found = list(self.client.scan(self.queue, state, priority=priority, future=future, page_size=page_size))
        lines = [
            self.model.of(state, each, shard)[::-1] for shard in self.rig.shards for each in self.priorities(priority)
        ]
        jobs = [job for line in lines for job in line if state is not PENDING or (job.at_ms > self.now_ms) is future]
        if state is RUNNING:
            assert {info.descriptor for info in found} == {job.descriptor for job in jobs}
            assert len(found) == len(jobs)
        else:
            assert [info.descriptor for info in found] == [job.descriptor for job in jobs]

    @precondition(WorkingMachine.exists)
    @rule()
    def count_and_peek(self) -> None:
        priorities = range(1, self.model.settings.priorities + 1)
        for priority in priorities:
            assert self.client.count(self.queue, priority=priority) == self.model.counts(self.now_ms, priority)
        due = [] if self.model.settings.paused else self.model.due(self.now_ms)
        expected = {priority: sum(job.priority == priority for job in due) for priority in priorities}
        assert self.client.peek(self.queue) == expected

    @precondition(WorkingMachine.exists)
    @invariant()
    def the_server_is_as_the_model(self) -> None:
        found = self.client.lookup([*self.model.jobs, *self.removed[-20:]], with_body=True)
        for info in found.values():
            assert bool(info.claim) is (info.state is RUNNING)
        assert {name: replace(info, claim="") for name, info in found.items()} == {
            name: job.info() for name, job in self.model.jobs.items()
        }
        report = audit_queue(self.client, self.queue)
        assert report.findings == []
        assert report.jobs == self.model.counts(self.now_ms)
        for shard in self.rig.shards:
            assert self.rig.reservations(shard) == dict(
                each.field for each in self.model.reservations if each.shard == shard
            )


Frozen = tuple[Server | MemoryKind, FrozenClock | MemoryClock]


@pytest.fixture(scope="module", params=EVERY_KIND)
def frozen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frozen]:
    """A server of each kind with a stopped clock."""
    if request.param == "memory":
        still = MemoryClock()
        with MemoryKind(still) as memory:
            yield memory, still
        return
    with Server(request.param, tmp_path_factory.mktemp("frozen"), fake_clock=True, env={"TZ": "UTC"}) as server:
        clock = FrozenClock(server)
        yield server, clock
        clock.close()


@pytest.mark.timeout(3600 if CAMPAIGN else 300)
@pytest.mark.parametrize("shards", [1, 2])
def test_any_operations_in_any_order(frozen: Frozen, shards: int) -> None:
    server, clock = frozen
    server.call("FLUSHALL")
    machine = type("OnServer", (Machine,), {"server": server, "clock": clock, "shards": shards})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=100 if CAMPAIGN else 50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
