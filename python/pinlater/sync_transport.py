"""Carries out effects with blocking sockets: redis-py connections, one checked out a call.

Promises that a connection on which anything went wrong is dropped, so that no answer is ever read by another request. Safe for threads and forks:
a forked child starts with no connections.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import hiredis
import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from pinlater.errors import PinLaterError, ServerRefused, ServerUnavailable
from pinlater.exchange import AwaitRing, Command, Effect, Failure, Flow, Listen, ReplyError, Send, Sleep, T
from pinlater.servers import Server
from pinlater.sync_waker import SyncWaker

#: More free connections than this a server are closed: a burst of threads does not hold sockets for ever.
MAX_FREE: Final = 64


class SyncTransport:
    """Drives flows. connect_timeout_s, read_timeout_s: for one connect, one read."""

    def __init__(self, channel: bytes, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._timeouts = (connect_timeout_s, read_timeout_s)
        self._free: dict[Server, list[Any]] = {}
        self._pools: dict[Server, tuple[str, redis.ConnectionPool]] = {}
        self._pid = os.getpid()
        self._waker = SyncWaker(channel, self.connect)
        self._lock = threading.Lock()

    def drive(self, flow: Flow[T]) -> T:
        """Runs a flow to its end and returns its result."""
        result: Any = None
        try:
            while True:
                result = self._perform(flow.send(result))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def after_fork(self, channel: bytes) -> None:
        """In a forked child: forgets the parent's connections without a word on them."""
        self._free, self._pools = {}, {}
        self._pid = os.getpid()
        self._waker = SyncWaker(channel, self.connect)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes every connection; twice is fine."""
        self._waker.close()
        with self._lock:
            free, self._free = self._free, {}
        for connections in free.values():
            for connection in connections:
                connection.disconnect()

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case list():
                return self._exchange(effect)
            case Sleep(seconds):
                time.sleep(seconds)
            case Listen(servers):
                return self._waker.listen(servers)
            case AwaitRing(seconds, since):
                self._waker.wait(seconds, since)
        return None

    def _exchange(self, sends: list[Send]) -> list[list[Any]]:
        """Sends to every server first, then reads: the servers work side by side."""
        opened = [self._send(effect.server, effect.commands) for effect in sends]
        return [
            [connection] * len(effect.commands) if isinstance(connection, Failure) else self._read(effect, connection)
            for effect, connection in zip(sends, opened, strict=True)
        ]

    def _send(self, server: Server, commands: Sequence[Command]) -> Any:
        packed = b"".join(map(hiredis.pack_command, commands))
        for reused in (True, False):
            try:
                connection = self._take(server) if reused else None
                if connection is None:
                    reused, connection = False, self.connect(server)
            except PinLaterError as error:
                return Failure(False, error)
            if reused and self._stale(connection):
                # the server closed it while it was free; nothing was sent on it
                connection.disconnect()
                continue
            try:
                connection.send_packed_command([packed], check_health=False)
            except (RedisError, OSError) as error:
                connection.disconnect()
                return Failure(True, ServerUnavailable(f"server {server}: sending failed: {error}"))
            return connection
        raise AssertionError("the second turn always connects")

    def _stale(self, connection: Any) -> bool:
        try:
            return bool(connection.can_read(timeout=0))
        except (RedisError, OSError):
            return True

    def _read(self, effect: Send, connection: Any) -> list[Any]:
        answers: list[Any] = []
        try:
            for _ in effect.commands:
                answers.append(_read_one(connection))
        except (RedisError, OSError) as error:
            connection.disconnect()
            lost = Failure(True, ServerUnavailable(f"server {effect.server}: no answer: {error}"))
            return answers + [lost] * (len(effect.commands) - len(answers))
        except BaseException:
            connection.disconnect()
            raise
        self._give_back(effect.server, connection)
        return answers

    def _take(self, server: Server) -> Any:
        try:
            return self._free[server].pop()
        except (KeyError, IndexError):
            return None

    def _give_back(self, server: Server, connection: Any) -> None:
        free = self._free.setdefault(server, [])
        if len(free) < MAX_FREE:
            free.append(connection)
        else:
            connection.disconnect()

    def connect(self, server: Server) -> Any:
        """A connected redis-py connection to a server of a known good version. Raises ServerError."""
        url, arguments = server.connection_arguments(*self._timeouts)
        with self._lock:
            known = self._pools.get(server)
            if known is None or known[0] != url:
                known = (url, redis.ConnectionPool.from_url(url, **arguments))
                self._pools[server] = known
        connection = known[1].connection_class(**known[1].connection_kwargs)
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


#: redis-py cuts the code of some errors off; before it kept it (`status_code`), only the class told.
_CODES: Final[dict[type, str]] = {
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
    TryAgainError: "TRYAGAIN",
}


def _read_one(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except RedisError as error:
        return reply_error(error)


def reply_error(error: RedisError) -> ReplyError:
    """The error reply behind a redis-py exception, code first; raises it again if it is not one (a lost connection)."""
    code = getattr(error, "status_code", None) or _CODES.get(type(error))
    if code is None and isinstance(error, (ConnectionError, TimeoutError)):
        raise error
    return ReplyError(f"{code} {error}" if code and code != "ERR" else str(error))


def connect_error(server: Server, error: Exception) -> PinLaterError:
    """What a failed connect becomes."""
    if isinstance(error, AuthenticationError | NoPermissionError):
        return ServerRefused(f"server {server}: login refused: {error}")
    return ServerUnavailable(f"server {server}: not reached: {error}")
