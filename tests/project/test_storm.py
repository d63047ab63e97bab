"""A storm of faults over four queues: kills, stops, failovers, cut connections, pauses, restarts, refused writes, full
memory, and tasks that block their loop.

Promises: every acknowledged job ends. None runs twice at a time. A job runs again only if its process was killed or
stood still. It has a crash only for a process that was killed, and fails only if it raises or reaches the crash limit.
The audit is clean, and what is left is documented.
Risk: the faults that meet in one lease are shorter than it together, and so no lease runs out while its worker lives.
Longer ones are the business of tests of their own.
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
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import redis

from pinlater import Client, JobInfo, QueueConfig, State
from tests.conftest import FreshServer
from tests.support.app_runs import AppRuns, Note, runs
from tests.support.audits import audit_queue
from tests.support.failover import MakePair, Pair, make_pair
from tests.support.pages import table
from tests.support.paths import ROOT
from tests.support.servers import Server, is_alive, wait_until
from tests.support.storm_evidence import Fault, account

__all__ = ["make_pair", "runs"]  # fixtures

LEASE_MS = 24_000
#: The longest stand-still of a server.
STILL_S = 2.5
#: A worker also stands still, or is blocked, for longer than an unconfirmed lease.
LONG_S = 7.0
#: A process blocks its loop for so long in one lease at most. It also stands still meanwhile (LONG_S, STILL_S), and so
#: does a server. A claim under way that is not read for a whole lease is lost, and its jobs have a crash.
BLOCKED_S = 8.0

TASKS = f"""
from contextlib import contextmanager
from pinlater import QueueConfig

@contextmanager
def noted(name):
    note("began", name)
    try:
        yield
    finally:
        note("over", name)

blocked = []  # of this process: when it ended, and its seconds

def block_loop(seconds):
    now = time.monotonic()
    lately = sum(spent for end, spent in blocked if end > now - {LEASE_MS / 1000})
    seconds = max(0.0, min(seconds, {BLOCKED_S} - lately))
    time.sleep(seconds)
    blocked.append((now + seconds, seconds))

@app.task(name="loop", queue="loop", attempts=1)
async def on_the_loop(name, seconds):
    with noted(name):
        await asyncio.sleep(seconds)

@app.task(name="block", queue="block", attempts=1)
async def block(name, seconds):
    with noted(name):
        block_loop({LONG_S} if seconds < 0.01 else 10 * seconds)  # sometimes longer than an unconfirmed lease

@app.task(name="thread", queue="thread", attempts=1)
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
#: The monitor's program. It looks often, so that an unconfirmed lease ends while its worker stands still.
MONITOR = """
import asyncio, os
from pinlater import AsyncClient
from pinlater.worker.monitor import Monitor

async def main():
    async with AsyncClient(os.environ["PINLATER_URL"]) as client:
        await Monitor(client, tick_s=0.5).run()

asyncio.run(main())
"""
#: Two queues keep the jobs that succeeded, and show their crashes. The others keep none, as most queues do.
KEPT = {"loop": 10**7, "block": 10**7, "thread": 0, "process": 0}
CRASH_LIMIT = 3
#: How many of a hundred jobs.
SHARES = {"loop": 40, "thread": 30, "process": 15, "bad": 10, "block": 5}
WORKERS: tuple[tuple[str, ...], ...] = (
    ("--processes", "2", "--concurrency", "6"),
    ("--concurrency", "6"),
    ("--concurrency", "4", "--queues", "loop,thread"),
)
#: For everything to end once the storm is over: a lease and some ticks, on a loaded machine.
CALM_S = 240.0
CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))


