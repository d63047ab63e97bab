"""A storm of faults over four queues: kills, stops, failovers, cut connections, pauses, restarts, refused writes, full
memory, and tasks that block their loop.

Promises: every acknowledged job ends, none runs twice at a time, none fails but those that raise, the audit is clean,
and the keys that are left are documented ones.
Risk: each fault is shorter than a third of a lease, so that no lease runs out while its worker lives. Longer ones are
the business of tests of their own.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from pinlater import Client, JobInfo, QueueConfig
from tests.conftest import FreshServer
from tests.support.app_runs import AppRuns, Note, runs
from tests.support.audits import audit_queue
from tests.support.failover import MakePair, Pair, make_pair
from tests.support.pages import table
from tests.support.paths import ROOT
from tests.support.servers import Server, is_alive, wait_until

__all__ = ["make_pair", "runs"]  # fixtures

TASKS = """
from contextlib import contextmanager
from pinlater import QueueConfig

@contextmanager
def noted(name):
    note("began", name)
    try:
        yield
    finally:
        note("over", name)

@app.task(name="loop", queue="loop", attempts=20)
async def on_the_loop(name, seconds):
    with noted(name):
        await asyncio.sleep(seconds)

@app.task(name="block", queue="block", attempts=20)
async def block(name, seconds):
    with noted(name):
        time.sleep(10 * seconds)

@app.task(name="thread", queue="thread", attempts=20)
def in_a_thread(name, seconds):
    with noted(name):
        time.sleep(seconds)

@app.task(name="process", queue="process", attempts=20, runs_in="process")
def in_a_process(name, seconds):
    with noted(name):
        time.sleep(seconds)

@app.task(name="bad", queue="loop", attempts=2, backoff=0.1)
async def bad(name, seconds):
    with noted(name):
        raise ValueError("as told")
"""
#: The producer's program. What it writes down was acknowledged.
PRODUCE = """
import json, random, sys, time
from pathlib import Path
from pinlater import OutcomeUnknown, PinLaterError, ServerError
import tasks

def resolved(unknown):
    while True:
        try:
            return unknown.resolve()
        except OutcomeUnknown as error:
            unknown = error
        except PinLaterError:
            return None

def enqueue(task, name):
    try:
        return tasks.app.tasks[task].enqueue(name, random.uniform(0.0, 0.1))
    except OutcomeUnknown as error:
        return resolved(error)
    except ServerError:
        return None

shares, number = json.loads(sys.argv[1]), 0
with open("acknowledged", "w", buffering=1) as out:
    while not Path("enough").exists():
        time.sleep(0.1)
        for task in random.choices(list(shares), list(shares.values()), k=5):
            number += 1
            handle = enqueue(task, f"{task}{number}")
            if handle is not None:
                print(getattr(handle, "descriptor", handle), task, f"{task}{number}", file=out)
"""
QUEUES = ("loop", "block", "thread", "process")
#: How many of a hundred jobs.
SHARES = {"loop": 40, "thread": 30, "process": 15, "bad": 10, "block": 5}
WORKERS: tuple[tuple[str, ...], ...] = (
    ("--processes", "2", "--concurrency", "6"),
    ("--concurrency", "6"),
    ("--concurrency", "4", "--queues", "loop,thread"),
)
LEASE_MS = 15_000
#: The longest stand-still that the storm makes.
STILL_S = 3.0
#: For everything to end once the storm is over: a lease and some ticks, on a loaded machine.
CALM_S = 240.0
CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))


class Producer:
    """A process that enqueues, and writes down what was acknowledged."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "produce.py").write_text(PRODUCE)
        self._folder = folder
        environment = {**os.environ, "PINLATER_URL": url}
        with (folder / "produce.log").open("wb") as log:
            command = [sys.executable, "produce.py", json.dumps(SHARES)]
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def end(self) -> dict[str, tuple[str, str]]:
        """The acknowledged jobs: descriptor -> task, name."""
        (self._folder / "enough").touch()
        assert self.process.wait(CALM_S) == 0, (self._folder / "produce.log").read_text()
        lines = (self._folder / "acknowledged").read_text().splitlines()
        return {descriptor: (task, name) for descriptor, task, name in map(str.split, lines)}


