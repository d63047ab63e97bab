"""`refuse_above`: what producers see of a queue that holds as many jobs as a shard may have of it.

Promises: shown with both clients, on one shard and on several. The scripts are shown by tests/lua/test_scripts_full.py.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from pinlater import AsyncClient, Client, InvalidArgument, NewJob, PartialEnqueue, QueueConfig, QueueFull
from pinlater.cli.command_base import DONE, NO, USAGE
from pinlater.store.shards import shard_for_key
from pinlater.worker.monitor import Monitor
from tests.support.both_clients import Calls, kind, make
from tests.support.cli_runs import Run, run
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server

__all__ = ["kind", "make", "run"]  # fixtures

SHARDS = ["a", "b"]
#: A key for each shard.
KEYS = {shard_for_key(str(number).encode(), SHARDS): str(number) for number in range(20)}


@pytest.fixture
def calls(server: Server, make: Callable[..., Calls]) -> Calls:
    return make(server.url)


@pytest.fixture
def two(server: Server, make: Callable[..., Calls]) -> Calls:
    """Two shards on one server."""
    return make(shards=dict.fromkeys(SHARDS, server.url))


def test_a_full_queue_says_which_shard_is_full_and_what_to_do(calls: Calls) -> None:
    calls.create_queue("q", QueueConfig(refuse_above=2))
    calls.enqueue_many("q", [b"1", b"2", b"3"])
    said = r"queue 'q' on shard 1 .*holds 3 jobs on this shard, and refuses new ones from 2 \(refuse_above\)"
    with pytest.raises(QueueFull, match=said):
        calls.enqueue("q", b"4")
    with pytest.raises(QueueFull, match=said):
        calls.enqueue_many("q", [b"4"] * 5)
    assert calls.count("q").pending == 3
    assert calls.ack(succeeded=calls.dequeue("q", 3)) == []
    calls.enqueue("q", b"4")


def test_a_large_call_may_come_in_in_part(calls: Calls) -> None:
    calls.create_queue("q", QueueConfig(refuse_above=500))
    with pytest.raises(PartialEnqueue) as caught:
        calls.enqueue_many("q", [b"x"] * 2_500)
    refused = [result for result in caught.value.results if isinstance(result, QueueFull)]
    assert (calls.count("q").pending, len(refused)) == (1_000, 1_500)


def test_jobs_without_a_key_go_to_a_shard_with_room(two: Calls) -> None:
    two.create_queue("q", QueueConfig(refuse_above=1))
    two.enqueue_many("q", [NewJob(b"full", key=KEYS["a"])])
    with pytest.raises(QueueFull, match="on shard a "):
        two.enqueue_many("q", [NewJob(b"refused", key=KEYS["a"])])
    many = [b"x"] * 50
    assert {descriptor.split(":")[1] for descriptor in two.enqueue_many("q", many)} == {"sb"}
    with pytest.raises(QueueFull):
        two.enqueue("q", b"refused")
    assert two.count("q").pending == 51
    taken = two.dequeue("q", 60)
    assert len(taken) == 51
    assert two.ack(succeeded=taken) == []


def test_the_mark_is_above_that_of_the_archive(calls: Calls) -> None:
    message = r"refuse_above: expected more than spill_above \(1,000\), got 1,000"
    with pytest.raises(InvalidArgument, match=message):
        calls.create_queue("q", QueueConfig(spill_above=1_000, refuse_above=1_000))
    calls.create_queue("q", QueueConfig(spill_above=1_000))
    with pytest.raises(InvalidArgument, match=message):
        calls.configure_queue("q", refuse_above=1_000)
    calls.configure_queue("q", refuse_above=1_001)
    with pytest.raises(InvalidArgument, match=r"refuse_above: expected more than spill_above \(2,000\), got 1,001"):
        calls.configure_queue("q", spill_above=2_000)
    assert calls.queue_config("q") == QueueConfig(spill_above=1_000, refuse_above=1_001)
    calls.configure_queue("q", spill_above=2_000, refuse_above=None)
    assert calls.queue_config("q") == QueueConfig(spill_above=2_000)


@pytest.mark.parametrize("wrong", [0, -1, 2**48, 1.5, True, "5M"])
def test_what_is_no_mark(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="refuse_above: expected an integer from 1 to"):
        QueueConfig(refuse_above=wrong)  # type: ignore[arg-type]


def test_commands(server: Server, run: Run) -> None:
    url = ("--url", server.url)
    assert run(*url, "queue", "create", "q", "--refuse-above", "0.003k").code == DONE
    assert run(*url, "job", "enqueue", "q", "1", "2", "3").code == DONE
    refused = run(*url, "job", "enqueue", "q", "4")
    assert (refused.code, "let workers catch up, remove jobs, or raise it" in refused.err) == (NO, True)
    assert re.findall(r"^refuse above +(.+)", run(*url, "queue", "info", "q").out, re.M) == ["3 jobs a shard"]
    assert run(*url, "queue", "info", "q", "--json").document["config"]["refuse_above"] == 3
    assert run(*url, "queue", "set", "q", "--refuse-above", "10M").out == "queue q: refuse_above = 10000000\n"
    assert run(*url, "queue", "set", "q", "--refuse-above", "none").out == "queue q: refuse_above = none\n"
    assert "refuse above" not in run(*url, "queue", "info", "q").out
    assert run(*url, "queue", "set", "q", "--refuse-above", "0").code == USAGE


def test_a_drained_queue_keeps_its_mark(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("q", QueueConfig(refuse_above=1))
        client.drain_queue("q")
        client.configure_queue("q", refuse_enqueue=False)
        client.enqueue("q", b"1")
        with pytest.raises(QueueFull):
            client.enqueue("q", b"2")


@on_loop
async def test_jobs_of_a_quarantine_wait_for_room_and_ask_once_a_look(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as dying:
        await client.create_queue("q", QueueConfig(lease_ms=100, crash_limit=1, quarantine_queue="big"))
        await client.create_queue("big", QueueConfig(refuse_above=1))
        await client.enqueue("big", b"full")
        await client.enqueue_many("q", [b"1", b"2"])
        assert len(await dying.dequeue("q", 2)) == 2
        monitor = Monitor(client, ["q"], tick_s=0.001)
        while (await client.count("q")).failed < 2:
            await monitor.run_once()
            await asyncio.sleep(0.01)
        caplog.clear()
        await monitor.run_once()
        assert caplog.text.count("not moved to queue big yet: ") == 1
        assert ((await client.count("q")).failed, (await client.count("big")).pending) == (2, 1)
        await client.configure_queue("big", refuse_above=None)
        while (await client.count("q")).failed:
            await monitor.run_once()
            await asyncio.sleep(0.01)
        assert (await client.count("big")).pending == 3
