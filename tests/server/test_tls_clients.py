"""Clients that break TLS, on real sockets: each is closed within a bounded time and gives its place back, and
well-formed calls on other connections are answered meanwhile.

Promises: nothing waits for a time of the server but tests that shorten it.
"""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pinlater import Client
from pinlater.server import connection, listener
from pinlater.server.interface import structs
from pinlater.server.settings import MIB
from tests.support.certificates import Authority, TlsFiles
from tests.support.servers import Server, wait_until
from tests.support.thrift_clients import RawPeer
from tests.support.thrift_frames import call, dequeue, enqueue, read_answer
from tests.support.thrift_server import ThriftServer

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # what is shown is not the store's

NAMES = call("getQueueNames", 9)
DRY_RUN = call("dequeueJobs", request=structs.PinLaterDequeueRequest(queueName="q", limit=1, dryRun=True))
LONG_S = 3600.0
#: A handshake has so long where time is short, and would have a minute if nobody said how long.
SHORT_S, CLOSED_S = 1.5, 30.0
#: Beyond every limit of connections that a test sets.
MANY = 40


class TlsPeer(RawPeer):
    """A connection that speaks TLS. Its handshake is done."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        #: Of the bytes that nothing encrypts.
        self.plain = self.socket.dup()
        self.socket: ssl.SSLSocket = context.wrap_socket(self.socket, server_hostname="localhost")

    def names(self) -> Any:
        """The answer to a well-formed call."""
        self.send(NAMES)
        return read_answer(self.frame()).value

    def close(self) -> None:
        super().close()
        self.plain.close()


class Service:
    """A server that speaks TLS, with the queue q, and its clients."""

    def __init__(self, server: Server, files: TlsFiles, **settings: Any) -> None:
        settings |= {"tls_cert": str(files.certificate), "tls_key": str(files.key)}
        self.thrift = ThriftServer({"1": server.url}, **settings)
        self.context = ssl.create_default_context(cafile=str(files.certificate))
        self.peers: list[RawPeer] = []
        self.good = self.connect()
        self.good.send(call("createQueue", name="q"))
        assert read_answer(self.good.frame()).code is None

    def connect(self) -> TlsPeer:
        self.peers.append(peer := TlsPeer(self.thrift.port, self.context))
        return peer

    def plain(self, data: bytes = b"") -> RawPeer:
        """A client that sends these bytes instead of TLS."""
        self.peers.append(peer := RawPeer(self.thrift.port))
        peer.socket.settimeout(CLOSED_S)
        peer.send(data)
        return peer

    def only_the_good_one_is_left(self) -> None:
        """Its calls are answered, and nobody else has a place."""
        connections = self.thrift.process.listener.connections
        wait_until(lambda: len(connections) == 1, "the end of the other connections")
        assert self.good.names() == ["q"]
        assert self.connect().names() == ["q"]

    def end(self) -> None:
        for peer in self.peers:
            peer.close()
        self.thrift.stop()


Start = Callable[..., Service]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority(tmp_path_factory.mktemp("tls")).files


@pytest.fixture
def start(
    server: Server, files: TlsFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Start]:
    """`start(**settings)`: a server that closes nothing because of a time. No client makes it log a warning."""
    monkeypatch.setattr(listener, "FRAME_S", LONG_S)
    monkeypatch.setattr(listener, "SWEEP_S", LONG_S)
    running: list[Service] = []

    def start(**settings: Any) -> Service:
        running.append(Service(server, files, **settings))
        return running[-1]

    yield start
    for service in running:
        service.end()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.fixture
def impatient(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handshakes and frames have little time. After `start`, which gives them much."""
    monkeypatch.setattr(listener, "FRAME_S", SHORT_S)
    monkeypatch.setattr(listener, "SWEEP_S", 0.02)
    monkeypatch.setattr(connection, "FRAME_S", 0.2)


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def is_closed(peer: RawPeer) -> bool:
    """Waits until the server closes the connection, whatever it sends before."""
    with suppress(ConnectionError):
        while peer.socket.recv(4096):
            pass
    return True


# clients without TLS


