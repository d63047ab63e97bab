"""The supervisor of processes that report: reloads, recycling, starts that hang or fail, ends that count as crashes.

Promises: shown with real processes, small programs that report as workers do.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.servers import is_alive, wait_until

DEADLINE_S = 60.0

SUPERVISE = """
import logging, os, sys
from pathlib import Path
from pinlater.running import restarter
from pinlater.running.supervisor import Supervisor
from pinlater.running.worker_process import ProcessSet
logging.basicConfig(level=logging.INFO, format="%(message)s")
_, python, program, processes, start_s, burst = sys.argv
restarter.START_S = float(start_s)
sets = [ProcessSet(command=[python, "-c", program], processes=int(processes))]

class Listener:
    def reported(self, process):
        print("reported", process.pid, process.report, file=sys.stderr, flush=True)
        if process.report.get("stall"):  # until it has ended; then what it wrote last is not read yet
            supervisor.wake()
            Path("gate").touch()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    def ended(self, process, why):
        print("ended", process.pid, why, file=sys.stderr, flush=True)

def died(process, code):
    print("died", process.pid, code, file=sys.stderr, flush=True)

supervisor = Supervisor(sets, burst=bool(burst), reloaded=lambda: sets, listener=Listener(), recover=died)
sys.exit(supervisor.run())
"""
#: first: this process is the first one of all.
BEGIN = """
import json, os, signal, sys, time
from pathlib import Path

def note(event):
    handle = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{event} {os.getpid()}\\n".encode())
    os.close(handle)

def report(**fields):
    os.write(int(os.environ["PINLATER_REPORT_FD"]), json.dumps(fields).encode() + b"\\n")

def wait():
    while not Path("gate").exists():
        time.sleep(0.01)

def end(code):
    report(code=code)
    os._exit(code)

try:
    first = bool(os.close(os.open("first", os.O_CREAT | os.O_EXCL))) or True
except FileExistsError:
    first = False
"""
Supervise = Callable[..., subprocess.Popen[bytes]]


class ProgramFolder:
    """A folder in which programs and their supervisor leave notes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "log").touch()
        (path / "python").symlink_to(sys.executable)

    @property
    def log(self) -> str:
        return (self.path / "log").read_text()

    def logged(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.log.count(text) >= count, f"{count} times {text!r}", DEADLINE_S)

    def pids(self, event: str) -> list[int]:
        notes = self.path / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [int(pid) for kind, pid in map(str.split, lines) if kind == event]

    def noted(self, event: str, count: int = 1) -> list[int]:
        wait_until(lambda: len(self.pids(event)) >= count, f"{count} times {event!r}", DEADLINE_S)
        return self.pids(event)

    def open(self) -> None:
        (self.path / "gate").touch()


@pytest.fixture
def folder(tmp_path: Path) -> ProgramFolder:
    return ProgramFolder(tmp_path)


@pytest.fixture
def supervise(folder: ProgramFolder) -> Iterator[Supervise]:
    made: list[subprocess.Popen[bytes]] = []

    def start(
        program: str, processes: int = 1, start_s: float = 60.0, *, burst: bool = False
    ) -> subprocess.Popen[bytes]:
        options = [str(folder.path / "python"), BEGIN + program, str(processes), str(start_s), "burst" if burst else ""]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)])}
        with (folder.path / "log").open("ab") as out:
            command = [sys.executable, "-c", SUPERVISE, *options]
            made.append(subprocess.Popen(command, cwd=folder.path, env=environment, stdout=out, stderr=out))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


#: Each notes every SIGTERM, and ends when the gate is open. The first is ready at once, others when they get one.
TWO = """
def on_term(*_):
    note("term")
    report(ready=True)
signal.signal(signal.SIGTERM, on_term)
if first:
    report(ready=True)
note("up")
wait()
end(0)
"""


def test_a_stop_during_a_reload_asks_each_process_once(supervise: Supervise, folder: ProgramFolder) -> None:
    """A successor that gets ready then replaces no process, and no further reload starts."""
    process = supervise(TWO)
    folder.noted("up")
    process.send_signal(signal.SIGHUP)
    old, successor = folder.noted("up", 2)
    process.terminate()
    folder.noted("term", 2)
    folder.logged(f"reported {successor} ")
    process.send_signal(signal.SIGHUP)
    folder.open()
    assert process.wait(DEADLINE_S) == 0
    assert sorted(folder.pids("term")) == sorted([old, successor])
    assert len(folder.pids("up")) == 2
    assert "died" not in folder.log


def test_a_stop_after_a_reload_asks_the_old_process_once(supervise: Supervise, folder: ProgramFolder) -> None:
    process = supervise(TWO.replace("if first:", "if True:"))
    folder.noted("up")
    process.send_signal(signal.SIGHUP)
    old, successor = folder.noted("up", 2)
    assert folder.noted("term") == [old]
    process.terminate()
    assert folder.noted("term", 2) == [old, successor]
    folder.open()
    assert process.wait(DEADLINE_S) == 0
    assert folder.pids("term") == [old, successor]


def test_one_that_is_recycled_is_replaced_before_it_ends(supervise: Supervise, folder: ProgramFolder) -> None:
    process = supervise(
        TWO.replace("report(ready=True)\nnote", "report(recycling=True)\nnote").replace(
            "end(0)", "end(75 if first else 0)"
        )
    )
    old, successor = folder.noted("up", 2)
    assert is_alive(old)
    process.terminate()  # the first one of two signals: the old one ends already, and knows it
    assert sorted(folder.noted("term", 2)) == sorted([old, successor])
    folder.open()
    assert process.wait(DEADLINE_S) == 0
    assert len(folder.pids("up")) == 2


