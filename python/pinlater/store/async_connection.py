"""Sockets of an event loop that redis-py connected (TLS, AUTH, URL), spoken to directly from then on: as protocols of
their transports, so that what arrives is parsed where the loop reads it, without streams or tasks between.

Promises that an exchange ends with every answer, or with why no more came. Risks nothing; who uses a link twice at a
time breaks it.
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
from pinlater.store.effects import ReplyError

#: Of what may wait for hours: a peer that is gone without a word is noticed after 10 s and 3 probes.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}

_FOREVER_S = float("inf")


def _take_socket(connection: Any) -> asyncio.StreamWriter:
    """Takes the socket off a redis-py connection, which counts as disconnected from then on. The writer is to be kept:
    its end is its socket's.
    """
    writer: asyncio.StreamWriter = connection._writer
    connection._reader = connection._writer = None
    return writer


def _keep_alive(transport: asyncio.WriteTransport) -> None:
    end = transport.get_extra_info("socket")
    if end.family != socket.AF_UNIX:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            end.setsockopt(socket.IPPROTO_TCP, option, value)


class Connection(asyncio.Protocol):
    """One connection for one exchange at a time."""

    def __init__(self, connection: Any) -> None:
        self._writer = _take_socket(connection)
        self._driver = self._writer.transport
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=ReplyError)  # type: ignore[arg-type]  # any callable does
        self._answers: list[Any] = []
        self._wanted = 0
        self._waiter: asyncio.Future[Exception | None] | None = None
        self._good = True
        self._poll = select.poll()
        self._poll.register(self._driver.get_extra_info("socket").fileno(), select.POLLIN)
        self._driver.set_protocol(self)
        _keep_alive(self._driver)

    async def exchange(self, packed: bytes, count: int, wait_s: float) -> tuple[list[Any], Exception | None]:
        """Sends commands; returns their `count` answers (an error reply as ReplyError), or those that came within
        `wait_s` (may be infinite) and why there are no more.
        """
        answers: list[Any] = []
        self._answers, self._wanted = answers, count
        waiter = self._waiter = self._loop.create_future()
        timer = None
        if wait_s != _FOREVER_S:
            timer = self._loop.call_later(wait_s, self._end, TimeoutError(f"no answer within {wait_s:.3g} s"))
        try:
            # the transport keeps what the socket does not take; the answers are waited for anyhow
            self._driver.write(packed)
            return answers, await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._waiter, self._answers = None, []

    def is_open(self) -> bool:
        """Whether the server has not closed it while it was free; nothing was sent on it, so another one can be taken.

        The socket is asked too: the loop may not have come to read its end yet, and what is sent on a closed one is
        uncertain.
        """
        return self._good and not self._driver.is_closing() and not self._poll.poll(0)

    def close(self) -> None:
        """Drops it; an answer still under way is never read."""
        self._driver.abort()

    # protocol

    def data_received(self, data: bytes) -> None:
        """Parses; ends the exchange with its last answer."""
        if self._waiter is None:
            self._good = False  # nobody asked
            return
        try:
            self._reader.feed(data)
            while len(self._answers) < self._wanted:
                answer = self._reader.gets()
                if answer is False:
                    return
                self._answers.append(answer)
        except hiredis.ProtocolError as error:
            self._end(error)
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The exchange under way gets no more answers."""
        self._end(ConnectionResetError(f"no answer: {exc or 'the server closed the connection'}"))

    def _end(self, why: Exception | None) -> None:
        self._good = self._good and why is None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(why)


class Subscription(asyncio.Protocol):
    """A subscription to channels. on_message gets the channel and each message; on_lost, if set, is called when it
    ends, unless close() ended it or nothing was confirmed yet.
    """

    def __init__(self, connection: Any, on_message: Callable[[bytes, bytes], None]) -> None:
        self._writer = _take_socket(connection)
        self._driver = self._writer.transport
        self._reader = hiredis.Reader()
        self._on_message = on_message
        self.on_lost: Callable[[], None] | None = None
        self.ended = False
        self._stands = False
        #: One a channel, in the order in which the server confirms them; of an add of several the last has the future.
        self._confirming: deque[asyncio.Future[None] | None] = deque()
        self._driver.set_protocol(self)
        _keep_alive(self._driver)

    def add(self, *channels: bytes) -> asyncio.Future[None]:
        """Also these. The future ends with the server's word: PermissionError is its refusal, ConnectionResetError the
        end before it.
        """
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.ended:
            confirmed.set_exception(ConnectionResetError("the subscription was lost"))
        else:
            self._confirming += [None] * (len(channels) - 1) + [confirmed]
            self._driver.write(_core.pack_commands([("SUBSCRIBE", *channels)]))
        return confirmed

    def remove(self, channel: bytes) -> None:
        """This one no more."""
        if not self.ended:
            self._driver.write(_core.pack_commands([("UNSUBSCRIBE", channel)]))

    def close(self) -> None:
        """Nothing is heard from now on."""
        self.ended = True
        self._driver.abort()

    def data_received(self, data: bytes) -> None:
        """Tells of each message."""
        try:
            self._reader.feed(data)
            while (message := self._reader.gets()) is not False:
                self._tell(message)
        except hiredis.ProtocolError:
            self._driver.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ended by the server, or by what lies between."""
        self._refuse(ConnectionResetError(f"the subscription was lost: {exc}"))
        ended, self.ended = self.ended, True
        if self._stands and not ended and self.on_lost is not None:
            self.on_lost()

    def _tell(self, message: Any) -> None:
        if not isinstance(message, list):
            self._refuse(PermissionError(str(message)))
            self._driver.abort()
        elif message[0] == b"message":
            self._on_message(message[1], message[2])
        elif message[0] == b"subscribe":
            self._stands = True
            confirmed = self._confirming.popleft() if self._confirming else None
            if confirmed is not None and not confirmed.done():
                confirmed.set_result(None)

    def _refuse(self, why: OSError) -> None:
        confirming, self._confirming = self._confirming, deque()
        for confirmed in confirming:
            if confirmed is not None and not confirmed.done():
                confirmed.set_exception(why)
                confirmed.exception()  # who was to await it may have gone
