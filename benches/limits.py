"""The figures of limits: what they cost Redis, how few calls resting workers make, and how exact a rate is.

    python benches/limits.py [--only 1,2,3] [--rounds 5] [--quick] [--json FILE]

1. Redis CPU a job of claims of 50, with a rate and max_running that never hold it back, compared with no limit.
2. Calls a second of five workers that rest at 1/s while 10,000 jobs wait.
3. Jobs that five worker processes start in 10 s at 100/s, from an empty account; one is killed every 2 s, and the limit
   changes under load. At no moment more than the rate allows, plus the burst.

Promises that figure 3 counts each start by the clock of the machine that the server runs on too.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches.support import (
    BODY,
    CpuMeter,
    Figure,
    Options,
    apart,
    figure,
    interleave,
    per_job,
    print_table,
    ratios,
    serving,
    write_json,
)
from pinlater import AsyncClient, Client, Job, QueueConfig
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.servers import Server

CLAIM = 50
RESTING_JOBS = 10_000
#: Figure 3: the rate, its burst, how long it is measured, and when a process is killed.
RATE, BURST, SECONDS, KILL_EVERY_S = 100, 20, 10.0, 2.0
PROCESSES, SHARDS = 5, 3
#: Of figure 3, where the limit changes under load: jobs a second from these seconds on.
CHANGES = ((0.0, 100), (3.0, 50), (6.0, 200))
WORKER = """
import asyncio, os, sys, time
from pinlater import AsyncClient
from pinlater.worker.worker import Worker, WorkerConfig

async def handler(job):
    os.write(1, f"{time.time():.4f}\\n".encode())

async def main():
    shards = dict(pair.split("=", 1) for pair in sys.argv[1:])
    config = WorkerConfig(monitor=False)
    async with AsyncClient(shards=shards) as client, Worker(client, "q", handler, config) as worker:
        while not worker.ready:
            await asyncio.sleep(0.01)
        os.write(1, b"ready\\n")
        await asyncio.Event().wait()

