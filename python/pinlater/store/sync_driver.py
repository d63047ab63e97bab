"""Carries out effects with blocking sockets.

Each request has a connection of its own while it runs. Promises:
- A connection is dropped after any error, so that no request reads the answer to another.
- A node that is no primary any more, or does not answer in time, is left: its free connections and its subscriptions
  are closed, and its name is resolved anew. Requests under way on other connections are read to their end.
- Threads may share a driver. A forked child starts without connections.

Risks: a signal handler that runs during a read restarts the read's timeout. A timer that fires again and again can keep
a silent server from timing out.
"""

from __future__ import annotations

import _socket
import os
import select
import socket
import struct
import threading
import time
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, ReadOnlyError, RedisError, ResponseError

import pinlater._core as _core
from pinlater.model.errors import ClientClosed, PinLaterError, ServerRefused, ServerUnavailable
from pinlater.model.urls import hide_user
from pinlater.store.effects import (
    LEAST_WAIT_S,
    AwaitMessage,
    AwaitNotification,
    Coalesce,
    Effect,
    Flow,
    Leave,
    Listen,
    NoAnswer,
    Send,
    Sleep,
    Subscribe,
    T,
    Transaction,
    Transactions,
    resume,
)
from pinlater.store.keys import WRITE_NOTHING
from pinlater.store.replies import ErrorReplies
from pinlater.store.servers import READ_BYTES, Server
from pinlater.store.sync_subscriber import SyncSubscriber

#: Each server keeps up to this many free connections, so that a burst of threads does not hold sockets for ever.
MAX_FREE: Final = 64


