"""The crash matrix of `pinlater run`: processes that die, stop, leak or hold the GIL, and servers that go away.

Promises: no job is lost, none runs under two live claims, and what did not die runs once. Risks: a run that a crash
ended beside the one to blame may show twice, as promised: at least once. That a worker does not spin while its server
is away is shown by test_worker_outages.py too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import combinations
from pathlib import Path

import pytest

from pinlater import AsyncClient, Client, PinLater, QueueConfig
from pinlater.worker.monitor import Monitor
from tests.conftest import FreshServer
from tests.support.app_runs import AppRuns, Note, runs
from tests.support.cut_proxy import CutProxy
from tests.support.servers import Server, is_alive, wait_until

__all__ = ["runs"]  # a fixture

DEADLINE_S = 90.0
LEASE_MS = 1_000

TASKS = """
import resource

def first_time(name):
    note("began", name)
    try:
        Path(f"seen-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

@app.task(name="quick")
async def quick(name: str) -> None:
    note("began", name)
    await asyncio.sleep(0.005)
    note("ended", name)

@app.task(name="long")
def long(name: str, seconds: float) -> None:
    note("began", name)
    time.sleep(seconds)
    note("ended", name)

@app.task(name="crash")
async def crash(how: str) -> None:
    if first_time(how):
        match how:
            case "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(1)
            case "segfault":
                ctypes.string_at(0)
            case "memory":  # the kernel's killer sends the same signal
                resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
                while True:
                    pass
    note("ended", how)

@app.task(name="survive", backoff=0)
async def survive(how: str) -> None:
    if first_time(how):
        match how:
            case "gil":
                libc = ctypes.PyDLL(None)
                for _ in range(7):
                    libc.usleep(500_000)
            case "ulimit":
                resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
                try:
                    bytearray(8 << 30)
                finally:
                    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
            case "fork":
                child = os.fork()
                if child == 0:
                    time.sleep(3600)
                    os._exit(0)
                Path("child").write_text(str(child))
            case "threads":
                for _ in range(100):
                    threading.Thread(target=threading.Event().wait, daemon=True).start()
    note("ended", how)

@app.task(name="stop")
async def stop() -> None:
    if first_time("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
        note("woke", "stop")
    note("ended", "stop")
"""


@pytest.fixture
def valkey(fresh_server: FreshServer) -> Server:
    """One kind: what differs between kinds is shown on the scripts and the engine."""
    return fresh_server("valkey")


@contextmanager
def monitoring(url: str) -> Iterator[None]:
    """A monitor in this process, with a short tick; those of the workers stand by."""
    loops: list[asyncio.AbstractEventLoop] = []
    started = threading.Event()

    async def watch() -> None:
        async with AsyncClient(url) as client:
            monitor = Monitor(client, ["default"], tick_s=0.2)
            await monitor.run_once()
            stops.append(monitor.request_stop)
            loops.append(asyncio.get_running_loop())
            started.set()
            await monitor.run()

    stops: list[Callable[[], None]] = []
    thread = threading.Thread(target=lambda: asyncio.run(watch()))
    thread.start()
    started.wait(DEADLINE_S)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(stops[0])
        thread.join()


def make_queue(client: Client, lease_ms: int = LEASE_MS) -> None:
    client.create_queue("default", QueueConfig(lease_ms=lease_ms, crash_limit=20))


def left_of(client: Client) -> int:
    counts = client.count("default")
    return counts.pending + counts.scheduled + counts.in_progress


def wait_done(client: Client, app_runs: AppRuns) -> None:
    """Nothing is left of the queue."""
    try:
        wait_until(lambda: left_of(client) == 0, "an empty queue", DEADLINE_S)
    except TimeoutError as error:
        error.add_note(app_runs.log[-4000:])
        raise
    assert client.count("default").failed == 0


def runs_of(notes: list[Note]) -> dict[str, Counter[str]]:
    """By name of a job: how often each event was noted."""
    found: dict[str, Counter[str]] = {}
    for note in notes:
        found.setdefault(note.name, Counter())[note.event] += 1
    return found


@pytest.mark.thorough("processes")
def test_processes_that_die_in_the_middle_of_a_job(valkey: Server, runs: Callable[..., AppRuns]) -> None:
    """With leases of ten minutes: the supervisor saw them die."""
    app_runs = runs(valkey.url, TASKS)
    hows = ["SIGKILL", "exit", "segfault", "memory"]
    with PinLater(valkey.url) as app, Client(valkey.url) as client:
        make_queue(client, 600_000)
        app_runs.start("--processes", "2", "--concurrency", "4")
        for how in hows:
            app.send("crash", how)
            app.by_name("quick").enqueue_many([(f"{how}{number}",) for number in range(20)])
        wait_done(client, app_runs)
    found = runs_of(app_runs.notes())
    assert len(found) == len(hows) + 20 * len(hows)
    for name, events in found.items():
        assert events["ended"] == 1 or (name not in hows and events["ended"] <= events["began"])
    for how in hows:
        assert found[how]["began"] >= 2
    assert not overlaps(app_runs.notes())


def overlaps(notes: list[Note]) -> list[tuple[Note, Note]]:
    """Pairs of runs of one job of which the second began before the first was over, in whichever process.

    A run without an end is over with its process, which lived at least until its last note.
    """
    over_ns: dict[tuple[int, int], int] = {}
    alive_ns: dict[int, int] = {}
    started: dict[str, list[Note]] = {}
    for note in notes:
        alive_ns[note.pid] = max(alive_ns.get(note.pid, 0), note.time_ns)
        if note.event == "ended":
            over_ns[note.pid, note.run] = note.time_ns
        elif note.event == "began":
            started.setdefault(note.name, []).append(note)
    return [
        (first, second)
        for runs in started.values()
        for first, second in combinations(sorted(runs, key=lambda note: note.time_ns), 2)
        if second.time_ns < over_ns.get((first.pid, first.run), alive_ns[first.pid])
    ]


def test_overlaps_are_seen_within_a_process_and_between_two() -> None:
    def note(event: str, pid: int, run: int, time_ns: int, name: str = "job") -> Note:
        return Note(event, name, pid, time_ns, run)

    first, end = note("began", 1, 1, 10), note("ended", 1, 1, 20)
    for pid, run in ((1, 2), (2, 1)):
        early, late = note("began", pid, run, 15), note("began", pid, run, 25)
        assert overlaps([first, end, early]) == [(first, early)]
        assert overlaps([first, early, note("ended", pid, run, 18), end]) == [(first, early)]
        assert overlaps([first, end, late]) == []
        assert overlaps([first, end, early._replace(name="other")]) == []
    again = note("began", 2, 1, 30)
    assert overlaps([first, again]) == []  # the first died
    assert overlaps([first, again, note("ended", 1, 7, 35, "other")]) == [(first, again)]  # it did not


@pytest.mark.thorough("processes")
def test_what_does_not_kill_a_process_leaves_it_at_work(valkey: Server, runs: Callable[..., AppRuns]) -> None:
    """The GIL held for three leases, no more memory, a child and threads left behind."""
    app_runs = runs(valkey.url, TASKS)
    with PinLater(valkey.url) as app, Client(valkey.url) as client:
        make_queue(client)
        supervisor = app_runs.start("--processes", "2", "--concurrency", "4")
        for how in ("ulimit", "fork", "threads", "gil"):
            app.send("survive", how)
            app.by_name("quick").enqueue_many([(f"{how}{number}",) for number in range(20)])
        wait_done(client, app_runs)
        os.kill(int((app_runs.folder / "child").read_text()), signal.SIGKILL)
        supervisor.terminate()
        assert supervisor.wait(DEADLINE_S) == 0
    found = runs_of(app_runs.notes())
    assert found.pop("ulimit") == {"began": 2, "ended": 1}  # its first attempt failed
    assert len(found) == 83
    assert set(map(tuple, (events.items() for events in found.values()))) == {(("began", 1), ("ended", 1))}
    assert "starting another" not in app_runs.log


def test_a_process_that_stands_still_past_its_lease(valkey: Server, runs: Callable[..., AppRuns]) -> None:
    """Its job runs elsewhere, and its own end of it is refused; what waited behind does not run twice."""
    app_runs = runs(valkey.url, TASKS)
    with PinLater(valkey.url) as app, Client(valkey.url) as client, ExitStack() as beside:
        make_queue(client)
        beside.enter_context(monitoring(valkey.url))
        stopped = app.send("stop")
        first = app_runs.start("--concurrency", "1")
        (began,) = app_runs.wait("began")
        assert began.pid == first.pid
        app.by_name("quick").enqueue_many([(f"{number}",) for number in range(10)])
        app_runs.start("--concurrency", "1")
        app_runs.wait("ended", 11, deadline_s=DEADLINE_S)
        wait_until(lambda: stopped.status() is None, "the ack of its second run", DEADLINE_S)
        first.send_signal(signal.SIGCONT)
        app_runs.wait("woke")
        app_runs.wait("ended", 12)
        app.send("quick", "after")
        wait_done(client, app_runs)
        wait_until(lambda: "its claim went stale" in app_runs.log, "the refusal", DEADLINE_S)
    found = runs_of(app_runs.notes())
    assert found.pop("stop") == {"began": 2, "woke": 1, "ended": 2}
    assert set(map(tuple, (events.items() for events in found.values()))) == {(("began", 1), ("ended", 1))}


@pytest.mark.thorough("processes")
def test_a_backlog_behind_long_jobs_runs_once(valkey: Server, runs: Callable[..., AppRuns]) -> None:
    """Quick jobs first, so that jobs are prefetched: of the long ones some wait for longer than two leases."""
    app_runs = runs(valkey.url, TASKS)
    with PinLater(valkey.url) as app, Client(valkey.url) as client, monitoring(valkey.url):
        make_queue(client, 2_000)
        app.by_name("quick").enqueue_many([(f"quick{number}",) for number in range(200)])
        app.by_name("long").enqueue_many([(f"long{number}", 5.0) for number in range(8)])
        app_runs.start("--processes", "2", "--concurrency", "2")
        app_runs.wait("ended", 200)
        wait_until(
            lambda: client.count("default").in_progress > 4, "some that wait behind the four that run", DEADLINE_S
        )
        wait_done(client, app_runs)
    found = runs_of(app_runs.notes())
    assert len(found) == 208
    assert set(map(tuple, (events.items() for events in found.values()))) == {(("began", 1), ("ended", 1))}


@pytest.mark.thorough("processes")
def test_connections_that_end_servers_that_start_anew_and_a_network_that_is_cut(
    fresh_server: FreshServer, runs: Callable[..., AppRuns]
) -> None:
    """Each job runs once: a lease outlives its outage, as its server can not see it end either."""
    server = fresh_server("valkey", aof_always=True)
    app_runs = runs(server.url, TASKS)
    with CutProxy(server.port) as proxy, PinLater(server.url) as app, Client(server.url) as client:
        make_queue(client)
        supervisor = app_runs.start("--processes", "2", url=proxy.url)
        sent = 0

        def work() -> None:
            """Goes on as before, to the last job, though some begin only after a notification."""
            nonlocal sent
            app.by_name("quick").enqueue_many([(f"{number}",) for number in range(sent, sent + 100)])
            sent += 100
            app_runs.wait("ended", sent, deadline_s=DEADLINE_S)

        def outage(end: Callable[[], object], mend: Callable[[], object] = bool) -> None:
            app.by_name("long").enqueue_many([(f"long{sent + number}", 0.3) for number in range(4)])
            app_runs.wait("began", sent + 4)
            end()
            with pytest.raises(TimeoutError):  # longer than a lease
                wait_until(lambda: False, "the outage to pass", 1.5)
            mend()

        def cut() -> None:
            proxy.refuse()
            proxy.cut_all()

        work()
        for what in ("normal", "pubsub"):
            server.call("CLIENT", "KILL", "TYPE", what)
            work()
        for end, mend in ((cut, proxy.accept), (lambda: server.restart(kill=True), bool)):
            outage(end, mend)
            sent += 4
            app_runs.wait("ended", sent, deadline_s=DEADLINE_S)
            work()
        wait_done(client, app_runs)
        supervisor.terminate()
        assert supervisor.wait(DEADLINE_S) == 0
        assert not is_alive(supervisor.pid)
    found = runs_of(app_runs.notes())
    assert len(found) == sent
    assert set(map(tuple, (events.items() for events in found.values()))) == {(("began", 1), ("ended", 1))}


@pytest.mark.thorough("minutes")
def test_a_network_that_is_cut_for_30_s(valkey: Server, runs: Callable[..., AppRuns]) -> None:
    """Of one of two workers: the other takes over what it held, once its leases are over. It goes on by itself."""
    app_runs = runs(valkey.url, TASKS)
    with (
        CutProxy(valkey.port) as proxy,
        PinLater(valkey.url) as app,
        Client(valkey.url) as client,
        monitoring(valkey.url),
    ):
        make_queue(client)
        away = app_runs.start("--concurrency", "2", url=proxy.url)
        app.by_name("quick").enqueue_many([(f"before{number}",) for number in range(300)])
        app.by_name("long").enqueue_many([(f"held{number}", 3.0) for number in range(2)])
        app.by_name("quick").enqueue_many([(f"behind{number}",) for number in range(50)])
        held = [note for number in range(2) for note in app_runs.wait("began", name=f"held{number}")]
        wait_until(lambda: left_of(client) == 52, "the acks of what ended", DEADLINE_S)
        proxy.refuse()
        with counting_connects(proxy.port) as connects:
            proxy.cut_all()
            before_s, end_s = cpu_s(away.pid), time.monotonic() + 30
            beside = app_runs.start("--concurrency", "2")
            wait_done(client, app_runs)
            app_runs.wait("ended", 2, "held0")
            threading.Event().wait(end_s - time.monotonic())
            assert cpu_s(away.pid) - before_s < 3  # of 30
            # subscription and renewer: one in two seconds; monitor: each tick; resends of two acks: two a second
            assert 10 < len(connects) < 300
        proxy.accept()
        beside.terminate()
        assert beside.wait(DEADLINE_S) == 0
        app.by_name("quick").enqueue_many([(f"after{number}",) for number in range(100)])
        wait_done(client, app_runs)
        away.terminate()
        assert away.wait(DEADLINE_S) == 0
    found = runs_of(app_runs.notes())
    assert {note.pid for note in app_runs.notes("began") if note.name.startswith("after")} == {away.pid}
    for first in held:
        again = app_runs.notes("began", first.name)[1]
        assert (first.pid, again.pid) == (away.pid, beside.pid)
        # never two live claims: a job begins only where its lease was seen less than a third of it ago
        assert again.time_ns - first.time_ns >= LEASE_MS * 1_000_000 / 2
        assert found.pop(first.name) == {"began": 2, "ended": 2}
    assert len(found) == 450
    assert set(map(tuple, (events.items() for events in found.values()))) == {(("began", 1), ("ended", 1))}


@contextmanager
def counting_connects(port: int) -> Iterator[list[None]]:
    """Connections to the port end as soon as they stand; one item each."""
    connects: list[None] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connects.append(None)
                connection.close()

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield connects
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave the thread in accept()
            thread.join()


def cpu_s(pid: int) -> float:
    """Processor time that a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
