"""The clock of leases.

Promises: shown in a time namespace, whose CLOCK_BOOTTIME is ahead of the machine's, and whose CLOCK_MONOTONIC is not.
"""

from __future__ import annotations

import subprocess
import sys

from pinlater.model.clocks import boot_s
from tests.support.requirements import TIME_NAMESPACE, require

AHEAD_S = 1_000_000
PROGRAM = "from pinlater.model.clocks import boot_s; print(boot_s())"


def test_the_clock_of_leases_follows_boottime() -> None:
    require(TIME_NAMESPACE)
    unshare = ("unshare", "--time", "--boottime", str(AHEAD_S), "--fork")
    before_s = boot_s()
    ran = subprocess.run([*unshare, sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert before_s + AHEAD_S <= float(ran.stdout) <= boot_s() + AHEAD_S
