"""The subscriptions of a blocking client: its own channels, which its threads share, and one channel a call.

Promises:
- A notification that comes after `listen` returned ends the next `wait` of every thread.
- A message that comes after `subscribe` returned ends the next `wait` of that subscription.
- A lost subscription ends the waits on it. The caller then subscribes again, and looks for jobs or results itself.

Risks: `subscribe` takes one connection for each thread that waits.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError

from pinlater.model.errors import PinLaterError, ServerRefused
from pinlater.model.urls import hide_user
from pinlater.store.servers import Server

#: While a server is not subscribed, no notification comes from it: a wait ends after this time, to subscribe again.
LISTEN_AGAIN_S: Final = 0.5
#: Each server keeps up to this many free connections; the others are closed.
MAX_FREE: Final = 8


class SyncSubscriber:
    """The client's own channels on each server, and subscriptions of single calls. Safe for threads.

    connect: makes a redis-py connection within some seconds, or raises ServerError.
    free: connections for the next subscriptions.
    """

    def __init__(self, connect: Callable[[Server, float], Any]) -> None:
        self._connect = connect
        self._listening: dict[Server, Any] = {}
        self._channels: dict[Server, set[bytes]] = {}
        self._changed = threading.Condition()
        self._notifications = 0
        self._reading = self._missing = self._closed = False
        self.free: dict[Server, list[Any]] = {}
        self._subscriptions: set[SyncSubscription] = set()

    def listen(self, channels: Sequence[tuple[Server, bytes]]) -> int:
        """Subscribes to those of the client's own channels that are not subscribed yet, and skips a server that does
        not answer. Returns the number of notifications so far. Raises ServerRefused if the user lacks the right.
        """
        with self._changed:
            for server, channel in channels:
                if not self._hears(server, channel) and not self._closed:
                    self._listen_to(server, channel)
            self._missing = not all(self._hears(server, channel) for server, channel in channels)
            return self._notifications

    def _hears(self, server: Server, channel: bytes) -> bool:
        return server in self._listening and channel in self._channels[server]

    def wait(self, seconds: float, since: int) -> None:
        """Returns after the notification number `since`, when a subscription is lost, or after `seconds`."""
        with self._changed:
            deadline_s = time.monotonic() + (min(seconds, LISTEN_AGAIN_S) if self._missing else seconds)
            while self._notifications == since and (left_s := deadline_s - time.monotonic()) > 0:
                if self._reading:
                    self._changed.wait(left_s)
                else:
                    self._read_for_all(left_s)

    def subscribe(self, server: Server, channel: bytes, seconds: float) -> SyncSubscription | None:
        """A subscription to a channel; None if the server does not answer. Raises ServerRefused if the user lacks the
        right.

        seconds: the longest wait for one answer.
        """
        moves, free = server.moves, self.free.setdefault(server, [])
        connection = self._subscribed_again(server, channel, free, seconds)
        connection = connection or self._subscribed(server, channel, seconds)
        if connection is None:
            return None
        subscription = SyncSubscription(connection, server, channel, free, self._subscriptions)
        if self._closed or moves != server.moves:  # by another thread, after this call began
            subscription.interrupt()
        return subscription

    def leave(self, server: Server) -> None:
        """Ends the subscriptions on a server that the driver left; waits on them end. Any thread may call this."""
        listening = self._listening.get(server)
        if listening is not None:
            _interrupt(listening)  # the next thread that reads it disconnects it
        for subscription in list(self._subscriptions):
            if subscription.server is server:
                subscription.interrupt()
        _disconnect(self.free.pop(server, []))

    def close(self) -> None:
        """Ends every subscription and closes every connection. Waiting threads return."""
        self._stop_listening()
        free, self.free = self.free, {}
        for subscription in list(self._subscriptions):
            subscription.interrupt()
        for connections in free.values():
            for connection in connections:
                connection.disconnect()

    def _stop_listening(self) -> None:
        with self._changed:
            self._closed = True
            connections, self._listening = list(self._listening.values()), {}
            self._notify()
            for connection in connections:
                if self._reading:
                    _interrupt(connection)  # the thread that reads it disconnects it
                else:
                    connection.disconnect()

    def _listen_to(self, server: Server, channel: bytes) -> None:
        moves, connection = server.moves, self._listening.get(server)
        if connection is not None:
            self._listen_to_another(server, connection, channel)
        elif (connection := self._subscribed(server, channel)) is not None:
            self._listening[server], self._channels[server] = connection, {channel}
            if moves != server.moves:  # another thread left the server meanwhile
                _interrupt(connection)

    def _listen_to_another(self, server: Server, connection: Any, channel: bytes) -> None:
        try:
            _subscribe(connection, server, channel)
            self._channels[server].add(channel)
        except (RedisError, OSError):
            self._listening.pop(server, None)
            if self._reading:
                _interrupt(connection)  # the thread that reads it disconnects it
            else:
                connection.disconnect()
        self._notify()  # a notification may have come before the confirmation

    def _subscribed(self, server: Server, channel: bytes, seconds: float = math.inf) -> Any:
        """A new connection that is subscribed to a channel; None if the server does not answer."""
        try:
            connection = self._connect(server, seconds)
        except PinLaterError:
            return None
        return connection if _is_subscribed(connection, server, channel, seconds) else None

    def _subscribed_again(self, server: Server, channel: bytes, free: list[Any], seconds: float) -> Any:
        """A free connection that is subscribed to a channel; None if there is none, or the first one does not work.
        Then the others are closed: each may cost a timeout.
        """
        try:
            connection = free.pop()
        except IndexError:
            return None
        if _is_subscribed(connection, server, channel, seconds):
            return connection
        _disconnect(free)
        return None

    def _read_for_all(self, seconds: float) -> None:
        """Reads all sockets for every waiting thread. The caller holds the lock; the poll releases it."""
        self._reading = True
        poll, connections = select.poll(), {}
        for server, connection in self._listening.items():
            poll.register(connection._sock, select.POLLIN)
            connections[connection._sock.fileno()] = server, connection
        self._changed.release()
        try:
            ready = poll.poll(max(1, int(seconds * 1000)))
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
        for descriptor, _ in ready:
            self._read(*connections[descriptor])

    def _read(self, server: Server, connection: Any) -> None:
        self._notify()
        try:
            while connection.can_read(timeout=0):  # another thread, which subscribed, may have read everything
                connection.read_response(disable_decoding=True)
        except (RedisError, OSError):
            connection.disconnect()
            if self._listening.get(server) is connection:
                del self._listening[server]

    def _notify(self) -> None:
        self._notifications += 1
        self._changed.notify_all()


class SyncSubscription:
    """A subscription to one channel of a server, on a connection of its own, for one thread.

    lost: no message comes any more.
    """

    def __init__(
        self, connection: Any, server: Server, channel: bytes, free: list[Any], subscriptions: set[SyncSubscription]
    ) -> None:
        self._connection = connection
        self.server = server
        self._channel = channel
        self._free = free
        self._subscriptions = subscriptions
        subscriptions.add(self)
        self.lost = False

    def wait(self, seconds: float) -> None:
        """Returns at a message, when the subscription is lost, or after `seconds`."""
        try:
            if self._connection.can_read(timeout=seconds):
                self._connection.read_response(disable_decoding=True)
        except (RedisError, OSError):
            self._drop()

    def close(self) -> None:
        """Ends the subscription. A second call does nothing."""
        self._subscriptions.discard(self)
        if self.lost:
            return
        with suppress(RedisError, OSError):
            self._connection.send_command("UNSUBSCRIBE", self._channel, check_health=False)
            if len(self._free) < MAX_FREE:
                self._free.append(self._connection)
                self.lost = True
                return
        self._drop()

    def interrupt(self) -> None:
        """Makes the thread that waits lose the subscription. Any thread may call this."""
        _interrupt(self._connection)

    def _drop(self) -> None:
        self.lost = True
        self._connection.disconnect()


def _disconnect(free: list[Any]) -> None:
    """Other threads may take and add connections meanwhile."""
    while free:
        with suppress(IndexError):
            free.pop().disconnect()


def _is_subscribed(connection: Any, server: Server, channel: bytes, seconds: float) -> bool:
    """Whether the server confirmed the subscription; if not, the connection is closed."""
    try:
        _subscribe(connection, server, channel, seconds)
    except (RedisError, OSError):
        connection.disconnect()
        return False
    except ServerRefused:
        connection.disconnect()
        raise
    return True


def _subscribe(connection: Any, server: Server, channel: bytes, seconds: float = math.inf) -> None:
    """Returns when the server confirmed the subscription. Raises ServerRefused, RedisError or OSError.

    seconds: the longest wait for an answer, if it is less than the connection's own.
    """
    try:
        connection.send_command("SUBSCRIBE", channel, check_health=False)
        if seconds < math.inf and not connection.can_read(timeout=min(seconds, connection.socket_timeout)):
            raise TimeoutError
        while connection.read_response(disable_decoding=True)[:2] != [b"subscribe", channel]:
            pass  # messages, and replies to an earlier subscription of this connection
    except NoPermissionError as error:
        raise subscription_refused(server, str(error)) from None


def _interrupt(connection: Any) -> None:
    """Ends a connection that another thread may read. That thread reads its end."""
    sock = connection._sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def subscription_refused(server: Server, why: str) -> ServerRefused:
    """The error for a user who lacks the right to subscribe."""
    return ServerRefused(
        f"server {server}: the user may not subscribe to PinLater's channels: {hide_user(why)}; "
        "docs/acl.md lists the rights"
    )