asyncio.run(main())
"""


# 1. cost


def cost(options: Options) -> list[Figure]:
    """Redis CPU of claims and of claims with their acks."""
    jobs = options.scaled(20_000, 2_000)
    plain, limited = QueueConfig(), QueueConfig(rate="1000000/s", max_running=1_000_000)
    with serving("valkey") as server, apart(server), Client(server.url) as client:
        meter = CpuMeter(server)
        client.create_queue("plain", plain)
        client.create_queue("limited", limited)

        def claimed(queue: str) -> float:
            client.enqueue_many(queue, [BODY] * jobs)
            held: list[Job] = []
            before_us = meter.used_us()
            while len(held) < jobs:
                held += client.dequeue(queue, CLAIM)
            used_us = meter.used_us() - before_us
            for at in range(0, jobs, CLAIM):
                client.ack(succeeded=held[at : at + CLAIM])
            return used_us / jobs

        def acked(queue: str) -> float:
            client.enqueue_many(queue, [BODY] * jobs)
            done, before_us = 0, meter.used_us()
            while done < jobs:
                held = client.dequeue(queue, CLAIM)
                client.ack(succeeded=held)
                done += len(held)
            return (meter.used_us() - before_us) / jobs

        client.enqueue_many("limited", [BODY])  # the account fills up
        time.sleep(1.1)
        client.ack(succeeded=client.dequeue("limited", 1))
        found = interleave(
            {
                "claim plain": lambda: claimed("plain"),
                "claim limited": lambda: claimed("limited"),
                "ack plain": lambda: acked("plain"),
                "ack limited": lambda: acked("limited"),
            },
            options.rounds,
        )
        meter.close()
    notes = {
        name: f"{per_job(found[f'{name} limited'])} a job, {per_job(found[f'{name} plain'])} without limits"
        for name in ("claim", "ack")
    }
    return [
        figure(
            "1 Redis CPU, claims of 50, rate and max_running",
            "valkey",
            ratios(found["claim limited"], found["claim plain"]),
            1.1,
            None,
            note=notes["claim"],
        ),
        figure(
            "1 … with their acks",
            "valkey",
            ratios(found["ack limited"], found["ack plain"]),
            None,
            None,
            note=notes["ack"],
        ),
    ]


# 2. resting


def resting(options: Options) -> list[Figure]:
    """Scripts a second, of all kinds."""
    with serving("valkey") as server:
        calls, jobs = asyncio.run(_rest(server, options.scaled(20, 4)))
    return [
        figure(
            "2 calls a second, five workers at 1/s", "valkey", [calls], 10, None, unit="/s", note=f"{jobs:.2f} jobs/s"
        )
    ]


async def _rest(server: Server, seconds: float) -> tuple[float, float]:
    started = 0

    async def handler(_job: object) -> None:
        nonlocal started
        started += 1

    async with AsyncClient(server.url) as client:
        await client.create_queue("q", QueueConfig(rate="1/s"))
        await client.enqueue_many("q", [BODY] * RESTING_JOBS)
        clients = [AsyncClient(server.url) for _ in range(PROCESSES)]
        workers = [Worker(each, "q", handler, WorkerConfig(monitor=False)) for each in clients]
        for worker in workers:
            await worker.start()
        await asyncio.sleep(2 * PROCESSES)
        before, jobs_before = _calls(server), started
        await asyncio.sleep(seconds)
        calls, jobs = _calls(server) - before, started - jobs_before
        for worker, own in zip(workers, clients, strict=True):
            await worker.stop()
            await own.close()
    return calls / seconds, jobs / seconds


def _calls(server: Server) -> int:
    return int(server.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


# 3. exactness


@dataclass
class Starts:
    """Times at which jobs started, of all processes, and the time at which the account began."""

    times_s: list[float]
    began_s: float

    def most_over(self, changes: Sequence[tuple[float, int]], burst: int) -> float:
        """How far the starts were above rate x time + burst at the worst moment; negative: below it."""
        ordered = sorted(self.times_s)
        return max(number - allowed(at_s - self.began_s, changes) - burst for number, at_s in enumerate(ordered, 1))


def allowed(elapsed_s: float, changes: Sequence[tuple[float, int]]) -> float:
    """The jobs that the rate gave since its beginning."""
    ends = [*[since_s for since_s, _ in changes[1:]], float("inf")]
    return sum(
        max(0.0, min(elapsed_s, end_s) - since_s) * rate for (since_s, rate), end_s in zip(changes, ends, strict=True)
    )


def exact(options: Options) -> list[Figure]:
    """Even and uneven, with a kill every 2 s; then with changes of the limit."""
    figures = []
    for name, uneven, changes in (
        ("even", False, ((0.0, RATE),)),
        ("uneven", True, ((0.0, RATE),)),
        ("limit changed", False, CHANGES),
    ):
        shares, overs = [], []
        for _ in range(options.scaled(3, 1)):
            starts = measure_starts(uneven, changes)
            promised = allowed(SECONDS, changes)
            shares.append(min(1.0, sum(at_s <= starts.began_s + SECONDS for at_s in starts.times_s) / promised))
            overs.append(starts.most_over(changes, BURST))
        over = f"at the worst moment {max(overs):+.1f} jobs beside rate x time + {BURST}"
        figures += [
            Figure(
                f"3 jobs after 10 s of what the rate gives, {name}",
                "valkey",
                max(shares),
                0.97,
                None,
                at_least=True,
                note=over,
            ),
            Figure(f"3 jobs above the limit at the worst moment, {name}", "valkey", max(overs), 0.0, None, unit="jobs"),
        ]
    return figures


def measure_starts(uneven: bool, changes: Sequence[tuple[float, int]]) -> Starts:
    """Five processes on three shards. uneven: nearly all jobs are on one shard."""
    with _shards() as shards, Client(shards=shards) as client:
        client.create_queue("q", QueueConfig(rate=0, burst=BURST))
        client.enqueue_many("q", [BODY] * (50 if uneven else 4_000))
        if uneven:
            with Client(shards={name: url for name, url in shards.items() if name == "2"}) as one:
                one.enqueue_many("q", [BODY] * 4_000)
        processes = [_start(shards) for _ in range(PROCESSES)]
        assert all(_is_ready(process) for process in processes)
        began_s = time.time()
        client.configure_queue("q", rate=f"{changes[0][1]}/s")
        spare = list(processes)
        steps = sorted(
            [(at_s, f"{rate}/s") for at_s, rate in changes[1:]] + [(KILL_EVERY_S * n, "") for n in range(1, 5)]
        )
        for at_s, rate in steps:
            time.sleep(max(0.0, began_s + at_s - time.time()))
            if rate:
                client.configure_queue("q", rate=rate)
            else:
                spare.pop(0).kill()
                processes.append(_start(shards))
                spare.append(processes[-1])
        time.sleep(max(0.0, began_s + SECONDS - time.time()))
        for process in processes:
            process.kill()
        lines = [line for each in processes for line in each.communicate()[0].splitlines() if line != "ready"]
    return Starts([float(line) for line in lines], began_s)


@contextmanager
def _shards() -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="pinlater-bench-")))
        servers = {str(name): Server("valkey", directory / str(name)) for name in range(1, SHARDS + 1)}
        for server in servers.values():
            stack.enter_context(server)
        yield {name: server.url for name, server in servers.items()}


def _is_ready(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "ready\n"


def _start(shards: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, *(f"{name}={url}" for name, url in shards.items())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


MEASURES = {1: cost, 2: resting, 3: exact}


def main() -> int:
    """Exit code 1 if a bar is not met."""
    parser = argparse.ArgumentParser(description="The figures of limits.")
    parser.add_argument("--only", default="1,2,3", metavar="1,2,…")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer jobs and seconds, to check that it works")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    options = Options(given.rounds, given.quick)
    figures = [each for number in given.only.split(",") for each in MEASURES[int(number)](options)]
    print_table(figures)
    if given.json:
        write_json(given.json, figures, options, {})
    return int(any(each.is_met is False for each in figures))


if __name__ == "__main__":
    sys.exit(main())
