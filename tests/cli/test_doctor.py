"""The doctor on servers that are well, and on servers that are each ill in one way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from pinlater import Client
from pinlater.cli import main
from pinlater.cli.doctor.check_result import ERROR, NOTE, OK, WARNING, CheckResult
from pinlater.cli.doctor.examine import examine
from pinlater.cli.doctor.queue_states import queue_states
from pinlater.cli.doctor.reached_server import server_versions
from pinlater.cli.doctor.version_check import judge_version
from pinlater.client.base import ClientSettings
from pinlater.store.scripts import load_scripts
from pinlater.store.servers import Server as ServerAddress
from tests.conftest import FreshServer
from tests.support.servers import Server, free_port, wait_until

#: What a client may do, and nothing else: enough for every script.
CLIENT_RULES = (
    "+@read +@write -@dangerous +info +evalsha +script|load +time "
    "+publish +pubsub|numsub +subscribe +unsubscribe +client|setname "
    "~pl:* &pl:*"
)


def look(url: str, *queues: str) -> dict[tuple[str, str], CheckResult]:
    """The doctor's findings by subject (the server is "") and check."""
    return {
        (finding.subject if finding.subject.startswith("queue ") else "", finding.check): finding
        for finding in examine(ClientSettings(url, timeout_s=5.0), queues)
    }


def level_of(url: str, check: str, subject: str = "") -> str:
    """The level of one finding."""
    return look(url)[subject, check].level


def test_a_fresh_server_has_no_errors(server: Server) -> None:
    found = look(server.url)
    assert {finding.level for finding in found.values()} <= {OK, NOTE, WARNING}
    assert found["", "permissions"].level == OK
    assert found["", "role"].found == "primary, 0 replicas"
    assert found["", "allocator"].level == (NOTE if server.kind == "valkey" else OK)
    assert found["", "WAITAOF"].level == (OK if server.kind == "valkey" else NOTE)
    assert found["", "version"].level == (OK if server.kind == "valkey" else WARNING)
    assert found["", "memory"].level == NOTE
    assert all(finding.advice for finding in found.values() if finding.level in (WARNING, ERROR))


def test_an_unreachable_server_is_an_error_that_hides_the_password() -> None:
    chosen, finding = examine(ClientSettings(f"redis://:canary@127.0.0.1:{free_port()}"))
    assert (chosen.check, chosen.found) == ("chosen", "from an argument")
    assert (finding.level, finding.check) == (ERROR, "reachable")
    assert "canary" not in repr(finding)


def test_a_refused_login(server: Server) -> None:
    _, finding = examine(ClientSettings(f"redis://:wrong@127.0.0.1:{server.port}"))
    assert finding.found.startswith("login refused")


@pytest.mark.parametrize(
    ("config", "level", "found"),
    [
        ({"appendonly": "yes", "appendfsync": "always"}, OK, "disk always"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, OK, "disk everysec"),
        ({"appendonly": "yes", "appendfsync": "no"}, WARNING, "disk, without fsync"),
        ({"save": "3600 1"}, WARNING, "memory, snapshots (3600 1)"),
        ({}, WARNING, "memory, no snapshots"),
    ],
)
def test_durability_is_named(fresh_server: FreshServer, config: Mapping[str, str], level: str, found: str) -> None:
    finding = look(fresh_server(config=config).url)["", "durability"]
    assert finding.level == level
    assert finding.found.startswith(found)


