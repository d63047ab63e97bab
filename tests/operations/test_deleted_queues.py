"""What a deleted queue leaves on a server, and what becomes of it when the queue is created again.

Promises: 40 bytes at most, and ids, versions and epochs that grow, by public calls on real servers.
Risks: orders of steps of several clients are in test_creation_races.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pinlater import Client, NewJob, QueueConfig
from pinlater._core import parse_descriptor
from pinlater.model.errors import PartialDelete
from pinlater.model.queue_config import StoredConfig
from pinlater.operations.queues import create_queue, delete_queue, recreate_lost
from pinlater.store.effects import Flow, Send
from pinlater.store.keys import PREFIX, queue_key, remnant_field, remnant_keys
from pinlater.store.scripts import load_scripts
from tests.conftest import FreshServer
from tests.support.memory import EVERY_KIND, AnyKind
from tests.support.servers import KINDS, Kind, Server

QUEUES = 500
MOST_BYTES = 40
PASSWORD = "correct-horse"  # noqa: S105


def id_of(descriptor: str) -> int:
    return parse_descriptor(descriptor)[3]


def stored(client: Client, shard: str = "1") -> StoredConfig:
    """The configuration that the client knows of the queue `q`."""
    found = client.session.queue_shard("q", shard).stored
    assert found is not None
    return found


def first_steps(flow: Flow[object], steps: int) -> Flow[None]:
    """The flow of a client that dies after so many steps."""
    answers = None
    for _ in range(steps):
        try:
            effect = flow.send(answers)
        except StopIteration:
            return
        answers = yield effect


def pipelines(flow: Flow[object], counted: list[int]) -> Flow[None]:
    """Counts the requests of a flow."""
    answers = None
    try:
        while True:
            effect = flow.send(answers)
            counted[0] += isinstance(effect, list) and isinstance(effect[0], Send)
            answers = yield effect
    except StopIteration:
        return


@pytest.mark.parametrize("server_kind", KINDS)
@pytest.mark.parametrize("name", ["q{}", "x" * 200 + "{}"], ids=["short", "long"])
def test_a_deleted_queue_leaves_at_most_forty_bytes(server_kind: Kind, name: str, fresh_server: FreshServer) -> None:
    server = fresh_server(server_kind)
    with Client(server.url) as client:
        for number in range(QUEUES):
            client.create_queue(name.format(number))
            client.delete_queue(name.format(number))
    keys = server.call("KEYS", "*")
    assert all(key.startswith(b"pl:{1}:deleted:") for key in keys)
    assert sum(server.call("HLEN", key) for key in keys) == QUEUES
    used = sum(server.call("MEMORY", "USAGE", key, "SAMPLES", "0") for key in keys)
    assert used / QUEUES <= MOST_BYTES


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_ids_versions_and_epochs_grow_though_the_clock_goes_back(kind: Kind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind, fake_clock=True)
    last_id, last_version = 0, b""
    for round_ in range(3):
        with Client(server.url) as client:
            assert client.create_queue("q") is True
            config = stored(client)
            assert config.epoch == 2 * round_ + 1
            assert config.version > last_version
            descriptor = client.enqueue("q", b"")
            assert id_of(descriptor) > last_id
            last_id, last_version = id_of(descriptor), config.version
            assert client.delete_queue("q") is True
            assert client.delete_queue("q") is False
            assert client.queue_names() == []
        server.jump_clock(-3600)


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("steps", range(1, 6))
def test_a_deletion_that_stops_at_any_step_is_completed_by_the_next(
    kind: AnyKind, steps: int, fresh_server: FreshServer
) -> None:
    server = fresh_server(kind)
    with Client(server.url) as dying, Client(server.url) as client:
        client.create_queue("q")
        for script in load_scripts().values():  # so that each step is one trip
            server.call("SCRIPT", "LOAD", script.source)
        before = client.enqueue("q", b"")
        version = stored(client).version
        dying.run(lambda end: first_steps(delete_queue(dying.session, "q", end), steps))
        assert client.delete_queue("q") is (steps == 1)
        assert {bytes(key) for key in server.call("KEYS", "*")} == {remnant_keys("q", "1")[0]}
        dying.run(lambda end: first_steps(create_queue(dying.session, "q", QueueConfig(), end), 2))
        assert client.create_queue("q") is True
        assert (stored(client).epoch, stored(client).version > version) == (3, True)
        assert id_of(client.enqueue("q", b"")) > id_of(before)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as made:
        yield made


def test_a_creation_takes_three_trips_and_a_deletion_five(client: Client) -> None:
    client.create_queue("other")
    client.delete_queue("other")  # loads the scripts
    session = client.session
    for _ in range(2):
        created, deleted = [0], [0]
        client.run(lambda end: pipelines(create_queue(session, "q", QueueConfig(), end), created))  # noqa: B023
        client.run(lambda end: pipelines(delete_queue(session, "q", end), deleted))  # noqa: B023
        assert (created, deleted) == ([3], [5])


def test_of_many_clients_one_creates_the_queue(server: Server) -> None:
    clients = [Client(server.url) for _ in range(12)]
    with ThreadPoolExecutor(len(clients)) as pool:
        for round_ in range(5):
            assert sum(pool.map(lambda client: client.create_queue("q"), clients)) == 1
            assert {stored(client).epoch for client in clients} == {2 * round_ + 1}
            assert sum(pool.map(lambda client: client.delete_queue("q"), clients)) >= 1
    assert server.call("KEYS", "*") == [remnant_keys("q", "1")[0]]
    for client in clients:
        client.close()


def test_a_deleted_queue_is_not_taken_for_a_lost_one(client: Client, server: Server) -> None:
    client.create_queue("q")
    client.delete_queue("q")
    with Client(server.url) as worker:
        worker.run(lambda end: recreate_lost(worker.session, "q", QueueConfig(), end))
        assert worker.queue_names() == []
        server.call("FLUSHALL")
        worker.run(lambda end: recreate_lost(worker.session, "q", QueueConfig(), end))
        assert worker.queue_names() == ["q"]


def test_two_names_with_one_field_keep_the_greater_remnant(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collision of hashes costs an epoch, nothing else."""
    client.create_queue("q")
    client.delete_queue("q")
    remnant = server.call("HGET", remnant_keys("q", "1")[0], remnant_field("q"))
    server.call("HSET", remnant_keys("other", "1")[0], remnant_field("other"), remnant)
    assert client.create_queue("other") is True
    client.create_queue("q")
    assert client.session.queue_shard("other", "1").stored.epoch == 3  # type: ignore[union-attr]


