"""Random and mutated frames against a real server process: each connection ends in answers or a close, the process
lives and does not grow, and well-formed calls on another connection are answered meanwhile.

PINLATER_CAMPAIGN=1 sends many more. Risks: mutations of valid calls of all methods, not guided by coverage.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinlater.server.interface import METHODS
from pinlater.server.settings import MIB
from pinlater.worker.os_process import memory_bytes
from tests.support.server_runs import ServerRun, StartServer, start_server
from tests.support.servers import Server
from tests.support.thrift_clients import RawPeer
from tests.support.thrift_frames import call, framed, read_answer
from tests.support.valid_calls import CALLS, NAMES, QUEUE, SEQUENCE

__all__ = ["start_server"]  # a fixture

on_valkey = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # what is shown is not the store's

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
EXAMPLES, WARM_UP = (20_000, 3_000) if CAMPAIGN else (600, 200)
#: How much a process may grow: what it keeps once, such as the names of 1,000 unknown queues.
GROWTH = 16 * MIB
#: For an answer.
ANSWER_S = 60.0


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The message of a valid call, with some bytes or numbers changed, cut out, repeated or put in."""
    message = bytearray(draw(st.sampled_from(CALLS))[4:])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(message) - 1)))
        how = draw(st.sampled_from(["byte", "number", "cut", "repeat", "insert", "end", "splice"]))
        if how == "byte":
            message[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == "number":
            edge = draw(st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 64, 65_536, 10**6]))
            message[at : at + 4] = struct.pack(">i", edge)
        elif how == "cut":
            del message[at : at + draw(st.integers(1, 30))]
        elif how == "repeat":
            message[at:at] = message[at : at + draw(st.integers(1, 40))] * draw(st.integers(1, 50))
        elif how == "insert":
            message[at:at] = draw(st.binary(max_size=20))
        elif how == "end":
            del message[at:]
        elif b"deleteQueue" not in message:  # it would get a context
            message[at:] = draw(st.sampled_from(CALLS))[4 + at :]
    return bytes(message)


FRAMES = st.one_of(
    mutated().map(framed),
    mutated().map(framed),
    st.binary(max_size=200).map(framed),
    st.binary(max_size=200),
    st.sampled_from(CALLS),
)


@pytest.fixture
def service(start_server: StartServer, server: Server) -> Iterator[ServerRun]:
    """A server with the queue."""
    running = start_server()
    with closing(RawPeer(running.port)) as peer:
        peer.send(call("createQueue", name=QUEUE))
        assert read_answer(peer.frame()).code is None
    yield running
    assert "Traceback" not in running.log
    assert running.end() == 0


def send_and_end(port: int, data: bytes) -> None:
    """Sends bytes, then a call. Waits for the answer to that call, or for the end of the connection.

    A client that ends its side in the middle of a frame is closed.
    """
    with closing(RawPeer(port)) as peer:
        peer.socket.settimeout(ANSWER_S)
        with suppress(ConnectionError):
            peer.send(data)
            if is_whole(data):
                peer.send(NAMES)
                while (message := peer.frame()) and sequence_of(message) != SEQUENCE:
                    pass
            else:
                peer.socket.shutdown(socket.SHUT_WR)
                while peer.frame():
                    pass


def is_whole(data: bytes) -> bool:
    """Whether the bytes end with a frame, so that a call behind them begins one."""
    at = 0
    while len(data) - at >= 4:
        (length,) = struct.unpack_from(">i", data, at)
        if not 0 < length <= 64 * MIB:
            return True  # the connection ends here
        at += 4 + length
    return at == len(data)


def sequence_of(message: bytes) -> int:
    (length,) = struct.unpack_from(">i", message, 4)
    (sequence,) = struct.unpack_from(">i", message, 8 + length)
    return int(sequence)


@on_valkey
@pytest.mark.timeout(3600 if CAMPAIGN else 120)
def test_no_frame_stops_or_bloats_a_server(service: ServerRun) -> None:
    port, [pid] = service.port, service.processes(1)
    sent = 0

    with closing(RawPeer(port)) as other:

        def check_other() -> None:
            other.send(NAMES)
            assert sequence_of(other.frame()) == SEQUENCE

        def fuzz(examples: int) -> None:
            @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(st.lists(FRAMES, min_size=1, max_size=4))
            def one(frames: list[bytes]) -> None:
                nonlocal sent
                sent += 1
                send_and_end(port, b"".join(frames))
                if sent % 10 == 0:
                    check_other()

            one()

        fuzz(WARM_UP)
        before = memory_bytes(pid)
        fuzz(EXAMPLES)
        check_other()
        after = memory_bytes(pid)
    assert service.processes(1) == [pid]
    print(f"{sent:,} connections, {(after - before) / MIB:.1f} MiB more")
    assert after - before < GROWTH


@on_valkey
def test_a_length_takes_no_memory(service: ServerRun) -> None:
    port, [pid] = service.port, service.processes(1)
    before, peers = memory_bytes(pid), [RawPeer(port) for _ in range(20)]
    for peer in peers:
        peer.send(struct.pack(">i", 64 * MIB) + b"\x80\x01\0\x01")
    with closing(RawPeer(port)) as other:
        other.send(NAMES)
        assert sequence_of(other.frame()) == SEQUENCE
        assert memory_bytes(pid) - before < 32 * MIB  # not one of them
    for peer in peers:
        peer.close()


def test_each_method_has_a_call_to_mutate() -> None:
    methods = {frame[12 : 12 + struct.unpack_from(">i", frame, 8)[0]].decode() for frame in CALLS}
    assert methods == set(METHODS)
