"""A call that was carried out on some of its jobs and certainly not on others: PartialOutcome has both.

Promises: every write on given jobs of several shards, with a shard that answers, one that is down, and one whose answer
is lost. The error and the servers agree on each job. Calls in rounds return the count over all rounds.
Risks: calls wait for a server that is down until their deadline, so deadlines are short here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pinlater import AsyncClient, Checkpoint, Client, CountsByState, Job, NewJob, PartialOutcome, QueueConfig, State
from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError, ServerUnavailable
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import shard_for_key
from tests.conftest import FreshServer
from tests.support.both_clients import CALLS_KINDS, Calls, make_calls
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server

NAMES = ["here", "down", "cut"]
A_SHARD = 3  # jobs
SHORT_S = 0.2
ALWAYS = 10**9
ROUND = 1000  # jobs
RETRY_ROUND = 250


@dataclass
class ThreeShards:
    """Three shards; `calls` reaches one of them through a proxy, `direct` reaches all."""

    calls: Calls
    direct: Client
    down: Server
    proxy: CutProxy
    jobs: list[Job]

    def of(self, *shards: str) -> list[Job]:
        return [job for job in self.jobs if job.shard in shards]

    def lose(self, call: Callable[[], Any], cut: Cut = Cut.AFTER) -> PinLaterError:
        """The error of a call while one shard is down and the answers of another are lost."""
        self.down.stop()
        self.proxy.arm(cut, count=ALWAYS)
        self.calls.client.settings.timeout_s = SHORT_S
        with pytest.raises(PinLaterError) as raised:
            call()
        self.calls.client.settings.timeout_s = 10.0
        self.proxy.disarm()
        self.down.start()
        return raised.value


@pytest.fixture(params=CALLS_KINDS)
def shards(request: pytest.FixtureRequest, server: Server, fresh_server: FreshServer) -> Iterator[ThreeShards]:
    down = fresh_server(aof_always=True)
    direct = Client(shards={"here": server.url, "down": down.url, "cut": server.url})
    with CutProxy(server.port) as proxy, direct:
        calls = make_calls(request.param, shards={"here": server.url, "down": down.url, "cut": proxy.url})
        calls.create_queue("q")
        for name in NAMES:
            key = next(str(number) for number in range(100) if shard_for_key(str(number).encode(), NAMES) == name)
            calls.enqueue_many("q", [NewJob(b"", attempts=1, key=key)] * A_SHARD)
        jobs = calls.dequeue("q", 99)
        assert len(jobs) == len(NAMES) * A_SHARD
        yield ThreeShards(calls, direct, down, proxy, jobs)
        calls.close()


def names_of(jobs: list[Job]) -> list[str]:
    return sorted(job.descriptor for job in jobs)


@dataclass(frozen=True)
class Case:
    """give: what the call gets for a job. holds: whether it was carried out on a job, by what direct knows of it.

    answer: what the call returns of so many jobs. prepare: before the call.
    """

    name: str
    call: Callable[[Calls, list[Any]], Any]
    holds: Callable[[Client, str], bool]
    give: Callable[[Job], Any] = lambda job: job
    answer: Callable[[int], Any] = lambda count: []
    prepare: Callable[[Client, list[Job]], Any] = lambda direct, jobs: None

    def carried_out(self, direct: Client, jobs: list[Job]) -> set[bool]:
        return {self.holds(direct, job.descriptor) for job in jobs}


def is_state(*states: State | None) -> Callable[[Client, str], bool]:
    def holds(direct: Client, descriptor: str) -> bool:
        info = direct.lookup([descriptor]).get(descriptor)
        return (info.state if info else None) in states

    return holds


def says(direct: Client, descriptor: str) -> bool:
    return direct.lookup([descriptor])[descriptor].status == "half way"


CASES = [
    Case("ack succeeded", lambda calls, jobs: calls.ack(succeeded=jobs), is_state(None, State.SUCCEEDED)),
    Case("ack failed", lambda calls, jobs: calls.ack(failed=jobs), is_state(State.FAILED)),
    Case("release", lambda calls, jobs: calls.release(jobs), is_state(State.PENDING)),
    Case(
        "checkpoint",
        lambda calls, items: calls.checkpoint(*items),
        says,
        give=lambda job: Checkpoint(job=job, status="half way"),
    ),
    Case(
        "delete_jobs",
        lambda calls, named: calls.delete_jobs(descriptors=named),
        is_state(None),
        give=lambda job: job.descriptor,
        answer=lambda count: count,
    ),
    Case(
        "retry_jobs",
        lambda calls, named: calls.retry_jobs(named),
        is_state(State.PENDING),
        give=lambda job: job.descriptor,
        answer=lambda count: count,
        prepare=lambda direct, jobs: direct.ack(failed=jobs),
    ),
]


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_error_lists_each_job_as_done_failed_or_unknown(case: Case, cut: Cut, shards: ThreeShards) -> None:
    case.prepare(shards.direct, shards.jobs)
    given = {job.descriptor: case.give(job) for job in shards.jobs}
    error = shards.lose(lambda: case.call(shards.calls, list(given.values())), cut)
    assert type(error) is PartialOutcome
    assert str(error).startswith("3 jobs done, 3 certainly not, 3 unknown: ")
    here, down, cut_off = (shards.of(name) for name in NAMES)
    assert error.done == [given[job.descriptor] for job in here]
    assert error.result == case.answer(A_SHARD)
    [(failed, why)], [(open_, unknown)] = error.failed, error.unknown
    assert failed == [given[job.descriptor] for job in down]
    assert isinstance(why, ServerUnavailable)
    assert open_ == [given[job.descriptor] for job in cut_off]
    assert case.carried_out(shards.direct, here) == {True}
    assert case.carried_out(shards.direct, down) == {False}
    assert case.carried_out(shards.direct, cut_off) == {cut is Cut.AFTER}
    assert shards.calls.resolve(unknown) == case.answer(A_SHARD)
    assert case.carried_out(shards.direct, cut_off) == {True}
    assert case.call(shards.calls, failed) == case.answer(A_SHARD)
    assert case.carried_out(shards.direct, down) == {True}


def test_the_error_of_renew_lists_each_lease(shards: ThreeShards) -> None:
    error = shards.lose(lambda: shards.calls.renew(shards.jobs))
    assert type(error) is PartialOutcome
    assert names_of(error.done) == names_of(shards.of("here"))
    assert names_of(error.failed[0][0]) == names_of(shards.of("down"))
    assert error.result == shards.calls.resolve(error.unknown[0][1]) == []


def test_the_result_has_the_refused_jobs(shards: ThreeShards) -> None:
    stolen = [shards.of(name)[0] for name in NAMES]
    shards.direct.release(stolen)
    error = shards.lose(lambda: shards.calls.ack(succeeded=shards.jobs))
    assert type(error) is PartialOutcome
    assert error.result == [stolen[0]]
    assert shards.calls.resolve(error.unknown[0][1]) == [stolen[2]]


def test_if_no_job_is_done_the_error_is_not_partial(shards: ThreeShards) -> None:
    error = shards.lose(lambda: shards.calls.ack(succeeded=shards.of("down")))
    assert type(error) is ServerUnavailable


def test_if_no_job_certainly_failed_resolve_returns_the_whole_result(shards: ThreeShards) -> None:
    error = shards.lose(lambda: shards.calls.ack(succeeded=shards.of("here", "cut")))
    assert isinstance(error, OutcomeUnknown)
    assert shards.calls.resolve(error) == []
    assert shards.direct.count("q") == CountsByState(in_progress=A_SHARD)


def test_a_lost_part_of_a_deleted_queue_stays_unknown(shards: ThreeShards) -> None:
    """The deletion says nothing about the lost try."""
    jobs = shards.of("here", "cut")
    error = shards.lose(lambda: shards.calls.ack(succeeded=jobs), Cut.BEFORE)
    assert isinstance(error, OutcomeUnknown)
    shards.direct.delete_queue("q")
    with pytest.raises(OutcomeUnknown):
        shards.calls.resolve(error)


def test_a_read_of_several_shards_raises_the_error_of_one(shards: ThreeShards) -> None:
    error = shards.lose(lambda: shards.calls.lookup([job.descriptor for job in shards.jobs]), Cut.BEFORE)
    assert type(error) is ServerUnavailable


# calls that go in rounds


@pytest.fixture(params=CALLS_KINDS)
def rounds(request: pytest.FixtureRequest, fresh_server: FreshServer) -> Iterator[tuple[Calls, Server, CutProxy]]:
    """2,500 failed jobs behind a proxy."""
    server = fresh_server(aof_always=True)
    with CutProxy(server.port) as proxy:
        calls = make_calls(request.param, proxy.url)
        calls.create_queue("q")
        calls.enqueue_many("q", [NewJob(b"", attempts=1)] * (2 * ROUND + 500))
        while jobs := calls.dequeue("q", ROUND):
            calls.ack(failed=jobs)
        yield calls, server, proxy
        calls.close()


#: Each reaches the failed jobs in its second round or later.
IN_ROUNDS: dict[str, Callable[[Calls], int]] = {
    "retry_failed": lambda calls: int(calls.retry_failed("q", limit=9999)),
    "delete_jobs": lambda calls: int(calls.delete_jobs("q", State.FAILED, limit=9999)),
    "purge": lambda calls: int(calls.purge("q")),
}


def round_of(verb: str) -> int:
    return RETRY_ROUND if verb == "retry_failed" else ROUND


def after_the_first(verb: str) -> Callable[[Any], bool]:
    """Matches the calls of a script after its first one. A repeated request is one call."""
    sha, seen = load_scripts()[verb].sha, list[Any]()

    def matches(command: Any) -> bool:
        if command[1] == sha and command not in seen:
            seen.append(command)
        return bool(command[1] == sha and command != seen[0])

    return matches


def second_round(verb: str) -> Callable[[Any], bool]:
    """Matches the second round of failed jobs. A purge goes through two other states before."""
    sha = load_scripts()["retry_failed" if verb == "retry_failed" else "delete_jobs"].sha
    seen: list[Any] = []

    def match(command: Any) -> bool:
        if command[1] != sha:
            return False
        failed = verb != "purge" or command[-4] == str(State.FAILED.code).encode()
        if failed and command not in seen:
            seen.append(command)
        return failed and len(seen) > 1

    return match


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
@pytest.mark.parametrize("verb", IN_ROUNDS)
def test_resolve_counts_all_rounds_and_another_call_does_the_rest(
    verb: str, cut: Cut, rounds: tuple[Calls, Server, CutProxy]
) -> None:
    calls, server, proxy = rounds
    proxy.arm(cut, match=second_round(verb), count=ALWAYS)
    calls.client.settings.timeout_s = SHORT_S
    with pytest.raises(OutcomeUnknown) as raised:
        IN_ROUNDS[verb](calls)
    calls.client.settings.timeout_s = 10.0
    proxy.disarm()
    assert calls.resolve(raised.value) == 2 * round_of(verb)
    with Client(server.url) as direct:
        assert direct.count("q").failed == 2500 - 2 * round_of(verb)
        assert IN_ROUNDS[verb](calls) == (2500 - 2 * round_of(verb))
        assert direct.count("q").failed == 0


@pytest.mark.parametrize("verb", IN_ROUNDS)
def test_the_error_of_a_failed_round_has_the_count_of_those_before(
    verb: str, rounds: tuple[Calls, Server, CutProxy]
) -> None:
    calls, server, proxy = rounds
    is_second = second_round(verb)

    def stop_then(command: Any) -> bool:
        if is_second(command):
            server.call("CONFIG", "SET", "min-replicas-to-write", 1)  # NOREPLICAS: certain
        return False

    proxy.arm(Cut.BEFORE, match=stop_then)
    calls.client.settings.timeout_s = SHORT_S
    with pytest.raises(PartialOutcome, match=rf"{round_of(verb)} jobs done, then no more: .*NOREPLICAS") as raised:
        IN_ROUNDS[verb](calls)
    calls.client.settings.timeout_s = 10.0
    proxy.disarm()
    assert raised.value.result == round_of(verb)
    server.call("CONFIG", "SET", "min-replicas-to-write", 0)
    assert IN_ROUNDS[verb](calls) == 2500 - round_of(verb)
    assert calls.count("q").failed == 0


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_resolve_does_the_rest_of_a_checkpoint_in_several_calls(kind: Any, cut: Cut, server: Server) -> None:
    with CutProxy(server.port) as proxy:
        calls = make_calls(kind, proxy.url)
        calls.create_queue("q")
        names = calls.enqueue_many("q", [b""] * 600)
        jobs = calls.dequeue("q", 600)
        calls.release(jobs[-1:])
        proxy.arm(cut, match=after_the_first("checkpoint"), count=ALWAYS)
        calls.client.settings.timeout_s = SHORT_S
        progress = [Checkpoint(job=job, status="half way") for job in jobs]
        with pytest.raises(OutcomeUnknown) as raised:
            calls.checkpoint(*progress)
        calls.client.settings.timeout_s = 10.0
        proxy.disarm()
        assert calls.resolve(raised.value) == progress[-1:]
        assert [info.status for info in calls.lookup(names).values()] == ["half way"] * 599 + [""]
        calls.close()


def test_a_limit_that_is_lowered_between_two_calls_of_a_checkpoint_counts_for_the_next_one(server: Server) -> None:
    with CutProxy(server.port) as proxy, Client(server.url) as direct, Client(proxy.url) as client:
        client.create_queue("q")
        names = client.enqueue_many("q", [b""] * 300)
        jobs = client.dequeue("q", 300)
        is_later = after_the_first("checkpoint")

        def lower_then(command: Any) -> bool:
            if is_later(command) and direct.queue_config("q").body_limit != 100:
                direct.configure_queue("q", body_limit=100)
            return False

        proxy.arm(Cut.BEFORE, match=lower_then)
        assert client.checkpoint(*(Checkpoint(job=job, body=bytes(101)) for job in jobs)) == []
        assert {len(info.body or b"") for info in client.lookup(names, with_body=True).values()} == {101}
        with pytest.raises(InvalidArgument, match="at most 100 bytes"):
            client.checkpoint(Checkpoint(job=jobs[0], body=bytes(101)))


@pytest.mark.parametrize("end", ["failed", "succeeded"])
@on_loop
async def test_acks_of_many_callers_leave_in_calls_with_an_outcome_each(server: Server, end: str) -> None:
    """A call that writes statuses has fewer jobs: one with failures, or of a queue that keeps succeeded jobs."""
    with CutProxy(server.port) as proxy:
        async with AsyncClient(proxy.url) as client:

            def ack(jobs: list[Job]) -> Awaitable[list[Any]]:
                return client.ack(failed=jobs) if end == "failed" else client.ack(succeeded=jobs)

            await client.create_queue("q", QueueConfig(keep_succeeded=1000))
            await client.enqueue_many("q", [NewJob(b"", attempts=1)] * 300)
            jobs = await client.dequeue("q", 300)
            await ack(jobs[:1])  # the server knows the script
            proxy.arm(Cut.AFTER, match=after_the_first("ack"), count=ALWAYS)
            client.settings.timeout_s = SHORT_S
            found = await asyncio.gather(*(ack([job]) for job in jobs), return_exceptions=True)
            client.settings.timeout_s = 10.0
            proxy.disarm()
            assert found[:250] == [[jobs[0]], *[[]] * 249]
            assert [type(error) for error in found[250:]] == [OutcomeUnknown] * 50
            assert [await error.resolve() for error in found[250:] if isinstance(error, OutcomeUnknown)] == [[]] * 50
            assert getattr(await client.count("q"), end) == 300
