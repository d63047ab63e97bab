"""Redis CPU a job: the shipped scripts through the shipped client, against the same work in native commands.

Promises that both sides put in, claim and end the same jobs (same record bytes, 8-byte ids, same batches) on one
server, in turns. Ours also does what native does not: levels, leases, tokens, replays, retries of the 1 % that fail,
and the 1 % that is scheduled. Risks: the standing sets are small in figures 1 and 2; `growth` is about large ones.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator

from benches.support import (
    BODY,
    ODD_PERCENT,
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

#: A record is a 4-byte header and the body; native stores the same bytes.
RECORD = b"\1\0\2\1" + BODY
#: So soon is a scheduled job due: at once or a batch or two later, so that it comes back as work.
DUE_SOON_MS = 1
#: Longer than any drain: a scheduled job is due in a millisecond.
DRAIN_WAIT_S = 5.0


class Queue:
    """Our side: one queue of 3 levels. levels: how many of them the jobs go to, in turn."""

    def __init__(self, client: Client, name: str, priorities: int = 1) -> None:
        self._client, self._name = client, name
        client.create_queue(name, QueueConfig(priorities=3))
        self._acked, self._open = itertools.count(1), 0
        self._jobs = self._endless_jobs(priorities)

    @staticmethod
    def _endless_jobs(priorities: int) -> Iterator[NewJob]:
        every = 100 // ODD_PERCENT
        for number in itertools.count(1):
            level = 1 + number % priorities
            yield (
                NewJob(BODY, priority=level, delay_ms=DUE_SOON_MS)
                if number % every == 0
                else NewJob(BODY, priority=level)
            )

    def stand_by_failed(self) -> None:
        """Leaves failed jobs that nobody touches."""
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
        """One call; the 1 % that fails goes back in line."""
        failed = [job for job in jobs if next(self._acked) % (100 // ODD_PERCENT) == 0]
        if failed:
            gone = {id(job) for job in failed}
            good = [job for job in jobs if id(job) not in gone]
            refused = self._client.ack(succeeded=good, failed=[Ack(job) for job in failed])
        else:
            refused = self._client.ack(succeeded=jobs)
        assert not refused
        # a job that fails with its last attempt stays failed: it is not open any more
        self._open -= len(jobs) - sum(job.attempts_remaining > 1 for job in failed)

    def pass_through(self, count: int, batch: int) -> None:
        """Puts in, claims and ends `count` jobs, phase by phase; what came back is drained, so nothing is left over."""
        for _ in range(count // batch):
            self.enqueue(batch)
        claims = [self.claim(batch) for _ in range(count // batch)]
        for jobs in claims:
            if jobs:
                self.ack(jobs)
        while self._open:
            self.ack(self._client.dequeue(self._name, batch, wait=DRAIN_WAIT_S))

    def cycle(self, count: int, batch: int) -> None:
        """The same, batch by batch, over what stands in line already."""
        for _ in range(count // batch):
            self.enqueue(batch)
            self.ack(self.claim(batch))


class NativeQueue:
    """Their side: HSET + ZADD | ZRANGE, then HMGET + HSET + ZREMRANGEBYRANK | HDEL + HDEL. The 1 % that is scheduled
    waits in a set of its own, and what is due there is moved before a claim; the 1 % that fails goes back in line.

    foreseen: the ids of a claim are known beforehand and its ZRANGE goes along in the pipeline, which no real queue
    could do; then nothing is scheduled and nothing fails.
    """

    def __init__(self, native: Native, name: str, foreseen: bool = False) -> None:
        self._native, self._foreseen = native, foreseen
        self._jobs, self._ready, self._running, self._scheduled = (f"native:{{{name}}}:{part}" for part in "jprd")
        self._made = self._taken = 1 << 60
        self._every = 0 if foreseen else 100 // ODD_PERCENT
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
    def _put(line: str, ids: list[bytes]) -> tuple[object, ...]:
        return ("ZADD", line, *itertools.chain.from_iterable((b"1795229827228", id_) for id_ in ids)) if ids else ()

    def claim(self, count: int) -> list[bytes]:
        """What is due and what is ready are looked up, then one pipeline; foreseen: one pipeline in all."""
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
    """Figure 1: batches of 50 and of 500, one level; and, for comparison, over three levels."""
    jobs = options.scaled(40_000, 10_000)
    figures = []
    for batch in (50, 500):
        found = _compare(kind, options, jobs, batch, foreseen=False)
        note = f"a job: ours {per_job(found['ours'])}, native {per_job(found['native'])}"
        plain = ratios(found["ours"], found["native"])
        figures.append(figure(f"1 Redis CPU a job, batches of {batch}", kind, plain, 1.7, 1.4, note=note))
        mixed = ratios(found["mixed"], found["native"])
        figures.append(figure(f"1 … jobs over 3 levels in turn, {batch}", kind, mixed, None, None))
    return figures


def singles(kind: Kind, options: Options) -> list[Figure]:
    """Figure 2: one job a call; native in three pipelines and the ZRANGE that a claim has to ask first.

    For comparison, native with the ids of its claim foreseen: three round trips in all.
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
    """µs of the server's main thread a job, a round (of so many turns); sides: ours, native, ours over three levels."""
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
    """Figure 4: what a job costs over 1 M pending ones, to what it costs over 10 k, over native's own growth."""
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
    """Four data sets on one server, in batches of 50; each measurement is 10,000 jobs."""
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
