"""The sockets of a server: one a process on one port."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from pinlater.model.errors import InvalidArgument
from pinlater.server.settings import ServerSettings
from pinlater.server.sockets import OTHER_FILES, Sockets

LIMIT = """
import logging, resource, sys
from pinlater.server.sockets import raise_file_limit
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, {most}))
raise_file_limit(1000)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    with closing(Sockets(ServerSettings(host="127.0.0.1", port=0))) as made:
        yield made


def accepted(listening: socket.socket) -> int:
    """How many connections wait at a socket."""
    count = 0
    listening.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count


def test_connections_spread_over_the_processes_before_any_accepts(sockets: Sockets) -> None:
    each = sockets.of(3)
    clients = [socket.create_connection(sockets.address) for _ in range(90)]
    counts = [accepted(listening) for listening in each]
    for client in clients:
        client.close()
    assert sum(counts) == 90
    assert min(counts) >= 5  # about 30; fewer than 5 once in a billion times


def test_a_process_that_is_replaced_hands_its_socket_on(sockets: Sockets) -> None:
    first = sockets.of(2)
    assert [each.fileno() for each in sockets.of(3)[:2]] == [each.fileno() for each in first]
    assert len(sockets.of(1)) == 1
    assert first[0].fileno() >= 0
    assert first[1].fileno() < 0  # closed: the kernel gives it no more connections


def test_a_port_that_another_server_has_is_refused(sockets: Sockets) -> None:
    sockets.of(2)
    port = sockets.address[1]
    for host, where in (("127.0.0.1", "127.0.0.1"), ("", "every address")):
        with pytest.raises(InvalidArgument) as raised:
            Sockets(ServerSettings(host=host, port=port))
        assert str(raised.value) == (
            f"server: cannot listen on {where}, port {port}: Address already in use; "
            "name another address or port (--host, --port)"
        )


@pytest.mark.parametrize("most", [500, 1000 + OTHER_FILES])
def test_the_limit_of_open_files_is_raised_and_a_low_one_is_named(most: int) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= most
    ran = subprocess.run([sys.executable, "-c", LIMIT.format(most=most)], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{most}\n"
    assert ("raise its limit (ulimit -n) to 1200" in ran.stderr) is (most < 1200)
