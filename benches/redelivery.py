"""How long the job of a dead worker takes to come back while every handler keeps its loop, or the GIL, for 6 s of 7.

    python benches/redelivery.py [--rounds N]

Promises that nobody but a monitor brings the job back: its claim is one that nobody renews. The best of the rounds
counts. Risks: one job a round; the phase of the ticks is random.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches.support import serving
from pinlater import Client, NewJob, QueueConfig
from pinlater.worker.monitor import TICK_S
from tests.support.handlers_for_tests import Record, WorkerProcesses, body
from tests.support.servers import Server, wait_until

LEASE_S: Final = 10.0
BAR_S: Final = LEASE_S + TICK_S + 2.0
BLOCK_S, REST_S = 6.0, 1.0
#: What the handlers keep, and how many processes run: two by themselves, or two under a supervisor.
CASES: Final[dict[str, dict[str, Any]]] = {
    "supervisor, loop kept": {"gil": False, "supervised": True},
    "supervisor, GIL held": {"gil": True, "supervised": True},
    "lone processes, loop kept": {"gil": False, "supervised": False},
    "lone processes, GIL held (no promise)": {"gil": True, "supervised": False},
}


def measure(server: Server, *, gil: bool, supervised: bool) -> float:
    """Seconds from the claim of a job by a worker that dies at once until it is ready again."""
    config: dict[str, Any] = {"concurrency": 1, "prefetch": 0, "stop_timeout_s": 0.0}
    with TemporaryDirectory(prefix="pinlater-bench-") as folder, Client(server.url) as client:
        client.delete_queue("q")
        client.create_queue("q", QueueConfig(lease_ms=int(LEASE_S * 1000)))
        workers = WorkerProcesses({"1": server.url}, Record(Path(folder) / "record"), Path(folder) / "log")
        pids: set[int] = set()
        try:
            for _ in range(1 if supervised else 2):
                workers.start(processes=2 if supervised else 1, **config)
            order = body("keep", seconds=BLOCK_S, rest=REST_S, gil=gil)
            client.enqueue_many("q", [NewJob(order)] * 2)
            pids = {line.pid for line in workers.record.wait("start", 2)}
            time.sleep(BLOCK_S + REST_S)
            job = client.enqueue("q", b"", attempts=5)
            assert [held.descriptor for held in client.dequeue("q", 1)] == [job]
            began_s = time.monotonic()
            wait_until(lambda: client.lookup([job])[job].crashes == 1, "the redelivery", 120.0)
            return time.monotonic() - began_s
        finally:
            workers.end()
            for pid in pids:
                with suppress(ProcessLookupError):  # a lone one has ended
                    os.kill(pid, signal.SIGKILL)


def main() -> int:
    """Exit code 1: a bar is missed."""
    parser = argparse.ArgumentParser(description=f"Seconds until a dead worker's job is back; bar: {BAR_S:g} s.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds, missed = parser.parse_args().rounds, False
    with serving("valkey") as server:
        for name, case in CASES.items():
            found = [measure(server, **case) for _ in range(rounds)]
            promised = "promise" not in name
            missed |= promised and min(found) > BAR_S
            each = ", ".join(f"{seconds:.1f}" for seconds in found)
            print(
                f"{name:<40} best {min(found):5.1f} s of {each}; bar {f'{BAR_S:g} s' if promised else 'none'}",
                flush=True,
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
