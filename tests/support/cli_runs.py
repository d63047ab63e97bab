"""Command lines run in this process, for the tests of the CLI, and what they need to run in another.

Promises exit code, stdout and stderr of each. Risks: import fixtures by name, as pytest finds them so.
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
from pinlater.cli.commands import DONE
from tests.support.servers import Server


class Ran(NamedTuple):
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document it printed."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        """The JSON documents it printed, a line each."""
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
    """In which `pinlater` is this one, with an embedded server of the test's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PINLATER")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": path, "PYTHONUNBUFFERED": "1"}
