"""Commands of queues and jobs on Thrift servers, and the one line with which all others refuse them."""

# ruff: noqa: F811 (fixtures are parameters)
from __future__ import annotations

import io
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from cryptography import x509

from pinlater import Client
from pinlater.cli import main
from pinlater.cli.command_base import DONE, NO, SERVER, UNKNOWN, USAGE
from pinlater.server.passwords import hash_password
from tests.support.certificates import Authority, TlsFiles
from tests.support.cli_runs import Ran, Run, run  # noqa: F401
from tests.support.servers import Server, free_port
from tests.support.thrift_fake import FakeServer, ordinary
from tests.support.thrift_server import ThriftServer

PASSWORD = "open sesame"  # noqa: S105
HASHED = hash_password(PASSWORD)
ADVICE = (
    "; start `pinlater server` there, or name another one with --url; if it runs, its log and /readyz of its admin "
    "pages show more\n"
)
NOT_THERE = (
    "is not on the Thrift interface; name the Redis servers of the service: --shard 1=redis://host:6379 for each "
    "shard, or --shards-file FILE"
)


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


@pytest.fixture
def thrift(run: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`run` with a Thrift server in PINLATER_URL."""
    with ThriftServer({"1": server.url, "2": server.url}, password_hash=HASHED) as service:
        monkeypatch.setenv("PINLATER_URL", f"thrift://127.0.0.1:{service.port}")
        yield run


@pytest.fixture
def nobody(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run` with a Thrift URL that nobody listens on: what needs no server is refused before a connect."""
    monkeypatch.setenv("PINLATER_URL", "thrift://127.0.0.1:1")
    return run


def test_a_queue_and_its_jobs(thrift: Run) -> None:
    ran = thrift("queue", "create", "mail")
    assert (ran.code, ran.out) == (DONE, "queue mail created\n")
    assert thrift("queue", "create", "mail").out == "queue mail exists already\n"
    assert thrift("queue", "create", "mail", "--json").document == {"queue": "mail", "created": False}

    enqueued = thrift("job", "enqueue", "mail", "hello", "world", "--attempts", "1").out.split()
    assert thrift("job", "enqueue", "mail", "later", "--delay", "1h").code == DONE
    assert thrift("job", "enqueue", "mail", "--lines", stdin=b"a\nb\n\n").out == "queue mail: 2 jobs enqueued\n"
    assert [line.split() for line in thrift("queue", "ls").out.splitlines()] == [
        ["queue", "pending", "scheduled", "in", "progress", "succeeded", "failed"],
        ["mail", "4", "1", "0", "0", "0"],
    ]
    counts = {"pending": 4, "scheduled": 1, "in_progress": 0, "succeeded": 0, "failed": 0}
    assert thrift("queue", "ls", "--json").document == [{"queue": "mail", **counts}]
    assert thrift("job", "count", "mail", "--json").document == {"queue": "mail", "priority": None, **counts}

    assert "hello" in thrift("job", "dequeue", "mail", "--limit", "9", "--dry-run").out
    found = thrift("job", "dequeue", "mail", "--limit", "9", "--json").documents
    assert {each["descriptor"] for each in found} >= {*enqueued}
    acked = thrift("job", "ack", enqueued[0], "--status", "sent")
    assert acked == (
        DONE,
        f"{enqueued[0]} sent as succeeded\n",
        "the Thrift interface does not say which acks were refused: pinlater job lookup shows the jobs\n",
    )
    failed = thrift("job", "ack", enqueued[1], "--failed", "--json")
    assert failed.document == {"failed": [enqueued[1]], "refused": None}
    looked = thrift("job", "lookup", *enqueued, "--body", "--json").documents
    assert [(each["state"], each["body"], each["status"]) for each in looked] == [
        ("succeeded", "hello", "sent"),
        ("failed", "world", ""),
    ]
    assert thrift("job", "lookup", "mail:s1:p1:9").code == NO
    assert thrift("job", "ls", "mail", "--future", "--body").out.splitlines()[1].split()[-1] == "later"
    assert thrift("job", "ls", "mail").out == "queue mail: no pending jobs; 1 job due later: --future\n"
    assert thrift("job", "dequeue", "mail").out == "queue mail has no due jobs; 1 job due later\n"

    assert "world" in thrift("job", "ls", "mail", "--state", "failed", "--error", "", "--body").out
    assert enqueued[1] in thrift("job", "retry", "mail", "--dry-run").out
    assert thrift("job", "retry", "mail").out == "queue mail: 1 job enqueued again, no failed jobs remain\n"
    removed = thrift("job", "rm", "--queue", "mail", "--state", "pending", "--yes")
    assert removed.out == "queue mail: 2 jobs removed, no pending jobs remain\n"


def test_a_single_job_says_how_to_go_on(thrift: Run) -> None:
    thrift("queue", "create", "mail")
    descriptor = thrift("job", "enqueue", "mail", "hello").out.strip()
    ran = thrift("job", "dequeue", "mail")
    assert ran.out.splitlines()[0].split() == ["descriptor", descriptor]
    assert ran.err == f"next: pinlater job ack {descriptor}\n"


def test_a_password_from_a_file_from_stdin_and_none(thrift: Run, tmp_path: Path) -> None:
    thrift("queue", "create", "mail")
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    asked = thrift("queue", "rm", "mail", "--yes")
    assert (asked.code, asked.err) == (
        USAGE,
        "error: There is no terminal to ask for the password on: expected --password-file (pinlater queue rm --help)\n",
    )
    wrong = thrift("queue", "rm", "mail", "--yes", "--password-file", "-", stdin=b"wrong\n")
    assert wrong.code == SERVER
    assert "wrong password: deleteQueue needs the password of this server" in wrong.err
    assert thrift("queue", "rm", "mail", "--yes", "--password-file", str(file)).out == "queue mail deleted\n"
    again = thrift("queue", "rm", "mail", "--yes", "--password-file", "-", stdin=f"{PASSWORD}\r\n".encode())
    assert again == (NO, "queue mail was deleted already\n", "")


def test_a_password_that_is_typed(
    thrift: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    thrift("queue", "create", "mail")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    hidden: list[str] = []

    def typed(prompt: str = "") -> str:
        hidden.append(prompt)
        return PASSWORD

    monkeypatch.setattr(click.termui, "hidden_prompt_func", typed)
    assert main(["queue", "rm", "mail", "--yes"]) == DONE
    assert capsys.readouterr().out == "queue mail deleted\n"
    assert len(hidden) == 1


def test_a_password_is_for_thrift_servers_only(run: Run) -> None:
    run("queue", "create", "mail")
    ran = run("queue", "rm", "mail", "--yes", "--password-file", "-", stdin=b"x")
    assert ran.code == USAGE
    assert "--password-file: expected with a thrift:// URL" in ran.err


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("queue info mail", "queue info"),
        ("queue set mail --paused", "queue set"),
        ("queue pause mail", "queue pause"),
        ("queue resume mail", "queue resume"),
        ("queue drain mail", "queue drain"),
        ("queue purge mail", "queue purge"),
        ("queue reset-lost mail", "queue reset-lost"),
        ("queue create mail --lease 1m", "queue create --lease"),
        ("queue create mail --succeeded-ttl 1h", "queue create --succeeded-ttl"),
        ("job dequeue mail --wait 1s", "job dequeue --wait"),
        ("job enqueue mail hello --key ada", "job enqueue --key"),
        ("job release mail:s1:p1:1@0011223344556677", "job release"),
        ("job retry mail:s1:p1:1", "job retry DESCRIPTOR"),
        ("job retry mail --task send", "job retry --task"),
        ("job rm mail:s1:p1:1", "job rm DESCRIPTOR"),
        ("job rm --queue mail --state failed --since 2h --yes", "job rm --since"),
        ("worker no.handler:handle --queue mail", "worker"),
        ("worker ls", "worker ls"),
        ("monitor", "monitor"),
        ("server", "server"),
        ("doctor", "doctor"),
    ],
)
def test_what_needs_redis(nobody: Run, command: str, what: str) -> None:
    ran = nobody(*command.split())
    assert ran == (USAGE, "", f"error: pinlater {what} {NOT_THERE}\n")


