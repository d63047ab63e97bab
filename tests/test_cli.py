"""The command line against real servers: every command, its JSON, its exit codes, and what it says when something is wrong."""

from __future__ import annotations

import base64
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pinlater import Client, QueueConfig
from pinlater.cli import main
from pinlater.cli.commands import DONE, NO, SERVER, UNKNOWN, USAGE, explain
from pinlater.cli.output import duration, moment, preview, size
from pinlater.errors import OutcomeUnknown, PartialEnqueue, PinLaterError, ServerFull
from tests.conftest import FreshServer
from tests.servers import Server, free_port


class Ran(NamedTuple):
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document it printed."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        """The JSON documents it printed, a line each."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def run(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run(*arguments, stdin=b"")` on the session's server, which PINLATER_URL names."""
    monkeypatch.setenv("PINLATER_URL", server.url)
    monkeypatch.delenv("PINLATER_DEBUG", raising=False)

    def run(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(arguments)
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def mail(run: Run) -> str:
    """A queue."""
    assert run("queue", "create", "mail").code == DONE
    return "mail"


# --- the whole


def test_pinlater_alone_names_the_first_commands(run: Run) -> None:
    ran = run()
    assert ran.code == DONE
    assert [line.split()[1:3] for line in ran.out.splitlines() if line.startswith("  pinlater")] == [
        ["queue", "create"],
        ["job", "enqueue"],
        ["job", "dequeue"],
    ]


def test_help_names_the_exit_codes(run: Run) -> None:
    ran = run("--help")
    assert ran.code == DONE
    assert all(f"{code} " in ran.out for code in (DONE, NO, USAGE, SERVER, UNKNOWN))
    assert "outcome unknown" in ran.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["queeu"], "did you mean 'queue'"),
        (["job", "cont"], "did you mean 'count'"),
        (["queue", "create", "x", "--leese-ms", "1"], "--lease-ms"),
        (["queue", "create"], "Missing argument 'NAME'"),
        (["queue", "create", "a-b"], "expected 1 to 255 letters, digits or underscores, got 'a-b'"),
        (["queue", "create", "x", "--levels", "0"], "levels: expected an integer from 1 to 100, got 0"),
        (["--timeout", "0", "queue", "ls"], "--timeout"),
        (["--shard", "nonsense", "queue", "ls"], "expected NAME=URL"),
        (["--url", "http://x", "queue", "ls"], "expected redis://, rediss://, unix:// or embedded://, got 'http://x'"),
        (["--url", "redis://x", "--shard", "1=redis://y", "queue", "ls"], "expected a URL or shards, got both"),
        (["job", "ack", "mail:s1:p1:7"], "expected descriptor@token"),
        (["job", "ack", "mail:s1:p1:7@00", "--failed"], "expected descriptor@token"),
        (["job", "ack", "mail:s1:p1:7@0000000000000001", "--delay-ms", "5"], "expected together with --failed"),
        (["job", "lookup", "nonsense"], "nonsense"),
        (["job", "retry", "nonsense:1"], "nonsense:1"),
        (["job", "retry", "a", "b"], "expected one queue, or descriptors, got a, b"),
        (["job", "rm"], "expected descriptors, or --queue and --state"),
        (["job", "rm", "--queue", "mail"], "expected descriptors, or --queue and --state"),
        (["job", "enqueue", "mail", "body", "--lines"], "got both"),
        (["job", "enqueue", "mail", "--file", "/there/is/none"], "No such file"),
        (["worker", "nocolon", "--queue", "mail"], "expected module:function, got 'nocolon'"),
        (["worker", "m:f", "--queue", "mail", "--concurrency", "0"], "concurrency: expected an integer"),
    ],
)
def test_wrong_usage_is_one_line_and_2(run: Run, arguments: list[str], told: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert told.lower() in ran.err.lower()


def test_no_server_is_3_and_hides_the_password(run: Run) -> None:
    ran = run("--url", f"redis://:canary@127.0.0.1:{free_port()}", "queue", "ls")
    assert (ran.code, ran.out) == (SERVER, "")
    assert "not reached" in ran.err
    assert "--url" in ran.err
    assert "canary" not in ran.err


def test_a_refused_login_is_3(run: Run, server: Server) -> None:
    ran = run("--url", f"redis://:wrong@127.0.0.1:{server.port}", "queue", "ls")
    assert ran.code == SERVER
    assert "login refused" in ran.err
    assert "wrong@" not in ran.err


def test_an_unknown_outcome_is_4() -> None:
    error = OutcomeUnknown("enqueue of queue 'mail': sent, but no answer came in time", lambda _: None)
    told, code = explain(error)
    assert code == UNKNOWN
    assert "look before you repeat it" in told
    assert explain(PartialEnqueue(["mail:s1:p1:7", error]))[1] == UNKNOWN
    assert explain(PartialEnqueue(["mail:s1:p1:7", ServerFull("full")]))[1] == SERVER


def test_every_error_has_an_exit_code() -> None:
    def below(kind: type[PinLaterError]) -> list[type[PinLaterError]]:
        return [kind, *(each for child in kind.__subclasses__() for each in below(child))]

    codes = {kind.__name__: explain(kind.__new__(kind))[1] for kind in below(PinLaterError)}
    assert set(codes.values()) <= {NO, USAGE, SERVER, UNKNOWN}
    assert codes["QueueNotFound"] == codes["EnqueueRefused"] == NO


def test_a_frozen_server_is_4_within_the_timeout(run: Run, fresh_server: FreshServer) -> None:
    server = fresh_server()
    assert run("--url", server.url, "queue", "create", "mail").code == DONE
    with Client(server.url) as client:
        assert client.count("mail").pending == 0
    server.call("CLIENT", "PAUSE", 3_600_000, "WRITE")
    try:
        ran = run("--url", server.url, "--timeout", "0.2", "job", "enqueue", "mail", "x")
    finally:
        server.call("CLIENT", "UNPAUSE")
    assert (ran.code, ran.out) == (UNKNOWN, "")
    assert "no answer came in time" in ran.err


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINLATER_DEBUG", "1")
    with pytest.raises(PinLaterError):
        run("queue", "info", "none")


def test_options_may_stand_after_the_command(run: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINLATER_URL", f"redis://127.0.0.1:{free_port()}")
    assert run("queue", "create", "mail", "--url", server.url).code == DONE
    assert run("--json", "queue", "ls", "--shard", f"1={server.url}").document[0]["queue"] == "mail"


def test_the_installed_command_and_the_module_are_the_same(server: Server) -> None:
    command = [sys.executable, "-m", "pinlater", "--url", server.url, "queue", "info", "none"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (NO, "")
    assert ended.stderr == (
        "error: queue 'none': not found; pinlater queue create none makes it, pinlater queue ls lists what is there\n"
    )


def test_a_closed_pipe_is_no_error(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
        client.enqueue_many("mail", [b"x" * 100] * 5000)
    listing = f"{sys.executable} -m pinlater --url {server.url} job ls mail --limit 5000 --json | head -n 1"
    ended = subprocess.run(["bash", "-c", listing], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["state"] == "pending"
    assert ended.stderr == ""


def test_version(run: Run, server: Server) -> None:
    versions = run("version", "--json").document
    assert {"pinlater", "core", "python", "redis_py", "servers"} == set(versions)
    assert versions["servers"][server.url].lower().startswith(server.kind)
    assert "not reached" in run("version", "--url", f"redis://127.0.0.1:{free_port()}").out


# --- queues


def test_create_and_info(run: Run) -> None:
    ran = run("queue", "create", "mail", "--lease-ms", "5000", "--levels", "2", "--paused", "--json")
    assert ran.document["created"] is True
    assert ran.document["config"]["lease_ms"] == 5000
    shown = run("queue", "info", "mail", "--json").document
    assert shown["config"] == {**ran.document["config"], "levels": 2, "paused": True}
    assert [level["priority"] for level in shown["priorities"]] == [1, 2]
    (shard,) = shown["shards"]
    assert (shard["shard"], shard["monitor_active"], shard["lost"], shard["error"]) == ("1", False, 0, "")
    assert shard["version"] > 0
    text = run("queue", "info", "mail").out
    assert "paused" in text
    assert "5 s" in text


def test_create_twice_leaves_the_configuration(run: Run, mail: str) -> None:
    again = run("queue", "create", mail)
    assert (again.code, again.out) == (DONE, "queue mail was there already\n")
    other = run("queue", "create", mail, "--levels", "7")
    assert other.code == NO
    assert "levels is 3; pinlater queue set changes it" in other.err
    assert run("queue", "info", mail, "--json").document["config"]["levels"] == 3


def test_ls(run: Run) -> None:
    assert "pinlater queue create" in run("queue", "ls").out
    assert run("queue", "ls", "--json").document == []
    run("queue", "create", "b_queue")
    run("queue", "create", "a", "--paused")
    run("job", "enqueue", "b_queue", "1", "2")
    assert run("queue", "ls", "--json").document[1] == {
        "queue": "b_queue",
        "pending": 2,
        "scheduled": 0,
        "in_progress": 0,
        "succeeded": 0,
        "failed": 0,
        "paused": False,
    }
    assert run("queue", "ls").out.splitlines() == [
        "queue    pending  scheduled  in progress  succeeded  failed  mode",
        "a              0          0            0          0       0  paused",
        "b_queue        2          0            0          0       0  open",
    ]


def test_set(run: Run, mail: str) -> None:
    assert run("queue", "set", mail, "--paused", "--lease-ms", "1000", "--json").document["config"]["paused"] is True
    assert run("queue", "set", mail, "--no-paused").out == "queue mail: paused = False\n"
    assert run("queue", "info", mail, "--json").document["config"]["lease_ms"] == 1000
    nothing = run("queue", "set", mail)
    assert nothing.code == USAGE
    assert "--lease-ms" in nothing.err
    assert run("queue", "set", mail, "--levels", "1").code == USAGE


def test_an_unknown_queue_is_answered_with_the_nearest_name(run: Run, mail: str) -> None:
    for arguments in (("queue", "info"), ("job", "count"), ("job", "ls"), ("job", "dequeue"), ("job", "enqueue")):
        ran = run(*arguments, "mial", stdin=b"x")
        assert (ran.code, ran.out) == (NO, "")
        assert ran.err == "error: queue 'mial': not found; did you mean 'mail'?\n"


@pytest.mark.parametrize("verb", ["purge", "rm"])
def test_purge_and_rm_need_a_yes(run: Run, mail: str, verb: str) -> None:
    run("job", "enqueue", mail, "1", "2")
    refused = run("queue", verb, mail)
    assert refused.code == USAGE
    assert "2 jobs" in refused.err
    assert "--yes" in refused.err
    done = run("queue", verb, mail, "--yes", "--json")
    assert done.document == {"queue": mail, **({"removed": 2} if verb == "purge" else {"deleted": True})}
    assert [each["queue"] for each in run("queue", "ls", "--json").document] == (["mail"] if verb == "purge" else [])


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", NO), (b"y\n", DONE)])
def test_on_a_terminal_a_deletion_is_asked_about(server: Server, answer: bytes, code: int) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        command = [sys.executable, "-m", "pinlater", "--url", server.url, "queue", "rm", "mail"]
        ended = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=False)
        os.close(ours)
        os.close(theirs)
        assert ended.returncode == code
        assert "Delete queue mail and its 0 jobs for good? [y/N]" in ended.stderr
        assert client.queue_names() == ([] if code == DONE else ["mail"])


# --- putting in


def test_enqueue_bodies_from_everywhere(run: Run, mail: str, tmp_path: Path, server: Server) -> None:
    (tmp_path / "body").write_bytes(b"of a file\n")
    first = run("job", "enqueue", mail, "one", "two")
    assert first.code == DONE
    assert all(line.startswith("mail:s1:p1:") for line in first.out.splitlines())
    run("job", "enqueue", mail, stdin=b"of stdin")
    run("job", "enqueue", mail, "--file", "-", stdin=b"\xff\x00")
    assert len(run("job", "enqueue", mail, "--file", str(tmp_path / "body"), "--json").document["descriptor"]) > 10
    with Client(server.url) as client:
        assert [job.body for job in client.dequeue(mail, 10)] == [b"one", b"two", b"of stdin", b"\xff\x00", b"of a file\n"]


def test_enqueue_options(run: Run, mail: str) -> None:
    options = ("--priority", "2", "--delay-ms", "3600000", "--attempts", "5", "--status", "by hand", "--key", "k")
    descriptor = run("job", "enqueue", mail, "x", *options, "--json").document["descriptor"]
    info = run("job", "lookup", descriptor, "--json").document
    assert (info["priority"], info["attempts_allowed"], info["status"], info["state"]) == (2, 5, "by hand", "pending")
    assert info["run_after_ms"] - info["created_ms"] >= 3_600_000
    assert run("job", "enqueue", mail, "x", "--priority", "9").code == USAGE


def test_enqueue_lines(run: Run, mail: str, server: Server) -> None:
    lines = b"".join(b"line %d\r\n" % number for number in range(2500)) + b"\n\nlast"
    assert run("job", "enqueue", mail, "--lines", stdin=lines).out == "queue mail: 2,501 jobs enqueued\n"
    with Client(server.url) as client:
        bodies = [job.body for job in client.dequeue(mail, 3000)]
    assert bodies == [b"line %d" % number for number in range(2500)] + [b"last"]
    assert len(run("job", "enqueue", mail, "--lines", "--json", stdin=b"a\nb\n").documents) == 2


def test_enqueue_lines_says_where_it_stopped(run: Run) -> None:
    run("queue", "create", "mail", "--body-limit", "10")
    ran = run("job", "enqueue", "mail", "--lines", stdin=b"short\n" * 1500 + b"much too long\n")
    assert ran.code == USAGE
    assert "1,000 jobs enqueued before; uncertain or not in: lines 1,001 to 1,501" in ran.err


def test_a_refused_enqueue_is_1(run: Run, mail: str) -> None:
    run("queue", "set", mail, "--refuse-enqueue")
    ran = run("job", "enqueue", mail, "x")
    assert (ran.code, ran.out) == (NO, "")
    assert "takes no new jobs" in ran.err


# --- claiming and ending


def test_dequeue_and_ack(run: Run, mail: str) -> None:
    run("job", "enqueue", mail, "text", "--status", "s")
    run("job", "enqueue", mail, "--file", "-", stdin=b"\xff")
    text, binary = run("job", "dequeue", mail, "--limit", "5", "--json").documents
    assert (text["body"], text["attempt"], text["attempts_allowed"], text["queue"]) == ("text", 1, 2, mail)
    assert base64.b64decode(binary["body_base64"]) == b"\xff"
    assert text["claim"] == f"{text['descriptor']}@{text['token']}"
    acked = run("job", "ack", text["claim"], binary["claim"], "--json")
    assert (acked.code, acked.document) == (DONE, {"succeeded": [text["claim"], binary["claim"]], "refused": []})
    again = run("job", "ack", text["claim"])
    assert (again.code, again.out) == (NO, "")
    assert "refused" in again.err


def test_ack_failed_and_release(run: Run, mail: str) -> None:
    descriptor = run("job", "enqueue", mail, "x", "--json").document["descriptor"]
    claim = run("job", "dequeue", mail, "--json").document["claim"]
    assert run("job", "release", claim).out == f"{descriptor} released\n"
    claim = run("job", "dequeue", mail, "--json").document["claim"]
    options = ("--failed", "--status", "boom", "--delay-ms", "3600000")
    assert run("job", "ack", claim, *options).out == f"{descriptor} failed\n"
    info = run("job", "lookup", descriptor, "--json").document
    assert (info["attempts_remaining"], info["status"], info["state"]) == (1, "boom", "pending")


def test_dequeue_for_people(run: Run, mail: str) -> None:
    assert run("job", "dequeue", mail).out == "queue mail has no due jobs\n"
    run("job", "enqueue", mail, "later", "--delay-ms", "3600000")
    assert run("job", "dequeue", mail).out == "queue mail has no due jobs; 1 job due later\n"
    run("job", "enqueue", mail, "esc\x1b[2J", "b")
    dry = run("job", "dequeue", mail, "--dry-run", "--json").document
    assert (dry["token"], dry["claim"]) == ("", "")
    ran = run("job", "dequeue", mail)
    claim = ran.out.split()[1]
    assert "esc\\x1b[2J" in ran.out
    assert ran.err == f"held for 30 s; next: pinlater job ack {claim}\n"
    assert run("job", "ack", claim).code == DONE
    run("queue", "set", mail, "--paused")
    assert "paused (pinlater queue set mail --no-paused)" in run("job", "dequeue", mail, "--wait", "0.01").out


# --- looking


def test_lookup(run: Run, mail: str) -> None:
    descriptor = run("job", "enqueue", mail, "hello", "--json").document["descriptor"]
    info = run("job", "lookup", descriptor, "--body", "--json").document
    assert set(info) == {
        "descriptor",
        "state",
        "priority",
        "attempts_allowed",
        "attempts_remaining",
        "status",
        "created_ms",
        "run_after_ms",
        "updated_ms",
        "crashes",
        "claim",
        "body",
    }
    missing = run("job", "lookup", descriptor, "mail:s1:p1:7", "--json")
    assert missing.code == NO
    assert missing.document["descriptor"] == descriptor
    assert missing.err.startswith("error: mail:s1:p1:7: not found")
    assert "2 of 2 left" in run("job", "lookup", descriptor).out


def test_ls_jobs(run: Run, mail: str) -> None:
    assert run("job", "ls", mail).out == "queue mail: no pending jobs\n"
    run("job", "enqueue", mail, *"abc")
    run("job", "enqueue", mail, "later", "--delay-ms", "3600000")
    assert [each["body"] for each in run("job", "ls", mail, "--body", "--json").documents] == ["c", "b", "a"]
    shown = run("job", "ls", mail, "--limit", "2")
    assert len(shown.out.splitlines()) == 3
    assert "there are more" in shown.err
    assert len(run("job", "ls", mail, "--future", "--json").documents) == 1
    assert "no pending jobs; 1 job due later: --future" in run("job", "ls", mail, "--priority", "1", "--state", "pending").out
    run("job", "dequeue", mail)
    assert "claimed by" in run("job", "ls", mail, "--state", "in_progress").out
    assert run("job", "ls", mail, "--state", "gone").code == USAGE


def test_count(run: Run, mail: str) -> None:
    run("job", "enqueue", mail, "a", "--priority", "2")
    assert run("job", "count", mail, "--json").document["pending"] == 1
    assert run("job", "count", mail, "--priority", "1", "--json").document["pending"] == 0
    assert run("job", "count", mail).out.splitlines() == [
        "pending  scheduled  in progress  succeeded  failed",
        "      1          0            0          0       0",
    ]


# --- bringing back and removing


def _fail(run: Run, queue: str, *bodies: str) -> list[str]:
    """Jobs that failed for good; their descriptors."""
    run("job", "enqueue", queue, *bodies, "--attempts", "1")
    claimed = run("job", "dequeue", queue, "--limit", "100", "--json").documents
    assert run("job", "ack", *(job["claim"] for job in claimed), "--failed").code == DONE
    return [job["descriptor"] for job in claimed]


def test_retry(run: Run, mail: str) -> None:
    descriptors = _fail(run, mail, "a", "b", "c")
    named = run("job", "retry", descriptors[0], "--attempts", "4", "--json")
    assert (named.code, named.document) == (DONE, {"retried": 1})
    assert run("job", "lookup", descriptors[0], "--json").document["attempts_remaining"] == 4
    assert run("job", "retry", descriptors[0]).code == NO
    assert run("job", "retry", mail, "--limit", "1").out == "queue mail: 1 job put back in line, 1 job failed remain\n"
    assert run("job", "retry", mail, "--delay-ms", "3600000", "--json").document == {"retried": 1, "failed": 0}


def test_rm_jobs(run: Run, mail: str) -> None:
    first, second, *_ = _fail(run, mail, "a", "b", "c", "d")
    assert run("job", "rm", first, second, "--json").document == {"removed": 2}
    assert run("job", "rm", first).code == NO
    removed = run("job", "rm", "--queue", mail, "--state", "failed", "--limit", "1")
    assert (removed.code, removed.out) == (DONE, "1 job removed\n")
    assert run("job", "count", mail, "--json").document["failed"] == 1


# --- roles


HANDLER = """
import os, signal
def done(job):
    with open(os.environ["DONE"], "ab") as file:
        file.write(job.body)
    if job.body == b"last":
        os.kill(os.getppid() if os.environ.get("PARENT") else os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_worker(server: Server, tmp_path: Path, processes: int) -> None:
    (tmp_path / "handlers.py").write_text(HANDLER)
    with Client(server.url) as client:
        client.create_queue("mail")
        client.enqueue_many("mail", [b"first", b"last"])
        command = [sys.executable, "-m", "pinlater", "worker", "handlers:done", "--queue", "mail", "--concurrency", "1"]
        environment = {**os.environ, "PINLATER_URL": server.url, "DONE": str(tmp_path / "done")}
        if processes > 1:
            environment["PARENT"] = "yes"
        ended = subprocess.run(
            [*command, "--processes", str(processes), "--json"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode == DONE, ended.stderr
        assert json.loads(ended.stdout.splitlines()[-1]) == {"role": "worker", "exit_code": 0}
        assert (tmp_path / "done").stat().st_size == len(b"firstlast")
        assert client.count("mail").pending == client.count("mail").in_progress == 0


def test_monitor_runs_until_a_signal(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail", QueueConfig())
    command = [sys.executable, "-m", "pinlater", "--url", server.url, "-vv", "monitor", "--queue", "mail"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        with server.client() as watcher:
            from tests.servers import wait_until

            wait_until(lambda: watcher.hget("pl:{mail/1}:m", "o"), "an active monitor")
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == DONE


def test_demo_refuses_a_folder_that_is_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ran = run("demo", str(tmp_path / "file"), "--output", str(tmp_path / "out"))
    assert ran.code == USAGE
    assert "folder" in ran.err


# --- what people see


def test_words_for_sizes_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [size(n) for n in (0, 1023, 1024, 1_572_864, 3 * 1024**3)] == ["0 bytes", "1023 bytes", "1 KiB", "1.5 MiB", "3 GiB"]
    assert [duration(ms) for ms in (0, 250, 30_000, 90_000, 86_400_000, 604_800_000)] == [
        "0 ms",
        "250 ms",
        "30 s",
        "1.5 min",
        "1 day",
        "7 days",
    ]
    monkeypatch.setattr("pinlater.cli.output.time.time", lambda: 1_800_000_000.0)
    assert moment(None) == "-"
    assert moment(1_800_000_000_000 - 5000).endswith("(5 s ago)")
    assert moment(1_800_000_000_000 + 172_800_000).endswith("(in 2 days)")
    assert moment(2**44 - 1).startswith("2527-")


def test_previews_move_no_cursor() -> None:
    assert preview("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert preview(b"\xff\x00") == "(2 bytes of binary)"
    assert preview("x" * 100, 10) == "x" * 9 + "…"
