"""Connecting to a server: login, ACL, TLS, sockets, versions; and the errors when that fails.

Promises: each refusal is the right error, with the server's name and without its password. The ACL of docs/acl.md is
enough for every operation, and has no command that scripts and clients do not send.
Risks: TLS needs Debian's redis-server. No test has an address that drops packets.
"""

from __future__ import annotations

import importlib.metadata
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from pinlater import Client
from pinlater.model.errors import PinLaterError, ServerRefused, ServerTooOld, ServerUnavailable
from pinlater.store.requests import write
from pinlater.store.scripts import LUA_DIRECTORY
from tests.conftest import FreshServer
from tests.support.both_clients import Calls, kind, make
from tests.support.certificates import Authority
from tests.support.cut_cases import READS, WRITES, begin
from tests.support.paths import ROOT
from tests.support.resp import Command, message_end, parse_command
from tests.support.servers import KINDS, Kind, Server, free_port, wait_until

__all__ = ["kind", "make"]  # fixtures

ACL_PAGE = ROOT / "docs" / "acl.md"
PASSWORD = "correct-horse"  # noqa: S105
#: Commands of the client itself, beside those that its scripts call.
CLIENT_COMMANDS = {
    "client|setname",
    "info",
    "blpop",
    "select",
    "script|load",
    "evalsha",
    "subscribe",
    "unsubscribe",
    "sadd",
    "smembers",
    "srem",
}


def check_it_works(calls: Calls) -> None:
    calls.create_queue("q")
    descriptor = calls.enqueue("q", b"body")
    assert calls.lookup([descriptor], with_body=True)[descriptor].body == b"body"


def check_refused(calls: Calls, kind: type[PinLaterError], says: str) -> None:
    for call in (calls.create_queue, calls.count, calls.delete_queue):
        with pytest.raises(PinLaterError) as raised:
            call("q")
        errors = getattr(raised.value, "errors", {"": raised.value})
        assert [type(error) for error in errors.values()] == [kind]
        assert re.search(says, str(raised.value)), str(raised.value)
        assert PASSWORD not in str(raised.value)


class OldServer:
    """Answers OK to everything, and INFO with `info`: Redis 6.2.7."""

    def __init__(self, info: bytes = b"redis_version:6.2.7\r\n") -> None:
        self._info = b"# Server\r\n" + info
        self.commands: list[Command] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        buffer = b""
        while data := connection.recv(4096):
            buffer += data
            while (end := message_end(buffer)) is not None:
                command = parse_command(buffer[:end])
                buffer = buffer[end:]
                self.commands.append(command)
                info = b"$%d\r\n%s\r\n" % (len(self._info), self._info)
                connection.sendall(info if command[0] == b"INFO" else b"+OK\r\n")


def test_a_server_that_is_too_old_is_refused_by_name(make: Callable[..., Calls]) -> None:
    old = OldServer()
    try:
        check_refused(make(old.url), ServerTooOld, "expected Redis 7.0 or later .*got Redis 6.2.7")
        assert {command[0] for command in old.commands} <= {b"CLIENT", b"INFO", b"SELECT"}
    finally:
        old.close()


def test_a_server_of_32_bits_is_refused(make: Callable[..., Calls]) -> None:
    small = OldServer(b"redis_version:7.0.15\r\narch_bits:32\r\n")
    try:
        check_refused(make(small.url), ServerTooOld, "expected a 64-bit build, got 32")
    finally:
        small.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_password(make: Callable[..., Calls], kind: Kind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind)
    server.call("CONFIG", "SET", "requirepass", PASSWORD)
    address = f"127.0.0.1:{server.port}"
    check_refused(make(f"redis://{address}"), ServerRefused, "login refused")
    check_refused(make(f"redis://:wrong@{address}"), ServerRefused, rf"\*\*\*@{address}.*login refused")
    check_it_works(make(f"redis://:{PASSWORD}@{address}"))
    make_nothing(server)


def make_nothing(server: Server) -> None:
    """Lets the fixture stop the server without the password."""
    with server.client(password=PASSWORD) as client:
        client.config_set("requirepass", "")


def test_an_unknown_user_and_a_user_without_rights(make: Callable[..., Calls], server: Server) -> None:
    address = f"127.0.0.1:{server.port}"
    check_refused(make(f"redis://nobody:{PASSWORD}@{address}"), ServerRefused, "login refused")
    server.call("ACL", "SETUSER", "idle", "reset", "on", f">{PASSWORD}", "+client", "+info")
    try:
        check_refused(make(f"redis://idle:{PASSWORD}@{address}"), ServerRefused, "NOPERM|permission")
    finally:
        server.call("ACL", "DELUSER", "idle")


