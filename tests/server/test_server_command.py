"""`pinlater server` as an operator runs it: its files, its admin pages, TLS, reloads and mistakes."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
from pathlib import Path

import pytest
import thriftpy2.rpc
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.transport import TFramedTransportFactory

from pinlater import Client
from pinlater.cli.command_base import DONE, USAGE
from pinlater.client import settings_file
from pinlater.model.limits import Rate
from pinlater.server.interface import structs
from pinlater.server.passwords import check_hash, hash_password
from pinlater.server.read_settings import read_settings
from pinlater.server.shard_client import check_named
from pinlater.store.shards import URL_VARIABLE
from tests.conftest import FreshServer
from tests.support.certificates import Authority, TlsFiles
from tests.support.cli_runs import Run, run
from tests.support.server_runs import DEADLINE_S, ServerRun, StartServer, start_server
from tests.support.servers import Server, wait_until
from tests.support.thrift_clients import Refused, ThriftpyPeer

__all__ = ["run", "start_server"]  # fixtures

CONTEXT = {"source": "test"}
PASSWORD, WRONG = "letmein", "letmeout"
JOBS = [{"body": b"x"}] * 4
BAD_REQUEST = {"queueName": "mail", "jobs": [{"body": b"x", "priority": 99}]}


def rates(**of: float) -> str:
    return json.dumps({"queues": [{"name": n, "queueConfig": {"maxJobsPerSecond": rate}} for n, rate in of.items()]})


def work(server: ServerRun, queue: str = "mail") -> None:
    """Enqueues 4 jobs, dequeues and acks 2 of them, and makes one wrong call."""
    peer = ThriftpyPeer(server.port)
    peer.call("createQueue", context=CONTEXT, name=queue)
    peer.call("enqueueJobs", context=CONTEXT, request={"queueName": queue, "jobs": JOBS})
    jobs = peer.call("dequeueJobs", context=CONTEXT, request={"queueName": queue, "limit": 2})["jobs"]
    ended = [{"jobDescriptor": each} for each in jobs]
    peer.call("ackDequeuedJobs", context=CONTEXT, request={"queueName": queue, "jobsSucceeded": ended})
    peer.call("ackDequeuedJobs", context=CONTEXT, request={"queueName": queue, "jobsFailed": ended[:1]})
    with pytest.raises(Refused):
        peer.call("enqueueJobs", context=CONTEXT, request=BAD_REQUEST)
    peer.close()


def test_it_runs_by_the_originals_files(start_server: StartServer, tmp_path: Path, server: Server) -> None:
    (tmp_path / "queues.json").write_text(rates(slow=2))
    hashed = hash_password(PASSWORD)
    (tmp_path / "server.properties").write_text(
        f"ADMIN_PASSWORD_HASH={hashed}\nNUM_PRIORITY_LEVELS=5\nQUEUE_CONFIG_FILE_PATH=queues.json\n"
        "BACKEND_MONITOR_JOB_CLAIMED_TIMEOUT_SECONDS=42\nBACKEND_MONITOR_THREAD_DELAY_SECONDS=120\nTHRIFT_PROT=1\n"
    )
    service = start_server("--config", "server.properties")
    service.is_ready()
    peer = ThriftpyPeer(service.port)
    peer.call("createQueue", context=CONTEXT, name="slow")
    peer.call("createQueue", context=CONTEXT, name="doomed")
    with pytest.raises(Refused, match="403"):
        peer.call("deleteQueue", context=CONTEXT, name="doomed", password=WRONG)
    peer.call("deleteQueue", context=CONTEXT, name="doomed", password=PASSWORD)
    peer.close()
    with Client(server.url) as client:
        config = client.queue_config("slow")
        assert (config.priorities, config.lease_ms, config.rate) == (5, 42_000, Rate.of("2/s"))
        assert client.queue_names() == ["slow"]
        (tmp_path / "queues.json").write_text(rates(slow=3))
        service.logged("queue slow: its rate is 3/s now, it was 2/s")
        assert client.queue_config("slow").rate == Rate.of("3/s")
    service.shows("  deleteQueue_wrong_passwords: 1")
    for said in ("unknown key 'THRIFT_PROT'; did you mean 'THRIFT_PORT'?", "BACKEND_MONITOR_THREAD_DELAY_SECONDS"):
        assert service.log.count(said) == 1
    # every user of a machine may read the command lines
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if hashed.encode() in path.read_bytes()] == []
    assert hashed not in service.log
    assert service.end() == DONE


@pytest.mark.thorough("processes")
def test_counts_of_all_processes_stay_when_they_are_replaced(start_server: StartServer, server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")  # the sizes of a queue that is there at the start are shown sooner
    service = start_server("--processes", "2")
    service.is_ready(processes=2)
    work(service)
    counted = [
        "mail_enqueue: 4",
        "mail_dequeue: 2",
        "mail_ack_succeeded: 2",
        "PinLater.enqueueJobs.errors.PRIORITY_NOT_SUPPORTED: 1",
    ]
    for line in counted:
        service.shows(f"  {line}")
    service.send(signal.SIGHUP)
    service.logged("reload: done, 2 new processes\n")
    service.shows('pinlater_process_restarts_total{reason="reload"} 2', "/metrics")
    for line in counted:
        service.shows(f"  {line}")
    work(service)
    service.shows("  mail_enqueue: 8")
    service.shows("  mail_ack_refused: 2")
    _, page = service.get("/metrics")
    assert 'pinlater_server_call_seconds_count{method="enqueueJobs"} 4\n' in page
    service.shows('pinlater_queue_jobs{queue="mail",shard="1",state="pending"} 4', "/metrics")
    assert service.get("/healthz") == service.get("/readyz") == (200, "ok\n")
    idle = ThriftpyPeer(service.port)
    idle.call("getQueueNames", context=CONTEXT)
    assert service.end() == DONE
    idle.close()
    assert "Traceback" not in service.log


def test_each_process_says_once_what_becomes_of_the_shards_and_which_it_is(
    start_server: StartServer, tmp_path: Path, server: Server
) -> None:
    def shards(*names: str) -> str:
        master = {"host": "127.0.0.1", "port": server.port}
        return json.dumps({"shards": [{"name": name, "shardConfig": {"master": master}} for name in names]})

    file = tmp_path / "shards.json"
    file.write_text(shards("a"))
    service = start_server("--processes", "2", "--shards-file", "shards.json", url="")
    service.logged(f"ready on port {service.port}: 2 processes\n")
    expected = {service.process.pid, *service.processes(2)}
    replacement = tmp_path / "new.json"
    replacement.write_text(shards("a", "b"))
    replacement.replace(file)
    for text in ("shards: a=", f"{file}: its new version is in use"):
        wait_until(lambda text=text: set(service.who_logged(text)) == expected, text, DEADLINE_S)  # type: ignore[misc]
    assert service.end() == DONE
    for text in ("shards: a=", f"{file}: its new version is in use"):
        assert sorted(service.who_logged(text)) == sorted(expected)


@pytest.mark.thorough("processes")
def test_a_process_that_is_killed_is_replaced_though_a_file_is_wrong_now(
    start_server: StartServer, tmp_path: Path
) -> None:
    toml = tmp_path / "pinlater.toml"
    toml.write_text("[server]\npriorities = 4\n")
    service = start_server()
    service.is_ready()
    toml.write_text("[server]\nprot = 1\n")
    service.send(signal.SIGHUP)
    service.logged("reload: pinlater.toml: unknown key 'prot' in [server]; did you mean 'port'?")
    toml.write_text("[server")
    [pid] = [
        int(line.split()[-2]) for line in service.log.splitlines() if line.endswith(" started") and "process" in line
    ]
    os.kill(pid, signal.SIGKILL)
    service.shows('pinlater_process_restarts_total{reason="crash"} 1', "/metrics")
    service.logged("server process", 2)
    peer = ThriftpyPeer(service.port)
    peer.call("createQueue", context=CONTEXT, name="mail")
    peer.close()


@pytest.mark.thorough("processes")
def test_it_is_ready_as_long_as_a_shard_answers(
    start_server: StartServer, tmp_path: Path, fresh_server: FreshServer
) -> None:
    first, second = fresh_server("valkey", aof_always=True), fresh_server("valkey", aof_always=True)
    first.stop()
    second.stop()
    (tmp_path / "pinlater.toml").write_text(
        "[server]\nhealth_failures = 1\nhealth_successes = 1\nhealth_interval_s = 1\n"
    )
    service = start_server("--shard", f"1={first.url}", "--shard", f"2={second.url}")

    def answers(status: int, text: str) -> None:
        wait_until(lambda: service.get("/readyz") == (status, f"{text}\n"), text, DEADLINE_S)

    one, two = f"1 ({first.url})", f"2 ({second.url})"
    answers(503, f"not ready: no shard answers: {one}, {two}")
    assert service.get("/healthz")[0] == 200
    first.start()
    answers(200, f"ok\nshards that do not answer: {two}")
    second.start()
    answers(200, "ok")
    first.stop()
    answers(200, f"ok\nshards that do not answer: {one}")
    second.stop()
    answers(503, f"not ready: no shard answers: {one}, {two}")
    first.start()
    answers(200, f"ok\nshards that do not answer: {two}")
    assert service.end() == DONE


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return Authority(tmp_path).files


def test_tls(start_server: StartServer, files: TlsFiles) -> None:
    service = start_server("--tls-cert", files.certificate.name, "--tls-key", files.key.name, "--processes", "2")
    service.is_ready()
    service.logged(", with TLS")
    client = thriftpy2.rpc.make_client(
        structs.PinLater,
        "localhost",
        service.port,
        proto_factory=TBinaryProtocolFactory(),
        trans_factory=TFramedTransportFactory(),
        timeout=60_000,
        ssl_context=ssl.create_default_context(cafile=str(files.certificate)),
    )
    names = client.getQueueNames(structs.RequestContext(source="test"))
    client.close()
    assert list(names) == []
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as plain:
        plain.sendall(b"\x00\x00\x00\x10" + b"\x80\x01\x00\x01" * 4)
        assert plain.recv(100)[:1] in (b"", b"\x15")  # closed, or an alert of TLS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http", "127.0.0.1:{taken}"], "http: cannot listen on 127.0.0.1:{taken}: Address already in use"),
        (["--port", "{taken}", "--no-http"], "server: cannot listen on 127.0.0.1, port {taken}"),
        (["--tls-cert", "c"], "TLS: expected tls_cert and tls_key, got tls_cert without tls_key"),
        (["--tls-cert", "c", "--tls-key", "k"], "/c can not be read: No such file"),
        (["--config", "nowhere"], "config: nowhere can not be read"),
        (["--queue-config", "nowhere"], "/nowhere can not be read"),
        (["--processes", "0"], "processes: expected an integer from 1 to 256, got 0"),
    ],
)
def test_mistakes_end_it_at_once(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    arguments: list[str],
    said: str,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = listening.getsockname()[1]
        ran = run("server", "--host", "127.0.0.1", "--port", "0", *(each.format(taken=taken) for each in arguments))
    assert ran.code == USAGE
    assert said.format(taken=taken) in ran.err
    assert "listens on" not in caplog.text


BOTH = "servers: expected a shards file or a URL, got both: the file {folder}/shards.json and "


@pytest.mark.parametrize(
    ("arguments", "toml", "variable", "said"),
    [
        (["--shards-file", "shards.json", "--url", "redis://a:1"], "", "", "redis://a:1 (from an argument); keep"),
        (
            ["--shards-file", "shards.json", "--shard", "2=redis://a:1"],
            "",
            "",
            "2=redis://a:1 (from an argument); keep",
        ),
        (["--config", "server.properties", "--url", "redis://a:1"], "", "", "redis://a:1 (from an argument); keep"),
        (["--shards-file", "shards.json"], "", "redis://a:1", "redis://a:1 (from PINLATER_URL); keep"),
        (
            ["--config", "server.properties"],
            'url = "redis://a:1"\n',
            "",
            "redis://a:1 (from {folder}/pinlater.toml); keep",
        ),
        (
            [],
            '[shards]\n2 = "redis://a:1"\n[server]\nshards_file = "shards.json"\n',
            "",
            "2=redis://a:1 (from {folder}/pi",
        ),
    ],
)
def test_servers_are_named_once(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    toml: str,
    variable: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(URL_VARIABLE, variable)
    (tmp_path / "pinlater.toml").write_text(toml)
    (tmp_path / "server.properties").write_text("SHARD_CONFIG_FILE_PATH=shards.json\n")
    ran = run("server", "--host", "127.0.0.1", "--port", "0", "--no-http", *arguments)
    assert ran.code == USAGE
    assert (BOTH + said).format(folder=tmp_path) in ran.err
    assert "keep the file, and leave out the URL (--url, " in ran.err
    assert "keep the URL, and leave out the file (--shards-file, " in ran.err


@pytest.mark.parametrize("line", ["THRIFT_PORT=0", "SHARD_CONFIG_FILE_PATH="])
def test_a_properties_file_needs_servers(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(URL_VARIABLE)
    (tmp_path / "server.properties").write_text(f"{line}\n")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = listening.getsockname()[1]  # it does not come as far as to listen
        ran = run("server", "--host", "127.0.0.1", "--port", str(taken), "--no-http", "--config", "server.properties")
    assert ran.code == USAGE
    assert ran.err.startswith("error: servers: expected the Redis servers beside server.properties, got none; ")
    assert "-Dbackend_config=redis.json: give that file by --shards-file redis.json" in ran.err


@pytest.mark.parametrize(
    ("variable", "toml"), [("embedded://./data", ""), ("", 'url = "redis://a:1"'), ("", '[server]\nshards_file = "s"')]
)
def test_any_name_of_servers_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, toml: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(URL_VARIABLE, variable)
    (tmp_path / "pinlater.toml").write_text(f"{toml}\n")
    check_named(read_settings({}), settings_file.servers(), Path("server.properties"))


def test_a_password_of_stdin_is_hashed(run: Run) -> None:
    ran = run("server", "--hash-password", stdin=b"letmein\nmore\n")
    assert (ran.code, ran.err) == (DONE, "")
    check_hash(ran.out.strip())
    assert ran.out.startswith("$argon2id$")
    ran = run("server", "--hash-password", stdin=b"\n")
    assert ran.code == USAGE
    assert "expected a password, got an empty line" in ran.err
