"""Connections of an event loop. redis-py connects them (TLS, AUTH, URL); then they are asyncio protocols of their own.

The loop's read callback parses what arrives: no streams and no tasks stand between, which saves most of a request.
Promises that a request ends with all its answers, or with the reason why the others are missing. A connection carries
one request at a time.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

import pinlater._core as _core
from pinlater.store.replies import ErrorReplies

#: TCP probes after 10 s of silence, three of them: a connection that may wait for hours notices a dead peer.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}

_FOREVER_S = float("inf")


def _take_socket(connection: Any) -> asyncio.StreamWriter:
    """Takes the socket from a redis-py connection, which then counts as disconnected. The caller keeps the writer: its
    garbage collection would close the socket.
    """
    writer: asyncio.StreamWriter = connection._writer
    connection._reader = connection._writer = None
    return writer


def _keep_alive(transport: asyncio.WriteTransport) -> None:
    sock = transport.get_extra_info("socket")
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time.

    errors: its error replies. moves: of its server, when it was made.
    """

    def __init__(self, connection: Any, moves: int) -> None:
        self._writer = _take_socket(connection)
        self._transport = self._writer.transport
        self._loop = asyncio.get_running_loop()
        self.errors = ErrorReplies()
        self.moves = moves
        self._reader = self.errors.reader()
        self._answers: list[Any] = []
        self._wanted = 0
        self._waiter: asyncio.Future[Exception | None] | None = None
        self._good = True
        self._poll = select.poll()
        self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._transport.set_protocol(self)
        _keep_alive(self._transport)

    async def request(self, packed: bytes, count: int, wait_s: float) -> tuple[list[Any], Exception | None]:
        """Sends packed commands. Returns the answers, and the reason why some are missing (None: all are there).

        packed: the commands. count: how many answers they get; an error reply is a ReplyError. wait_s: time for all
        answers, may be infinite.
        """
        answers: list[Any] = []
        self._answers, self._wanted = answers, count
        waiter = self._waiter = self._loop.create_future()
        timer = None
        if wait_s != _FOREVER_S:
            timer = self._loop.call_later(wait_s, self._end, TimeoutError(f"no answer within {wait_s:.3g} s"))
        try:
            # no drain(): the transport buffers what the socket does not take, and this waits for the answers anyway
            self._transport.write(packed)
            return answers, await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._waiter, self._answers = None, []

    def is_open(self) -> bool:
        """Whether a free connection can carry a request.

        Also polls the socket: the loop may not have read the server's close yet, and a request on a closed connection
        has an unknown outcome.
        """
        return self._good and not self._transport.is_closing() and not self._poll.poll(0)

    def close(self) -> None:
        """Drops the connection. Nobody reads an answer that comes later."""
        self._transport.abort()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Parses answers. The last one ends the request."""
        if self._waiter is None:
            self._good = False  # an answer without a request
            return
        try:
            self._answers += self._reader.read(data)
            if len(self._answers) >= self._wanted:
                self._reader.end(self._answers, self._wanted)
                self._end(None)
        except _core.BadReply as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the current request."""
        self._end(ConnectionResetError(f"no answer: {exc or 'the server closed the connection'}"))

    def _end(self, why: Exception | None) -> None:
        self._good = self._good and why is None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(why)


class PubSubConnection(asyncio.Protocol):
    """A connection that is subscribed to channels.

    - on_message: called with the channel and each message.
    - on_lost: called when the connection ends, unless close() ended it or the server has confirmed no channel yet.
    """

    def __init__(self, connection: Any, on_message: Callable[[bytes, bytes], None]) -> None:
        self._writer = _take_socket(connection)
        self._transport = self._writer.transport
        self._reader = hiredis.Reader()
        self._on_message = on_message
        self.on_lost: Callable[[], None] | None = None
        self.ended = False
        self._confirmed_once = False
        #: One entry a channel, in the order in which the server confirms them. A call for several channels puts its
        #: future at the last one.
        self._confirming: deque[asyncio.Future[None] | None] = deque()
        self._transport.set_protocol(self)
        _keep_alive(self._transport)

    def subscribe(self, *channels: bytes) -> asyncio.Future[None]:
        """Subscribes to more channels. The future ends when the server confirms.

        Its errors: PermissionError if the server refuses, ConnectionResetError if the connection ends before.
        """
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.ended:
            confirmed.set_exception(ConnectionResetError("the subscription was lost"))
        else:
            self._confirming += [None] * (len(channels) - 1) + [confirmed]
            self._transport.write(_core.pack_commands([("SUBSCRIBE", *channels)]))
        return confirmed

    def unsubscribe(self, channel: bytes) -> None:
        """Ends the subscription to one channel."""
        if not self.ended:
            self._transport.write(_core.pack_commands([("UNSUBSCRIBE", channel)]))

    def close(self) -> None:
        """Drops the connection without a call of on_lost."""
        self.ended = True
        self.lose()

    def lose(self) -> None:
        """Drops the connection as if the server had ended it."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parses messages and confirmations."""
        try:
            self._reader.feed(data)
            while (message := self._reader.gets()) is not False:
                self._dispatch(message)
        except hiredis.ProtocolError:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Calls on_lost if the server or the network ended the connection."""
        self._refuse(ConnectionResetError(f"the subscription was lost: {exc}"))
        ended, self.ended = self.ended, True
        if self._confirmed_once and not ended and self.on_lost is not None:
            self.on_lost()

    def _dispatch(self, message: Any) -> None:
        if not isinstance(message, list):
            self._refuse_first(PermissionError(str(message)))
        elif message[0] == b"message":
            self._on_message(message[1], message[2])
        elif message[0] == b"subscribe":
            self._confirmed_once = True
            confirmed = self._confirming.popleft() if self._confirming else None
            if confirmed is not None and not confirmed.done():
                confirmed.set_result(None)

    def _refuse_first(self, why: OSError) -> None:
        """The oldest call without an answer is refused: the server subscribes to all of its channels, or to none."""
        confirmed = None
        while confirmed is None and self._confirming:
            confirmed = self._confirming.popleft()
        if confirmed is not None and not confirmed.done():
            confirmed.set_exception(why)
            confirmed.exception()  # marks it as retrieved: the caller may have been cancelled

    def _refuse(self, why: OSError) -> None:
        confirming, self._confirming = self._confirming, deque()
        for confirmed in confirming:
            if confirmed is not None and not confirmed.done():
                confirmed.set_exception(why)
                confirmed.exception()  # marks it as retrieved: the caller may have been cancelled
