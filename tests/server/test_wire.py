"""The wire, on real sockets: what is no call, calls cut into pieces or sent together, and the limits of a server.

Promises: nothing waits for a time of the server but tests that shorten it. The rows of the wire that clients rely on
are here too.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pinlater import Client
from pinlater.server import connection, listener
from pinlater.server.interface import structs
from pinlater.server.messages import Failure, MessageType
from pinlater.server.settings import MIB
from tests.support.servers import Server, wait_until
from tests.support.thrift_clients import RawPeer
from tests.support.thrift_frames import Answer, ack, arguments, call, dequeue, enqueue, framed, head, read_answer
from tests.support.thrift_server import ThriftServer

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # what is shown is not the store's

Start = Callable[..., ThriftServer]
NEVER_S = 3600.0
NAMES = call("getQueueNames", 9)


class Wire(RawPeer):
    """A connection that closes with its test. Connecting is enough to see one that is refused."""

    def ask(self, frame: bytes) -> Answer:
        self.send(frame)
        return self.answer()

    def answer(self) -> Answer:
        message = self.frame()
        assert message, "expected an answer, the server closed the connection"
        return read_answer(message)


@pytest.fixture
def start(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(**settings)`: a server with the queue q. It closes nothing because of a time."""
    monkeypatch.setattr(listener, "SWEEP_S", NEVER_S)
    running: list[ThriftServer] = []

    def start(**settings: Any) -> ThriftServer:
        running.append(ThriftServer({"1": server.url}, **settings))
        assert connect(running[-1]).ask(call("createQueue", name="q")).code is None
        return running[-1]

    made: list[Wire] = []

    def connect(thrift: ThriftServer) -> Wire:
        made.append(Wire(thrift.port))
        return made[-1]

    start.connect = connect  # type: ignore[attr-defined]  # of the fixture with that name
    yield start
    server.resume()
    for wire in made:
        wire.close()
    for thrift in running:
        thrift.stop()


@pytest.fixture
def connect(start: Start) -> Callable[[ThriftServer], Wire]:
    """`connect(server)`: a connection that is closed at the end of the test."""
    return start.connect  # type: ignore[attr-defined,no-any-return]


Connect = Callable[[ThriftServer], Wire]


