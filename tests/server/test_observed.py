"""What the service answers to 250 edge cases that were observed on the original: each row of that page has a test.

Promises: a test names its rows in the words of the page. What is "better" there is what stands in its third column.
Each test runs over the three Thrift libraries on three shards, and over one of them on one shard; those of the wire
itself write bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TMemoryBuffer

from pinlater.operations.health import HealthRules
from pinlater.server.health import HealthChecks
from pinlater.server.passwords import hash_password
from tests.conftest import FreshServer
from tests.support.servers import Server, wait_until
from tests.support.service_calls import (
    FAILED,
    HOUR_MS,
    IN_PROGRESS,
    PASSWORD,
    PENDING,
    SOURCE,
    SUCCEEDED,
    Caller,
    Service,
    Shown,
    ack_request,
    failed,
    new_name,
    peer,
    pytest_generate_tests,
    queue,
    refused,
    service,
    wire,
)
from tests.support.thrift_clients import PEERS, RawPeer, Refused
from tests.support.thrift_server import ThriftServer
from tests.support.thrift_wire import BOOL, I32, LIST, STRING, STRUCT, Elements, Fields, frame, message

__all__ = ["peer", "pytest_generate_tests", "queue", "service", "wire"]  # for pytest

ON_ONE_SHARD = ("thriftpy2",)

MAX_TIME_MS = 2**44 - 1
#: Apache's library reads answers of up to 16,384,000 bytes. 20 MB are in a test of their own.
LARGE = 16_000_000

#: The rows of the page: the part, and the request.
shows = Shown(
    (
        "wire: unknown method",
        "wire: __can__finagle__trace__v3__ first on a connection",
        "wire: context unset",
        "wire: required field missing, unknown enum value",
        "wire: oneway-typed call; non-strict header",
        "wire: garbage frame, zero length, truncated struct",
        "wire: length -1 or 2^31-1, or unframed",
        "wire: two requests in one write",
        "queues: createQueue '', a-b, a b, a:b, x.y, café",
        "queues: createQueue of 200 characters / again",
        "queues: deleteQueue wrong, empty, no password, none configured",
        "queues: deleteQueue, unknown queue or bad name, right password",
        "queues: deleteQueue",
        "queues: unknown queue",
        "enqueueJobs: empty list",
        "enqueueJobs: priority 0, -1, 4, 127",
        "enqueueJobs: 5 jobs, the 3rd bad",
        "enqueueJobs: 3,999 / 4,001 / 10,000 jobs",
        "enqueueJobs: numAttemptsAllowed 0 or negative",
        "enqueueJobs: runAfter 0 / negative, 1970, 2^62",
        "enqueueJobs: body empty, NUL, CRLF, 4-byte characters, 20 MB",
        "enqueueJobs: body not UTF-8",
        "enqueueJobs: customStatus too long",
        "dequeueJobs: nothing there",
        "dequeueJobs: limit 0 or negative; empty queue name",
        "dequeueJobs: limit 2^31-1",
        "dequeueJobs: limit >= 4,000 where one list has as many",
        "dequeueJobs: coverage 0, 0.1 of 3 shards / 2.0 / -1",
        "dequeueJobs: order",
        "dequeueJobs: claimDescriptor",
        "dequeueJobs: attemptsRemaining in the metadata",
        "dequeueJobs: carrying an ack",
        "dequeueJobs: over the rate",
        "ackDequeuedJobs: lists unset or empty; unknown id, PENDING, acked before, other queue, p9",
        "ackDequeuedJobs: queue in the descriptor wrong, request's right",
        "ackDequeuedJobs: '', abc, 3 or 5 parts, not a number, unknown shard",
        "ackDequeuedJobs: the same descriptor twice / in both lists",
        "ackDequeuedJobs: failed with delay 0, -60,000, 600,000",
        "ackDequeuedJobs: failed on the last attempt",
        "ackDequeuedJobs: appendCustomStatus",
        "checkpointJobs: source",
        "checkpointJobs: job already succeeded, by its claimer",
        "checkpointJobs: runAfter in the future, not moved",
        "checkpointJobs: moveToPending / newBody '' / prepend",
        "lookupJobs: empty list; unknown; p0, p9; malformed",
        "lookupJobs: the letters s, p",
        "getJobCount, scanJobs: bodyRegexToMatch",
        "getJobCount, scanJobs: priority 0 or 9",
        'getJobCount, scanJobs: scan limit 0, -1 / continuation not "0" / order',
        "retryFailedJobs, deleteJobs: priority unset",
        "retryFailedJobs, deleteJobs: limit 0 / negative",
        "retryFailedJobs, deleteJobs: retry of 9,000 at once",
        "retryFailedJobs, deleteJobs: attemptsToAllow 0",
        "retryFailedJobs, deleteJobs: delete PENDING / IN_PROGRESS",
        "Redis down: right after",
        "Redis down: after the health check tripped",
        "Redis down: back",
    )
)


def test_each_row_has_a_test() -> None:
    assert shows.missing == set()


# the wire

CONTEXT: Fields = [(STRING, 1, SOURCE.encode())]


def create(name: str, **options: Any) -> bytes:
    return message("createQueue", [(STRUCT, 1, CONTEXT), (STRING, 2, name.encode())], **options)


def names(**options: Any) -> bytes:
    return message("getQueueNames", [(STRUCT, 1, CONTEXT)], **options)


@pytest.fixture
def raw(service: Service) -> Iterator[RawPeer]:
    made = RawPeer(service.port)
    yield made
    made.close()


def protocol_of(answer: bytes) -> Any:
    protocols: Any = TBinaryProtocol
    buffers: Any = TMemoryBuffer
    return protocols(buffers(answer))


def head_of(answer: bytes) -> tuple[str, int, int]:
    """Method, type and sequence id of an answer."""
    name, kind, sequence = protocol_of(answer).read_message_begin()
    return name, kind, sequence


def failure_of(answer: bytes) -> tuple[str, int, int]:
    """Method, sequence id and the type of the TApplicationException that an answer is."""
    protocol = protocol_of(answer)
    name, kind, sequence = protocol.read_message_begin()
    assert kind == 3
    failure = TApplicationException()
    protocol.read_struct(failure)
    assert failure.message
    return name, sequence, failure.type


def works(raw: RawPeer) -> bool:
    """Whether the connection carries out a call."""
    raw.send(names(sequence=99))
    return head_of(raw.frame()) == ("getQueueNames", 2, 99)


@shows("wire: unknown method", "wire: __can__finagle__trace__v3__ first on a connection")
@pytest.mark.parametrize("method", ["__can__finagle__trace__v3__", "unknown", "", "enqueuejobs", "x" * 255])
def test_an_unknown_method_is_answered_so_with_its_sequence_id(raw: RawPeer, method: str) -> None:
    raw.send(message(method, sequence=-7))
    assert failure_of(raw.frame()) == (method, -7, TApplicationException.UNKNOWN_METHOD)
    assert works(raw)


class Held(NamedTuple):
    """A queue with a pending and a failed job, and with one job that each of two sources has claimed: SOURCE and ""."""

    queue: str
    pending: str
    failed: str
    running: list[str]

    @property
    def jobs(self) -> list[str]:
        return [self.pending, self.failed, *self.running]


def held_jobs(caller: Caller, queue: str) -> Held:
    failed = caller.running(queue, numAttemptsAllowed=1)
    caller.ack(queue, failed=[failed])
    running = [caller.by(source).running(queue, b"old") for source in (SOURCE, "")]
    [pending] = caller.enqueue(queue, b"waits")
    return Held(queue, pending, failed, running)


def changing_calls(held: Held, new_queue: str) -> dict[str, Fields]:
    """Of each method that changes something its arguments behind the context."""
    queue = (STRING, 1, held.queue.encode())
    names: list[Fields] = [[(STRING, 1, job.encode())] for job in held.running]
    checkpoints: list[Fields] = [[*name, (STRING, 2, b"new"), (BOOL, 3, True)] for name in names]
    acks: Fields = [queue, (LIST, 2, Elements(STRUCT, names))]
    requests: dict[str, Fields] = {
        "enqueueJobs": [queue, (LIST, 2, Elements(STRUCT, [[(STRING, 1, b"body")]]))],
        "dequeueJobs": [queue, (I32, 2, 1), (STRUCT, 3, acks)],
        "ackDequeuedJobs": acks,
        "checkpointJobs": [queue, (LIST, 2, Elements(STRUCT, checkpoints))],
        "retryFailedJobs": [queue],
        "deleteJobs": [queue, (I32, 2, PENDING)],
    }
    return {
        "createQueue": [(STRING, 2, new_queue.encode())],
        **{method: [(STRUCT, 2, request)] for method, request in requests.items()},
        "deleteQueue": [(STRING, 2, held.queue.encode()), (STRING, 3, PASSWORD.encode())],
    }


def state_of(caller: Caller, held: Held) -> Any:
    """All that these calls can change."""
    return caller.queue_names(), caller.counts(held.queue), caller.lookup(*held.jobs, includeBody=True)


@pytest.fixture
def caller(service: Service) -> Iterator[Caller]:
    """A client of one library."""
    made = Caller(PEERS["thriftpy2"](service.port))
    yield made
    made.peer.close()


@shows("wire: context unset")
@pytest.mark.parametrize("fields", [[], [(STRUCT, 1, [])], [(STRUCT, 1, [(STRING, 2, b"id")])]])
def test_without_a_context_nothing_is_done(raw: RawPeer, caller: Caller, queue: str, fields: Fields) -> None:
    held = held_jobs(caller, queue)
    before = state_of(caller, held)
    for method, request in changing_calls(held, new_name()).items():
        raw.send(message(method, [*fields, *request]))
        assert failure_of(raw.frame()) == (method, 1, TApplicationException.PROTOCOL_ERROR)
        assert state_of(caller, held) == before


@shows("wire: context unset")
@pytest.mark.parametrize("source", [SOURCE, ""])
def test_with_a_context_the_same_calls_are_carried_out(
    raw: RawPeer, caller: Caller, service: Service, source: str
) -> None:
    for method in changing_calls(Held("", "", "", []), ""):
        held = held_jobs(caller, service.new_queue())
        before = state_of(caller, held)
        raw.send(
            message(method, [(STRUCT, 1, [(STRING, 1, source.encode())]), *changing_calls(held, new_name())[method]])
        )
        assert head_of(raw.frame()) == (method, 2, 1)
        assert state_of(caller, held) != before, method


@shows("wire: required field missing, unknown enum value")
@pytest.mark.parametrize(
    ("method", "request_fields", "named"),
    [
        ("createQueue", None, "name"),
        ("enqueueJobs", None, "request"),
        ("enqueueJobs", [(STRING, 1, b"q")], "jobs"),
        ("enqueueJobs", [(STRING, 1, b"q"), (LIST, 2, Elements(STRUCT, [[(STRING, 5, b"")]]))], "body"),
        ("dequeueJobs", [(STRING, 1, b"q")], "limit"),
        ("dequeueJobs", [(STRING, 1, b"q"), (I32, 2, 1), (STRUCT, 3, [])], "queueName"),
        ("ackDequeuedJobs", [], "queueName"),
        ("ackDequeuedJobs", [(STRING, 1, b"q"), (LIST, 2, Elements(STRUCT, [[]]))], "jobDescriptor"),
        ("checkpointJobs", [(STRING, 1, b"q")], "requests"),
        ("checkpointJobs", [(STRING, 1, b"q"), (LIST, 2, Elements(STRUCT, [[]]))], "jobDescriptor"),
        ("lookupJobs", [], "jobDescriptors"),
        ("getJobCount", [(STRING, 1, b"q")], "jobState"),
        ("getJobCount", [(STRING, 1, b"q"), (I32, 2, 4)], "jobState"),
        ("scanJobs", [(STRING, 1, b"q"), (I32, 2, -1)], "jobState"),
        ("retryFailedJobs", [], "queueName"),
        ("deleteJobs", [(STRING, 1, b"q"), (I32, 2, 2**31 - 1)], "jobState"),
        ("deleteJobs", [(STRING, 1, b"q"), (STRING, 2, b"0")], "jobState"),
    ],
)
def test_a_required_field_or_a_known_value_is_expected(
    raw: RawPeer, method: str, request_fields: Fields | None, named: str
) -> None:
    request: Fields = [] if request_fields is None else [(STRUCT, 2, request_fields)]
    raw.send(message(method, [(STRUCT, 1, CONTEXT), *request]))
    answer = raw.frame()
    assert failure_of(answer) == (method, 1, TApplicationException.PROTOCOL_ERROR)
    assert named.encode() in answer
    assert works(raw)


@shows("wire: oneway-typed call; non-strict header")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", [1, 4])
def test_oneway_calls_and_old_heads_are_answered(raw: RawPeer, queue: str, strict: bool, kind: int) -> None:
    name = new_name()
    raw.send(create(name, strict=strict, kind=kind, sequence=5))
    assert head_of(raw.frame()) == ("createQueue", 2, 5)
    jobs = Elements(STRUCT, [[(STRING, 1, b"body")]])
    request: Fields = [(STRUCT, 1, CONTEXT), (STRUCT, 2, [(STRING, 1, name.encode()), (LIST, 2, jobs)])]
    raw.send(message("enqueueJobs", request, strict=strict, kind=kind, sequence=6))
    answer = raw.frame()
    assert head_of(answer) == ("enqueueJobs", 2, 6)
    assert f"{name}:s".encode() in answer
    raw.send(names())
    assert name.encode() in raw.frame()


@shows("wire: garbage frame, zero length, truncated struct")
@pytest.mark.parametrize(
    "data",
    [
        frame(b""),
        frame(b"\0"),
        frame(b"garbage"),
        frame(b"\xff" * 100),
        frame(create("x")[4:-5]),
        frame(message("enqueueJobs", [(STRUCT, 1, CONTEXT)])[4:-1]),
        frame(message("lookupJobs", [(STRUCT, 1, CONTEXT)])[4:-1]),
        message("createQueue", b""),
        message("createQueue", kind=2),
        message("createQueue", kind=3),
        message("createQueue", b"\x0b\0\2\x7f\xff\xff\xff"),
    ],
)
def test_what_is_no_call_closes_the_connection(service: Service, raw: RawPeer, data: bytes) -> None:
    raw.send(data)
    assert raw.is_closed()
    other = RawPeer(service.port)
    assert works(other)
    other.close()


@shows("wire: length -1 or 2^31-1, or unframed")
@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", create("x")[4:], b"GET / HTTP/1.1\r\n\r\n", b"\x80\0\0\0"]
)
def test_what_is_no_frame_closes_the_connection_at_once(raw: RawPeer, data: bytes) -> None:
    raw.send(data)
    assert raw.is_closed()


@shows("wire: two requests in one write")
def test_requests_in_one_write_are_answered_in_order(raw: RawPeer) -> None:
    name = new_name()
    raw.send(create(name, sequence=1) + message("unknown", sequence=2) + names(sequence=3) + create(name, sequence=4))
    answers = [raw.frame() for _ in range(4)]
    assert [head_of(answer)[2] for answer in answers] == [1, 2, 3, 4]
    assert name.encode() in answers[2]


@shows("wire: two requests in one write")
def test_a_request_in_single_bytes_is_answered(raw: RawPeer) -> None:
    for byte in names(sequence=8):
        raw.send(bytes([byte]))
    assert head_of(raw.frame()) == ("getQueueNames", 2, 8)


# queues


@shows("queues: createQueue '', a-b, a b, a:b, x.y, café")
@pytest.mark.parametrize("name", ["", "a-b", "a b", "a:b", "x.y", "café"])
def test_only_create_queue_refuses_a_name(wire: Caller, name: str) -> None:
    with refused(410):
        wire.create(name)
    for enqueue in ([], [b""]):
        with refused(413) as error:
            wire.enqueue(name, *enqueue)
        assert error.value.message == f"queue {name!r}: not found; createQueue makes it"
    if name:
        assert wire.dequeue(name) == {}
    wire.ack(name, [f"{name or 'x'}:s1:p1:1"] if ":" not in name else [])
    wire.request("checkpointJobs", name, requests=[])
    assert (wire.count(name), wire.scan(name), wire.retry(name), wire.delete(name)) == (0, ([], "-1"), 0, 0)


@shows("queues: createQueue of 200 characters / again")
def test_long_names(wire: Caller) -> None:
    for name in ("a" * 200 + new_name(), "b" * (255 - 8) + new_name().zfill(8)):
        for _ in range(2):
            wire.create(name)
        assert len(wire.enqueue(name, b"")) == 1
        wire.call("deleteQueue", name=name, password=PASSWORD)
    for length in (256, 10_000):
        with refused(411) as error:
            wire.create("a" * length)
        assert error.value.message == f"queue name: expected at most 255 characters, got {length:,}"


@shows("queues: deleteQueue wrong, empty, no password, none configured")
def test_a_queue_is_deleted_with_the_password_alone(
    wire: Caller, queue: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.server.passwords.FIRST_PAUSE_S", 0.0)
    for password in ({"password": "wrong"}, {"password": ""}, {}, {"password": PASSWORD + "\0"}):
        with refused(403):
            wire.call("deleteQueue", name=queue, **password)
    assert queue in wire.queue_names()
    with ThriftServer(service.shards) as without:
        other = Caller(type(wire.peer)(without.port))
        for password in ({"password": PASSWORD}, {"password": ""}, {}):
            with refused(403):
                other.call("deleteQueue", name=queue, **password)
        other.peer.close()


@shows("queues: deleteQueue, unknown queue or bad name, right password")
@pytest.mark.parametrize("name", ["unknown", "", "a-b", "x" * 1000])
def test_deleting_what_is_not_there_is_fine(wire: Caller, name: str) -> None:
    wire.call("deleteQueue", name=name, password=PASSWORD)


@shows("queues: deleteQueue")
def test_a_deleted_queue_leaves_nothing(wire: Caller, queue: str) -> None:
    done, held = wire.running(queue), wire.running(queue)
    wire.ack(queue, [done])
    [pending] = wire.enqueue(queue, b"")
    wire.call("deleteQueue", name=queue, password=PASSWORD)
    wire.ack(queue, [held])
    wire.checkpoint(queue, held, newBody="x")
    assert queue not in wire.queue_names()
    wire.create(queue)
    wire.ack(queue, [held], [pending])
    assert wire.lookup(done, held, pending) == {}
    assert wire.counts(queue) == (0, 0, 0, 0)
    ids = [int(job.split(":")[3]) for job in (done, held, pending)]
    assert all(int(job.split(":")[3]) > max(ids) for job in wire.enqueue(queue, *[b""] * 5))


@shows("queues: unknown queue")
def test_an_unknown_queue_is_an_empty_one_but_for_enqueues(wire: Caller) -> None:
    name = new_name()
    with refused(413):
        wire.enqueue(name, b"")
    job = f"{name}:s1:p1:1"
    assert wire.request("dequeueJobs", name, limit=1) == {}
    assert wire.request("dequeueJobs", name, limit=1, jobAckRequest=ack_request(name, [job])) == {}
    wire.ack(name, [job], [job])
    wire.checkpoint(name, job, newBody="x")
    assert wire.lookup(job) == {}
    assert wire.counts(name) == (0, 0, 0, 0)
    assert wire.count(name, bodyRegexToMatch="a") == 0
    assert wire.scan(name) == ([], "-1")
    assert wire.scan(name, bodyRegexToMatch="a") == ([], "-1")
    assert (wire.retry(name), wire.delete(name), wire.delete(name, bodyRegexToMatch="a")) == (0, 0, 0)
    assert name not in wire.queue_names()


# enqueueJobs


@shows("enqueueJobs: empty list")
def test_no_jobs_have_no_descriptors(wire: Caller, queue: str) -> None:
    assert wire.enqueue(queue) == []
    with refused(413):
        wire.enqueue(new_name())


@shows("enqueueJobs: priority 0, -1, 4, 127", "enqueueJobs: 5 jobs, the 3rd bad")
@pytest.mark.parametrize("priority", [0, -1, 4, 127])
def test_all_jobs_of_a_call_are_in_or_none(wire: Caller, queue: str, priority: int) -> None:
    jobs: list[dict[str, Any]] = [{"body": b"x"} for _ in range(5)]
    jobs[2]["priority"] = priority
    with refused(416) as error:
        wire.enqueue(queue, *jobs)
    assert error.value.message.startswith("job 3 of 5: priority: ")
    many = [b""] * 2_500
    with refused(416) as error:
        wire.enqueue(queue, *many, {"body": b"", "priority": priority})
    assert error.value.message.startswith("job 2501 of 2501: priority: ")
    assert wire.counts(queue) == (0, 0, 0, 0)


@shows("enqueueJobs: 5 jobs, the 3rd bad")
def test_a_body_past_the_limit_of_its_queue_is_refused_with_the_limit(wire: Caller, service: Service) -> None:
    queue = service.new_queue(body_limit=1_000)
    bodies = [b"x" * size for size in (1, 1_000, 1_001, 1, 1)]
    for more in (0, 1_500):
        with refused(500) as error:
            wire.enqueue(queue, *bodies, *[b""] * more)
        expected = f"job 3 of {5 + more}: body: expected at most 1,000 bytes (the queue's body limit), got 1,001"
        assert error.value.message == expected
    assert wire.counts(queue) == (0, 0, 0, 0)
    job = wire.running(queue, b"old")
    with refused(500) as error:
        wire.checkpoint(queue, job, newBody="x" * 1_001)
    assert "expected at most 1,000 bytes" in error.value.message
    assert wire.body(job) == b"old"


@shows("enqueueJobs: 3,999 / 4,001 / 10,000 jobs")
@pytest.mark.parametrize("count", [3_999, 4_001, 10_000])
def test_large_calls_keep_their_order(service: Service, queue: str, count: int) -> None:
    wire = Caller(PEERS["thriftpy2"](service.port))
    jobs = wire.enqueue(queue, *[{"body": b"%d" % at} for at in range(count)])
    assert len(set(jobs)) == count
    chosen = [0, 1, 998, 999, 1_000, 1_001, 2_500, count - 2, count - 1]
    assert [wire.body(jobs[at]) for at in chosen] == [b"%d" % at for at in chosen]
    assert wire.count(queue) == count
    wire.peer.close()


@shows("enqueueJobs: numAttemptsAllowed 0 or negative")
@pytest.mark.parametrize("attempts", [0, -1, -(2**31)])
def test_attempts_below_1_are_1(wire: Caller, queue: str, attempts: int) -> None:
    job = wire.running(queue, numAttemptsAllowed=attempts)
    assert (wire.info(job)["attemptsAllowed"], wire.info(job)["attemptsRemaining"]) == (1, 1)
    wire.ack(queue, failed=[job])
    assert (wire.info(job)["jobState"], wire.info(job)["attemptsRemaining"]) == (FAILED, 0)


@shows("enqueueJobs: numAttemptsAllowed 0 or negative")
def test_attempts_above_what_can_be_kept_are_that(wire: Caller, queue: str) -> None:
    job = wire.running(queue, numAttemptsAllowed=2**31 - 1)
    assert wire.info(job)["attemptsAllowed"] == 65_535


@shows("enqueueJobs: runAfter 0 / negative, 1970, 2^62")
@pytest.mark.parametrize(
    ("time_ms", "kept_ms"),
    [
        (0, None),
        (-1, None),
        (-(2**62), None),
        (1, 1),
        (86_400_000, 86_400_000),
        (MAX_TIME_MS, MAX_TIME_MS),
        (MAX_TIME_MS + 1, MAX_TIME_MS),
        (2**62, MAX_TIME_MS),
    ],
)
def test_odd_run_after_times(wire: Caller, queue: str, service: Service, time_ms: int, kept_ms: int | None) -> None:
    before_ms = service.now_ms()
    [job] = wire.enqueue(queue, b"", runAfterTimestampMillis=time_ms)
    found_ms = wire.info(job)["runAfterTimestampMillis"]
    if kept_ms is None:
        assert before_ms <= found_ms <= service.now_ms()
    else:
        assert found_ms == kept_ms
    assert list(wire.dequeue(queue)) == ([job] if found_ms < MAX_TIME_MS else [])


@shows("enqueueJobs: body empty, NUL, CRLF, 4-byte characters, 20 MB", "enqueueJobs: body not UTF-8")
def test_bodies_are_bytes(wire: Caller, queue: str) -> None:
    bodies = [b"", b"\0", b"a\0b", b"\r\n", "💡".encode(), b"\xff\xfe", b"\xc3(", bytes(range(256)), b"x" * LARGE]
    jobs = wire.enqueue(queue, *bodies)
    for job, body in zip(jobs, bodies, strict=True):
        assert wire.body(job) == body
    given: dict[str, bytes] = {}
    while len(given) < len(jobs):
        given |= wire.dequeue(queue, 2)
    assert [given[job] for job in jobs] == bodies


@shows("enqueueJobs: body empty, NUL, CRLF, 4-byte characters, 20 MB")
def test_a_body_of_20_mb(service: Service, queue: str) -> None:
    wire, body = Caller(PEERS["thriftpy2"](service.port)), b"x" * 20_000_000
    job = wire.running(queue, body)
    assert wire.body(job) == body
    wire.peer.close()


@shows("enqueueJobs: customStatus too long")
@pytest.mark.parametrize(
    ("status", "kept"),
    [
        ("x" * 3_001, "x" * 3_000),
        ("💡" * 800, "💡" * 750),
        ("x" + "💡" * 800, "x" + "💡" * 749),
        ("é" * 1_500, "é" * 1_500),
    ],
)
def test_a_status_is_cut_at_3000_bytes(wire: Caller, queue: str, status: str, kept: str) -> None:
    [job] = wire.enqueue(queue, b"", customStatus=status)
    assert wire.info(job)["customStatus"] == kept


# dequeueJobs


@shows("dequeueJobs: nothing there")
def test_nothing_is_two_unset_maps(wire: Caller, queue: str) -> None:
    assert wire.request("dequeueJobs", queue, limit=10) == {}


@shows("dequeueJobs: limit 0 or negative; empty queue name")
def test_a_limit_is_0_or_more(wire: Caller, queue: str) -> None:
    wire.enqueue(queue, b"")
    assert wire.request("dequeueJobs", queue, limit=0) == {}
    for name, limit in ((queue, -1), (queue, -(2**31)), ("", 1), ("unknown", -1)):
        for dry_run in (False, True):
            with failed(6) as error:
                wire.dequeue(name, limit, dryRun=dry_run)
            assert "expected" in error.value.message
    assert wire.counts(queue) == (1, 0, 0, 0)


@shows("dequeueJobs: limit 2^31-1")
def test_a_limit_that_is_larger_than_the_queue_gives_what_is_there(wire: Caller, queue: str) -> None:
    wire.enqueue(queue, *[b""] * 1_500)
    assert len(wire.dequeue(queue, 2**31 - 1, dryRun=True)) == 1_500
    assert len(wire.dequeue(queue, 2**31 - 1)) == 1_500
    wire.enqueue(queue, *[b"x" * 1_000_000] * 20)
    given = [len(wire.dequeue(queue, 2**31 - 1)) for _ in range(3)]
    assert all(4 <= count < 20 for count in given)  # an answer has about 4 MiB of bodies


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A server with one shard of another name."""
    with (
        Server("valkey", tmp_path_factory.mktemp("single")) as store,
        ThriftServer({"one": store.url}) as running,
    ):
        caller = Caller(PEERS["thriftpy2"](running.port))
        yield caller
        caller.peer.close()


