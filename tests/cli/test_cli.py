"""The command line as a whole against real servers: usage, exit codes, errors, roles, and the words for people."""

# ruff: noqa: F811 (fixtures are parameters)
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinlater import Client, CountsByState, NewJob, QueueConfig
from pinlater.cli.command_base import DONE, NO, SERVER, UNKNOWN, USAGE, CommandFailed, explain
from pinlater.cli.output import duration, moment, preview, size
from pinlater.model.errors import (
    OutcomeUnknown,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
    QueueNotFound,
    ServerFull,
)
from tests.conftest import FreshServer
from tests.support.cli_runs import Run, mail, run  # noqa: F401
from tests.support.servers import Server, free_port, wait_until

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
    ("arguments", "message"),
    [
        (["queeu"], "did you mean 'queue'"),
        (["job", "cont"], "did you mean 'count'"),
        (["queue", "create", "x", "--leese", "1s"], "--lease"),
        (["queue", "create"], "Missing argument 'NAME'"),
        (["queue", "create", "a-b"], "expected 1 to 255 letters, digits or underscores, got 'a-b'"),
        (["queue", "create", "x", "--priorities", "0"], "priorities: expected an integer from 1 to 100, got 0"),
        (["--timeout", "0", "queue", "ls"], "--timeout"),
        (["--shard", "nonsense", "queue", "ls"], "expected NAME=URL"),
        (
            ["--url", "http://x", "queue", "ls"],
            "expected redis://, rediss://, unix://, embedded://, thrift:// or thrifts://, got 'http://x'",
        ),
        (["--url", "redis://x", "--shard", "1=redis://y", "queue", "ls"], "expected a URL or shards, got both"),
        (["job", "ack", "mail:s1:p1:7"], "expected descriptor@token"),
        (["job", "ack", "mail:s1:p1:7@00", "--failed"], "expected descriptor@token"),
        (["job", "ack", "mail:s1:p1:7@0000000000000001", "--delay", "5s"], "expected together with --failed"),
        (["job", "lookup", "nonsense"], "nonsense"),
        (["job", "retry", "nonsense:1"], "nonsense:1"),
        (["job", "retry", "a", "b"], "expected one queue, or descriptors, got a, b"),
        (["job", "rm"], "expected descriptors, or --queue and --state"),
        (["job", "rm", "--queue", "mail"], "expected descriptors, or --queue and --state"),
        (["job", "rm", "mail:s1:p1:7", "--limit", "3"], "--limit: expected with --queue, got descriptors"),
        (["job", "retry", "mail:s1:p1:7", "--limit", "3"], "expected with a queue, got descriptors"),
        (["job", "ls", "mail", "--state", "failed", "--future"], "--future: expected with --state pending"),
        (["job", "dequeue", "mail", "--limit", "0"], "0 is not in the range"),
        (["job", "enqueue", "mail", "body", "--lines"], "got both"),
        (["job", "enqueue", "mail", "--file", "/there/is/none"], "No such file"),
        (["worker", "nocolon", "--queue", "mail"], "expected module:function, got 'nocolon'"),
        (["worker", "m:f", "--queue", "mail", "--concurrency", "0"], "concurrency: expected an integer"),
    ],
)
def test_wrong_usage_is_one_line_and_2(run: Run, arguments: list[str], message: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (USAGE, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert message.lower() in ran.err.lower()


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


@pytest.mark.parametrize(("noun", "verb"), [("queue", "create"), ("job", "enqueue")])
def test_a_noun_alone_names_its_verbs(run: Run, noun: str, verb: str) -> None:
    ran = run(noun)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: pinlater {noun}: expected a verb: ")
    assert verb in ran.err
    assert ran.err.count("\n") == 1


def test_an_unknown_outcome_is_4() -> None:
    error = OutcomeUnknown("enqueue of queue 'mail': sent, but no answer came in time", lambda _: None)
    message, code = explain(error)
    assert code == UNKNOWN
    assert "check before you repeat it" in message
    assert explain(PartialEnqueue(["mail:s1:p1:7", error]))[1] == UNKNOWN
    assert explain(PartialEnqueue(["mail:s1:p1:7", ServerFull("full")]))[1] == SERVER


def test_every_error_has_an_exit_code() -> None:
    def below(kind: type[PinLaterError]) -> list[type[PinLaterError]]:
        return [kind, *(each for child in kind.__subclasses__() for each in below(child))]

    in_parts = (PartialEnqueue, PartialOutcome)  # these go by what is in them
    codes = {kind.__name__: explain(kind.__new__(kind))[1] for kind in below(PinLaterError) if kind not in in_parts}
    assert set(codes.values()) <= {NO, USAGE, SERVER, UNKNOWN}
    assert codes["QueueNotFound"] == codes["EnqueueRefused"] == NO
    failed = [(["job"], QueueNotFound("gone"))]
    assert explain(PartialOutcome("in part", [], ["another"], failed)) == ("in part", NO)
    unknown = [(["job"], OutcomeUnknown("lost", lambda _: None))]
    assert explain(PartialOutcome("in part", [], ["another"], failed, unknown)) == ("in part", UNKNOWN)


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
    with pytest.raises(CommandFailed, match="queue 'none': not found"):
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
        "error: queue 'none': not found; pinlater queue create none creates it, pinlater queue ls lists all queues\n"
    )


def test_a_closed_pipe_is_no_error(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
        client.enqueue_many("mail", [b"x" * 100] * 5000)
    listing = f"{sys.executable} -m pinlater --url {server.url} job ls mail --limit 5000 --json | head -n 1"
    ended = subprocess.run(["sh", "-c", listing], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["state"] == "pending"
    assert ended.stderr == ""


def test_version(run: Run, server: Server) -> None:
    versions = run("version", "--json").document
    assert {"pinlater", "core", "python", "redis_py", "servers"} == set(versions)
    assert versions["servers"][server.url].lower().startswith(server.kind)
    assert "not reached" in run("version", "--url", f"redis://127.0.0.1:{free_port()}").out


# --- roles


@pytest.mark.parametrize("processes", [1, 2])
def test_worker(server: Server, tmp_path: Path, processes: int) -> None:
    (tmp_path / "handlers.py").write_text("def done(job):\n    assert job.body == b'good', 'no good'\n")
    command = [sys.executable, "-m", "pinlater", "worker", "handlers:done", "--queue", "mail", "--json"]
    environment = {**os.environ, "PINLATER_URL": server.url}
    with Client(server.url) as client:
        client.create_queue("mail")
        client.enqueue_many("mail", [NewJob(body, attempts=1) for body in (b"good", b"bad")])
        with subprocess.Popen(
            [*command, "--processes", str(processes)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            started = 0
            while started < processes:  # a signal before that would end a process that can not take it yet
                line = process.stderr.readline()
                assert line, "the worker ended"
                started += "working on mail" in line
            wait_until(lambda: client.count("mail") == CountsByState(failed=1), "one job done, one failed")
            process.terminate()
            out, _ = process.communicate(timeout=30)
        assert process.returncode == DONE
        assert json.loads(out.splitlines()[-1]) == {"role": "worker", "exit_code": 0}


def test_monitor_runs_until_a_signal(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail", QueueConfig())
    command = [sys.executable, "-m", "pinlater", "--url", server.url, "-vv", "monitor", "--queue", "mail"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        with server.client() as watcher:
            wait_until(lambda: watcher.hget("pl:{mail/1}:meta", "monitor"), "an active monitor")
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
    assert [size(n) for n in (0, 1023, 1024, 1_572_864, 3 * 1024**3)] == [
        "0 bytes",
        "1023 bytes",
        "1 KiB",
        "1.5 MiB",
        "3 GiB",
    ]
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