def test_a_shard_that_was_away_during_the_deletion(server: Server, fresh_server: FreshServer) -> None:
    away = fresh_server(aof_always=True)
    shards = {"here": server.url, "away": away.url}
    with Client(shards=shards, timeout_s=1) as client:
        client.create_queue("q")
        old = {shard: id_of(on(client, shard)) for shard in shards}
        away.stop()
        with pytest.raises(PartialDelete):
            client.delete_queue("q")
        assert server.call("EXISTS", queue_key("q", "here", "meta")) == 0
        with Client(shards=shards, timeout_s=1) as another:
            assert another.create_queue("q") is True
        away.start()
    with Client(shards=shards) as client:
        assert client.count("q").pending == 0
        assert {stored(client, shard).epoch for shard in shards} == {3}
        assert all(id_of(on(client, shard)) > old[shard] for shard in shards)
        assert client.delete_queue("q") is True
    for name, node in (("here", server), ("away", away)):
        assert node.call("KEYS", f"{PREFIX}*") == [remnant_keys("q", name)[0]]


def on(client: Client, shard: str) -> str:
    """A new job of the queue there."""
    while True:
        descriptor = client.enqueue("q", b"")
        if parse_descriptor(descriptor)[1] == shard:
            return descriptor


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_who_may_not_write_remnants_leaves_them_in_the_keys_of_the_queue(
    kind: Kind, fresh_server: FreshServer
) -> None:
    server = fresh_server(kind)
    rules = ("~pl:{acme_*", "&pl:{acme_*", "%W~pl:{*}:queues", "%R~pl:{*}:deleted:*")
    server.call("ACL", "SETUSER", "acme", "reset", "on", f">{PASSWORD}", "+@all", *rules)
    meta = queue_key("acme_q", "1", "meta")
    with Client(f"redis://acme:{PASSWORD}@127.0.0.1:{server.port}") as client:
        for epoch in (1, 3):
            assert client.create_queue("acme_q") is True
            assert client.session.queue_shard("acme_q", "1").stored.epoch == epoch  # type: ignore[union-attr]
            assert client.delete_queue("acme_q") is True
            assert server.call("KEYS", "*") == [meta]
    with Client(server.url) as admin:
        assert admin.delete_queue("acme_q") is False
    assert server.call("KEYS", "*") == [remnant_keys("acme_q", "1")[0]]
    with Client(f"redis://acme:{PASSWORD}@127.0.0.1:{server.port}") as client:
        assert client.create_queue("acme_q") is True
        assert client.session.queue_shard("acme_q", "1").stored.epoch == 5  # type: ignore[union-attr]


def test_what_a_client_knows_of_lost_data_removes_no_job(fresh_server: FreshServer) -> None:
    """It remembers a later epoch than the queue has that others made again after the loss."""
    servers = {name: fresh_server() for name in ("1", "2")}
    urls = {name: server.url for name, server in servers.items()}
    with Client(shards=urls) as old, Client(shards=urls) as new:
        old.create_queue("q")
        old.delete_queue("q")
        old.create_queue("q")
        old.enqueue_many("q", [NewJob(b"%d" % number, key=str(number)) for number in range(8)])
        for server in servers.values():
            server.call("FLUSHALL")
        new.create_queue("q")
        new.enqueue_many("q", [NewJob(b"%d" % number, key=str(number)) for number in range(8)])
        for number in range(8):
            old.enqueue("q", b"more", key=str(number))
        assert new.count("q").pending == 16
