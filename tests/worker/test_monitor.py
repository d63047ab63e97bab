"""Monitors: what they expire and collect, and that many of them share the work.

Promises: shown on servers of each kind, by single looks where order matters. Risks: jumps of the clock are in
test_worker_clocks.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from pinlater import AsyncClient, Client, InvalidArgument, Job, NewJob, QueueConfig, State
from pinlater.model.clocks import boot_s
from pinlater.model.errors import NoHealthyShards, ShardUnhealthy
from pinlater.store.shards import QueueShard
from pinlater.worker import monitor as monitor_module
from pinlater.worker.monitor import Monitor
from pinlater.worker.worker import Worker, WorkerConfig
from tests.conftest import FreshServer
from tests.support.handlers_for_tests import on_loop, until
from tests.support.paths import ROOT
from tests.support.servers import Server, free_port, wait_until
from tests.support.wire import jump

TICK_S = 0.2
DEADLINE_S = 60.0


async def lapsed_claim(client: AsyncClient, server: Server, **job: Any) -> Job:
    """A job claimed by somebody who does not renew it, past its lease."""
    await client.create_queue("q", QueueConfig(lease_ms=100))
    await client.enqueue_many("q", [NewJob(b"", **job)])
    (held,) = await client.dequeue("q", 1)
    before_ms = server.time_ms()
    await until(lambda: server.time_ms() > before_ms + 100, "the lease to run out")
    return held


async def look(monitor: Monitor) -> float:
    """One look at everything, though it is not its turn."""
    for watch in monitor.watches.values():
        watch.next_look_s = 0.0
    return await monitor.run_once()


@pytest.mark.parametrize(("attempts", "state"), [(2, State.PENDING), (1, State.FAILED)])
@on_loop
async def test_the_first_look_expires_nothing_the_second_does(server: Server, attempts: int, state: State) -> None:
    async with AsyncClient(server.url) as client:
        job = (await lapsed_claim(client, server, attempts=attempts)).descriptor
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        assert 0 < await monitor.run_once() <= TICK_S
        assert (await client.lookup([job]))[job].state is State.IN_PROGRESS
        await look(monitor)
        info = (await client.lookup([job]))[job]
        assert (info.state, info.attempts_remaining, info.crashes) == (state, attempts - 1, 1)
        assert monitor.counts == {("q", "timeout_retry" if state is State.PENDING else "timeout_done"): 1}


@on_loop
async def test_a_job_that_fails_for_good_is_logged_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncClient(server.url) as client:
        job = (await lapsed_claim(client, server, attempts=1)).descriptor
        monitors = [Monitor(client, ["q"], tick_s=TICK_S) for _ in range(2)]
        for monitor in monitors * 2:
            await look(monitor)
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert errors == [f"job {job} failed for good: its worker died, or its lease ran out"]


@on_loop
async def test_jobs_whose_lease_was_removed_come_back_by_and_by(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        await client.create_queue("q")
        jobs = await client.enqueue_many("q", [NewJob(b"", priority=1 + i % 3) for i in range(6)])
        assert len(await client.dequeue("q", 6)) == 6
        server.call("DEL", "pl:{q/1}:leases", "pl:{q/1}:lease_jobs")
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        for looks in range(4):  # the first one ends nothing
            states = [info.state for info in (await client.lookup(jobs)).values()]
            assert states.count(State.PENDING) == max(0, 2 * (looks - 1))
            await look(monitor)
        assert (await client.count("q")).pending == 6


@on_loop
async def test_one_of_many_is_active_on_each_shard(server: Server) -> None:
    looks: Counter[tuple[Monitor, QueueShard]] = Counter()

    class Counted(Monitor):
        async def look(self, queue_shard: QueueShard) -> None:
            await super().look(queue_shard)
            looks[self, queue_shard] += 1

    shards = {"1": server.url, "2": server.url}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(shards=shards)) for _ in range(6)]
        await clients[0].create_queue("q", QueueConfig(lease_ms=100))
        await clients[0].enqueue_many("q", [NewJob(b"", attempts=5)] * 100)
        monitors = [Counted(client, ["q"], tick_s=TICK_S) for client in clients]
        for monitor in monitors:
            await monitor.start()
        held = await clients[0].dequeue("q", 100)
        assert held
        await until(lambda: max(looks.values(), default=0) >= 20, "20 looks")
        by_shard = {
            shard: [
                looks[m, queue_shard] for m in monitors for queue_shard in m.watches if queue_shard.shard.name == shard
            ]
            for shard in "12"
        }
        owners = {shard: server.call("HGET", f"pl:{{q/{shard}}}:meta", "monitor")[:8] for shard in "12"}
        for monitor in monitors:
            await monitor.stop()
        for shard, counts in by_shard.items():
            active = [
                m
                for m in monitors
                for queue_shard, watch in m.watches.items()
                if watch.active and queue_shard.shard.name == shard
            ]
            assert [m.id for m in active] == [owners[shard]]
            first, *others = sorted(counts, reverse=True)
            assert len(others) == 5
            assert max(others) < 0.8 * first  # they look every second tick or so
        infos = await clients[0].lookup([job.descriptor for job in held])
        assert {(info.state, info.crashes, info.attempts_remaining) for info in infos.values()} == {
            (State.PENDING, 1, 4)
        }


def test_another_takes_over_when_the_active_one_is_killed(server: Server) -> None:
    call = f"run_monitor(['q'], shards={{'1': {server.url!r}}}, tick_s={TICK_S})"
    command = [sys.executable, "-c", f"from pinlater.running.monitor_command import run_monitor; {call}"]

    def owner() -> bytes | None:
        found = server.call("HGET", "pl:{q/1}:meta", "monitor")
        return found[:8] if found else None

    with Client(server.url) as client:
        client.create_queue("q", QueueConfig(lease_ms=100))
        processes = [subprocess.Popen(command, cwd=ROOT)]
        try:
            wait_until(lambda: owner() is not None, "an active monitor", DEADLINE_S)
            first = owner()
            processes += [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
            job = client.enqueue("q", b"")
            assert len(client.dequeue("q", 1)) == 1
            processes[0].kill()
            wait_until(lambda: owner() != first, "another active monitor", DEADLINE_S)
            wait_until(lambda: client.lookup([job])[job].crashes == 1, "the redelivery", DEADLINE_S)
            for process in processes[1:]:
                process.terminate()
            assert [process.wait(DEADLINE_S) for process in processes[1:]] in ([0, 0], [0, -15], [-15, 0])
        finally:
            for process in processes:
                process.kill()
                process.wait()


@on_loop
async def test_collects_by_age_and_by_cap(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        await client.create_queue("q", QueueConfig(keep_succeeded=3_000))
        await client.enqueue_many("q", [NewJob(b"", attempts=1)] * 2_500)
        await client.ack(succeeded=await client.dequeue("q", 2_400), failed=[])
        await client.ack(succeeded=[], failed=await client.dequeue("q", 100))
        monitor = Monitor(client, ["q"])
        await collect(monitor)
        counts = await client.count("q")
        assert (counts.succeeded, counts.failed) == (2_400, 100)
        await client.configure_queue("q", keep_succeeded=50)
        await collect(monitor)
        counts = await client.count("q")
        assert (counts.succeeded, counts.failed) == (50, 100)
        await client.configure_queue("q", failed_ttl_s=0)
        await collect(monitor)
        counts = await client.count("q")
        assert (counts.succeeded, counts.failed) == (50, 0)
        await client.configure_queue("q", succeeded_ttl_s=0)
        await collect(monitor)
        assert (await client.count("q")).succeeded == 0
        assert server.call("EXISTS", "pl:{q/1}:jobs") == 0
        assert monitor.counts == {("q", "succeeded_gc"): 2_400, ("q", "failed_gc"): 100}


@on_loop
async def test_request_slots_of_short_sessions_go_as_fast_as_they_are_made(server: Server) -> None:
    """As many as 17 short sessions a second leave in ten minutes; one look removed 500 of them."""
    async with AsyncClient(server.url) as client:
        await client.create_queue("q")
        meta, raw = "pl:{q/1}:meta", server.client()
        long_ago = ((server.time_ms() - 2 * 3600_000) << 19).to_bytes(8, "big")
        for first in range(0, 10_000, 1_000):
            slots = [number.to_bytes(8, "big") + b"\0\0" for number in range(first, first + 1_000)]
            raw.hset(meta, mapping=dict.fromkeys(slots, b"\0\0\0\1" + long_ago))
        monitor = Monitor(client, ["q"])
        looks = 0
        while int(raw.hlen(meta)) > 100 and looks < 10:
            await collect(monitor)
            looks += 1
        assert looks < 10  # one, but a look ends after a second
        assert server.info("commandstats")["cmdstat_hscan"]["calls"] >= 10  # in small steps


async def collect(monitor: Monitor) -> None:
    for watch in monitor.watches.values():
        watch.next_collect_s = 0.0
    await look(monitor)


@on_loop
async def test_finds_queues_by_itself_and_forgets_those_that_go(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.worker.monitor.REDISCOVER_S", 0.0)
    async with AsyncClient(server.url) as client:
        monitor = Monitor(client, tick_s=TICK_S)
        assert await monitor.run_once() == pytest.approx(TICK_S)
        assert monitor.queues() == []
        await client.create_queue("q")
        await monitor.run_once()
        assert monitor.queues() == ["q"]
        assert [queue_shard.queue for queue_shard in monitor.watches] == ["q"]
        await client.delete_queue("q")
        # no spinning: a queue that is gone has no turn that is over
        assert await look(monitor) == pytest.approx(TICK_S)
        assert monitor.watches == {}


@on_loop
async def test_a_queue_that_is_missing_at_the_second_look_is_logged_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(server.url) as client:
        monitor = Monitor(client, ["late", "never"])
        await monitor.run_once()
        assert caplog.messages == []
        await client.create_queue("late")  # as a worker does that starts beside the monitor
        for _ in range(3):
            await monitor.run_once()
    assert caplog.messages == [
        "queue 'never': not found; create_queue makes it; looking for it again from time to time"
    ]


@on_loop
async def test_a_missing_queue_that_workers_create_is_not_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(server.url) as client:
        monitor = Monitor(client, ["created", "never"], must_exist=["never"])
        for _ in range(3):
            await monitor.run_once()
    assert [message.split(":")[0] for message in caplog.messages] == ["queue 'never'"]


@on_loop
async def test_after_an_outage_who_lives_renews_first(fresh_server: FreshServer) -> None:
    server = fresh_server(aof_always=True)
    async with AsyncClient(server.url) as client:
        job = (await lapsed_claim(client, server)).descriptor
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        await monitor.run_once()
        server.kill()
        assert 0 < await look(monitor) <= TICK_S
        server.start()
        await look(monitor)  # a first look again
        assert (await client.lookup([job]))[job].state is State.IN_PROGRESS
        await look(monitor)
        assert (await client.lookup([job]))[job].state is State.PENDING


@pytest.mark.real_server
@on_loop
async def test_a_server_that_stood_still_still_collects(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(monitor_module, "JUMP_MS", 200)
    async with AsyncClient(server.url) as client:
        await client.create_queue("q", QueueConfig(lease_ms=60_000, keep_succeeded=10, succeeded_ttl_s=0))
        await client.enqueue("q", b"")
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        await monitor.run_once()
        assert await client.ack(succeeded=await client.dequeue("q")) == []
        server.pause()
        looking = asyncio.create_task(collect(monitor))
        await asyncio.sleep(0.5)
        server.resume()
        await looking
        assert "its server stood still, or its clock jumped: nothing expires for one lease" in caplog.text
        assert (await client.count("q")).succeeded == 0
        await look(monitor)
        assert caplog.text.count("nothing expires") == 1
        assert "clock jumped by" not in caplog.text


@pytest.mark.real_server
@on_loop
async def test_a_server_that_stood_still_for_longer_than_a_look_is_named(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(server.url) as client:
        await client.create_queue("q", QueueConfig(lease_ms=60_000))
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        await monitor.run_once()
        server.pause()
        resumes = asyncio.create_task(asyncio.sleep(monitor_module.JUMP_MS / 1000 + 1))
        await look(monitor)
        assert not resumes.done()  # the look gave up
        await resumes
        server.resume()
        await look(monitor)
        assert "its server stood still, or its clock jumped: nothing expires for one lease" in caplog.text


@on_loop
async def test_an_unexpected_error_of_one_queue_shard_holds_up_no_other(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Monitor.look

    async def fails_at_one(self: Monitor, queue_shard: QueueShard) -> None:
        if (queue_shard.queue, queue_shard.shard.name) == ("a", "1"):
            raise RuntimeError("not foreseen")
        await real(self, queue_shard)

    monkeypatch.setattr(Monitor, "look", fails_at_one)
    async with AsyncClient(shards={"1": server.url, "2": server.url}) as client:
        for queue in "ab":
            await client.create_queue(queue)
        monitor = Monitor(client, ["a", "b"], tick_s=TICK_S)
        await monitor.run_once()
        active = {(one.queue, one.shard.name) for one, watch in monitor.watches.items() if watch.active}
    assert active == {("a", "2"), ("b", "1"), ("b", "2")}
    assert "RuntimeError: not foreseen" in caplog.text


@on_loop
async def test_a_machine_that_was_suspended_takes_no_clock_for_one_that_jumped(
    fresh_server: FreshServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Time in suspend goes on for CLOCK_BOOTTIME, not for CLOCK_MONOTONIC."""
    server = fresh_server(fake_clock=True)
    async with AsyncClient(server.url) as client:
        await client.create_queue("q")
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        await monitor.run_once()
        jump(server, 3600)
        monkeypatch.setattr(monitor_module, "boot_s", lambda: boot_s() + 3600)
        await look(monitor)
        assert "clock jumped by" not in caplog.text
        jump(server, 3600)
        await look(monitor)
        assert "its server's clock jumped by +36" in caplog.text
        assert server.call("HEXISTS", "pl:{q/1}:meta", "jumped")  # the same look says so to the server