@shows("dequeueJobs: limit >= 4,000 where one list has as many")
def test_many_jobs_of_one_list_are_given(single: Caller) -> None:
    queue = new_name()
    single.create(queue)
    jobs = single.enqueue(queue, *[b""] * 9_000)
    first = single.dequeue(queue, 4_000)
    second = single.dequeue(queue, 100_000)
    assert (len(first), len(second)) == (4_000, 5_000)
    assert first.keys() | second.keys() == set(jobs)
    assert single.counts(queue) == (0, 9_000, 0, 0)


@shows("dequeueJobs: coverage 0, 0.1 of 3 shards / 2.0 / -1")
def test_odd_coverages(wire: Caller, queue: str, service: Service) -> None:
    for coverage in (-1.0, -1e-9, float("nan"), float("-inf")):
        for dry_run in (False, True):
            with failed(6) as error:
                wire.dequeue(queue, coverage=coverage, dryRun=dry_run)
            assert "coverage: expected a share of the shards, 0 or more, got" in error.value.message
    for _ in range(40):
        wire.enqueue(queue, b"")
    every = len(service.shards)
    for coverage, shards in ((0.0, 1), (0.1, 1), (2.0, every), (float("inf"), every)):
        shown = wire.dequeue(queue, coverage=coverage, dryRun=True)
        assert len({job.split(":")[1] for job in shown}) == shards
    assert len({job.split(":")[1] for job in wire.dequeue(queue, coverage=0.1)}) == 1


