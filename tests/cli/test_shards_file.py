"""--shards-file: commands on the shards of a service, by the file of its servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinlater import Client, NewJob
from pinlater.cli.command_base import DONE, USAGE
from tests.support.cli_runs import Run, run
from tests.support.servers import Server

__all__ = ["run"]  # a fixture


def shard(name: str, server: Server, **more: bool) -> dict[str, object]:
    return {"name": name, "shardConfig": {"master": {"host": "127.0.0.1", "port": server.port}, **more}}


@pytest.fixture
def file(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards, on one server. A Thrift URL stands in PINLATER_URL, as where programs use the service."""
    monkeypatch.setenv("PINLATER_URL", "thrift://127.0.0.1:1")
    path = tmp_path / "redis.json"
    path.write_text(json.dumps({"shards": [shard("a", server), shard("b", server, dequeueOnly=True)]}))
    return path


@pytest.mark.usefixtures("run")
def test_commands_act_on_every_shard_of_the_file(run: Run, file: Path, server: Server) -> None:
    urls = dict.fromkeys("ab", server.url)
    with Client(shards=urls) as client:
        client.create_queue("mail")
        enqueued = client.enqueue_many("mail", [NewJob(b"x", key=str(number)) for number in range(100)])
        assert {descriptor.split(":")[1] for descriptor in enqueued} == {"sa", "sb"}
    named = ["--shards-file", str(file)]
    assert run("queue", "set", "mail", "--lease", "1m", *named).code == DONE
    assert run("queue", "pause", "mail", *named).code == DONE
    info = run(*named, "queue", "info", "mail", "--json").document
    assert [each["shard"] for each in info["shards"]] == ["a", "b"]
    assert run("job", "count", "mail", "--json", *named).document["pending"] == 100
    assert run("queue", "purge", "mail", "--yes", *named).code == DONE
    assert run("queue", "resume", "mail", *named).code == DONE
    ran = run("doctor", *named)
    assert f"from {file}" in ran.out
    assert "dequeue-only" in ran.out
    with Client(shards=urls) as client:
        assert client.count("mail").pending == 0
        assert client.queue_config("mail").lease_ms == 60_000


@pytest.mark.parametrize("other", ["--url=redis://a:1", "--shard=1=redis://a:1"])
def test_servers_are_named_in_one_way(run: Run, file: Path, other: str) -> None:
    ran = run("queue", "ls", other, "--shards-file", str(file))
    assert (ran.code, ran.err) == (USAGE, "error: servers: expected --shards-file, or --url or --shard, got both\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "redis.json is not JSON: "),
        ("{}", "redis.json: shards: expected a list of at least one shard, got nothing"),
    ],
)
def test_a_file_that_can_not_be_used(run: Run, file: Path, text: str, said: str) -> None:
    file.write_text(text)
    ran = run("queue", "ls", "--shards-file", str(file))
    assert ran.code == USAGE
    assert said in ran.err
    file.unlink()
    ran = run("queue", "ls", "--shards-file", str(file))
    assert (ran.code, ran.err) == (USAGE, f"error: {file} can not be read: No such file or directory\n")


def test_the_server_has_the_same_option(run: Run) -> None:
    assert run("server", "--help").out.count("--shards-file FILE") == 1
    assert run("--help").out.count("--shards-file FILE") == 1
    assert "--shards-file" not in run("queue", "ls", "--help").out