@pytest.fixture
def fast(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks often for what takes too long, and frames have little time. After `start`, which is slow."""
    monkeypatch.setattr(listener, "SWEEP_S", 0.02)
    monkeypatch.setattr(connection, "FRAME_S", 0.2)


# calls in pieces and together


def test_requests_in_one_write_are_answered_in_order(start: Start, connect: Connect) -> None:
    """Row: two requests in one write."""
    wire = connect(start())
    frames = [
        enqueue("q", b"1", sequence=1),
        call("getQueueNames", 2),
        dequeue("q", 5, 3),
        framed(head("nothing", 4) + b"\0"),
        NAMES,
    ]
    wire.send(b"".join(frames))
    answers = [wire.answer() for _ in frames]
    assert [answer.sequence for answer in answers] == [1, 2, 3, 4, 9]
    assert answers[1].value == ["q"]
    assert list(answers[2].value.jobs) == answers[0].value.jobDescriptors
    assert answers[3].failure == Failure.UNKNOWN_METHOD


def test_a_request_may_come_byte_by_byte(start: Start, connect: Connect) -> None:
    wire = connect(start())
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in enqueue("q", b"body") + NAMES:
        wire.send(bytes([byte]))
    assert len(wire.answer().value.jobDescriptors) == 1
    assert wire.answer().value == ["q"]


def test_many_calls_that_are_answered_at_once_may_come_together(start: Start, connect: Connect) -> None:
    wire, count = connect(start()), 5_000
    wire.send(b"".join(framed(head("nothing", number) + b"\0") for number in range(count)))
    assert [wire.answer().sequence for _ in range(count)] == [*range(count)]
    assert wire.ask(NAMES).value == ["q"]


def test_finagles_opening_call_is_an_unknown_method(start: Start, connect: Connect) -> None:
    """Row: `__can__finagle__trace__v3__` first on a connection."""
    wire = connect(start())
    opening = wire.ask(framed(head("__can__finagle__trace__v3__", 0x1234) + b"\0"))
    assert (opening.sequence, opening.failure) == (0x1234, Failure.UNKNOWN_METHOD)
    assert wire.ask(NAMES).value == ["q"]


@pytest.mark.parametrize("method", ["", "createqueue", "é" * 100, "getQueueNames\0", "__init__"])
def test_an_unknown_method_is_answered(start: Start, connect: Connect, method: str) -> None:
    """Row: unknown method."""
    thrift = start()
    wire = connect(thrift)
    answer = wire.ask(framed(head(method, 3) + b"\0"))
    assert (answer.method, answer.sequence, answer.failure) == (method, 3, Failure.UNKNOWN_METHOD)
    assert wire.ask(NAMES).value == ["q"]
    assert method not in thrift.process.stats.timings  # clients make names up


def test_oneway_calls_and_old_heads_are_answered(start: Start, connect: Connect) -> None:
    """Row: oneway-typed call; non-strict header."""
    wire, body = connect(start()), arguments("getQueueNames")
    assert wire.ask(framed(head("getQueueNames", 5, kind=4) + body)).value == ["q"]
    old = struct.pack(">i", 13) + b"getQueueNames" + struct.pack(">Bi", 1, 6)
    answer = wire.ask(framed(old + body))
    assert (answer.sequence, answer.value) == (6, ["q"])


@pytest.mark.parametrize(
    "frame",
    [
        call("createQueue", context=None, name="made"),
        call("enqueueJobs", context=None, request=structs.PinLaterEnqueueRequest("q", [structs.PinLaterJob(b"x")])),
        call("getQueueNames", context=None),
        call("dequeueJobs", context=None, request=structs.PinLaterDequeueRequest("q", 1)),
        call("ackDequeuedJobs", context=None, request=structs.PinLaterJobAckRequest("q")),
    ],
    ids=["createQueue", "enqueueJobs", "getQueueNames", "dequeueJobs", "ackDequeuedJobs"],
)
def test_without_a_context_nothing_is_done(start: Start, connect: Connect, server: Server, frame: bytes) -> None:
    """Row: context unset."""
    wire = connect(start())
    assert wire.ask(frame).failure == Failure.PROTOCOL_ERROR
    assert wire.ask(NAMES).value == ["q"]
    with Client(server.url) as client:
        assert client.count("q").pending == 0


# what is no call


BOMB = b"\x0c\0\x09"  # a field with a struct
WHOLE = arguments("createQueue", name="made")[:-1]  # more fields may follow
ENQUEUE = arguments("enqueueJobs", request=structs.PinLaterEnqueueRequest("q", [structs.PinLaterJob(b"x")]))[:-1]
NO_CALLS = {
    "garbage": framed(b"\xde\xad\xbe\xef" * 10),
    "zero length": framed(b""),
    "an answer": framed(head("getQueueNames", kind=2) + b"\0"),
    "truncated struct": framed(head("createQueue") + WHOLE),
    "truncated enqueue": framed(enqueue("q", b"x")[4:-1]),
    "truncated dequeue": framed(dequeue("q", 1)[4:-1]),
    "truncated ack": framed(ack("q", "q:s1:p1:1")[4:-1]),
    "no arguments": framed(head("createQueue")),
    "length -1": struct.pack(">i", -1),
    "length 2^31-1": struct.pack(">i", 2**31 - 1),
    "length 64 MiB + 1": struct.pack(">i", 64 * MIB + 1),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    "unframed": head("getQueueNames") + b"\0",
    "depth 65": framed(head("createQueue") + WHOLE + BOMB * 64 + b"\0" * 65),
    "depth 65 of an enqueue": framed(head("enqueueJobs") + ENQUEUE + BOMB * 64 + b"\0" * 65),
    "depth 1,000,000": framed(head("createQueue") + WHOLE + BOMB * 1_000_000),
    "depth of an enqueue": framed(head("enqueueJobs") + BOMB * 100_000),
    "lists in lists": framed(head("createQueue") + WHOLE + b"\x0f\0\x09" + b"\x0f\0\0\0\x01" * 100_000),
    "list of 2^31-1": framed(head("createQueue") + WHOLE + b"\x0f\0\x09\x0c\x7f\xff\xff\xff\0"),
    "list of -1": framed(head("createQueue") + WHOLE + b"\x0f\0\x09\x0c\xff\xff\xff\xff\0"),
    "map of 2^31-1": framed(head("createQueue") + WHOLE + b"\x0d\0\x09\x0c\x0c\x7f\xff\xff\xff\0"),
    "jobs, 2^31-1 of them": framed(head("enqueueJobs") + b"\x0c\0\x02\x0f\0\x02\x0c\x7f\xff\xff\xff"),
    "3 million empty structs": framed(
        head("checkpointJobs") + b"\x0c\0\x02\x0f\0\x02\x0c" + struct.pack(">i", 3_000_000) + bytes(3_000_002)
    ),
    "a string longer than the frame": framed(head("createQueue") + b"\x0b\0\x02\0\0\x01\0name\0"),
    "a string of -1 bytes": framed(head("createQueue") + b"\x0b\0\x02\xff\xff\xff\xffname\0"),
    "a body longer than the frame": framed(
        head("enqueueJobs") + b"\x0c\0\x02\x0f\0\x02\x0c\0\0\0\x01\x0b\0\x01\x7f\xff\xff\xffbody\0\0\0\0"
    ),
    "an unknown type": framed(head("createQueue") + WHOLE + b"\x63\0\x09\0\0"),
    "a bool of 2": framed(head("createQueue") + WHOLE + b"\x02\0\x09\x02\0"),
}


@pytest.mark.parametrize("data", NO_CALLS.values(), ids=NO_CALLS.keys())
def test_what_is_no_call_ends_its_connection_at_once(start: Start, connect: Connect, data: bytes) -> None:
    """Rows: garbage frame, zero length, truncated struct; length -1 or 2^31-1, or unframed."""
    thrift = start()
    wire, other = connect(thrift), connect(thrift)
    with suppress(ConnectionError):  # it may close before all is sent
        wire.send(data)
    assert wire.is_closed()
    assert other.ask(NAMES).value == ["q"]
    assert thrift.process.calls.capacity.under_way == 0


@pytest.mark.parametrize(("method", "whole"), [("createQueue", WHOLE), ("enqueueJobs", ENQUEUE)])
def test_structs_of_every_method_may_be_as_deep(start: Start, connect: Connect, method: str, whole: bytes) -> None:
    wire = connect(start())
    assert wire.ask(framed(head(method) + whole + BOMB * 63 + b"\0" * 64)).failure is None
    assert wire.ask(NAMES).code is None


# slow and idle clients


@pytest.mark.usefixtures("fast")
def test_half_a_frame_is_closed_after_its_time(start: Start, connect: Connect) -> None:
    thrift = start(idle_s=1_000)
    first, later = connect(thrift), connect(thrift)
    first.send(NAMES[:-1])
    later.send(NAMES + NAMES[:-1])
    assert later.answer().value == ["q"]
    assert first.is_closed()
    assert later.is_closed()


@pytest.mark.usefixtures("fast")
def test_a_byte_now_and_then_keeps_no_connection(start: Start, connect: Connect) -> None:
    wire = connect(start(idle_s=1_000))
    wire.send(struct.pack(">i", 10_000))
    wire.socket.settimeout(0.01)
    for _ in range(6_000):  # a minute
        with suppress(TimeoutError):
            assert wire.is_closed()
            return
        with suppress(ConnectionError):
            wire.send(b"\0")
    raise AssertionError("expected a closed connection")


@pytest.mark.usefixtures("fast")
def test_a_long_frame_that_comes_steadily_has_time(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LEAST_BYTES_A_S", 100)
    thrift, frame = start(idle_s=1_000), enqueue("q", bytes(20_000))
    wire, slow = connect(thrift), connect(thrift)
    wire.send(frame[:10_000])
    connections = thrift.process.listener.connections
    wait_until(lambda: any(each.held_bytes == 10_000 for each in [*connections]), "the first half of the frame")
    slow.send(NAMES[:-1])
    assert slow.is_closed()  # by then the other one would be closed too, if its bytes did not count
    wire.send(frame[10_000:])
    assert len(wire.answer().value.jobDescriptors) == 1


@pytest.mark.usefixtures("fast")
def test_the_call_under_way_has_no_time_limit(start: Start, connect: Connect, server: Server) -> None:
    thrift = start(idle_s=1_000)
    wire, idle = connect(thrift), connect(thrift)
    server.pause()
    wire.send(enqueue("q", b"x") + NAMES[:-1])
    idle.send(NAMES[:-1])
    assert idle.is_closed()  # by then the other one would be closed too
    server.resume()
    assert len(wire.answer().value.jobDescriptors) == 1
    assert wire.ask(NAMES[-1:]).value == ["q"]


@pytest.mark.usefixtures("fast")
def test_idle_connections_are_closed(start: Start, connect: Connect) -> None:
    thrift = start(idle_s=1)
    silent, after_a_call = connect(thrift), connect(thrift)
    assert after_a_call.ask(NAMES).value == ["q"]
    assert silent.is_closed()
    assert after_a_call.is_closed()


# memory


def receives_little(wire: Wire) -> None:
    """The kernel keeps few bytes for this client."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)


def dry_run(sequence: int) -> bytes:
    request = structs.PinLaterDequeueRequest(queueName="q", limit=1, dryRun=True)
    return call("dequeueJobs", sequence, request=request)


def carried_out(thrift: ThriftServer, method: str) -> int:
    timings = thrift.process.stats.timings.get(method)
    return 0 if timings is None else sum(timings.buckets)


def test_a_client_that_does_not_read_gets_no_more_calls_carried_out(start: Start, connect: Connect) -> None:
    thrift, count = start(), 100
    wire, other = connect(thrift), connect(thrift)
    receives_little(wire)
    other.ask(enqueue("q", bytes(MIB)))
    wire.send(b"".join(map(dry_run, range(count))))
    wait_until(lambda: any(each.held_bytes for each in [*thrift.process.listener.connections]), "an answer that waits")
    for _ in range(20):
        assert other.ask(NAMES).value == ["q"]
    assert carried_out(thrift, "dequeueJobs") < count // 2
    assert sum(each.held_bytes for each in [*thrift.process.listener.connections]) < 3 * MIB
    assert [wire.answer().sequence for _ in range(count)] == [*range(count)]


def test_a_client_that_reads_nothing_and_writes_on_is_not_read_from(start: Start, connect: Connect) -> None:
    thrift = start()
    wire, other = connect(thrift), connect(thrift)
    receives_little(wire)
    other.ask(enqueue("q", bytes(MIB)))
    wire.socket.settimeout(0.3)
    much = dry_run(1) * 400_000
    with pytest.raises(TimeoutError):
        wire.send(much)
    assert sum(each.held_bytes for each in [*thrift.process.listener.connections]) < 3 * MIB
    assert other.ask(NAMES).value == ["q"]


def test_the_bytes_of_all_connections_are_bounded(start: Start, connect: Connect) -> None:
    thrift = start(max_frame=MIB, max_buffered=MIB)
    hoards = [connect(thrift) for _ in range(4)]
    modest, frame = connect(thrift), enqueue("q", bytes(200_000))
    modest.send(frame[:100_000])
    for wire in hoards:
        with suppress(ConnectionError):
            wire.send(struct.pack(">i", MIB) + bytes(400_000))
    connections = thrift.process.listener.connections
    wait_until(lambda: len(connections) <= 2 + 2, "two hoards closed, beside two other connections")
    modest.send(frame[100_000:])
    assert len(modest.answer().value.jobDescriptors) == 1
    assert sum(each.held_bytes for each in [*connections]) <= MIB


def test_answers_that_nobody_reads_are_bounded_too(start: Start, connect: Connect) -> None:
    thrift = start(max_buffered=9 * MIB, max_frame=9 * MIB)
    other, connections = connect(thrift), thrift.process.listener.connections
    other.ask(enqueue("q", bytes(8 * MIB)))
    lazy = [connect(thrift) for _ in range(6)]  # the kernel keeps some MiB for each
    for wire in lazy:
        receives_little(wire)
        wire.send(dry_run(1))
    wait_until(lambda: len(connections) < 2 + len(lazy), "a connection that was closed")
    assert sum(each.held_bytes for each in [*connections]) <= 9 * MIB
    assert other.ask(NAMES).value == ["q"]


# too much at once


def test_too_many_connections_are_closed(start: Start, connect: Connect) -> None:
    thrift = start(max_connections=3)  # one of them made the queue
    wires = [connect(thrift) for _ in range(2)]
    assert [wire.ask(NAMES).value for wire in wires] == [["q"]] * 2
    assert connect(thrift).is_closed()
    wires.pop().close()
    wait_until(lambda: len(thrift.process.listener.connections) == 2, "the end of a connection")
    assert connect(thrift).ask(NAMES).value == ["q"]


@pytest.mark.parametrize("kind", [MessageType.CALL, MessageType.ONEWAY])
def test_a_wrong_descriptor_is_named_whatever_the_type_of_the_call(start: Start, connect: Connect, kind: int) -> None:
    infos = [structs.PinLaterJobAckInfo(jobDescriptor="abc")]
    request = structs.PinLaterJobAckRequest(queueName="q", jobsSucceeded=infos)
    answer = connect(start()).ask(
        framed(head("ackDequeuedJobs", 3, kind) + arguments("ackDequeuedJobs", request=request))
    )
    assert (answer.sequence, answer.code) == (3, structs.ErrorCode.UNKNOWN)
    assert answer.message.startswith("succeeded job 0: job descriptor: expected ")


def test_nothing_is_kept_of_what_comes_behind_a_stop(start: Start, connect: Connect, server: Server) -> None:
    thrift = start()
    wire, connections = connect(thrift), thrift.process.listener.connections
    server.pause()
    wire.send(enqueue("q", b"x"))
    wait_until(lambda: thrift.process.calls.capacity.under_way == 1, "a call under way")
    [busy] = [each for each in [*connections] if each.peer.endswith(f":{wire.socket.getsockname()[1]}")]

    async def end() -> None:
        busy.end()

    thrift.run(end())
    wire.send(bytes(8 * MIB))
    assert busy.held_bytes == 0
    server.resume()
    assert len(wire.answer().value.jobDescriptors) == 1


def test_calls_past_max_requests_are_refused_and_their_clients_wait(
    start: Start, connect: Connect, server: Server
) -> None:
    thrift = start(max_requests=2)
    busy, refused, room = [connect(thrift), connect(thrift)], connect(thrift), thrift.process.calls.capacity
    server.pause()
    for wire in busy:
        wire.send(enqueue("q", b"x"))
    wait_until(lambda: room.under_way == 2, "two calls under way")
    answer = refused.ask(NAMES)
    assert (answer.sequence, answer.code) == (9, structs.ErrorCode.UNKNOWN)
    assert "try again" in answer.message
    refused.send(NAMES)  # not refused: nobody reads it until there is room
    for _ in range(2):  # the second answer comes after a turn of the loop that had the bytes of `refused` to read
        assert connect(thrift).ask(NAMES).code == structs.ErrorCode.UNKNOWN
    server.resume()
    assert refused.answer().value == ["q"]
    assert all(len(wire.answer().value.jobDescriptors) == 1 for wire in busy)
    assert room.under_way == room.held_bytes == 0


def test_a_lookup_of_too_many_bytes_is_refused_before_they_are_one_answer(start: Start, connect: Connect) -> None:
    thrift = start(max_frame=MIB)
    wire, body = connect(thrift), bytes(MIB // 2 - 100_000)
    named = [wire.ask(enqueue("q", body)).value.jobDescriptors[0] for _ in range(8)]

    def looked_up(names: list[str], *, bodies: bool = True) -> Answer:
        request = structs.PinLaterLookupJobRequest(jobDescriptors=names, includeBody=bodies)
        return wire.ask(call("lookupJobs", request=request))

    refused = looked_up(named)
    assert refused.code == structs.ErrorCode.UNKNOWN
    assert "expected bodies of up to 1,048,576 bytes together" in refused.message
    assert [info.body for info in looked_up(named[:2]).value.values()] == [body] * 2
    assert len(looked_up(named, bodies=False).value) == 8


def test_dequeues_of_large_jobs_wait_for_room(start: Start, connect: Connect, server: Server) -> None:
    thrift = start(max_buffered=4 * MIB)
    with Client(server.url) as client:
        client.enqueue_many("q", [bytes(MIB)] * 8)
    room, seen = thrift.process.room, []
    wires = [connect(thrift) for _ in range(8)]
    for wire in wires:
        wire.send(dequeue("q", 1))
    for wire in wires:
        seen.append(len(wire.answer().value.jobs))
        assert room.held_bytes <= 4 * MIB
    assert seen == [1] * 8
    assert room.held_bytes == 0


def test_a_large_answer_that_is_read_slowly_counts_whole(start: Start, connect: Connect, server: Server) -> None:
    thrift = start()
    with Client(server.url) as client:
        client.enqueue_many("q", [bytes(8 * MIB)])
    wire, connections = connect(thrift), thrift.process.listener.connections
    receives_little(wire)
    wire.send(dequeue("q", 1))
    wait_until(lambda: any(each.held_bytes > 8 * MIB for each in [*connections]), "the answer")
    assert [*wire.answer().value.jobs.values()] == [bytes(8 * MIB)]
    wait_until(lambda: not any(each.held_bytes for each in [*connections]), "an answer that was taken")


def test_calls_with_too_many_bytes_at_once_are_refused(start: Start, connect: Connect, server: Server) -> None:
    thrift = start(max_buffered=MIB, max_frame=MIB)
    busy, refused = connect(thrift), connect(thrift)
    server.pause()
    busy.send(enqueue("q", bytes(900_000)))
    wait_until(lambda: thrift.process.calls.capacity.under_way == 1, "a call under way")
    assert refused.ask(enqueue("q", bytes(200_000))).code == structs.ErrorCode.UNKNOWN
    server.resume()
    assert len(busy.answer().value.jobDescriptors) == 1
    assert len(refused.ask(enqueue("q", bytes(200_000))).value.jobDescriptors) == 1


# jobs that nobody got


def is_back(client: Client, descriptor: str) -> bool:
    info = client.lookup([descriptor]).get(descriptor)
    return info is not None and info.state.value == "pending"


@pytest.mark.parametrize("how", ["leaves during the call", "does not read the answer"])
def test_jobs_of_an_answer_that_no_client_took_are_released(
    start: Start, connect: Connect, server: Server, how: str
) -> None:
    thrift = start()
    wire, other = connect(thrift), connect(thrift)
    size = 1 if how == "leaves during the call" else 12 * MIB
    (descriptor,) = other.ask(enqueue("q", bytes(size))).value.jobDescriptors
    receives_little(wire)
    with Client(server.url) as client:
        if how == "leaves during the call":
            server.pause()
            wire.send(dequeue("q", 1))
            wait_until(lambda: thrift.process.calls.capacity.under_way == 1, "a call under way")
            wire.close()
            wait_until(lambda: len(thrift.process.listener.connections) == 2, "the end of the connection")
            server.resume()
        else:
            wire.send(dequeue("q", 1))
            wait_until(lambda: carried_out(thrift, "dequeueJobs") == 1, "an answer")
            assert not is_back(client, descriptor)
            wire.close()
        wait_until(lambda: is_back(client, descriptor), "the job in its line")
        assert client.lookup([descriptor])[descriptor].attempts_remaining == 2


def test_a_job_whose_answer_was_taken_stays_claimed(start: Start, connect: Connect, server: Server) -> None:
    thrift = start()
    wire, other = connect(thrift), connect(thrift)
    (descriptor,) = other.ask(enqueue("q", bytes(12 * MIB))).value.jobDescriptors
    assert list(wire.ask(dequeue("q", 1)).value.jobs) == [descriptor]
    wire.close()
    wait_until(lambda: len(thrift.process.listener.connections) == 2, "the end of the connection")
    assert other.ask(NAMES).value == ["q"]
    assert other.ask(ack("q", descriptor)).code is None
    with Client(server.url) as client:
        assert client.count("q").succeeded == 1
