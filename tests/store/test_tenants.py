"""Two tenants of one server, each with the user that docs/acl.md describes.

Promises: neither can stop, wake or read what the other has, by any command that its rights include. A message that says
what is not so stops no job. A user that may not publish leaves no half of a change.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson
import pytest
import redis
from redis.exceptions import NoPermissionError

from pinlater import AsyncClient, Client
from pinlater.cli.doctor.check_result import ERROR, OK, WARNING
from pinlater.cli.doctor.examine import examine
from pinlater.client.base import ClientSettings
from pinlater.model.errors import OutcomeUnknown, PinLaterError, ServerRefused
from pinlater.model.jobs import Job
from pinlater.operations.workers import beat, measure, worker_processes
from pinlater.store.keys import blocking_list_key, cancel_channel, queue_key, registry_key, result_channel, wake_channel
from pinlater.worker import monitor as monitor_module
from pinlater.worker.monitor import Monitor
from pinlater.worker.worker import Worker, WorkerConfig
from tests.conftest import FreshServer
from tests.support.audits import audit_queue
from tests.support.cli_runs import Run, run
from tests.support.handlers_for_tests import ShortJobs, idle, on_loop, until
from tests.support.paths import ROOT
from tests.support.servers import KINDS, Kind, Server

__all__ = ["run"]  # a fixture

PASSWORD = "correct-horse"  # noqa: S105
#: The words of the two users in docs/acl.md.
_BLOCKS = (ROOT / "docs" / "acl.md").read_text().split("```")
RULES = [word for word in _BLOCKS[1].split()[3:] if word[0] in "+-"]
PATTERNS = re.findall(r"(?<= )(?:\([^)]*\)|[~&%]\S+)", _BLOCKS[3])
#: What a tenant could write into the common list of names.
NO_NAMES = [b"\xff", b"bad name!", b"", b"x" * 300, b"acme}/1", "späte".encode()]


@dataclass
class Tenant:
    """A user of the server, and its queue."""

    server: Server
    name: str

    @property
    def queue(self) -> str:
        return f"{self.name}_mail"

    @property
    def url(self) -> str:
        return f"redis://{self.name}:{PASSWORD}@127.0.0.1:{self.server.port}"

    def set_up(self, *more: str) -> None:
        patterns = [word.replace("acme", self.name) for word in PATTERNS]
        reset = ("reset", "on", f">{PASSWORD}", "-@all", *RULES)
        self.server.call("ACL", "SETUSER", self.name, *reset, *patterns, *more)

    def connection(self) -> redis.Redis:
        return redis.Redis(port=self.server.port, username=self.name, password=PASSWORD)


@pytest.fixture
def tenants(server: Server) -> Iterator[tuple[Tenant, Tenant]]:
    acme, other = Tenant(server, "acme"), Tenant(server, "other")
    for tenant in (acme, other):
        tenant.set_up()
        with Client(tenant.url) as client:
            client.create_queue(tenant.queue)
    yield acme, other
    for tenant in (acme, other):
        server.call("ACL", "DELUSER", tenant.name)


@on_loop
async def test_a_tenant_works_with_its_rights_alone(tenants: tuple[Tenant, Tenant]) -> None:
    for tenant in tenants:
        ran: list[bytes] = []

        async def handler(job: Job, ran: list[bytes] = ran) -> None:
            ran.append(job.body)

        async with AsyncClient(tenant.url) as client, AsyncClient(tenant.url) as own:
            async with Worker(own, tenant.queue, handler) as worker:
                await idle(worker)
                await client.enqueue(tenant.queue, b"x")
                await until(lambda: worker.stats.succeeded == 1, "its end")
            await client.enqueue(tenant.queue, b"waited for")
            assert len(await client.dequeue(tenant.queue, wait=8)) == 1
        assert ran == [b"x"]
        found = {finding.check: finding.level for finding in examine(ClientSettings(tenant.url), [tenant.queue])}
        assert found["permissions"] == OK


def test_a_tenant_sees_its_own_workers_and_measures_alone(tenants: tuple[Tenant, Tenant]) -> None:
    acme, other = tenants
    with Client(acme.url, timeout_s=0.5) as client:
        own, foreign = (client.session.queue_shards(tenant.queue)[0] for tenant in (acme, other))
        record = orjson.dumps(
            {"host": "h", "process": 1, "version": "1", "concurrency": 1, "started_ms": 1, "running": 0, "jobs": []}
        )
        client.run(lambda end: beat(own, "one", record, b"0", end))
        client.run(lambda end: beat(own, "two", record, b"0", end))
        client.run(lambda end: beat(own, "two", b"", b"0", end))
        [found] = client.run(lambda end: worker_processes(client.session, [acme.queue], end))
        assert found.source == "one"
        assert client.run(lambda end: measure(own, bytes(8), 1000, end)) is not None
        with pytest.raises(ServerRefused):
            client.run(lambda end: beat(foreign, "one", record, b"0", end))
        with pytest.raises(ServerRefused):
            client.run(lambda end: worker_processes(client.session, [other.queue], end))
        with pytest.raises(ServerRefused):
            client.run(lambda end: measure(foreign, bytes(8), 1000, end))


def test_a_tenant_reads_and_changes_nothing_of_another(tenants: tuple[Tenant, Tenant]) -> None:
    acme, other = tenants
    session = bytes(8)
    with Client(other.url) as client:
        job = client.enqueue(other.queue, b"secret")
    with Client(acme.url, timeout_s=0.5) as client:
        for call in (
            lambda: client.count(other.queue),
            lambda: client.dequeue(other.queue),
            lambda: client.enqueue(other.queue, b"x"),
            lambda: client.lookup([job]),
            lambda: client.delete_jobs(descriptors=[job]),
            lambda: client.delete_queue(other.queue),
            lambda: client.dequeue(other.queue, wait=0.1),
            client.queue_names,
        ):
            with pytest.raises(PinLaterError):
                call()
    channels = [
        wake_channel(other.queue, "1", session),
        cancel_channel(other.queue, "1"),
        result_channel(other.queue, "1") + b"0" * 16,
    ]
    keys = [queue_key(other.queue, "1", "jobs"), blocking_list_key(other.queue, "1", session)]
    with acme.connection() as connection:
        load = connection.script_load("return redis.call(unpack(ARGV))")
        for command in (
            *[("PUBLISH", channel, b"") for channel in channels],
            *[("SUBSCRIBE", channel) for channel in channels],
            *[("RPUSH", key, b"") for key in keys],
            *[("UNLINK", key) for key in keys],
            ("SMEMBERS", registry_key("1")),
        ):
            with pytest.raises(NoPermissionError):
                connection.execute_command(*command)
            if command[0] != "SUBSCRIBE":
                with pytest.raises(redis.RedisError, match=r"(?i)permission|can't"):
                    connection.evalsha(load, 0, *command)
        with pytest.raises(NoPermissionError):
            connection.execute_command("PSUBSCRIBE", "*")
    with Client(other.url) as client:
        assert client.lookup([job], with_body=True)[job].body == b"secret"


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_list_of_names_a_tenant_may_add_and_remove_and_nothing_else(
    kind: Kind, fresh_server: FreshServer
) -> None:
    tenant, key = Tenant(fresh_server(kind), "acme"), registry_key("1")
    tenant.set_up()
    with tenant.connection() as connection:
        assert (connection.sadd(key, "acme_x"), connection.srem(key, "acme_x")) == (1, 1)
        load = connection.script_load("return redis.call(unpack(ARGV))")
        for command in (
            ("SMEMBERS", key),
            ("UNLINK", key),
            ("EXISTS", key),
            ("HSET", key, "a", "b"),
            ("ZADD", key, 1, "a"),
            ("RPUSH", key, "a"),
            ("PEXPIRE", key, 1),
        ):
            with pytest.raises(NoPermissionError):
                connection.execute_command(*command)
            with pytest.raises(redis.RedisError, match=r"(?i)permission|can't"):
                connection.evalsha(load, 0, *command)
    with Client(tenant.url) as client:
        assert client.create_queue(tenant.queue)
        assert client.delete_queue(tenant.queue)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_selector_a_tenant_uses_queues_that_somebody_else_made(
    kind: Kind, fresh_server: FreshServer
) -> None:
    tenant = Tenant(fresh_server(kind), "acme")
    tenant.set_up("clearselectors")
    with Client(tenant.url) as client, Client(tenant.server.url) as admin:
        with pytest.raises(ServerRefused):
            client.create_queue(tenant.queue)
        assert admin.create_queue(tenant.queue)
        job = client.enqueue(tenant.queue, b"x")
        assert [held.descriptor for held in client.dequeue(tenant.queue, wait=5)] == [job]
        with pytest.raises(NoPermissionError), tenant.connection() as connection:
            connection.sadd(registry_key("1"), "x")
    asyncio.run(_work_once(tenant))


async def _work_once(tenant: Tenant) -> None:
    async with AsyncClient(tenant.url) as client, Worker(client, tenant.queue, _do_nothing) as worker:
        await idle(worker)
        await client.enqueue(tenant.queue, b"x")
        await until(lambda: worker.stats.succeeded == 1, "its end")


async def _do_nothing(job: Job) -> None:
    pass


@pytest.mark.parametrize("member", NO_NAMES)
@on_loop
async def test_what_is_no_name_in_the_list_stops_no_monitor(
    tenants: tuple[Tenant, Tenant], member: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, other = tenants
    monkeypatch.setattr(monitor_module, "REDISCOVER_S", 0.0)
    async with AsyncClient(acme.server.url) as client:
        monitor = Monitor(client)
        await monitor.run_once()
        watches = dict(monitor.watches)
        assert {queue_shard.queue for queue_shard in watches} == {acme.queue, other.queue}
        with acme.connection() as connection:
            connection.sadd(registry_key("1"), member)
        for _ in range(3):
            await monitor.run_once()
            assert monitor.watches == watches
        later = Monitor(client)
        await later.run_once()
        assert set(later.watches) == set(watches)
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logged) == 1
    assert "has 1 entries that are no queue names" in logged[0]


def test_commands_and_doctor_leave_out_what_is_no_name(tenants: tuple[Tenant, Tenant], run: Run) -> None:
    acme, other = tenants
    with acme.connection() as connection:
        connection.sadd(registry_key("1"), *NO_NAMES)
    code, out, _ = run("--json", "queue", "ls")
    assert (code, acme.queue in out, other.queue in out) == (0, True, True)
    results = examine(ClientSettings(acme.server.url), [])
    assert [(one.level, one.found[:9]) for one in results if one.check == "registry"] == [(WARNING, "6 entries")]
    assert ERROR not in {one.level for one in results}
    assert run("doctor", "--audit").code in (0, 1)


@on_loop
async def test_a_list_that_cannot_be_read_leaves_monitors_what_they_know(
    tenants: tuple[Tenant, Tenant], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme, other = tenants
    monkeypatch.setattr(monitor_module, "REDISCOVER_S", 0.0)
    async with AsyncClient(acme.server.url) as client:
        monitor = Monitor(client)
        await monitor.run_once()
        watches = dict(monitor.watches)
        assert {queue_shard.queue for queue_shard in watches} == {acme.queue, other.queue}
        acme.server.call("UNLINK", registry_key("1"))
        acme.server.call("HSET", registry_key("1"), "a", "b")
        await monitor.run_once()
        assert monitor.watches == watches
        assert "queues not listed: SMEMBERS of the registry of" in caplog.text

        def fails(*_: object) -> list[str]:
            raise RuntimeError("not foreseen")

        monkeypatch.setattr(monitor_module, "queue_names", fails)
        await monitor.run_once()
        assert monitor.watches == watches
        assert "RuntimeError: not foreseen" in caplog.text
        acme.server.call("UNLINK", registry_key("1"))


@on_loop
async def test_a_message_alone_stops_no_job(server: Server) -> None:
    gate, ran = asyncio.Event(), list[bytes]()

    async def handler(job: Job) -> None:
        ran.append(job.body)
        await gate.wait()

    def say_removed(descriptor: str) -> None:
        server.call("PUBLISH", cancel_channel("q", "1"), int(descriptor.rpartition(":")[2]).to_bytes(8, "big") + b"odd")

    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("q")
        async with Worker(own, "q", handler, WorkerConfig(monitor=False, concurrency=2, prefetch=2)) as worker:
            worker.jobs.rate = ShortJobs()
            jobs = await client.enqueue_many("q", [b"%d" % number for number in range(4)])
            await until(lambda: len(ran) == 2 and len(worker.prefetched) == 2, "two running jobs, two prefetched")
            for kept, removed in ((jobs[0], jobs[1]), (jobs[2], jobs[3])):
                cancelled = worker.stats.cancelled
                say_removed(kept)
                assert await client.delete_jobs(descriptors=[removed]) == 1
                # its message came after the other one
                await until(lambda: worker.stats.cancelled > cancelled, "an end")  # noqa: B023
            gate.set()
            await until(lambda: worker.stats.succeeded == 2, "the others")
        assert (worker.stats.cancelled, worker.stats.failed) == (2, 0)
    assert sorted(ran) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_not_publish_changes_jobs_all_the_same(kind: Kind, fresh_server: FreshServer) -> None:
    tenant = Tenant(fresh_server(kind), "acme")
    tenant.set_up()
    with Client(tenant.url) as client:
        client.create_queue(tenant.queue)
        waiters, meta = queue_key(tenant.queue, "1", "waiters"), queue_key(tenant.queue, "1", "meta")
        tenant.server.call("ZADD", waiters, 1, b"0" * 16)
        head = tenant.server.call("HGET", meta, "head")
        tenant.server.call("HSET", meta, "head", head[:14] + b"\1" + head[15:])  # there may be waiters
        tenant.set_up("resetchannels")
        first = client.enqueue(tenant.queue, b"first")
        assert tenant.server.call("ZCARD", waiters) == 0  # it was to be notified
        (claimed,) = client.dequeue(tenant.queue)
        assert claimed.descriptor == first
        assert client.delete_jobs(descriptors=[first]) == 1
        client.enqueue(tenant.queue, b"second")
        assert client.count(tenant.queue).pending == 1
        with Client(tenant.server.url) as admin:
            assert audit_queue(admin, tenant.queue).ok
        with pytest.raises(ServerRefused, match="may not subscribe"):
            client.dequeue(tenant.queue, wait=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_that_is_denied_half_way_has_an_unknown_outcome(kind: Kind, fresh_server: FreshServer) -> None:
    tenant = Tenant(fresh_server(kind), "acme")
    tenant.set_up("-zadd")
    with Client(tenant.url) as client:
        client.create_queue(tenant.queue)
        with pytest.raises(OutcomeUnknown, match="stopped half-way"):
            client.enqueue(tenant.queue, b"x")
        with pytest.raises(OutcomeUnknown, match="stopped half-way"):
            client.enqueue_many(tenant.queue, [b"x"] * 3)
        tenant.set_up("-evalsha")
        with pytest.raises(ServerRefused):
            client.enqueue(tenant.queue, b"x")