def start(app_runs: AppRuns, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a program beside the app."""
    (app_runs.folder / f"{name}.py").write_text(program)
    environment = {**os.environ, "PINLATER_URL": app_runs.url}
    with (app_runs.folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, f"{name}.py", *arguments]
        return subprocess.Popen(command, cwd=app_runs.folder, env=environment, stdout=log, stderr=log)


class Producer:
    """A process that enqueues, and writes down what was acknowledged."""

    def __init__(self, app_runs: AppRuns) -> None:
        self._folder = app_runs.folder
        self.process = start(app_runs, "produce", PRODUCE, json.dumps(SHARES))

    def end(self) -> dict[str, tuple[str, str]]:
        """The acknowledged jobs: descriptor -> task, name."""
        (self._folder / "enough").touch()
        assert self.process.wait(CALM_S) == 0, (self._folder / "produce.log").read_text()
        lines = (self._folder / "acknowledged").read_text().splitlines()
        return {descriptor: (task, name) for descriptor, task, name in map(str.split, lines)}


class Killed(NamedTuple):
    """A process was killed between these times, by the monotonic clock that notes have and by the clock of servers (s).

    A long storm uses pids again, so a pid alone names no process.
    """

    pid: int
    from_ns: int
    until_ns: int
    from_s: float
    until_s: float


class Frozen(NamedTuple):
    """Processes that stood still for longer than an unconfirmed lease."""

    pids: set[int]
    from_ns: int
    until_ns: int


class Storm:
    """One fault at a time, each healed before the next."""

    def __init__(self, app_runs: AppRuns, pair: Pair, other: Server) -> None:
        self.app_runs, self.pair, self.other = app_runs, pair, other
        self.alive = {options: self._start(options) for options in WORKERS}
        self.killed: list[Killed] = []
        self.frozen: list[Frozen] = []
        self.counts = Counter[str]()
        self.past: list[Fault] = []
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
        ahead = list[Callable[[], None]]()
        while len(self.counts) < len(self.faults) or time.monotonic() < end_s:
            ahead = ahead or random.sample(self.faults, len(self.faults))
            fault, from_s = ahead.pop(), time.time()
            fault()
            self.past.append(Fault(fault.__name__, from_s, time.time()))
            self.counts[fault.__name__] += 1
            time.sleep(random.uniform(0.3, 1.0))  # jobs run between two faults

    def _start(self, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        return self.app_runs.start(*options, "--log-format", "json")  # which names the process

    def end(self) -> None:
        for process in self.alive.values():
            process.terminate()
        ends = {process.wait(CALM_S) for process in self.alive.values()}
        assert ends <= {0, -signal.SIGTERM}, ends  # the latter before it was ready

    def kill_worker(self) -> None:
        options = random.choice(WORKERS)
        self._kill(self.alive[options].pid)
        self.alive[options].wait()
        self.alive[options] = self._start(options)

    def kill_child(self) -> None:
        """A worker process under its supervisor, or a task process."""
        children = [pid for process in self.alive.values() for pid in descendants(process.pid)]
        if children:
            self._kill(random.choice(children))

    def _kill(self, pid: int) -> None:
        """Kills a process. Those that come from it die with it; it stands still first, so that it makes no more."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            family = [pid, *descendants(pid)]
            from_ns, from_s = time.monotonic_ns(), time.time()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, family)), "the end of its processes")
            until_ns, until_s = time.monotonic_ns(), time.time()
            self.killed += [Killed(one, from_ns, until_ns, from_s, until_s) for one in family]

    def stop_worker(self) -> None:
        options = random.choice(WORKERS)
        process = self.alive[options]
        process.terminate()
        assert process.wait(CALM_S) in (0, -signal.SIGTERM)  # the latter before it was ready
        self.alive[options] = self._start(options)

    def freeze_worker(self) -> None:
        """For longer than an unconfirmed lease at first, and then every other time."""
        process = random.choice(list(self.alive.values()))
        pids, from_ns = [process.pid, *descendants(process.pid)], time.monotonic_ns()
        if self.counts["freeze_worker"] % 2:
            self._freeze(pids, random.uniform(0.1, STILL_S))
        else:
            self._freeze(pids, LONG_S)
            self.frozen.append(Frozen(set(pids), from_ns, time.monotonic_ns()))

    def freeze_server(self) -> None:
        self._freeze([random.choice([self.pair.primary, self.other]).pid], random.uniform(0.1, STILL_S))

    def _freeze(self, pids: list[int], seconds: float) -> None:
        for signal_ in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal_)
            if signal_ == signal.SIGSTOP:
                time.sleep(seconds)

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


