"""Carries out effects with blocking sockets: redis-py connections, one checked out a call.

Promises that a connection on which anything went wrong is dropped, so that no answer is ever read by another request.
Safe for threads and forks: a forked child starts with no connections. Risks: a signal whose handler runs while an
answer is waited for begins its timeout anew; a timer that fires again and again keeps a silent server from timing out.
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

import hiredis
import redis
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisError,
)

import pinlater._core as _core
from pinlater.model.errors import ClientClosed, PinLaterError, ServerRefused, ServerUnavailable
from pinlater.store.effects import (
    AwaitMessage,
    AwaitNotification,
    Effect,
    Flow,
    Joined,
    Listen,
    NoAnswer,
    ReplyError,
    Send,
    Sleep,
    T,
    Watch,
)
from pinlater.store.servers import READ_BYTES, Server
from pinlater.store.sync_waker import SyncWaker
from pinlater.store.sync_watcher import SyncWatcher

#: More free connections than this a server are closed: a burst of threads does not hold sockets for ever.
MAX_FREE: Final = 64


class SyncDriver:
    """Drives flows. connect_timeout_s, read_timeout_s: for one connect, one read."""

    def __init__(self, channel: bytes, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._timeouts = (connect_timeout_s, read_timeout_s)
        self._free: dict[Server, list[_Connection]] = {}
        self._pools: dict[Server, tuple[str, redis.ConnectionPool]] = {}
        self._pid = os.getpid()
        self._waker, self.watcher = SyncWaker(channel, self.connect), SyncWatcher(self.connect)
        self._lock = threading.Lock()
        self._closed = False

    def drive(self, flow: Flow[T]) -> T:
        """Runs a flow to its end and returns its result. Raises ClientClosed if it has not begun, or only waits."""
        result: Any = None
        try:
            if self._closed:
                self._check_open()
            while True:
                effect = flow.send(result)
                result = self._exchange(effect) if type(effect) is list else self._perform(effect)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def after_fork(self, channel: bytes) -> None:
        """In a forked child: forgets the parent's connections without a word on them."""
        self._free, self._pools = {}, {}
        self._pid = os.getpid()
        self._waker, self.watcher = SyncWaker(channel, self.connect), SyncWatcher(self.connect)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes every connection; calls under way end, those that wait for a job at once. Twice is fine."""
        self._closed = True
        self._waker.close()
        self.watcher.close()
        with self._lock:
            free, self._free = self._free, {}
        for links in free.values():
            for link in links:
                link.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("expected an open client, this one is closed")

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Sleep(seconds):
                time.sleep(seconds)
            case Listen(servers):
                rings = self._waker.listen(servers)
                self._check_open()
                return rings
            case AwaitNotification(seconds, since):
                self._waker.wait(seconds, since)
                self._check_open()
            case Watch(server, channel):
                self._check_open()
                return self.watcher.watch(server, channel)
            case AwaitMessage(watch, seconds):
                watch.wait(seconds)
                self._check_open()
            case Joined(_, item, make):
                return self.drive(make([item]))[0]
        return None

    def _exchange(self, sends: list[Send]) -> list[list[Any]]:
        """Sends to every server first, then reads: the servers work side by side."""
        if len(sends) == 1:
            return [self._read(sends[0], self._send(sends[0]))]
        opened = [self._send(effect) for effect in sends]
        return [self._read(effect, link) for effect, link in zip(sends, opened, strict=True)]

    def _send(self, effect: Send) -> _Connection | NoAnswer:
        server, packed = effect.server, _core.pack_commands(effect.commands)
        link = self._take(server)
        if link is None:
            try:
                link = _connection_of(self.connect(server, effect.wait_s(sum(self._timeouts))))
            except PinLaterError as error:
                return NoAnswer(False, error)
        try:
            link.send(packed, effect.wait_s(self._timeouts[1]))
        except OSError as error:
            link.close()
            return NoAnswer(True, ServerUnavailable(f"server {server}: sending failed: {error}"))
        return link

    def _read(self, effect: Send, link: _Connection | NoAnswer) -> list[Any]:
        if isinstance(link, NoAnswer):
            return [link] * len(effect.commands)
        answers: list[Any] = []
        try:
            link.receive(answers, len(effect.commands))
        except (OSError, hiredis.ProtocolError) as error:
            link.close()
            lost = NoAnswer(True, ServerUnavailable(f"server {effect.server}: no answer: {error}"))
            return answers + [lost] * (len(effect.commands) - len(answers))
        except BaseException:
            link.close()
            raise
        self._give_back(effect.server, link)
        return answers

    def _take(self, server: Server) -> _Connection | None:
        """A free connection that is still open, if there is one."""
        free = self._free.get(server)
        while free:
            try:
                link = free.pop()
            except IndexError:
                break  # another thread took it
            if not link.poll(0):  # what is sent on a closed one is uncertain, and has to stay there
                return link
            link.close()
        return None

    def _give_back(self, server: Server, link: _Connection) -> None:
        free = self._free.setdefault(server, [])
        if len(free) < MAX_FREE and not self._closed:
            free.append(link)
        else:
            link.close()

    def connect(self, server: Server, within_s: float = float("inf")) -> Any:
        """A connected redis-py connection to a server of a known good version. Raises ServerError.

        within_s: for the connect, and for each answer on the way.
        """
        url, arguments = server.connection_arguments(*self._timeouts)
        with self._lock:
            known = self._pools.get(server)
            if known is None or known[0] != url:
                known = (url, redis.ConnectionPool.from_url(url, **arguments))
                self._pools[server] = known
        limits = {
            "socket_connect_timeout": min(self._timeouts[0], within_s),
            "socket_timeout": min(self._timeouts[1], within_s),
        }
        connection = known[1].connection_class(**{**known[1].connection_kwargs, **limits})
        try:
            connection.connect()
            if server.version is None:
                connection.send_command("INFO", "server", check_health=False)
                server.check_version(connection.read_response(disable_decoding=True).decode())
        except (RedisError, OSError) as error:
            connection.disconnect()
            server.restart_embedded()
            raise connect_error(server, error) from None
        except PinLaterError:
            connection.disconnect()
            raise
        server.contacted = True
        return connection


class _Connection:
    """A connection that redis-py made, spoken to directly: its own sending and reading cost several times the system
    calls.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._socket = connection._sock
        self._reader = hiredis.Reader(replyError=ReplyError)  # type: ignore[arg-type]  # any callable does
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        #: Of a free one: whether the server has closed it.
        self.poll = poll.poll
        self._wait_s = 0.0

    def send(self, packed: bytes, wait_s: float) -> None:
        """wait_s: for each read of the answers. Raises OSError."""
        if wait_s != self._wait_s:
            self._wait_s = wait_s
            self._socket.settimeout(wait_s)
        self._socket.sendall(packed)

    def receive(self, answers: list[Any], count: int) -> None:
        """Adds the replies as they come, until there are `count`; an error reply as ReplyError. Raises OSError, or
        hiredis.ProtocolError.
        """
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                raise TimeoutError("timed out") from None  # as a wait in the kernel ends
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                answers.append(answer)
                if len(answers) == count:
                    return

    def close(self) -> None:
        """Drops it; an answer still under way is never read."""
        self._connection.disconnect()


