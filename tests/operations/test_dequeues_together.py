"""Dequeues of several shards that leave together: operations/dequeue_now.dequeue_together, on real servers.

Promises: each dequeue gets jobs of its own. Those of one source share their claims. Acks have outcomes of their own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from pinlater import AsyncClient, Job, QueueConfig, _core
from pinlater.model.errors import PinLaterError
from pinlater.operations.dequeue_now import FoundTogether, dequeue_together, shared_shards
from pinlater.operations.leases import NONE_REFUSED, RefusedAcks
from tests.operations.test_dequeue_packets import ack_of
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server

SHARDS = ("1", "2", "3")
MIB = 1024 * 1024


@asynccontextmanager
async def a_client(server: Server, **config: Any) -> AsyncIterator[AsyncClient]:
    """A client that knows the queue "mail" on three shards."""
    async with AsyncClient(shards=dict.fromkeys(SHARDS, server.url), timeout_s=5) as client:
        await client.create_queue("mail", QueueConfig(lease_ms=600_000, **config))
        yield client


async def together(
    client: AsyncClient, asked: Sequence[tuple[int, str]], acks: Sequence[_core.AckCall | None] | None = None
) -> list[FoundTogether]:
    limits, sources = zip(*asked, strict=True)
    flow = partial(dequeue_together, client.session, "mail", limits, sources, acks or [None] * len(asked), False)
    return await client.run(flow)


def jobs_of(found: Sequence[FoundTogether]) -> list[list[Job]]:
    each = [one.jobs for one in found]
    assert not any(isinstance(jobs, PinLaterError) for jobs in each)
    return each  # type: ignore[return-value]


async def fill(client: AsyncClient, count: int, size: int = 0) -> None:
    """Jobs on all shards."""
    for at in range(count):
        await client.enqueue("mail", bytes(size), key=b"%d" % at)


@on_loop
async def test_each_gets_jobs_of_its_own_and_those_of_one_source_share_claims(server: Server) -> None:
    async with a_client(server) as client:
        await fill(client, 60)
        found = jobs_of(await together(client, [(10, "a"), (20, "b"), (15, "a")]))
        assert [len(jobs) for jobs in found] == [10, 20, 15]
        named = [job.descriptor for jobs in found for job in jobs]
        assert len(set(named)) == 45
        infos = await client.lookup(named)
        for jobs, source in zip(found, "aba", strict=True):
            assert {infos[job.descriptor].claim.split(":")[3] for job in jobs} == {source}
        assert (await client.count("mail")).pending == 15


@on_loop
async def test_the_first_ones_get_what_there_is(server: Server) -> None:
    async with a_client(server) as client:
        await fill(client, 5)
        found = jobs_of(await together(client, [(3, "a"), (3, "a"), (3, "a")]))
        assert [len(jobs) for jobs in found] == [3, 2, 0]
        assert jobs_of(await together(client, [(3, "a"), (3, "b")])) == [[], []]


@on_loop
async def test_acks_have_outcomes_of_their_own(server: Server) -> None:
    async with a_client(server) as client:
        await fill(client, 30)
        [first, second] = jobs_of(await together(client, [(6, "a"), (6, "b")]))
        acks = [ack_of("a", first), ack_of("a", second), None]
        found = await together(client, [(1, "a"), (2, "a"), (3, "c")], acks)
        assert [one.refused for one in found] == [NONE_REFUSED, RefusedAcks(6, 0), NONE_REFUSED]
        assert [len(jobs) for jobs in jobs_of(found)] == [1, 2, 3]
        assert (await client.count("mail")).in_progress == 6 + 6


@on_loop
@pytest.mark.parametrize(("size", "limit", "count"), [(MIB, 4, 3), (900_000, 1, 10), (300_000, 1, 10), (600_000, 2, 4)])
async def test_nobody_goes_without_a_job_as_others_took_the_bytes(
    server: Server, size: int, limit: int, count: int
) -> None:
    async with a_client(server) as client:
        await fill(client, 40, size)
        for _ in range(2):  # the size of jobs is known the second time
            found = jobs_of(await together(client, [(limit, "a")] * count))
            assert all(found)
            assert len({job.descriptor for jobs in found for job in jobs}) == sum(map(len, found))


@on_loop
async def test_old_hints_of_shards_that_are_empty_leave_nobody_without_jobs(server: Server) -> None:
    async with a_client(server) as client, a_client(server) as other:
        await fill(client, 60)
        for queue_shard in client.session.queue_shards("mail"):
            queue_shard.left, queue_shard.left_at_s = [10, 0, 0], time.monotonic() + 60
        jobs = await other.dequeue("mail", 100)
        assert len(jobs) == 60
        await other.release([job for job in jobs if job.shard == SHARDS[-1]])
        assert len(await client.dequeue("mail", 10)) == 10


@on_loop
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_queues_with_limits_share_nothing(server: Server) -> None:
    async with a_client(server) as client:
        assert shared_shards(client.session, "mail") == [*SHARDS]
        await client.configure_queue("mail", rate="1/s")
        assert shared_shards(client.session, "mail") == []
        assert shared_shards(client.session, "unknown") == []
