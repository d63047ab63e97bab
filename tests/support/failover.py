"""Two servers behind one address: a primary and its replica, and the failover between them.

Promises: the address leads each new connection to the primary. A connection made before a failover stays open and leads
to the old primary, which lives on as a replica, or stands still. A failover loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import FreshServer
from tests.support.cut_proxy import CutProxy
from tests.support.servers import Kind, Server, wait_until


class Pair:
    """primary, replica: the servers, by their role now. url: the address."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary, self.replica = primary, replica
        self.address = CutProxy(primary.port)
        replica.call("REPLICAOF", "127.0.0.1", primary.port)
        self._wait_until_followed()

    @property
    def url(self) -> str:
        return self.address.url

    def fail_over(self) -> None:
        """Changes the roles, then moves the address."""
        old, new = self.primary, self.replica
        self._wait_until_followed()
        old.call("FAILOVER")
        wait_until(lambda: new.info("replication")["role"] == "master", "the new primary")
        wait_until(lambda: old.info("replication")["role"] == "slave", "the old primary to step back")
        self.primary, self.replica = new, old
        self.address.server_port = new.port

    def leave_hanging(self) -> None:
        """The primary stands still. The replica takes its role, and the address moves to it."""
        old, new = self.primary, self.replica
        self._wait_until_followed()
        old.call("CLIENT", "PAUSE", 60_000, "WRITE")
        sent = old.info("replication")["master_repl_offset"]
        wait_until(lambda: new.info("replication")["slave_repl_offset"] >= sent, "a replica that has everything")
        old.pause()
        new.call("REPLICAOF", "NO", "ONE")
        self.primary, self.replica = new, old
        self.address.server_port = new.port

    def go_on(self) -> None:
        """The old primary stands still no more. It follows the new one."""
        self.replica.resume()
        self.replica.call("REPLICAOF", "127.0.0.1", self.primary.port)

    def stay_behind(self) -> None:
        """The replica follows nobody from now on, and keeps what it has."""
        self.replica.call("REPLICAOF", "127.0.0.1", self.replica.port)

    def wait_left(self) -> None:
        """Waits until no connection of PinLater to the replica is left."""
        try:
            wait_until(lambda: not self._connected(), "no connection to the old primary")
        except TimeoutError as error:
            error.add_note(f"their last commands: {self._connected()}")
            raise

    def _connected(self) -> list[str]:
        return [client["cmd"] for client in self.replica.call("CLIENT LIST") if client["name"] == "pinlater"]

    def _wait_until_followed(self) -> None:
        wait_until(lambda: self.replica.info("replication").get("master_link_status") == "up", "a replica that follows")


MakePair = Callable[..., Pair]


@pytest.fixture
def make_pair(fresh_server: FreshServer) -> Iterator[MakePair]:
    """`make_pair(kind="valkey")`: two servers behind one address, which is there until the test ends."""
    made: list[Pair] = []

    def make(kind: Kind = "valkey") -> Pair:
        at_once = {"repl-diskless-sync-delay": "0"}  # of a first copy; 5 s otherwise
        pair = Pair(fresh_server(kind, config=at_once), fresh_server(kind, config=at_once))
        pair.address.accept()
        made.append(pair)
        return pair

    yield make
    for pair in made:
        pair.address.__exit__(None, None, None)
