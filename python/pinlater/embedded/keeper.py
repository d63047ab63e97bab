"""The keeper of an embedded server: the process that starts the server, waits for its last user, and stops it.

Promises:
- The server gets SIGTERM, saves and ends once no process holds the users' lock, and not before.
- A process that attaches during the stop waits until the server has ended.
- A keeper adopts a running server that has no keeper; it never starts a second one.

Risks: SIGTERM to the keeper stops the server although it has users. It stays down until one of them attaches again.

Three flocks in the directory coordinate this:
- `users.lock`: each attached process holds it shared. The keeper waits for it exclusively, and holds it while it stops
  the server.
- `keeper.lock`: the keeper holds it until it ends. The process that starts the keeper takes it, the keeper inherits it.
- `server.lock`: the server inherits it. While it is held a server lives, even if it does not answer.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

ANSWER_DEADLINE_S = 60.0  # a start takes 0.1 s; a server that says nothing, not even LOADING, is stuck
STOP_DEADLINE_S = 60.0  # SIGTERM to exit: the AOF's last fsync on a slow disk; SIGKILL follows
PING_TIMEOUT_S = 1.0  # one try: a long script may block the server this long
POLL_S = 0.005  # between checks of another process: a twentieth of a start
#: Settings of libc's malloc. mxfast=0: without it, a deep queue that drains stalls 290 ms. tcache_count: a batch of
#: 1,000 reuses the blocks that it freed (a tenth of the server's instructions, for at most 60 MB of RSS).
MALLOC_TUNABLES = "glibc.malloc.mxfast=0:glibc.malloc.tcache_count=2000"


class Keeper:
    """Starts a directory's server, or adopts a running one, and stops it after its last user.

    private: the directory is temporary, and is removed at the end.
    """

    def __init__(self, directory: Path, binary: str, socket_path: str, private: bool) -> None:
        self._directory = directory
        self._binary = binary
        self._socket_path = socket_path
        self._private = private
        self._users = os.open(directory / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._pid: int | None = None
        self._stopping = False
        self._waiting = threading.Thread(target=self._await_end, daemon=True)

    def run(self) -> None:
        """Returns once the server is stopped: after the last user, or on SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            self._pid = self._take_over()
            if self._pid is not None:
                self._waiting.start()
                fcntl.flock(self._users, fcntl.LOCK_EX)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._stop()
        # No process can attach from here on: it waits for the exclusive lock until this process ends.
        (self._directory / "fsync-always").unlink(missing_ok=True)
        if self._private:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _take_over(self) -> int | None:
        """The process id of the server, started or adopted; None if no server runs and no process is attached."""
        deadline_s = time.monotonic() + ANSWER_DEADLINE_S
        while time.monotonic() < deadline_s:
            server_lock = try_lock(self._directory / "server.lock", fcntl.LOCK_EX)
            if server_lock is not None:
                return None if self._is_unwanted() else self._start(server_lock)
            if (pid := server_pid(self._directory)) is not None:
                return pid
            time.sleep(POLL_S)
        sys.exit(f"keeper: a server holds {self._directory}/server.lock, but it does not answer")

    def _is_unwanted(self) -> bool:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _start(self, server_lock: int) -> int:
        file = self._directory / "socket-path"
        file.with_suffix(".new").write_bytes(os.fsencode(self._socket_path))
        file.with_suffix(".new").replace(file)
        tunables = [MALLOC_TUNABLES, os.environ.get("GLIBC_TUNABLES")]  # the user's come last, so they win
        environment = {**os.environ, "GLIBC_TUNABLES": ":".join(tunable for tunable in tunables if tunable)}
        # The server inherits the lock without knowing it; the lock ends with the process.
        server = subprocess.Popen(self._command(), env=environment, pass_fds=[server_lock])
        os.close(server_lock)
        self._server = server
        return server.pid

    def _command(self) -> list[str]:
        always = (self._directory / "fsync-always").exists()
        options = {
            "port": "0",
            "unixsocket": self._socket_path,
            "unixsocketperm": "700",
            "dir": str(self._directory),
            "appendonly": "yes",
            "appendfsync": "always" if always else "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        return [self._binary, *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _stop(self) -> None:
        self._stopping = True
        if self._pid is None:
            return
        for how in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(self._pid, how)
            self._waiting.join(STOP_DEADLINE_S)
            if not self._waiting.is_alive():
                return

    def _await_end(self) -> None:
        """Waits for the server's end. If it died, the keeper ends too; the next attach starts both."""
        with (self._directory / "server.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._stopping:
                os._exit(1)


def socket_path(directory: Path) -> Path:
    """The socket of the directory's server, from the keeper's file: TMPDIR differs between processes."""
    with suppress(FileNotFoundError):
        return Path(os.fsdecode((directory / "socket-path").read_bytes()))
    return directory / "server.sock"


def try_lock(path: Path, how: int) -> int | None:
    """Takes a flock on a file and returns its descriptor; None if another process holds it. how: LOCK_EX or LOCK_SH."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def ask(directory: Path, *words: str) -> bytes:
    """The server's reply without its RESP type byte; empty if it does not answer."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    try:
        with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as replies:
            sock.settimeout(PING_TIMEOUT_S)
            sock.connect(str(socket_path(directory)))
            sock.sendall(request.encode())
            head = replies.readline().rstrip()
            return replies.read(int(head[1:])) if head.startswith(b"$") else head[1:]
    except OSError:
        return b""


def server_pid(directory: Path) -> int | None:
    """The server's process id; None if it does not answer."""
    for line in ask(directory, "INFO", "server").splitlines():
        if line.startswith(b"process_id:"):
            return int(line.removeprefix(b"process_id:"))
    return None


def keep(arguments: list[str]) -> None:
    """Runs a keeper in a process that no other one waits for."""
    directory, binary, socket_path, keeper_lock, kind = arguments
    if os.fork():
        os._exit(0)  # the launcher ends, so init adopts the keeper
    os.set_inheritable(int(keeper_lock), False)
    os.chdir("/")
    os.umask(0o077)
    Keeper(Path(directory), binary, socket_path, kind == "private").run()


if __name__ == "__main__":
    keep(sys.argv[1:])
