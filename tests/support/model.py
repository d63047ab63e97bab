"""A model of a queue in simple Python: jobs in a dict, leases in another. No Redis, none of the product's logic.

Promises: every answer follows from the documented behaviour of the methods. Time is passed in, never read.
Risks: where the documentation leaves a choice (which running jobs are deleted first), the caller passes the choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pinlater import Checkpoint, CountsByState, Job, JobInfo, NewJob, QueueConfig, State
from pinlater._core import parse_descriptor

STATUS_BYTES: Final = 3000
HOUR_MS: Final = 3_600_000
PENDING, RUNNING, SUCCEEDED, FAILED = State.PENDING, State.IN_PROGRESS, State.SUCCEEDED, State.FAILED

Lease = tuple[str, bytes, str]  # shard, token of the claim, descriptor of the job it is of alone, or ""


class Reservation(NamedTuple):
    """Ids that were issued and not yet loaded."""

    shard: str
    first: int
    jobs: int

    @property
    def issued_ms(self) -> int:
        return self.first >> 19

    @property
    def field(self) -> tuple[bytes, bytes]:
        """As the server stores it."""
        return self.first.to_bytes(8, "big"), self.jobs.to_bytes(2, "big") + self.issued_ms.to_bytes(6, "big")


@dataclass
class ModelJob:
    """at_ms: run-after of a pending or running job, finish time of a finished one."""

    descriptor: str
    body: bytes
    allowed: int
    left: int
    at_ms: int
    updated_ms: int
    status: str
    state: State = PENDING
    crashes: int = 0
    token: bytes = b""
    lease: Lease | None = None
    claimed_ms: int = 0

    def __post_init__(self) -> None:
        _, self.shard, self.priority, self.id = parse_descriptor(self.descriptor)

    @property
    def order(self) -> tuple[int, int]:
        return self.at_ms, self.id

    def info(self) -> JobInfo:
        """The job info, without the claim descriptor."""
        run_after_ms = {PENDING: self.at_ms, RUNNING: self.claimed_ms}.get(self.state)
        updated_ms = {PENDING: self.updated_ms, RUNNING: max(self.claimed_ms, self.updated_ms)}
        return JobInfo(
            descriptor=self.descriptor,
            state=self.state,
            priority=self.priority,
            attempts_allowed=self.allowed,
            attempts_remaining=self.left,
            status=self.status,
            created_ms=self.id >> 19,
            run_after_ms=run_after_ms,
            updated_ms=updated_ms.get(self.state, self.at_ms),
            crashes=self.crashes,
            claim="",
            body=self.body,
        )


@dataclass
class Model:
    """One queue over its shards. config: None while the queue does not exist."""

    config: QueueConfig | None = None
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    leases: dict[Lease, int] = field(default_factory=dict)
    jumped_ms: dict[str, int] = field(default_factory=dict)
    rests_ms: dict[str, int] = field(default_factory=dict)
    last_id: dict[str, int] = field(default_factory=dict)
    reservations: list[Reservation] = field(default_factory=list)
    ended_reservations: list[Reservation] = field(default_factory=list)

    @property
    def settings(self) -> QueueConfig:
        assert self.config is not None
        return self.config

    # what there is

    def of(self, state: State, priority: int | None = None, shard: str | None = None) -> list[ModelJob]:
        """The jobs of a state, earliest first."""
        found = [job for job in self.jobs.values() if job.state is state and priority in (None, job.priority)]
        return sorted((job for job in found if shard in (None, job.shard)), key=lambda job: job.order)

    def due(self, now_ms: int) -> list[ModelJob]:
        """In the order of claims: by priority, run-after, arrival. With several shards, in the order of each."""
        return sorted(
            (job for job in self.of(PENDING) if job.at_ms <= now_ms),
            key=lambda job: (job.priority, job.order),
        )

    def counts(self, now_ms: int, priority: int | None = None) -> CountsByState:
        pending = self.of(PENDING, priority)
        due = sum(job.at_ms <= now_ms for job in pending)
        finished = len(self.of(SUCCEEDED, priority)), len(self.of(FAILED, priority))
        return CountsByState(due, len(pending) - due, len(self.of(RUNNING, priority)), *finished)

    def held(self, job: Job) -> ModelJob | None:
        """The job, if it runs under this claim."""
        known = self.jobs.get(job.descriptor)
        return known if known and known.state is RUNNING and known.token == job.token else None

    # changes

    def enqueue(self, descriptors: list[str], jobs: Iterable[NewJob], now_ms: int) -> None:
        """Ids grow in the order given, but jobs with a key may leave in another call than those without."""
        before = {(shard, keyed): last for shard, last in self.last_id.items() for keyed in (True, False)}
        for descriptor, new in zip(descriptors, jobs, strict=True):
            at_ms = run_after(new.run_after_ms, new.delay_ms, now_ms)
            job = ModelJob(descriptor, new.body, new.attempts, new.attempts, at_ms, now_ms, new.status)
            assert job.priority == new.priority
            assert job.id >> 19 == now_ms
            line = job.shard, new.key is not None
            assert job.id > before.get(line, 0), "an id came back, or the order of arrival is lost"
            assert descriptor not in self.jobs
            before[line] = job.id
            self.last_id[job.shard] = max(self.last_id.get(job.shard, 0), job.id)
            self.jobs[descriptor] = job

    def prepare(self, reservation: Reservation, now_ms: int) -> None:
        assert reservation.issued_ms == now_ms
        assert reservation.first > self.last_id.get(reservation.shard, 0), "an id was issued twice"
        self.last_id[reservation.shard] = reservation.first + reservation.jobs - 1
        self.reservations.append(reservation)

    def load(self, reservation: Reservation, queue: str, jobs: list[NewJob], now_ms: int) -> None:
        """Jobs get the arrival time of their reservation, except those with a run-after time."""
        for id_, new in enumerate(jobs, reservation.first):
            timed = new.run_after_ms or new.delay_ms
            at_ms = run_after(new.run_after_ms, new.delay_ms, now_ms) if timed else reservation.issued_ms
            updated_ms = now_ms if new.status else reservation.issued_ms  # a simple job has no time but that of its id
            descriptor = f"{queue}:s{reservation.shard}:p{new.priority}:{id_}"
            job = ModelJob(descriptor, new.body, new.attempts, new.attempts, at_ms, updated_ms, new.status)
            assert descriptor not in self.jobs
            self.jobs[descriptor] = job
        self.end_reservations([reservation])

    def end_reservations(self, reservations: Iterable[Reservation]) -> None:
        for reservation in list(reservations):
            self.reservations.remove(reservation)
            self.ended_reservations.append(reservation)

    def claim(self, jobs: Iterable[Job], now_ms: int) -> None:
        for given in jobs:
            job = self.jobs[given.descriptor]
            assert job.state is PENDING, "claimed a job that is not pending"
            assert (given.body, given.attempts_allowed) == (job.body, job.allowed)
            assert (given.attempts_remaining, given.claimed_ms) == (job.left, now_ms)
            job.state, job.token, job.claimed_ms = RUNNING, given.token, now_ms
            job.lease = job.shard, given.token, ""
            self.leases[job.lease] = now_ms + self.settings.lease_ms

    def succeed(self, job: ModelJob, status: str, now_ms: int) -> None:
        self._leave(job)
        job.state, job.at_ms, job.status = SUCCEEDED, now_ms, appended(job.status, status)
        if not self.settings.keep_succeeded:
            self.drop([job.descriptor])

    def trim(self, priorities: Iterable[tuple[str, int]]) -> None:
        """After an ack: removes the oldest beyond the cap. A cap that became 0 later is left to collect."""
        if self.settings.keep_succeeded:
            self._keep_newest(priorities)

    def _keep_newest(self, priorities: Iterable[tuple[str, int]]) -> None:
        for shard, priority in priorities:
            kept = self.of(SUCCEEDED, priority, shard)
            self.drop(job.descriptor for job in kept[: max(0, len(kept) - self.settings.keep_succeeded)])

    def fail(self, job: ModelJob, status: str, delay_ms: int, now_ms: int) -> None:
        self._leave(job)
        job.left -= 1
        job.status, job.updated_ms = appended(job.status, status), now_ms
        job.state, job.at_ms = (PENDING, now_ms + delay_ms) if job.left > 0 else (FAILED, now_ms)

    def release(self, job: ModelJob) -> None:
        self._leave(job)
        job.state = PENDING

    def renew(self, job: Job, own: bool, now_ms: int) -> bool:
        """Whether it was refused."""
        _, shard, _, _ = parse_descriptor(job.descriptor)
        lease: Lease = (shard, job.token, "")
        if own:
            held = self.held(job)
            if held is None:
                return True
            assert held.lease
            lease = held.lease if held.lease[2] else (*held.lease[:2], job.descriptor)
            held.lease = lease
        elif lease not in self.leases:
            return True
        self.leases[lease] = now_ms + self.settings.lease_ms
        self._prune()
        return False

    def checkpoint(self, job: ModelJob, said: Checkpoint, now_ms: int) -> None:
        job.body = job.body if said.body is None else said.body
        if said.attempts is not None:
            job.allowed = job.left = said.attempts
        job.status, job.updated_ms = prepended(job.status, said.status), now_ms
        if said.move_to_pending:
            self._leave(job)
            job.state, job.at_ms = PENDING, run_after(said.run_after_ms, said.delay_ms, now_ms)
        else:
            assert job.lease
            self.leases[job.lease] = max(self.leases[job.lease], now_ms + self.settings.lease_ms)

    def retry(self, job: ModelJob, attempts: int, at_ms: int, now_ms: int) -> None:
        job.state, job.left, job.at_ms, job.updated_ms, job.crashes = PENDING, attempts, at_ms, now_ms, 0
        job.allowed = max(job.allowed, attempts)

    def drop(self, descriptors: Iterable[str]) -> None:
        for descriptor in list(descriptors):
            del self.jobs[descriptor]
        self._prune()

    def delete_queue(self) -> None:
        self.config = None
        self.jobs.clear()
        self.leases.clear()
        self.jumped_ms.clear()
        self.rests_ms.clear()
        self.end_reservations(self.reservations)

    def expire(self, shard: str, unexpected: bool, jumped: bool, now_ms: int) -> tuple[int, int, list[str]]:
        """One run of a monitor on a shard. Returns expired leases, jobs tried again, and the jobs that failed."""
        if jumped:
            self.jumped_ms[shard] = now_ms
        if unexpected or jumped:
            self.rests_ms[shard] = now_ms
        ours = [lease for lease in self.leases if lease[0] == shard]
        if self._within_a_lease(self.rests_ms, shard, now_ms):
            if self._within_a_lease(self.jumped_ms, shard, now_ms):
                for lease in ours:
                    self.leases[lease] = min(self.leases[lease], now_ms + self.settings.lease_ms)
            return 0, 0, []
        ended = [lease for lease in ours if self.leases[lease] <= now_ms]
        crashed = [job for job in self.of(RUNNING) if job.lease in ended]
        for job in crashed:
            self._leave(job)
            job.left, job.crashes = job.left - 1, job.crashes + 1
            job.updated_ms = job.at_ms = now_ms
            job.state = PENDING if job.left > 0 else FAILED
        failed = sorted(job.descriptor for job in crashed if job.state is FAILED)
        return len(ended), len(crashed) - len(failed), failed

    def collect(self, shard: str, now_ms: int) -> tuple[int, int, int]:
        """The numbers of succeeded jobs, failed jobs and reservations that are removed."""
        if self._within_a_lease(self.jumped_ms, shard, now_ms):
            return 0, 0, 0
        jumped_ms = self.jumped_ms.get(shard, 0)
        old = [
            each
            for each in self.reservations
            if each.shard == shard and max(each.issued_ms, jumped_ms) < now_ms - HOUR_MS
        ]
        self.end_reservations(old)
        failed = [
            job for job in self.of(FAILED, shard=shard) if job.at_ms <= now_ms - self.settings.failed_ttl_s * 1000
        ]
        succeeded = [
            job for job in self.of(SUCCEEDED, shard=shard) if job.at_ms <= now_ms - self.settings.succeeded_ttl_s * 1000
        ]
        self.drop(job.descriptor for job in failed + succeeded)
        before = len(self.of(SUCCEEDED, shard=shard))
        self._keep_newest((shard, priority) for priority in range(1, self.settings.priorities + 1))
        return len(succeeded) + before - len(self.of(SUCCEEDED, shard=shard)), len(failed), len(old)

    def _within_a_lease(self, times_ms: dict[str, int], shard: str, now_ms: int) -> bool:
        """Whether less than a lease has passed since the time of this shard."""
        return shard in times_ms and now_ms < times_ms[shard] + self.settings.lease_ms

    def configure(self, **changes: Any) -> None:
        self.config = replace(self.settings, **changes)

    def _leave(self, job: ModelJob) -> None:
        job.token, job.lease, job.claimed_ms = b"", None, 0
        self._prune()

    def _prune(self) -> None:
        used = {job.lease for job in self.jobs.values()}
        self.leases = {lease: at_ms for lease, at_ms in self.leases.items() if lease in used}


def run_after(run_after_ms: int | None, delay_ms: int | None, now_ms: int) -> int:
    """A time of 0 means none."""
    return run_after_ms or now_ms + (delay_ms or 0)


def appended(old: str, new: str) -> str:
    """Keeps the newest text whole. Removes the oldest by whole characters."""
    return (old + new).encode()[-STATUS_BYTES:].decode(errors="ignore")


def prepended(old: str, new: str) -> str:
    return (new + old).encode()[:STATUS_BYTES].decode(errors="ignore")


def split(total: int, available: Iterable[int]) -> Iterator[int]:
    """How many to take from each, the first ones first, until there are `total`."""
    for count in available:
        yield min(count, total)
        total -= min(count, total)
