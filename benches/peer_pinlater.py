"""The adapter with which the peers' compare.py measures PinLater.

Promises what their child.py asks of a peer: sync calls one by one and in bulk, 50 async calls at once. The tasks are as
users write them, run by `pinlater run` with leases, retries, monitor and the default codec.
"""

from __future__ import annotations

import os
import sys

import probe  # the peers' folder has it

import pinlater

DISTS = ["pinlater", "redis", "hiredis", "uvloop", "msgpack"]
MODES = ["seq", "conc50", "bulk"]
OPTIONS = {"tuned": ["--concurrency", "128"], "defaults": []}
WORKERS = list(OPTIONS)

app = pinlater.PinLater(os.environ.get("PEERS_REDIS", "redis://127.0.0.1:6390"))


@app.task(name="noop")
async def noop(body: str) -> None:
    probe.hit()


@app.task(name="stamp")
async def stamp(body: str) -> None:
    probe.stamp(body)


TASKS = {"noop": noop, "stamp": stamp}


class SyncProducer:
    def open(self) -> None:
        pass

    def close(self) -> None:
        app.close()

    def one(self, kind: str, body: str) -> None:
        TASKS[kind].enqueue(body)

    def many(self, bodies: list[str]) -> None:
        noop.enqueue_many([(body,) for body in bodies])


class AsyncProducer:
    async def open(self) -> None:
        pass

    async def close(self) -> None:
        await app.aclose()

    async def one(self, kind: str, body: str) -> None:
        await TASKS[kind].aenqueue(body)


Producer = AsyncProducer if sys.argv[2:4] == ["produce", "conc50"] else SyncProducer


def work(variant: str) -> None:
    command = [sys.executable, "-m", "pinlater", "run", "peer_pinlater:app", *OPTIONS[variant]]
    os.execv(sys.executable, command)  # noqa: S606