def test_a_user_that_may_not_subscribe_gets_an_error_when_it_waits(make: Callable[..., Calls], server: Server) -> None:
    server.call("ACL", "SETUSER", "deaf", "reset", "on", f">{PASSWORD}", "+@all", "~*", "resetchannels")
    try:
        calls = make(f"redis://deaf:{PASSWORD}@127.0.0.1:{server.port}")
        calls.create_queue("deaf")
        with pytest.raises(ServerRefused, match=r"the user may not subscribe to .*docs/acl\.md"):
            calls.dequeue("deaf", 1, wait=5)
        assert calls.dequeue("deaf", 1) == []
    finally:
        server.call("ACL", "DELUSER", "deaf")


def rules() -> list[str]:
    """The words of `ACL SETUSER` in docs/acl.md."""
    block = ACL_PAGE.read_text().split("```")[1].split()
    assert block[:3] == ["ACL", "SETUSER", "pinlater"]
    return [word.replace("PASSWORD", PASSWORD) for word in block[2:]]


def test_the_documented_acl_names_what_scripts_and_clients_send() -> None:
    lua = "\n".join(path.read_text() for path in LUA_DIRECTORY.rglob("*.lua"))
    calls = re.findall(r"\b(?:call|call_in_chunks)\('([A-Z]+)'(?:, '([A-Z]+)')?", lua)
    called = {"|".join(filter(None, words)).lower() for words in calls}
    assert {word[1:] for word in rules() if word.startswith("+")} == called | CLIENT_COMMANDS


def test_the_documented_acl_is_enough_for_every_operation(make: Callable[..., Calls], server: Server) -> None:
    server.call("ACL", "SETUSER", *rules())
    try:
        calls = make(f"redis://pinlater:{PASSWORD}@127.0.0.1:{server.port}/1")
        with Client(f"redis://127.0.0.1:{server.port}/1") as direct:
            for number, case in enumerate([*WRITES, *READS]):
                queue = f"q{number}"
                needed = begin(case, calls, direct, queue)
                assert case.holds(direct, queue, case.call(calls, queue, needed), needed), case.name
        assert "q0" in calls.queue_names()
        check_notifications(calls)
    finally:
        server.call("ACL", "DELUSER", "pinlater")


def check_notifications(calls: Calls) -> None:
    calls.create_queue("notified")
    with Client(calls.client.session.servers[0].url) as other:
        thread = threading.Thread(target=enqueue_for_waiter, args=(other,))
        thread.start()
        assert len(calls.dequeue("notified", wait=8)) == 1  # earlier than the safety claim: a notification came
        thread.join()
        queue_shard = other.session.queue_shard("notified", "1")
        other.run(lambda end: write(queue_shard, "pass_on", [b""], end))


def enqueue_for_waiter(client: Client) -> None:
    connection = client.driver.connect(client.session.servers[0])

    def registered() -> bool:
        connection.send_command("EXISTS", "pl:{notified/1}:waiters")
        return bool(connection.read_response())

    wait_until(registered, "a registered waiter")
    connection.disconnect()
    client.enqueue("notified", b"body")


def test_a_missing_server_is_reported_at_once(make: Callable[..., Calls]) -> None:
    port = free_port()
    check_refused(make(f"redis://127.0.0.1:{port}"), ServerUnavailable, f"127.0.0.1:{port}.*not reached")
    check_refused(make("unix:///nowhere/at/all.sock"), ServerUnavailable, "nowhere/at/all.sock.*not reached")


def test_a_unix_socket(make: Callable[..., Calls], server: Server) -> None:
    check_it_works(make(server.unix_url))


@pytest.fixture
def tls_server(fresh_server: FreshServer) -> Server:
    return fresh_server("redis", tls=True)


def test_tls_with_its_authority(make: Callable[..., Calls], tls_server: Server) -> None:
    assert tls_server.tls_files is not None
    check_it_works(make(f"{tls_server.url}?ssl_ca_certs={tls_server.tls_files.certificate}"))


def test_tls_with_another_authority_or_none(make: Callable[..., Calls], tls_server: Server, tmp_path: Path) -> None:
    other = Authority(tmp_path).files
    check_refused(make(f"{tls_server.url}?ssl_ca_certs={other.certificate}"), ServerUnavailable, "(?i)certificate")
    check_refused(make(tls_server.url), ServerUnavailable, "(?i)certificate")
    without_tls = tls_server.url.replace("rediss://", "redis://")
    check_refused(make(without_tls), ServerUnavailable, "not reached")


def test_a_connection_names_its_library_and_reads_its_version_once(
    make: Callable[..., Calls], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_it_works(make(server.url))
    read: list[str] = []
    metadata_version = importlib.metadata.version

    def version(name: str) -> str:
        read.append(name)
        return metadata_version(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    check_it_works(make(server.url))
    assert read == [], "each connection read and parsed the metadata"
    clients = [line for line in server.call("CLIENT", "LIST").decode().splitlines() if " name=pinlater " in line]
    assert clients
    if "lib-ver=" in clients[0]:
        assert all(f"lib-name=redis-py lib-ver={redis.__version__}" in line for line in clients)