@shows("dequeueJobs: order")
def test_a_job_of_a_higher_priority_is_never_passed_over(wire: Caller, queue: str) -> None:
    for at in range(60):
        wire.enqueue(queue, b"", priority=3 - at % 3)
    priorities = [int(job.split(":")[2][1:]) for _ in range(12) for job in sorted_by_priority(wire.dequeue(queue, 5))]
    assert priorities == sorted([1, 2, 3] * 20)


def sorted_by_priority(jobs: dict[str, bytes]) -> list[str]:
    return sorted(jobs, key=lambda job: job.split(":")[2])


@shows("dequeueJobs: claimDescriptor")
def test_a_claim_sets_the_times_of_its_jobs(wire: Caller, queue: str, service: Service) -> None:
    wire.enqueue(queue, b"", b"", runAfterTimestampMillis=1)
    before_ms = service.now_ms()
    infos = wire.lookup(*wire.dequeue(queue)).values()
    times = {info[name] for info in infos for name in ("runAfterTimestampMillis", "updatedAtTimestampMillis")}
    assert len(infos) == 2
    assert len(times) == 1
    assert before_ms <= times.pop() <= service.now_ms()
    for info in infos:
        host, port, start_ms, *source, counter = info["claimDescriptor"].split(":")
        assert (int(port), ":".join(source)) == (service.port, SOURCE)
        assert host
        assert int(start_ms) <= before_ms
        assert int(counter) >= 1


