"""`pinlater run`: which queues, in which processes, and how they are replaced, each on real processes.

Promises: tasks note the ids of their processes. Signals and logs are in test_run_signals.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pinlater import Client, PinLater
from tests.support.run_processes import Start, app, client, start
from tests.support.servers import Server, is_alive, wait_until

__all__ = ["app", "client", "start"]  # fixtures

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # what is shown is not the server's
CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))


def put(app: PinLater, queue: str, *texts: str, seconds: float = 0.0) -> None:
    app.by_name("note").using(queue=queue).enqueue_many([(text, seconds) for text in texts])


@pytest.mark.parametrize(("queues", "share"), [("a:3,b:1", 3), ("a,b:3", 1 / 3)])
def test_queues_by_weight(start: Start, app: PinLater, queues: str, share: float) -> None:
    for queue in "ab":
        put(app, queue, *[queue] * 120, seconds=0.002)
    run = start("--queues", queues, "--concurrency", "1", "--burst")
    ran = Counter(text for text, _ in run.noted(count=120)[:120])
    assert share / 1.6 < ran["a"] / ran["b"] < share * 1.6
    assert run.process.wait(60) == 0
    assert len(run.notes()) == 240


@pytest.mark.parametrize("options", [("--queues", "b>a"), ("--queues", "b,a", "--strict")])
def test_queues_in_strict_order(start: Start, app: PinLater, options: tuple[str, ...]) -> None:
    for queue in "ab":
        put(app, queue, *[queue] * 50)
    run = start(*options, "--concurrency", "1", "--burst")
    assert run.process.wait(60) == 0
    assert [text for text, _ in run.notes()] == ["b"] * 50 + ["a"] * 50


@pytest.mark.thorough("processes")
def test_isolated_queues_do_not_touch_each_other(start: Start, app: PinLater, tmp_path: Path) -> None:
    run = start("--queues", "a,b", "--isolate", "--concurrency", "1")
    run.logged("working on", 2)
    gate = tmp_path / "gate"
    app.by_name("wait").using(queue="a").enqueue(str(gate))
    [(_, pid)] = run.noted("waits")
    app.by_name("die").using(queue="b").enqueue()
    app.by_name("spin").using(queue="b").enqueue(str(gate))
    [(_, died)] = run.noted("dies")
    [(_, other)] = run.noted("spins")
    assert len({pid, died, other}) == 3
    assert f"worker process of b {died} ended with exit code 9; starting another in 0.5 s" in run.log
    gate.touch()
    assert run.noted("waited") == [("waited", pid)]
    assert run.end() == 0
    assert not is_alive(pid)


@pytest.mark.thorough("processes")
def test_what_stands_in_toml(start: Start, app: PinLater, server: Server, tmp_path: Path) -> None:
    (tmp_path / "pinlater.toml").write_text(
        f"""
        app = "tasks:app"
        url = "{server.url}"
        concurrency = 1
        [queues.a]
        [queues.b]
        weight = 2
        [queues.c]
        processes = 2
        concurrency = 3
        memory_mb = 500
        """
    )
    gate = tmp_path / "gate"
    run = start(app=False, url=False)
    run.logged("working on", 3)
    assert run.log.count("worker process of a, b ") == 1
    assert run.log.count("worker process of c ") == 2
    for _ in range(8):
        app.by_name("wait").using(queue="c").enqueue(str(gate))
    app.by_name("wait").using(queue="a").enqueue_many([(str(gate),)] * 2)
    pids = Counter(pid for _, pid in run.noted("waits", 7))
    assert sorted(pids.values()) == [1, 3, 3]
    gate.touch()
    run.noted("waited", 10)
    assert run.end() == 0


@pytest.mark.thorough("processes")
def test_the_command_line_goes_before_toml(start: Start, app: PinLater, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pinlater]\nconcurrency = 7\nlog_format = "json"\n[tool.pinlater.queues.c]\nmemory_mb = 4000'
    )
    put(app, "a", "x")
    run = start("--queues", "a,c", "--burst", "--log-format", "text")
    assert run.process.wait(60) == 0
    assert "queues of the app that are not worked on here: default" in run.log
    assert "worker process of c" in run.log
    assert "worker process of a" in run.log
    assert run.json_lines() == []
    assert len(run.notes()) == 1


@pytest.mark.thorough("processes")
def test_processes_are_replaced_after_so_many_jobs(start: Start, app: PinLater, client: Client) -> None:
    run = start("--max-jobs", "20", "--queues", "a")
    put(app, "a", *map(str, range(70)))
    notes = run.noted(count=70)
    assert Counter(text for text, _ in notes) == Counter(map(str, range(70)))
    assert sorted(Counter(pid for _, pid in notes).values()) == [10, 20, 20, 20]
    run.logged("is recycled: its jobs end", 3)
    assert run.end() == 0
    assert client.count("a").in_progress == 0
    assert "before it was ready" not in run.log


@pytest.mark.thorough("processes")
def test_a_process_with_its_jobs_done_hands_back_what_does_not_end(
    start: Start, app: PinLater, client: Client, tmp_path: Path
) -> None:
    run, gate = start("--max-jobs", "3", "--queues", "a", "--stop-timeout", "0.5"), tmp_path / "gate"
    run.logged("working on")
    app.by_name("wait").using(queue="a").enqueue(str(gate))
    put(app, "a", *"bcde")
    (_, old), (_, other) = run.noted("waits", 2)
    assert old != other
    gate.touch()
    run.noted("waited")
    assert Counter(text for text, _ in run.notes() if len(text) == 1) == Counter("bcde")
    assert run.end() == 0
    assert client.count("a").in_progress == 0


@pytest.mark.thorough("processes")
def test_a_process_over_its_memory_is_replaced_when_its_jobs_ended(
    start: Start, app: PinLater, client: Client, tmp_path: Path
) -> None:
    run, gate = start("--max-memory", "200", "--queues", "a"), tmp_path / "gate"
    app.by_name("wait").using(queue="a").enqueue(str(gate))
    [(_, pid)] = run.noted("waits")
    app.by_name("grow").using(queue="a").enqueue(170)
    run.logged("its cap is 200: another takes its place")
    put(app, "a", "later")
    gate.touch()
    assert run.noted("waited") == [("waited", pid)]
    assert run.noted("later")[0][1] != pid
    assert run.end() == 0
    assert client.count("a") == client.count("a").__class__()


@pytest.mark.thorough("processes")
def test_a_process_far_over_its_memory_is_killed(start: Start, app: PinLater, tmp_path: Path) -> None:
    run, gate = start("--max-memory", "150", "--queues", "a", "--stop-timeout", "60"), tmp_path / "gate"
    run.logged("working on")
    app.by_name("grow").using(queue="a").enqueue(300, str(gate))
    run.logged("MiB, its cap is 150: killed")
    run.logged("was killed by SIGKILL; starting another")
    assert run.end() == 0


def test_a_process_whose_loop_does_not_turn_is_ended_with_its_stacks_in_the_log(start: Start, app: PinLater) -> None:
    run = start("--loop-timeout", "1", "--queues", "a")
    run.logged("working on")
    app.by_name("hold_gil").using(queue="a").enqueue()
    run.logged("its loop has not turned for 1 s: ended; its stacks follow")
    run.logged("was ended, as its loop had not turned for 1 s; starting another")
    run.noted("free")
    assert "in hold_gil" in run.log.partition("its stacks follow")[2]
    assert run.end() == 0


@pytest.mark.thorough("processes")
def test_a_cap_below_what_an_empty_process_uses_is_logged_and_backed_off(start: Start) -> None:
    run = start("--max-memory", "5")
    run.logged("before its first job, its cap is 5: raise the cap")
    run.logged("starting another in 0.5 s")
    run.end()


@pytest.mark.thorough("processes")
def test_watch_starts_anew_when_a_file_changes(start: Start, app: PinLater, tmp_path: Path) -> None:
    run = start("--watch")
    run.logged("working on")
    app.send("version")
    [(_, pid)] = run.noted("version-1")
    code = tmp_path / "tasks.py"
    code.write_text(code.read_text().replace("VERSION = 1", "VERSION = 2"))
    run.logged("working on", 2)
    wait_until(lambda: not is_alive(pid), "the old process to end")
    app.send("version")
    assert run.noted("version-2")[0][1] != pid
    assert run.end() == 0


def test_a_graceful_stop_under_load_loses_and_doubles_nothing(start: Start, app: PinLater, client: Client) -> None:
    rounds, each = (20, 400) if CAMPAIGN else (3, 200)
    for number in range(rounds):
        put(app, "a", *(f"{number}-{job}" for job in range(each)), seconds=0.01)
        run = start("--processes", "2", "--queues", "a", "--concurrency", "5")
        run.noted(count=number * each // 2 + 20)
        assert run.end() == 0, run.log
        assert client.count("a").in_progress == 0
    run = start("--queues", "a", "--burst")
    assert run.process.wait(60) == 0
    assert Counter(text for text, _ in run.notes()) == {f"{n}-{job}": 1 for n in range(rounds) for job in range(each)}


FORKS = """
import os, sys
from pinlater.tasks.loading import load_app
from pinlater.tasks.logs import set_up
from pinlater.running.options import QueueOptions, RunOptions
from pinlater.running.run_command import run_app

