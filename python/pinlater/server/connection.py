"""One connection of a client: calls in, answers out, in order.

Promises:
- A client gets the answers in the order of its calls. Its next call starts when the one before is answered.
- A frame that is longer than allowed, or comes too slowly, ends the connection. So does one that is no call.
- A client that does not read its answers gets no further call carried out. One whose call found no room is not read
  from until there is some.
- The code that answers is notified if the client leaves before it took the whole answer.
Risks: a call that a client gave up, by closing the connection, is carried out all the same. What the kernel took counts
as taken by the client; with TLS, so do up to two pieces of an answer. A client that ends only its own side of the
connection gets no further answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Protocol

import pinlater._core as _core
from pinlater.server.calls import Answer, Lost
from pinlater.server.frames import BadFrame, FrameReader
from pinlater.server.messages import BadMessage
from pinlater.server.settings import ServerSettings

log: Final = logging.getLogger("pinlater.server")

#: A frame has to be complete after so many seconds, plus one for so many bytes that came.
FRAME_S: Final = 10.0
LEAST_BYTES_A_S: Final = 64 * 1024
#: While a call is carried out, a connection takes at most so many bytes of the calls behind it.
MOST_AHEAD: Final = 64 * 1024

#: An answer is written in pieces of so many bytes. A transport of TLS says that it is full only when more is written
#: than the transport below it takes, which one piece fills.
PIECE_BYTES: Final = 128 * 1024
NOTHING: Final = memoryview(b"")

#: Carries out the call in a frame. Returns whether there was room for it. Raises BadMessage.
Serve = Callable[[bytes, Answer], bool]


class Connections(Protocol):
    """All connections of a process."""

    settings: ServerSettings

    def add(self, connection: Connection) -> bool:
        """Whether there is room for a connection."""

    def remove(self, connection: Connection) -> None:
        """A connection ended."""

    def hold_back(self, connection: Connection) -> None:
        """A connection waits for room for calls. `Connection.room` says that there is some."""

    def hold(self, change: int) -> None:
        """The connections hold more bytes, or fewer."""


class Connection(asyncio.Protocol):
    """One connection.

    - until_s: when it is closed if nothing happens. Monotonic seconds; the listener looks at it.
    - held_bytes: of calls that are not complete or not started, and of an answer that the client has not taken.
    """

    def __init__(self, connections: Connections, serve: Serve) -> None:
        self._connections, self._serve = connections, serve
        self._frames = FrameReader(connections.settings.max_frame)
        self._idle_s = float(connections.settings.idle_s)
        self._transport: Any = None
        #: A call is carried out.
        self._busy = False
        #: It starts just now.
        self._starts = False
        #: The client has not taken all of the last answer.
        self._is_full = False
        #: Its last call found no room.
        self._is_held_back = False
        #: The connection ends with the call that is carried out.
        self._ends = False
        #: The connection is not read from.
        self._paused = False
        #: The connection ends behind its next answer.
        self._is_last = False
        self._lost: Lost | None = None
        #: What is left of the last answer, behind the pieces that were written.
        self._unsent = NOTHING
        self.until_s = 0.0
        self.held_bytes = 0
        self.peer = "?"

    # of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts."""
        self._transport = transport
        # the transport reports "full" while any byte is unsent; with TLS, 0 would report it always
        self._transport.set_write_buffer_limits(high=1, low=0)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._rest()
        if not self._connections.add(self):
            self.close("too many connections")

    def data_received(self, data: bytes) -> None:
        """Carries out what is complete."""
        frames = self._frames
        if self._ends:
            return  # no call starts any more
        # the state of nearly every call: this is _is_free, without the time that a call of it takes
        is_free = not (self._busy or self._is_full or self._is_held_back)
        if is_free and not frames.kept_bytes and _core.is_frame(data, frames.limit):
            self._start(data)
            return
        began = frames.kept_bytes > 0
        frames.add(data)
        if began:
            self.until_s += len(data) / LEAST_BYTES_A_S
        elif is_free:
            self._rest()
        self._go_on()

    def eof_received(self) -> bool:
        """Closes the connection: a client that sends no more has left. What it claimed goes back."""
        return False

    def connection_lost(self, _: Exception | None) -> None:
        """Ends. A call under way is carried out to its end."""
        self._ends = True
        self._forget()
        self._connections.remove(self)
        if self._lost is not None:
            self._lost()
            self._lost = None

    def pause_writing(self) -> None:
        """The client has not taken all of the last answer."""
        self._is_full = True
        self._count()

    def resume_writing(self) -> None:
        """The client has taken its answers."""
        self._is_full = False
        if self._transport.is_closing():
            return  # it was cut off: connection_lost follows
        self._write_on()
        if self._is_full or self._transport.is_closing():
            return
        self._lost = None
        if self._ends:
            self._transport.close()
        self._resume()

    # of the listener

    def room(self) -> None:
        """There is room for calls again."""
        self._is_held_back = False
        self._resume()

    def last_call(self) -> None:
        """Closes the connection behind its next answer: that of a call which is carried out, or on its way."""
        self._is_last = True

    def end(self) -> None:
        """Closes the connection when its call is answered and the answer taken, or now if it has none."""
        self._ends = True
        if not (self._busy or self._is_full or self._unsent):
            self._transport.close()

    def close(self, why: str) -> None:
        """Closes the connection now."""
        log.info("connection of %s closed: %s", self.peer, why)
        self._ends = True
        self._forget()
        self._transport.abort()

    # calls

    @property
    def _is_free(self) -> bool:
        """Whether a call can start."""
        return not (self._busy or self._is_full or self._is_held_back or self._ends)

    def _resume(self) -> None:
        if not (self._busy or self._ends):
            self._rest()
        self._go_on()

    def _go_on(self) -> None:
        """Starts the next call, and takes no more bytes than it has room for."""
        try:
            while self._is_free and (frame := self._frames.next()) is not None:
                self._start(frame)
        except BadFrame as error:
            self.close(str(error))
        if self._ends:
            return
        self._take_more(self._is_free or (not self._is_held_back and self._frames.kept_bytes < MOST_AHEAD))
        self._count()

    def _take_more(self, wanted: bool) -> None:
        if wanted is self._paused and not self._transport.is_closing():
            self._paused = not wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def _start(self, frame: bytes) -> None:
        self._busy = self._starts = True
        self.until_s = float("inf")
        try:
            if not self._serve(frame, self._answer):
                self._is_held_back = True
                self._connections.hold_back(self)
                self._take_more(False)
        except BadMessage as error:
            self._busy = False
            self.close(str(error))
        finally:
            self._starts = False

    def _answer(self, frame: bytes, lost: Lost | None) -> None:
        """Writes the answer to the call."""
        self._busy = False
        transport = self._transport
        if transport.is_closing():
            if lost is not None:
                lost()
            return
        if len(frame) <= PIECE_BYTES:
            transport.write(frame)
        else:
            self._unsent = memoryview(frame)
            self._write_on()
        if self._is_full or transport.is_closing():
            self._lost = lost
        if self._ends or self._is_last:
            self.end()
            return
        if self._frames.kept_bytes or self._paused:
            self._rest()
            if not self._starts:  # what answers at once is called by _go_on
                self._go_on()
        else:
            self.until_s = monotonic() + self._idle_s

    def _write_on(self) -> None:
        """Writes pieces of the answer until the transport is full."""
        while self._unsent and not self._is_full:
            piece, rest = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:]
            self._unsent = rest or NOTHING  # an empty view would keep the answer in memory
            self._transport.write(piece)

    def _rest(self) -> None:
        """Sets how long it waits for the rest of a frame, or for the next frame."""
        wait_s = self._idle_s
        if (kept := self._frames.kept_bytes) and self._is_free:
            wait_s = min(wait_s, FRAME_S + kept / LEAST_BYTES_A_S)
        self.until_s = monotonic() + wait_s

    # memory

    def _count(self) -> None:
        """Says how many bytes it holds."""
        whole = memoryview(self._unsent.obj).nbytes  # the answer is in memory until its last piece is written
        unread = self._transport.get_write_buffer_size() + whole if self._is_full else 0
        self._set_held(self._frames.kept_bytes + unread)

    def _forget(self) -> None:
        self._frames.clear()
        self._unsent = NOTHING
        self._set_held(0)

    def _set_held(self, count: int) -> None:
        change, self.held_bytes = count - self.held_bytes, count
        if change:
            self._connections.hold(change)