@pytest.mark.parametrize(
    "data",
    [
        NAMES,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"x" * 65_535,
        bytes(100_000),
        b"\x15\x03\x03\0\x02\2\0",
    ],
    ids=["a call", "HTTP", "a record that is too long", "zeros", "an alert"],
)
def test_what_is_no_handshake_is_closed_at_once(start: Start, data: bytes) -> None:
    service = start()
    with suppress(ConnectionError):  # it may close before all is sent
        assert is_closed(service.plain(data))
    service.only_the_good_one_is_left()


def test_a_client_that_leaves_before_the_handshake_has_no_place(start: Start) -> None:
    service = start(max_connections=3)
    for data in (b"", client_hello(service.context)):
        for _ in range(MANY):
            service.plain(data).close()
    service.only_the_good_one_is_left()


# half a handshake


@pytest.mark.usefixtures("impatient")
def test_a_handshake_that_stops_is_closed_after_its_time(start: Start) -> None:
    service = start(idle_s=1_000)
    hello = client_hello(service.context)
    for peer in [service.plain(data) for data in (b"", hello[:1], hello[:-1], hello, NAMES[:3])]:
        assert is_closed(peer)
    service.only_the_good_one_is_left()


@pytest.mark.usefixtures("impatient")
def test_a_handshake_that_comes_byte_by_byte_gets_no_more_time(start: Start) -> None:
    service = start(idle_s=1_000)
    peer = service.plain(struct.pack(">BHH", 22, 0x0301, 16_000))
    peer.socket.settimeout(0.01)
    for _ in range(6_000):  # a minute
        with suppress(TimeoutError):
            assert is_closed(peer)
            break
        with suppress(ConnectionError):
            peer.send(b"\0")
    else:
        raise AssertionError("expected a closed connection")
    service.only_the_good_one_is_left()


def test_handshakes_that_stop_take_no_places(start: Start) -> None:
    service = start(max_connections=3)
    hello = client_hello(service.context)
    stopped = [service.plain(hello) for _ in range(MANY)]
    for peer in stopped:
        assert peer.socket.recv(1)  # the server's part of the handshake is there
    service.only_the_good_one_is_left()


def test_connections_past_the_limit_are_closed_behind_their_handshake(start: Start) -> None:
    service = start(max_connections=3)
    peers = [service.connect() for _ in range(MANY)]
    answers = []
    for peer in peers:
        with suppress(ConnectionError, ssl.SSLError, struct.error):
            answers.append(peer.names())
    assert answers == [["q"]] * 2
    assert service.good.names() == ["q"]
    for peer in peers:
        peer.close()
    service.only_the_good_one_is_left()


# after the handshake


@pytest.mark.parametrize("before", [b"", NAMES[:-1], NAMES, enqueue("q", b"x")], ids=["", "part", "call", "job"])
@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 9, NAMES, b"\x17\x03\x03\0\x20" + bytes(32), b"\x16\x03\x03\0\x04\x01\0\0\0", b"\x17\x03\x03\xff\xff"],
    ids=["bytes", "a call", "a wrong record", "a handshake", "a record that is too long"],
)
def test_garbage_behind_the_handshake_ends_its_connection_at_once(start: Start, before: bytes, garbage: bytes) -> None:
    service = start()
    peer = service.connect()
    peer.send(before)
    peer.plain.sendall(garbage)
    assert is_closed(peer)
    service.only_the_good_one_is_left()


@pytest.mark.usefixtures("impatient")
def test_half_a_record_is_closed_after_its_time(start: Start) -> None:
    service = start(idle_s=1)
    peer = service.connect()
    peer.plain.sendall(b"\x17\x03\x03\x01\0half")
    assert is_closed(peer)


@pytest.mark.usefixtures("impatient")
def test_half_a_frame_in_whole_records_is_closed_after_its_time(start: Start) -> None:
    service = start(idle_s=1_000)
    peer = service.connect()
    peer.send(NAMES[:-1])
    assert is_closed(peer)
    service.only_the_good_one_is_left()


# half of a connection