@shows("dequeueJobs: attemptsRemaining in the metadata")
def test_the_metadata_has_the_attempts_with_this_one(wire: Caller, queue: str) -> None:
    [job] = wire.enqueue(queue, b"", numAttemptsAllowed=3)
    for left in (3, 2, 1):
        metadata = wire.request("dequeueJobs", queue, limit=1)["jobMetadata"]
        assert metadata == {job: {"attemptsAllowed": 3, "attemptsRemaining": left}}
        wire.ack(queue, failed=[job])
    assert wire.info(job)["jobState"] == FAILED


@shows("dequeueJobs: carrying an ack")
def test_an_ack_that_rides_may_be_of_another_queue_and_is_checked_first(
    wire: Caller, queue: str, service: Service
) -> None:
    other = service.new_queue()
    held = wire.running(other)
    [job] = wire.enqueue(queue, b"")
    for bad in ("abc", f"{other}:s9:p1:1"):
        with refused(500):
            wire.dequeue(queue, jobAckRequest=ack_request(other, [held, bad]))
    assert (wire.counts(queue), wire.counts(other)) == ((1, 0, 0, 0), (0, 1, 0, 0))
    assert list(wire.dequeue(queue, jobAckRequest=ack_request(other, [held]))) == [job]
    assert wire.counts(other) == (0, 0, 1, 0)
    last = wire.running(other)
    assert wire.dequeue(queue, 0, jobAckRequest=ack_request(other, [last])) == {}
    assert wire.dequeue("unknown", 1, jobAckRequest=ack_request(queue, [job])) == {}
    assert (wire.counts(queue), wire.counts(other)) == ((0, 0, 1, 0), (0, 0, 2, 0))


