"""The sockets on which a server listens: one a process, all on one port.

Promises:
- The kernel spreads new connections over the processes: those of Thrift last, so a process that took all of them would
  keep them.
- A socket stays open while its process is replaced or restarted. New connections wait for the next process.
- A port that another program listens on is refused.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Final

from pinlater.model.errors import InvalidArgument
from pinlater.server.settings import ServerSettings

log: Final = logging.getLogger("pinlater.server")

#: Connections that wait for an accept.
BACKLOG: Final = 1024
#: Files of a process beside the connections of clients.
OTHER_FILES: Final = 200


def bind(settings: ServerSettings, *, shared: bool = False) -> socket.socket:
    """A socket on which the server listens. Raises InvalidArgument.

    shared: others listen on the same port, each for its share of the connections.
    """
    host, port = settings.host, settings.port
    try:
        if host:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)
        if socket.has_dualstack_ipv6():
            with suppress(OSError):  # IPv6 is compiled in and switched off
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True, reuse_port=shared
                )
        return socket.create_server(("", port), backlog=BACKLOG, reuse_port=shared)
    except OSError as error:
        where = f"{host or 'every address'}, port {port}"
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error
        advice = "name another address or port (--host, --port)"
        raise InvalidArgument(f"server: cannot listen on {where}: {why}; {advice}") from None


class Sockets:
    """The sockets of a server. Raises InvalidArgument if its port is taken.

    address: host and port.
    """

    def __init__(self, settings: ServerSettings) -> None:
        with bind(settings) as alone:  # not shared: it fails beside any other socket
            self.address: tuple[str, int] = alone.getsockname()[:2]
        self._settings = replace(settings, port=self.address[1])
        self._sockets: list[socket.socket] = []
        self.of(1)

    def of(self, processes: int) -> list[socket.socket]:
        """As many sockets as there are processes. Opens or closes some if there were fewer or more."""
        while len(self._sockets) > processes:
            self._sockets.pop().close()
        while len(self._sockets) < processes:
            self._sockets.append(bind(self._settings, shared=True))
        return list(self._sockets)

    def close(self) -> None:
        """Closes all."""
        self.of(0)


def raise_file_limit(connections: int) -> None:
    """Lets this process and those that it starts open as many files as the system allows. Warns if it allows too few.

    connections: the most of a process.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and most < connections + OTHER_FILES:
        log.warning(
            "max_connections is %d, but a process may open only %d files: raise its limit (ulimit -n) to %d",
            connections,
            most,
            connections + OTHER_FILES,
        )
