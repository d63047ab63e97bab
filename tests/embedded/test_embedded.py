"""The embedded server with real processes: its users, its stop, and what survives a kill.

Promises: the tests try every way in which a user, the keeper or the server can end, and check the data afterwards.
Users are child processes that take orders through a pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinlater.embedded.server import attach
from pinlater.model.errors import EmbeddedServerError
from tests.support.embedded_users import User, await_end, client, keeper_of, kill_keeper
from tests.support.servers import is_alive, wait_until

MANY = 10  # processes at once: five a core of the smallest machine this runs on


@pytest.fixture
def user() -> Iterator[Callable[[str], User]]:
    users: list[User] = []

    def make(url: str) -> User:
        users.append(User(url))
        return users[-1]

    yield make
    for each in users:
        each.kill()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/data"


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


def test_the_last_release_stops_the_server_and_a_second_release_does_nothing(url: str) -> None:
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


def test_many_processes_at_once_make_one_server(url: str, user: Callable[[str], User], tmp_path: Path) -> None:
    users = [user(url) for _ in range(MANY)]
    pids = {int(each.read()) for each in users}
    assert len(pids) == 1
    for each in users:
        each.kill()
    await_end(pids.pop(), tmp_path / "data")


@pytest.mark.thorough("processes")
def test_processes_that_come_and_go_always_find_a_server(url: str, user: Callable[[str], User], tmp_path: Path) -> None:
    # Each starts as the one before it ends, so many attach while a keeper stops its server.
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


def test_a_forked_child_holds_the_server_by_itself(url: str, user: Callable[[str], User], tmp_path: Path) -> None:
    parent = user(url)
    pid = int(parent.read())
    child = int(parent.say("fork"))
    os.kill(parent.process.pid, signal.SIGKILL)
    parent.process.wait()
    assert is_alive(child)
    with attach(url) as server:  # during a stop, this would wait and get another server
        assert server.pid == pid
    assert keeper_of(tmp_path / "data") is not None
    os.kill(child, signal.SIGKILL)
    await_end(pid, tmp_path / "data")


def test_a_child_that_releases_leaves_the_parents_hold(url: str) -> None:
    with attach(url) as server:
        pid = server.pid
        program = (
            "import os, sys; from pinlater.embedded.server import attach\n"
            "server = attach(sys.argv[1]); child = os.fork()\n"
            "if not child: server.release(); os._exit(0)\n"
            "os.waitpid(child, 0); again = attach(sys.argv[1]); print(again.pid == server.pid)"
        )
        arguments = [sys.executable, "-c", program, url]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout == "True\n"
        assert server.pid == pid


def test_a_killed_keeper_is_replaced_and_its_server_kept(url: str, user: Callable[[str], User], tmp_path: Path) -> None:
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


def test_a_server_with_no_keeper_and_no_user_is_adopted(url: str, user: Callable[[str], User], tmp_path: Path) -> None:
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