def pairs_of_runs(notes: list[Note]) -> Iterator[tuple[Note, Note]]:
    """Each run of a job, and its next run, by the notes of their starts."""
    began: dict[str, list[Note]] = {}
    for note in notes:
        if note.event == "began":
            began.setdefault(note.name, []).append(note)
    for job in began.values():
        yield from pairwise(sorted(job, key=lambda note: note.time_ns))


def is_explained(first: Note, second: Note, raging: Storm) -> bool:
    """Whether the process of the first run was killed, or one of the two stood still, so that another got the job: in
    its run, or just before it.
    """
    if any(
        killed.pid == first.pid and first.time_ns < killed.until_ns and killed.from_ns < second.time_ns
        for killed in raging.killed
    ):
        return True
    return any(
        (first.pid in frozen.pids and first.time_ns < frozen.from_ns < second.time_ns)
        or (second.pid in frozen.pids and frozen.from_ns < first.time_ns < frozen.until_ns < second.time_ns)
        for frozen in raging.frozen
    )


def unexplained_runs(raging: Storm) -> list[tuple[Note, Note]]:
    """Pairs of runs of one job without a reason for the second. One that raises has two attempts."""
    found = [pair for pair in pairs_of_runs(raging.app_runs.notes()) if not is_explained(*pair, raging)]
    ended = {(note.pid, note.run): note.time_ns for note in raging.app_runs.notes("over")}
    tried_again, wrong = set[str](), list[tuple[Note, Note]]()
    for first, second in found:
        over_ns = ended.get((first.pid, first.run), 2**63)
        if first.name.startswith("bad") and first.name not in tried_again and over_ns < second.time_ns:
            tried_again.add(first.name)
        else:
            wrong.append((first, second))
    return wrong


def between_runs(pair: tuple[Note, Note], raging: Storm) -> str:
    """Two runs of a job, and what happened in between."""
    first, second = pair
    wall_s = time.time() - time.monotonic()
    from_s, until_s = wall_s + first.time_ns / 1e9, wall_s + second.time_ns / 1e9
    pids = dict.fromkeys([first.pid, second.pid])
    accounts = [account(raging.app_runs, raging.past, pid, from_s, until_s) for pid in pids]
    return "\n".join([f"{first}, then {second}", *accounts])


def unexplained_crashes(info: JobInfo, raging: Storm) -> list[str]:
    """What is wrong with the crashes of a job: its status names the process of each, and when its job came back."""
    crashes = EVIDENCE.findall(info.status)
    wrong = [] if len(crashes) == info.crashes else [f"{info.descriptor}: {info.crashes} crashes: {info.status}"]
    for number, (said, pid, *times) in enumerate(crashes, 1):
        killed = [one for one in raging.killed if one.pid == int(pid)]
        claimed_s, recovered_s = (datetime.fromisoformat(moment).timestamp() for moment in times)
        died = any(claimed_s - 1 < one.until_s and one.from_s - 1 < recovered_s for one in killed)  # whole seconds
        if int(said) != number or not died:
            happened = account(raging.app_runs, raging.past, int(pid), claimed_s, recovered_s)
            wrong.append(f"{info.descriptor}: {info.status}killed: {killed}\n{happened}")
    return wrong


def left_over(server: Server) -> list[str]:
    """What is on a server beside ended jobs and what docs/design.md says to stay."""
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    with server.client() as client:
        keys = [Key(client, key) for key in client.scan_iter(count=1000)]
        kept = [key for key in keys if not key.name.endswith(":list")]  # such are of killed workers, for 60 s
        wrong = [str(key) for key in kept if key.name not in documented_keys(page) - UNENDED]
        fields = {row[0].encode() for row in table(page, "meta")}
        for meta in (key for key in kept if key.name == "meta"):
            wrong += [f"{meta} {field!r}" for field in meta.members() - fields if len(field) != REQUEST_SLOT_BYTES]
        for tag in {key.tag for key in kept}:
            wrong += [f"{tag} {problem}" for problem in without_a_job([key for key in kept if key.tag == tag])]
    return wrong