@shows("dequeueJobs: over the rate")
def test_a_rate_gives_what_it_has(wire: Caller, service: Service) -> None:
    queue = service.new_queue(rate="1000/s", burst=3)
    wire.enqueue(queue, *[b""] * 200)
    given: list[int] = []

    def asks() -> bool:
        with suppress(Refused):
            given.append(len(wire.dequeue(queue, 100)))
        return bool(given)

    wait_until(asks, "tokens of the rate")
    assert given[0] in (1, 2, 3)
    assert len(wire.dequeue(queue, 100, dryRun=True)) == 100
    service.configure(queue, rate="1/d")
    with refused(429) as error:
        for _ in range(3):
            wire.dequeue(queue)
    assert error.value.message == f"queue {queue!r}: gives no jobs now because of its rate"
    assert len(wire.dequeue(queue, 100, dryRun=True)) == 100


@shows("dequeueJobs: over the rate")
@pytest.mark.parametrize("changes", [{"rate": 0}, {"paused": True}])
@pytest.mark.parametrize("jobs", [0, 1])
def test_a_stopped_queue_says_so(wire: Caller, service: Service, changes: dict[str, Any], jobs: int) -> None:
    queue = service.new_queue()
    wire.enqueue(queue, *[b""] * jobs)
    service.configure(queue, **changes)
    for _ in range(3):
        with refused(429) as error:
            wire.dequeue(queue)
    assert error.value.message == f"queue {queue!r}: gives no jobs now because of its pause"
    assert wire.dequeue(queue, dryRun=True) == {}


