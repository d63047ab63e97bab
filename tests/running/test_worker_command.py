"""`pinlater worker` does what `pinlater run` does: reloads, dumps, and ends that count as crashes.

Promises: shown with real processes, with and without a supervisor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinlater import AsyncClient, Client, InvalidArgument, PinLater, QueueConfig, Worker
from pinlater.running.worker_command import run_handler
from tests.support.servers import Server, wait_until

DEADLINE_S = 60.0
HANDLER = """
import os
from pathlib import Path

def handle(job):
    if job.body == b"exit":
        os._exit(0)
    Path(job.body.decode()).write_text("old code")
"""

Start = Callable[[int], subprocess.Popen[bytes]]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        client.create_queue("q", QueueConfig(lease_ms=600_000, crash_limit=1))
        yield client


@pytest.fixture
def start(client: Client, server: Server, tmp_path: Path) -> Iterator[Start]:
    """Starts a worker with so many processes, and returns when all of them work."""
    (tmp_path / "handlers.py").write_text(HANDLER)
    command = [sys.executable, "-m", "pinlater", "worker", "handlers:handle", "--queue", "q"]
    environment = {**os.environ, "PINLATER_URL": server.url, "PYTHONDONTWRITEBYTECODE": "1"}
    started: list[subprocess.Popen[bytes]] = []

    def start(processes: int) -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            arguments = [*command, "--processes", str(processes)]
            started.append(subprocess.Popen(arguments, cwd=tmp_path, env=environment, stderr=log))
        wait_for_log(tmp_path, "working on q", processes)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for_log(folder: Path, text: str, count: int) -> None:
    log = folder / "log"
    wait_until(lambda: log.read_text().count(text) >= count, f"{count} times {text!r}", DEADLINE_S)


def result_of(client: Client, file: Path) -> str:
    """Runs a job that writes a file, and returns its text."""
    client.enqueue("q", str(file).encode())
    wait_until(lambda: file.exists() and file.read_text(), "the job", DEADLINE_S)
    return file.read_text()


def test_a_task_is_no_handler() -> None:
    app = PinLater("redis://nowhere")

    @app.task
    def send(to: str) -> None: ...

    handler: Any = send
    with pytest.raises(InvalidArgument, match=r"^handler: this is a task of app MODULE:APP; `pinlater run MODULE:APP`"):
        run_handler(handler, ["q"], shards={})
    with pytest.raises(InvalidArgument, match=r"^handler: expected a function that takes the job, got <task .*send'"):
        Worker(AsyncClient("redis://nowhere"), ["q"], handler)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.parametrize("processes", [1, 2])
def test_sighup_reads_the_code_again_and_sigusr1_logs_what_runs(
    client: Client, start: Start, tmp_path: Path, processes: int
) -> None:
    process = start(processes)
    assert result_of(client, tmp_path / "first") == "old code"
    (tmp_path / "handlers.py").write_text(HANDLER.replace("old code", "new code"))
    process.send_signal(signal.SIGHUP)
    wait_for_log(tmp_path, "stopped: ", processes)
    wait_for_log(tmp_path, "working on q", 2 * processes)
    assert result_of(client, tmp_path / "second") == "new code"
    process.send_signal(signal.SIGUSR1)
    wait_for_log(tmp_path, "what runs now:", processes)
    process.terminate()
    assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_a_handler_that_exits_with_0_has_crashed(client: Client, start: Start, tmp_path: Path) -> None:
    start(2)
    job = client.enqueue("q", b"exit")
    wait_until(lambda: client.count("q").failed == 1, "the crash limit", DEADLINE_S)
    assert client.lookup([job])[job].crashes == 1
    assert "ended with exit code 0; starting another" in (tmp_path / "log").read_text()
