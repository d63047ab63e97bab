"""How long one call of a script holds the server: every verb, at many sizes of bodies, statuses and calls.

    python benches/stalls.py [--server valkey|redis] [--rounds 3] [--sizes 100,65536,mixed]
                             [--only ack_failed,expire] [--json FILE]

The server's own slow log times each call, so other processes count only while they take its core away. A second
connection sends a PING every millisecond: it also waits for what the slow log leaves out, the reading of arguments and
the writing of replies. Each round makes the same calls; a call's time is its best of the rounds.

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
from pinlater.operations import results
from pinlater.operations.inspect import REPLY_BYTES
from pinlater.operations.quarantine import move_quarantined
from pinlater.store.requests import read, write
from pinlater.store.scripts import load_scripts
from tests.support.servers import KINDS, Kind, Server

#: No call of a script may hold the server for longer.
BAR_MS = 20.0
#: Bytes of bodies in one case, so that large ones are fewer; and its most jobs.
CASE_BYTES, CASE_JOBS = 48 * 1024 * 1024, 1_000
SIZES = ("100", "1024", "4096", "16384", "65536", "262144", "600000", "1048576", "mixed")
#: A status of the most bytes.
STATUS = "s" * 2_999 + "\n"
PING_S = 0.001
SOURCE = "bench"

Call = tuple[str, str, str, int]


@dataclass(frozen=True)
class Case:
    """The jobs that all steps of a case work with. size: bytes of a body, or `mixed`."""

    size: str

    def bodies(self) -> list[bytes]:
        """Mixed: nine small bodies, then one of 1 MiB, and so on; shuffled, the same in each run."""
        if self.size == "mixed":
            sizes = [100] * 400 + [1024 * 1024] * 40
            random.Random(1).shuffle(sizes)
            return [b"x" * size for size in sizes]
        size = int(self.size)
        return [b"x" * size] * max(4, min(CASE_JOBS, CASE_BYTES // size))

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

    def call(self, verb: str, *arguments: Any) -> list[Any]:
        queue_shard = self.client.session.queue_shards(self.queue)[0]
        found: list[Any] = self.client.run(lambda end: write(queue_shard, verb, list(arguments), end))
        return found

    def expire(self) -> None:
        """Every lease runs out, then a monitor looks until nothing is left to do."""
        shard = self.client.session.queue_shards(self.queue)[0]
        key = shard.keys("expire", 1)[shard_key("expire", "leases")]
        names = self.raw.zrange(key, 0, -1)
        for first in range(0, len(names), 500):
            self.raw.zadd(key, dict.fromkeys(names[first : first + 500], 1))
        latest = b"\x0f" + b"\xff" * 5
        window = bytes(6) + latest + latest + b"\0"  # any TIME is expected, the last look was not long ago, no jump
        more, sweep = 1, b""
        while more:
            reply = self.call("expire", b"monitor1", 1000, window, sweep)[2]
            more = reply[2]

    def end_leases(self, started: bytes = b"") -> None:
        cursor, more = b"0:0", 1
        while more:
            reply = self.call("end_leases", SOURCE, "was killed by SIGKILL", started, cursor)[2]
            more, cursor = reply[16], reply[17:]

    def collect(self) -> None:
        cursor, more = b"0", 1
        while more or cursor != b"0":
            reply = self.call("collect", cursor)[2]
            more, cursor = reply[20], reply[21:]


def shard_key(verb: str, name: str) -> int:
    return load_scripts()[verb].keys.index(name)


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
    shard = stage.client.session.queue_shards(stage.queue)[0]
    stage.raw.delete(shard.keys("claim", 3)[shard_key("claim", "jobs")])
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
    shard, cursor = stage.client.session.queue_shards(stage.queue)[0], b""
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
    shard = session.queue_shards(stage.queue)[0]
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
def audit(stage: Stage, case: Case) -> Iterator[None]:
    from pinlater.operations.audit import audit as flow

    stage.new_queue()
    stage.fill(case.jobs(attempts=9))
    stage.fail()
    stage.take()
    yield
    stage.client.run(lambda end: flow(stage.client.session, stage.queue, end))


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


def measure(kind: Kind, sizes: list[str], only: list[str], rounds: int) -> tuple[dict[Call, float], dict[Any, float]]:
    """Best of the rounds: ms of each call (step, size, verb, number), and the worst PING of each step."""
    verbs = {script.sha: verb for verb, script in load_scripts().items()}
    calls: dict[Call, float] = {}
    pings: dict[Any, float] = {}
    with staged(kind) as (stage, pinger):
        for size in sizes:
            for name in only:
                for _ in range(rounds):
                    worst = measure_step(stage, pinger, STEPS[name], Case(size))
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
    calls, pings = measure(given.server, given.sizes, given.only, given.rounds)
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
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
