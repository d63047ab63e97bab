"""A call without an answer before its deadline: it raises OutcomeUnknown, and resolve() gets its outcome later.

Promises: each write of both clients is tried when it was carried out and when it was not. The lane of an unknown
outcome carries no other request until it is resolved or dropped.
Risks: the call that is cut has a short deadline.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from pinlater import AsyncClient, Client, CountsByState, NewJob, QueueConfig
from pinlater._core import Claim
from pinlater.model.errors import OutcomeUnknown, PartialDelete, PartialEnqueue, QueueNotFound, ServerRefused
from pinlater.operations.claim_round import claim_round
from pinlater.operations.dequeue import dequeue
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import shard_for_key
from tests.support.both_clients import CALLS_KINDS, Calls, CallsKind, make_calls
from tests.support.cut_cases import BODIES, WRITES, Case, Make, begin, direct, make, of, proxy, sent
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server

__all__ = ["direct", "make", "proxy"]  # fixtures

SHORT_S = 0.03  # a deadline with time for tries after 1, 2, 4 ... ms
ALWAYS = 10**9

ENQUEUE = next(case for case in WRITES if case.name == "enqueue")
ACK = next(case for case in WRITES if case.name == "ack succeeded")
RESOLVABLE = [case for case in WRITES if case.name != "delete_queue"]  # it asks for another call instead


@contextmanager
def deadline(client: Client | AsyncClient, seconds: float) -> Iterator[None]:
    settings = client.settings
    before, settings.timeout_s = settings.timeout_s, seconds
    yield
    settings.timeout_s = before


def unknown(case: Case, calls: Calls, queue: str, needed: Any, proxy: CutProxy, cut: Cut) -> OutcomeUnknown:
    """The error of a call whose every try is cut. The outage ends with it."""
    proxy.arm(cut, match=of(case, queue), count=ALWAYS)
    with deadline(calls.client, SHORT_S), pytest.raises(OutcomeUnknown) as raised:
        case.call(calls, queue, needed)
    proxy.disarm()
    return raised.value


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
@pytest.mark.parametrize("case", RESOLVABLE, ids=lambda case: case.name)
def test_resolve_gives_the_answer_of_the_call(
    case: Case, cut: Cut, make: Make, direct: Client, proxy: CutProxy
) -> None:
    calls = make()
    needed = begin(case, calls, direct, "q")
    before, tries_before = case.left(direct, "q"), len(sent(proxy, case, "q"))
    error = unknown(case, calls, "q", needed, proxy, cut)
    assert case.left(direct, "q") == (case.after if cut is Cut.AFTER else before)
    assert "resolve() asks again" in str(error)
    assert "queue 'q'" in str(error)
    answer = calls.resolve(error)
    assert case.holds(direct, "q", answer, needed)
    tries = sent(proxy, case, "q")[tries_before:]
    assert len(tries) >= 2, "one of the call at least, and one of resolve()"
    assert len({(seen.lane, seen.sequence) for seen in tries}) == 1
    assert calls.resolve(error) == answer
    assert len(sent(proxy, case, "q")) == tries_before + len(tries), "what is known is not asked again"


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
def test_delete_queue_says_to_call_it_again(cut: Cut, make: Make, direct: Client, proxy: CutProxy) -> None:
    case = next(case for case in WRITES if case.name == "delete_queue")
    calls = make()
    begin(case, calls, direct, "q")
    proxy.arm(cut, match=of(case, "q"), count=ALWAYS)
    with deadline(calls.client, SHORT_S), suppress(PartialDelete):  # PartialDelete if another try found it deleted
        assert calls.delete_queue("q") is True
    proxy.disarm()
    calls.delete_queue("q")
    assert case.left(direct, "q") is None


def test_resolve_can_be_called_until_the_outage_is_over(make: Make, direct: Client, proxy: CutProxy) -> None:
    calls = make()
    begin(ENQUEUE, calls, direct, "q")
    error = unknown(ENQUEUE, calls, "q", None, proxy, Cut.AFTER)
    proxy.arm(Cut.AFTER, match=of(ENQUEUE, "q"), count=ALWAYS)
    with deadline(calls.client, SHORT_S):
        for _ in range(2):
            with pytest.raises(OutcomeUnknown) as raised:
                calls.resolve(error)
    proxy.disarm()
    answer = calls.resolve(raised.value)
    assert ENQUEUE.holds(direct, "q", answer, None)
    assert calls.resolve(error) == answer


def test_the_lane_of_an_unknown_outcome_carries_nothing_else(make: Make, direct: Client, proxy: CutProxy) -> None:
    calls = make()
    begin(ENQUEUE, calls, direct, "q")
    error = unknown(ENQUEUE, calls, "q", None, proxy, Cut.BEFORE)
    parked = sent(proxy, ENQUEUE, "q")[-1]
    calls.enqueue("q", b"other")
    assert sent(proxy, ENQUEUE, "q")[-1].lane != parked.lane
    first = calls.resolve(error)
    others = {calls.enqueue("q", b"another") for _ in range(3)}
    assert calls.resolve(error) == first  # although its lane has carried other requests since
    assert first not in others
    assert direct.count("q").pending == 5


def test_the_lane_of_a_dropped_outcome_is_used_again(make: Make, direct: Client, proxy: CutProxy) -> None:
    """Otherwise many outages would use up the lanes of a client."""
    calls = make()
    begin(ENQUEUE, calls, direct, "q")
    unknown(ENQUEUE, calls, "q", None, proxy, Cut.BEFORE)
    calls.count("q")  # behind it the loop of another thread holds nothing of the call any more
    gc.collect()  # the error and its traceback form a cycle
    parked = sent(proxy, ENQUEUE, "q")[-1]
    calls.enqueue("q", b"body")
    last = sent(proxy, ENQUEUE, "q")[-1]
    assert last.lane == parked.lane
    assert (last.sequence or 0) > (parked.sequence or 0)


def test_a_resend_that_finds_the_queue_deleted_is_unknown(make: Make, direct: Client, proxy: CutProxy) -> None:
    """The first try may have been carried out before the queue was deleted: its lane was deleted with the queue."""
    calls = make()
    begin(ENQUEUE, calls, direct, "q")
    error = unknown(ENQUEUE, calls, "q", None, proxy, Cut.AFTER)
    direct.delete_queue("q")
    with pytest.raises(OutcomeUnknown, match="no such queue"):
        calls.resolve(error)
    direct.create_queue("q")
    with pytest.raises(QueueNotFound):
        calls.enqueue("nowhere", b"body")


def test_a_resend_that_the_server_refuses_is_unknown(make: Make, server: Server, proxy: CutProxy) -> None:
    """NOPERM is no answer to the first try."""
    server.call("ACL", "SETUSER", "worker", "reset", "on", ">secret", "+@all", "~*", "&*")
    with Client(server.url) as direct:
        direct.create_queue("q")
        calls = make_calls("sync", proxy.url.replace("://", "://worker:secret@"))
        try:
            calls.count("q")
            error = unknown(ENQUEUE, calls, "q", None, proxy, Cut.AFTER)
            server.call("ACL", "SETUSER", "worker", "-evalsha")
            with pytest.raises(OutcomeUnknown, match="NOPERM"):
                calls.resolve(error)
            with pytest.raises(ServerRefused, match="NOPERM"):
                calls.enqueue("q", b"body")
            server.call("ACL", "SETUSER", "worker", "+evalsha")
            assert ENQUEUE.holds(direct, "q", calls.resolve(error), None)
        finally:
            calls.close()
            server.call("ACL", "DELUSER", "worker")


def test_a_resend_gets_the_answer_of_the_first_try(make: Make, direct: Client, proxy: CutProxy) -> None:
    """Although the configuration no longer allows the call."""
    calls = make()
    begin(ENQUEUE, calls, direct, "q")
    error = unknown(ENQUEUE, calls, "q", None, proxy, Cut.AFTER)
    direct.configure_queue("q", body_limit=1, refuse_enqueue=True)
    assert calls.queue_config("q") == QueueConfig(body_limit=1, refuse_enqueue=True)
    assert ENQUEUE.holds(direct, "q", calls.resolve(error), None)


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_each_unknown_part_of_a_large_enqueue_resolves(
    kind: CallsKind, cut: Cut, direct: Client, proxy: CutProxy
) -> None:
    calls = make_calls(kind, proxy.url)
    bodies = [b"%d" % number for number in range(2500)]
    try:
        begin(ENQUEUE, calls, direct, "q")
        # the cut of the second part ends the connection, so the third part has no answer either
        proxy.arm(cut, match=of(ENQUEUE, "q"), nth=2, count=ALWAYS)
        with deadline(calls.client, SHORT_S), pytest.raises(PartialEnqueue) as raised:
            calls.enqueue_many("q", bodies)
        proxy.disarm()
        results = raised.value.results
        assert [isinstance(result, str) for result in results] == [True] * 1000 + [False] * 1500
        # resolves one of each part first: the others then get a known outcome
        for position in (1000, 2400, *range(1001, 2500)):
            if isinstance(unresolved := results[position], OutcomeUnknown):
                results[position] = calls.resolve(unresolved)
        infos = direct.lookup([result for result in results if isinstance(result, str)], with_body=True)
        assert [info.body for info in infos.values()] == bodies
        assert direct.count("q").pending == 2500
    finally:
        calls.close()


def lose_together(calls: Calls, case: Case, proxy: CutProxy, cut: Cut, coroutines: Any) -> list[Any]:
    """The error of each of several calls of one loop turn, whose one script call is cut."""

    async def together() -> list[Any]:
        return list(await asyncio.gather(*coroutines(), return_exceptions=True))

    proxy.arm(cut, match=of(case, "q"), count=ALWAYS)
    with deadline(calls.client, SHORT_S):
        errors: list[Any] = calls.wait(together)
    proxy.disarm()
    assert all(isinstance(error, OutcomeUnknown) for error in errors), errors
    assert len({(seen.lane, seen.sequence) for seen in sent(proxy, case, "q")}) == 1, "they left as one"
    return errors


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
def test_each_of_coalesced_enqueues_gets_its_own_descriptor(cut: Cut, direct: Client, proxy: CutProxy) -> None:
    calls = make_calls("async", proxy.url)
    bodies = [b"%d" % number for number in range(10)]
    try:
        begin(ENQUEUE, calls, direct, "q")
        errors = lose_together(calls, ENQUEUE, proxy, cut, lambda: [calls.client.enqueue("q", body) for body in bodies])

        async def resolve_all() -> list[Any]:
            return list(await asyncio.gather(*[error.resolve() for error in errors]))

        descriptors = calls.wait(resolve_all)
        assert [info.body for info in direct.lookup(descriptors, with_body=True).values()] == bodies
        assert [calls.resolve(error) for error in errors] == descriptors
        assert direct.count("q") == CountsByState(pending=10)
    finally:
        calls.close()


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
def test_each_of_coalesced_acks_gets_its_own_refusals(cut: Cut, direct: Client, proxy: CutProxy) -> None:
    calls = make_calls("async", proxy.url)
    try:
        direct.create_queue("q")
        direct.enqueue_many("q", [b"%d" % number for number in range(4)])
        jobs = direct.dequeue("q", 4)
        direct.release([jobs[1]])
        calls.count("q")
        errors = lose_together(calls, ACK, proxy, cut, lambda: [calls.client.ack(succeeded=[job]) for job in jobs])
        answers = [calls.resolve(error) for error in errors]
        assert answers == [[], [jobs[1]], [], []]
        assert direct.count("q") == CountsByState(pending=1)
    finally:
        calls.close()


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
def test_coalesced_enqueues_on_several_shards_resolve_alone(cut: Cut, server: Server, proxy: CutProxy) -> None:
    """They leave as one part a shard. Each caller's resolve() returns its own descriptor."""
    shards = {"a": proxy.url, "b": proxy.url}
    with Client(shards={"a": server.url, "b": server.url}) as direct:
        calls = make_calls("async", shards=shards)
        try:
            begin(ENQUEUE, calls, direct, "q")
            jobs = [NewJob(b"%d" % number, key=str(number)) for number in range(8)]

            async def together() -> list[Any]:
                each = [calls.client.enqueue("q", job.body, key=job.key) for job in jobs]
                return list(await asyncio.gather(*each, return_exceptions=True))

            proxy.arm(cut, match=of(ENQUEUE, "q"), count=ALWAYS)
            with deadline(calls.client, SHORT_S):
                errors = calls.wait(together)
            proxy.disarm()
            descriptors = [calls.resolve(error) for error in errors]
            infos = direct.lookup(descriptors, with_body=True)
            assert [infos[descriptor].body for descriptor in descriptors] == [job.body for job in jobs]
            assert direct.count("q").pending == len(BODIES) * 4
        finally:
            calls.close()