class SyncDriver:
    """Runs flows.

    connect_timeout_s: for one connect. read_timeout_s: for one read.
    """

    def __init__(self, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._timeouts = (connect_timeout_s, read_timeout_s)
        self._free: dict[Server, list[_Connection]] = {}
        self._pools: dict[Server, tuple[str, redis.ConnectionPool]] = {}
        self._pid = os.getpid()
        self.subscriber = SyncSubscriber(self.connect_to_primary)
        self._lock = threading.Lock()
        self._closed = False

    def drive(self, flow: Flow[T]) -> T:
        """Runs a flow to its end and returns its result.

        Raises ClientClosed if the client is closed before the flow starts, or while it waits for something other than
        an answer.
        """
        result: Any = None
        try:
            if self._closed:
                self._check_open()
            while True:
                effect = flow.send(result)
                while type(effect) is Transaction:
                    effect = resume(flow, effect.outcome())
                result = self._send_all(effect) if type(effect) is list else self._perform(effect)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def after_fork(self) -> None:
        """In a forked child: forgets the parent's connections, and sends nothing on them."""
        self._free, self._pools = {}, {}
        self._pid = os.getpid()
        self.subscriber = SyncSubscriber(self.connect_to_primary)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes every connection. Running calls end; a call that waits for a job ends at once. A second call does
        nothing.
        """
        self._closed = True
        self.subscriber.close()
        with self._lock:
            free, self._free = self._free, {}
        for connections in free.values():
            for connection in connections:
                connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("expected an open client, this one is closed")

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Sleep(seconds):
                time.sleep(seconds)
            case Listen(channels):
                notifications = self.subscriber.listen(channels)
                self._check_open()
                return notifications
            case AwaitNotification(seconds, since):
                self.subscriber.wait(seconds, since)
                self._check_open()
            case Subscribe(server, channel, seconds):
                self._check_open()
                return self.subscriber.subscribe(server, channel, max(LEAST_WAIT_S, seconds))
            case AwaitMessage(subscription, seconds):
                subscription.wait(seconds)
                self._check_open()
            case Coalesce(_, item, make):
                return self.drive(make([item]))[0]
            case Leave(server):
                self._leave(server, server.moves)
            case Transactions(each):
                return [transaction.outcome() for transaction in each]
        return None

    def _send_all(self, sends: list[Send]) -> list[list[Any]]:
        """Sends to every server before it reads, so that the servers work side by side."""
        if len(sends) == 1:
            return [self._read(sends[0], self._send(sends[0]))]
        opened = [self._send(effect) for effect in sends]
        return [self._read(effect, connection) for effect, connection in zip(sends, opened, strict=True)]

    def _send(self, effect: Send) -> _Connection | NoAnswer:
        server = effect.server
        if server.outage is not None and not effect.ping:
            return NoAnswer(False, server.outage())
        packed = _core.pack_commands(effect.commands)
        connection = self._take(server)
        if connection is None:
            moves = server.moves  # before its name is resolved
            try:
                connection = _connection_of(self.connect(server, effect.wait_s(sum(self._timeouts))), moves)
            except PinLaterError as error:
                return NoAnswer(False, error)
        try:
            connection.send(packed, effect.wait_s(self._timeouts[1]))
        except OSError as error:
            connection.close()
            self._leave_if_lost(server, connection, error)
            return NoAnswer(True, ServerUnavailable(f"server {server.with_origin}: sending failed: {error}"))
        return connection

    def _read(self, effect: Send, connection: _Connection | NoAnswer) -> list[Any]:
        if isinstance(connection, NoAnswer):
            return [connection] * len(effect.commands)
        answers: list[Any] = []
        try:
            connection.receive(answers, len(effect.commands))
        except (OSError, _core.BadReply) as error:
            connection.close()
            self._leave_if_lost(effect.server, connection, error)
            lost = NoAnswer(True, ServerUnavailable(f"server {effect.server.with_origin}: no answer: {error}"))
            return answers + [lost] * (len(effect.commands) - len(answers))
        except BaseException:
            connection.close()
            raise
        self._release(effect.server, connection)
        return answers

    def _take(self, server: Server) -> _Connection | None:
        """A free connection that is still open, or None."""
        free = self._free.get(server)
        while free:
            try:
                connection = free.pop()
            except IndexError:
                break  # another thread took it
            if not connection.poll(0):  # a request on a connection that the server closed has an unknown outcome
                return connection
            connection.close()
        return None

    def _release(self, server: Server, connection: _Connection) -> None:
        free = self._free.setdefault(server, [])  # before the check: _leave() takes this list away
        if connection.errors.leave:
            self._leave(server, connection.moves)
        is_current = server.is_used and connection.moves == server.moves
        if len(free) < MAX_FREE and not self._closed and is_current:
            free.append(connection)
        else:
            connection.close()

    def _leave_if_lost(self, server: Server, connection: _Connection, error: Exception) -> None:
        """Leaves the node of a request that failed, if no other connection to it is of use."""
        if connection.errors.leave or isinstance(error, TimeoutError):
            self._leave(server, connection.moves)

    def _leave(self, server: Server, moves: int) -> None:
        """Leaves the node that connections with this `moves` lead to, unless it was left before. Then no free
        connection or subscription stays.
        """
        with self._lock:
            if moves != server.moves:
                return
            server.moves += 1
            free = self._free.pop(server, [])
        while free:
            free.pop().close()
        self.subscriber.leave(server)

    def connect(self, server: Server, within_s: float = float("inf")) -> Any:
        """Connects to a server and checks its node. Returns a redis-py connection. Raises ServerError.

        within_s: time for the connect, and for each answer during it.
        """
        moves, pool = server.moves, self._pool(server)
        limits = {
            "socket_connect_timeout": min(self._timeouts[0], within_s),
            "socket_timeout": min(self._timeouts[1], within_s),
        }
        connection = pool.connection_class(**{**pool.connection_kwargs, **limits})
        try:
            connection.connect()
            connection.send_command("INFO", "server", check_health=False)
            if server.check_node(connection.read_response(disable_decoding=True).decode()):
                self._leave(server, moves)
        except (RedisError, OSError) as error:
            connection.disconnect()
            server.restart_embedded()
            if timed_out(error):
                self._leave(server, moves)
            raise connect_error(server, error) from None
        except PinLaterError:
            connection.disconnect()
            raise
        server.contacted = True
        return connection

    def connect_to_primary(self, server: Server, within_s: float = float("inf")) -> Any:
        """As connect, but also raises ServerUnavailable for an unhealthy server, and for a replica: a subscription
        there would stay silent.
        """
        if server.outage is not None:
            raise server.outage()
        connection = self.connect(server, within_s)
        try:
            connection.send_command(*WRITE_NOTHING, check_health=False)
            connection.read_response(disable_decoding=True)
        except (RedisError, OSError) as error:
            if refuses_subscriptions(error):
                connection.disconnect()
                raise connect_error(server, error) from None
        return connection

    def _pool(self, server: Server) -> redis.ConnectionPool:
        """The pool that knows the arguments of connections. An embedded server may have another URL after a restart."""
        url, arguments = server.connection_arguments(*self._timeouts)
        with self._lock:
            known = self._pools.get(server)
            if known is None or known[0] != url:
                known = self._pools[server] = (url, redis.ConnectionPool.from_url(url, **arguments))
        return known[1]


class _Connection:
    """The socket of a redis-py connection, used directly: redis-py's own methods cost several times the system calls.

    poll: poll(0) of a free connection returns an event once the server has closed it. errors: its error replies.
    moves: of its server, when it was made.
    """

    def __init__(self, connection: Any, moves: int) -> None:
        self._connection = connection
        self._socket = connection._sock
        self.errors = ErrorReplies()
        self.moves = moves
        self._reader = self.errors.reader()
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        self.poll = poll.poll
        self._wait_s = 0.0

    def send(self, packed: bytes, wait_s: float) -> None:
        """Sends packed commands. wait_s: time for each read of the answers. Raises OSError."""
        if wait_s != self._wait_s:
            self._wait_s = wait_s
            self._socket.settimeout(wait_s)
        self._socket.sendall(packed)

    def receive(self, answers: list[Any], count: int) -> None:
        """Appends replies to `answers` until there are `count`; an error reply is a ReplyError.

        Raises OSError or BadReply.
        """
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                raise TimeoutError("timed out") from None  # SO_RCVTIMEO passed, see _KernelConnection
            if not data:
                raise ConnectionResetError("the server closed the connection")
            answers += self._reader.read(data)
            if len(answers) >= count:
                self._reader.end(answers, count)
                return

    def close(self) -> None:
        """Drops the connection. Nobody reads an answer that comes later."""
        self._connection.disconnect()


class _KernelConnection(_Connection):
    """A connection whose timeout is the kernel's: Python polls before each system call on a socket with a timeout."""

    def send(self, packed: bytes, wait_s: float) -> None:
        """See _Connection."""
        if wait_s != self._wait_s:
            self._wait_s = wait_s
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(wait_s))
        sent = self._socket.send(packed, socket.MSG_DONTWAIT)
        if sent < len(packed):
            self._socket.settimeout(wait_s)
            self._socket.sendall(memoryview(packed)[sent:])
            self._socket.settimeout(None)


