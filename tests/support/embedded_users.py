"""Processes that use an embedded server, and the process that keeps it.

Promises: a User reports the server that its attach found; a killed keeper's locks are free when the wait ends.
Risks: keepers are found by their command line.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import redis

from pinlater.embedded.server import EmbeddedServer
from tests.support.servers import is_alive, wait_until

# A user process: attaches, prints the server's pid, and carries out orders from its standard input.
USER = """
import os, sys
from pinlater.embedded.server import attach
server = attach(sys.argv[1])
print(server.pid, flush=True)
for line in sys.stdin:
    if line == "release\\n":
        server.release()
        print("released", flush=True)
    elif line == "fork\\n":
        if (child := os.fork()) == 0:
            server = attach(sys.argv[1])
            print(os.getpid(), flush=True)
    elif line == "ping\\n":
        print(server.pid, flush=True)
"""


class User:
    """A process attached to an embedded server."""

    def __init__(self, url: str) -> None:
        path = os.pathsep.join(sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, url],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.redis_url)


def keeper_of(directory: Path) -> int | None:
    wanted = b"/embedded/keeper.py\0" + os.fsencode(directory) + b"\0"
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "cmdline").read_bytes() and is_alive(int(entry.name)):
                return int(entry.name)
        except OSError:
            continue
    return None


def kill_keeper(directory: Path) -> None:
    keeper = keeper_of(directory)
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    with (directory / "keeper.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel frees the lock after the process has left the process list


def await_end(server_pid: int, directory: Path) -> None:
    wait_until(lambda: not is_alive(server_pid), "the server to end")
    wait_until(lambda: keeper_of(directory) is None, "the keeper to end")
