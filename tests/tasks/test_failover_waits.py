"""Handles that wait while a failover moves their server's address, and their connections still lead to the old primary.

Promises: a wait ends by its message, and by its own look where the old primary hears of nothing any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pinlater import PinLater
from pinlater.operations import results
from pinlater.running.app_worker import worker_of
from tests.support.failover import MakePair, Pair, make_pair
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server

__all__ = ["make_pair"]  # a fixture

HOUR_S = 3600.0
WAIT_S = 60.0


def waits(server: Server) -> int:
    return len(server.call("PUBSUB", "CHANNELS", "pl:{*}:result:*"))


@asynccontextmanager
async def waiting(pair: Pair) -> AsyncIterator[list[Any]]:
    """Two handles of one app wait, one in a thread and one on the loop; another app enqueued their jobs. Yields the
    waits' results.
    """
    async with PinLater(pair.url) as app, PinLater(pair.url) as other:

        def plus(a: int, b: int) -> int:
            return a + b

        for one in (app, other):
            one.task(result_ttl=HOUR_S, name="plus")(plus)
        handles = [await app.tasks["plus"].aenqueue(1, number) for number in range(2)]
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(handles[0].result(WAIT_S)))
        thread.start()
        on_the_loop = asyncio.create_task(handles[1].aresult(WAIT_S))
        await until(lambda: waits(pair.primary) == 2, "two waits")
        yield found
        async with worker_of(other) as worker:
            await asyncio.wait_for(worker.run(burst=True), WAIT_S)
        found.append(await on_the_loop)
        await asyncio.to_thread(thread.join)
        await asyncio.to_thread(app.close)  # the blocking client; the end of the block closes the loop's


@on_loop
async def test_waits_end_by_their_messages(make_pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SAFETY_S", HOUR_S)
    pair = make_pair()
    async with waiting(pair) as found:
        await asyncio.to_thread(pair.fail_over)
    assert sorted(found) == [1, 2]


@on_loop
async def test_waits_at_a_replica_that_follows_nobody(make_pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SAFETY_S", 0.2)
    pair = make_pair()
    async with waiting(pair) as found:
        await asyncio.to_thread(pair.fail_over)
        await asyncio.to_thread(pair.stay_behind)
    assert sorted(found) == [1, 2]
    await asyncio.to_thread(pair.wait_left)
