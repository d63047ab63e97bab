"""The connections of a Thrift client: one call at a time on each, and another server when one fails.

Promises:
- A call that was certainly not carried out goes to the next server. A change whose answer was lost is not sent again.
- An answer is read up to its limit, and checked before a library reads it. After any error its connection is closed.
- Threads may share the connections. A forked child starts without any.

Risks: a server that goes away in the moment of a change leaves its outcome unknown.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from pinlater.model.errors import ClientClosed, ServerUnavailable
from pinlater.model.pauses import Pauses
from pinlater.server.frames import BadFrame, FrameReader
from pinlater.server.messages import BadMessage
from pinlater.server.thrift_url import NO_ANSWER, ThriftUrl

T = TypeVar("T")

#: Bytes of an answer at most.
MAX_ANSWER: Final = 256 * 1024 * 1024
#: Each server keeps up to this many free connections.
MAX_FREE: Final = 16
#: An answer that is on its way at the deadline still gets this long.
LEAST_ANSWER_S: Final = 1.0
#: A connect, or sending a call, gets at least this long.
_LEAST_S: Final = 0.01
_CLOSED: Final = "the server closed the connection before it answered"
#: A port with TLS closes a connection without it.
_MAYBE_TLS: Final = "; if the port takes TLS, the URL begins with thrifts://; else the log of the server may say why"
#: Codes of OpenSSL: the certificate is of another time, or for another host or address.
_OF_ANOTHER_TIME: Final = (9, 10)
_OF_ANOTHER_HOST: Final = (62, 64)
_READ_BYTES: Final = 65_536


class AnswerLost(Exception):
    """The call was sent, and no answer came that can be read. It may have been carried out."""


class _Failed(Exception):
    """A try failed, and another one may follow. index: the server."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index


class ThriftConnections:
    """Connections to the servers of a URL. Calls stay with a server until it fails.

    connect_timeout_s: seconds for one connect. read_timeout_s: see ask().
    """

    def __init__(self, url: ThriftUrl, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._url, self._connect_timeout_s, self._read_timeout_s = url, connect_timeout_s, read_timeout_s
        self._at = 0
        #: Whether a server has answered before: then it most likely restarts, and comes back.
        self._answered = False
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free: list[list[_Connection]] = [[] for _ in self._url.addresses]

    def close(self) -> None:
        """Closes the free connections; those in use close when their calls end. A second call does nothing."""
        self._closed = True
        with self._lock:
            free = [connection for connections in self._free for connection in connections]
            self._free = [[] for _ in self._url.addresses]
        for connection in free:
            connection.close()

    def ask(self, frame: bytes, read: Callable[[bytes], T], deadline_s: float, *, changes: bool) -> tuple[T, str]:
        """Sends a call. Returns what `read` made of the answer's frame, and the server.

        read: may raise BadFrame or BadMessage for what is no answer to this call.
        changes: the answer is waited for until the deadline, and the call is not sent twice. Other calls go to the next
        server when no answer came in `read_timeout_s`.
        Raises AnswerLost, ServerUnavailable and ClientClosed.
        """
        if time.monotonic() >= deadline_s:
            raise ServerUnavailable(
                f"{self._url.shown(0)}: not sent: earlier parts of the call took all its time; give it a longer timeout"
            )
        pauses, failures = Pauses(), 0
        while True:
            try:
                return self._try(frame, read, deadline_s, changes)
            except _Failed as error:
                failures += 1
                self._leave(error.index)
                round_over, left_s = failures >= len(self._url.addresses), deadline_s - time.monotonic()
                if left_s <= 0 or (round_over and not self._answered):
                    raise ServerUnavailable(f"{NO_ANSWER}: {error}") from None
                if round_over:
                    time.sleep(min(pauses.take(), left_s))

    def _try(self, frame: bytes, read: Callable[[bytes], T], deadline_s: float, changes: bool) -> tuple[T, str]:
        connection, index = self._take(deadline_s)
        name = self._url.shown(index)
        try:
            connection.send(frame, deadline_s)
        except OSError as error:
            connection.close()
            raise _Failed(index, f"{name}: {_reason(error)}") from None
        until_s = deadline_s if changes else min(deadline_s, time.monotonic() + self._read_timeout_s)
        try:
            answer = read(connection.receive(max(until_s, time.monotonic() + LEAST_ANSWER_S)))
        except (OSError, BadFrame, BadMessage) as error:
            connection.close()
            why = f"{name}: {_reason(error)}"
            raise (AnswerLost(why) if changes else _Failed(index, why)) from None
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, index)
        return answer, name

    def _take(self, deadline_s: float) -> tuple[_Connection, int]:
        """A connection to the server that calls stay with, and its number."""
        if self._pid != os.getpid():
            self._start()
        while True:
            with self._lock:
                index, connection = self._at, self._free[self._at].pop() if self._free[self._at] else None
            if self._closed:
                raise ClientClosed("expected an open client, this one is closed")
            if connection is None:
                break
            if not connection.is_stale():
                return connection, index
            connection.close()
        timeout_s = max(_LEAST_S, min(self._connect_timeout_s, deadline_s - time.monotonic()))
        try:
            return _Connection(self._url, index, timeout_s, is_first=not self._answered), index
        except OSError as error:
            raise _Failed(index, f"{self._url.shown(index)}: {_reason(error)}") from None

    def _give_back(self, connection: _Connection, index: int) -> None:
        self._answered = True
        with self._lock:
            if not self._closed and len(self._free[index]) < MAX_FREE:
                self._free[index].append(connection)
                return
        connection.close()

    def _leave(self, index: int) -> None:
        """Goes on to the server behind one that failed, unless another thread did."""
        with self._lock:
            if self._at == index:
                self._at = (index + 1) % len(self._url.addresses)


class _Connection:
    """One connection.

    timeout_s: of the connect, and of the handshake of TLS. is_first: no server has answered this client before.
    """

    def __init__(self, url: ThriftUrl, index: int, timeout_s: float, *, is_first: bool) -> None:
        host, port = url.addresses[index]
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.tls is not None:
                self._socket = url.tls.wrap_socket(self._socket, server_hostname=host)
        except BaseException:
            self._socket.close()
            raise
        self._reader = FrameReader(MAX_ANSWER)
        self._closed = _CLOSED + (_MAYBE_TLS if is_first and url.tls is None else "")

    def close(self) -> None:
        self._socket.close()

    def is_stale(self) -> bool:
        """Whether the server closed the connection: nothing else can be there to read between two calls."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, frame: bytes, deadline_s: float) -> None:
        """Sends a frame. After an OSError the server has not got all of it."""
        self._socket.settimeout(max(_LEAST_S, deadline_s - time.monotonic()))
        self._socket.sendall(frame)

    def receive(self, until_s: float) -> bytes:
        """The next frame. Raises OSError and BadFrame. until_s: monotonic seconds."""
        while (frame := self._reader.next()) is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError(self._closed)
            self._reader.add(data)
        if self._reader.kept_bytes:
            raise BadFrame("expected one answer, got more than that")
        return frame


def _reason(error: Exception) -> str:
    """Why a try failed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error)) + _advice(error)


def _advice(error: Exception) -> str:
    """What to do about a failure of TLS."""
    if not isinstance(error, ssl.SSLError):
        return ""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return "; if the port takes no TLS, the URL begins with thrift://"
    if error.verify_code in _OF_ANOTHER_TIME:
        return ""
    if error.verify_code in _OF_ANOTHER_HOST:
        return "; the host of the URL must be one that the certificate names"
    return "; if the certificate is of an authority of your own, the URL ends with ?ca=FILE, which has that authority"
