"""Redis CPU a job: the shipped scripts through the shipped client, compared with the same work in native commands.

Promises that both sides enqueue, claim and end the same jobs (same record bytes, 8-byte ids, same batches) on one
server, in turns. Our side also has what native lacks: priorities, leases, tokens and repeated requests. On both sides
1 % of jobs are scheduled and 1 % of acks fail. Risks: the sets are small in figures 1 and 2; `growth` has large ones.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator

from benches.support import (
    BODY,
    SPECIAL_PERCENT,
    STANDING_FAILED,
    CpuMeter,
    Figure,
    Native,
    Options,
    apart,
    figure,
    interleave,
    per_job,
    ratios,
    serving,
)
from pinlater import Ack, Client, Job, NewJob, QueueConfig
from tests.support.servers import Kind, Server

#: A record is a 4-byte header and the body. Native stores the same bytes.
RECORD = b"\1\0\2\1" + BODY
#: The delay of a scheduled job: it is due within the next batches.
DUE_SOON_MS = 1
#: Longer than any drain: a scheduled job is due in a millisecond.
DRAIN_WAIT_S = 5.0


class Queue:
    """Our side: one queue with 3 priorities. priorities: how many of them the jobs use, in turn."""

    def __init__(self, client: Client, name: str, priorities: int = 1) -> None:
        self._client, self._name = client, name
        client.create_queue(name, QueueConfig(priorities=3))
        self._acked, self._open = itertools.count(1), 0
        self._jobs = self._endless_jobs(priorities)

    @staticmethod
    def _endless_jobs(priorities: int) -> Iterator[NewJob]:
        every = 100 // SPECIAL_PERCENT
        for number in itertools.count(1):
            priority = 1 + number % priorities
            yield (
                NewJob(BODY, priority=priority, delay_ms=DUE_SOON_MS)
                if number % every == 0
                else NewJob(BODY, priority=priority)
            )

    def stand_by_failed(self) -> None:
        """Adds failed jobs that stay in the queue."""
        jobs = self._client.enqueue_many(self._name, [NewJob(BODY, attempts=1)] * STANDING_FAILED)
        claimed = self._client.dequeue(self._name, len(jobs))
        assert not self._client.ack(failed=claimed)

    def enqueue(self, count: int) -> None:
        """One call."""
        jobs = list(itertools.islice(self._jobs, count))
        if count > 1:
            self._client.enqueue_many(self._name, jobs)
        else:
            self._client.enqueue(self._name, jobs[0].body, priority=jobs[0].priority, delay_ms=jobs[0].delay_ms)
        self._open += count

    def claim(self, count: int) -> list[Job]:
        """One call."""
        return self._client.dequeue(self._name, count)

    def ack(self, jobs: list[Job]) -> None:
        """One call. 1 % of the jobs fail and become pending again."""
        failed = [job for job in jobs if next(self._acked) % (100 // SPECIAL_PERCENT) == 0]
        if failed:
            failed_ids = {id(job) for job in failed}
            good = [job for job in jobs if id(job) not in failed_ids]
            refused = self._client.ack(succeeded=good, failed=[Ack(job) for job in failed])
        else:
            refused = self._client.ack(succeeded=jobs)
        assert not refused
        # a job that used its last attempt stays failed: it is no longer open
        self._open -= len(jobs) - sum(job.attempts_remaining > 1 for job in failed)

    def pass_through(self, count: int, batch: int) -> None:
        """Enqueues, claims and ends `count` jobs, phase by phase, then drains those that failed. No job is left."""
        for _ in range(count // batch):
            self.enqueue(batch)
        claims = [self.claim(batch) for _ in range(count // batch)]
        for jobs in claims:
            if jobs:
                self.ack(jobs)
        while self._open:
            self.ack(self._client.dequeue(self._name, batch, wait=DRAIN_WAIT_S))

    def cycle(self, count: int, batch: int) -> None:
        """The same, batch by batch, while other jobs are pending."""
        for _ in range(count // batch):
            self.enqueue(batch)
            self.ack(self.claim(batch))


class NativeQueue:
    """The native side: HSET + ZADD | ZRANGE, then HMGET + HSET + ZREMRANGEBYRANK | HDEL + HDEL. Scheduled jobs are in a
    set of their own, and each claim first moves the due ones. Failed jobs become ready again.

    foreseen: the ids of a claim are known beforehand, and its ZRANGE is part of the pipeline. No real queue could do
    that. Then no job is scheduled and none fails.
    """

    def __init__(self, native: Native, name: str, foreseen: bool = False) -> None:
        self._native, self._foreseen = native, foreseen
        self._jobs, self._ready, self._running, self._scheduled = (f"native:{{{name}}}:{part}" for part in "jprd")
        self._made = self._taken = 1 << 60
        self._every = 0 if foreseen else 100 // SPECIAL_PERCENT
        self._acked, self._open = itertools.count(1), 0

    def enqueue(self, count: int) -> None:
        """One pipeline."""
        ids = _ids(self._made, count)
        self._made += count
        self._open += count
        fields = itertools.chain.from_iterable((id_, RECORD) for id_ in ids)
        later = ids[self._every - 1 - (self._made - count) % self._every :: self._every] if self._every else []
        now = [id_ for id_ in ids if id_ not in later] if later else ids
        commands = [("HSET", self._jobs, *fields), self._put(self._ready, now), self._put(self._scheduled, later)]
        self._native.pipeline(*filter(None, commands))

    @staticmethod
    def _put(key: str, ids: list[bytes]) -> tuple[object, ...]:
        return ("ZADD", key, *itertools.chain.from_iterable((b"1795229827228", id_) for id_ in ids)) if ids else ()

    def claim(self, count: int) -> list[bytes]:
        """One pipeline to look up due and ready jobs, then one to claim them. foreseen: a single pipeline."""
        look = ("ZRANGE", self._ready, 0, count - 1)
        if self._foreseen:
            ids = _ids(self._taken, count)
            self._native.pipeline(look, *self._take(ids))
        else:
            due, ids = self._native.pipeline(
                ("ZRANGE", self._scheduled, "-inf", "+inf", "BYSCORE", "LIMIT", 0, count), look
            )
            if due:
                moved = ("ZREMRANGEBYRANK", self._scheduled, 0, len(due) - 1)
                ids = self._native.pipeline(self._put(self._ready, due), moved, look)[2]
            if ids:
                self._native.pipeline(*self._take(ids))
        self._taken += count
        return ids

    def _take(self, ids: list[bytes]) -> Iterable[tuple[object, ...]]:
        token = struct.pack(">Q", self._taken)
        held = itertools.chain.from_iterable((id_, token) for id_ in ids)
        yield "HMGET", self._jobs, *ids
        yield "HSET", self._running, *held
        yield "ZREMRANGEBYRANK", self._ready, 0, len(ids) - 1

    def ack(self, ids: list[bytes]) -> None:
        """One pipeline."""
        failed = [id_ for id_ in ids if self._every and next(self._acked) % self._every == 0]
        done = [id_ for id_ in ids if id_ not in failed] if failed else ids
        self._open -= len(done)
        end = ("HDEL", self._jobs, *done) if done else ()
        self._native.pipeline(*filter(None, [("HDEL", self._running, *ids), end, self._put(self._ready, failed)]))

    def pass_through(self, count: int, batch: int) -> None:
        """As Queue.pass_through."""
        for _ in range(count // batch):
            self.enqueue(batch)
        for ids in [self.claim(batch) for _ in range(count // batch)]:
            if ids:
                self.ack(ids)
        while self._open:
            self.ack(self.claim(min(batch, self._open)))

    def cycle(self, count: int, batch: int) -> None:
        """As Queue.cycle."""
        for _ in range(count // batch):
            self.enqueue(batch)
            self.ack(self.claim(batch))


def _ids(first: int, count: int) -> list[bytes]:
    return [struct.pack(">Q", first + i) for i in range(count)]


def batches(kind: Kind, options: Options) -> list[Figure]:
    """Figure 1: batches of 50 and of 500, with one priority; for comparison also with three."""
    jobs = options.scaled(40_000, 10_000)
    figures = []
    for batch in (50, 500):
        found = _compare(kind, options, jobs, batch, foreseen=False)
        note = f"a job: ours {per_job(found['ours'])}, native {per_job(found['native'])}"
        plain = ratios(found["ours"], found["native"])
        figures.append(figure(f"1 Redis CPU a job, batches of {batch}", kind, plain, 1.7, 1.4, note=note))
        mixed = ratios(found["mixed"], found["native"])
        figures.append(figure(f"1 … jobs of 3 priorities in turn, {batch}", kind, mixed, None, None))
    return figures


def singles(kind: Kind, options: Options) -> list[Figure]:
    """Figure 2: one job a call. Native needs three pipelines, and a ZRANGE before each claim.

    For comparison: native with foreseen ids, which is three round trips in all.
    """
    jobs = options.scaled(4_000, 1_500)
    figures = []
    for foreseen, name, bar, aim in (
        (False, "2 Redis CPU a job, one job a call", 1.4, 1.2),
        (True, "2 … native's claim foreseen, no ZRANGE trip", None, None),
    ):
        found = _compare(kind, options, jobs, 1, foreseen=foreseen, mixed=False, turns=20)
        note = f"a job: ours {per_job(found['ours'])}, native {per_job(found['native'])}"
        figures.append(figure(name, kind, ratios(found["ours"], found["native"]), bar, aim, note=note))
    return figures


def _compare(
    kind: Kind, options: Options, jobs: int, batch: int, *, foreseen: bool, mixed: bool = True, turns: int = 1
) -> dict[str, list[float]]:
    """µs of the server's main thread a job, by round, of three sides: ours, native, ours with three priorities."""
    with serving(kind) as server, apart(server), Client(server.url, timeout_s=60) as client:
        native, meter = Native(server), CpuMeter(server)
        sides: dict[str, Queue | NativeQueue] = {
            "ours": _warm(Queue(client, "ours")),
            "native": NativeQueue(native, "bench", foreseen),
        }
        if mixed:
            sides["mixed"] = _warm(Queue(client, "mixed", priorities=3))

        def measure(side: Queue | NativeQueue) -> float:
            before_us = meter.used_us()
            side.pass_through(jobs // turns, batch)
            return (meter.used_us() - before_us) / (jobs // turns)

        for side in sides.values():
            side.pass_through(max(batch, jobs // 4), batch)
        found = interleave({name: _bind(measure, side) for name, side in sides.items()}, options.rounds, turns)
        native.close()
        meter.close()
        return found


def _warm(queue: Queue) -> Queue:
    queue.stand_by_failed()
    return queue


def _bind(measure: Callable[[Queue | NativeQueue], float], side: Queue | NativeQueue) -> Callable[[], float]:
    return lambda: measure(side)


def growth(kind: Kind, options: Options) -> list[Figure]:
    """Figure 4: the cost of a job with 1 M pending over the cost with 10 k, divided by the same ratio of native."""
    large = options.scaled(1_000_000, 200_000)
    with serving(kind) as server, apart(server), Client(server.url, timeout_s=60) as client:
        meter = CpuMeter(server)
        found = interleave(_growth_sides(server, client, meter, large), max(options.rounds, 5))
        meter.close()
    ours = ratios(found["ours large"], found["ours small"])
    native = ratios(found["native large"], found["native small"])
    note = f"ours grows {per_job(ours, 'x')}, native {per_job(native, 'x')}; {large:,} pending over 10,000"
    name = "4 cost a job at 1 M pending / 10 k, over native's"
    return [figure(name, kind, ratios(ours, native), 1.1, 1.0, note=note)]


def _growth_sides(server: Server, client: Client, meter: CpuMeter, large: int) -> dict[str, Callable[[], float]]:
    """Four data sets on one server, in batches of 50. Each measurement is 10,000 jobs."""
    jobs, sides = 10_000, dict[str, Callable[[], float]]()

    def measure(side: Queue | NativeQueue) -> float:
        before_us = meter.used_us()
        side.cycle(jobs, 50)
        return (meter.used_us() - before_us) / jobs

    for size, pending in (("small", 10_000), ("large", large)):
        ours, native = _warm(Queue(client, f"growth_{size}")), NativeQueue(Native(server), size)
        for name, side in (("ours", ours), ("native", native)):
            for _ in range(pending // 1000):
                side.enqueue(1000)
            side.cycle(jobs, 50)
            sides[f"{name} {size}"] = _bind(measure, side)
    return sides
