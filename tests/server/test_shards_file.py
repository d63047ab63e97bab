"""The original's JSON file of shards: what loads, what each mistake says, and what a running client does with a change.

Promises: every error has the path of the wrong part, what was expected and what came.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinlater import Client, CountsByState, InvalidArgument
from pinlater.server.shards_file import ShardsFile, parse_shards
from tests.conftest import FreshServer
from tests.operations.test_behaviour_shards import shard_of
from tests.support.both_clients import AsyncCalls
from tests.support.servers import Server, wait_until

ORIGINAL = """
{"shards": [
  {"name": "1", "shardConfig": {"master": {"host": "localhost", "port": 6379},
                                "slave": {"host": "replica", "port": 6379}}},
  {"name": 2, "shardConfig": {"master": {"host": "localhost", "port": 6379}, "dequeueOnly": true}},
  {"name": "ipv6", "shardConfig": {"master": {"host": "::1", "port": 6380}, "slave": null, "dequeueOnly": false}}
]}
"""


def a_shard(**changes: Any) -> dict[str, Any]:
    """An entry of the file. changes: of its shardConfig, if that has the key; else of the entry."""
    config = {"master": {"host": "a", "port": 1}}
    config |= {key: value for key, value in changes.items() if key in ("master", "slave", "dequeueOnly")}
    return {"name": "1", "shardConfig": config} | {
        key: value for key, value in changes.items() if key in ("name", "shardConfig", "other")
    }


def refusal(document: Any) -> str:
    """Why a document is refused."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    with pytest.raises(InvalidArgument) as raised:
        parse_shards(data, "file")
    return str(raised.value)


def test_the_file_of_the_original_loads_as_it_is() -> None:
    found = parse_shards(ORIGINAL.encode(), "/etc/shards.json")
    assert found == {"1": "redis://localhost:6379", "2": "redis://localhost:6379", "ipv6": "redis://[::1]:6380"}
    assert found.dequeue_only == {"2"}
    assert found.origin == "from /etc/shards.json"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (b"{", "file is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff", "file is not JSON: "),
        (b"[" * 100_000, "file: expected JSON of a few levels, got more than can be read"),
        ([], "file: the document: expected an object with shards, got []"),
        ({}, "file: shards: expected a list of at least one shard, got nothing"),
        ({"shards": []}, "file: shards: expected a list of at least one shard, got []"),
        (
            {"shrads": []},
            "file: the document: unknown key 'shrads'; did you mean 'shards'? expected one of shards",
        ),
        ({"shards": [5]}, "file: shards[0]: expected an object with name, shardConfig, got 5"),
        ({"shards": [{}]}, "file: shards[0].name: expected a name or a number, got nothing"),
        ({"shards": [a_shard(name=True)]}, "file: shards[0].name: expected a name or a number, got true"),
        ({"shards": [a_shard(name="a b")]}, "file: shards[0].name: "),
        ({"shards": [a_shard(), a_shard(name=1)]}, 'shards[1].name: expected a name that no other shard has, got "1"'),
        (
            {"shards": [{"name": "1"}]},
            "file: shards[0].shardConfig: expected an object with master, slave, dequeueOnly, got nothing",
        ),
        (
            {"shards": [a_shard(master=None)]},
            "file: shards[0].shardConfig.master: expected an object with host, port, got nothing",
        ),
        (
            {"shards": [a_shard(master={"port": 1})]},
            "file: shards[0].shardConfig.master.host: expected the name or address of a host, got nothing",
        ),
        (
            {"shards": [a_shard(master={"host": "a/b@c", "port": 1})]},
            'file: shards[0].shardConfig.master.host: expected the name or address of a host, got "a/b@c"',
        ),
        (
            {"shards": [a_shard(), a_shard(name="2", master={"host": "a", "port": "6379"})]},
            'file: shards[1].shardConfig.master.port: expected a number from 1 to 65535, got "6379"',
        ),
        (
            {"shards": [a_shard(master={"host": "a", "port": 65536})]},
            "file: shards[0].shardConfig.master.port: expected a number from 1 to 65535, got 65536",
        ),
        (
            {"shards": [a_shard(slave={"host": "a"})]},
            "file: shards[0].shardConfig.slave.port: expected a number from 1 to 65535, got nothing",
        ),
        (
            {"shards": [a_shard(dequeueOnly="yes")]},
            'file: shards[0].shardConfig.dequeueOnly: expected true or false, got "yes"',
        ),
        (
            {"shards": [{"name": "1", "shardConfig": {"master": {"host": "a", "port": 1}, "dequeueonly": True}}]},
            "file: shards[0].shardConfig: unknown key 'dequeueonly'; did you mean 'dequeueOnly'?",
        ),
    ],
)
def test_a_mistake_says_where_it_is(document: Any, error: str) -> None:
    assert error in refusal(document)


