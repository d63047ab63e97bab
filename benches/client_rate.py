"""Jobs a second that the clients enqueue, compared with LPUSH through redis-py.

Promises the same body, server, event loop (uvloop) and parser (hiredis) on both sides, open connections, and turns
within one process. Risks: client and server share the machine's cores, so the ratio is a little lower with one core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import redis
import redis.asyncio
import uvloop

from benches.support import BODY, Figure, Options, figure, interleave, per_job, ratios, serving
from pinlater import AsyncClient, Client
from tests.support.servers import Kind, Server

TASKS = 50
HUNDRED = 100
LIST = "bench:list"


def closed_loop(kind: Kind, options: Options) -> list[Figure]:
    """Figure 5: 50 tasks; each awaits its enqueue before the next one; 2 s a round."""
    seconds = options.scaled(2, 1)
    with serving(kind) as server:
        ours, theirs = uvloop.run(_closed_loop(server, seconds, options.rounds))
    note = f"ours {per_job(ours, 'jobs/s')}, LPUSH {per_job(theirs, '/s')}"
    name = f"5 enqueue rate, {TASKS} tasks in a closed loop"
    return [figure(name, kind, ratios(ours, theirs), 5, 10, at_least=True, note=note)]


async def _closed_loop(server: Server, seconds: float, rounds: int) -> tuple[list[float], list[float]]:
    ours, theirs = list[float](), list[float]()
    plain = redis.asyncio.Redis(host="127.0.0.1", port=server.port)
    async with AsyncClient(server.url) as client:
        await client.create_queue("loop")
        sides: list[tuple[Callable[[], Awaitable[object]], list[float]]] = [
            (lambda: client.enqueue("loop", BODY), ours),
            (lambda: plain.lpush(LIST, BODY), theirs),
        ]
        for call, _ in sides:
            await _rate(call, 0.2)
        for number in range(rounds):
            for call, found in sides[:: -1 if number % 2 else 1]:
                found.append(await _rate(call, seconds))
            await plain.delete(LIST)
            await client.purge("loop")
    await plain.aclose()
    return ours, theirs


async def _rate(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Calls a second, by TASKS tasks."""
    started_s = time.perf_counter()
    until_s, done = started_s + seconds, 0

    async def loop() -> None:
        nonlocal done
        while time.perf_counter() < until_s:
            await call()
            done += 1

    await asyncio.gather(*(loop() for _ in range(TASKS)))
    return done / (time.perf_counter() - started_s)


def hundreds(kind: Kind, options: Options) -> list[Figure]:
    """Figure 6: enqueue_many of 100, compared with a redis-py pipeline of 100 LPUSH."""
    turns = 10
    calls = options.scaled(300, 60) // turns
    bodies = [BODY] * HUNDRED
    with (
        serving(kind) as server,
        Client(server.url) as client,
        redis.Redis(host="127.0.0.1", port=server.port) as plain,
    ):
        client.create_queue("hundreds")

        def push() -> object:
            with plain.pipeline(transaction=False) as pipeline:
                for body in bodies:
                    pipeline.lpush(LIST, body)
                return pipeline.execute()

        def measure(call: Callable[[], object], clear: Callable[[], object]) -> float:
            started_s = time.perf_counter()
            for _ in range(calls):
                call()
            rate = calls * HUNDRED / (time.perf_counter() - started_s)
            clear()
            return rate

        sides: dict[str, Callable[[], float]] = {
            "ours": lambda: measure(lambda: client.enqueue_many("hundreds", bodies), lambda: client.purge("hundreds")),
            "theirs": lambda: measure(push, lambda: plain.delete(LIST)),
        }
        for side in sides.values():
            side()
        found = interleave(sides, options.rounds, turns)
    note = f"ours {per_job(found['ours'], 'jobs/s')}, LPUSH {per_job(found['theirs'], '/s')}"
    rate = ratios(found["ours"], found["theirs"])
    return [figure("6 enqueue_many of 100 / pipeline of 100 LPUSH", kind, rate, 2, 4, at_least=True, note=note)]
