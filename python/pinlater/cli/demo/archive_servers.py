"""The servers of the demo of the archive: a Redis with little memory, and a MariaDB.

Promises that both end with the demo, and that nobody but its user can reach their folder. Risk: after a SIGKILL of the
demo they go on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pinlater.embedded.keeper import MALLOC_TUNABLES
from pinlater.embedded.server import find_binary
from pinlater.model.errors import InvalidArgument, ServerUnavailable

#: Programs of the package mariadb-server.
MARIADB: Final = ("mariadbd", "mariadb-install-db")
MAXMEMORY_MIB: Final = 64
START_S: Final = 60.0
POLL_S: Final = 0.05


def check_machine() -> None:
    """Raises InvalidArgument that names what is missing."""
    if any(shutil.which(name) is None for name in MARIADB):
        raise InvalidArgument("the demo of the archive: MariaDB is missing: apt-get install mariadb-server")


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """Both servers in a folder, which is empty. Gives the URLs of Redis and of the archive."""
    redis_socket, mysql_socket = folder / "redis.sock", folder / "mysql.sock"
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(_redis(folder, redis_socket), folder / "redis.log"))
        data = folder / "mysql"
        own = ["--no-defaults", *(["--user=root"] if os.geteuid() == 0 else []), f"--datadir={data}"]
        subprocess.run(["mariadb-install-db", *own, "--skip-test-db"], check=True, capture_output=True)
        _make_database(own)
        options = [f"--socket={mysql_socket}", "--skip-networking", "--innodb-flush-log-at-trx-commit=1"]
        started.append(_start(["mariadbd", *own, *options], folder / "mysql.log"))
        _wait(started[0], redis_socket)
        _wait(started[1], mysql_socket)
        yield f"unix://{redis_socket}", f"mysql://{USER}@localhost/{DATABASE}?unix_socket={mysql_socket}"
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


USER: Final = "demo"
DATABASE: Final = "demo"


def _redis(folder: Path, socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "yes",
        "maxmemory": f"{MAXMEMORY_MIB}mb",
        "maxmemory-policy": "noeviction",
    }
    return [str(find_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def _make_database(own: Sequence[str]) -> None:
    text = f"FLUSH PRIVILEGES;\nCREATE DATABASE {DATABASE};\nCREATE USER '{USER}'@'localhost';\n"
    text += f"GRANT ALL ON {DATABASE}.* TO '{USER}'@'localhost';\n"
    subprocess.run(["mariadbd", *own, "--bootstrap"], check=True, capture_output=True, input=text.encode())


def _start(command: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("wb") as log:
        environment = {**os.environ, "GLIBC_TUNABLES": MALLOC_TUNABLES}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


def _wait(process: subprocess.Popen[bytes], socket: Path) -> None:
    """Until the server has its socket."""
    end_s = time.monotonic() + START_S
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > end_s:
            process.send_signal(signal.SIGKILL)
            raise ServerUnavailable(f"{socket.name}: its server did not start; its log is in {socket.parent}")
        time.sleep(POLL_S)
