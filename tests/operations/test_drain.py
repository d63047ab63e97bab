"""Pauses and drains: what they stop, how they end, and that a drained queue opens only if it is empty.

Promises: shown for both clients, on one shard and on two. Risks: which moments of a race are tried is chosen by hand.
"""

# ruff: noqa: F811 (fixtures are parameters)
from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from pinlater import (
    AsyncClient,
    Client,
    EnqueueRefused,
    InvalidArgument,
    NewJob,
    PartialOutcome,
    QueueConfig,
    QueueLimits,
)
from pinlater.operations import opening
from pinlater.operations.opening import open_if_empty
from pinlater.worker import monitor as monitor_module
from pinlater.worker.monitor import Monitor
from tests.conftest import FreshServer
from tests.support.both_clients import Calls, kind, make  # noqa: F401
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server, free_port

Make = Callable[..., Calls]
HOUR_S = 3600
NOTHING = QueueLimits(tokens=None, granted=0, processes=0, running=0, paused_ms=0, paused_since_ms=0, paused_by="")


def two_shards(server: Server) -> dict[str, str]:
    return {"1": server.url, "2": server.url}


def opens(calls: Any, queue: str = "q") -> bool:
    """Whether a look at the queue opened it."""
    found: bool = calls.run(lambda deadline_s: open_if_empty(calls.client.session, queue, deadline_s))
    return found


# --- pauses


def test_a_pause_that_ends_by_itself(server: Server, make: Make) -> None:
    calls = make(shards=two_shards(server), source="ada")
    calls.create_queue("q")
    jobs = calls.enqueue_many("q", [b"x"] * 8)
    assert calls.queue_limits("q") == NOTHING
    assert calls.pause_queue("q", HOUR_S) == HOUR_S * 1000
    assert calls.dequeue("q", 8) == []
    limits = calls.queue_limits("q")
    assert 0 < limits.paused_ms <= HOUR_S * 1000
    assert 0 < limits.paused_since_ms <= server.time_ms()
    assert limits.paused_by == "ada"
    assert calls.queue_config("q").paused is False
    assert (HOUR_S - 60) * 1000 < calls.pause_queue("q", 1, by="bob") <= HOUR_S * 1000
    assert calls.queue_limits("q").paused_by == "ada"
    calls.resume_queue("q")
    assert calls.queue_limits("q") == NOTHING
    assert len(calls.dequeue("q", 8)) == len(jobs)


def test_a_pause_until_it_is_resumed(server: Server, make: Make) -> None:
    calls = make(server.url)
    calls.create_queue("q")
    calls.enqueue("q", b"x")
    assert calls.pause_queue("q") is None
    assert calls.queue_config("q").paused is True
    calls.pause_queue("q", HOUR_S, by="ada@web1")
    assert calls.queue_limits("q").paused_by == "ada@web1"
    assert calls.dequeue("q") == []
    calls.resume_queue("q")
    assert calls.queue_config("q").paused is False
    assert len(calls.dequeue("q")) == 1
    calls.resume_queue("q")  # it is not paused


def test_a_queue_with_a_rate_of_0_is_not_resumed(server: Server, make: Make) -> None:
    calls = make(server.url)
    calls.create_queue("q", QueueConfig(rate=0, paused=True))
    calls.enqueue("q", b"x")
    calls.resume_queue("q")
    assert str(calls.queue_config("q").rate) == "0/s"
    assert calls.dequeue("q") == []


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), float("inf"), "1s", True, 2**62])
def test_a_bad_pause_changes_nothing(server: Server, make: Make, seconds: Any) -> None:
    calls = make(server.url)
    calls.create_queue("q")
    with pytest.raises(InvalidArgument, match=r"^pause: expected seconds or a timedelta, 0.001 or more, got "):
        calls.pause_queue("q", seconds)
    with pytest.raises(InvalidArgument, match=r"^by: expected a text, got 5"):
        calls.pause_queue("q", 1, by=5)
    with pytest.raises(InvalidArgument, match=r"^stay_closed: expected True or False, got 1"):
        calls.drain_queue("q", stay_closed=1)
    assert calls.queue_limits("q") == NOTHING
    assert calls.queue_config("q") == QueueConfig()


def test_a_pause_names_the_shards_that_have_it(make: Make, fresh_server: FreshServer) -> None:
    here, away = fresh_server(), fresh_server()
    calls = make(shards={"1": here.url, "2": away.url}, timeout_s=0.5)
    calls.create_queue("q")
    away.stop()
    changes: list[Callable[[], Any]] = [lambda: calls.pause_queue("q", HOUR_S), lambda: calls.resume_queue("q")]
    for change in changes:
        said = r"^pause of queue 'q': carried out on shard 1 alone: server .* not reached"
        with pytest.raises(PartialOutcome, match=said) as caught:
            change()
        assert caught.value.done == ["1"]


# --- drains


