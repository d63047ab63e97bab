"""The doctor on queues with limits, pauses and drains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pinlater import Client, QueueConfig
from pinlater.cli import main
from pinlater.cli.doctor.check_result import ERROR, NOTE, OK, WARNING, CheckResult
from pinlater.cli.doctor.examine import examine
from pinlater.client.base import ClientSettings
from pinlater.store.keys import queue_key
from tests.support.servers import Server

ID = (7).to_bytes(8, "big")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(f"1={server.url},2={server.url}") as client:
        yield client


def found(url: str) -> dict[str, CheckResult]:
    """The findings on queue mail by check."""
    results = examine(ClientSettings(url, timeout_s=5.0))
    return {finding.check: finding for finding in results if finding.subject == "queue mail"}


def both(server: Server) -> str:
    return f"1={server.url},2={server.url}"


def follow(advice: str, server: Server) -> int:
    """Runs the command of an advice."""
    words = advice.partition("pinlater ")[2].partition(" opens")[0].partition(" lets")[0].partition(" ends")[0]
    return main([*words.split(), "--url", both(server)])


def test_a_queue_without_limits_has_no_finding_on_them(server: Server, client: Client) -> None:
    client.create_queue("mail")
    assert set(found(both(server))) == {"configuration", "monitor"}


def test_the_home_shard(server: Server, client: Client) -> None:
    client.create_queue("mail", QueueConfig(rate="5/s", home="2"))
    finding = found(both(server))["home shard"]
    assert (finding.level, finding.found) == (OK, "2")
    finding = found(server.url)["home shard"]
    assert (finding.level, finding.found) == (ERROR, "'2' is not among the shards 1: claims fail")
    assert finding.advice == "name it with --shard, or pinlater queue set mail --home SHARD"
    assert main(["queue", "set", "mail", "--home", "1", "--url", server.url]) == 0  # as it says
    assert found(server.url)["home shard"].level == OK


def test_jobs_that_never_run(server: Server, client: Client) -> None:
    client.create_queue("mail", QueueConfig(max_running=1, home="1"))
    client.enqueue("mail", b"x")
    assert "max_running" not in found(both(server))
    server.call("ZADD", queue_key("mail", "2", "scheduled:3"), 10**14, ID)
    finding = found(both(server))["max_running"]
    assert (finding.level, finding.found) == (ERROR, "1 job on shard 2 never run: only shard 1 gives jobs")
    assert follow(finding.advice, server) == 0
    assert "max_running" not in found(both(server))


def test_a_rate_of_0_is_a_remark(server: Server, client: Client) -> None:
    client.create_queue("mail", QueueConfig(rate=0))
    finding = found(both(server))["rate"]
    assert (finding.level, finding.found) == (NOTE, "0, so it gives no jobs")
    client.configure_queue("mail", rate="5/s")
    assert "rate" not in found(both(server))


def test_a_pause_is_a_remark(server: Server, client: Client) -> None:
    client.create_queue("mail")
    client.pause_queue("mail", 60, by="ada\x1b")
    finding = found(both(server))["pause"]
    assert finding.level == NOTE
    assert finding.found.endswith(" more, by ada\\x1b")
    assert follow(finding.advice, server) == 0
    assert "pause" not in found(both(server))
    client.pause_queue("mail")
    assert found(both(server))["open"].found == "paused"


def test_a_drained_queue(server: Server, client: Client) -> None:
    client.create_queue("mail")
    client.enqueue("mail", b"x")
    client.drain_queue("mail")
    results = found(both(server))
    assert "open" not in results
    assert (results["drain"].level, results["drain"].found) == (
        NOTE,
        "it refuses new jobs until it is empty: 1 job left",
    )
    client.purge("mail")
    finding = found(both(server))["drain"]
    assert finding.level == WARNING
    assert finding.found == "it is empty and refuses new jobs: no monitor is active that opens it"
    until_ms = server.time_ms() + 60_000
    server.call("HSET", queue_key("mail", "1", "meta"), "monitor", b"monitor." + until_ms.to_bytes(6, "big"))
    assert found(both(server))["drain"].level == NOTE
    assert follow(finding.advice, server) == 0
    assert "drain" not in found(both(server))
