"""A supervisor tells of processes that died: their jobs come back at once, and how they ended stands in the status.

Promises: shown on real processes with leases that no test waits for. Risks: none known.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinlater import Client, JobInfo, PinLater, QueueConfig, State
from tests.servers import Server, wait_until

APP = """
import ctypes, os, signal
from pathlib import Path
from pinlater import Context, PinLater

app = PinLater()

@app.task(name="die", attempts=1)
async def die(how: str, path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\\n")
    match how:
        case "exit":
            os._exit(3)
        case "exit well":
            os._exit(0)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case _:
            os.kill(os.getpid(), signal.SIGKILL)

@app.task(name="fine")
async def fine(path: str) -> None:
    with Path(path).open("a") as file:
        file.write("fine\\n")
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Start]:
    """`start(*options)`: pinlater run with two processes."""
    (tmp_path / "tasks.py").write_text(APP)
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pinlater", "run", "tasks:app", "--processes", "2", *options]
        environment = {**os.environ, "PINLATER_URL": server.url}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("how", "told", "limit"),
    [
        ("segfault", "was killed by SIGSEGV", 3),
        ("kill", "was killed by SIGKILL", 1),
        ("abort", "was killed by SIGABRT", 1),
        ("exit", "ended with exit code 3", 1),
        ("exit well", "ended with exit code 0", 1),
    ],
)
def test_a_job_that_kills_its_process_is_quarantined_with_evidence(
    server: Server, start: Start, tmp_path: Path, how: str, told: str, limit: int
) -> None:
    """Long before a lease ends: it is ten minutes."""
    out = tmp_path / "out"
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=limit))
        start()
        handle = app.send("die", how, str(out))
        wait_until(lambda: handle.status() is State.FAILED, "the quarantine", 60)
        info = handle.info()
        assert info is not None
        check_evidence(info, told, out.read_text().split())
        if limit > 1:
            app.send("fine", str(out))
            wait_until(lambda: "fine" in out.read_text(), "a process that lives", 60)


def check_evidence(info: JobInfo, told: str, pids: list[str]) -> None:
    """How each process ended, which it was, and when."""
    assert (info.crashes, info.attempts_remaining) == (len(pids), 0)
    lines = info.status.splitlines()
    assert lines[::2] == [f"worker process {told} (crash {n + 1} of {len(pids)})" for n in range(len(pids))]
    for line, pid in zip(lines[1::2], pids, strict=True):
        assert f":{pid}:" in line
        assert ", claimed 20" in line
        assert ", given back 20" in line
