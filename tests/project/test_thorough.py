"""The tests that `make test` or `make test-all` leaves out are those that CONTRIBUTING.md lists, with their reasons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import table
from tests.support.paths import ROOT


@pytest.mark.parametrize("mark", ["thorough", "campaign"])
def test_the_list_and_the_markers_agree(mark: str) -> None:
    marked = re.compile(rf"""mark\.{mark}\("([\w-]+)"\)""")
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    listed = [row[0].strip("`") for row in table((ROOT / "CONTRIBUTING.md").read_text("utf-8"), mark)]
    assert sorted(listed) == sorted({row for source in sources for row in marked.findall(source)})
