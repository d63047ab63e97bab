"""The examples that do all they show in one command.

Promises: each is run as the README says, on a real server, and prints what it is there to show. Risks: they start
workers of their own, which end with them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.servers import Server


@pytest.fixture
def run(fresh_server: Callable[..., Server], tmp_path: Path) -> Callable[[str], list[str]]:
    """`run(name)` of an example: the lines it prints."""
    server = fresh_server()

    def run(name: str) -> list[str]:
        own = {"PINLATER_URL": server.url, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, f"examples/{name}.py"]
        ran = subprocess.run(command, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True, timeout=100)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    return run


def test_thumbnails(run: Callable[[str], list[str]], tmp_path: Path) -> None:
    done = [f"picture{number}.png: done" for number in range(7)]
    assert run("thumbnails") == [*done, "picture7.png: OSError: image file is truncated"]
    assert len(list(tmp_path.glob("*/small/*.png"))) == 7


@pytest.mark.thorough("pages")
def test_fan_out(run: Callable[[str], list[str]]) -> None:
    assert run("fan_out") == ["9592 primes below 100000"]


@pytest.mark.thorough("pages")
def test_resumable_import(run: Callable[[str], list[str]]) -> None:
    killed, *rows = run("resumable_import")
    assert killed == "the worker was killed; another one starts"
    found = [tuple(map(int, re.findall(r"\d+", row))) for row in rows]
    dead = found[0][0]
    first = [begin for worker, begin, _ in found if worker == dead]
    second = [begin for worker, begin, _ in found if worker != dead]
    assert (first[0], second[-1], len(first) + len(second)) == (0, 950, len(found))
    assert 450 <= first[-1] < 950, "killed half-way"
    assert second[0] in (first[-1], first[-1] + 50), "it goes on at the last checkpoint"


def test_the_readme_names_each() -> None:
    named = re.findall(r"`python examples/(\w+)\.py[^`]*`", (ROOT / "README.md").read_text("utf-8"))
    assert set(named) == {"thumbnails", "fan_out", "resumable_import", "thrift_client"}
