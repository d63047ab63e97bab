"""A machine that lacks something: its tests are skipped, and the session's last line names the command that gets it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.requirements import ACTIONLINT, SETPRIV, require


def test_what_is_missing_is_named_with_the_command_that_gets_it(tmp_path: Path) -> None:
    require(SETPRIV)
    (tmp_path / "setpriv").symlink_to(shutil.which("setpriv") or "")
    chosen = ["tests/store/test_servers.py", "-k", "unix_socket or tls", "-m", "", "-n", "1", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *chosen],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    closing, totals = ran.stdout.splitlines()[-2:]
    assert closing == "2 tests skipped: redis-server is not on PATH (apt-get install redis-server)"
    assert "1 passed, 2 skipped" in totals


def test_the_workflow_is_sound() -> None:
    require(ACTIONLINT)
    ran = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
