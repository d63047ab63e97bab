"""`benches/archive.py` runs, and it prints each of its figures.

Risk: it is run with few jobs here, so its figures say nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.requirements import MARIADB, PYMYSQL, require


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benches/archive.py", *options], cwd=ROOT, check=False, capture_output=True, text=True
    )


@pytest.mark.campaign("minutes")
def test_the_bench_of_the_archive_has_its_figures(tmp_path: Path) -> None:
    require(MARIADB)
    require(PYMYSQL)
    ran = bench("--quick", "--rounds", "1", "--json", str(tmp_path / "found.json"))
    assert ran.returncode in (0, 1), ran.stderr  # 1: a bar is not met
    found = [figure["name"] for figure in json.loads((tmp_path / "found.json").read_text())["figures"]]
    assert [name[0] for name in found] == ["1", "1", "2", "3", "3", "4"]


def test_a_number_that_no_figure_has_is_refused() -> None:
    ran = bench("--only", "1,7")
    assert ran.returncode == 2
    assert "expected numbers of 1, 2, 3, 4, got '7'" in ran.stderr
