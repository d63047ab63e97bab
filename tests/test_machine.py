"""Every operation of the client in any order, against a model, on real servers whose clock the test moves.

Promises: after each step the conservation audit finds nothing, and lookup, counts and the order of claims are
what the model says. PINLATER_CAMPAIGN=1 runs it for longer.
Risks: one client, one call at a time; lost answers and races are other tests' matter.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pinlater import Ack, Checkpoint, Job, NewJob, QueueConfig, State
from pinlater.audit import audit_queue
from pinlater.errors import EnqueueRefused, InvalidArgument, QueueNotFound
from pinlater.exchange import write
from pinlater.shards import shard_for_key
from tests.machine import FrozenClock, Rig
from tests.model import FAILED, PENDING, RUNNING, Model, run_after, split
from tests.servers import KINDS, Server

#: Examples by server kind and shards: a minute and a half a kind.
EXAMPLES = {("valkey", 1): 200, ("valkey", 2): 100, ("redis", 1): 60, ("redis", 2): 40}
CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
FAR_MS = (1 << 44) - 1
QUEUES = itertools.count()
MONITOR = b"monitor1"

TEXTS = {"": "", "short": "ran ", "wide": "é" * 1400, "long": "x" * 2999}
STATUSES = st.sampled_from(["", *TEXTS])  # by name: a failure is printed with them
DELAYS_MS = st.sampled_from([0, 1, 500, 1000, 3000, 60_000])
PICKS = st.lists(st.integers(0, 40), min_size=1, max_size=4)
PRIORITIES = st.none() | st.integers(1, 4)
ATTEMPTS = st.sampled_from([1, 2, 3, 65_535])
OFFSETS_MS = st.sampled_from([-9000, -1, 0, 1, 1000, 30_000])
TIMES = st.tuples(st.sampled_from(["now", "now", "delay", "absolute"]), DELAYS_MS, OFFSETS_MS)
JOBS = st.tuples(
    st.binary(max_size=20),
    st.integers(1, 4),
    TIMES,
    ATTEMPTS,
    STATUSES,
    st.sampled_from([None, None, "k1", "k2"]),
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "paused": st.booleans(),
        "refuse_enqueue": st.booleans(),
        "keep_succeeded": st.integers(0, 3),
        "levels": st.integers(1, 4),
        "lease_ms": st.sampled_from([1000, 5000, 60_000]),
        "succeeded_ttl_s": st.sampled_from([1, 60, 3600]),
        "failed_ttl_s": st.sampled_from([1, 60, 3600]),
    },
)


class Machine(RuleBasedStateMachine):
    """server, clock, shards: set by the test."""

    server: ClassVar[Server]
    clock: ClassVar[FrozenClock]
    shards: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(self.server, self.clock, self.shards, f"q{next(QUEUES)}")
        self.client, self.queue = self.rig.client, self.rig.queue
        self.model = Model()
        self.claimed: list[Job] = []
        self.gone: list[str] = []

    def teardown(self) -> None:
        self.rig.close()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms

    def exists(self) -> bool:
        return self.model.config is not None

    def absent(self) -> bool:
        return not self.exists()

    def pick(self, picks: list[int]) -> list[Job]:
        """Jobs that were claimed once; most recent first, so that many are still held."""
        return [self.claimed[-1 - pick % len(self.claimed)] for pick in picks] if self.claimed else []

    def pick_once(self, picks: list[int]) -> list[Job]:
        """A job that is named twice in one call is one job."""
        return list(dict.fromkeys(self.pick(picks)))

    def pick_named(self, picks: list[int]) -> list[str]:
        known = [*self.model.jobs, *self.gone[-5:]]
        return [known[pick % len(known)] for pick in picks] if known else []

    def levels(self, priority: int | None) -> list[int]:
        """Raises what the client raises for a priority that is not there."""
        if priority is None:
            return list(range(1, self.model.settings.levels + 1))
        if priority > self.model.settings.levels:
            raise InvalidArgument
        return [priority]

    def when(self, time: tuple[str, int, int]) -> dict[str, int]:
        kind, delay_ms, offset_ms = time
        return {
            "now": {},
            "delay": {"delay_ms": delay_ms},
            "absolute": {"run_after_ms": self.now_ms + offset_ms},
        }[kind]

    # queues

    @initialize(config=CHANGES)
    def create(self, config: dict[str, Any]) -> None:
        self.make(config)

    @rule(config=CHANGES)
    def create_again(self, config: dict[str, Any]) -> None:
        self.make(config)

    def make(self, config: dict[str, Any]) -> None:
        new = QueueConfig(**config)
        assert self.client.create_queue(self.queue, new) is self.absent()
        self.model.config = self.model.config or new

    @precondition(exists)
    @rule(changes=CHANGES)
    def configure(self, changes: dict[str, Any]) -> None:
        if changes.get("levels", 9) < self.model.settings.levels:
            with pytest.raises(InvalidArgument, match="levels can only grow"):
                self.client.configure_queue(self.queue, **changes)
            return
        self.model.configure(**changes)
        assert self.client.configure_queue(self.queue, **changes) == self.model.config

    @precondition(exists)
    @rule()
    def unpause(self) -> None:
        self.configure({"paused": False, "refuse_enqueue": False})

    @precondition(exists)
    @rule(sure=st.integers(0, 3))
    def delete_queue(self, sure: int) -> None:
        if sure:
            return  # a rare step: most examples should grow
        assert self.client.delete_queue(self.queue) is True
        self.gone += self.model.jobs
        self.model.delete_queue()
        self.rig.transport.forget()

    @precondition(absent)
    @rule(picks=PICKS)
    def a_queue_that_is_not_there(self, picks: list[int]) -> None:
        assert self.client.delete_queue(self.queue) is False
        named, held = self.pick_named(picks), self.pick(picks)
        calls: list[Callable[[], Any]] = [lambda: self.client.enqueue(self.queue, b""), lambda: self.client.dequeue(self.queue)]
        calls += [lambda: self.client.count(self.queue), lambda: self.client.purge(self.queue)]
        calls += [lambda: audit_queue(self.client, self.queue)]
        calls += (
            [lambda: self.client.lookup(named), lambda: self.client.delete_jobs(descriptors=named)]
            if named
            else []
        )
        calls += [lambda: self.client.ack(succeeded=held), lambda: self.client.renew(held)] if held else []
        for call in calls:
            with pytest.raises(QueueNotFound):
                call()

    # putting in

    @precondition(exists)
    @rule(drawn=st.lists(JOBS, max_size=6))
    def enqueue(self, drawn: list[Any]) -> None:
        jobs = [
            NewJob(
                body, priority=priority, attempts=attempts, status=TEXTS[status], key=key, **self.when(time)
            )
            for body, priority, time, attempts, status, key in drawn
        ]
        if any(job.priority > self.model.settings.levels for job in jobs):
            with pytest.raises(InvalidArgument):
                self.client.enqueue_many(self.queue, jobs)
        elif jobs and self.model.settings.refuse_enqueue:
            with pytest.raises(EnqueueRefused):
                self.client.enqueue_many(self.queue, jobs)
        else:
            descriptors = self.client.enqueue_many(self.queue, jobs)
            self.model.enqueue(descriptors, jobs, self.now_ms)
            for job, descriptor in zip(jobs, descriptors, strict=True):
                assert job.key is None or self.model.jobs[descriptor].shard == shard_for_key(
                    job.key, self.rig.shards
                )

    # working

    @precondition(exists)
    @rule(limit=st.integers(0, 7))
    def dequeue(self, limit: int) -> None:
        due = [] if self.model.settings.paused else self.model.due(self.now_ms)
        self.rig.forget_hints()
        jobs = self.client.dequeue(self.queue, limit)
        assert len(jobs) == min(limit, len(due))
        assert [job.priority for job in jobs] == [job.priority for job in due[:limit]]
        for shard in self.rig.shards:
            line = [job.descriptor for job in due if job.shard == shard]
            self.check_line([job.descriptor for job in jobs if job.shard == shard], line)
        self.model.claim(jobs, self.now_ms)
        self.claimed += jobs

    def check_line(self, given: list[str], line: list[str]) -> None:
        """Of each priority the first ones were given, in their order."""
        for level in {descriptor.split(":")[2] for descriptor in given}:
            part = [descriptor for descriptor in given if descriptor.split(":")[2] == level]
            assert (
                part == [descriptor for descriptor in line if descriptor.split(":")[2] == level][: len(part)]
            )

    @precondition(exists)
    @rule(limit=st.integers(0, 5))
    def dry_run(self, limit: int) -> None:
        due = [] if self.model.settings.paused else self.model.due(self.now_ms)
        jobs = self.client.dequeue(self.queue, limit, dry_run=True)
        assert [job.priority for job in jobs] == [job.priority for job in due[:limit]]
        for shard in self.rig.shards:
            line = [job.descriptor for job in due if job.shard == shard]
            self.check_line([job.descriptor for job in jobs if job.shard == shard], line)
        assert all(job.attempts_remaining == self.model.jobs[job.descriptor].left for job in jobs)

    @precondition(exists)
    @rule(good=PICKS, bad=PICKS, status=STATUSES, delay_ms=DELAYS_MS, by_source=st.booleans())
    def ack(self, good: list[int], bad: list[int], status: str, delay_ms: int, by_source: bool) -> None:
        succeeded, failed = self.pick_once(good), self.pick_once(bad)
        failed = [job for job in failed if job.descriptor not in {job.descriptor for job in succeeded}]
        source, text = "", TEXTS[status]
        if by_source:
            source = "machine:1"
            succeeded, failed = (
                list({job.descriptor: job for job in part}.values()) for part in (succeeded, failed)
            )
        items = [
            [Ack(job.descriptor if source else job, text, ms) for job in part]
            for part, ms in ((succeeded, 0), (failed, delay_ms))
        ]
        answer = self.client.ack(succeeded=items[0], failed=items[1], source=source)
        refused, touched = [], set()
        for item, job in zip(itertools.chain(*items), succeeded + failed, strict=True):
            known = self.model.jobs.get(job.descriptor)
            held = (known if known and known.state is RUNNING else None) if source else self.model.held(job)
            if held is None:
                refused.append(item)
            elif job in succeeded:
                self.model.succeed(held, text, self.now_ms)
                touched.add((held.shard, held.priority))
            else:
                self.model.fail(held, text, delay_ms, self.now_ms)
        self.model.trim(touched)
        assert answer == refused

    @precondition(exists)
    @rule(picks=PICKS)
    def release(self, picks: list[int]) -> None:
        jobs, refused = self.pick_once(picks), []
        for job in jobs:
            held = self.model.held(job)
            if held is None:
                refused.append(job)
            else:
                self.model.release(held)
        assert self.client.release(jobs) == refused

    @precondition(exists)
    @rule(picks=PICKS, own=st.booleans())
    def renew(self, picks: list[int], own: bool) -> None:
        jobs = self.pick_once(picks)
        refused = [job for job in jobs if self.model.renew(job, own, self.now_ms)]
        assert self.client.renew(jobs, own=own) == refused

    @precondition(exists)
    @rule(
        picks=PICKS,
        body=st.none() | st.binary(max_size=9),
        move=st.booleans(),
        time=TIMES,
        attempts=st.none() | ATTEMPTS,
        status=STATUSES,
    )
    def checkpoint(
        self, picks: list[int], body: bytes | None, move: bool, time: Any, attempts: int | None, status: str
    ) -> None:
        when = self.when(time) if move else {}
        said = [
            Checkpoint(
                job=job, body=body, move_to_pending=move, attempts=attempts, status=TEXTS[status], **when
            )
            for job in self.pick(picks)
        ]
        refused, seen = [], set()
        for each in said:
            assert isinstance(each.job, Job)
            held = self.model.held(each.job)
            if held is None or held.descriptor in seen:
                refused.append(each)
            else:
                seen.add(held.descriptor)
                self.model.checkpoint(held, each, self.now_ms)
        answer = self.client.checkpoint(*said)
        assert answer == refused

    # bringing back and removing

    @precondition(exists)
    @rule(priority=PRIORITIES, limit=st.integers(0, 4), attempts=ATTEMPTS, time=TIMES)
    def retry_failed(self, priority: int | None, limit: int, attempts: int, time: Any) -> None:
        when = self.when(time)
        try:
            levels = self.levels(priority)
        except InvalidArgument:
            with pytest.raises(InvalidArgument, match="priority: expected 1 to"):
                self.client.retry_failed(
                    self.queue, priority=priority, limit=limit, attempts=attempts, **when
                )
            return
        lines = [self.model.of(FAILED, level, shard) for level in levels for shard in self.rig.shards]
        chosen = [
            job
            for line, count in zip(lines, split(limit, map(len, lines)), strict=True)
            for job in line[:count]
        ]
        at_ms = run_after(when.get("run_after_ms"), when.get("delay_ms"), self.now_ms)
        for job in chosen:
            self.model.retry(job, attempts, at_ms, self.now_ms)
        answer = self.client.retry_failed(
            self.queue, priority=priority, limit=limit, attempts=attempts, **when
        )
        assert answer == len(chosen)

    @precondition(exists)
    @rule(picks=PICKS, attempts=ATTEMPTS)
    def retry_jobs(self, picks: list[int], attempts: int) -> None:
        named = self.pick_named(picks)
        chosen = [job for name in set(named) if (job := self.model.jobs.get(name)) and job.state is FAILED]
        for job in chosen:
            self.model.retry(job, attempts, self.now_ms, self.now_ms)
        assert self.client.retry_jobs(named, attempts=attempts) == len(chosen)

    @precondition(exists)
    @rule(state=st.sampled_from(State), priority=PRIORITIES, limit=st.integers(0, 4))
    def delete_jobs(self, state: State, priority: int | None, limit: int) -> None:
        try:
            levels = self.levels(priority)
        except InvalidArgument:
            with pytest.raises(InvalidArgument, match="priority: expected 1 to"):
                self.client.delete_jobs(self.queue, state, priority=priority, limit=limit)
            return
        answer = self.client.delete_jobs(self.queue, state, priority=priority, limit=limit)
        left = self.client.lookup(self.model.jobs)
        lines = [self.model.of(state, level, shard) for level in levels for shard in self.rig.shards]
        expected = list(split(limit, map(len, lines)))
        gone = [[job for job in line if job.descriptor not in left] for line in lines]
        assert [len(part) for part in gone] == expected
        assert answer == sum(expected)
        if state not in (PENDING, RUNNING):
            assert all(part == line[: len(part)] for part, line in zip(gone, lines, strict=True)), (
                "not the oldest first"
            )
        self.drop(job.descriptor for part in gone for job in part)

    @precondition(exists)
    @rule(picks=PICKS)
    def delete_named(self, picks: list[int]) -> None:
        named = self.pick_named(picks)
        there = {name for name in named if name in self.model.jobs}
        assert self.client.delete_jobs(descriptors=named) == len(there)
        self.drop(there)

    @precondition(exists)
    @rule(sure=st.integers(0, 3))
    def purge(self, sure: int) -> None:
        if not sure:
            assert self.client.purge(self.queue) == len(self.model.jobs)
            self.drop(self.model.jobs)

    def drop(self, descriptors: Iterable[str]) -> None:
        names = list(descriptors)
        self.gone += names
        self.model.drop(names)

    # time, monitors, lost answers

    @rule(seconds=st.sampled_from([1, 1, 3, 10, 61, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(exists)
    @rule(jumped=st.sampled_from([False, False, False, True]))
    def expire(self, jumped: bool) -> None:
        """A monitor's look at every shard; jumped: at a clock that is not where it expects it."""
        window = (FAR_MS - 1, FAR_MS) if jumped else (0, FAR_MS)
        packed = b"".join(ms.to_bytes(6, "big") for ms in window)
        for reply, shard in self.look("expire", [MONITOR, 15_000, packed]):
            active, told_jump, more, _, *counts, _ = struct.unpack(">BBB6sIII6s", reply)
            expected = self.model.expire(shard, jumped, self.now_ms)
            assert (active, told_jump, more, tuple(counts)) == (1, int(jumped), 0, expected)

    @precondition(exists)
    @rule()
    def collect(self) -> None:
        for reply, shard in self.look("collect", ["0"]):
            assert struct.unpack_from(">II", reply) == self.model.collect(shard, self.now_ms)

    def look(self, verb: str, arguments: list[Any]) -> Iterator[tuple[bytes, str]]:
        for place in self.client._session.places(self.queue):
            reply = self.client._run(lambda end, place=place: write(place, verb, arguments, end))  # type: ignore[misc]
            yield reply[2], place.shard.name

    @rule(pick=st.integers(0, 20))
    def resend(self, pick: int) -> None:
        """A request whose answer came is sent again: the same answer, and nothing changes (the invariants see to that)."""
        sent = list(self.rig.candidates())
        if sent:
            chosen = sent[pick % len(sent)]
            self.rig.check_answer(chosen, self.rig.resend(chosen), self.model)

    # looking

    @precondition(exists)
    @rule(
        state=st.sampled_from(State), priority=PRIORITIES, future=st.booleans(), page_size=st.integers(1, 3)
    )
    def scan(self, state: State, priority: int | None, future: bool, page_size: int) -> None:
        if priority is not None and priority > self.model.settings.levels:
            return
        found = list(
            self.client.scan(self.queue, state, priority=priority, future=future, page_size=page_size)
        )
        lines = [
            self.model.of(state, level, shard)[::-1]
            for shard in self.rig.shards
            for level in self.levels(priority)
        ]
        jobs = [
            job
            for line in lines
            for job in line
            if state is not PENDING or (job.at_ms > self.now_ms) is future
        ]
        if state is RUNNING:
            assert {info.descriptor for info in found} == {job.descriptor for job in jobs}
            assert len(found) == len(jobs)
        else:
            assert [info.descriptor for info in found] == [job.descriptor for job in jobs]

    @precondition(exists)
    @rule()
    def count_and_peek(self) -> None:
        levels = range(1, self.model.settings.levels + 1)
        for level in levels:
            assert self.client.count(self.queue, priority=level) == self.model.counts(self.now_ms, level)
        due = [] if self.model.settings.paused else self.model.due(self.now_ms)
        expected = {level: sum(job.priority == level for job in due) for level in levels}
        assert self.client.peek(self.queue) == expected

    @precondition(exists)
    @invariant()
    def the_server_is_as_the_model(self) -> None:
        found = self.client.lookup([*self.model.jobs, *self.gone[-20:]], with_body=True)
        for info in found.values():
            assert bool(info.claim) is (info.state is RUNNING)
        assert {name: replace(info, claim="") for name, info in found.items()} == {
            name: job.info() for name, job in self.model.jobs.items()
        }
        report = audit_queue(self.client, self.queue)
        assert report.findings == []
        assert report.jobs == self.model.counts(self.now_ms)


@pytest.fixture(scope="module", params=KINDS)
def frozen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, FrozenClock]]:
    """A server of each kind whose clock stands still."""
    with Server(
        request.param, tmp_path_factory.mktemp("frozen"), fake_clock=True, env={"TZ": "UTC"}
    ) as server:
        clock = FrozenClock(server)
        yield server, clock
        clock.close()


@pytest.mark.timeout(3600 if CAMPAIGN else 300)
@pytest.mark.parametrize("shards", [1, 2])
def test_any_operations_in_any_order(frozen: tuple[Server, FrozenClock], shards: int) -> None:
    server, clock = frozen
    server.call("FLUSHALL")
    examples = 3000 if CAMPAIGN else EXAMPLES[server.kind, shards]
    machine = type("OnServer", (Machine,), {"server": server, "clock": clock, "shards": shards})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=100 if CAMPAIGN else 40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