class Storm:
    """One fault at a time, each healed before the next."""

    def __init__(self, app_runs: AppRuns, pair: Pair, other: Server) -> None:
        self.app_runs, self.pair, self.other = app_runs, pair, other
        self.alive = {options: app_runs.start(*options) for options in WORKERS}
        self.killed_ns: dict[int, int] = {}
        self.counts = Counter[str]()
        self.faults: list[Callable[[], None]] = [
            self.kill_worker,
            self.kill_child,
            self.stop_worker,
            self.freeze_worker,
            self.cut_connections,
            self.freeze_server,
            self.restart_server,
            self.fail_over,
            self.refuse_writes,
            self.fill_memory,
        ]

    def rage(self, seconds: float) -> None:
        """Every fault once, in any order, and then again as long as there is time."""
        end_s = time.monotonic() + seconds
        while not self.counts or time.monotonic() < end_s:
            for fault in random.sample(self.faults, len(self.faults)):
                fault()
                self.counts[fault.__name__] += 1
                time.sleep(random.uniform(0.1, 1.0))  # jobs run between two faults

    def end(self) -> None:
        for process in self.alive.values():
            process.terminate()
        assert [process.wait(CALM_S) for process in self.alive.values()] == [0] * len(WORKERS)

    def kill_worker(self) -> None:
        options = random.choice(WORKERS)
        self._kill(self.alive[options].pid)
        self.alive[options].wait()
        self.alive[options] = self.app_runs.start(*options)

    def kill_child(self) -> None:
        """A worker process under its supervisor, or a task process."""
        children = [pid for process in self.alive.values() for pid in descendants(process.pid)]
        if children:
            self._kill(random.choice(children))

    def _kill(self, pid: int) -> None:
        """Kills a process. Those that come from it die with it."""
        family, killed_ns = [pid, *descendants(pid)], time.monotonic_ns()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, family)), "the end of its processes")
        dead = [note.pid for note in self.app_runs.notes("began") if not is_alive(note.pid)]
        for each in {*family, *dead} - set(self.killed_ns):
            self.killed_ns[each] = killed_ns

    def stop_worker(self) -> None:
        options = random.choice(WORKERS)
        process = self.alive[options]
        process.terminate()
        assert process.wait(CALM_S) == 0
        self.alive[options] = self.app_runs.start(*options)

    def freeze_worker(self) -> None:
        process = random.choice(list(self.alive.values()))
        self._freeze([process.pid, *descendants(process.pid)])

    def freeze_server(self) -> None:
        self._freeze([random.choice([self.pair.primary, self.other]).pid])

    def _freeze(self, pids: list[int]) -> None:
        for signal_ in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal_)
            if signal_ == signal.SIGSTOP:
                time.sleep(random.uniform(0.1, STILL_S))

    def cut_connections(self) -> None:
        server = random.choice([self.pair.primary, self.other])
        server.call("CLIENT", "KILL", "TYPE", random.choice(["normal", "pubsub"]))

    def restart_server(self) -> None:
        self.other.restart(kill=True)

    def fail_over(self) -> None:
        """The replica becomes the primary, without a lost write; connections to the old one stay open."""
        self.pair.fail_over()

    def refuse_writes(self) -> None:
        """The server can not save, as on a full disk, and refuses writes."""
        blocker = self.other.directory / "dump.rdb"
        blocker.unlink(missing_ok=True)
        blocker.mkdir()
        self._save("err")
        time.sleep(random.uniform(0.1, STILL_S))
        blocker.rmdir()
        self._save("ok")

    def _save(self, status: str) -> None:
        def saved() -> bool:
            info = self.other.info("persistence")
            if info["rdb_bgsave_in_progress"] or info["aof_rewrite_in_progress"]:
                return False
            if info["rdb_last_bgsave_status"] == status:
                return True
            self.other.call("BGSAVE")
            return False

        wait_until(saved, f"a save that ends with {status}")

    def fill_memory(self) -> None:
        server = random.choice([self.pair.primary, self.other])
        server.call("CONFIG", "SET", "maxmemory", "1mb")
        time.sleep(random.uniform(0.1, STILL_S))
        server.call("CONFIG", "SET", "maxmemory", "0")


