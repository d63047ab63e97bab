"""A server in a thread of this process, whose data is a memory store.

The server listens on a real socket, so clients, workers and renewers of any process can use it. Promises that nothing
is left after the server is closed or the process ends. Risks: a handler that holds the GIL delays the server.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import hiredis
import uvloop

from pinlater.memory.advance import expire_leases
from pinlater.memory.commands import run
from pinlater.memory.lua import Scripts, require_lupa
from pinlater.memory.store import OK, Clock, CommandError, Status, Store
from pinlater.model.errors import InvalidArgument
from pinlater.model.urls import shown_url

T = TypeVar("T")
_START_S: Final = 10.0
#: Ids of connections, as in CLIENT LIST.
_IDS: Final = count(1)


class MemoryServer:
    """A server that replaces Redis and keeps its data in memory. Use it in a `with` block, or close it.

    - clock: the server's clock. A test can move it.
    - url: the URL for Client, AsyncClient and PinLater, in any process, while this process lives.

    Raises InvalidArgument if the package lupa is not installed.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        require_lupa()
        self.clock = clock or Clock()
        self._store = Store(self.clock, self._publish, lambda channel: len(self._listeners.get(channel, ())))
        self._scripts = Scripts(self._store)
        self._listeners: dict[bytes, set[_Peer]] = {}
        self._peers: set[_Peer] = set()
        #: Key of a list -> connections that wait for an element; the first one has waited longest.
        self._blocked: dict[bytes, list[_Peer]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="pinlater-memory-"))
        atexit.register(self._remove_folder)
        self.path = self._folder / "socket"
        self._loop = uvloop.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="pinlater-memory", daemon=True)
        self._thread.start()
        self._ready.wait(_START_S)

    def __repr__(self) -> str:
        return f"<memory server {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of its socket (`unix://…`)."""
        return f"unix://{self.path}"

    def advance(self, seconds: float) -> None:
        """Moves the clock on. Jobs become due and leases expire, as if no worker had renewed them."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise InvalidArgument(f"advance: expected seconds, 0 or more, got {seconds!r:.60}")

        def move() -> None:
            self.clock.move(seconds)
            self._store.expire()
            expire_leases(self._store, self._scripts)
            self._serve_blocked()

        self._on_loop(move)

    def clear(self) -> None:
        """Removes every job, queue and script."""

        def forget() -> None:
            self._store.clear()
            self._scripts.flush()

        self._on_loop(forget)

    def close(self) -> None:
        """Ends the server. Its clients lose their connections. A second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._remove_folder()
        atexit.unregister(self._remove_folder)

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    # on the server's thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(self._loop.create_unix_server(lambda: _Peer(self), str(self.path)))
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            for peer in list(self._peers):
                peer.transport.abort()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    def _on_loop(self, work: Callable[[], T]) -> T:
        async def carry_out() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(carry_out(), self._loop).result()

    def _publish(self, channel: bytes, message: bytes) -> int:
        listeners = self._listeners.get(channel, ())
        for peer in listeners:
            peer.answer([b"message", channel, message])
        return len(listeners)

    def _serve_blocked(self) -> None:
        for key in [key for key in self._blocked if key in self._store.values]:
            # a served peer runs its next commands at once, which may serve others
            peers, found = self._blocked.get(key, []), self._store.get(key, list)
            while peers and found:
                peers.pop(0).unblock([key, found.pop(0)])
            self._store.drop_empty(key)
            if not self._blocked.get(key, True):  # a served peer may wait here again
                del self._blocked[key]


