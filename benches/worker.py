"""The figures of tasks: what a task costs with leases, retries, monitor and codec on.

    python benches/worker.py [--rounds 5] [--quick] [--peers FOLDER] [--json FILE]

--peers: the folder of the peers' compare.py; benches/README.md says how to set it up.

Promises the same table as benches/core.py. Risks: a busy machine changes times, but not ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches import peers
from benches.support import Figure, Options, figure, interleave, per_job, print_table, ratios, serving, write_json
from benches.task_process import CALL, QUEUE, SLEEPERS, TASK
from benches.worker_cost import process, result
from pinlater import PinLater
from pinlater.tasks.app import parts_of
from tests.support.servers import Kind, wait_until

BATCH = 1_000
#: The most pending jobs while jobs are enqueued and drained at the same time.
MAX_PENDING = 50_000
#: Concurrency and prefetch that drain fast.
SETTINGS = ((100, 200), (128, 256), (200, 400), (400, 800), (10, 1_000))


def drain(kind: Kind, options: Options) -> list[Figure]:
    """One process, no-op async tasks, concurrency 128."""
    count = options.scaled(100_000, 20_000)
    found: list[dict[str, float]] = []
    with serving(kind) as server, PinLater(server.url, timeout_s=60) as app:
        for _ in range(options.rounds):
            _enqueue(app, count)
            with process("drain", server, QUEUE, count, script="task_process.py") as draining:
                found.append(result(draining))
    jobs, tasks = [each["job_us"] for each in found], [each["task_us"] for each in found]
    note = f"a task {per_job(jobs)}, a gathered one {per_job(tasks)}"
    return [figure("worker CPU a no-op task / a gathered one", kind, ratios(jobs, tasks), 3.5, 2, note=note)]


def defaults(kind: Kind, options: Options) -> list[Figure]:
    """Drain with default settings, over that with the best ones: those of SETTINGS with the highest median."""
    count = options.scaled(60_000, 10_000)
    with serving(kind) as server, PinLater(server.url, timeout_s=60) as app:

        def pace(*settings: int) -> float:
            _enqueue(app, count)
            with process("pace", server, QUEUE, count, *settings, script="task_process.py") as draining:
                return float(result(draining))

        found = interleave({str(each): partial(pace, *each) for each in ((), *SETTINGS)}, options.rounds)
    by_default = found.pop("()")
    best = max(found, key=lambda name: statistics.median(found[name]))
    note = f"{statistics.median(by_default):,.0f} tasks/s; the best has (concurrency, prefetch) {best}"
    measured = ratios(by_default, found[best])
    return [figure("drain by default / with the best settings", kind, measured, 0.9, 1.0, at_least=True, note=note)]


def sleepers(kind: Kind, options: Options) -> list[Figure]:
    """1,000 jobs that sleep one second, concurrency 1,000: first start to last end."""
    found: list[float] = []
    with serving(kind) as server, PinLater(server.url) as app:
        for _ in range(options.rounds):
            app.by_name(SLEEPERS).using(queue=QUEUE).enqueue_many([()] * BATCH)
            with process("sleep", server, QUEUE, BATCH, script="task_process.py") as sleeping:
                found.append(result(sleeping))
    return [figure("1,000 jobs of 1 s at once, start to end", kind, found, 1.3, None, unit="s")]


def memory(kind: Kind, options: Options) -> list[Figure]:
    """The memory of a worker after ten times as many jobs. Few jobs are pending, as those are the server's memory."""
    few, many = options.scaled(200_000, 50_000), options.scaled(2_000_000, 200_000)
    with serving(kind) as server, PinLater(server.url, timeout_s=60) as app:
        client = parts_of(app).clients.sync()
        _enqueue(app, BATCH)
        with process("memory", server, QUEUE, many, few, script="task_process.py") as draining:
            for _ in range(many // BATCH - 1):
                _enqueue(app, BATCH)
                wait_until(lambda: client.count(QUEUE).pending < MAX_PENDING, "fewer pending jobs", 60)
            rss = result(draining)
    name = f"RSS of a worker at {many:,} jobs / at {few:,}"
    note = f"{rss['many'] / 2**20:.1f} MiB, {rss['few'] / 2**20:.1f} MiB"
    return [figure(name, kind, [rss["many"] / rss["few"]], 1.05, None, note=note)]


def _enqueue(app: PinLater, count: int) -> None:
    task = app.by_name(TASK).using(queue=QUEUE)
    for _ in range(count // BATCH):
        task.enqueue_many([CALL] * BATCH)


MEASURES: dict[str, Callable[[Kind, Options], list[Figure]]] = {
    "drain": drain,
    "defaults": defaults,
    "sleepers": sleepers,
    "memory": memory,
}


def main() -> int:
    """Exit code 1 if a bar is not met."""
    arguments = _arguments()
    options = Options(arguments.rounds, arguments.quick)
    figures: list[Figure] = []
    for name in arguments.only:
        started_s = time.monotonic()
        figures += MEASURES[name]("valkey", options)
        print(f"{name}: {time.monotonic() - started_s:.0f} s", file=sys.stderr, flush=True)
    if arguments.peers:
        figures += peers.measure(arguments.peers, options)
    print_table(figures)
    if arguments.json:
        with serving("valkey") as server:
            version = str(redis.Redis(port=server.port).info("server")["valkey_version"])
        write_json(arguments.json, figures, options, {"valkey": version})
    return int(any(each.is_met is False for each in figures))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The figures of tasks.")
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), default=list(MEASURES), help="figures to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer jobs, to check that it works")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="compare with other queues too (about 20 minutes)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