class Key:
    """A key on a server. tag: of its queue shard. name: without the tag; `k` stands for a priority."""

    def __init__(self, client: redis.Redis, key: bytes) -> None:
        self._client, self._key = client, key
        self.tag, _, name = key.decode().partition("}:")
        self.name = re.sub(r":\d+$", ":k", name)

    def __str__(self) -> str:
        return self._key.decode()

    def members(self) -> set[bytes]:
        """The fields of a hash, or the members of a sorted set."""
        is_hash = self._client.type(self._key) == b"hash"
        return set(self._client.hkeys(self._key) if is_hash else self._client.zrange(self._key, 0, -1))  # type: ignore[arg-type]


def without_a_job(keys: list[Key]) -> Iterator[str]:
    """Elements in the keys of a queue shard that belong to no job that ended."""

    def ids(*names: str) -> set[bytes]:
        return {id_ for key in keys if key.name in names for id_ in key.members()}

    ended = ids("failed:k", "succeeded:k")
    if alone := ids("jobs") ^ ended:
        yield f"{len(alone)} records without a state, or the reverse"
    if alone := ids("extras") - ended:
        yield f"{len(alone)} extras without a job"
    if alone := ids("results") ^ ids("result_expiries"):
        yield f"{len(alone)} results without an expiry, or the reverse"


def documented_keys(page: str) -> set[str]:
    """The names of keys in the table of that page, without their tags; `k` stands for a priority."""
    cells = [row[0].strip("`") for row in table(page, "keys")]
    return {re.sub(r":\W.*$", ":k", name.rpartition("}:")[2]) for cell in cells for name in cell.split(", ")}


#: A crash in a job's status: its number, the pid of its worker, when it claimed the job, when the job came back.
EVIDENCE = re.compile(
    rf"\(crash (\d+) of {CRASH_LIMIT}\)\n  claim \S+?:python:[^:]+:(\d+):\S+ claimed (\S+), recovered (\S+)"
)
REQUEST_SLOT_BYTES = 10
#: What only a job that has not ended has.
UNENDED = {"ready:k", "scheduled:k", "running:k", "leases", "lease_jobs", "quarantined", "reservations"}


def storm(fresh_server: FreshServer, make_pair: MakePair, runs: Callable[..., AppRuns], seconds: float) -> None:
    pair = make_pair()
    other = fresh_server("valkey", config={"appendonly": "yes", "appendfsync": "always", "save": "3600 1"})
    url = f"1={pair.url},2={other.url}"
    with Client(url, timeout_s=60) as client:
        for queue, kept in KEPT.items():
            client.create_queue(queue, QueueConfig(lease_ms=LEASE_MS, crash_limit=CRASH_LIMIT, keep_succeeded=kept))
        app_runs = runs(url, TASKS)
        monitor = start(app_runs, "monitor", MONITOR)
        raging = Storm(app_runs, pair, other)
        producer = Producer(app_runs)
        try:
            app_runs.wait("over", 20, deadline_s=CALM_S)
            raging.rage(seconds)
            acknowledged = producer.end()
        finally:
            producer.process.kill()
            monitor.kill()
            monitor.wait()
        wait_until(lambda: not any(unended(client, queue) for queue in KEPT), "the end of all jobs", CALM_S)
        raging.end()
        check(client, acknowledged, raging)
        for server in (pair.primary, other):
            assert left_over(server) == []


def unended(client: Client, queue: str) -> int:
    counts = client.count(queue)
    return counts.pending + counts.scheduled + counts.in_progress


def check(client: Client, acknowledged: dict[str, tuple[str, str]], raging: Storm) -> None:
    descriptors = list(acknowledged)
    infos: dict[str, JobInfo] = {}
    for start in range(0, len(descriptors), 1000):
        infos |= client.lookup(descriptors[start : start + 1000])
    expect_none([wrong for info in infos.values() for wrong in unexplained_crashes(info, raging)])
    expect_none([between_runs(pair, raging) for pair in unexplained_runs(raging)])
    over = {note.name for note in raging.app_runs.notes("over")}
    expect_none([wrong for job in acknowledged.items() for wrong in wrong_end(*job, infos, over)])
    assert {task for task, _ in acknowledged.values()} == set(SHARES)
    assert [finding for queue in KEPT for finding in audit_queue(client, queue).findings] == []


