"""The audit of limits: the account of a rate, and jobs that max_running leaves behind.

Each test writes a damaged account, or jobs to a wrong shard, by hand. Risks: that grants never leave such an account is
shown by the state machine, not here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pinlater import Client, QueueConfig
from pinlater.model.queue_config import StoredConfig
from pinlater.operations.audit import account_problems
from pinlater.store.keys import queue_key
from tests.support.audits import audit_queue
from tests.support.servers import Server

RATE = QueueConfig(rate="100/s", burst=20, home="1")
#: The rate is 1 token in 10 ms, so a token is 10 units.
TOKEN = 10
NOW_MS = 1_795_000_000_000


def account(**other: int) -> bytes:
    numbers = {"refilled_ms": NOW_MS, "units": 0, "line_ms": 0, "since_ms": NOW_MS - 500, "granted": 0, "before": 0}
    assert set(other) <= set(numbers)
    *times, granted, before = (numbers | other).values()
    return b"".join(each.to_bytes(6, "big") for each in times) + b"".join(
        n.to_bytes(4, "big") for n in (granted, before)
    )


def stored(config: QueueConfig = RATE) -> StoredConfig:
    old = (NOW_MS - 120_000) << 19
    return StoredConfig(old.to_bytes(8, "big"), 1, False, 1, config.pack(), config)


def problems(packed: bytes, config: QueueConfig = RATE) -> list[str]:
    return list(account_problems(packed, stored(config)))


@pytest.mark.parametrize(
    "numbers",
    [
        {"units": 20 * TOKEN},
        {"granted": 121, "before": 121},
        {"line_ms": NOW_MS + 15_000},
        {"since_ms": NOW_MS},
        {"granted": 10_000, "since_ms": NOW_MS - 90_000},  # the configuration was young then
    ],
)
def test_a_sound_account(numbers: dict[str, int]) -> None:
    assert problems(account(**numbers)) == []


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"units": 20 * TOKEN + 1}, "tokens: expected at most the burst of 20, got 20.1"),
        ({"granted": 122}, "granted: expected at most 121 in a second, got 122"),
        ({"before": 122}, "granted: expected at most 121 in a second, got 122"),
        ({"line_ms": NOW_MS + 15_001}, "line: expected its end soon after the last refill, got 15,001 ms"),
        ({"since_ms": NOW_MS + 1}, "granted: expected a time before the last refill, got 1 ms after it"),
    ],
)
def test_a_damaged_account(numbers: dict[str, int], problem: str) -> None:
    assert problems(account(**numbers)) == [problem]


def test_a_slow_rate_has_a_long_line() -> None:
    slow = QueueConfig(rate="1/h", home="1")
    assert problems(account(line_ms=NOW_MS + 3_600_000), slow) == []
    assert problems(account(line_ms=NOW_MS + 3_600_002), slow) != []
    stopped = QueueConfig(rate=0, home="1")
    assert problems(account(units=1), stopped) == []


def test_an_account_of_another_length_or_without_a_rate() -> None:
    assert problems(bytes(5)) == ["expected 32 bytes and a rate, got 5 bytes and 100/s"]
    assert problems(account(), QueueConfig()) == ["expected 32 bytes and a rate, got 32 bytes and no rate"]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(shards={"1": server.url, "2": server.url}) as client:
        yield client


def found(client: Client) -> list[tuple[str, str, str]]:
    return [(finding.shard, finding.subject, finding.problem) for finding in audit_queue(client, "q").findings]


def test_the_account_of_a_queue(server: Server, client: Client) -> None:
    client.create_queue("q", QueueConfig(rate="1000000/s", home="2"))
    client.enqueue_many("q", [b"x"] * 5)
    while len(client.dequeue("q", 5, wait=5)) < 5:
        client.enqueue("q", b"x")
    meta = queue_key("q", "2", "meta")
    assert server.call("HGET", meta, "account") is not None
    assert found(client) == []
    server.call("HSET", meta, "account", b"?")
    assert found(client) == [("2", "account", "expected 32 bytes and a rate, got 1 bytes and 1000000/s")]
    server.call("HSET", queue_key("q", "1", "meta"), "account", b"?")  # not the home: nobody reads it
    assert len(found(client)) == 1


def test_jobs_that_max_running_leaves_behind(server: Server, client: Client) -> None:
    client.create_queue("q", QueueConfig(max_running=1, home="1"))
    client.enqueue_many("q", [b"x"] * 3)
    client.dequeue("q")
    assert found(client) == []
    client.configure_queue("q", max_running=5)
    client.dequeue("q", 2)
    client.configure_queue("q", max_running=1)  # lowered below what runs
    assert found(client) == []
    server.call("ZADD", queue_key("q", "2", "scheduled:1"), 5, (7).to_bytes(8, "big"))
    server.call("HSET", queue_key("q", "2", "jobs"), (7).to_bytes(8, "big"), b"\1\0\1\1x")
    left = ("2", "max_running", "1 jobs never run: only the home shard 1 gives jobs")
    assert left in found(client)
