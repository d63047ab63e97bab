"""The end of a connection whose client reads slowly, step by step on a transport that takes what it is told to."""

from __future__ import annotations

from typing import Any

from pinlater.server.calls import Answer
from pinlater.server.connection import Connection
from pinlater.server.settings import ServerSettings
from tests.support.thrift_frames import dequeue


class Transport:
    """A transport that has written nothing yet. ended: how it was ended."""

    def __init__(self) -> None:
        self.written = b""
        self.ended = ""

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def write(self, data: bytes) -> None:
        self.written += data
        self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    protocol: Connection


class Connections:
    """All connections: they have room for everything."""

    def __init__(self) -> None:
        self.settings = ServerSettings()

    def add(self, connection: Connection) -> bool:
        return True

    def remove(self, connection: Connection) -> None: ...

    def hold_back(self, connection: Connection) -> None: ...

    def hold(self, change: int) -> None: ...


def served(transport: Transport) -> tuple[Connection, list[Answer]]:
    """A connection with a call under way, and what answers it."""
    answers: list[Answer] = []

    def serve(frame: bytes, answer: Answer) -> bool:
        answers.append(answer)
        return True

    connection = Connection(Connections(), serve)
    transport.protocol = connection
    made: Any = transport
    connection.connection_made(made)
    connection.data_received(dequeue("q", 1))
    return connection, answers


def test_an_end_waits_until_the_client_took_the_last_bytes_of_its_answer() -> None:
    transport, lost = Transport(), list[int]()
    connection, [answer] = served(transport)
    answer(b"an answer", lambda: lost.append(1))
    connection.end()
    assert (transport.written, transport.ended) == (b"an answer", "")
    connection.resume_writing()
    assert transport.ended == "closed"
    connection.connection_lost(None)
    assert lost == []


def test_the_last_answer_closes_the_connection_when_it_was_taken() -> None:
    transport, lost = Transport(), list[int]()
    connection, [answer] = served(transport)
    connection.last_call()
    answer(b"an answer", lambda: lost.append(1))
    assert transport.ended == ""
    connection.resume_writing()
    connection.connection_lost(None)
    assert (transport.ended, lost) == ("closed", [])


def test_a_client_that_leaves_before_it_took_its_answer_is_noticed() -> None:
    transport, lost = Transport(), list[int]()
    connection, [answer] = served(transport)
    answer(b"an answer", lambda: lost.append(1))
    connection.end()
    connection.connection_lost(None)
    assert lost == [1]
