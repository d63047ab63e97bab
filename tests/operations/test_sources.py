"""Claims that are known by their source: an empty one, and checkpoints as the Thrift interface has them.

Promises: who has another source changes nothing, and an empty source fits only claims that were made with an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pinlater import Ack, Checkpoint, CountsByState, Job, JobInfo, NewJob
from pinlater.model.errors import InvalidArgument
from pinlater.operations.dequeue import dequeue
from pinlater.operations.leases import ack, checkpoint_by_source, release
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server

__all__ = ["kind", "make"]  # fixtures

SOURCES = ["", "web:host-1", "a:b:c", "é" * 127, "x" * 255]


@pytest.fixture
def calls(server: Server, make: Callable[..., Calls]) -> Calls:
    made = make(server.url)
    made.create_queue("q")
    return made


def claim(calls: Calls, source: str, limit: int = 1) -> list[Job]:
    session = calls.client.session
    jobs: list[Job] = calls.run(lambda _: dequeue(session, "q", limit, None, source, 8.0))
    assert len(jobs) == limit
    return jobs


def save(calls: Calls, source: str, *checkpoints: Checkpoint) -> list[Any]:
    session = calls.client.session
    refused: list[Any] = calls.run(lambda end: checkpoint_by_source(session, checkpoints, source, end))
    return refused


def look(calls: Calls, name: str) -> JobInfo:
    info: JobInfo = calls.lookup([name], with_body=True)[name]
    return info


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_ends_its_own_claims_alone(calls: Calls, source: str) -> None:
    calls.enqueue_many("q", [NewJob(b"", status="decorated" * (at % 2)) for at in range(6)])
    names: list[Any] = [job.descriptor for job in [*claim(calls, source), *claim(calls, source, 5)]]
    session = calls.client.session
    assert look(calls, names[0]).claim.split(":", 3)[3] == f"{source}:{session.claims - 1}"
    for other in {*SOURCES} - {source}:
        for flow in (
            partial(ack, session, names, [], other, False),
            partial(ack, session, [], names, other, False),
            partial(release, session, names, other),
        ):
            assert calls.run(flow) == names
        assert len(save(calls, other, *(Checkpoint(job=name, status="x") for name in names))) == 6
    assert calls.run(lambda end: ack(session, names[:2], [Ack(names[2])], source, False, end)) == []
    assert calls.run(lambda end: release(session, names[3:5], source, end)) == []
    assert save(calls, source, Checkpoint(job=names[5], body=b"kept")) == []
    assert look(calls, names[5]).body == b"kept"
    assert calls.count("q") == CountsByState(pending=3, in_progress=1)


def test_without_a_source_each_job_needs_its_token(calls: Calls) -> None:
    """An empty source of a client's method means that there is none."""
    name: Any = calls.enqueue("q", b"")
    [job] = claim(calls, "")
    session, listed = calls.client.session, [name]
    uses: list[Callable[[], Any]] = [
        lambda: calls.ack(succeeded=[name]),
        lambda: calls.ack(failed=[Ack((name, None))], source=""),
        lambda: calls.checkpoint(Checkpoint(job=name), source=""),
        lambda: calls.run(lambda end: ack(session, [name], [], None, False, end)),
        lambda: calls.run(partial(release, session, listed, None)),
    ]
    for use in uses:
        with pytest.raises(InvalidArgument, match="a descriptor without its token needs the source that claimed it"):
            use()
    assert calls.ack(succeeded=[job]) == []


def test_a_source_over_255_bytes_is_refused(calls: Calls) -> None:
    with pytest.raises(InvalidArgument, match="source: expected 1 to 255 bytes of text"):
        save(calls, "x" * 256, Checkpoint(job="q:s1:p1:1"))


def test_the_claim_descriptor_has_the_port(calls: Calls) -> None:
    name = calls.enqueue("q", b"")
    calls.client.session.port = 9010
    claim(calls, "web:1")
    assert look(calls, name).claim.split(":")[1] == "9010"
    calls.client.session.port = 0


# checkpoints


def test_a_time_without_a_move_is_ignored(calls: Calls, server: Server) -> None:
    name = calls.enqueue("q", b"")
    claim(calls, "me")
    at_ms = server.time_ms() + 3_600_000
    assert save(calls, "me", Checkpoint(job=name, body=b"new", run_after_ms=at_ms)) == []
    assert (look(calls, name).body, calls.count("q")) == (b"new", CountsByState(in_progress=1))
    assert save(calls, "me", Checkpoint(job=name, move_to_pending=True, run_after_ms=at_ms)) == []
    assert (look(calls, name).run_after_ms, look(calls, name).claim) == (at_ms, "")
    assert calls.count("q") == CountsByState(scheduled=1)


def test_of_a_job_that_is_named_twice_the_last_checkpoint_counts(calls: Calls) -> None:
    first, second = calls.enqueue_many("q", [b"", b""])
    claim(calls, "me", 2)
    refused = save(
        calls,
        "me",
        Checkpoint(job=first, body=b"one", move_to_pending=True),
        Checkpoint(job=second, body=b"other"),
        Checkpoint(job=first, status="two"),
    )
    assert refused == []
    assert (look(calls, first).body, look(calls, first).status, look(calls, second).body) == (b"", "two", b"other")
    assert calls.count("q") == CountsByState(in_progress=2)


@pytest.mark.parametrize(("attempts", "counted"), [(-5, 1), (0, 1), (1, 1), (7, 7)])
def test_attempts_below_one_count_as_one(calls: Calls, attempts: int, counted: int) -> None:
    name = calls.enqueue("q", b"")
    claim(calls, "me")
    assert save(calls, "me", Checkpoint(job=name, attempts=attempts)) == []
    assert (look(calls, name).attempts_allowed, look(calls, name).attempts_remaining) == (counted, counted)


def test_a_job_that_does_not_run_is_refused_and_the_others_are_not(calls: Calls) -> None:
    running, ended, pending = calls.enqueue_many("q", [b"", b"", b""])
    claim(calls, "me", 2)
    session = calls.client.session
    calls.run(lambda end: ack(session, [ended], [], "me", False, end))
    unknown = "q:s1:p9:7"
    items = [Checkpoint(job=name, status="x") for name in (ended, running, pending, unknown)]
    assert save(calls, "me", *items) == [items[0], items[2], items[3]]
    assert (look(calls, running).status, look(calls, pending).status) == ("x", "")
