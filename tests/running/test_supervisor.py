"""The supervisor of worker processes: restarts, signals, and its own end.

Promises: shown with real processes, most of them small programs in place of workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinlater import Client, InvalidArgument
from pinlater.running.worker_command import load_handler, run_handler
from pinlater.worker.worker import WorkerConfig
from tests.support.handlers_for_tests import Record, WorkerProcesses, body
from tests.support.paths import ROOT
from tests.support.servers import Server, is_alive, wait_until

DEADLINE_S = 60.0

SUPERVISE = """
import logging, sys
from pinlater.running.worker_process import ProcessSet
from pinlater.running.supervisor import Supervisor
logging.basicConfig(level=logging.INFO)
_, program, processes, kill_after_s = sys.argv
command = [sys.executable, "-c", program]
sets = [ProcessSet(command=command, processes=int(processes), kill_after_s=float(kill_after_s))]
sys.exit(Supervisor(sets).run())
"""
BEGIN = """
import json, os, signal, sys
def note(event):
    handle = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{event} {os.getpid()}\\n".encode())
    os.close(handle)
def end(code):
    os.write(int(os.environ["PINLATER_REPORT_FD"]), json.dumps({"code": code}).encode() + b"\\n")
    sys.exit(code)
for number in (signal.SIGTERM, signal.SIGUSR2):  # of the supervisor, and at its death
    signal.signal(number, lambda *_: on_term())