def expect_none(found: list[str]) -> None:
    """Fails with everything that was found. pytest would cut the comparison of two lists."""
    if found:
        pytest.fail("\n\n".join([f"{len(found)} findings", *found]))


def wrong_end(descriptor: str, job: tuple[str, str], infos: dict[str, JobInfo], over: set[str]) -> Iterator[str]:
    """A job that succeeded ran to its end, and is kept if its queue keeps such. It fails if it raises, or crashes up to
    the limit.
    """
    (task, name), info = job, infos.get(descriptor)
    state = State.SUCCEEDED if info is None else info.state
    crashes = 0 if info is None else info.crashes
    kept = KEPT[descriptor.partition(":")[0]] > 0
    if state != (State.FAILED if task == "bad" or crashes == CRASH_LIMIT else State.SUCCEEDED):
        yield f"{descriptor} {name} is {state}: {info and info.status}"
    if state == State.SUCCEEDED and (name not in over or kept == (info is None)):
        yield f"{descriptor} {name} succeeded: {'ran' if name in over else 'never ran'}, kept: {info is not None}"


@pytest.mark.parametrize(
    ("killed_s", "findings"),
    [([5], 0), ([5, 800], 0), ([-700, 5], 0), ([800], 1), ([-700], 1), ([-700, 800], 1), ([], 1)],
)
def test_a_crash_needs_a_kill_during_its_claim(
    runs: Callable[..., AppRuns], killed_s: list[int], findings: int
) -> None:
    """Other processes had the same pid before and after."""
    raging: Any = SimpleNamespace(app_runs=runs("", ""), past=[])
    (raging.app_runs.folder / "log").touch()
    claimed_s = 1_795_386_311
    raging.killed = [Killed(7, 0, 0, claimed_s + at_s, claimed_s + at_s + 0.1) for at_s in killed_s]
    claimed, recovered = (datetime.fromtimestamp(claimed_s + at_s, UTC).isoformat() for at_s in (0, 24))
    claim = f"claim vm:0:1795386311481:python:vm:7:137, claimed {claimed}, recovered {recovered}"
    status = f"lease ran out (crash 1 of {CRASH_LIMIT})\n  {claim}\n"
    info: Any = SimpleNamespace(descriptor="loop:s1:p1:5", crashes=1, status=status)
    assert len(unexplained_crashes(info, raging)) == findings


def test_a_finding_says_what_happened(runs: Callable[..., AppRuns]) -> None:
    app_runs, now_s, now_ns = runs("", ""), time.time(), time.monotonic_ns()
    (app_runs.folder / "record").write_text(
        f"began loop1 7 {now_ns} 1\nover loop1 7 {now_ns + 10**9} 1\nbegan loop2 8 {now_ns} 1\n"
    )
    at = datetime.fromtimestamp(now_s + 2, UTC).isoformat()
    messages = [(7, "of its own"), (9, "process 7 was killed"), (9, "of another")]
    lines = [json.dumps({"time": at, "process": pid, "level": "INFO", "message": text}) for pid, text in messages]
    (app_runs.folder / "log").write_text("\n".join(["no JSON", *lines]))
    faults = [Fault("freeze_server", now_s + 3, now_s + 4), Fault("fail_over", now_s - 60, now_s - 59)]
    found = account(app_runs, faults, 7, now_s, now_s + 18).splitlines()
    assert [line.split("  ")[-1] for line in found[1:]] == [
        "run of loop1",
        "7 INFO of its own",
        "9 INFO process 7 was killed",
        "fault freeze_server",
    ]


@pytest.mark.thorough("minutes")
@pytest.mark.timeout(7200)
def test_a_storm(fresh_server: FreshServer, make_pair: MakePair, runs: Callable[..., AppRuns]) -> None:
    storm(fresh_server, make_pair, runs, 1800.0 if CAMPAIGN else 20.0)
