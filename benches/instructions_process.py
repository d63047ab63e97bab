"""The processes for benches/instructions.py: it counts their instructions, or those of their server.

    python benches/instructions_process.py calls|enqueue|worker|task URL

Each prints `begin`, a name and a number of jobs, then `end`, and waits for an answer each time. Promises to use public
names only, so that it also runs with other checkouts of the package.
"""

from __future__ import annotations

import asyncio
import gc
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from pinlater import AsyncClient, Client, Job, PinLater, QueueConfig, Worker, WorkerConfig

QUEUE, LIMITED = "bench", "bench_limited"
BODY = b"x" * 100
BATCH = 50
CONCURRENCY = 128
#: Jobs a round. The first round warms up and is not counted. A worker's round is 46 full claims.
#: Calls of one job last for several cycles of Lua's garbage collector. With 200 of them a round had more or less of a
#: cycle, and the same tree differed from itself by 3 %.
ONE_BY_ONE, IN_BATCHES, ENQUEUED, DRAINED = 1_000, 4_000, 400, 46 * CONCURRENCY
ROUNDS = 4
#: No prefetch: its size depends on the clock.
CONFIG = WorkerConfig(concurrency=CONCURRENCY, prefetch=0)
URL_VARIABLE = "PINLATER_BENCH_URL"

app = PinLater(os.environ.get(URL_VARIABLE))


class Countdown:
    """Counts the jobs that a worker runs, in rounds."""

    def __init__(self, name: str) -> None:
        self._name, self._seen = name, 0
        self.over = asyncio.Event()

    def one(self) -> None:
        """Counts one job."""
        self._seen += 1
        if self._seen % DRAINED == 0 and not self.over.is_set():
            self._next_round(self._seen // DRAINED)

    def _next_round(self, number: int) -> None:
        if number > 1:
            _say("end")
        gc.collect()
        if number < ROUNDS:
            _say("begin", self._name, str(DRAINED))
        else:
            self.over.set()


tasks_left = Countdown("worker: a no-op task, drained")


@app.task(name="bench.nothing", queue=QUEUE)
async def nothing(x: int, y: str) -> None:
    """A task without work: what remains is PinLater's cost."""
    tasks_left.one()


def calls(url: str) -> None:
    """The call of each script, with one job and in batches."""
    with Client(url, timeout_s=60) as client:
        client.create_queue(QUEUE)
        for number in range(ROUNDS):
            _singles(client, counted=number > 0)
            _batches(client, counted=number > 0)
        if "rate" in QueueConfig.__dataclass_fields__:  # a checkout from before limits has none
            _with_limits(client)


def _singles(client: Client, *, counted: bool) -> None:
    jobs = ONE_BY_ONE if counted else 0
    with _counting("enqueue, one a call", jobs):
        for _ in range(ONE_BY_ONE):
            client.enqueue(QUEUE, BODY)
    with _counting("claim, one a call", jobs):
        claimed = [client.dequeue(QUEUE, 1) for _ in range(ONE_BY_ONE)]
    with _counting("ack, one a call", jobs):
        _succeed(client, claimed)


def _batches(client: Client, *, counted: bool) -> None:
    jobs = IN_BATCHES if counted else 0
    with _counting("enqueue, 50 a call", jobs):
        _enqueue_batches(client)
    with _counting("claim, 50 a call", jobs):
        claimed = _claim_batches(client)
    with _counting("ack of 50 that fail", jobs):
        for each in claimed:
            assert not client.ack(failed=each)
    with _counting("claim of 50 that failed before", jobs):
        claimed = _claim_batches(client)
    with _counting("ack of 50 that failed before", jobs):
        _succeed(client, claimed)
    _enqueue_batches(client)
    claimed = _claim_batches(client)
    with _counting("ack, 50 a call", jobs):
        _succeed(client, claimed)


def _with_limits(client: Client) -> None:
    """Claims and acks of a queue whose limits never hold it back."""
    client.create_queue(LIMITED, QueueConfig(rate="1000000/s", max_running=1_000_000))
    for number in range(ROUNDS):
        jobs = IN_BATCHES if number > 0 else 0
        _enqueue_batches(client, LIMITED)
        while not client.count(LIMITED).in_progress:  # the account is empty at first
            claimed = [client.dequeue(LIMITED, BATCH)]
        _succeed(client, claimed)
        with _counting("claim, 50 a call, with limits", jobs):
            claimed = _claim_batches(client, LIMITED)
        with _counting("ack, 50 a call, with limits", jobs):
            _succeed(client, claimed)
        client.purge(LIMITED)


def _enqueue_batches(client: Client, queue: str = QUEUE) -> None:
    for _ in range(IN_BATCHES // BATCH + (queue == LIMITED)):
        client.enqueue_many(queue, [BODY] * BATCH)


def _claim_batches(client: Client, queue: str = QUEUE) -> list[list[Job]]:
    claimed = [client.dequeue(queue, BATCH) for _ in range(IN_BATCHES // BATCH)]
    assert all(len(jobs) == BATCH for jobs in claimed)
    return claimed


def _succeed(client: Client, claimed: list[list[Job]]) -> None:
    for jobs in claimed:
        assert not client.ack(succeeded=jobs)


def enqueue(url: str) -> None:
    """Client.enqueue with bytes."""
    with Client(url, timeout_s=60) as client:
        client.create_queue(QUEUE)
        for number in range(ROUNDS):
            with _counting("client: an enqueue", ENQUEUED if number else 0):
                for _ in range(ENQUEUED):
                    client.enqueue(QUEUE, BODY)


def worker(url: str) -> None:
    """A worker whose handler does nothing."""
    with Client(url, timeout_s=60) as client:
        client.create_queue(QUEUE)
        for _ in range((ROUNDS + 1) * DRAINED // 1000):
            client.enqueue_many(QUEUE, [BODY] * 1000)
    uvloop.run(_work(url))


async def _work(url: str) -> None:
    countdown = Countdown("worker: a no-op job, drained")

    async def handler(_: Job) -> None:
        countdown.one()

    async with (
        AsyncClient(url, timeout_s=60) as client,
        Worker(client, [QUEUE], handler, CONFIG),
    ):
        await countdown.over.wait()


def task(url: str) -> None:
    """`pinlater run` with a task that does nothing."""
    os.environ[URL_VARIABLE] = url
    with PinLater(url, timeout_s=60) as producer:
        for _ in range((ROUNDS + 1) * DRAINED // 1000):
            producer.by_name("bench.nothing").using(queue=QUEUE).enqueue_many([(1, "a")] * 1000)
    sys.argv = ["pinlater", "run", "instructions_process:app", "--burst", "--concurrency", str(CONCURRENCY)]
    runpy.run_module("pinlater", run_name="__main__")


@contextmanager
def _counting(name: str, jobs: int) -> Iterator[None]:
    """jobs: 0 for a round that only warms up."""
    gc.collect()
    if jobs:
        _say("begin", name, str(jobs))
    yield
    if jobs:
        _say("end")


def _say(*words: str) -> None:
    print(*words, sep="\t", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    role, address = sys.argv[1:]
    roles: dict[str, Callable[[str], Any]] = {"calls": calls, "enqueue": enqueue, "worker": worker, "task": task}
    roles[role](address)