# a change


def write(path: Path, *shards: dict[str, Any]) -> None:
    """Replaces the file in one step."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"shards": list(shards)}))
    fresh.replace(path)


def entry(server: Server, name: str, *, dequeue_only: bool = False) -> dict[str, Any]:
    return a_shard(name=name, master={"host": "127.0.0.1", "port": server.port}, dequeueOnly=dequeue_only)


@pytest.fixture
def path(server: Server, tmp_path: Path) -> Path:
    """A file with one shard."""
    found = tmp_path / "shards.json"
    write(found, entry(server, "1"))
    return found


@pytest.fixture
def file(path: Path) -> ShardsFile:
    return ShardsFile(path)


@pytest.fixture
def calls(file: ShardsFile) -> Iterator[AsyncCalls]:
    made = AsyncCalls(shards=file.read())
    made.create_queue("q")
    yield made
    made.close()


def look(calls: AsyncCalls, file: ShardsFile) -> bool:
    taken: bool = calls.wait(lambda: file.look(calls.client))
    return taken


def test_a_running_client_follows_the_file(calls: AsyncCalls, file: ShardsFile, path: Path, server: Server) -> None:
    assert not look(calls, file)
    first = calls.enqueue("q", b"")
    write(path, entry(server, "1", dequeue_only=True), entry(server, "2"))
    assert look(calls, file)
    assert not look(calls, file)
    second = calls.enqueue("q", b"")
    assert [shard_of(first), shard_of(second)] == ["1", "2"]
    assert calls.count("q") == CountsByState(pending=2)
    write(path, entry(server, "2"))
    assert look(calls, file)
    assert calls.count("q") == CountsByState(pending=1)
    assert calls.client.settings.chosen.origin == f"from {path}"


def test_a_wrong_or_missing_version_changes_nothing_and_is_logged_once(
    calls: AsyncCalls, file: ShardsFile, path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def errors() -> list[str]:
        found = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        caplog.clear()
        return found

    path.write_text("{")
    assert [look(calls, file) for _ in range(3)] == [False] * 3
    [line] = errors()
    assert line.startswith(f"{path} is not JSON: ")
    assert line.endswith("; the last good version stays in use")

    write(path, {"name": "1"})
    assert [look(calls, file) for _ in range(3)] == [False] * 3
    [line] = errors()
    assert "shards[0].shardConfig: expected an object" in line

    for _ in range(2):  # a second disappearance is another one
        path.unlink()
        assert [look(calls, file) for _ in range(3)] == [False] * 3
        assert errors() == [f"{path} can not be read: No such file or directory; the last good version stays in use"]
        assert [*calls.client.session.shards] == ["1"]
        write(path, entry(server, "1"))
        assert look(calls, file)
    assert errors() == []


def test_a_version_that_is_refused_is_taken_when_its_cause_has_ended(
    calls: AsyncCalls,
    file: ShardsFile,
    path: Path,
    server: Server,
    fresh_server: FreshServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = fresh_server()
    with Client(shards={"2": other.url}) as before:
        before.create_queue("q")
        before.delete_queue("q")
        before.create_queue("q")
    job = calls.enqueue("q", b"kept")
    write(path, entry(server, "1"), entry(other, "2"))
    assert [look(calls, file) for _ in range(3)] == [False] * 3
    [line] = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith(f"shards: queue 'q' on shard 2 (redis://127.0.0.1:{other.port}) has epoch 3, shard 1 (")
    assert [*calls.client.session.shards] == ["1"]
    with other.client() as client:
        client.flushall()
    assert look(calls, file)
    assert [*calls.client.session.shards] == ["1", "2"]
    assert [each.descriptor for each in calls.dequeue("q", 9)] == [job]


def test_a_start_watches_the_file_until_the_stop(
    calls: AsyncCalls, file: ShardsFile, path: Path, server: Server
) -> None:
    async def on_loop(call: Callable[[], object]) -> None:
        call()

    calls.wait(lambda: on_loop(lambda: file.start(calls.client)))
    write(path, entry(server, "1"), entry(server, "2"))
    wait_until(lambda: [*calls.client.session.shards] == ["1", "2"], "the shards of the new version")
    calls.wait(file.stop)
    calls.wait(file.stop)


def test_a_file_that_can_not_be_read_at_the_start_is_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    with pytest.raises(InvalidArgument, match=f"^{missing} can not be read: No such file"):
        ShardsFile(missing).read()