load_app("tasks:app")
set_up("text")
options = RunOptions(app="tasks:app", queues={"a": QueueOptions()}, concurrency=5)
for _ in sys.stdin:
    pids = [os.fork(), 0]
    if pids[0]:
        pids[1] = os.fork()
    if not all(pids):
        os._exit(run_app(options))
    print(*pids, flush=True)
    print(*[os.waitpid(pid, 0)[1] for pid in pids], flush=True)
"""


@pytest.mark.thorough("processes")
def test_twenty_graceful_stops_in_a_row_under_load(
    app: PinLater, client: Client, server: Server, start: Start, tmp_path: Path
) -> None:
    """Of two workers each, forked from a process that has the app loaded: a round takes no longer than its work."""
    notes, each, loaded = tmp_path / "notes", 200, 0
    environment = {**os.environ, "PINLATER_URL": server.url, "NOTES": str(notes)}
    with (tmp_path / "log").open("wb") as log:
        forking = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=0,
        )
    assert forking.stdin is not None
    assert forking.stdout is not None

    def ran() -> int:
        return notes.read_text().count("\n") if notes.exists() else 0

    try:
        for number in range(20):
            put(app, "a", *(f"{number}-{job}" for job in range(each)), seconds=0.01)
            before = ran()
            forking.stdin.write(b"\n")
            forking.stdin.flush()
            pids = list(map(int, forking.stdout.readline().split()))
            wait_until(lambda: ran() >= before + each // 4, "a quarter of what was added")  # noqa: B023
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
            assert forking.stdout.readline().split() == [b"0", b"0"], (tmp_path / "log").read_text()
            counts = client.count("a")
            assert (counts.in_progress, counts.pending) == (0, (number + 1) * each - ran())
            loaded += counts.pending > 0
    finally:
        os.killpg(forking.pid, signal.SIGKILL)
        forking.wait()
        forking.stdin.close()
        forking.stdout.close()
    assert loaded > 15
    run = start("--queues", "a", "--burst")
    assert run.process.wait(60) == 0
    assert Counter(text for text, _ in run.notes()) == {f"{n}-{job}": 1 for n in range(20) for job in range(each)}


def test_a_stop_while_processes_start(start: Start) -> None:
    run = start("--processes", "2")
    run.logged("started", 2)
    run.send(signal.SIGUSR1)
    assert run.end() == 0


def test_signals_end_what_a_task_forks(start: Start, app: PinLater) -> None:
    """As multiprocessing does, which waits for it."""
    run = start("--burst")
    app.send("fork")
    assert run.noted()[0][0] == f"child -{signal.SIGTERM:d}"
    assert run.process.wait(60) == 0