@on_loop
async def test_jobs_of_a_claim_that_is_answered_late_are_held_since_it_was_sent(server: Server) -> None:
    with CutProxy(server.port) as proxy:
        async with AsyncClient(shards={"a": server.url, "b": proxy.url}, timeout_s=5) as client:
            await client.create_queue("q")
            key = next(str(n) for n in range(100) if shard_for_key(str(n).encode(), ["a", "b"]) == "b")
            await client.enqueue("q", b"", key=key)
            session, queue_shard = client.session, client.session.queue_shard("q", "b")

            async def claim(seconds: float) -> list[Claim]:
                end_s = time.monotonic() + seconds
                return await client.run(lambda _: claim_round(session, session.queue_shards("q"), 9, False, "", end_s))

            proxy.arm(Cut.AFTER, match=lambda command: command[1] == load_scripts()["claim"].sha, count=ALWAYS)
            started_s = time.monotonic()
            assert [one for one in await claim(SHORT_S) if one.jobs] == []
            ended_s = time.monotonic()
            proxy.disarm()
            queue_shard.silent_until_s = 0.0
            (late,) = [one for one in await claim(5.0) if one.jobs]
            assert started_s <= queue_shard.lost_claims.take_sent_s(late.token, 0.0) <= ended_s


@pytest.mark.parametrize("cancelled", [False, True])
@on_loop
async def test_every_lost_claim_is_asked_for(server: Server, cancelled: bool) -> None:
    """Two claims at once lose their answers. A dequeue that asks for one may be cancelled meanwhile."""
    with CutProxy(server.port) as proxy:
        async with AsyncClient(shards={"a": server.url, "b": proxy.url}, timeout_s=5) as client:
            await client.create_queue("q", QueueConfig(lease_ms=600_000))
            key = next(str(n) for n in range(100) if shard_for_key(str(n).encode(), ["a", "b"]) == "b")
            session, queue_shard = client.session, client.session.queue_shard("q", "b")
            for _ in range(2):
                await client.enqueue("q", b"", key=key)

            def is_claim(command: list[bytes]) -> bool:
                return command[1] == load_scripts()["claim"].sha

            async def claim(seconds: float) -> int:
                queue_shard.silent_until_s, end_s = 0.0, time.monotonic() + seconds
                return len(await client.run(lambda _: dequeue(session, "q", 1, None, "", end_s - time.monotonic())))

            proxy.arm(Cut.AFTER, match=is_claim, count=ALWAYS)
            assert sum(await asyncio.gather(claim(SHORT_S), claim(SHORT_S))) == 0
            proxy.disarm()
            assert queue_shard.lost_claims.pending
            if cancelled:
                proxy.arm(Cut.MUTE, match=is_claim)
                asking = asyncio.create_task(claim(30.0))
                await until(lambda: proxy.cuts, "a request without an answer")
                asking.cancel()
                await asyncio.wait([asking])
                proxy.disarm()
            assert [await claim(5.0), await claim(5.0)] == [1, 1]
            assert not queue_shard.lost_claims.pending
