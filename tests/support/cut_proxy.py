"""A TCP proxy between client and server that cuts a connection at a chosen point of a chosen command.

Promises: it forwards whole requests and whole replies and pairs them, so a cut falls where it was asked for:
before the server sees the request, after it executed it, or inside the reply; replies to earlier requests of
the connection are delivered first. Connections made after a cut work.
Risks: requests pipelined behind the one that is cut AFTER or in the REPLY may execute too, as on a network.
It knows no TLS and no CLIENT REPLY OFF; a RESP2 subscriber's connection is passed on uncut.
"""

from __future__ import annotations

import enum
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.resp import Command, message_end, parse_command
from tests.support.servers import free_port

DEADLINE_S = 20.0  # for a cut to happen: a round trip takes under 1 ms, a loaded machine may take seconds
CHUNK_BYTES = 1 << 16  # one read
LANE_BYTES = 10  # 8 of session, 2 of slot: tells a write script's arguments from a read's 4-byte nonce
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # linger on, for 0 s: close() sends RST


class Cut(enum.Enum):
    """Where the connection fails."""

    BEFORE = "the request is not forwarded, the connection ends"
    AFTER = "the server executes the request, no byte of its reply arrives, the connection ends"
    REPLY = "the server executes the request, `reply_bytes` of its reply arrive, the connection ends"
    BLACKHOLE = "the request is not forwarded, the connection stays open and silent"
    MUTE = "the server executes the request, the connection stays open and silent"
    DELAY = "the server executes the request, its reply is held for `delay_s` seconds or until `release()`"


@dataclass
class Seen:
    """A request that reached the proxy; `reply_size` is None until the server's whole reply has been read."""

    connection: int
    command: Command
    forwarded: bool = False
    reply_size: int | None = None
    cut: Cut | None = None

    @property
    def name(self) -> str:
        return self.command[0].decode().upper()

    @property
    def lane(self) -> bytes | None:
        """A write script's lane; None for any other command."""
        return self._lane_and_sequence()[0]

    @property
    def sequence(self) -> int | None:
        """A write script's sequence number in its lane; None for any other command."""
        return self._lane_and_sequence()[1]

    def _lane_and_sequence(self) -> tuple[bytes | None, int | None]:
        if not is_script(self.command):
            return None, None
        lane, sequence = [*self.command[3 + int(self.command[2]) :], b"", b""][:2]
        if len(lane) != LANE_BYTES or len(sequence) != 4:
            return None, None
        return lane, int.from_bytes(sequence, "big")


def is_script(command: Command) -> bool:
    """Whether the command is EVALSHA or EVAL, or their read-only form."""
    return command[0].upper() in {b"EVALSHA", b"EVAL", b"EVALSHA_RO", b"EVAL_RO"}


@dataclass
class Arm:
    """A cut that waits for its command: the `nth` that matches, and the next `count` - 1 that match."""

    cut: Cut
    reply_bytes: int
    match: Callable[[Command], bool]
    nth: int
    count: int
    reset: bool
    delay_s: float | None
    matched: int = 0

    def takes(self, command: Command) -> bool:
        """Count the command if it matches; whether it is one to cut."""
        if not self.match(command):
            return False
        self.matched += 1
        return self.nth <= self.matched < self.nth + self.count


class CutProxy:
    """Listens on 127.0.0.1:`port` and forwards to 127.0.0.1:`server_port`, from `with` to its end."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = free_port()
        self.requests: list[Seen] = []
        self.cuts = 0
        self.changed = threading.Condition(threading.RLock())
        self.releases = 0
        self._arms: list[Arm] = []
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._connections: dict[int, _Connection] = {}
        self._accepted = 0

    @property
    def url(self) -> str:
        """`redis://127.0.0.1:port/0`."""
        return f"redis://127.0.0.1:{self.port}/0"

    def arm(
        self,
        cut: Cut,
        *,
        reply_bytes: int = 0,
        match: Callable[[Command], bool] = is_script,
        nth: int = 1,
        count: int = 1,
        reset: bool = False,
        delay_s: float | None = None,
    ) -> Arm:
        """Cut at the `nth` command from now for which `match(command)` holds, and `count` - 1 after it.

        `reset` ends the connection with RST, otherwise with FIN. `reply_bytes` past the reply's end delivers
        all of it. Several arms are asked in the order they were made.
        """
        made = Arm(cut, reply_bytes, match, nth, count, reset, delay_s)
        with self.changed:
            self._arms.append(made)
        return made

    def disarm(self) -> None:
        """Forget every arm that has not fired."""
        with self.changed:
            self._arms.clear()

    def wait_cut(self, timeout_s: float = DEADLINE_S, cuts: int = 1) -> None:
        """Return once `cuts` cuts have happened since the proxy started; TimeoutError after `timeout_s`."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.cuts >= cuts, timeout_s):
                raise TimeoutError(f"expected {cuts} cuts within {timeout_s:g} s, saw {self.cuts}")

    def release(self) -> None:
        """Let the replies held by DELAY go."""
        with self.changed:
            self.releases += 1
            self.changed.notify_all()

    def refuse(self) -> None:
        """Close the listener: new connects are refused until `accept`. Open connections stay."""
        listener, acceptor = self._listener, self._acceptor
        if listener is None or acceptor is None:
            return
        self._listener = None
        listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave the other thread in accept()
        acceptor.join()
        listener.close()

    def accept(self) -> None:
        """Listen (again), on the same port."""
        if self._listener is not None:
            return
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._acceptor = threading.Thread(target=self._serve, args=(self._listener,), name="proxy-accept")
        self._acceptor.start()

    def cut_all(self) -> None:
        """End every open connection now (FIN)."""
        with self.changed:
            connections = list(self._connections.values())
        for connection in connections:
            connection.stop()

    @property
    def scripts(self) -> list[Seen]:
        """The script calls seen, in the order they came."""
        with self.changed:
            return [seen for seen in self.requests if is_script(seen.command)]

    @property
    def reply_sizes(self) -> list[int]:
        """Bytes of each whole reply to a script call, in the order of the calls, cut or not."""
        return [seen.reply_size for seen in self.scripts if seen.reply_size is not None]

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self.cut_all()

    def saw(self, connection: int, command: Command) -> tuple[Seen, Arm | None]:
        """Log a request; the arm that takes it, if one does. For the connections."""
        with self.changed:
            taking = [arm for arm in self._arms if arm.takes(command)]
            arm = taking[0] if taking else None
            seen = Seen(connection, command, cut=arm.cut if arm else None)
            self.requests.append(seen)
            return seen, arm

    def fired(self) -> None:
        """Count a cut. For the connections."""
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def forget(self, number: int) -> None:
        """Drop a connection that has ended. For the connections."""
        with self.changed:
            self._connections.pop(number, None)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
                continue
            with self.changed:
                self._accepted += 1
                connection = _Connection(self, self._accepted, client, server)
                self._connections[self._accepted] = connection
            connection.start()