def descendants(pid: int) -> list[int]:
    """The processes that come from this one and are alive."""
    parents = dict(_parents())
    found, ahead = list[int](), [pid]
    while ahead:
        parent = ahead.pop()
        children = [child for child, of in parents.items() if of == parent]
        found += children
        ahead += children
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            status = path.read_text(errors="replace").rpartition(")")[2].split()
            if status[0] not in "ZX":
                yield int(path.parent.name), int(status[1])


def overlaps(notes: list[Note], killed_ns: dict[int, int]) -> list[tuple[Note, Note]]:
    """Pairs of runs of one job: the second began before the first was over, or was killed."""
    over_ns = {(note.pid, note.run): note.time_ns for note in notes if note.event == "over"}
    began: dict[str, list[Note]] = {}
    for note in notes:
        if note.event == "began":
            began.setdefault(note.name, []).append(note)
    return [
        (first, second)
        for job in began.values()
        for first, second in pairwise(sorted(job, key=lambda note: note.time_ns))
        if second.time_ns < over_ns.get((first.pid, first.run), killed_ns.get(first.pid, 2**63))
    ]


def key_names(server: Server) -> set[str]:
    """The names of the keys on a server, without their tags; `k` stands for a priority."""
    with server.client() as client:
        names = [key.decode().partition("}:")[2] for key in client.scan_iter(count=1000)]
    return {re.sub(r":\d+$", ":k", name) for name in names}


def documented_keys() -> set[str]:
    """As key_names, from the table of docs/design.md."""
    cells = [row[0].strip("`") for row in table((ROOT / "docs" / "design.md").read_text("utf-8"), "keys")]
    return {re.sub(r":\W.*$", ":k", name.rpartition("}:")[2]) for cell in cells for name in cell.split(", ")}


#: What only a job that has not ended has.
UNENDED = {"ready:k", "scheduled:k", "running:k", "leases", "lease_jobs", "quarantined", "reservations"}


def storm(fresh_server: FreshServer, make_pair: MakePair, runs: Callable[..., AppRuns], seconds: float) -> None:
    pair = make_pair()
    other = fresh_server("valkey", config={"appendonly": "yes", "appendfsync": "always", "save": "3600 1"})
    url = f"1={pair.url},2={other.url}"
    with Client(url, timeout_s=60) as client:
        for queue in QUEUES:
            client.create_queue(queue, QueueConfig(lease_ms=LEASE_MS, crash_limit=100, keep_succeeded=10**7))
        app_runs = runs(url, TASKS)
        raging = Storm(app_runs, pair, other)
        producer = Producer(app_runs.folder, url)
        try:
            app_runs.wait("over", 20, deadline_s=CALM_S)
            raging.rage(seconds)
            acknowledged = producer.end()
        finally:
            producer.process.kill()
        wait_until(lambda: not any(unended(client, queue) for queue in QUEUES), "the end of all jobs", CALM_S)
        raging.end()
        check(client, acknowledged, raging)
        for server in (pair.primary, other):
            left = {name for name in key_names(server) if not name.endswith(":list")}  # of a killed worker, for 60 s
            assert left <= documented_keys() - UNENDED


def unended(client: Client, queue: str) -> int:
    counts = client.count(queue)
    return counts.pending + counts.scheduled + counts.in_progress


def check(client: Client, acknowledged: dict[str, tuple[str, str]], raging: Storm) -> None:
    descriptors = list(acknowledged)
    infos: dict[str, JobInfo] = {}
    for start in range(0, len(descriptors), 1000):
        infos |= client.lookup(descriptors[start : start + 1000])
    assert sorted(set(acknowledged) - set(infos)) == []
    ended = Counter((task, infos[descriptor].state.name) for descriptor, (task, _) in acknowledged.items())
    assert set(ended) == {(task, "FAILED" if task == "bad" else "SUCCEEDED") for task in SHARES}, ended
    notes = raging.app_runs.notes()
    assert overlaps(notes, raging.killed_ns) == []
    assert {name for _, name in acknowledged.values()} <= {note.name for note in notes}
    assert [finding for queue in QUEUES for finding in audit_queue(client, queue).findings] == []


@pytest.mark.thorough("minutes")
@pytest.mark.timeout(7200)
def test_a_storm(fresh_server: FreshServer, make_pair: MakePair, runs: Callable[..., AppRuns]) -> None:
    storm(fresh_server, make_pair, runs, 1800.0 if CAMPAIGN else 60.0)
