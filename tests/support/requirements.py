"""Programs and libraries that a machine may lack, and the commands that get them.

Promises: `require` alone skips a test for lack of something; the last line of a session says how many tests were
skipped, what the machine lacks, and the command that gets it.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest


class Requirement(NamedTuple):
    """Something a test needs. lack: the sentence for a machine without it."""

    lack: str
    is_met: Callable[[], bool]
    command: str

    @property
    def reason(self) -> str:
        return f"{self.lack} ({self.command})"


def faketime_library() -> Path:
    """The library without thread support: the other one can block a server that forks."""
    package = find_spec("libfaketime")
    home = Path(package.origin).parent if package and package.origin else Path("libfaketime")
    return home / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _tool(name: str, command: str) -> Requirement:
    return Requirement(f"{name} is not on PATH", lambda: shutil.which(name) is not None, command)


REDIS_SERVER = _tool("redis-server", "apt-get install redis-server")
MARIADB = _tool("mariadbd", "apt-get install mariadb-server")
SETPRIV = _tool("setpriv", "apt-get install util-linux")
C_COMPILER = _tool("cc", "apt-get install gcc libc6-dev")
BASH = _tool("bash", "apt-get install bash")
ACTIONLINT = _tool("actionlint", "go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12")
LIBFAKETIME = Requirement(
    "libfaketime is not installed",
    lambda: faketime_library().exists(),
    f"{sys.executable} -m pip install --group clock",
)
WEB = Requirement(
    "FastAPI, Flask, httpx2 or uvicorn is not installed",
    lambda: all(map(find_spec, ("fastapi", "flask", "httpx2", "uvicorn"))),
    f"{sys.executable} -m pip install --group web",
)
TIME_NAMESPACE = Requirement(
    "no time namespace can be made",
    lambda: _succeeds("unshare", "--time", "--boottime", "1", "--fork", "true"),
    "sudo make test, on Linux 5.6 or later with util-linux",
)
EAGER_TASKS = Requirement(
    "this Python has no eager tasks",
    lambda: hasattr(asyncio, "eager_task_factory"),
    "make PYTHON=python3.12",
)
PYMYSQL = Requirement(
    "PyMySQL is not installed",
    lambda: find_spec("pymysql") is not None,
    f"{sys.executable} -m pip install --group dev",
)
REQUIREMENTS = (
    REDIS_SERVER,
    MARIADB,
    PYMYSQL,
    SETPRIV,
    C_COMPILER,
    BASH,
    ACTIONLINT,
    LIBFAKETIME,
    WEB,
    EAGER_TASKS,
    TIME_NAMESPACE,
)


def require(needed: Requirement) -> None:
    """Skip the running test, by name, if the machine lacks `needed`."""
    if not needed.is_met():
        pytest.skip(needed.reason)


def closing_line(skipped: Iterable[pytest.TestReport]) -> str:
    """`42 tests skipped: redis-server is not on PATH (apt-get install redis-server)`; empty if nothing was lacking."""
    reasons = Counter(_reason(report) for report in skipped)
    counts = [(reasons[needed.reason], needed.reason) for needed in REQUIREMENTS]
    return "; ".join(f"{count} test{'s'[: count > 1]} skipped: {reason}" for count, reason in counts if count)


def _reason(report: pytest.TestReport) -> str:
    """Pytest keeps a skip as (file, line, "Skipped: reason")."""
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
