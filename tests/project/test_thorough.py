"""The tests that `make test` leaves out are those that CONTRIBUTING.md lists, each with its reason."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.pages import table
from tests.support.paths import ROOT

MARK = re.compile(r"""mark\.thorough\("([\w-]+)"\)""")


def test_the_list_and_the_markers_agree() -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    listed = [row[0].strip("`") for row in table((ROOT / "CONTRIBUTING.md").read_text("utf-8"), "thorough")]
    assert sorted(listed) == sorted({row for source in sources for row in MARK.findall(source)})
