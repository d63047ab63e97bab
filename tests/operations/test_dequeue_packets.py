"""Dequeues that leave in one packet: operations/dequeue_now.StartedDequeues, on real servers.

Promises: each dequeue gets jobs of its own, and as many as if it had come alone; those of one source share a claim; an
answer that was lost is asked for again, and what stays unknown is kept for the next claim.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from pinlater import AsyncClient, Job, OutcomeUnknown, QueueConfig, _core
from pinlater.model.errors import ServerUnavailable
from pinlater.operations.dequeue_now import StartedDequeues, only_queue_shard
from pinlater.operations.leases import NONE_REFUSED, RefusedAcks
from pinlater.store.effects import NoAnswer
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server
from tests.support.thrift_wire import IDL, arguments

#: An answer that was lost behind a command that may have run.
LOST = NoAnswer(True, ServerUnavailable("cut off"))


@asynccontextmanager
async def a_client(url: str, **config: Any) -> AsyncIterator[AsyncClient]:
    """A client that knows the queue "mail"."""
    async with AsyncClient(url, timeout_s=5) as client:
        await client.create_queue("mail", QueueConfig(lease_ms=600_000, **config))
        yield client


def start(client: AsyncClient, asked: Sequence[tuple[int, str]], acks: Sequence[_core.AckCall] = ()) -> StartedDequeues:
    queue_shard = only_queue_shard(client.session, "mail")
    assert queue_shard is not None
    limits, sources = zip(*asked, strict=True)
    return StartedDequeues(client.session, queue_shard, limits, sources, acks, False)


async def carried_out(client: AsyncClient, started: StartedDequeues) -> StartedDequeues:
    started.take(await client.driver.send(started.server, started.commands, float("inf")))
    await client.run(started.finish)
    return started


async def jobs_of(client: AsyncClient, started: StartedDequeues) -> list[list[Job]]:
    """The jobs of each dequeue: of its part, or found by going on."""
    found = []
    for number, part in enumerate(started.share_out()):
        found.append(part.jobs if part is not None else (await client.run(partial(started.jobs, number)))[0])
    return found


def bodies(found: list[list[Job]]) -> list[list[int]]:
    return [[int(job.body.split()[0]) for job in jobs] for jobs in found]


def ack_of(source: str, jobs: Sequence[Job]) -> _core.AckCall:
    infos = [IDL.PinLaterJobAckInfo(job.descriptor) for job in jobs]
    request = IDL.PinLaterJobAckRequest("mail", infos)
    return _core.read_ack(arguments("ackDequeuedJobs", request, IDL.RequestContext(source)), 0)


@on_loop
async def test_dequeues_of_one_source_share_a_claim(server: Server) -> None:
    async with a_client(server.url) as client:
        await client.enqueue_many("mail", [b"%d" % at for at in range(12)])
        started = start(client, [(3, "a"), (2, "b"), (4, "a")])
        assert len(started.commands) == 2
        await carried_out(client, started)
        assert bodies(await jobs_of(client, started)) == [[0, 1, 2], [7, 8], [3, 4, 5, 6]]
        claims = {info.claim for info in (await client.lookup(client_jobs(started))).values()}
        assert sorted(claim.split(":")[3] for claim in claims) == ["a", "b"]
        # less than they ask for, then nothing: nobody is told that there is more
        started = await carried_out(client, start(client, [(2, "a"), (9, "a"), (9, "a")]))
        assert None not in started.share_out()
        assert bodies(await jobs_of(client, started)) == [[9, 10], [11], []]
        assert bodies(await jobs_of(client, await carried_out(client, start(client, [(1, "a"), (1, "b")])))) == [[], []]


def client_jobs(started: StartedDequeues) -> list[str]:
    return [job.descriptor for part in started.share_out() if part is not None for job in part.jobs]


@on_loop
async def test_a_claim_has_at_most_500_jobs(server: Server) -> None:
    async with a_client(server.url) as client:
        await client.enqueue_many("mail", [b"%d" % at for at in range(1000)])
        started = start(client, [(300, "a"), (300, "a"), (200, "a"), (200, "a")])
        assert len(started.commands) == 3  # 300, 500, 200
        await carried_out(client, started)
        assert [part is None for part in started.share_out()] == [False] * 4
        found = bodies(await jobs_of(client, started))
    assert [len(each) for each in found] == [300, 300, 200, 200]
    assert len({body for each in found for body in each}) == 1000


@on_loop
async def test_a_claim_that_its_bytes_end_leaves_nobody_short(server: Server) -> None:
    """A reply has at most 1 MiB: the last dequeues of a claim go on alone."""
    async with a_client(server.url) as client:
        await client.enqueue_many("mail", [b"%d %s" % (at, bytes(200_000)) for at in range(12)])
        started = await carried_out(client, start(client, [(4, "a"), (4, "a"), (4, "a")]))
        assert [part is None for part in started.share_out()] == [False, True, True]
        found = bodies(await jobs_of(client, started))
    assert [len(each) for each in found] == [4, 4, 4]
    assert sorted(body for each in found for body in each) == [*range(12)]


@on_loop
async def test_dequeues_of_large_jobs_do_not_share_more_than_a_reply_has_room_for(server: Server) -> None:
    async with a_client(server.url) as client:
        await client.enqueue_many("mail", [b"%d %s" % (at, bytes(100_000)) for at in range(20)])
        await carried_out(client, first := start(client, [(1, "a")]))
        assert first.share_out() != [None]
        started = start(client, [(4, "a"), (4, "a"), (4, "a"), (1, "a")])
        assert len(started.commands) == 2
        await carried_out(client, started)
        assert None not in started.share_out()


@on_loop
async def test_a_claim_without_tokens_gives_nothing_once_the_queue_has_a_rate(server: Server) -> None:
    async with a_client(server.url) as client:
        await client.enqueue_many("mail", [b"0", b"1"])
        started = start(client, [(2, "a")])
        async with AsyncClient(server.url) as operator:
            await operator.configure_queue("mail", rate="1/h", burst=1)
        await carried_out(client, started)
        assert await jobs_of(client, started) == [[]]
        assert (await client.count("mail")).pending == 2


@on_loop
async def test_parts_of_a_claim_are_released_apart(server: Server) -> None:
    async with a_client(server.url) as client:
        await client.enqueue_many("mail", [b"%d" % at for at in range(4)])
        first, second = await jobs_of(client, await carried_out(client, start(client, [(2, "a"), (2, "a")])))
        assert await client.release(first) == []
        assert await client.ack(succeeded=second) == []
        assert [int(job.body) for job in await client.dequeue("mail", 9)] == [0, 1]


@on_loop
async def test_acks_go_before_the_claims_and_have_outcomes_of_their_own(server: Server) -> None:
    async with a_client(server.url) as client:
        await client.enqueue_many("mail", [b"%d" % at for at in range(6)])
        first, second = await jobs_of(client, await carried_out(client, start(client, [(2, "a"), (1, "b")])))
        acks = [ack_of("b", first), ack_of("b", second)]
        started = await carried_out(client, start(client, [(2, "b"), (2, "b")], acks))
        assert started.acks == [RefusedAcks(2, 0), NONE_REFUSED]
        assert bodies(await jobs_of(client, started)) == [[3, 4], [5]]
        # those that were refused run on
        assert (await client.count("mail")).in_progress == 5


@on_loop
@pytest.mark.parametrize("order", [("late", "holder"), ("holder", "late")], ids=["late first", "holder first"])
async def test_a_late_ack_beside_it_costs_the_holder_nothing(server: Server, order: tuple[str, str]) -> None:
    async with a_client(server.url) as client:
        await client.enqueue("mail", b"0")
        [[job]] = await jobs_of(client, await carried_out(client, start(client, [(1, "holder")])))
        acks = [ack_of(source, [job]) for source in order]
        started = await carried_out(client, start(client, [(1, source) for source in order], acks))
        refused = {"holder": NONE_REFUSED, "late": RefusedAcks(1, 0)}
        assert started.acks == [refused[source] for source in order]
        assert (await client.count("mail")).in_progress == 0


@on_loop
async def test_an_answer_that_was_lost_is_asked_for_again(server: Server) -> None:
    async with a_client(server.url) as client:
        await client.enqueue_many("mail", [b"%d" % at for at in range(5)])
        (mine,) = await jobs_of(client, await carried_out(client, start(client, [(1, "a")])))
        started = start(client, [(2, "a"), (1, "b"), (1, "a")], [ack_of("a", mine)])
        answers = await client.driver.send(started.server, started.commands, float("inf"))
        started.take([LOST] * len(answers))
        assert not started.is_finished
        await client.run(started.finish)
        assert started.is_finished
        assert started.acks == [NONE_REFUSED]
        assert bodies(await jobs_of(client, started)) == [[1, 2], [4], [3]]
        assert (await client.count("mail")).in_progress == 4


@on_loop
async def test_what_stays_unknown_is_kept_and_released_by_the_next(server: Server) -> None:
    with CutProxy(server.port) as proxy:
        async with a_client(proxy.url) as client:
            await client.enqueue_many("mail", [b"%d" % at for at in range(4)])
            proxy.arm(Cut.AFTER, count=1_000)
            started = start(client, [(2, "a"), (2, "a")])
            started.take(await client.driver.send(started.server, started.commands, float("inf")))
            await client.run(lambda end_s: started.finish(end_s - 4.5))
            proxy.disarm()
            queue_shard = client.session.queue_shard("mail", next(iter(client.session.shards)))
            assert queue_shard.lost_claims.pending
            assert started.share_out() == [None, None]
            for number in range(2):
                with pytest.raises(OutcomeUnknown):
                    await client.run(partial(started.jobs, number))
            assert only_queue_shard(client.session, "mail") is None  # the next claim asks for it first
            assert [int(job.body) for job in await client.dequeue("mail", 9)] == [0, 1, 2, 3]