def test_the_end_of_one_that_is_recycled_is_reported_as_that(supervise: Supervise, folder: ProgramFolder) -> None:
    process = supervise("note('up')\nreport(ready=True, recycling=first)\nwait() if first else signal.pause()\nend(75)")
    old, successor = folder.noted("up", 2)
    folder.logged(f"reported {successor} ")
    folder.open()
    folder.logged(f"ended {old} recycled")
    assert "died" not in folder.log
    assert is_alive(successor)
    process.kill()


def test_one_whose_end_is_seen_before_its_word_of_it(supervise: Supervise, folder: ProgramFolder) -> None:
    """As where the supervisor stood still while a process recycled itself."""
    process = supervise(
        "note('up')\nreport(ready=True, stall=first)\nwait() if first else signal.pause()\n"
        "report(recycling=True, code=75)\nos._exit(75)"
    )
    old, successor = folder.noted("up", 2)
    folder.logged(f"reported {successor} ")
    assert folder.log.count(f"ended {old} recycled") == 1
    assert "died" not in folder.log
    assert (is_alive(successor), process.poll()) == (True, None)
    process.kill()


def test_no_more_end_beside_the_others_than_a_set_has_processes(supervise: Supervise, folder: ProgramFolder) -> None:
    process = supervise("note('up')\nreport(ready=True, recycling=True)\nwait()\nend(75)")
    first, second = folder.noted("up", 2)
    folder.logged(f"{second} is recycled")
    assert folder.pids("up") == [first, second]
    folder.open()
    folder.logged(f"ended {first} recycled")
    folder.logged(f"ended {second} recycled")
    folder.noted("up", 3)
    process.kill()
    assert "crash" not in folder.log


@pytest.mark.parametrize("code", [0, 75])
def test_an_exit_code_alone_is_a_crash(supervise: Supervise, folder: ProgramFolder, code: int) -> None:
    """A handler may end its process with any code."""
    process = supervise(f"note('up')\nreport(ready=True)\nos._exit({code}) if first else end(0)", burst=True)
    assert process.wait(DEADLINE_S) == 0
    crashed, _ = folder.pids("up")
    assert f"died {crashed} {code}" in folder.log
    assert f"ended {crashed} crash" in folder.log
    assert folder.log.count("died") == 1
    assert "starting another in 0.5 s" in folder.log


def test_one_that_hangs_at_its_start_is_replaced(supervise: Supervise, folder: ProgramFolder) -> None:
    process = supervise(
        "note('up')\nif not first: report(ready=True)\nsignal.signal(15, lambda *_: end(0))\nsignal.pause()",
        start_s=0.3,
    )
    folder.logged("{'ready': True}")
    (ready,) = re.findall(r"reported (\d+) {'ready': True}", folder.log)
    killed = re.findall(r"worker process (\d+) did not start in time and is killed", folder.log)
    assert killed  # on a busy machine others than the first, too
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    assert ready not in killed
    assert folder.log.count("did not") == len(killed)


def test_one_that_can_not_be_started_leaves_the_others(supervise: Supervise, folder: ProgramFolder) -> None:
    process = supervise("note('up')\nreport(ready=True)\nsignal.signal(15, lambda *_: end(0))\nsignal.pause()", 2)
    first = folder.noted("up", 2)
    python = (folder.path / "python").rename(folder.path / "gone")
    process.send_signal(signal.SIGHUP)
    folder.logged("cannot start: [Errno 2]", 2)
    os.kill(first[0], signal.SIGKILL)
    folder.logged("cannot start: [Errno 2]", 3)
    assert (is_alive(first[1]), process.poll()) == (True, None)
    python.rename(folder.path / "python")
    folder.noted("up", 3)
    process.terminate()
    assert process.wait(DEADLINE_S) == 0


#: Each is ready once the file `round` is there, and ends at a stop.
READY_AT_A_GATE = """
signal.signal(signal.SIGTERM, lambda *_: end(0))
note("up")
while not Path("round").exists():
    time.sleep(0.01)
report(ready=True)
while True:
    signal.pause()
"""


def test_it_says_once_when_all_are_ready(supervise: Supervise, folder: ProgramFolder) -> None:
    process = supervise(READY_AT_A_GATE, 2)
    first = folder.noted("up", 2)
    assert "ready: " not in folder.log
    (folder.path / "round").touch()
    folder.logged("\nready: 2 processes\n")
    os.kill(first[0], signal.SIGKILL)
    third = folder.noted("up", 3)[2]
    folder.logged(f"reported {third} ")
    process.send_signal(signal.SIGHUP)
    folder.logged("\nreload: done, 2 new processes\n")
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    assert folder.log.count("ready: ") == folder.log.count("reload: done") == 1


def test_a_reload_whose_successors_fail_is_over_with_the_old_ones(supervise: Supervise, folder: ProgramFolder) -> None:
    process = supervise("first or end(1)\n" + READY_AT_A_GATE)
    folder.noted("up")
    (folder.path / "round").touch()
    folder.logged("\nready: 1 process\n")
    process.send_signal(signal.SIGHUP)
    folder.logged("\nreload: over, 0 new processes, 1 old process kept\n")
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