# ackDequeuedJobs


@shows("ackDequeuedJobs: lists unset or empty; unknown id, PENDING, acked before, other queue, p9")
def test_acks_of_what_does_not_run_are_fine(wire: Caller, queue: str, service: Service) -> None:
    other = wire.running(service.new_queue())
    done = wire.running(queue)
    wire.ack(queue, [done])
    [pending] = wire.enqueue(queue, b"")
    jobs = [other, done, pending, f"{queue}:s1:p1:12345", f"{queue}:s1:p9:12345", f"{queue}:s1:p1:{2**70}"]
    before = wire.lookup(*jobs)
    for lists in ((None, None), ([], []), (jobs, None), (None, jobs), (jobs, jobs)):
        wire.ack(queue, *lists)
    assert wire.lookup(*jobs) == before


@shows("ackDequeuedJobs: queue in the descriptor wrong, request's right")
def test_the_queue_of_a_descriptor_counts(wire: Caller, queue: str) -> None:
    job = wire.running(queue)
    wrong = job.replace(queue, "other", 1)
    wire.ack(queue, [wrong], [wrong])
    wire.ack("other", [wrong], [job])
    assert wire.info(job)["jobState"] == IN_PROGRESS


MALFORMED = (
    "",
    "abc",
    "q:s1:p1",
    "q:s1:p1:1:1",
    "q:s1:p1:x",
    "q:s1:px:1",
    "q:s1:p1:",
    "q:1:1:1",
    "q:t1:p1:1",
    "q:s1:q1:1",
)


@shows("ackDequeuedJobs: '', abc, 3 or 5 parts, not a number, unknown shard")
@pytest.mark.parametrize("bad", [*MALFORMED, "q:s9:p1:1"])
def test_a_malformed_descriptor_fails_the_whole_ack(wire: Caller, queue: str, bad: str) -> None:
    job = wire.running(queue)
    for lists in (([job, bad], None), ([job], [bad])):
        with refused(500) as error:
            wire.ack(queue, *lists)
        assert "job descriptor" in error.value.message
        assert "expected" in error.value.message
    assert wire.info(job)["jobState"] == IN_PROGRESS


@shows("ackDequeuedJobs: the same descriptor twice / in both lists")
def test_a_job_that_is_acked_twice_ends_once(wire: Caller, queue: str) -> None:
    twice, both, again = (wire.running(queue) for _ in range(3))
    wire.ack(queue, [twice, {"jobDescriptor": twice, "appendCustomStatus": "second"}, both], [both, again, again])
    infos = wire.lookup(twice, both, again)
    assert [infos[job]["jobState"] for job in (twice, both, again)] == [SUCCEEDED, SUCCEEDED, PENDING]
    assert infos[twice]["customStatus"] == ""
    assert infos[again]["attemptsRemaining"] == 1


@shows("ackDequeuedJobs: failed with delay 0, -60,000, 600,000")
@pytest.mark.parametrize(
    ("delay_ms", "kept_ms"), [(0, 0), (-60_000, 0), (-(2**63), 0), (600_000, 600_000), (2**63 - 1, None)]
)
def test_a_retry_waits_for_its_delay(
    wire: Caller, queue: str, service: Service, delay_ms: int, kept_ms: int | None
) -> None:
    job = wire.running(queue)
    before_ms = service.now_ms()
    wire.ack(queue, failed=[{"jobDescriptor": job, "retryDelayMillis": delay_ms}])
    found_ms = wire.info(job)["runAfterTimestampMillis"]
    if kept_ms is None:
        assert found_ms >= MAX_TIME_MS
    else:
        assert before_ms + kept_ms <= found_ms <= service.now_ms() + kept_ms
    assert wire.info(job)["jobState"] == PENDING


@shows("ackDequeuedJobs: failed on the last attempt")
def test_the_last_attempt_fails_for_good(wire: Caller, queue: str) -> None:
    job = wire.running(queue, numAttemptsAllowed=1)
    wire.ack(queue, failed=[{"jobDescriptor": job, "retryDelayMillis": 600_000}])
    info = wire.info(job)
    assert (info["jobState"], info["attemptsRemaining"], info["attemptsAllowed"]) == (FAILED, 0, 1)
    assert "claimDescriptor" not in info
    assert "runAfterTimestampMillis" not in info


@shows("ackDequeuedJobs: appendCustomStatus")
def test_an_ack_appends_to_the_status_or_keeps_it(wire: Caller, queue: str) -> None:
    job = wire.running(queue, customStatus="a", numAttemptsAllowed=3)
    wire.ack(queue, failed=[{"jobDescriptor": job, "appendCustomStatus": "b"}])
    assert wire.info(job)["customStatus"] == "ab"
    wire.dequeue(queue)
    wire.ack(queue, failed=[job])
    assert wire.info(job)["customStatus"] == "ab"
    wire.dequeue(queue)
    wire.ack(queue, [{"jobDescriptor": job, "appendCustomStatus": "c"}])
    assert wire.info(job)["customStatus"] == "abc"


# checkpointJobs


@shows("checkpointJobs: source")
@pytest.mark.parametrize("source", ["", "1", ":", "web", "web:", "eb:1", "web:1:", "web:10", "WEB:1"])
def test_the_whole_source_of_a_checkpoint_counts(wire: Caller, queue: str, source: str) -> None:
    job = wire.running(queue, b"old")
    wire.by(source).checkpoint(queue, job, newBody="new", moveToPending=True)
    assert (wire.body(job), wire.info(job)["jobState"]) == (b"old", IN_PROGRESS)


@shows("checkpointJobs: job already succeeded, by its claimer")
def test_a_checkpoint_of_a_finished_job_has_no_effect(wire: Caller, queue: str) -> None:
    done, lost = wire.running(queue, b"old"), wire.running(queue, b"old", numAttemptsAllowed=1)
    wire.ack(queue, [done], [lost])
    before = wire.lookup(done, lost, includeBody=True)
    for job in (done, lost):
        wire.checkpoint(queue, job, newBody="new", numOfAttemptsAllowed=5, prependCustomStatus="x")
        wire.checkpoint(queue, job, moveToPending=True)
    assert wire.lookup(done, lost, includeBody=True) == before
    assert wire.counts(queue) == (0, 0, 1, 1)


@shows("checkpointJobs: runAfter in the future, not moved")
def test_a_time_of_a_checkpoint_needs_move_to_pending(wire: Caller, queue: str, service: Service) -> None:
    job = wire.running(queue)
    late_ms = service.now_ms() + HOUR_MS
    wire.checkpoint(queue, job, runAfterTimestampMillis=late_ms)
    info = wire.info(job)
    assert info["updatedAtTimestampMillis"] < late_ms
    assert info["runAfterTimestampMillis"] < late_ms
    assert wire.counts(queue) == (0, 1, 0, 0)


