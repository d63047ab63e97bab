"""`pinlater run` in processes of its own, on an app with tasks for tests, with its log and a record of its tasks.

Promises that no process is left running. Import its fixture by name, so that pytest finds it.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinlater import Client, PinLater
from tests.support.servers import Server, wait_until

DEADLINE_S = 60.0
APP = """
import asyncio, ctypes, logging, multiprocessing, os, time
from pathlib import Path
from pinlater import PinLater

VERSION = 1
app = PinLater()
kept = []

def line(text: str) -> None:
    handle = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{text} {os.getpid()}\\n".encode())
    os.close(handle)

@app.task(name="note", lease=1.0)
async def note(text: str, seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
    line(text)

@app.task(name="version")
async def version() -> None:
    line(f"version-{VERSION}")

async def until(gate: str, note: str = "") -> None:
    if note:
        line(note)
    while not Path(gate).exists():
        await asyncio.sleep(0.01)

@app.task(name="wait")
async def wait(gate: str) -> None:
    await until(gate, "waits")
    line("waited")

@app.task(name="block")
def block(gate: str) -> None:
    line("blocks")
    while not Path(gate).exists():
        time.sleep(0.01)
    line("blocked")

@app.task(name="spin")
async def spin(gate: str) -> None:
    line("spins")
    while not Path(gate).exists():
        pass

@app.task(name="hold_gil")
async def hold_gil() -> None:
    if not Path("held").exists():
        Path("held").touch()
        ctypes.PyDLL(None).sleep(3600)
    line("free")

@app.task(name="fork")
def fork() -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    line(f"child {child.exitcode}")

@app.task(name="grow")
async def grow(megabytes: int, gate: str = "/") -> None:
    kept.append(b"x" * (megabytes << 20))
    line("grew")
    await until(gate)

@app.task(name="die")
async def die() -> None:
    if not Path("died").exists():
        Path("died").touch()
        line("dies")
        os._exit(9)
    line("lives")

@app.task(name="say")
async def say(text: str) -> None:
    await asyncio.gather(quietly(text), asyncio.to_thread(logging.getLogger("shop").info, "a thread says %s", text))

async def quietly(text: str) -> None:
    logging.getLogger("shop").info("%s", text, extra={"amount": 3})

@app.task(name="say_plain")
def say_plain(text: str) -> None:
    logging.getLogger("shop").info("plain %s", text)

@app.task(name="fail", give_up_on=(ValueError,))
async def fail() -> None:
    raise ValueError("as told")
"""


class AppRun:
    """One `pinlater run tasks:app`. It creates the queues that a test names."""

    def __init__(self, folder: Path, server: Server, *options: str, app: bool = True, url: bool = True) -> None:
        self.folder, self.notes_path = folder, folder / "notes"
        self.log_path = folder / f"log-{len(list(folder.glob('log-*')))}"
        command = [sys.executable, "-m", "pinlater", "run", *(["tasks:app"] if app else []), "--create", *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PINLATER")}
        environment = {**kept, "NOTES": str(self.notes_path), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"PINLATER_URL": server.url} if url else {}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def logged(self, text: str, count: int = 1) -> None:
        """Waits until the log has the text `count` times."""
        wait_until(lambda: self.log.count(text) >= count, f"{count} times {text!r} in {self.log_path}", DEADLINE_S)

    def notes(self, event: str | None = None) -> list[tuple[str, int]]:
        """The notes of the tasks, with their processes."""
        whole = self.notes_path.read_text().rpartition("\n")[0] if self.notes_path.exists() else ""
        found = [(text, int(pid)) for text, pid in (line.rsplit(" ", 1) for line in whole.splitlines())]
        return [note for note in found if event in (None, note[0])]

    def noted(self, event: str | None = None, count: int = 1) -> list[tuple[str, int]]:
        """Waits until there are `count` such notes."""
        wait_until(lambda: len(self.notes(event)) >= count, f"{count} notes {event}", DEADLINE_S)
        return self.notes(event)

    def get(self, path: str) -> tuple[int, str]:
        """A page of its HTTP port."""
        self.logged("http on port")
        port = re.findall(r"http on port (\d+)", self.log)[-1]
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def json_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Stops it, and returns its exit code."""
        self.process.terminate()
        return self.process.wait(DEADLINE_S)


Start = Callable[..., AppRun]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Start]:
    """`start(*options)`: runs `pinlater run tasks:app` in a folder with the app."""
    (tmp_path / "tasks.py").write_text(APP)
    runs: list[AppRun] = []

    def start(*options: str, **named: Any) -> AppRun:
        runs.append(AppRun(tmp_path, server, *options, **named))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()


@pytest.fixture
def app(server: Server) -> Iterator[PinLater]:
    with PinLater(server.url) as app:
        yield app


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
