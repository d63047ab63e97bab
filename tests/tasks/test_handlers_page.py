"""The programs of docs/handlers.md run as shown, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FreshServer
from tests.support.pages import page

PAGE = page("handlers")
PROGRAMS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL))
SHOWN = re.findall(r"^    \$ python (\w+)\.py\n    \$ pinlater (run .*)\n((?:    .*\n)+)", PAGE, re.MULTILINE)


def test_every_program_is_run() -> None:
    assert len(PROGRAMS) == PAGE.count("```python")
    assert [name for name, _, _ in SHOWN] == list(PROGRAMS)


@pytest.mark.thorough("pages")
@pytest.mark.parametrize(("name", "command", "printed"), SHOWN, ids=list(PROGRAMS))
def test_it_prints_what_the_page_says(
    fresh_server: FreshServer, tmp_path: Path, name: str, command: str, printed: str
) -> None:
    (tmp_path / f"{name}.py").write_text(PROGRAMS[name])
    environment = {**os.environ, "PINLATER_URL": fresh_server().url}
    for words in ([f"{name}.py"], ["-m", "pinlater", *command.split()]):
        ran = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
    assert ran.stdout == re.sub("^    ", "", printed, flags=re.MULTILINE)
