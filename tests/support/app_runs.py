"""`pinlater run` of an app that a test writes, and one record of what its tasks did, in any process.

Promises: the record is one file, to which every process appends whole lines.
Risks: a task that is killed between its work and its line leaves no line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.servers import READY_DEADLINE_S, wait_until

#: The start of each app. note(event, name) writes a line; "began" starts a run, and later lines of it belong to it.
HEAD = """
import asyncio, contextvars, ctypes, itertools, os, signal, subprocess, sys, threading, time
from pathlib import Path
from pinlater import Context, PinLater, SyncContext

app = PinLater()
RECORD = os.open("record", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

RUN, RUNS = contextvars.ContextVar("run", default=0), itertools.count(time.monotonic_ns())  # pids come again

def note(event, name):
    if event == "began":
        RUN.set(next(RUNS))
    os.write(RECORD, f"{event} {name} {os.getpid()} {time.monotonic_ns()} {RUN.get()}\\n".encode())

def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.02)
"""


class Note(NamedTuple):
    """One line of the record. time_ns: monotonic, the same for all processes. run: its number, which
    no other run of a process with this pid has.
    """

    event: str
    name: str
    pid: int
    time_ns: int
    run: int


class AppRuns:
    """Processes of one app, in a folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.all: list[subprocess.Popen[bytes]] = []
        (folder / "record").touch()

    def write(self, tasks: str) -> None:
        """Writes the app: HEAD, then these tasks."""
        (self.folder / "tasks.py").write_text(HEAD + tasks)

    def start(self, *options: str, url: str = "") -> subprocess.Popen[bytes]:
        """Starts `pinlater run tasks:app` with these options."""
        return self._start(["-m", "pinlater", "run", "tasks:app", *options], url)

    def start_program(self) -> subprocess.Popen[bytes]:
        """Starts the app's file as a program."""
        return self._start(["tasks.py"], "")

    def _start(self, arguments: Sequence[str], url: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PINLATER_URL": url or self.url}
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        self.all.append(process)
        return process

    def notes(self, event: str | None = None, name: str | None = None) -> list[Note]:
        """The notes of the tasks so far."""
        whole, _, _ = (self.folder / "record").read_text().rpartition("\n")
        lines = [line.split() for line in whole.splitlines()]
        found = [Note(kind, task, *map(int, numbers)) for kind, task, *numbers in lines]
        return [one for one in found if event in (None, one.event) and name in (None, one.name)]

    def wait(
        self, event: str, count: int = 1, name: str | None = None, deadline_s: float = READY_DEADLINE_S
    ) -> list[Note]:
        """Waits until there are `count` of these notes."""
        what = f"{count} of {event} {name or ''}"
        try:
            wait_until(lambda: len(self.notes(event, name)) >= count, what, deadline_s)
        except TimeoutError as error:
            error.add_note(self.log[-4000:])
            raise
        return self.notes(event, name)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def end(self) -> None:
        """Kills the processes that still run; their children end with them."""
        for process in self.all:
            process.kill()
        for process in self.all:
            process.wait()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., AppRuns]]:
    """`runs(url, tasks)`: an app of these tasks on the servers of that URL."""
    made: list[AppRuns] = []

    def make(url: str, tasks: str) -> AppRuns:
        folder = tmp_path / f"app{len(made)}"
        folder.mkdir()
        made.append(AppRuns(folder, url))
        made[-1].write(tasks)
        return made[-1]

    yield make
    for one in made:
        one.end()
