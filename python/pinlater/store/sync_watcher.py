"""What blocking code hears: a watch is one connection, subscribed to one channel, in the hand of one thread.

Promises that a message that comes after `watch` returned is heard. Connections are used again. Risks: as many
connections as threads that wait at once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError

from pinlater.model.errors import PinLaterError
from pinlater.store.servers import Server
from pinlater.store.sync_waker import interrupt, refused

#: More free connections than this a server are closed.
MAX_FREE: Final = 8


class SyncWatcher:
    """connect: gives a redis-py connection."""

    def __init__(self, connect: Callable[[Server], Any]) -> None:
        self._connect = connect
        self.free: dict[Server, list[Any]] = {}
        self._watches: set[SyncWatch] = set()
        self._closed = False

    def watch(self, server: Server, channel: bytes) -> SyncWatch | None:
        """Subscribes; None if the server does not answer. Raises ServerRefused where this user may not subscribe."""
        free = self.free.setdefault(server, [])
        while True:
            try:
                connection, fresh = free.pop(), False
            except IndexError:
                try:
                    connection, fresh = self._connect(server), True
                except PinLaterError:
                    return None
            try:
                connection.send_command("SUBSCRIBE", channel, check_health=False)
                while connection.read_response(disable_decoding=True)[:2] != [b"subscribe", channel]:
                    pass  # the end of an earlier watch
            except NoPermissionError as error:
                connection.disconnect()
                raise refused(server, str(error)) from None
            except (RedisError, OSError):
                connection.disconnect()
                if fresh:
                    return None
            else:
                watch = SyncWatch(connection, channel, free, self._watches)
                if self._closed:  # meanwhile, by another thread
                    watch.interrupt()
                return watch

    def close(self) -> None:
        """Closes the connections that are free, for good; those who wait return."""
        self._closed = True
        free, self.free = self.free, {}
        for watch in list(self._watches):
            watch.interrupt()
        for connections in free.values():
            for connection in connections:
                connection.disconnect()


class SyncWatch:
    """One subscription. lost: nothing is heard any more."""

    def __init__(self, connection: Any, channel: bytes, free: list[Any], watches: set[SyncWatch]) -> None:
        self._connection = connection
        self._watches = watches
        watches.add(self)
        self._channel = channel
        self.free = free
        self.lost = False

    def wait(self, seconds: float) -> None:
        """Returns at a message, at the end of the subscription, or after so many seconds."""
        try:
            if self._connection.can_read(timeout=seconds):
                self._connection.read_response(disable_decoding=True)
        except (RedisError, OSError):
            self._end()

    def close(self) -> None:
        """Hears no more; twice is fine."""
        self._watches.discard(self)
        if self.lost:
            return
        with suppress(RedisError, OSError):
            self._connection.send_command("UNSUBSCRIBE", self._channel, check_health=False)
            if len(self.free) < MAX_FREE:
                self.free.append(self._connection)
                self.lost = True
                return
        self._end()

    def interrupt(self) -> None:
        """Ends the subscription, for another thread."""
        interrupt(self._connection)

    def _end(self) -> None:
        self.lost = True
        self._connection.disconnect()