def _connection_of(connection: Any, moves: int) -> _Connection:
    """A kernel timeout works on plain sockets only: those of TLS and gevent have calls of their own."""
    is_plain = type(connection._sock).recv is _socket.socket.recv
    return _KernelConnection(connection, moves) if is_plain else _Connection(connection, moves)


def _timeval(seconds: float) -> bytes:
    """A struct timeval; at least 1 µs, since 0 means no timeout."""
    return struct.pack("ll", *divmod(max(1, int(seconds * 1e6)), 1_000_000))


def refuses_subscriptions(error: Exception) -> bool:
    """Whether the answer to WRITE_NOTHING is that of a replica, or is missing. Other refusals say nothing of that."""
    return isinstance(error, ReadOnlyError) or not isinstance(error, ResponseError)


def timed_out(error: Exception) -> bool:
    """Whether a connect was not answered in time."""
    return isinstance(error, TimeoutError | redis.TimeoutError)


def connect_error(server: Server, error: Exception) -> PinLaterError:
    """The PinLaterError for a failed connect."""
    if isinstance(error, AuthenticationError | NoPermissionError):
        return ServerRefused(f"server {server.with_origin}: login refused: {hide_user(str(error))}")
    found = str(error).rstrip(".") or "no answer in time"
    return ServerUnavailable(f"server {server.with_origin}: not reached: {found}{_advice(server.url, found, error)}")


def _advice(url: str, found: str, error: Exception) -> str:
    """What to do about a failed connect, where the reason alone does not say it. found: the reason."""
    plain = url.startswith("redis://")
    if "DB index is out of range" in found:
        where = "db= of" if "db" in parse_qs(urlsplit(url).query) else "the last / of"
        return f"; the number behind {where} the URL is the database: take a lower one, most servers have 0 to 15"
    if isinstance(error, redis.InvalidResponse) and not found.endswith('"\\x15" as reply type byte'):
        return "; another kind of server answers there, such as one of HTTP: expected host and port of Redis or Valkey"
    if plain and isinstance(error, redis.InvalidResponse | ConnectionResetError | redis.ConnectionError):
        return "" if "connecting to" in found else "; if the port takes TLS, the URL begins with rediss://"
    if url.startswith("rediss://") and ("WRONG_VERSION_NUMBER" in found or timed_out(error)):
        return "; if the port takes no TLS, the URL begins with redis://"
    return ""
