"""The first half of the state machine: queues, putting jobs in, and working on them; the rest is in test_machine.py.

Promises: each rule makes a call and has the model do the same; answers are compared at once, what stands in the
server after each step.
Risks: rules see to it that there are jobs to act on, so a step can be several calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pinlater import Ack, Checkpoint, Job, NewJob, QueueConfig
from pinlater.model.errors import EnqueueRefused, InvalidArgument, QueueNotFound
from pinlater.store.shards import shard_for_key
from tests.support.audits import audit_queue
from tests.support.machine import FrozenClock, MemoryClock, Rig
from tests.support.model import FAILED, RUNNING, Model
from tests.support.servers import Server

QUEUES = itertools.count()

TEXTS = {"": "", "short": "ran ", "wide": "é" * 1400, "long": "x" * 2999}
STATUSES = st.sampled_from(["", *TEXTS])  # by name: a failure is printed with them
DELAYS_MS = st.sampled_from([0, 1, 500, 1000, 3000, 60_000])
RARELY = st.sampled_from([False] * 9 + [True])
PICKS = st.lists(st.integers(0, 40), min_size=1, max_size=4)
PRIORITIES = st.none() | st.integers(1, 4)
ATTEMPTS = st.sampled_from([1, 2, 3, 65_535])
OFFSETS_MS = st.sampled_from([-9000, -1, 0, 1, 1000, 30_000])
TIMES = st.tuples(st.sampled_from(["now", "now", "delay", "absolute"]), DELAYS_MS, OFFSETS_MS)
JOBS = st.tuples(
    st.binary(max_size=20),
    st.sampled_from([1, 1, 2, 2, 3, 4]),
    TIMES,
    ATTEMPTS,
    STATUSES,
    st.sampled_from([None, None, "k1", "k2"]),
)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "paused": RARELY,
        "refuse_enqueue": RARELY,
        "keep_succeeded": st.integers(0, 3),
        "priorities": st.sampled_from([3, 2, 4]),
        "lease_ms": st.sampled_from([1000, 5000, 60_000]),
        "succeeded_ttl_s": st.sampled_from([1, 60, 3600]),
        "failed_ttl_s": st.sampled_from([1, 60, 3600]),
    },
)


class WorkingMachine(RuleBasedStateMachine):
    """server, clock, shards: set by the test."""

    server: ClassVar[Server]
    clock: ClassVar[FrozenClock | MemoryClock]
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

    def priorities(self, priority: int | None) -> list[int]:
        """Raises what the client raises for a priority that is not there."""
        if priority is None:
            return list(range(1, self.model.settings.priorities + 1))
        if priority > self.model.settings.priorities:
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
    def begin(self, config: dict[str, Any]) -> None:
        self.create(config)

    @rule(config=CHANGES)
    def create(self, config: dict[str, Any]) -> None:
        new = QueueConfig(**config)
        assert self.client.create_queue(self.queue, new) is self.absent()
        self.model.config = self.model.config or new

    @precondition(exists)
    @rule(changes=CHANGES)
    def configure(self, changes: dict[str, Any]) -> None:
        if changes.get("priorities", 9) < self.model.settings.priorities:
            with pytest.raises(InvalidArgument, match="can only grow"):
                self.client.configure_queue(self.queue, **changes)
            return
        self.model.configure(**changes)
        assert self.client.configure_queue(self.queue, **changes) == self.model.config

    @precondition(exists)
    @rule()
    def unpause(self) -> None:
        self.configure({"paused": False, "refuse_enqueue": False})

    @precondition(exists)
    @rule(sure=RARELY)
    def delete_queue(self, sure: bool) -> None:
        if not sure:
            return
        assert self.client.delete_queue(self.queue) is True
        self.gone += self.model.jobs
        self.model.delete_queue()
        self.rig.transport.forget()

    @precondition(absent)
    @rule(picks=PICKS)
    def a_queue_that_is_not_there(self, picks: list[int]) -> None:
        assert self.client.delete_queue(self.queue) is False
        named, held = self.pick_named(picks), self.pick(picks)
        calls: list[Callable[[], Any]] = [
            lambda: self.client.enqueue(self.queue, b""),
            lambda: self.client.dequeue(self.queue),
        ]
        calls += [lambda: self.client.count(self.queue), lambda: self.client.purge(self.queue)]
        calls += [lambda: audit_queue(self.client, self.queue)]
        calls += (
            [lambda: self.client.lookup(named), lambda: self.client.delete_jobs(descriptors=named)] if named else []
        )
        calls += [lambda: self.client.ack(succeeded=held), lambda: self.client.renew(held)] if held else []
        for call in calls:
            with pytest.raises(QueueNotFound):
                call()

    # putting in

    @precondition(exists)
    @rule(drawn=st.lists(JOBS, max_size=6))
    def enqueue(self, drawn: list[Any]) -> None:
        self.put([self.new_job(each) for each in drawn])

    def new_job(self, drawn: Any) -> NewJob:
        """Of JOBS."""
        body, priority, time, attempts, status, key = drawn
        return NewJob(body, priority=priority, attempts=attempts, status=TEXTS[status], key=key, **self.when(time))

    def put(self, jobs: list[NewJob]) -> None:
        if any(job.priority > self.model.settings.priorities for job in jobs):
            with pytest.raises(InvalidArgument):
                self.client.enqueue_many(self.queue, jobs)
        elif jobs and self.model.settings.refuse_enqueue:
            with pytest.raises(EnqueueRefused):
                self.client.enqueue_many(self.queue, jobs)
        else:
            descriptors = self.client.enqueue_many(self.queue, jobs)
            self.model.enqueue(descriptors, jobs, self.now_ms)
            for job, descriptor in zip(jobs, descriptors, strict=True):
                assert job.key is None or self.model.jobs[descriptor].shard == shard_for_key(job.key, self.rig.shards)

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

    def hold(self) -> None:
        """Sees to it that some job runs, so that most steps on running jobs have one."""
        if not self.model.of(RUNNING):
            if not self.model.due(self.now_ms):
                self.put([NewJob(b"%d" % i, priority=1 + i % 2) for i in range(3)])
            self.dequeue(2)

    def lose(self) -> None:
        """Sees to it that some job has failed."""
        self.hold()
        running = {job.descriptor for job in self.model.of(RUNNING)}
        jobs = [job for job in self.claimed if job.descriptor in running and self.model.held(job)]
        while not self.model.of(FAILED) and jobs:
            if self.model.jobs[jobs[-1].descriptor].left > 3:
                break
            assert self.client.ack(failed=jobs[-1:]) == []
            self.model.fail(self.model.jobs[jobs.pop().descriptor], "", 0, self.now_ms)

    def check_line(self, given: list[str], line: list[str]) -> None:
        """Of each priority the first ones were given, in their order."""
        for priority in {descriptor.split(":")[2] for descriptor in given}:
            part = [descriptor for descriptor in given if descriptor.split(":")[2] == priority]
            assert part == [descriptor for descriptor in line if descriptor.split(":")[2] == priority][: len(part)]

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
        self.hold()
        succeeded, failed = self.pick_once(good), self.pick_once(bad)
        failed = [job for job in failed if job.descriptor not in {job.descriptor for job in succeeded}]
        source, text = "", TEXTS[status]
        if by_source:
            source = "machine:1"
            succeeded, failed = (list({job.descriptor: job for job in part}.values()) for part in (succeeded, failed))
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
    def ack_plain(self, picks: list[int]) -> None:
        """The common ack: successes alone, nothing said."""
        self.hold()
        jobs = self.pick_once(picks)
        held = [job for job in jobs if self.model.held(job)]
        assert self.client.ack(succeeded=jobs) == [job for job in jobs if job not in held]
        for job in held:
            self.model.succeed(self.model.jobs[job.descriptor], "", self.now_ms)
        self.model.trim((job.shard, job.priority) for job in held)

    @precondition(exists)
    @rule(picks=PICKS, own=st.booleans())
    def release(self, picks: list[int], own: bool) -> None:
        """own: from leases of their own."""
        self.hold()
        jobs, refused = self.pick_once(picks), []
        if own:
            self.client.renew(jobs, own=True)
            for job in jobs:
                self.model.renew(job, True, self.now_ms)
        for job in jobs:
            held = self.model.held(job)
            if held is None:
                refused.append(job)
            else:
                self.model.release(held)
        assert self.client.release(jobs) == refused

    @precondition(exists)
    @rule(what=st.sampled_from(["succeeded", "failed", "release", "own lease", "checkpoint"]))
    def a_token_of_an_earlier_claim(self, what: str) -> None:
        """The job runs again, under another token: its first holder can do nothing to it."""
        self.hold()
        stale = [job for job in self.claimed if self.model.held(job)][-1:]
        assert self.client.release(stale) == []
        for job in stale:
            self.model.release(self.model.jobs[job.descriptor])
        self.dequeue(7)
        calls: dict[str, Callable[[], Any]] = {
            "succeeded": lambda: self.client.ack(succeeded=stale),
            "failed": lambda: self.client.ack(failed=stale),
            "release": lambda: self.client.release(stale),
            "own lease": lambda: self.client.renew(stale, own=True),
            "checkpoint": lambda: [
                said.job for said in self.client.checkpoint(*(Checkpoint(job=job) for job in stale))
            ],
        }
        assert calls[what]() == stale

    @precondition(exists)
    @rule(picks=PICKS, own=st.booleans())
    def renew(self, picks: list[int], own: bool) -> None:
        self.hold()
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
        self.hold()
        when = self.when(time) if move else {}
        said = [
            Checkpoint(job=job, body=body, move_to_pending=move, attempts=attempts, status=TEXTS[status], **when)
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
