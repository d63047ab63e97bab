"""How long one call of a script holds the server: every verb, at many sizes of bodies, statuses and calls.

    python benches/stalls.py [--server valkey|redis] [--rounds 3] [--sizes 100,65536,mixed]
                             [--only ack_failed,expire] [--quick] [--json FILE]

The server's own slow log times each call, so other processes count only while they take its core away. A second
connection sends a PING every millisecond: it also waits for what the slow log leaves out, the reading of arguments and
the writing of replies. Each round makes the same calls; a call's time is its best of the rounds. `--quick` makes each
kind of call with few small jobs, to check that it works.

The exit code is 1 if a call of a script holds the server for more than 20 ms.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from pinlater import Ack, Checkpoint, Client, Job, NewJob, QueueConfig
from pinlater.archive.moving_job import MovingJob
from pinlater.operations import results, workers
from pinlater.operations.inspect import REPLY_BYTES
from pinlater.operations.quarantine import move_quarantined
from pinlater.running.recoverer import end_leases as end_leases_flow
from pinlater.store.requests import read, repeat, write
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import QueueShard
from pinlater.worker.failed_jobs import read_failed
from tests.support.servers import KINDS, Kind, Server

#: No call of a script may hold the server for longer.
BAR_MS = 20.0
#: Bytes of bodies in one case, so that large ones are fewer; and its most jobs.
CASE_BYTES, CASE_JOBS, QUICK_JOBS = 48 * 1024 * 1024, 1_000, 20
SIZES = ("100", "1024", "4096", "16384", "65536", "262144", "600000", "1048576", "mixed", "spread")
#: The most bytes of a body.
LARGEST = 1024 * 1024
#: A status of the most bytes.
STATUS = "s" * 2_999 + "\n"
#: A batch of the archive has at most so many jobs, and bytes of records.
BATCH_JOBS, BATCH_BYTES = 500, 4 * 1024 * 1024
#: A queue has at most so many priorities.
PRIORITIES = 100
#: Of each age.
DEAD_WAITERS = 2_000
#: Request slots and reservations that nobody used for long: more than one page.
SILENT = 2_000
PING_S = 0.001
SOURCE = "bench"

Call = tuple[str, str, str, int]


@dataclass(frozen=True)
class Case:
    """The jobs that all steps of a case work with.

    size: bytes of a body; or `mixed`: ten small ones for each of 1 MiB; or `spread`: any size from 100 B to 1 MiB, as
    many below 10 KiB as above. most: jobs.
    """

    size: str
    most: int = CASE_JOBS

    def bodies(self) -> list[bytes]:
        """Mixtures are the same in each run."""
        chosen = random.Random(1)
        if self.size == "mixed":
            return [b"x" * size for size in chosen.sample([100] * 400 + [LARGEST] * 40, 440)]
        if self.size == "spread":
            return [b"x" * int(100 * (LARGEST / 100) ** chosen.random()) for _ in range(400)]
        size = int(self.size)
        return [b"x" * size] * max(4, min(self.most, CASE_BYTES // size))

    def jobs(self, **options: Any) -> list[NewJob]:
        return [NewJob(body, **options) for body in self.bodies()]


class Stage:
    """A server, a client and the queue of the next step."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = Client(server.url, source=SOURCE, timeout_s=120)
        self.raw: Any = server.client(socket_timeout=120)
        self.queue = ""
        self._count = 0

    def new_queue(self, **config: Any) -> str:
        if self.queue:
            self.client.delete_queue(self.queue)
        self._count += 1
        self.queue = f"q{self._count}"
        self.client.create_queue(self.queue, QueueConfig(**config))
        return self.queue

    def fill(self, jobs: list[NewJob]) -> list[str]:
        return self.client.enqueue_many(self.queue, jobs)

    def take(self, most: int = CASE_JOBS) -> list[Job]:
        found: list[Job] = []
        while len(found) < most and (jobs := self.client.dequeue(self.queue, most - len(found))):
            found += jobs
        return found

    def fail(self, status: str = STATUS, **options: Any) -> None:
        """Fails everything once."""
        jobs = self.take()
        self.client.ack(failed=[Ack(job, status, **options) for job in jobs])

    def queue_shard(self) -> QueueShard:
        return self.client.session.queue_shards(self.queue)[0]

    def key(self, name: str) -> bytes:
        """A key of the queue shard. name: as in the headers of scripts; not one that there is of each priority."""
        script = next(script for script in load_scripts().values() if name in script.keys)
        return self.queue_shard().keys(script.verb, 1)[script.keys.index(name)]

    def call(self, verb: str, *arguments: Any) -> list[Any]:
        queue_shard = self.queue_shard()
        found: list[Any] = self.client.run(lambda end: write(queue_shard, verb, list(arguments), end))
        return found

    def fill_many_priorities(self, case: Case, **options: Any) -> None:
        """A queue of 100 priorities, and the jobs spread over them."""
        self.new_queue(priorities=PRIORITIES)
        bodies = case.bodies()
        self.fill([NewJob(body, priority=1 + at % PRIORITIES, **options) for at, body in enumerate(bodies)])

    def add_dead_waiters(self) -> None:
        """More waiters that nobody listens for than one call looks at, registered a minute ago and now."""
        now_ms = int(time.time() * 1000)
        for since_ms in (now_ms - 70_000, now_ms):
            self.raw.zadd(self.key("waiters"), {f"{since_ms}-{number}": since_ms for number in range(DEAD_WAITERS)})
        head = self.raw.hget(self.key("meta"), "head")
        self.raw.hset(self.key("meta"), "head", head[:14] + b"\1" + head[15:])

    def expire(self, sweep: bytes = b"") -> None:
        """Every lease runs out, then a monitor looks until nothing is left to do.

        sweep: "1:0" looks for jobs whose lease is lost too.
        """
        key = self.key("leases")
        names = self.raw.zrange(key, 0, -1)
        for first in range(0, len(names), 500):
            self.raw.zadd(key, dict.fromkeys(names[first : first + 500], 1))
        latest = b"\x0f" + b"\xff" * 5
        window = bytes(6) + latest + latest + b"\0"  # any TIME is expected, the last look was not long ago, no jump
        more = True
        while more:
            reply = self.call("expire", b"monitor1", 1000, window, sweep)[2]
            sweep = read_failed(self.queue_shard(), reply, 27)[1]
            more = reply[2] or sweep not in (b"", b"1:0")

    def read(self, verb: str, *arguments: Any) -> list[Any]:
        queue_shard = self.queue_shard()
        found: list[Any] = self.client.run(lambda end: read(queue_shard, verb, list(arguments), end))
        return found

    def archive(self, line: str) -> None:
        """All jobs of a line leave in batches. The first one, a small one, is aborted; the others come back."""
        names, jobs, more = list[bytes](), list[MovingJob](), 1
        while more:
            names.append(name := len(names).to_bytes(16, "big"))
            limit = BATCH_JOBS if names[1:] else 2
            more = self.call("withdraw", 1, name, 1, line, "latest", "-inf", "+inf", limit, BATCH_BYTES)[2][4]
            position = b"0"
            while position:
                _, _, _, position, *parts = self.read("read_batch", name, position, REPLY_BYTES)
                jobs += map(MovingJob.from_redis, parts[0::3], parts[1::3], parts[2::3])
        self.read("moves", b"0")
        self.call("abort", names[0])
        for name in names[1:]:
            self.call("finalize", name, b"")
        self.read("held", 1, *(job.id.to_bytes(8, "big") for job in jobs[:1_000]))
        numbers = b"".join(number.to_bytes(8, "big") for number in range(1_000))
        self.client.run(lambda end: repeat(self.queue_shard(), "settled", [b"", b"", numbers], end))
        for number, part in enumerate(_parts(jobs), start=1):
            packed = [job.for_redis() for job in part]
            heads, records = b"".join(head for head, _ in packed), [record for _, record in packed]
            self.call("restore", 1, number.to_bytes(8, "big"), heads, *records)
        self.call("close", 1, number.to_bytes(8, "big"))

    def end_leases(self, started: bytes = b"") -> None:
        queue_shard, arguments = self.queue_shard(), [SOURCE, "was killed by SIGKILL", started]
        self.client.run(lambda end: end_leases_flow(queue_shard, arguments, end))

    def collect(self) -> None:
        cursor, more = b"0", 1
        while more or cursor != b"0":
            reply = self.call("collect", cursor)[2]
            more, cursor = reply[20], reply[21:]


