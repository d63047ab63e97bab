"""The README's code and commands, run as they are written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import wait_until

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    binaries = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PINLATER")}
    return {**kept, "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": f"{binaries}:{os.environ['PATH']}"}


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def test_the_five_lines_run(tmp_path: Path, environment: dict[str, str]) -> None:
    first = _blocks("python")[0]
    run = subprocess.run([sys.executable, "-c", first], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_worker_commands_run(tmp_path: Path, environment: dict[str, str]) -> None:
    handler = next(block for block in _blocks("python") if "thumbs.py" in block)
    (tmp_path / "thumbs.py").write_text(handler)
    create, enqueue, work = re.findall(r"^    (pinlater .*)$", README, re.MULTILINE)
    output = tmp_path / "output"
    for command in (create, enqueue):
        subprocess.run(command, shell=True, check=True, env=environment, cwd=tmp_path, capture_output=True)  # noqa: S602
    with output.open("wb") as sink:
        worker = subprocess.Popen(
            ["sh", "-c", f"exec {work}"],
            env={**environment, "PYTHONUNBUFFERED": "1"},
            cwd=tmp_path,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: {"b'first'", "b'second'"} <= set(output.read_text().split()), "both jobs handled")
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=60) == 0


def test_every_file_it_names_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        assert (Path(__file__).parent.parent / link).exists(), link
