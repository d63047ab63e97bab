"""The runner of pings: it pings by itself, at a fixed rate, follows the shards of its client, and ends.

Promises: clients of the service wait for a silent Redis no longer than until the first failed ping.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

import pytest

from pinlater import AsyncClient, InvalidArgument
from pinlater.model.errors import ShardUnhealthy
from pinlater.operations.health import HealthRules
from pinlater.server.health import HealthChecks
from tests.conftest import FreshServer
from tests.support.servers import Server, wait_until
from tests.support.service_calls import Caller
from tests.support.thrift_clients import PEERS
from tests.support.thrift_server import ThriftServer

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


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock a test moves on."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


@pytest.mark.parametrize(("ping_s", "expected_s"), [(500, 600), (5_000, 5_000)])
def test_pings_start_at_a_fixed_rate_however_long_they_take(server: Server, ping_s: int, expected_s: int) -> None:
    loop, started_s = JumpingLoop(), list[float]()

    class Slow(HealthChecks):
        async def ping_all(self) -> None:
            started_s.append(loop.time())
            loop.ahead_s += ping_s
            if len(started_s) == 3:
                done.set()
            if len(started_s) < 3 and ping_s < 600:
                loop.call_soon(jump)

    def jump() -> None:
        """The clock stands just before the next ping."""
        loop.ahead_s += 99.99

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            checks = Slow(client, interval_s=600)
            checks.start()
            await done.wait()
            await checks.stop()

    done = asyncio.Event()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    for before_s, after_s in itertools.pairwise(started_s):
        # from the end of a ping it would be 1,100 and 5,600; a loop may run a timer a little early
        assert expected_s - 1 < after_s - before_s < expected_s + 400


def scripts_of(store: Server) -> int:
    """How many scripts a Redis has run. One that was paused has run by now what came meanwhile."""
    return sum(each["calls"] for name, each in store.info("commandstats").items() if name.startswith("cmdstat_eval"))


def test_after_the_first_failed_ping_no_enqueue_and_no_dequeue_waits_for_a_silent_redis(
    server: Server, fresh_server: FreshServer
) -> None:
    silent = fresh_server(aof_always=True)
    with ThriftServer({"1": server.url, "2": silent.url}) as running:
        checks = HealthChecks(running.client)
        wire = Caller(PEERS["thriftpy2"](running.port))
        wire.create("q")

        def shards(jobs: Iterable[str]) -> set[str]:
            return {job.split(":")[1] for job in jobs}

        def enqueued() -> set[str]:
            return shards([job for _ in range(40) for job in wire.enqueue("q", b"")])

        running.run(checks.ping_all())
        assert enqueued() == {"s1", "s2"}
        assert shards(wire.dequeue("q", 60)) == {"s1", "s2"}
        before = scripts_of(silent)
        silent.pause()
        try:
            running.run(checks.ping_all())
            assert checks.states == {"1": True, "2": True}
            assert enqueued() == {"s1"}
            for _ in range(10):
                assert shards(wire.dequeue("q", 3)) == {"s1"}
        finally:
            silent.resume()
        assert scripts_of(silent) == before
        running.run(checks.ping_all())
        assert enqueued() == {"s1", "s2"}
        assert "s2" in shards(wire.dequeue("q", 1_000))
        wire.peer.close()
