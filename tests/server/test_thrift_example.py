"""examples/thrift_client.py: a client made of the interface file alone, on a `pinlater server` without options."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.cli_runs import environment
from tests.support.paths import ROOT
from tests.support.servers import free_port, wait_until

__all__ = ["environment"]  # a fixture

EXAMPLE = ROOT / "examples" / "thrift_client.py"


@pytest.fixture
def port(environment: dict[str, str], tmp_path: Path) -> Iterator[int]:
    """The port of a `pinlater server` on an embedded server of its own."""
    chosen, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "pinlater", "server", "--host", "127.0.0.1", "--port", str(chosen), "--no-http"]
    with log.open("wb") as file, subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=file) as process:
        wait_until(lambda: _listens(chosen), f"a server on port {chosen}: {log.read_text()}")
        yield chosen
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
    assert "embedded://" in log.read_text(), "it says where the jobs are"


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_it_enqueues_dequeues_and_acks(port: int, environment: dict[str, str]) -> None:
    command = [sys.executable, str(EXAMPLE), f"127.0.0.1:{port}"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    enqueued, *works = ran.stdout.splitlines()
    hello, world = enqueued.removeprefix("enqueued ").split()
    assert works[:2] == [f"works on {hello} hello", f"works on {world} world"]
    assert works[2:] == [f"{hello} succeeded by the example", f"{world} failed by the example"]


def test_without_a_server_it_says_what_to_start(environment: dict[str, str]) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE), nobody], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"no server answers on {nobody}: start `pinlater server` first\n"


def test_it_is_short_and_knows_nothing_of_pinlater() -> None:
    text = EXAMPLE.read_text("utf-8")
    assert len(text.splitlines()) <= 40
    assert "import pinlater" not in text
    assert "from pinlater" not in text