@shows("checkpointJobs: moveToPending / newBody '' / prepend")
def test_a_checkpoint_moves_rewrites_and_prepends(wire: Caller, queue: str) -> None:
    job = wire.running(queue, b"body", customStatus="end", numAttemptsAllowed=4)
    long = "x" * 2_998 + "é"
    wire.checkpoint(queue, job, newBody="", prependCustomStatus=long)
    assert (wire.body(job), wire.info(job)["customStatus"]) == (b"", long)
    wire.checkpoint(queue, job, moveToPending=True)
    info = wire.info(job)
    assert (info["jobState"], info["attemptsRemaining"], info["attemptsAllowed"]) == (PENDING, 4, 4)
    assert "claimDescriptor" not in info


@shows("checkpointJobs: moveToPending / newBody '' / prepend")
def test_of_a_job_that_is_checkpointed_twice_the_last_counts(wire: Caller, queue: str) -> None:
    job, other = wire.running(queue, b"old"), wire.running(queue, b"old")
    requests = [
        {"jobDescriptor": job, "newBody": "1"},
        {"jobDescriptor": other},
        {"jobDescriptor": job, "newBody": "2"},
    ]
    wire.request("checkpointJobs", queue, requests=requests)
    assert (wire.body(job), wire.body(other)) == (b"2", b"old")
    wire.checkpoint(queue, job, numOfAttemptsAllowed=0)
    assert (wire.info(job)["attemptsAllowed"], wire.info(job)["attemptsRemaining"]) == (1, 1)
    with refused(500):
        wire.request(
            "checkpointJobs", queue, requests=[{"jobDescriptor": job, "newBody": "3"}, {"jobDescriptor": "abc"}]
        )
    assert wire.body(job) == b"2"


# lookupJobs


@shows("lookupJobs: empty list; unknown; p0, p9; malformed", "lookupJobs: the letters s, p")
def test_lookups_of_what_no_job_is(wire: Caller, queue: str) -> None:
    [job] = wire.enqueue(queue, b"")
    shard = job.split(":")[1]
    assert wire.lookup() == {}
    unknown = [f"{queue}:{shard}:{rest}" for rest in ("p1:1", "p0:1", "p9:1", "p255:1", f"p1:{2**80}")]
    assert wire.lookup(*unknown, job).keys() == {job}
    for bad in (*MALFORMED, "q:s9:p1:1", job.replace(":s", ":t"), job.replace(":p", ":q")):
        with refused(500) as error:
            wire.lookup(job, bad)
        assert repr(bad) in error.value.message
        assert "expected" in error.value.message


# getJobCount, scanJobs


@shows("getJobCount, scanJobs: bodyRegexToMatch")
def test_a_pattern_is_a_regular_expression_in_linear_time(wire: Caller, queue: str) -> None:
    wire.enqueue(queue, b"a" * 50_000, b"b.d", b"bcd", b"%a+")
    assert [wire.count(queue, bodyRegexToMatch=pattern) for pattern in (r"b\.d", "b.d", "%a+", "(a*)*$", "(a+)+!")] == [
        1,
        2,
        1,
        4,
        0,
    ]
    for bad in ("(", "[", "a{2", "*", r"\1", "(?=a)"):
        for call in (wire.count, wire.scan, wire.delete):
            with failed(6) as error:
                call(queue, bodyRegexToMatch=bad)
            assert error.value.message.startswith("bodyRegexToMatch: expected a regular expression: ")
    assert wire.scan(queue, bodyRegexToMatch="a", limit=0) == ([], "-1")
    assert wire.delete(queue, bodyRegexToMatch="a", limit=0) == 0
    assert wire.count(queue) == 4


@shows("getJobCount, scanJobs: priority 0 or 9")
@pytest.mark.parametrize("priority", [0, 9, -1, 127])
def test_a_priority_that_the_queue_lacks_has_no_jobs(wire: Caller, queue: str, priority: int) -> None:
    wire.enqueue(queue, b"")
    assert wire.count(queue, priority=priority) == 0
    assert wire.count(queue, priority=priority, bodyRegexToMatch="") == 0
    assert wire.scan(queue, priority=priority) == ([], "-1")
    assert (wire.retry(queue, priority=priority), wire.delete(queue, priority=priority)) == (0, 0)


@shows("getJobCount, scanJobs: priority 0 or 9")
def test_there_are_no_future_jobs_of_other_states(wire: Caller, queue: str) -> None:
    wire.ack(queue, [wire.running(queue)])
    wire.ack(queue, failed=[wire.running(queue, numAttemptsAllowed=1)])
    wire.running(queue)
    for state in (IN_PROGRESS, SUCCEEDED, FAILED):
        assert (wire.count(queue, state), wire.count(queue, state, countFutureJobs=True)) == (1, 0)
        assert wire.count(queue, state, countFutureJobs=True, bodyRegexToMatch="") == 0
        assert wire.scan(queue, state, scanFutureJobs=True) == ([], "-1")


@shows('getJobCount, scanJobs: scan limit 0, -1 / continuation not "0" / order')
def test_scans_of_each_state(wire: Caller, queue: str, service: Service) -> None:
    start_ms = service.now_ms() - HOUR_MS
    pending = {}
    for at in (3, 1, 4, 0, 2):
        [job] = wire.enqueue(queue, b"%d" % at, priority=1 + at % 3, runAfterTimestampMillis=start_ms + at)
        pending[job] = at
    assert wire.scan(queue, limit=0) == wire.scan(queue, limit=-1) == ([], "-1")
    assert [pending[job] for job in wire.scan_all(queue, limit=2)] == [4, 3, 2, 1, 0]
    held = list(wire.dequeue(queue))
    assert set(wire.scan_all(queue, IN_PROGRESS, limit=2)) == set(held)
    for state, acks in ((SUCCEEDED, held[:3]), (FAILED, held[3:])):
        for job in acks:
            service.next_ms()
            if state == FAILED:
                wire.checkpoint(queue, job, numOfAttemptsAllowed=1)
            wire.ack(queue, **{"succeeded" if state == SUCCEEDED else "failed": [job]})
        assert wire.scan_all(queue, state, limit=2) == acks[::-1]
    answer = wire.request("scanJobs", queue, jobState=SUCCEEDED)
    assert all("body" not in info for info in answer["scannedJobs"])
    for bad in ("", "1", "-1", "00", "x" * 1_000):
        with refused(400) as error:
            wire.scan(queue, continuation=bad)
        assert error.value.message.startswith("continuation: expected ")


# retryFailedJobs, deleteJobs


def fail_jobs(wire: Caller, queue: str, *priorities: int) -> None:
    wire.enqueue(queue, *[{"body": b"", "priority": priority, "numAttemptsAllowed": 1} for priority in priorities])
    wire.ack(queue, failed=list(wire.dequeue(queue, len(priorities))))


