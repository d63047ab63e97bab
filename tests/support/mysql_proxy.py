"""A TCP proxy between a MySQL client and its server that cuts a connection at a chosen statement.

Promises: it forwards whole packets, so a cut falls where it was asked for: before the server sees the statement, or
after it carried it out. Connections made after a cut work. Risk: it knows no TLS.
"""

from __future__ import annotations

import enum
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.support.servers import free_port

HEADER_BYTES: Final = 4  # 3 of length, 1 of position in an exchange; 0 begins one
COM_QUERY: Final = 3
PART_BYTES: Final = 6  # of an answer: less than the shortest one


class Cut(enum.Enum):
    """Where the connection fails."""

    BEFORE = "the statement is not forwarded"
    AFTER = "the server carries out the statement, no byte of its answer arrives"
    REPLY = "the server carries out the statement, a part of its answer arrives"
    SILENCE = "the server carries out the statement, no byte of its answer arrives, the connection stays open"


class MysqlProxy:
    """Listens on 127.0.0.1:`port` and forwards to 127.0.0.1:`server_port`, from `with` to its end.

    statements: all that came. cuts: how many connections were cut at a statement.
    """

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = free_port()
        self.statements: list[bytes] = []
        self.cuts = 0
        self._arm: tuple[bytes, Cut] | None = None
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._acceptor = threading.Thread(target=self._serve)

    def arm(self, start: bytes, cut: Cut) -> None:
        """Cut at the next statement that begins so."""
        self._arm = (start, cut)

    def disarm(self) -> None:
        """Cut at no statement any more."""
        with self._lock:
            self._arm = None

    def cut_all(self) -> None:
        """End every open connection now, and wait until they have ended."""
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.stop()

    def cut_of(self, statement: bytes) -> Cut | None:
        """Log a statement; how to cut at it. For the connections."""
        with self._lock:
            self.statements.append(statement)
            if self._arm is None or not statement.startswith(self._arm[0]):
                return None
            (_, cut), self._arm = self._arm, None
            self.cuts += 1
            return cut

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.cut_all()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
            else:
                self._connections.append(_Connection(self, client, server))


class _Connection:
    """One client's connection: a thread for statements and one for answers."""

    def __init__(self, proxy: MysqlProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._muted: Cut | None = None
        self._answered = threading.Event()
        self._threads = [
            threading.Thread(target=self._forward_statements),
            threading.Thread(target=self._forward_answers),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the connection, and wait for its threads."""
        self._end()
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._server.close()

    def _forward_statements(self) -> None:
        while packet := _packet(self._client):
            is_query = not packet[3] and packet[HEADER_BYTES] == COM_QUERY
            cut = self._proxy.cut_of(packet[HEADER_BYTES + 1 :]) if is_query else None
            if cut is Cut.BEFORE:
                break
            self._muted = self._muted or cut
            with suppress(OSError):
                self._server.sendall(packet)
            if cut in (Cut.AFTER, Cut.REPLY):
                self._answered.wait()
                break
        self._end()

    def _forward_answers(self) -> None:
        while data := _receive(self._server):
            if self._muted is Cut.REPLY:
                data = data[:PART_BYTES]
            if self._muted in (None, Cut.REPLY):
                with suppress(OSError):
                    self._client.sendall(data)
            if self._muted:
                self._answered.set()
        self._answered.set()
        self._end()

    def _end(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _packet(source: socket.socket) -> bytes:
    """One whole packet; b"" at the end."""
    header = _exactly(source, HEADER_BYTES)
    return header + _exactly(source, int.from_bytes(header[:3], "little")) if header else b""


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = _receive(source, count - len(data))
        if not part:
            return b""
        data += part
    return data


def _receive(source: socket.socket, count: int = 65_536) -> bytes:
    try:
        return source.recv(count)
    except OSError:
        return b""