def test_the_versions_here_need_no_server(nobody: Run) -> None:
    ran = nobody("version")
    assert (ran.code, ran.err) == (DONE, "")
    assert [line.split()[0] for line in ran.out.splitlines()] == ["pinlater", "core", "python", "redis-py"]
    assert nobody("version", "--json").document["servers"] == {}


def test_an_app_that_names_no_servers_needs_redis(nobody: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thrift_app.py").write_text(
        "from pinlater import PinLater\napp = PinLater()\n@app.task\ndef f(): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    assert nobody("run", "thrift_app:app") == (USAGE, "", f"error: pinlater run {NOT_THERE}\n")
    assert nobody("--url", "thrift://a", "run", "thrift_app:app").err == f"error: pinlater run {NOT_THERE}\n"


def test_the_archive_needs_redis(nobody: Run) -> None:
    ran = nobody("--archive", "mysql://root@127.0.0.1:1/none", "archive", "status")
    assert ran == (USAGE, "", f"error: pinlater archive status {NOT_THERE}\n")


def test_the_url_may_come_from_the_command_line_and_from_toml(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ls(*arguments: str) -> Ran:
        return run(*arguments, "queue", "ls", "--json")

    with FakeServer() as fake:
        url = f"thrift://127.0.0.1:{fake.port}"
        assert [each["queue"] for each in ls("--url", url).document] == ["mail"]
        monkeypatch.delenv("PINLATER_URL")
        (tmp_path / "pinlater.toml").write_text(f'url = "{url}"\n')
        monkeypatch.chdir(tmp_path)
        assert [each["queue"] for each in ls().document] == ["mail"]
        source = fake.asked[0].arguments.context.source
        assert source.startswith("pinlater-cli:"), "the same in every process of this host"
        assert {asked.arguments.context.source for asked in fake.asked} == {source}


def test_errors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer() as fake:
        monkeypatch.setenv("PINLATER_URL", f"thrift://127.0.0.1:{fake.port}")
        fake.answer = lambda asked: (
            asked.refuses(413, "no queue 'mial'") if asked.method[:2] == "en" else ordinary(asked)
        )
        refused = run("job", "enqueue", "mial", "hello")
        assert refused == (NO, "", "error: queue 'mial': not found; did you mean 'mail'?\n")
        fake.answer = lambda asked: asked.refuses(429, "queue 'mail' is paused")
        paused = run("job", "dequeue", "mail")
        assert paused.code == NO
        assert "queue 'mail' is paused" in paused.err
        fake.answer = lambda _: None
        lost = run("job", "enqueue", "mail", "hello")
        assert lost.code == UNKNOWN
        assert "check before you repeat it" in lost.err
    away = run("queue", "ls")
    assert away.code == SERVER
    assert "Connection refused" in away.err
    assert away.err.endswith(ADVICE)


def test_advice_fits_the_url(thrift: Run) -> None:
    with FakeServer() as fake:
        fake.answer = lambda asked: asked.refuses(501, "no shard is healthy")
        ran = thrift("queue", "ls", "--url", f"thrift://127.0.0.1:{fake.port}")
    assert ran.code == SERVER
    assert "no shard is healthy; `pinlater server` runs there: look at the Redis that it names; " in ran.err
    assert "start" not in ran.err
    ran = thrift("queue", "ls", "--url", "redis://127.0.0.1:1")
    assert ran.err.endswith("; start it, or name another one with --url; pinlater doctor shows more\n")


def test_a_shard_that_is_away_is_no_server_to_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThriftServer({"b": f"redis://127.0.0.1:{free_port()}"}, timeout_s=0.5) as service:
        monkeypatch.setenv("PINLATER_URL", f"thrift://127.0.0.1:{service.port}")
        ran = run("job", "count", "mail")
    assert ran.code == SERVER
    assert "Connection refused; `pinlater server` runs there: look at the Redis that it names; " in ran.err


def test_a_paused_queue_is_not_said_to_have_nothing_due(thrift: Run, server: Server) -> None:
    thrift("queue", "create", "mail")
    thrift("job", "enqueue", "mail", "a", "b")
    with Client(shards=dict.fromkeys("12", server.url)) as client:
        client.pause_queue("mail")
    ran = thrift("job", "dequeue", "mail", "--dry-run")
    assert ran.code == DONE
    assert ran.out.startswith("queue mail: a dequeue gives none of its due jobs now (2); the queue may be paused ")
    assert thrift("job", "dequeue", "other", "--dry-run").out == "queue other has no due jobs\n"


def test_what_is_said_of_tls(run: Run, tmp_path: Path) -> None:
    """The advice is the last thing of each line: the server is there, and need not be started."""
    authority = Authority(tmp_path)
    ca = authority.files.certificate
    other = authority.sign("other", x509.SubjectAlternativeName([x509.DNSName("elsewhere.example")]))

    def said(url: str) -> str:
        ran = run("queue", "ls", "--url", url)
        assert ran.code == SERVER
        return ran.err

    with FakeServer(tls=tls_context(authority.files)) as fake:
        address = f"127.0.0.1:{fake.port}"
        unknown = said(f"thrifts://{address}")
        assert "CERTIFICATE_VERIFY_FAILED" in unknown
        assert unknown.endswith("the URL ends with ?ca=FILE, which has that authority\n")
        assert run("queue", "ls", "--url", f"thrifts://{address}?ca={ca}").code == DONE
    with FakeServer(tls=tls_context(other)) as fake:
        wrong = said(f"thrifts://127.0.0.1:{fake.port}?ca={ca}")
    assert wrong.endswith("; the host of the URL must be one that the certificate names\n")


def test_what_is_said_of_a_port_with_tls_and_of_one_without(run: Run, server: Server, tmp_path: Path) -> None:
    files = Authority(tmp_path).files
    with ThriftServer({"1": server.url}, tls_cert=str(files.certificate), tls_key=str(files.key)) as service:
        ran = run("queue", "ls", "--url", f"thrift://127.0.0.1:{service.port}")
    assert "; if the port takes TLS, the URL begins with thrifts://; else the log of the server may say why" in ran.err
    with ThriftServer({"1": server.url}) as service:
        ran = run("queue", "ls", "--url", f"thrifts://127.0.0.1:{service.port}")
    assert "if the port takes no TLS, the URL begins with thrift://" in ran.err


SCHEMES = "error: server URL: expected redis://, rediss://, unix://, embedded://"


@pytest.mark.parametrize(
    ("command", "url", "said"),
    [
        ("queue ls", "thirft://h", f"{SCHEMES}, thrift:// or thrifts://, got 'thirft://h'; did you mean 'thrift'?"),
        ("job count mail", "rdis://h", f"{SCHEMES}, thrift:// or thrifts://, got 'rdis://h'; did you mean 'redis'?"),
        (
            "doctor",
            "thirft://h",
            "error: server URL: expected redis://, rediss://, unix:// or embedded://, got 'thirft",
        ),
        ("queue ls", "thrift:/h", "error: server URL '(a malformed URL)': expected thrift://host:9010, "),
        ("queue info mail", "thrift:/h", "error: pinlater queue info is not on the Thrift interface; "),
    ],
)
def test_a_slip_in_a_url(run: Run, command: str, url: str, said: str) -> None:
    ran = run(*command.split(), "--url", url)
    assert ran.code == USAGE
    assert ran.err.startswith(said)
    assert "memory://" not in ran.err
    assert "connect()" not in ran.err


def test_a_url_that_can_not_be_read(run: Run) -> None:
    ran = run("--url", "thrift://ada:secret@host", "queue", "ls")
    assert ran.code == USAGE
    assert "expected thrift://host:9010" in ran.err
    assert "secret" not in ran.err