def test_a_drained_queue_opens_when_it_is_empty_on_every_shard(server: Server, make: Make) -> None:
    calls = make(shards=two_shards(server))
    calls.create_queue("q", QueueConfig(lease_ms=60_000))
    for shard in two_shards(server):  # a job in each state that has not ended, on each shard
        direct = Client(shards={shard: server.url})
        direct.enqueue_many("q", [b"first", NewJob(b"later", delay_ms=HOUR_S * 1000), b"ready"])
        direct.close()
    calls.drain_queue("q")
    with pytest.raises(EnqueueRefused):
        calls.enqueue("q", b"x")
    while held := calls.dequeue("q", 1):
        assert not opens(calls)
        calls.ack(succeeded=held)
    scheduled = [info.descriptor for info in calls.scan("q", "pending", future=True)]
    for descriptor in scheduled:
        assert not opens(calls)
        assert calls.delete_jobs(descriptors=[descriptor]) == 1
    assert opens(calls)
    assert calls.queue_config("q") == QueueConfig(lease_ms=60_000)
    assert not opens(calls)
    calls.enqueue("q", b"x")


def test_a_job_in_progress_keeps_it_closed(server: Server, make: Make) -> None:
    calls = make(server.url)
    calls.create_queue("q")
    calls.enqueue("q", b"x")
    calls.drain_queue("q")
    (held,) = calls.dequeue("q")
    assert not opens(calls)
    calls.ack(failed=[held])  # it is tried again
    assert not opens(calls)
    calls.ack(succeeded=calls.dequeue("q"))
    assert opens(calls)


def test_it_stays_closed_if_that_is_asked_for(server: Server, make: Make) -> None:
    calls = make(server.url)
    calls.create_queue("q")
    calls.drain_queue("q")
    calls.drain_queue("q", stay_closed=True)
    assert not opens(calls)
    assert calls.queue_config("q") == QueueConfig(refuse_enqueue=True)


def test_it_stays_closed_while_a_shard_does_not_answer(server: Server, make: Make) -> None:
    calls = make(server.url)
    calls.create_queue("q")
    calls.drain_queue("q")
    with_one_away = make(shards={"1": server.url, "2": f"redis://127.0.0.1:{free_port()}"}, timeout_s=1.0)
    assert not opens(with_one_away)
    assert calls.queue_config("q").refuse_enqueue is True


def close(other: Client) -> None:
    other.drain_queue("q", stay_closed=True)


def open_fill_and_drain(other: Client) -> None:
    other.configure_queue("q", refuse_enqueue=False)
    other.enqueue("q", b"x")
    other.drain_queue("q")


def delete(other: Client) -> None:
    other.delete_queue("q")
    other.create_queue("q", QueueConfig(refuse_enqueue=True, open_when_empty=True))


@pytest.mark.parametrize("change", [close, open_fill_and_drain, delete])
def test_what_another_client_does_after_the_look_stays(
    server: Server, monkeypatch: pytest.MonkeyPatch, change: Callable[[Client], None]
) -> None:
    with Client(server.url) as client, Client(server.url) as other:
        client.create_queue("q")
        client.drain_queue("q")
        counted = opening.unfinished

        def meanwhile(counts: Any) -> int:
            change(other)
            return counted(counts)

        monkeypatch.setattr(opening, "unfinished", meanwhile)
        assert not client.run(lambda deadline_s: open_if_empty(client.session, "q", deadline_s))
        assert other.queue_config("q").refuse_enqueue is True


# --- the monitor


@on_loop
async def test_the_active_monitor_opens_a_drained_queue(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[Monitor] = []

    class Counted(Monitor):
        async def _open(self, first: Any) -> None:
            looked.append(self)
            await super()._open(first)

    async with AsyncClient(shards=two_shards(server)) as client:
        await client.create_queue("q")
        await client.enqueue("q", b"x")
        monitors = [Counted(client, ["q"]), Counted(client, ["q"])]

        async def all_look() -> None:
            for monitor in monitors:
                for watch in monitor.watches.values():
                    watch.next_look_s = 0.0
                await monitor.run_once()

        with monkeypatch.context() as patched:
            patched.setattr(monitor_module, "open_if_empty", None)  # no call of it while the queue is open
            await all_look()
            await client.configure_queue("q", refuse_enqueue=True)
            await all_look()
        await client.drain_queue("q")
        await all_look()
        assert (await client.queue_config("q")).refuse_enqueue is True
        await client.ack(succeeded=await client.dequeue("q"))
        with caplog.at_level(logging.INFO, "pinlater.monitor"):
            await all_look()
        assert "queue q is empty, so it accepts new jobs again" in caplog.messages
        assert await client.queue_config("q") == QueueConfig()
        assert set(looked) == {monitors[0]}  # the other one stands by


@on_loop
async def test_a_monitor_that_cannot_open_says_so_and_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Any:
        raise EnqueueRefused("no")

    async with AsyncClient(server.url) as client:
        await client.create_queue("q", QueueConfig(refuse_enqueue=True, open_when_empty=True))
        monitor = Monitor(client, ["q"])
        with monkeypatch.context() as patched:
            patched.setattr(monitor_module, "open_if_empty", refuse)
            await monitor.run_once()
        assert "queue q is drained and not opened yet: no" in caplog.messages
        for watch in monitor.watches.values():
            watch.next_look_s = 0.0
        await monitor.run_once()
        assert await client.queue_config("q") == QueueConfig()


def test_a_drain_ends_with_the_setting_that_it_made(server: Server, make: Make) -> None:
    """Else a queue that is closed later, for good, would open by itself."""
    calls = make(server.url)
    calls.create_queue("q")
    calls.enqueue("q", b"x")
    calls.drain_queue("q")
    calls.configure_queue("q", refuse_enqueue=False)
    assert calls.configure_queue("q", refuse_enqueue=True).open_when_empty is False
    calls.ack(succeeded=calls.dequeue("q"))
    assert not opens(calls)
