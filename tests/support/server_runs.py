"""`pinlater server` in processes of its own, with its log.

Promises that no process is left running. Import its fixture by name, so that pytest finds it.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import Server, wait_until

DEADLINE_S = 60.0


class ServerRun:
    """One `pinlater server` on a port of the system's choice, as its admin pages are."""

    def __init__(self, folder: Path, url: str, *options: str) -> None:
        self.log_path = folder / f"log-{len(list(folder.glob('log-*')))}"
        command = [sys.executable, "-m", "pinlater", "server", "--host", "127.0.0.1", "--port", "0"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PINLATER")}
        environment = {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PINLATER_URL": url}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--http", "127.0.0.1:0", *options], cwd=folder, env=environment, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def logged(self, text: str, count: int = 1) -> None:
        """Waits until the log has the text `count` times."""
        wait_until(lambda: self.log.count(text) >= count, f"{count} times {text!r} in {self.log_path}", DEADLINE_S)

    def is_ready(self, processes: int = 1) -> None:
        """Waits until so many processes run, and one serves."""
        self.logged("server process", processes)
        wait_until(lambda: self.get("/readyz")[0] == 200, "a ready server", DEADLINE_S)

    @property
    def port(self) -> int:
        self.logged("Thrift service listens on")
        return int(re.findall(r"Thrift service listens on .*, port (\d+)", self.log)[0])

    def processes(self, count: int) -> list[int]:
        """The ids of the server processes, once so many have been started."""
        found = re.compile(r"server process (\d+) started")
        wait_until(lambda: len(found.findall(self.log)) >= count, f"{count} server processes", DEADLINE_S)
        return [*map(int, found.findall(self.log))]

    def who_logged(self, text: str) -> list[int]:
        """The processes of the lines with a text, of a server with several."""
        lines = re.findall(r"^\S+ \S+ (\d+) [A-Z]+ pinlater\S*: (.*)$", self.log, re.MULTILINE)
        return [int(pid) for pid, message in lines if text in message]

    def get(self, path: str) -> tuple[int, str]:
        """An admin page."""
        self.logged("admin pages on")
        port = int(re.findall(r"admin pages on .*, port (\d+)", self.log)[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def shows(self, line: str, path: str = "/stats.txt") -> None:
        """Waits until a page has the line."""
        wait_until(lambda: f"\n{line}\n" in self.get(path)[1], f"{line!r} on {path}", DEADLINE_S)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Stops it, and returns its exit code."""
        self.process.terminate()
        return self.process.wait(DEADLINE_S)


StartServer = Callable[..., ServerRun]


@pytest.fixture
def start_server(server: Server, tmp_path: Path) -> Iterator[StartServer]:
    """`start_server(*options)`: runs `pinlater server` in an empty folder. url: in place of the server's; "": none."""
    runs: list[ServerRun] = []

    def start(*options: str, url: str = server.url) -> ServerRun:
        runs.append(ServerRun(tmp_path, url, *options))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()