@shows("retryFailedJobs, deleteJobs: priority unset", "retryFailedJobs, deleteJobs: limit 0 / negative")
def test_the_priority_is_1_and_the_limit_counts(wire: Caller, queue: str) -> None:
    fail_jobs(wire, queue, 1, 1, 1, 2)
    for call in (wire.retry, lambda name, **fields: wire.delete(name, FAILED, **fields)):
        assert call(queue, limit=0) == 0
        for name in (queue, "unknown"):
            with failed(6) as error:
                call(name, limit=-1)
            assert error.value.message == "limit: expected 0 or more, got -1"
    assert (wire.retry(queue, limit=1), wire.retry(queue), wire.retry(queue)) == (1, 2, 0)
    assert (wire.delete(queue, FAILED), wire.delete(queue), wire.delete(queue, FAILED, priority=2)) == (0, 3, 1)


@shows("retryFailedJobs, deleteJobs: retry of 9,000 at once")
def test_thousands_of_jobs_are_retried_and_deleted(single: Caller) -> None:
    queue = new_name()
    single.create(queue)
    fail_jobs(single, queue, *[1] * 9_000)
    assert single.counts(queue) == (0, 0, 0, 9_000)
    assert single.retry(queue, limit=9_000) == 9_000
    assert single.counts(queue) == (9_000, 0, 0, 0)
    assert single.delete(queue, limit=100_000) == 9_000


@shows("retryFailedJobs, deleteJobs: attemptsToAllow 0")
@pytest.mark.parametrize("attempts", [0, -5])
def test_a_retry_allows_one_attempt_at_least(wire: Caller, queue: str, attempts: int) -> None:
    fail_jobs(wire, queue, 1)
    assert wire.retry(queue, attemptsToAllow=attempts) == 1
    [job] = wire.dequeue(queue)
    assert wire.info(job)["attemptsRemaining"] == 1


@shows("retryFailedJobs, deleteJobs: delete PENDING / IN_PROGRESS")
def test_future_and_running_jobs_can_be_deleted(wire: Caller, queue: str, service: Service) -> None:
    held = wire.running(queue)
    wire.enqueue(queue, b"now")
    wire.enqueue(queue, b"late", runAfterTimestampMillis=service.now_ms() + HOUR_MS)
    assert wire.delete(queue, PENDING) == 2
    wire.enqueue(queue, b"late", runAfterTimestampMillis=service.now_ms() + HOUR_MS)
    assert wire.delete(queue, PENDING, bodyRegexToMatch="late") == 1
    assert wire.delete(queue, IN_PROGRESS) == 1
    wire.ack(queue, [held])
    wire.ack(queue, failed=[held])
    assert wire.lookup(held) == {}
    assert wire.counts(queue) == (0, 0, 0, 0)


# Redis down


def each_call(wire: Caller, queue: str, job: str) -> tuple[Callable[[], Any], ...]:
    return (
        lambda: wire.create("another"),
        lambda: wire.call("deleteQueue", name=queue, password=PASSWORD),
        lambda: wire.enqueue(queue, b""),
        lambda: wire.enqueue(queue, *[b""] * 1_500),
        lambda: wire.enqueue("unknown", b""),
        lambda: wire.dequeue(queue),
        lambda: wire.dequeue(queue, dryRun=True),
        lambda: wire.dequeue(queue, jobAckRequest=ack_request(queue, [job])),
        lambda: wire.ack(queue, [job]),
        lambda: wire.checkpoint(queue, job),
        lambda: wire.lookup(job),
        lambda: wire.count(queue),
        lambda: wire.count(queue, bodyRegexToMatch="x"),
        wire.queue_names,
        lambda: wire.scan(queue),
        lambda: wire.retry(queue),
        lambda: wire.delete(queue),
    )


class Fleet:
    """A server on two stores, with a shard on each, whose pings are made by hand."""

    def __init__(self, stores: list[Server]) -> None:
        self.stores = stores
        self.running = ThriftServer(
            {str(at): store.url for at, store in enumerate(stores, 1)},
            timeout_s=0.3,
            password_hash=hash_password(PASSWORD),
        )
        self.wire = Caller(PEERS["thriftpy2"](self.running.port))
        self.health = HealthChecks(self.running.client, HealthRules(failures=2, successes=2))
        self.ping(1)

    def ping(self, times: int) -> None:
        for _ in range(times):
            self.running.run(self.health.ping_all())

    def stop(self) -> None:
        self.wire.peer.close()
        self.running.stop()


@pytest.fixture
def fleet(fresh_server: FreshServer) -> Iterator[Fleet]:
    made = Fleet([fresh_server(), fresh_server()])
    yield made
    made.stop()


@shows("Redis down: right after", "Redis down: after the health check tripped", "Redis down: back")
def test_calls_on_stores_that_went_down_say_502_then_501_until_they_are_back(fleet: Fleet) -> None:
    wire = fleet.wire
    wire.create("q")
    job = wire.running("q")
    for store in fleet.stores:
        store.kill()
    for call in each_call(wire, "q", job):
        with refused(502) as error:
            call()
        assert "redis://127.0.0.1:" in error.value.message
    fleet.ping(2)
    for call in each_call(wire, "q", job):
        with refused(501) as error:
            call()
        assert "healthy" in error.value.message
    for store in fleet.stores:
        store.start()
    fleet.ping(1)
    with refused(501):
        wire.enqueue("q", b"")
    fleet.ping(1)
    wire.create("again")
    assert len(wire.enqueue("again", b"")) == 1


@shows("Redis down: after the health check tripped", "Redis down: back")
def test_with_another_shard_up_work_goes_on_and_counts_name_the_missing_one(fleet: Fleet) -> None:
    wire = fleet.wire
    wire.create("q")
    held = wire.enqueue("q", b"", b"")  # on one of the two
    at = int(held[0].split(":")[1][1:]) - 1
    fleet.stores[at].kill()
    fleet.ping(2)
    jobs = [job for _ in range(5) for job in wire.enqueue("q", b"")]
    assert {job.split(":")[1] for job in jobs} == {f"s{2 - at}"}
    assert set(wire.dequeue("q", 3)) <= set(jobs)
    for call in (
        lambda: wire.count("q"),
        lambda: wire.count("q", bodyRegexToMatch="x"),
        lambda: wire.scan("q"),
        lambda: wire.retry("q"),
        lambda: wire.delete("q"),
        lambda: wire.lookup(*held),
    ):
        with refused(502) as error:
            call()
        assert f"shard {at + 1}" in error.value.message
    wire.ack("q", jobs[:1])
    assert len(wire.lookup(*jobs)) == 5
    fleet.stores[at].start()
    fleet.ping(2)
    wire.create("q")
    assert wire.count("q", IN_PROGRESS) + wire.count("q") + wire.count("q", SUCCEEDED) == 5