@pytest.mark.parametrize("before", [b"", NAMES[:-1], NAMES], ids=["", "part", "call"])
def test_a_client_that_says_goodbye_and_stays_gives_its_place_back(start: Start, before: bytes) -> None:
    service = start()
    peer = service.connect()
    peer.send(before)
    peer.socket.settimeout(0)
    with suppress(ssl.SSLError):  # it does not wait for the server's goodbye
        peer.socket.unwrap()
    service.only_the_good_one_is_left()


@pytest.mark.parametrize("before", [b"", NAMES[:-1], NAMES], ids=["", "part", "call"])
def test_a_client_that_ends_its_side_without_a_goodbye_gives_its_place_back(start: Start, before: bytes) -> None:
    service = start()
    peer = service.connect()
    peer.send(before)
    peer.plain.shutdown(socket.SHUT_WR)
    service.only_the_good_one_is_left()


# answers that nobody reads


def receives_little(peer: TlsPeer) -> None:
    """The kernel keeps few bytes for this client."""
    peer.plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)


def answered(service: Service, method: str) -> int:
    timings = service.thrift.process.stats.timings.get(method)
    return 0 if timings is None else sum(timings.buckets)


@pytest.mark.parametrize("read", [1, MIB], ids=["a little", "more"])
def test_jobs_of_an_answer_that_no_client_took_are_released(start: Start, server: Server, read: int) -> None:
    service = start()
    peer, connections = service.connect(), service.thrift.process.listener.connections
    receives_little(peer)
    service.good.send(enqueue("q", bytes(12 * MIB)))
    (descriptor,) = read_answer(service.good.frame()).value.jobDescriptors
    peer.send(dequeue("q", 1))
    while read > 0:
        read -= len(peer.socket.recv(read))
    wait_until(lambda: any(each.held_bytes for each in [*connections]), "an answer that waits")
    peer.close()
    with Client(server.url) as client:
        wait_until(lambda: client.count("q").pending == 1, "the job in its line")
        assert client.lookup([descriptor])[descriptor].attempts_remaining == 2


def test_answers_that_nobody_reads_are_bounded(start: Start) -> None:
    service = start(max_buffered=9 * MIB, max_frame=9 * MIB)
    connections = service.thrift.process.listener.connections
    service.good.send(enqueue("q", bytes(8 * MIB)))
    assert len(read_answer(service.good.frame()).value.jobDescriptors) == 1
    lazy = [service.connect() for _ in range(6)]  # the kernel keeps some MiB for each
    for peer in lazy:
        receives_little(peer)
        peer.send(DRY_RUN)
    wait_until(lambda: len(connections) < 1 + len(lazy), "a connection that was closed")
    assert sum(each.held_bytes for each in [*connections]) <= 9 * MIB
    assert service.good.names() == ["q"]


def test_a_large_answer_comes_whole_to_a_client_that_reads_later(start: Start) -> None:
    service, body = start(), bytes(range(256)) * (12 * MIB // 256)
    peer = service.connect()
    receives_little(peer)
    service.good.send(enqueue("q", body))
    assert service.good.frame()
    peer.send(DRY_RUN + NAMES)
    wait_until(lambda: answered(service, "dequeueJobs") == 1, "an answer")
    assert service.good.names() == ["q"]
    assert [*read_answer(peer.frame()).value.jobs.values()] == [body]
    assert read_answer(peer.frame()).value == ["q"]


def test_a_stop_lets_a_client_take_its_last_answer(start: Start) -> None:
    service, body = start(stop_s=60), bytes(12 * MIB)
    peer, connections = service.connect(), service.thrift.process.listener.connections
    receives_little(peer)
    service.good.send(enqueue("q", body))
    assert service.good.frame()
    peer.send(DRY_RUN)
    wait_until(lambda: any(each.held_bytes for each in [*connections]), "an answer that waits")
    stopping = threading.Thread(target=service.thrift.stop)
    stopping.start()
    wait_until(lambda: len(connections) <= 1, "the end of the idle connection")
    assert [*read_answer(peer.frame()).value.jobs.values()] == [body]
    stopping.join()


def test_a_stop_does_not_wait_for_goodbyes_of_clients(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pinlater.server")
    service = start(stop_s=20)
    idle = [service.connect() for _ in range(3)]
    assert [peer.names() for peer in idle] == [["q"]] * 3
    service.thrift.stop()
    assert "took too long" not in caplog.text
