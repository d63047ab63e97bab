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
from sysconfig import get_config_var
from typing import Final, NamedTuple

import pytest

from tests.support.paths import ROOT

FUZZER: Final = ROOT / "rust" / "fuzz" / "Cargo.toml"


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


def _python_library() -> Path:
    return Path(str(get_config_var("LIBDIR"))) / str(get_config_var("LDLIBRARY"))


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
THRIFT = _tool("thrift", "apt-get install thrift-compiler")
GO = _tool("go", "apt-get install golang-go")
GO_THRIFT = Requirement(
    "Apache Thrift's library for Go is not in Go's module cache",
    lambda: _succeeds("env", "GOPROXY=off", "go", "mod", "download", "github.com/apache/thrift@v0.17.0"),
    "go mod download github.com/apache/thrift@v0.17.0",
)
CARGO = _tool("cargo", "apt-get install rustup")
CXX = _tool("c++", "apt-get install g++")
PYTHON_LIBRARY = Requirement(
    "this Python has no shared library to link with",
    lambda: bool(get_config_var("Py_ENABLE_SHARED") and _python_library().exists()),
    "apt-get install python3-dev",
)
FUZZER_CRATES = Requirement(
    "crates of the fuzzer are not in Cargo's cache",
    lambda: _succeeds("cargo", "fetch", "--locked", "--offline", "--manifest-path", str(FUZZER)),
    "cargo fetch --locked --manifest-path rust/fuzz/Cargo.toml",
)
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
LOCUST = Requirement(
    "locust is not installed",
    lambda: find_spec("locust") is not None,
    f"{sys.executable} -m pip install --group load",
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
    THRIFT,
    GO,
    GO_THRIFT,
    CARGO,
    CXX,
    PYTHON_LIBRARY,
    FUZZER_CRATES,
    LIBFAKETIME,
    WEB,
    LOCUST,
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
