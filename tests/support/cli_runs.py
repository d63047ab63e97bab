"""Runs command lines in this process, for the tests of the CLI, and prepares runs in other processes.

Promises exit code, stdout and stderr of each. Import its fixtures by name, so that pytest finds them.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pinlater.cli import main
from pinlater.cli.command_base import DONE
from tests.support.servers import Server


class Ran(NamedTuple):
    """The end of a command line: exit code and output."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The single JSON document that it printed."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        """The JSON documents that it printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def run(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run(*arguments, stdin=b"")` on the session's server, which PINLATER_URL names."""
    monkeypatch.setenv("PINLATER_URL", server.url)
    monkeypatch.delenv("PINLATER_DEBUG", raising=False)

    def run(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(arguments)
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def mail(run: Run) -> str:
    """A queue."""
    assert run("queue", "create", "mail").code == DONE
    return "mail"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment for processes: this `pinlater`, and an embedded server of the test's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PINLATER")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": path, "PYTHONUNBUFFERED": "1"}
