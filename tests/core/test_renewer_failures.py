"""The lease renewer outlives servers that die, hang, refuse or talk nonsense, and tells what went wrong.

Promises: every failure is counted, is reported without secrets, and ends when its cause ends.
Risks: the script is a stand-in (tests/support/renewing.py), not lua/renew.lua.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.support.renewing import (
    DEADLINE_S,
    LEASE_MS,
    REFUSE,
    Make,
    command,
    failed,
    keys,
    make,
    renewed,
    take,
    token,
)
from tests.support.servers import Server

__all__ = ["make"]  # a fixture


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_server_killed_and_started_anew(kind: str, fresh_server: Callable[..., Server], make: Make) -> None:
    server = fresh_server(kind)
    renewer = make(server)
    with server.client() as client:
        take(client, 1)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    assert renewer.wait_renewed(1, DEADLINE_S)
    server.kill()
    failed(renewer, 2)
    assert not renewer.stats().connected
    server.start()
    renewals = renewer.stats().renewals
    assert renewer.wait_renewed(renewals + 1, DEADLINE_S)
    assert renewer.take_lost() == [(0, token(1))]  # nothing was on disk: the lease went with the server


def test_a_script_flush_is_made_good_on_the_same_connection(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server, [command("CLIENT", "SETNAME", "flushed")])
    take(client, 1)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    assert renewer.wait_renewed(1, DEADLINE_S)
    client.script_flush()
    renewals = renewer.stats().renewals
    assert renewer.wait_renewed(renewals + 2, DEADLINE_S)
    assert renewer.stats().failures == 0


def test_a_refused_queue_backs_off_alone(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    bad, good = renewer.add_queue(keys(b"bad")), renewer.add_queue(keys(b"good"))
    client.set(keys(b"bad")[2], "BAD_REQUEST says the test")
    take(client, 1, key=keys(b"bad")[0])
    take(client, 2, key=keys(b"good")[0])
    renewer.hold(bad, 1, token(1), token(1), LEASE_MS)
    renewer.hold(good, 1, token(2), token(2), LEASE_MS)
    assert failed(renewer, 3) == "BAD_REQUEST says the test"
    assert renewer.wait_renewed(renewer.stats().renewals + 2, DEADLINE_S)
    assert (renewer.stats().held, renewer.take_lost()) == (2, [])
    client.delete(keys(b"bad")[2])
    assert renewed(client, keys(b"bad")[1]) == 1


def test_a_read_only_server_is_left_and_tried_again(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    client.set(REFUSE, "READONLY You can't write against a read only replica.")
    take(client, 1)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    assert failed(renewer, 2).startswith("READONLY")
    assert not renewer.stats().connected
    client.delete(REFUSE)
    assert renewer.wait_renewed(2, DEADLINE_S)


def test_a_hanging_server_is_a_failure(fresh_server: Callable[..., Server], make: Make) -> None:
    server = fresh_server()
    renewer = make(server, timeout_s=0.2)
    with server.client() as client:
        take(client, 1)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    assert renewer.wait_renewed(1, DEADLINE_S)
    server.pause()
    assert failed(renewer).endswith("no answer within 200ms")
    server.resume()
    renewals = renewer.stats().renewals
    assert renewer.wait_renewed(renewals + 1, DEADLINE_S)


STRANGE_ANSWERS = [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "expected a RESP 2 reply, came type byte 0x48"),
    (b"", "closed the connection"),
    (b"$99999999999999\r\n", "expected a length of at most"),
    (b"$-7\r\n", "expected a length of at most"),
    (b"*1\r\n" * 20, "expected arrays at most 8 deep"),
    (b":x\r\n", "expected a decimal number"),
    (b"+no end", "expected a line that ends in CR LF"),
    (b":1\r\n", "expected a sha from SCRIPT LOAD, came Integer(1)"),
    (b"$1\r\nx\r\n:7\r\n", "expected sequence "),
    (b"$1\r\nx\r\n*3\r\n$4\r\n\xff\xff\xff\xff\r\n$1\r\nh\r\n$0\r\n\r\n", "expected sequence "),
]


@pytest.mark.parametrize(("answer", "expected"), STRANGE_ANSWERS)
def test_a_stranger_on_the_port_is_a_failure_not_a_panic(answer: bytes, expected: str, make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        renewer = make(f"127.0.0.1:{listener.getsockname()[1]}")
        renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
        for failures in (1, 2):
            with listener.accept()[0] as peer:
                peer.sendall(answer)
                peer.shutdown(socket.SHUT_WR)
                assert expected in failed(renewer, failures)


def test_acl_user_select_and_name(server: Server, client: redis.Redis, make: Make) -> None:
    server.call("ACL", "SETUSER", "keeper", "on", ">right", "~*", "+@all")
    handshake = [
        command("AUTH", "keeper", "right"),
        command("HELLO", "2"),
        command("CLIENT", "SETNAME", "keeper-lane"),
        command("SELECT", "3"),
    ]
    renewer = make(server, handshake)
    with server.client(db=3) as third:
        take(third, 1)
        renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
        assert renewed(third) == 1
        client_list: Any = third.client_list()
        assert ("keeper-lane", "keeper", "3") in [(c["name"], c["user"], c["db"]) for c in client_list]
    client.acl_deluser("keeper")


def test_a_wrong_password_is_reported_without_it(server: Server, client: redis.Redis, make: Make) -> None:
    server.call("ACL", "SETUSER", "late", "on", ">first", "~*", "+@all")
    handshake = [command("AUTH", "late", "canary-secret"), command("CLIENT", "SETNAME", "late")]
    renewer = make(server, handshake)
    take(client, 1)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    error = failed(renewer, 2)
    assert error.startswith("handshake command 1 of 2 was refused: WRONGPASS")
    assert "canary" not in error
    assert not renewer.stats().connected
    server.call("ACL", "SETUSER", "late", ">canary-secret")
    assert renewer.wait_renewed(1, DEADLINE_S)
    client.acl_deluser("late")


def test_an_unknown_handshake_command_does_not_tell_its_arguments(server: Server, make: Make) -> None:
    renewer = make(server, [command("HOLA", "2", "AUTH", "user", "canary-secret")])
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    error = failed(renewer)
    assert "unknown command 'HOLA'" in error
    assert "canary" not in error


def test_over_a_unix_socket(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(f"unix:{server.socket_path}")
    take(client, 1)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    assert renewer.wait_renewed(2, DEADLINE_S)