class _Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._reader = hiredis.Reader()
        self._channels: set[bytes] = set()
        self._id = next(_IDS)
        self._name = b""
        self._blocked_on: bytes | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # of a socket it is a Transport
        self._server._peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server._peers.discard(self)
        if self._blocked_on is not None:
            self._server._blocked[self._blocked_on].remove(self)
        for channel in list(self._channels):
            self._unsubscribe(channel)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except hiredis.ProtocolError:
            self.transport.abort()
        else:
            self._run_commands()

    def unblock(self, reply: list[bytes]) -> None:
        """Answers the blocking command, then runs the commands that came after it."""
        self._blocked_on = None
        self.answer(reply)
        self._run_commands()

    def _run_commands(self) -> None:
        try:
            while self._blocked_on is None and (command := self._reader.gets()) is not False:
                self._server._store.expire()
                self._run(command)
                self._server._serve_blocked()
        except hiredis.ProtocolError:
            self.transport.abort()

    def answer(self, reply: Any) -> None:
        """Sends a reply, or a message."""
        parts: list[bytes] = []
        _encode(reply, parts)
        self.transport.write(b"".join(parts))

    def _run(self, command: Any) -> None:
        if not isinstance(command, list) or not command:
            self.transport.abort()
            return
        name, arguments = command[0].upper(), command[1:]
        try:
            own = _OWN.get(name)
            if own is not None:
                own(self, arguments)
            else:
                self.answer(run(self._server._store, name, arguments))
        except (CommandError, IndexError, ValueError) as error:
            self.answer(error if isinstance(error, CommandError) else CommandError(f"ERR syntax error: {error}"))

    # commands of connections, Pub/Sub and scripts

    def _blpop(self, arguments: list[bytes]) -> None:
        key, timeout = arguments
        if timeout != b"0":
            raise CommandError("ERR BLPOP with a timeout: not in the memory store")
        self._server._store.get(key, list)  # raises for a key of another type
        self._server._blocked.setdefault(key, []).append(self)
        self._blocked_on = key

    def _hello(self, arguments: list[bytes]) -> None:
        if arguments[:1] not in ([], [b"2"]):
            raise CommandError("NOPROTO unsupported protocol version")
        self.answer([b"server", b"redis", b"proto", 2])

    def _client(self, arguments: list[bytes]) -> None:
        verb = arguments[0].upper()
        if verb == b"LIST":
            self.answer(b"".join(b"id=%d name=%b\n" % (peer._id, peer._name) for peer in self._server._peers))
            return
        if verb not in (b"SETNAME", b"SETINFO"):
            raise CommandError(f"ERR CLIENT {verb.decode(errors='replace')}: not in the memory store")
        if verb == b"SETNAME":
            self._name = arguments[1]
        self.answer(OK)

    def _select(self, arguments: list[bytes]) -> None:
        if arguments != [b"0"]:
            raise CommandError("ERR DB index is out of range")
        self.answer(OK)

    def _quit(self, _: list[bytes]) -> None:
        self.answer(OK)
        self.transport.close()

    def _subscribe(self, channels: list[bytes]) -> None:
        for channel in channels:
            self._channels.add(channel)
            self._server._listeners.setdefault(channel, set()).add(self)
            self.answer([b"subscribe", channel, len(self._channels)])

    def _end_subscriptions(self, channels: list[bytes]) -> None:
        for channel in channels or list(self._channels):
            self._unsubscribe(channel)
            self.answer([b"unsubscribe", channel, len(self._channels)])

    def _unsubscribe(self, channel: bytes) -> None:
        self._channels.discard(channel)
        listeners = self._server._listeners.get(channel, set())
        listeners.discard(self)
        if not listeners:
            self._server._listeners.pop(channel, None)

    def _script(self, arguments: list[bytes]) -> None:
        verb, scripts = arguments[0].upper(), self._server._scripts
        if verb == b"LOAD":
            self.answer(scripts.load(arguments[1]))
        elif verb == b"EXISTS":
            self.answer([int(scripts.knows(digest)) for digest in arguments[1:]])
        elif verb == b"FLUSH":
            scripts.flush()
            self.answer(OK)
        else:
            raise CommandError(f"ERR SCRIPT {verb.decode(errors='replace')}: not in the memory store")

    def _evalsha(self, arguments: list[bytes]) -> None:
        self._server._store.calls["evalsha"] += 1
        self.answer(self._server._scripts.run(arguments[0], arguments[1:]))

    def _eval(self, arguments: list[bytes]) -> None:
        self._server._store.calls["eval"] += 1
        scripts = self._server._scripts
        self.answer(scripts.run(scripts.load(arguments[0]), arguments[1:]))


_OWN: Final[dict[bytes, Callable[[_Peer, list[bytes]], None]]] = {
    b"HELLO": _Peer._hello,
    b"CLIENT": _Peer._client,
    b"SELECT": _Peer._select,
    b"BLPOP": _Peer._blpop,
    b"QUIT": _Peer._quit,
    b"SUBSCRIBE": _Peer._subscribe,
    b"UNSUBSCRIBE": _Peer._end_subscriptions,
    b"SCRIPT": _Peer._script,
    b"EVALSHA": _Peer._evalsha,
    b"EVAL": _Peer._eval,
}


def _encode(reply: Any, parts: list[bytes]) -> None:
    """Appends the RESP2 bytes of a reply."""
    if isinstance(reply, Status):
        parts.append(b"+%b\r\n" % reply)
    elif isinstance(reply, bytes):
        parts += (b"$%d\r\n" % len(reply), reply, b"\r\n")
    elif isinstance(reply, int):
        parts.append(b":%d\r\n" % reply)
    elif reply is None:
        parts.append(b"$-1\r\n")
    elif isinstance(reply, CommandError):
        parts.append(b"-%b\r\n" % " ".join(str(reply).split()).encode())
    else:
        parts.append(b"*%d\r\n" % len(reply))
        for each in reply:
            _encode(each, parts)


# memory:// URLs

_servers: Final[dict[str, MemoryServer]] = {}
_servers_lock: Final = threading.Lock()


def check_url(url: str) -> None:
    """Raises InvalidArgument for a malformed memory:// URL, and if lupa is not installed."""
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidArgument(f"server URL: expected memory:// or memory://name, got {shown_url(url)!r}")
    require_lupa()


class Attachment:
    """The use of a store by a client. release() does nothing: the store stays until the process ends."""

    def __init__(self, redis_url: str) -> None:
        self.redis_url = redis_url

    def release(self) -> None:
        """See store.servers.Attachment."""


def absolute(url: str, directory: Path | None = None) -> str:
    """The URL unchanged: a store has no directory."""
    return url


def attach(url: str) -> Attachment:
    """The store of a memory:// URL. Each name has one store in this process, which stays until the process ends."""
    name = urlsplit(url).netloc
    with _servers_lock:
        server = _servers.get(name)
        if server is None:
            server = _servers[name] = MemoryServer()
    return Attachment(server.url)