@pytest.mark.real_server
@on_loop
async def test_an_answer_that_is_read_late_is_judged_by_what_it_says(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler keeps the loop while the answer of a look waits in the socket."""
    monkeypatch.setattr(monitor_module, "JUMP_MS", 200)
    async with AsyncClient(server.url) as client:
        job = (await lapsed_claim(client, server)).descriptor
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        await monitor.run_once()

        def calls() -> int:
            return int(server.info("commandstats")["cmdstat_evalsha"]["calls"])

        before = calls()
        server.pause()
        looking = asyncio.create_task(look(monitor))
        await asyncio.sleep(0.05)
        server.resume()
        wait_until(lambda: calls() > before, "a look")
        time.sleep(0.5)  # noqa: ASYNC251
        await looking
        await look(monitor)
        assert "nothing expires" not in caplog.text
        assert (await client.lookup([job]))[job].crashes == 1


@on_loop
async def test_a_handler_that_keeps_the_loop_does_not_hold_the_workers_monitor(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        lost = (await lapsed_claim(client, server)).descriptor
        await client.enqueue("q", b"")
        with Client(server.url) as watching:

            async def keep(job: Job) -> None:
                wait_until(lambda: watching.lookup([lost]) == {} or watching.lookup([lost])[lost].crashes, "redelivery")

            async with (
                AsyncClient(server.url) as own,
                Worker(own, "q", keep, WorkerConfig(tick_s=TICK_S, concurrency=1, prefetch=0)) as worker,
            ):
                await until(lambda: worker.stats.succeeded == 2, "both jobs")
                assert worker.monitor is not None
                assert worker.monitor.redelivered == 1


@pytest.mark.parametrize("where", ["run_once", "look"])
@on_loop
async def test_an_unexpected_error_is_logged_and_the_monitor_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    looked, real = 0, getattr(Monitor, where)

    async def fails_at_first(*arguments: Any) -> Any:
        nonlocal looked
        looked += 1
        if looked == 1:
            raise RuntimeError("not foreseen")
        return await real(*arguments)

    monkeypatch.setattr(Monitor, where, fails_at_first)
    async with AsyncClient(server.url) as client:
        await client.create_queue("q")
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        await monitor.start()
        await until(lambda: any(watch.active for watch in monitor.watches.values()), "a later look")
        await monitor.stop()
    assert "unexpected error" in caplog.text
    assert "RuntimeError: not foreseen" in caplog.text


@pytest.mark.parametrize("standby", [False, True])
@on_loop
async def test_a_lease_that_ran_out_between_two_looks_is_left_to_its_renewer(server: Server, standby: bool) -> None:
    """The server may have been away, so that nobody could renew. Another monitor may have been active before."""
    async with AsyncClient(server.url) as client:
        monitor = Monitor(client, ["q"], tick_s=TICK_S)
        await client.create_queue("q", QueueConfig(lease_ms=500))
        job = await client.enqueue("q", b"")
        if standby:
            await Monitor(client, ["q"], tick_s=TICK_S).run_once()
        (held,) = await client.dequeue("q", 1)

        async def run_out() -> None:
            before_ms = server.time_ms()
            await until(lambda: server.time_ms() > before_ms + 500, "the lease to run out")

        async def state() -> State:
            return (await client.lookup([job]))[job].state

        await monitor.run_once()
        await run_out()
        await look(monitor)
        assert await client.renew([held]) == []
        await run_out()
        await look(monitor)
        assert await state() is State.IN_PROGRESS
        await look(monitor)
        assert await state() is State.PENDING


@on_loop
async def test_start_and_stop(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        await client.create_queue("q")
        monitor = Monitor(client, ["q"])
        await monitor.stop()
        for _ in range(2):
            await monitor.start()
            await monitor.start()
            await until(lambda: any(watch.active for watch in monitor.watches.values()), "a look")
            await monitor.stop()
            await monitor.stop()


@pytest.mark.parametrize("tick_s", [0, -1, 3601, float("nan"), "1", True])
def test_bad_ticks(tick_s: Any) -> None:
    async def make() -> None:
        Monitor(AsyncClient("redis://127.0.0.1:1"), ["q"], tick_s=tick_s)

    with pytest.raises(InvalidArgument, match="tick_s"):
        asyncio.run(make())


@on_loop
async def test_a_monitor_of_a_worker_says_where_its_servers_came_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    monkeypatch.setenv("PINLATER_URL", url)
    caplog.set_level("INFO", "pinlater.monitor")

    async def work(job: Job) -> None: ...

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "pinlater.monitor"]

    async with AsyncClient(timeout_s=0.1) as client, Worker(client, ["mail"], work, WorkerConfig(tick_s=0.1)):
        await until(said, "the monitor to say that its server is away")
    assert f"server {url} (from PINLATER_URL): " in said()[0]


@on_loop
async def test_an_unhealthy_shard_is_left_to_the_log_of_its_health_check(
    server: Server, fresh_server: FreshServer, caplog: pytest.LogCaptureFixture
) -> None:
    second = fresh_server()
    async with AsyncClient(shards={"1": server.url, "2": second.url}, timeout_s=1) as client:
        for queue in ("a", "b"):
            await client.create_queue(queue)
        second.stop()
        away = client.session.shards["2"].server
        away.outage = partial(ShardUnhealthy, "as if")
        named, all_queues = Monitor(client, ["a", "b"], tick_s=TICK_S), Monitor(client, tick_s=TICK_S)
        caplog.clear()
        for monitor in (named, all_queues):
            for _ in range(2):
                await look(monitor)
        assert {watch.shard.name: each.active for watch, each in named.watches.items()} == {"1": True, "2": False}
        client.session.shards["1"].server.outage = partial(NoHealthyShards, "as if")
        for monitor in (named, Monitor(client, tick_s=TICK_S)):
            await look(monitor)
        assert [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"] == []
        away.outage = client.session.shards["1"].server.outage = None
        await look(named)
        assert "queue 'a' on shard 2 " in caplog.text  # it is away, and counts as healthy