class _KernelConnection(_Connection):
    """One whose socket waits in the kernel alone: Python would poll before each system call of one with a timeout."""

    def send(self, packed: bytes, wait_s: float) -> None:
        """See _Link."""
        if wait_s != self._wait_s:
            self._wait_s = wait_s
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(wait_s))
        sent = self._socket.send(packed, socket.MSG_DONTWAIT)
        if sent < len(packed):
            self._socket.settimeout(wait_s)
            self._socket.sendall(memoryview(packed)[sent:])
            self._socket.settimeout(None)


def _connection_of(connection: Any) -> _Connection:
    """TLS has its own calls, which know Python's timeouts alone; so has gevent."""
    plain = type(connection._sock).recv is _socket.socket.recv
    return _KernelConnection(connection) if plain else _Connection(connection)


def _timeval(seconds: float) -> bytes:
    """As the kernel takes it, where nothing is for ever."""
    return struct.pack("ll", *divmod(max(1, int(seconds * 1e6)), 1_000_000))


def connect_error(server: Server, error: Exception) -> PinLaterError:
    """What a failed connect becomes."""
    if isinstance(error, AuthenticationError | NoPermissionError):
        return ServerRefused(f"server {server}: login refused: {error}")
    return ServerUnavailable(f"server {server}: not reached: {error}")