def _parts(jobs: list[MovingJob]) -> Iterator[list[MovingJob]]:
    """Jobs of restores: as many as one takes, and 1 MiB of records and extras at most."""
    part, size = list[MovingJob](), 0
    for job in jobs:
        bytes_ = sum(map(len, job.for_redis()))
        if part and (len(part) == BATCH_JOBS or size + bytes_ > REPLY_BYTES):
            yield part
            part, size = [], 0
        part.append(job)
        size += bytes_
    yield part


# Each step prepares (not measured), yields, works (measured), and is asked for nothing more.
Step = Callable[[Stage, Case], Iterator[None]]
STEPS: dict[str, Step] = {}


def step(function: Step) -> Step:
    STEPS[function.__name__] = function
    return function


@step
def enqueue(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    yield
    stage.fill(case.jobs())


@step
def enqueue_with_statuses(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    yield
    stage.fill(case.jobs(status=STATUS))


@step
def claim_1000(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs())
    yield
    stage.client.dequeue(stage.queue, 1000, dry_run=True)
    stage.take()


@step
def claim_64(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs())
    yield
    stage.client.dequeue(stage.queue, 64)


@step
def claim_one(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs()[:10])
    yield
    for _ in range(10):
        stage.client.dequeue(stage.queue, 1)


@step
def claim_three_priorities(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    for priority in (3, 2, 1):
        stage.fill(case.jobs(priority=priority))
    yield
    stage.client.dequeue(stage.queue, 1000)


@step
def claim_many_priorities(stage: Stage, case: Case) -> Iterator[None]:
    stage.fill_many_priorities(case)
    yield
    stage.client.dequeue(stage.queue, 1000, dry_run=True)
    stage.client.peek(stage.queue)
    stage.client.count(stage.queue)
    stage.take()


@step
def claim_due_many_priorities(stage: Stage, case: Case) -> Iterator[None]:
    stage.fill_many_priorities(case, delay_ms=20, attempts=9)
    time.sleep(0.1)
    yield
    stage.client.dequeue(stage.queue, 1000, dry_run=True)
    stage.client.peek(stage.queue)
    stage.take()


@step
def claim_failed_before(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    stage.fail(delay_ms=20)
    time.sleep(0.1)
    yield
    stage.take()


@step
def claim_due(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(delay_ms=20, attempts=9))
    time.sleep(0.1)
    yield
    stage.take()


@step
def claim_without_records(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs())
    stage.raw.delete(stage.key("jobs"))
    yield
    stage.client.dequeue(stage.queue, 1000)


@step
def ack_succeeded(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs())
    jobs = stage.take()
    yield
    stage.client.ack(succeeded=jobs)


@step
def ack_kept(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(keep_succeeded=200)
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    jobs = stage.take()
    yield
    stage.client.ack(succeeded=[Ack(job, STATUS) for job in jobs])


@step
def ack_failed(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    jobs = stage.take()
    yield
    stage.client.ack(failed=[Ack(job, STATUS, 60_000) for job in jobs])


@step
def ack_failed_for_good(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=1))
    jobs = stage.take()
    yield
    stage.client.ack(failed=[Ack(job, STATUS) for job in jobs])


@step
def release(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    jobs = stage.take()
    yield
    stage.client.release(jobs)


@step
def renew(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs())
    jobs = stage.take()
    yield
    stage.client.renew(jobs)
    stage.client.renew(jobs, own=True)
    stage.client.renew(jobs, own=True)


@step
def checkpoint_bodies(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    jobs = stage.take()
    yield
    stage.client.checkpoint(*(Checkpoint(job=job, body=job.body, attempts=3, status=STATUS) for job in jobs))


@step
def checkpoint_moves(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    jobs = stage.take()
    yield
    stage.client.checkpoint(*(Checkpoint(job=job, move_to_pending=True, status=STATUS) for job in jobs))


@step
def lookup_running(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    names = stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    yield
    stage.client.lookup(names)
    stage.client.lookup(names, with_body=True)


@step
def lookup_pending(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    names = stage.fill(case.jobs())
    yield
    stage.client.lookup(names)
    stage.client.lookup(names, with_body=True)


@step
def scan_pending(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(status=STATUS))
    yield
    list(stage.client.scan(stage.queue, page_size=1000))
    list(stage.client.scan(stage.queue, page_size=1000, with_body=True))


@step
def scan_running(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    yield
    list(stage.client.scan(stage.queue, "in_progress", page_size=1000))
    list(stage.client.scan(stage.queue, "in_progress", page_size=1000, with_body=True))


@step
def scan_failed(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=1))
    stage.fail()
    yield
    list(stage.client.scan(stage.queue, "failed", page_size=1000, with_body=True))


@step
def retry_failed(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=1))
    stage.fail()
    yield
    stage.client.retry_failed(stage.queue, attempts=3)


@step
def retry_named(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    names = stage.fill(case.jobs(attempts=1))
    stage.fail()
    yield
    stage.client.retry_jobs(names, attempts=3)


@step
def delete_pending(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(status=STATUS))
    yield
    stage.client.delete_jobs(stage.queue, "pending")


@step
def delete_running(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    yield
    stage.client.delete_jobs(stage.queue, "in_progress")


@step
def delete_named(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    names = stage.fill(case.jobs(status=STATUS))
    yield
    stage.client.delete_jobs(descriptors=names)


@step
def delete_queue(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(status=STATUS))
    yield
    stage.client.delete_queue(stage.queue)
    stage.queue = ""


@step
def expire(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(crash_limit=3)
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    yield
    stage.expire()


@step
def expire_checkpointed(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(crash_limit=3)
    stage.fill(case.jobs(attempts=9))
    jobs = stage.take()
    for first in range(0, len(jobs), 100):
        stage.client.checkpoint(*(Checkpoint(job=job, status=STATUS) for job in jobs[first : first + 100]))
    yield
    stage.expire()


@step
def expire_single_leases(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(crash_limit=1, quarantine_queue="other")
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.client.renew(stage.take(), own=True)
    yield
    stage.expire()


@step
def expire_single_and_shared_leases(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(crash_limit=3)
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    jobs = stage.take()
    stage.client.renew(jobs[: len(jobs) // 4], own=True)
    yield
    stage.expire(b"1:0")


@step
def expire_lost_leases(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(crash_limit=3)
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    stage.raw.delete(stage.key("leases"), stage.key("lease_jobs"))
    yield
    stage.expire(b"1:0")


@step
def end_leases(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(crash_limit=3)
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    yield
    stage.end_leases()


@step
def end_leases_of_one(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(crash_limit=3)
    stage.fill(case.jobs(attempts=9))
    while stage.client.dequeue(stage.queue, 1):
        pass
    yield
    stage.end_leases()


@step
def end_leases_unstarted(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(crash_limit=3)
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    yield
    stage.end_leases(b"\1" * 8)


@step
def quarantine(stage: Stage, case: Case) -> Iterator[None]:
    stage.client.create_queue("other")
    stage.new_queue(crash_limit=1, quarantine_queue="other")
    stage.fill([NewJob(body, attempts=9, status=STATUS) for body in case.bodies()[:60]])
    stage.take()
    stage.expire()
    yield
    shard, cursor = stage.queue_shard(), b""
    while cursor != b"0":
        at = cursor or b"0"
        cursor = stage.client.run(lambda end, at=at: move_quarantined(stage.client.session, shard, at, end))  # type: ignore[misc]
    stage.client.purge("other")


@step
def keep_results(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    names = stage.fill(case.jobs(attempts=9))
    jobs = stage.take()
    session = stage.client.session
    kept = [(job, b"\0" + job.body, 20) for job in jobs]
    again = [(job, b"\0" + job.body, 60_000) for job in jobs]
    yield
    stage.client.run(lambda end: results.store(session, kept, end))
    time.sleep(0.05)
    stage.client.run(lambda end: results.store(session, again, end))
    shard = stage.queue_shard()
    ids = [int(name.rpartition(":")[2]).to_bytes(8, "big") for name in names]
    stage.client.run(lambda end: read(shard, "outcome", [REPLY_BYTES, bytes([1]) * len(ids), *ids], end))


@step
def collect(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(keep_succeeded=10_000, failed_ttl_s=0, succeeded_ttl_s=0)
    stage.fill(case.jobs(attempts=1))
    stage.fail()
    stage.fill(case.jobs(attempts=1))
    stage.client.ack(succeeded=[Ack(job, STATUS) for job in stage.take()])
    yield
    stage.collect()


@step
def collect_silent(stage: Stage, case: Case) -> Iterator[None]:
    """What clients leave: request slots and reservations of an hour ago, and waiters."""
    stage.new_queue()
    stage.add_dead_waiters()
    hours_ago_ms = int(time.time() * 1000) - 3 * 3_600_000
    since = hours_ago_ms.to_bytes(6, "big")
    h = (hours_ago_ms << 19).to_bytes(8, "big")
    numbers = [number.to_bytes(8, "big") for number in range(SILENT)]
    stage.raw.hset(stage.key("meta"), mapping={number + b"zz": bytes(4) + h for number in numbers})
    stage.raw.hset(stage.key("reservations"), mapping=dict.fromkeys(numbers, b"\x00\x01" + since))
    yield
    stage.collect()


@step
def notify_dead_waiters(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.add_dead_waiters()
    yield
    stage.fill(case.jobs())
    stage.call("pass_on", b"")


@step
def pause_resume(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue(priorities=PRIORITIES)
    yield
    stage.client.configure_queue(stage.queue, paused=True)
    stage.add_dead_waiters()
    stage.client.configure_queue(stage.queue, paused=False)
    stage.add_dead_waiters()
    stage.client.reset_lost(stage.queue)
    stage.client.delete_queue(stage.queue)
    stage.client.create_queue(stage.queue)


@step
def limits(stage: Stage, case: Case) -> Iterator[None]:
    """Each call that limits add, and those that free the places of max_running."""
    stage.new_queue(rate="1000000/s", max_running=1_000)
    stage.fill(case.jobs())
    yield
    stage.add_dead_waiters()
    jobs = stage.client.dequeue(stage.queue, 100)
    stage.client.queue_limits(stage.queue)
    stage.client.pause_queue(stage.queue, 60)
    stage.client.resume_queue(stage.queue)
    stage.add_dead_waiters()
    stage.client.ack(succeeded=jobs)


@step
def audit(stage: Stage, case: Case) -> Iterator[None]:
    from pinlater.operations.audit import audit as flow

    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    yield
    stage.client.run(lambda end: flow(stage.client.session, stage.queue, end))


@step
def archive_ready(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs())
    yield
    stage.archive("ready")


@step
def archive_scheduled(stage: Stage, case: Case) -> Iterator[None]:
    stage.new_queue()
    stage.fill(case.jobs(status=STATUS, delay_ms=3_600_000))
    yield
    stage.archive("scheduled")


@step
def look_at_withdrawn(stage: Stage, case: Case) -> Iterator[None]:
    """All that shows or removes pending jobs, while they are withdrawn."""
    from pinlater.operations.audit import audit as flow

    stage.new_queue()
    names = stage.fill(case.jobs(status=STATUS))
    for name in (b"A" * 16, b"B" * 16):
        stage.call("withdraw", 1, name, 1, "ready", "latest", "-inf", "+inf", BATCH_JOBS, 1 << 40)
    yield
    stage.client.lookup(names)
    list(stage.client.scan(stage.queue, page_size=1000))
    stage.client.run(lambda end: flow(stage.client.session, stage.queue, end))
    stage.client.delete_jobs(stage.queue, "pending")


@step
def metrics_many_priorities(stage: Stage, case: Case) -> Iterator[None]:
    stage.fill_many_priorities(case)
    queue_shard = stage.queue_shard()
    yield
    stage.client.run(lambda end: workers.measure(queue_shard, b"12345678", 1000, end))


@step
def worker_processes_of_a_queue(stage: Stage, case: Case) -> Iterator[None]:
    """A record of the most bytes from each of 500 processes, and how they are listed."""
    stage.new_queue()
    queue_shard, record = stage.queue_shard(), b'"%s"' % (b"x" * 5_000)
    yield
    for number in range(500):
        stage.client.run(lambda end, at=number: workers.beat(queue_shard, f"process {at}", record, b"0", end))  # type: ignore[misc]
    stage.client.run(lambda end: workers.worker_processes(stage.client.session, [stage.queue], end))


class Pinger(threading.Thread):
    """Sends a PING every millisecond. worst_ms: the longest wait since the last reset."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._raw: Any = server.client(socket_timeout=120)
        self._ended = threading.Event()
        self.worst_ms = 0.0
        self._pings = 0

    def run(self) -> None:
        while not self._ended.wait(PING_S):
            began_s = time.perf_counter()
            self._raw.ping()
            self.worst_ms = max(self.worst_ms, 1000 * (time.perf_counter() - began_s))
            self._pings += 1

    def settle(self) -> None:
        """Waits for the end of a PING that may be under way."""
        until = self._pings + 2
        while self._pings < until:
            time.sleep(PING_S)

    def end(self) -> None:
        self._ended.set()
        self.join()


@contextmanager
def staged(kind: Kind) -> Iterator[tuple[Stage, Pinger]]:
    with TemporaryDirectory(prefix="pinlater-bench-") as folder:
        config = {"slowlog-log-slower-than": "0", "slowlog-max-len": "100000"}
        with Server(kind, Path(folder), config=config) as server:
            pinger = Pinger(server)
            pinger.start()
            yield Stage(server), pinger
            pinger.end()


def measure(kind: Kind, cases: list[Case], only: list[str], rounds: int) -> tuple[dict[Call, float], dict[Any, float]]:
    """Best of the rounds: ms of each call (step, size, verb, number), and the worst PING of each step."""
    verbs = {script.sha: verb for verb, script in load_scripts().items()}
    calls: dict[Call, float] = {}
    pings: dict[Any, float] = {}
    with staged(kind) as (stage, pinger):
        for case in cases:
            size = case.size
            for name in only:
                for _ in range(rounds):
                    worst = measure_step(stage, pinger, STEPS[name], case)
                    pings[name, size] = min(pings.get((name, size), worst), worst)
                    numbers = Counter[str]()
                    for verb, ms in slow_log(stage.raw, verbs):
                        numbers[verb] += 1
                        call = (name, size, verb, numbers[verb])
                        calls[call] = min(calls.get(call, ms), ms)
    return calls, pings


def measure_step(stage: Stage, pinger: Pinger, make: Step, case: Case) -> float:
    running = make(stage, case)
    next(running)
    stage.raw.execute_command("SLOWLOG", "RESET")
    pinger.worst_ms = 0.0
    next(running, None)
    pinger.settle()
    return pinger.worst_ms


def slow_log(raw: Any, verbs: dict[bytes, str]) -> list[tuple[str, float]]:
    """Verb and ms of each call of a script since the last reset, in order."""
    entries: Any = raw.execute_command("SLOWLOG", "GET", -1)
    found = []
    for entry in reversed(entries):
        took_us, words = entry[2], entry[3]
        if words[0] == b"EVALSHA":
            found.append((verbs.get(words[1], "?"), took_us / 1000))
    return found


def main() -> int:
    """Prints each step's worst call; 1 if one is over the bar."""
    given = _arguments()
    logging.disable()
    cases = [Case("100", QUICK_JOBS)] if given.quick else [Case(size) for size in given.sizes]
    calls, pings = measure(given.server, cases, given.only, given.rounds)
    worst: dict[tuple[str, str, str], tuple[float, int]] = {}
    for (name, size, verb, _), ms in calls.items():
        most, count = worst.get((name, size, verb), (0.0, 0))
        worst[name, size, verb] = max(most, ms), count + 1
    for (name, size, verb), (ms, count) in sorted(worst.items(), key=lambda one: -one[1][0]):
        if ms > given.show:
            print(f"{ms:8.1f} ms  {verb:16} {name:24} {size:>8}  {count:5} calls  ping {pings[name, size]:7.1f} ms")
    print("worst by verb:")
    by_verb: dict[str, float] = {}
    for (_, _, verb), (ms, _) in worst.items():
        by_verb[verb] = max(by_verb.get(verb, 0.0), ms)
    print(", ".join(f"{verb} {ms:.1f}" for verb, ms in sorted(by_verb.items(), key=lambda one: -one[1])))
    if given.json:
        given.json.write_text(json.dumps([[*key, *value] for key, value in worst.items()], indent=1) + "\n")
    return int(any(ms > BAR_MS for ms, _ in worst.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How long one call of a script holds the server.")
    parser.add_argument("--server", choices=KINDS, default="valkey")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=list(SIZES))
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(STEPS), help="steps")
    parser.add_argument("--show", type=float, default=8.0, help="show calls that took more ms than this")
    parser.add_argument("--quick", action="store_true", help="few small jobs, to check that it works")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
