"""A call of the asyncio client is cancelled at any stage: no other call ever gets its reply, and nothing is left.

Promises: cancelled while it connects, waits for a reply that then comes, and after every number of loop turns.
Risks: which stage a number of turns hits depends on the machine; many numbers hit them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pinlater import AsyncClient, Client
from tests.support.cut_cases import direct, make, proxy
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.servers import Server

__all__ = ["direct", "make", "proxy"]  # fixtures

TURNS = range(60)  # a call takes 5 to 30 turns of the loop


@asynccontextmanager
async def client_with_jobs(url: str, count: int) -> AsyncIterator[tuple[AsyncClient, dict[str, bytes]]]:
    async with AsyncClient(url) as client:
        await client.create_queue("q")
        bodies = [b"body %d" % number for number in range(count)]
        yield client, dict(zip(await client.enqueue_many("q", bodies), bodies, strict=True))


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def forget_connections(client: AsyncClient) -> None:
    free, client.driver.free = client.driver.free, {}
    for connection in [connection for connections in free.values() for connection in connections]:
        connection.close()


async def check_every_answer(client: AsyncClient, bodies: dict[str, bytes]) -> None:
    """Each job is asked for by a call of its own, side by side: an answer to another call would show."""
    answers = await asyncio.gather(*[client.lookup([descriptor], with_body=True) for descriptor in bodies])
    for answer, (descriptor, body) in zip(answers, bodies.items(), strict=True):
        assert [(info.descriptor, info.body) for info in answer.values()] == [(descriptor, body)]


def calls_to_cancel(client: AsyncClient, bodies: dict[str, bytes]) -> list[Coroutine[Any, Any, Any]]:
    return [
        client.lookup(list(bodies)),
        client.count("q"),
        client.enqueue("q", b"cancelled"),
        client.enqueue_many("q", [b"cancelled"]),
        client.dequeue("q", 1),
        client.dequeue("other", 1, wait=5),
    ]


@pytest.mark.parametrize("fresh", [False, True], ids=["connected", "connecting"])
def test_a_cancelled_call_gives_no_other_call_its_reply(server: Server, fresh: bool) -> None:
    async def run() -> None:
        async with client_with_jobs(server.url, 5) as (client, bodies):
            await client.create_queue("other")
            for turns in TURNS:
                if fresh:
                    forget_connections(client)
                tasks = [asyncio.create_task(call) for call in calls_to_cancel(client, bodies)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in tasks:
                    await cancel(task)
                await check_every_answer(client, bodies)

    asyncio.run(run())


@pytest.mark.parametrize("verb", range(5))
def test_a_reply_that_comes_after_the_cancelling_is_read_by_nobody(server: Server, proxy: CutProxy, verb: int) -> None:
    async def run() -> None:
        async with client_with_jobs(proxy.url, 5) as (client, bodies):
            calls = calls_to_cancel(client, bodies)
            for number, call in enumerate(calls):
                if number != verb:
                    call.close()
            proxy.arm(Cut.DELAY)
            task = asyncio.create_task(calls[verb])
            await asyncio.to_thread(proxy.wait_cut)
            await cancel(task)
            proxy.release()
            await check_every_answer(client, bodies)

    asyncio.run(run())


def test_cancelling_one_of_several_that_left_together_cancels_nothing(server: Server, proxy: CutProxy) -> None:
    async def run() -> None:
        async with client_with_jobs(proxy.url, 1) as (client, bodies):
            proxy.arm(Cut.DELAY)
            tasks = [asyncio.create_task(client.enqueue("q", b"%d" % number)) for number in range(5)]
            await asyncio.to_thread(proxy.wait_cut)
            await cancel(tasks[2])
            proxy.release()
            others = await asyncio.gather(*tasks[:2], *tasks[3:])
            found = await client.lookup(others, with_body=True)
            assert [found[descriptor].body for descriptor in others] == [b"0", b"1", b"3", b"4"]
            assert (await client.count("q")).pending == 6
            await check_every_answer(client, bodies)

    asyncio.run(run())


def test_lanes_of_cancelled_calls_go_on(server: Server, proxy: CutProxy, direct: Client) -> None:
    """Otherwise 65,536 of them end the client."""

    async def run() -> None:
        async with client_with_jobs(proxy.url, 1) as (client, _):
            for number in range(1, 11):
                proxy.arm(Cut.DELAY)
                task = asyncio.create_task(client.enqueue_many("q", [b"body"]))
                await asyncio.to_thread(proxy.wait_cut, cuts=number)
                await cancel(task)
                proxy.release()
            await client.enqueue_many("q", [b"last"])

    asyncio.run(run())
    assert len({seen.lane for seen in proxy.scripts if seen.lane}) <= 2
    assert direct.count("q").pending == 12