class _Connection:
    """One client's connection: a thread for requests, which owns both sockets, and one for replies."""

    def __init__(self, proxy: CutProxy, number: int, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._number = number
        self._client = client
        self._server = server
        self._pending: deque[tuple[Seen, Arm | None]] = deque()
        self._subscribed = False
        self._ended = False
        self._up = threading.Thread(target=self._forward_requests, name=f"proxy-requests-{number}")
        self._down = threading.Thread(target=self._forward_replies, name=f"proxy-replies-{number}")
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        self._down.start()
        self._up.start()

    def stop(self) -> None:
        with self._proxy.changed:
            self._ended = True
            self._proxy.changed.notify_all()
        _shut(self._server, socket.SHUT_RDWR)
        _shut(self._client, socket.SHUT_RDWR)
        self._up.join()

    def _forward_requests(self) -> None:
        buffer = bytearray()
        forwarding = True
        while data := _receive(self._client):
            # After a cut the rest is read and dropped: closing over unread bytes would make RST of a FIN.
            buffer += data if forwarding else b""
            while forwarding and (end := message_end(buffer)) is not None:
                message = bytes(buffer[:end])
                del buffer[:end]
                forwarding = self._request(message)
        with self._proxy.changed:
            self._ended = True
            self._proxy.changed.notify_all()
        _shut(self._server, socket.SHUT_RDWR)
        self._down.join()
        self._server.close()
        self._client.close()
        self._proxy.forget(self._number)

    def _request(self, message: bytes) -> bool:
        """Forward the request, or cut; whether later requests are to be forwarded."""
        seen, arm = self._proxy.saw(self._number, parse_command(message))
        if seen.name.endswith("SUBSCRIBE"):
            self._subscribed = True
        if arm is not None and arm.cut in (Cut.BEFORE, Cut.BLACKHOLE):
            self._wait(lambda: not self._pending, DEADLINE_S)
            if arm.cut is Cut.BEFORE:
                self._end(arm)
            self._proxy.fired()
            return False
        with self._proxy.changed:
            self._pending.append((seen, arm))
            seen.forwarded = True
        with suppress(OSError):  # the server has ended: the thread for replies closes the client's side
            self._server.sendall(message)
        return True

    def _forward_replies(self) -> None:
        buffer = bytearray()
        while data := _receive(self._server):
            buffer += data
            while (end := message_end(buffer)) is not None:
                reply = bytes(buffer[:end])
                del buffer[:end]
                if not self._reply(reply):
                    return
        if not self._ended:  # a FIN here would come before the RST of a cut
            _shut(self._client, socket.SHUT_WR)

    def _reply(self, reply: bytes) -> bool:
        """Deliver the reply, or cut; whether later replies are to be delivered."""
        if reply.startswith(b">") or self._subscribed or not self._pending:
            return self._deliver(reply)
        seen, arm = self._pending[0]
        seen.reply_size = len(reply)
        if arm is not None and arm.cut is not Cut.DELAY:
            return self._cut_reply(arm, reply)
        if arm is not None:
            self._hold(arm)
        goes_on = self._deliver(reply)
        with self._proxy.changed:
            self._pending.popleft()
            self._proxy.changed.notify_all()
        return goes_on

    def _cut_reply(self, arm: Arm, reply: bytes) -> bool:
        if arm.cut is Cut.REPLY:
            self._deliver(reply[: arm.reply_bytes])
        if arm.cut is not Cut.MUTE:
            self._end(arm)
        self._proxy.fired()
        return False

    def _hold(self, arm: Arm) -> None:
        with self._proxy.changed:
            before = self._proxy.releases
            self._proxy.fired()
            self._wait(lambda: self._proxy.releases > before, arm.delay_s)

    def _deliver(self, data: bytes) -> bool:
        try:
            self._client.sendall(data)
        except OSError:
            return False
        return True

    def _end(self, arm: Arm) -> None:
        """End the connection for both sides; the thread for requests closes the sockets."""
        self._ended = True
        _shut(self._server, socket.SHUT_RDWR)
        if arm.reset:
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            _shut(self._client, socket.SHUT_RD)  # wakes the thread for requests, whose close sends the RST
        else:
            _shut(self._client, socket.SHUT_WR)

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        with self._proxy.changed:
            self._proxy.changed.wait_for(lambda: condition() or self._ended, timeout_s)


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(CHUNK_BYTES)
    except OSError:
        return b""


def _shut(end: socket.socket, how: int) -> None:
    with suppress(OSError):  # it has ended already
        end.shutdown(how)
