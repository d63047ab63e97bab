"""Eleven deliberate faults, one a room and one in Lua: the daily tests must fail for each.

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
    Fault(
        "model: a paused queue is packed as open",
        f"{PACKAGE}/model/queue_config.py",
        "(_PAUSED if self.paused else 0)",
        "0",
        "tests/operations/test_behaviour.py tests/worker",
    ),
    Fault(
        "embedded: the last user does not release the server",
        f"{PACKAGE}/embedded/server.py",
        "            os.close(self._users_lock)\n",
        "            pass\n",
        "tests/embedded",
    ),
    Fault(
        "store: a lane repeats its number",
        f"{PACKAGE}/store/lanes.py",
        "lane.number += 1",
        "lane.number += lane.number == 0",
        "tests/store tests/operations/test_behaviour.py",
    ),
    Fault(
        "memory: the clock moves, but no lease expires",
        f"{PACKAGE}/memory/server.py",
        "            expire_leases(self._store, self._scripts)\n",
        "            pass\n",
        "tests/testing tests/memory",
    ),
    Fault(
        "operations: the delay of a retry or a checkpoint is ignored",
        f"{PACKAGE}/operations/enqueue.py",
        "return (2, delay_ms) if delay_ms else (0, 0)",
        "return (0, 0)",
        "tests/client tests/operations/test_behaviour_shards.py tests/tasks/test_task_ends.py",
    ),
    Fault(
        "client: release does nothing",
        f"{PACKAGE}/client/methods.py",
        'partial(leases.release, self.session, listed("jobs", jobs), "")',
        'partial(leases.release, self.session, [], "")',
        "tests/operations/test_behaviour.py tests/operations/test_audit.py tests/store/test_server_faults.py",
    ),
    Fault(
        "worker: weights of queues are ignored",
        f"{PACKAGE}/worker/queue_order.py",
        "max(1, jobs) / self._weights[queue]",
        "max(1, jobs)",
        "tests/worker/test_queue_order.py",
    ),
    Fault(
        "tasks: pauses do not grow",
        f"{PACKAGE}/tasks/retry_policies.py",
        "as_seconds(self.first) * self.factor ** min(attempt - 1, _MAX_EXPONENT)",
        "as_seconds(self.first)",
        "tests/tasks/test_tasks.py tests/tasks/test_functions.py tests/tasks/test_task_ends.py",
    ),
    Fault(
        "running: a dead process's jobs wait for their lease",
        f"{PACKAGE}/running/recoverer.py",
        "                await self._end_leases(queue, process, ending)\n",
        "                pass\n",
        "tests/running/test_recoverer.py",
    ),
    Fault(
        "cli: the doctor's exit code is always 0",
        f"{PACKAGE}/cli/doctor/command.py",
        "return DONE if ok else NO",
        "return DONE",
        "tests/cli",
    ),
    Fault(
        "lua: the lowest priority is claimed first",
        "lua/claim.lua",
        "for priority = 1, priorities do\n  local ready, n",
        "for priority = priorities, 1, -1 do\n  local ready, n",
        "tests/lua tests/operations/test_behaviour.py",
    ),
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
    first = next((line for line in ran.stdout.splitlines() if line.startswith("FAILED")), "")
    noticed = bool(first)
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
