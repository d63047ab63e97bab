"""The lease renewer after a suspend of the machine: it renews what has become due meanwhile.

Promises: the system's clocks stand as after a suspend of an hour: CLOCK_BOOTTIME went on, CLOCK_MONOTONIC did not.
Risks: a preloaded library moves the clock, as no test can suspend the machine. The thread's sleep is not moved.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.renewing import take
from tests.support.requirements import C_COMPILER, require
from tests.support.servers import Server

RENEWS = """
import os, sys, pathlib
from pinlater._core import LeaseRenewer
from pinlater.model.clocks import boot_s
from tests.support.renewing import DEADLINE_S, LONG_LEASE_MS, RENEW, SESSION, keys, token

renewer = LeaseRenewer(sys.argv[1], [], RENEW, SESSION)
renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LONG_LEASE_MS)
before_s = boot_s()
pathlib.Path(os.environ["SUSPENDED"]).touch()
print(boot_s() - before_s > 3000, renewer.wait_renewed(1, DEADLINE_S), renewer.stats().renewals)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_a_lease_is_due_after_a_suspend(server: Server, tmp_path: Path) -> None:
    require(C_COMPILER)
    library = tmp_path / "suspend.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, ROOT / "tests/support/suspend.c", "-ldl"], check=True, timeout=60
    )
    with server.client() as client:
        take(client, 1)
    env = os.environ | {"LD_PRELOAD": str(library), "SUSPENDED": str(tmp_path / "suspended")}
    command = [sys.executable, "-c", RENEWS, f"127.0.0.1:{server.port}"]
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert ran.stdout.split() == ["True", "True", "1"], ran.stderr
