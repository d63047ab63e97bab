"""`benches/stalls.py` runs, and it calls every script.

Risk: it is run with few small jobs here, so its times say nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pinlater.store.scripts import load_scripts
from tests.support.paths import ROOT


def test_the_bench_of_stalls_calls_every_verb(tmp_path: Path) -> None:
    command = [sys.executable, "benches/stalls.py", "--quick", "--rounds", "1", "--json", str(tmp_path / "found.json")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert "worst by verb:" in ran.stdout, ran.stderr
    called = {verb for _, _, verb, *_ in json.loads((tmp_path / "found.json").read_text())}
    assert called == load_scripts().keys()
