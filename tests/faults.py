"""Ten deliberate faults, one a room: the daily tests must fail for each.

    make faults

Promises that each fault is put into a copy of the checkout, and that the command fails if the tests of its room pass
all the same, or if the text that a fault replaces is not there any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "python/pinlater"


class Fault(NamedTuple):
    """What goes wrong, in which file, by which replacement, and the tests that should notice."""

    what: str
    path: str
    before: str
    after: str
    tests: str


FAULTS = [
    Fault("model: a paused queue is packed as open", f"{PACKAGE}/model/queue_config.py", "", "", "tests/operations"),
]


def main() -> int:
    """The number of faults that no test noticed."""
    missed = [fault.what for fault in FAULTS if not _is_noticed(fault)]
    print(f"{len(FAULTS) - len(missed)} of {len(FAULTS)} faults noticed", *missed, sep="\n  missed: ")
    return len(missed)


def _is_noticed(fault: Fault) -> bool:
    started_s = time.monotonic()
    with TemporaryDirectory(prefix="pinlater-fault-") as folder:
        copy = Path(folder)
        _copy_checkout(copy)
        _put_in(copy / fault.path, fault)
        ran = _run_tests(copy, fault.tests)
    noticed = ran.returncode == 1  # tests ran, and some failed
    first = next((line for line in ran.stdout.splitlines() if line.startswith("FAILED")), ran.stdout[-300:])
    print(
        f"{'noticed' if noticed else 'MISSED'} in {time.monotonic() - started_s:.0f} s  {fault.what}\n  {first}",
        flush=True,
    )
    return noticed


def _copy_checkout(copy: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    for native in (ROOT / PACKAGE).glob("_core*.so"):
        shutil.copy2(native, copy / PACKAGE)


def _put_in(path: Path, fault: Fault) -> None:
    text = path.read_text("utf-8")
    if text.count(fault.before) != 1:
        sys.exit(
            f"{fault.what}: expected {fault.before!r} once in {fault.path}, found it {text.count(fault.before)} times"
        )
    path.write_text(text.replace(fault.before, fault.after), "utf-8")


def _run_tests(copy: Path, tests: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "4", "-p", "no:cacheprovider", *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