"""
OBEDIENT = BEGIN + "def on_term(): note('term'); end(0)\nnote('up')\nwhile True: signal.pause()"
TWICE = (
    BEGIN
    + "terms = []\ndef on_term(): terms.append(note('term')); len(terms) > 1 and end(0)\n"
    + "note('up')\nwhile True: signal.pause()"
)
DEAF = BEGIN + "def on_term(): note('term')\nnote('up')\nwhile True: signal.pause()"
CRASHING = BEGIN + "note('up')\nsys.exit(7)"

Supervise = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def supervise(notes: Path, log: Path) -> Iterator[Supervise]:
    made: list[subprocess.Popen[bytes]] = []

    def start(program: str, processes: int = 1, kill_after_s: float = 3600) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", SUPERVISE, program, str(processes), str(kill_after_s)]
        with log.open("ab") as out:
            made.append(
                subprocess.Popen(command, cwd=ROOT, env={**os.environ, "NOTES": str(notes)}, stdout=out, stderr=out)
            )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def pids(notes: Path, event: str) -> list[int]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [int(pid) for kind, pid in map(str.split, lines) if kind == event]


def wait_for(notes: Path, event: str, count: int) -> list[int]:
    wait_until(lambda: len(pids(notes, event)) >= count, f"{count} times {event!r}", DEADLINE_S)
    return pids(notes, event)


def test_restarts_a_crashing_process_with_backoff(supervise: Supervise, notes: Path, log: Path) -> None:
    process = supervise(CRASHING)
    wait_until(lambda: "starting another in 2.0 s" in log.read_text(), "the third crash", DEADLINE_S)
    pauses = [line.rpartition(" in ")[2] for line in log.read_text().splitlines() if "starting another" in line]
    assert pauses == ["0.5 s", "1.0 s", "2.0 s"]
    assert "ended with exit code 7" in log.read_text()
    assert len(pids(notes, "up")) == 3
    process.terminate()  # none runs: it ends at once, not when the next one is due
    assert process.wait(DEADLINE_S) == 0


def test_restarts_the_one_that_was_killed(supervise: Supervise, notes: Path, log: Path) -> None:
    process = supervise(OBEDIENT, 3)
    first = wait_for(notes, "up", 3)
    os.kill(first[1], signal.SIGKILL)
    wait_for(notes, "up", 4)
    assert f"worker process {first[1]} was killed by SIGKILL" in log.read_text()
    assert is_alive(first[0])
    assert is_alive(first[2])
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    assert sorted(pids(notes, "term")) == sorted({*pids(notes, "up")} - {first[1]})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_passes_signals_on(supervise: Supervise, notes: Path, number: signal.Signals) -> None:
    process = supervise(TWICE, 2)
    wait_for(notes, "up", 2)
    process.send_signal(number)
    wait_for(notes, "term", 2)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(DEADLINE_S) == 0
    assert len(pids(notes, "term")) == 4


def test_a_process_that_does_not_stop_is_killed(supervise: Supervise, notes: Path, log: Path) -> None:
    process = supervise(DEAF, 2, 0.3)
    up = wait_for(notes, "up", 2)
    process.terminate()
    assert process.wait(DEADLINE_S) == 1
    assert "did not stop in time" in log.read_text()
    assert not any(map(is_alive, up))


def test_dies_with_its_processes(supervise: Supervise, notes: Path) -> None:
    process = supervise(OBEDIENT, 3)
    up = wait_for(notes, "up", 3)
    process.kill()
    wait_until(lambda: not any(map(is_alive, up)), "the processes to end", DEADLINE_S)
    assert sorted(set(pids(notes, "term"))) == sorted(up)


def test_processes_are_out_of_the_terminals_group(supervise: Supervise, notes: Path) -> None:
    process = supervise(OBEDIENT, 2)
    up = wait_for(notes, "up", 2)
    groups = [os.getpgid(pid) for pid in [process.pid, *up]]
    assert len(set(groups)) == 3


def test_the_command_with_processes(server: Server, tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    workers = WorkerProcesses({"1": server.url}, record, tmp_path / "log")
    command = [
        sys.executable,
        "-m",
        "pinlater",
        "--url",
        server.url,
        "worker",
        "tests.support.handlers_for_tests:work",
    ]
    try:
        with Client(server.url) as client:
            client.create_queue("q")
            process = workers.run(
                [*command, "--queue", "q", "--concurrency", "2", "--prefetch", "0", "--processes", "2"]
            )
            gate = tmp_path / "gate"
            client.enqueue_many("q", [body("gate", path=str(gate))] * 4)
            starts = record.wait("start", 4, DEADLINE_S)
            both = {line.pid for line in starts}
            assert len(both) == 2
            gate.touch()
            record.wait("end", 4, DEADLINE_S)
            wait_until(lambda: client.count("q").in_progress == 0, "the acks", DEADLINE_S)
            os.kill(next(iter(both)), signal.SIGKILL)
            wait_until(lambda: workers.logged().count("started") == 3, "another process", DEADLINE_S)
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
            assert not any(map(is_alive, both))
    finally:
        workers.end()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests", "expected module:function, got 'tests'; did you mean 'tests:handle'?"),
        ("tests.py", "expected module:function, got 'tests.py'; did you mean 'tests:handle'?"),
        ("tests.support.handlers_for_tests.py:work", "did you mean 'tests.support.handlers_for_tests:work'?"),
        ("./tests/jobs.py:work", "expected module:function, got .*; did you mean 'tests.jobs:work'?"),
        ("/srv/tests.py:work", "expected module:function, got '/srv/tests.py:work'$"),
        (":work", "expected module:function"),
        ("no_such_module:work", "no module named 'no_such_module'"),
        ("tests.no_such:work", "no module named 'tests.no_such'"),
        ("tests.support.handlers_for_tests:wrok", "has no 'wrok'"),
        ("tests.support.handlers_for_tests:on_lop", "has no 'on_lop'; did you mean 'on_loop'?"),
        ("tests.support.handlers_for_tests:ROOT", "expected a function of one argument"),
        ("tests.support.handlers_for_tests:until", "expected a function of one argument"),
    ],
)
def test_a_mistyped_handler_is_named_at_once(name: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        load_handler(name)
    with pytest.raises(InvalidArgument, match=message):
        run_handler(name, ["q"], shards={}, config=WorkerConfig(), processes=2, command=["false"])
