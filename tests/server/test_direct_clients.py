"""The adapter table: what a Thrift client is answered, and what a direct client does in the same case.

Promises: what is not in the table is alike: the tests of test_behaviour.py with `calls` run for both. Each test there
with `wire` alone is named here by a row, or says nothing of a client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest

from pinlater import Ack, Client, InvalidArgument, PinLaterError, QueueNotFound
from tests.server import test_behaviour
from tests.support.direct_peers import DirectPeer, NoSuchArgument
from tests.support.service_calls import (
    FAILED,
    HOUR_MS,
    IN_PROGRESS,
    PENDING,
    SOURCE,
    SUCCEEDED,
    Caller,
    Service,
    any_peer,
    calls,
    pytest_generate_tests,
    queue,
    service,
)
from tests.support.thrift_clients import Failed, Refused

__all__ = ["any_peer", "calls", "pytest_generate_tests", "queue", "service"]  # for pytest

MAX_TIME_MS: Final = 2**44 - 1


class Code(NamedTuple):
    """A PinLaterException."""

    code: int


class Type(NamedTuple):
    """A TApplicationException."""

    kind: int


class Raised(NamedTuple):
    """An error of a direct client, and a part of its message."""

    kind: type[Exception]
    part: str = ""


class Row(NamedTuple):
    """One difference. call: in a queue with one job of priority 1 that SOURCE claimed, and one pending of priority 2.

    of: the tests of test_behaviour.py that it belongs to.
    """

    case: str
    call: Callable[[Caller, str, str, str], Any]
    wire: Any
    direct: Any
    of: tuple[str, ...] = ()


NOT_FOUND: Final = Raised(QueueNotFound, "create_queue makes it")


def wrong(part: str) -> Raised:
    return Raised(InvalidArgument, part)


def wrong_job(part: str) -> Raised:
    """Of a NewJob, before a client has it."""
    return Raised(ValueError, part)


NO_PRIORITY: Final = wrong("priority: expected 1 to 3")


def state_after_an_ack_of_another_queue(calls: Caller, _: str, held: str, __: str) -> int:
    calls.ack("other", [held])
    return int(calls.info(held)["jobState"])


def state_after_a_negative_delay(calls: Caller, queue: str, held: str, _: str) -> int:
    calls.ack(queue, failed=[{"jobDescriptor": held, "retryDelayMillis": -5}])
    return int(calls.info(held)["jobState"])


def attempts_after_a_checkpoint(calls: Caller, queue: str, held: str, _: str) -> int:
    calls.checkpoint(queue, held, numOfAttemptsAllowed=0)
    return int(calls.info(held)["attemptsAllowed"])


def body_after_two_checkpoints(calls: Caller, queue: str, held: str, _: str) -> bytes:
    requests = [{"jobDescriptor": held, "newBody": body} for body in ("1", "2")]
    calls.request("checkpointJobs", queue, requests=requests)
    return calls.body(held)


ROWS: Final = (
    # names
    Row(
        "a bad name of a queue",
        lambda calls, *_: calls.create("a-b"),
        Code(410),
        wrong("queue name: expected "),
        ("test_a_bad_queue_name_is_refused",),
    ),
    Row(
        "a name that is too long", lambda calls, *_: calls.create("a" * 256), Code(411), wrong("queue name: expected ")
    ),
    Row(
        "a bad name in another call",
        lambda calls, *_: calls.count("a-b"),
        0,
        wrong("queue name: expected "),
    ),
    Row(
        "no password",
        lambda calls, queue, *_: calls.call("deleteQueue", name=queue, password="wrong"),  # noqa: S106
        Code(403),
        None,
        ("test_a_wrong_password_deletes_nothing",),
    ),
    # unknown queues
    Row(
        "enqueue on an unknown queue",
        lambda calls, *_: calls.enqueue("unknown", b""),
        Code(413),
        NOT_FOUND,
        ("test_enqueuing_on_an_unknown_queue_is_refused",),
    ),
    Row(
        "dequeue from an unknown queue",
        lambda calls, *_: calls.dequeue("unknown"),
        {},
        NOT_FOUND,
        ("test_an_unknown_or_empty_queue_gives_no_jobs",),
    ),
    Row("ack on an unknown queue", lambda calls, *_: calls.ack("unknown", ["unknown:s1:p1:1"]), None, NOT_FOUND),
    Row("checkpoint there", lambda calls, *_: calls.checkpoint("unknown", "unknown:s1:p1:1"), None, NOT_FOUND),
    Row("count there", lambda calls, *_: calls.count("unknown"), 0, NOT_FOUND),
    Row("scan there", lambda calls, *_: calls.scan("unknown"), ([], "-1"), NOT_FOUND),
    Row("retry there", lambda calls, *_: calls.retry("unknown"), 0, NOT_FOUND),
    Row("delete there", lambda calls, *_: calls.delete("unknown"), 0, NOT_FOUND),
    Row(
        "lookup of a job of an unknown queue",
        lambda calls, *_: calls.lookup("unknown:s1:p1:1"),
        {},
        NOT_FOUND,
        ("test_a_lookup_leaves_out_what_no_job_can_be",),
    ),
    # descriptors
    Row(
        "lookup of priority 0",
        lambda calls, queue, *_: calls.lookup(f"{queue}:s1:p0:1"),
        {},
        wrong("the priority is not p1 to p100"),
        ("test_a_lookup_leaves_out_what_no_job_can_be",),
    ),
    Row("lookup of what is no descriptor", lambda calls, *_: calls.lookup("abc"), Code(500), wrong("job descriptor: ")),
    Row("ack of what is no descriptor", lambda calls, queue, *_: calls.ack(queue, ["abc"]), Code(500), wrong("abc")),
    Row(
        "ack on an unknown shard",
        lambda calls, queue, *_: calls.ack(queue, [f"{queue}:s9:p1:1"]),
        Code(500),
        wrong("shard: expected one of 1, 2, 3"),
    ),
    Row(
        "ack in the name of another queue",
        state_after_an_ack_of_another_queue,
        IN_PROGRESS,
        SUCCEEDED,  # a direct client's ack has no queue beside its descriptors
    ),
    # priorities
    Row(
        "enqueue with a priority that the queue lacks",
        lambda calls, queue, *_: calls.enqueue(queue, b"", priority=4),
        Code(416),
        wrong("priority: expected 1 to 3"),
        ("test_a_priority_that_the_queue_lacks_is_refused",),
    ),
    Row("count of it", lambda calls, queue, *_: calls.count(queue, priority=9), 0, NO_PRIORITY),
    Row(
        "scan of it",
        lambda calls, queue, *_: calls.scan(queue, priority=0),
        ([], "-1"),
        wrong("priority: expected 1 to 3"),
    ),
    Row("retry of it", lambda calls, queue, *_: calls.retry(queue, priority=9), 0, NO_PRIORITY),
    Row(
        "delete of it", lambda calls, queue, *_: calls.delete(queue, priority=9), 0, wrong("priority: expected 1 to 3")
    ),
    # numbers and times
    Row(
        "attempts below 1",
        lambda calls, queue, *_: calls.info(*calls.enqueue(queue, b"", numAttemptsAllowed=0))["attemptsAllowed"],
        1,
        wrong_job("attempts: expected 1 to 65,535"),
    ),
    Row(
        "attempts above 65,535",
        lambda calls, queue, *_: calls.info(*calls.enqueue(queue, b"", numAttemptsAllowed=70_000))["attemptsAllowed"],
        65_535,
        wrong_job("attempts: expected 1 to 65,535"),
    ),
    Row(
        "attempts of a checkpoint below 1",
        attempts_after_a_checkpoint,
        1,
        wrong("attempts: expected 1 to 65,535"),
    ),
    Row(
        "attempts of a retry below 1",
        lambda calls, queue, *_: calls.retry(queue, attemptsToAllow=0),
        0,
        wrong("attempts: expected 1 to 65,535"),
    ),
    Row(
        "a run-after before 1970",
        lambda calls, queue, *_: len(calls.enqueue(queue, b"", runAfterTimestampMillis=-1)),
        1,
        wrong_job("run_after_ms: expected "),
    ),
    Row(
        "a run-after past the year 2527",
        lambda calls, queue, *_: calls.info(*calls.enqueue(queue, b"", runAfterTimestampMillis=2**62))[
            "runAfterTimestampMillis"
        ],
        MAX_TIME_MS,
        wrong_job("run_after_ms: expected "),
    ),
    Row(
        "a negative retry delay",
        state_after_a_negative_delay,
        PENDING,
        wrong("delay_ms: expected "),
    ),
    Row("dequeue of less than 0", lambda calls, queue, *_: calls.dequeue(queue, -1), Type(6), wrong("limit: ")),
    Row(
        "retry of less than 0",
        lambda calls, queue, *_: calls.retry(queue, limit=-1),
        Type(6),
        wrong("limit: "),
    ),
    Row("delete of less than 0", lambda calls, queue, *_: calls.delete(queue, limit=-1), Type(6), wrong("limit: ")),
    Row("scan of no jobs", lambda calls, queue, *_: calls.scan(queue, limit=0), ([], "-1"), wrong("limit: ")),
    Row("scan of less than 0", lambda calls, queue, *_: calls.scan(queue, limit=-1), ([], "-1"), wrong("limit: ")),
    # texts
    Row(
        "a custom status of more than 3,000 bytes",
        lambda calls, queue, *_: len(calls.info(*calls.enqueue(queue, b"", customStatus="x" * 3_001))["customStatus"]),
        3_000,
        wrong_job("status: expected at most 3,000 bytes"),
        ("test_a_long_custom_status_is_cut_at_a_character",),
    ),
    Row(
        "an empty source",
        lambda calls, queue, *_: len(calls.by("").dequeue(queue)),
        1,
        wrong("source: expected 1 to 255 bytes"),
    ),
    Row(
        "a source of more than 255 bytes",
        lambda calls, queue, *_: len(calls.by("x" * 256).dequeue(queue)),
        1,
        wrong("source: expected 1 to 255 bytes"),
    ),
    # dequeues and their limits
    Row(
        "the port in a claim descriptor",
        lambda calls, _, held, __: calls.info(held)["claimDescriptor"].split(":")[1] == str(calls.peer.port),
        True,
        True,  # its port is 0, as it listens on none
        ("test_a_claim_descriptor_names_server_source_and_claim",),
    ),
    Row(
        "a share of the shards",
        lambda calls, queue, *_: len(calls.dequeue(queue, coverage=1.0)),
        1,
        Raised(NoSuchArgument, "coverage"),
        ("test_coverage_is_the_share_of_the_shards",),
    ),
    # checkpoints
    Row(
        "a time of a checkpoint that does not move its job",
        lambda calls, queue, held, _: calls.checkpoint(queue, held, runAfterTimestampMillis=1),
        None,
        wrong("run_after_ms and delay_ms have a meaning only with move_to_pending=True"),
    ),
    Row(
        "two checkpoints of one job",
        body_after_two_checkpoints,
        b"2",
        b"1",
    ),
    # looking
    Row(
        "counts by pattern",
        lambda calls, queue, *_: calls.count(queue, bodyRegexToMatch="x"),
        0,
        Raised(NoSuchArgument, "bodyRegexToMatch"),
        ("test_a_pattern_filters_on_the_body",),
    ),
    Row(
        "deletions by pattern",
        lambda calls, queue, *_: calls.delete(queue, bodyRegexToMatch="x"),
        0,
        Raised(NoSuchArgument, "bodyRegexToMatch"),
        ("test_jobs_with_a_matching_body_are_deleted",),
    ),
    Row(
        "scan of future jobs that are not pending",
        lambda calls, queue, *_: calls.scan(queue, FAILED, scanFutureJobs=True),
        ([], "-1"),
        wrong("future: expected with pending jobs"),
    ),
    Row(
        "the order of a scan",
        lambda calls, queue, *_: is_newest_first(calls, queue),
        True,
        False,  # shard by shard, priority by priority
        ("test_a_scan_gives_the_newest_first",),
    ),
    Row(
        "what is no continuation",
        lambda calls, queue, *_: calls.scan(queue, continuation="7"),
        Code(400),
        wrong("cursor: expected one of an earlier page"),
        ("test_a_continuation_is_a_real_one_or_refused",),
    ),
)
#: Rows whose direct outcome needs more than a call.
RATE: Final = "test_a_queue_over_its_rate_says_so"
#: Of test_behaviour.py, with `wire`: what they say is of the server, whoever calls.
OF_THE_SERVER: Final = {
    "test_old_claims_end_and_old_jobs_go",
    "test_calls_are_counted_under_the_names_of_the_original",
}


def is_newest_first(calls: Caller, queue: str) -> bool:
    late_ms = 3 * HOUR_MS
    made = [calls.enqueue(queue, b"", priority=1 + at % 3, runAfterTimestampMillis=late_ms + at)[0] for at in range(30)]
    return [job for job in calls.scan_all(queue) if job in set(made)] == made[::-1]


def outcome(row: Row, calls: Caller, queue: str, held: str, pending: str) -> Any:
    try:
        return row.call(calls, queue, held, pending)
    except Refused as error:
        return Code(error.code)
    except Failed as error:
        return Type(error.kind)
    except (PinLaterError, NoSuchArgument, ValueError) as error:
        return error


@pytest.mark.parametrize("row", ROWS, ids=[row.case for row in ROWS])
def test_each_side_answers_as_the_table_says(calls: Caller, queue: str, row: Row) -> None:
    held = calls.running(queue)
    [pending] = calls.enqueue(queue, b"pending", priority=2)
    found = outcome(row, calls, queue, held, pending)
    expected = row.direct if isinstance(calls.peer, DirectPeer) else row.wire
    if isinstance(expected, Raised):
        assert isinstance(found, expected.kind)
        assert expected.part in str(found)
    else:
        assert found == expected


def test_a_rate_gives_a_thrift_client_an_error_and_a_direct_client_no_jobs(calls: Caller, service: Service) -> None:
    queue = service.new_queue()
    calls.enqueue(queue, b"")
    service.configure(queue, rate=0)
    if isinstance(calls.peer, DirectPeer):
        assert calls.dequeue(queue) == {}
    else:
        with pytest.raises(Refused, match=r"^429: "):
            calls.dequeue(queue)


def test_a_direct_client_is_told_of_its_refused_jobs(service: Service, queue: str) -> None:
    """A Thrift client hears nothing: the server counts them."""
    with Client(shards=service.shards, source=SOURCE) as client:
        job = client.enqueue(queue, b"")
        client.dequeue(queue)
        item = Ack((job, None))
        assert client.ack(succeeded=[item], source="other") == [item]
        assert client.ack(succeeded=[item], source=SOURCE) == []


def test_each_behaviour_of_the_wire_alone_is_in_the_table() -> None:
    wire_only = {
        name
        for name, test in vars(test_behaviour).items()
        if name.startswith("test_") and "wire" in inspect.signature(test).parameters
    }
    named = {name for row in ROWS for name in row.of} | {RATE}
    assert named <= wire_only
    assert wire_only - named == OF_THE_SERVER
