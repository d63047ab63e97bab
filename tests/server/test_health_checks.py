"""The runner of pings: it pings by itself, follows the shards of its client, and ends."""

from __future__ import annotations

import asyncio

import pytest

from pinlater import AsyncClient, InvalidArgument
from pinlater.model.errors import ShardUnhealthy
from pinlater.operations.health import HealthRules
from pinlater.server.health import HealthChecks
from tests.conftest import FreshServer
from tests.support.servers import Server, wait_until

RULES = HealthRules(failures=2, successes=3)


async def until(checks: HealthChecks, states: dict[str, bool]) -> None:
    await asyncio.to_thread(wait_until, lambda: checks.states == states, str(states))


def test_a_server_that_ends_and_comes_back_is_noticed(server: Server, fresh_server: FreshServer) -> None:
    away = fresh_server(aof_always=True)

    async def run() -> None:
        async with AsyncClient(shards={"1": server.url, "2": away.url, "3": away.url}) as client:
            await client.create_queue("q")
            checks = HealthChecks(client, RULES, interval_s=0.01)
            assert checks.states == {"1": True, "2": True, "3": True}
            checks.start()
            away.stop()
            await until(checks, {"1": True, "2": False, "3": False})
            with pytest.raises(ShardUnhealthy, match=r"^shard 2, 3 \(.*\) is unhealthy: it gets pings alone"):
                await client.count("q")
            await client.change_shards({"1": server.url, "3": away.url})
            await until(checks, {"1": True, "3": False})
            away.start()
            await until(checks, {"1": True, "3": True})
            assert (await client.count("q")).pending == 0
            await checks.stop()
            await checks.stop()

    asyncio.run(run())


def test_an_interval_is_seconds(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client:
            with pytest.raises(InvalidArgument, match="interval_s: expected seconds"):
                HealthChecks(client, interval_s=0)

    asyncio.run(run())
