"""What a worker costs: CPU a job while busy; time to start a job, and round trips, while idle.

Promises that workers run in their own processes (worker_process.py), in turns with what they are compared with: the
gather runs in the same process before and after, the PUBLISH half a tick after each job. Risks: a busy machine
lengthens p99 of both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benches.support import BODY, Figure, Native, Options, figure, per_job, ratios, serving
from benches.worker_process import STAMP
from pinlater import Client
from pinlater.store.keys import queue_key
from pinlater.store.scripts import load_scripts
from tests.support.servers import Kind, Server, wait_until

ROOT = Path(__file__).resolve().parents[1]
QUEUE, CHANNEL, MARKER = "bench", "bench:messages", "bench-end"
#: A job every 10 ms, and a PUBLISH in the middle between two.
TICK_S = 0.01
#: Samples dropped at the start of a run: connections, scripts and caches are cold.
COLD = 50
#: Processes that 100 idle workers share.
PROCESSES = 4
#: What a monitor sends is not part of the figure.
MONITOR_VERBS = ("expire", "collect")


def drain(kind: Kind, options: Options) -> list[Figure]:
    """Figure 7: one process, no-op async handlers, concurrency 128, monitor on."""
    count = options.scaled(100_000, 20_000)
    found: list[dict[str, float]] = []
    with serving(kind) as server, Client(server.url, timeout_s=60) as client:
        client.create_queue(QUEUE)
        for _ in range(options.rounds):
            for _ in range(count // 1000):
                client.enqueue_many(QUEUE, [BODY] * 1000)
            with process("drain", server, QUEUE, count) as draining:
                found.append(result(draining))
    jobs, tasks = [each["job_us"] for each in found], [each["task_us"] for each in found]
    note = f"a job {per_job(jobs)}, a gathered task {per_job(tasks)}"
    return [figure("7 worker CPU a no-op job / a gathered task", kind, ratios(jobs, tasks), 2.5, 1.5, note=note)]


def latency(kind: Kind, options: Options) -> list[Figure]:
    """Figure 8: from before an enqueue to the start of its handler, over the time of a PUBLISH to a subscriber.

    Producer, workers and subscriber are separate processes. The bodies carry CLOCK_MONOTONIC stamps.
    """
    return [each for workers in (1, 100) for each in _latency(kind, options, workers)]


def _latency(kind: Kind, options: Options, workers: int) -> list[Figure]:
    a_round = options.scaled(500, 150)
    with serving(kind) as server:
        jobs, messages = _stamped(server, workers, COLD + a_round * options.rounds)
    jobs, messages = jobs[COLD:], messages[COLD:]
    cuts = range(0, a_round * options.rounds, a_round)
    figures = []
    for percent, bar in ((50, 4), (99, 8)):
        ours = [_percentile(jobs[cut : cut + a_round], percent) for cut in cuts]
        publish = [_percentile(messages[cut : cut + a_round], percent) for cut in cuts]
        name = f"8 enqueue -> handler, {workers} idle worker{'s' * (workers > 1)}, p{percent}"
        note = f"ours {per_job(ours)}, PUBLISH {per_job(publish)}"
        figures.append(figure(name, kind, ratios(ours, publish), bar, 2.5, note=note))
    return figures


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _stamped(server: Server, workers: int, count: int) -> tuple[list[float], list[float]]:
    """µs of each job and of each PUBLISH, in order."""
    processes = min(workers, PROCESSES)
    with Client(server.url) as client:
        client.create_queue(QUEUE)
        shard = next(iter(client.session.shards))
        native = Native(server)
        waiting = queue_key(QUEUE, shard, "waiters")
        with _processes("stamp", server, QUEUE, workers // processes, processes) as stamping:
            wait_until(lambda: native.call("ZCARD", waiting) == workers, f"{workers} waiting workers")
            with process("subscribe", server, CHANNEL, count) as subscriber:
                wait_until(lambda: native.call("PUBSUB", "NUMSUB", CHANNEL)[1] == 1, "a subscriber")
                _send_all(client, native, count)
                messages: list[float] = result(subscriber)
            wait_until(lambda: client.count(QUEUE).pending == client.count(QUEUE).in_progress == 0, "no job left")
            stamped = sorted(tuple(each) for stamper in stamping for each in result(stamper))
            jobs: list[float] = [us for _, us in stamped]
        native.close()
    assert len(jobs) == len(messages) == count, (len(jobs), len(messages), count)
    return jobs, messages


def _send_all(client: Client, native: Native, count: int) -> None:
    next_s = time.monotonic()
    for _ in range(count):
        next_s += TICK_S
        _sleep_until(next_s - TICK_S / 2)
        client.enqueue(QUEUE, STAMP.pack(time.monotonic_ns()).ljust(len(BODY)))
        _sleep_until(next_s)
        native.call("PUBLISH", CHANNEL, STAMP.pack(time.monotonic_ns()).ljust(len(BODY)))


def _sleep_until(when_s: float) -> None:
    time.sleep(max(0.0, when_s - time.monotonic()))


def idle(kind: Kind, options: Options) -> list[Figure]:
    """Figure 9: what an idle worker sends, as MONITOR of the server shows it, without the calls of its monitor."""
    seconds = options.scaled(120, 30)
    with serving(kind) as server, Client(server.url) as client:
        client.create_queue(QUEUE)
        waiting = queue_key(QUEUE, next(iter(client.session.shards)), "waiters")
        native = Native(server)
        with process("idle", server, QUEUE, 1) as idling:
            wait_until(lambda: native.call("ZCARD", waiting) == 1, "a waiting worker")
            sent = _watch(server, native, seconds)
            result(idling)
        native.close()
    own = sum(count for verb, count in sent.items() if verb not in MONITOR_VERBS)
    note = f"{seconds} s: " + ", ".join(f"{verb} {count}" for verb, count in sorted(sent.items()))
    return [
        Figure("9 round trips of an idle worker a queue-shard", kind, own / seconds, 0.15, 0.1, unit="/s", note=note)
    ]


def _watch(server: Server, native: Native, seconds: float) -> Counter[str]:
    """The commands that reach the server in `seconds`, by script or by name, without those that scripts call."""
    verbs = {script.sha.decode(): verb for verb, script in load_scripts().items()}
    sent: Counter[str] = Counter()
    with server.client(socket_timeout=None) as client, client.monitor() as feed:
        threading.Timer(seconds, lambda: native.call("ECHO", MARKER)).start()
        while MARKER not in (seen := feed.next_command())["command"]:
            if seen["client_type"] != "lua":
                words = seen["command"].split(" ", 2)
                sent[verbs.get(words[1], words[1]) if words[0].upper() == "EVALSHA" else words[0]] += 1
    return sent


@contextmanager
def process(
    role: str, server: Server, name: str, *numbers: int, script: str = "worker_process.py"
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a role of the script. The end of the block kills it."""
    command = [sys.executable, str(ROOT / "benches" / script), role, server.url, name, *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def _processes(role: str, server: Server, name: str, each: int, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    if count == 0:
        yield []
        return
    with process(role, server, name, each) as first, _processes(role, server, name, each, count - 1) as others:
        yield [first, *others]


def result(ended: subprocess.Popen[bytes]) -> Any:
    """Ends the process by closing its stdin. Returns its JSON line."""
    output, _ = ended.communicate()
    assert ended.returncode == 0, f"{ended.args!r} ended with {ended.returncode}"
    return json.loads(output)
