"""The wake channel of a blocking client: one subscription a server, shared by its threads.

Promises that a ring that comes after `listen` returned ends the next `wait`, in every thread that waits, and that a
lost subscription ends it too (the caller then listens and claims again).
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError

from pinlater.model.errors import PinLaterError, ServerRefused
from pinlater.store.servers import Server

#: Where a subscription could not be made nobody is heard: the caller comes back so soon, to listen and claim again.
LISTEN_AGAIN_S: Final = 0.5
#: A server that does not confirm a subscription within so long is taken for down.
CONFIRM_S: Final = 5.0


class SyncWaker:
    """Subscriptions of one channel. One of the waiting threads reads the sockets, and tells the others."""

    def __init__(self, channel: bytes, connect: Callable[[Server], Any]) -> None:
        self._channel = channel
        self._connect = connect
        self._subscriptions: dict[Server, Any] = {}
        self._changed = threading.Condition()
        self._rings = 0
        self._reading = self._missing = self._closed = False

    def listen(self, servers: Sequence[Server]) -> int:
        """Subscribes where that is not done yet; a server that is down is left for later. Returns how often it rang so
        far. Raises ServerRefused where this user may not subscribe.
        """
        with self._changed:
            for server in servers:
                if server not in self._subscriptions and not self._closed:
                    self._subscribe(server)
            self._missing = any(server not in self._subscriptions for server in servers)
            return self._rings

    def wait(self, seconds: float, since: int) -> None:
        """Returns when it rang more often than `since`, when a subscription is lost, or after so many seconds."""
        with self._changed:
            deadline_s = time.monotonic() + (min(seconds, LISTEN_AGAIN_S) if self._missing else seconds)
            while self._rings == since and (left_s := deadline_s - time.monotonic()) > 0:
                if self._reading:
                    self._changed.wait(left_s)
                else:
                    self._read_as_leader(left_s)

    def close(self) -> None:
        """Ends every subscription, for good; threads that wait return."""
        with self._changed:
            self._closed = True
            connections, self._subscriptions = list(self._subscriptions.values()), {}
            self._rings += 1
            self._changed.notify_all()
            for connection in connections:
                if self._reading:
                    interrupt(connection)  # who reads disconnects it
                else:
                    connection.disconnect()

    def _subscribe(self, server: Server) -> None:
        try:
            connection = self._connect(server)
        except PinLaterError:
            return
        try:
            connection.send_command("SUBSCRIBE", self._channel, check_health=False)
            connection.read_response(disable_decoding=True)
        except NoPermissionError as error:
            connection.disconnect()
            raise refused(server, str(error)) from None
        except (RedisError, OSError):
            connection.disconnect()
            return
        self._subscriptions[server] = connection

    def _read_as_leader(self, seconds: float) -> None:
        """Called with the lock held; lets go of it while it polls."""
        self._reading = True
        poll, read = select.poll(), {}
        for server, connection in self._subscriptions.items():
            poll.register(connection._sock, select.POLLIN)
            read[connection._sock.fileno()] = server, connection
        self._changed.release()
        try:
            ready = poll.poll(max(1, int(seconds * 1000)))
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
        for descriptor, _ in ready:
            server, connection = read[descriptor]
            self._rings += 1
            try:
                connection.read_response(disable_decoding=True)
                while connection.can_read(timeout=0):
                    connection.read_response(disable_decoding=True)
            except (RedisError, OSError):
                connection.disconnect()
                self._subscriptions.pop(server, None)


def refused(server: Server, why: str) -> ServerRefused:
    """This user may not subscribe: nobody could wake it."""
    return ServerRefused(
        f"server {server}: the wake channel can not be subscribed: {why}; docs/acl.md names the rights"
    )


def interrupt(connection: Any) -> None:
    """Ends a connection on which another thread may wait: that one reads its end."""
    sock = connection._sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
