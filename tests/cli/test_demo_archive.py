"""`make demo-archive`, with a small backlog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import MARIADB, PYMYSQL, require

COMMAND = [sys.executable, "-m", "pinlater.cli.demo.archive", "--mib"]


def test_without_mariadb_the_demo_names_the_package(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    ran = subprocess.run([*COMMAND, "1"], env=environment, check=False, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "mariadb-server" in ran.stdout


@pytest.mark.thorough("minutes")
def test_the_demo_of_the_archive_passes() -> None:
    """More than Redis can hold: the archiver must take some, and is killed meanwhile."""
    require(MARIADB)
    require(PYMYSQL)
    ran = subprocess.run([*COMMAND, "80"], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "killed (SIGKILL) while it moved" in ran.stdout
    assert "every job ran once" in ran.stdout