def test_eviction_and_memory(fresh_server: FreshServer) -> None:
    server = fresh_server(config={"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    assert level_of(server.url, "eviction") == ERROR
    assert level_of(server.url, "memory") == OK
    server.call("CONFIG", "SET", "maxmemory", server.memory() + 1000)
    server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    found = look(server.url)
    assert found["", "eviction"].level == OK
    assert found["", "memory"].level == WARNING


def test_a_replica_is_an_error(fresh_server: FreshServer) -> None:
    primary, replica = fresh_server(), fresh_server()
    replica.call("REPLICAOF", "127.0.0.1", primary.port)
    wait_until(lambda: replica.info("replication")["master_link_status"] == "up", "a replica that follows")
    assert look(replica.url)["", "role"].found == f"a replica of 127.0.0.1:{primary.port}"
    assert level_of(replica.url, "role") == ERROR
    assert look(primary.url)["", "role"].found == "primary, 1 replica"


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_client_without_config_sees_unknown(fresh_server: FreshServer, kind: str) -> None:
    server = fresh_server(kind, config={"appendonly": "yes"})
    server.call("ACL", "SETUSER", "app", "on", ">secret", *CLIENT_RULES.split())
    url = f"redis://app:secret@127.0.0.1:{server.port}"
    found = look(url)
    assert found["", "permissions"].level == OK
    assert found["", "durability"].found.startswith("disk, fsync unknown")
    assert found["", "eviction"].level == OK
    with Client(url) as client:
        client.create_queue("mail")
        assert client.dequeue("mail", wait=0.01) == []


@pytest.mark.parametrize(
    ("denied", "found"),
    [
        ("-zadd", "ZADD"),
        ("-pubsub|numsub", "PUBSUB|NUMSUB"),
        ("-publish", "PUBLISH"),
        ("resetchannels", "PUBLISH, SUBSCRIBE"),
    ],
)
def test_a_missing_permission_is_named(fresh_server: FreshServer, denied: str, found: str) -> None:
    server = fresh_server()
    server.call("ACL", "SETUSER", "app", "on", ">secret", *CLIENT_RULES.split(), denied)
    finding = look(f"redis://app:secret@127.0.0.1:{server.port}")["", "permissions"]
    assert finding.level == ERROR
    assert finding.found == f"denied on pl:*: {found}"
    assert f"+{found.split(', ')[0].lower()}" in finding.advice


def test_a_server_that_hides_all_but_info(fresh_server: FreshServer) -> None:
    server = fresh_server()
    server.call("ACL", "SETUSER", "app", "on", ">secret", "+info", "+client|setname")
    found = look(f"redis://app:secret@127.0.0.1:{server.port}", "mail")
    assert found["", "eviction"].level == OK
    unknown = [check for (_, check), finding in found.items() if finding.found.startswith("unknown")]
    assert {"permissions", "clock and latency", "configuration"} <= set(unknown)


def test_a_wrong_clock_is_a_warning(fresh_server: FreshServer) -> None:
    server = fresh_server(fake_clock=True)
    assert level_of(server.url, "clock") == OK
    server.jump_clock(-5)
    finding = look(server.url)["", "clock"]
    assert finding.level == WARNING
    assert "behind this machine's" in finding.found


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("redis_version:7.0.15", WARNING),
        ("redis_version:7.2.10", WARNING),
        ("redis_version:7.2.11", OK),
        ("redis_version:7.4.5", WARNING),
        ("redis_version:8.2.2", OK),
        ("redis_version:8.1.9", WARNING),
        ("redis_version:8.4.0", OK),
        ("redis_version:7.2.4\nvalkey_version:8.1.3", WARNING),
        ("redis_version:7.2.4\nvalkey_version:8.1.4", OK),
        ("redis_version:7.2.4\nvalkey_version:9.0.0", OK),
    ],
)
def test_vulnerable_lua_engines_are_known(version: str, level: str) -> None:
    address = ServerAddress("redis://localhost")
    address.check_node(version)
    assert judge_version(address).level == level


# --- queues


def test_a_queue_without_a_monitor_is_a_warning(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
        client.configure_queue("mail", paused=True)
    found = look(server.url)
    assert found["queue mail", "configuration"].level == OK
    assert found["queue mail", "monitor"].level == WARNING
    assert found["queue mail", "open"].found == "paused"
    until_ms = server.time_ms() + 60_000
    server.call("HSET", "pl:{mail/1}:meta", "monitor", b"monitor." + until_ms.to_bytes(6, "big"))
    assert level_of(server.url, "monitor", "queue mail") == OK


def test_an_unknown_queue_is_an_error(server: Server) -> None:
    assert look(server.url, "none")["queue none", "configuration"].level == ERROR


def test_a_lost_record_is_an_error(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
        client.enqueue("mail", b"x")
        server.call("DEL", "pl:{mail/1}:jobs")
        client.dequeue("mail")
    finding = look(server.url)["queue mail", "lost records"]
    assert finding.level == ERROR
    assert finding.found.startswith("1 job ")
    assert main([*finding.advice.partition("fixed: pinlater ")[2].split(), "--url", server.url]) == 0  # as it says
    assert ("queue mail", "lost records") not in look(server.url)


def test_a_queue_that_is_not_alike_on_all_shards(server: Server) -> None:
    url = f"1={server.url},2={server.url}"
    with Client(url) as client:
        client.create_queue("mail")
    assert look(url)["queue mail", "configuration"].found == "alike on 2 shards"
    with Client(f"2={server.url}") as client:
        client.configure_queue("mail", lease_ms=1000)
    assert look(url)["queue mail", "configuration"].found == "differs between shards"
    server.call("DEL", "pl:{mail/2}:meta")
    assert look(url)["queue mail", "configuration"].found == "not on shard 2"
    with Client(url) as client:  # as the advice says
        client.queue_config("mail")
    assert look(url)["queue mail", "configuration"].level == OK


def test_dequeue_only_shards_are_named(server: Server) -> None:
    with Client(f"1={server.url},2={server.url}") as client:
        client.create_queue("mail")
        client.configure_queue("mail", max_running=3, home="2")
    some, every = (f"1{mark}={server.url},2:dequeue_only={server.url}" for mark in ("", ":dequeue_only"))
    assert ("", "dequeue-only") not in look(f"1={server.url},2={server.url}")
    found = look(some)["", "dequeue-only"]
    assert (found.level, found.found) == (NOTE, "shard 2 takes no new jobs")
    home = look(some)["queue mail", "home shard"]
    assert (home.level, home.found) == (
        WARNING,
        "2 is dequeue-only, and all jobs of the queue live there: enqueues are refused",
    )
    found = look(every)["", "dequeue-only"]
    assert (found.level, found.found) == (ERROR, "shard 1, 2 takes no new jobs, and no other does")
    with Client(some) as client:
        client.configure_queue("mail", max_running=None, rate="5/s")
    assert look(some)["queue mail", "home shard"].level == OK


def test_a_queue_of_another_format_is_an_error(server: Server) -> None:
    url = f"1={server.url},2={server.url}"
    with Client(url) as client:
        client.create_queue("mail")
    server.call("HSET", "pl:{mail/2}:m", "c", bytes(38))
    found = look(url)["queue mail", "format"]
    assert (found.level, found.found) == (ERROR, "shard 2: found format 1, expected 2")
    assert found.advice.startswith("drain and delete the queue with the version of PinLater that wrote it")
    server.call("DEL", "pl:{mail/1}:meta")
    assert set(look(url)) & {("queue mail", "format"), ("queue mail", "configuration")} == {("queue mail", "format")}


def test_queue_states_name_a_shard_that_does_not_answer(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
    settings = ClientSettings(f"1={server.url},2=redis://127.0.0.1:{free_port()}")
    here, away = queue_states(settings, "mail")
    assert here.config is not None
    assert here.error == ""
    assert away.config is None
    assert "refused" in away.error


def test_server_versions(server: Server) -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    versions = server_versions(ClientSettings(f"1={server.url},2={away}"))
    assert (versions[server.url] or "").lower().startswith(server.kind)
    assert versions[away] is None


def test_the_doctor_changes_nothing(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
        client.enqueue("mail", b"x")
    before = {key: server.call("DUMP", key) for key in server.call("KEYS", "*")}
    look(server.url)
    assert {key: server.call("DUMP", key) for key in server.call("KEYS", "*")} == before


def test_a_tenant_who_may_not_read_remnants_is_an_error(fresh_server: FreshServer) -> None:
    server = fresh_server()
    rules = [*CLIENT_RULES.split(), "resetkeys", "~pl:{mail/*", "%W~pl:{*}:queues"]
    server.call("ACL", "SETUSER", "app", "on", ">secret", *rules)
    url = f"redis://app:secret@127.0.0.1:{server.port}"
    finding = look(url, "mail")["", "permissions"]
    assert (finding.level, finding.found) == (ERROR, "denied on pl:{mail/1}*: HGET")
    assert "%R~pl:{*}:deleted:*" in finding.advice
    server.call("ACL", "SETUSER", "app", "%R~pl:{*}:deleted:*")
    assert look(url, "mail")["", "permissions"].level == OK


def test_every_command_of_the_scripts_is_asked_for(server: Server) -> None:
    assert any(b"'ZADD'" in script.source for script in load_scripts().values())
    rules = "+evalsha +script|load +info +client|setname ~pl:*"
    server.call("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules.split())
    try:
        finding = look(f"redis://app:secret@127.0.0.1:{server.port}", "mail")["", "permissions"]
        assert {
            "HMGET",
            "HSET",
            "ZADD",
            "ZRANGE",
            "UNLINK",
            "PUBLISH",
            "PUBSUB|NUMSUB",
            "BLPOP",
            "SADD",
            "SUBSCRIBE",
        } <= set(finding.found.removeprefix("denied on pl:{mail/1}*: ").split(", "))
    finally:
        server.call("ACL", "DELUSER", "app")


# --- the command


def test_the_command(server: Server, fresh_server: FreshServer, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
    assert main(["doctor", "--url", server.url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert set(document["findings"][0]) == {"level", "subject", "check", "found", "advice"}
    assert main(["doctor", "--url", server.url]) == 0
    text = capsys.readouterr().out
    assert "  ok " in text
    assert "queue mail\n" in text
    assert text.splitlines()[-1].startswith("0 errors, ")
    assert main(["doctor", "--url", f"redis://127.0.0.1:{free_port()}"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 error, 0 warnings"


def test_the_audit(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
        descriptors = client.enqueue_many("mail", [b"x"] * 3)
    assert main(["doctor", "--audit", "--url", server.url, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["audits"]
    assert (report["queue"], report["ok"], report["jobs"]["pending"], report["findings"]) == ("mail", True, 3, [])
    assert main(["doctor", "--audit", "--url", server.url]) == 0
    assert "3 jobs, each in exactly one state" in capsys.readouterr().out
    id_ = int(descriptors[0].rpartition(":")[2]).to_bytes(8, "big")
    server.call("HDEL", "pl:{mail/1}:jobs", id_)
    assert main(["doctor", "--audit", "--queue", "mail", "--url", server.url]) == 1
    out = capsys.readouterr().out
    assert descriptors[0] in out
    assert out.splitlines()[-1].startswith("1 error, ")


def test_the_audit_of_an_unknown_queue(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--audit", "--queue", "none", "--url", server.url, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["audits"] == []


def test_all_is_well_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", f"embedded://{tmp_path}/data"]) == 0
    out = capsys.readouterr().out
    assert "glibc.malloc.mxfast=0" in out
    assert out.splitlines()[-1] == "all is well"
