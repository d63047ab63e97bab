"""Queues and jobs on the command line: every command, its JSON, and what people see."""

# ruff: noqa: F811 (fixtures are parameters)
from __future__ import annotations

import base64
import datetime
import os
import pty
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

from pinlater import Client, PinLater
from pinlater.cli import output
from pinlater.cli.command_base import DONE, NO, USAGE
from tests.support.cli_runs import Run, mail, run  # noqa: F401
from tests.support.servers import Server

# --- queues


def test_create_and_info(run: Run) -> None:
    ran = run("queue", "create", "mail", "--lease", "5s", "--priorities", "2", "--paused", "--json")
    assert ran.document["created"] is True
    assert ran.document["config"]["lease_ms"] == 5000
    shown = run("queue", "info", "mail", "--json").document
    assert shown["config"] == {**ran.document["config"], "priorities": 2, "paused": True}
    assert [row["priority"] for row in shown["priorities"]] == [1, 2]
    (shard,) = shown["shards"]
    assert (shard["shard"], shard["monitor_active"], shard["lost"], shard["error"]) == ("1", False, 0, "")
    assert shard["version"] > 0
    text = run("queue", "info", "mail").out
    assert "paused" in text
    assert "5 s" in text


def test_create_twice_leaves_the_configuration(run: Run, mail: str) -> None:
    again = run("queue", "create", mail)
    assert (again.code, again.out) == (DONE, "queue mail exists already\n")
    other = run("queue", "create", mail, "--priorities", "7")
    assert other.code == NO
    assert "priorities is 3; pinlater queue set changes it" in other.err
    assert run("queue", "info", mail, "--json").document["config"]["priorities"] == 3


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
        "paused_ms": 0,
        "refuse_enqueue": False,
        "open_when_empty": False,
        "rate": None,
        "burst": None,
        "max_running": None,
    }
    assert run("queue", "ls").out.splitlines() == [
        "queue    pending  scheduled  in progress  succeeded  failed  mode",
        "a              0          0            0          0       0  paused",
        "b_queue        2          0            0          0       0  open",
    ]


def test_set(run: Run, mail: str) -> None:
    assert run("queue", "set", mail, "--paused", "--lease", "1s", "--json").document["config"]["paused"] is True
    assert run("queue", "set", mail, "--no-paused").out == "queue mail: paused = False\n"
    assert run("queue", "info", mail, "--json").document["config"]["lease_ms"] == 1000
    nothing = run("queue", "set", mail)
    assert nothing.code == USAGE
    assert "--lease" in nothing.err
    assert run("queue", "set", mail, "--priorities", "1").code == USAGE


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
        assert [job.body for job in client.dequeue(mail, 10)] == [
            b"one",
            b"two",
            b"of stdin",
            b"\xff\x00",
            b"of a file\n",
        ]


def test_enqueue_options(run: Run, mail: str) -> None:
    options = ("--priority", "2", "--delay", "1h", "--attempts", "5", "--status", "by hand", "--key", "k")
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
    assert "1,000 jobs enqueued before; not enqueued, or uncertain: lines 1,001 to 1,501" in ran.err


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
    options = ("--failed", "--status", "boom", "--delay", "1h")
    assert run("job", "ack", claim, *options).out == f"{descriptor} failed\n"
    info = run("job", "lookup", descriptor, "--json").document
    assert (info["attempts_remaining"], info["status"], info["state"]) == (1, "boom", "pending")


def test_a_list_shows_the_newest_error_and_not_the_end_of_its_traceback(run: Run, mail: str) -> None:
    run("job", "enqueue", mail, "x", "--status", "old\nKeyError: 'to'\n  attempt 2 of 2\n    raise KeyError('to')")
    assert run("job", "ls", mail).out.rstrip().endswith("KeyError: 'to'")


def test_dequeue_for_people(run: Run, mail: str) -> None:
    assert run("job", "dequeue", mail).out == "queue mail has no due jobs\n"
    run("job", "enqueue", mail, "later", "--delay", "1h")
    assert run("job", "dequeue", mail).out == "queue mail has no due jobs; 1 job due later\n"
    run("job", "enqueue", mail, "esc\x1b[2J", "b")
    dry = run("job", "dequeue", mail, "--dry-run", "--json").document
    assert (dry["token"], dry["claim"]) == ("", "")
    ran = run("job", "dequeue", mail)
    claim = ran.out.split()[1]
    assert "esc\\x1b[2J" in ran.out
    assert ran.err == f"held for 30 s; next: pinlater job ack {claim}\n"
    run("job", "enqueue", mail, "c", "d")
    several = run("job", "dequeue", mail, "--limit", "3")
    command = several.err.partition("next: pinlater ")[2].split()
    assert run(*command).code == DONE
    assert run("job", "count", mail, "--json").document["in_progress"] == 1
    assert run("job", "ack", claim).code == DONE
    run("queue", "set", mail, "--paused")
    assert "paused (pinlater queue resume mail)" in run("job", "dequeue", mail, "--wait", "0.01").out


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
    assert len(run("job", "lookup", descriptor, descriptor, "--json").documents) == 1
    missing = run("job", "lookup", descriptor, "mail:s1:p1:7", "--json")
    assert missing.code == NO
    assert missing.document["descriptor"] == descriptor
    assert missing.err.startswith("error: mail:s1:p1:7: not found")
    assert "2 of 2 left" in run("job", "lookup", descriptor).out


def test_ls_jobs(run: Run, mail: str) -> None:
    assert run("job", "ls", mail).out == "queue mail: no pending jobs\n"
    run("job", "enqueue", mail, *"abc")
    run("job", "enqueue", mail, "later", "--delay", "1h")
    assert [each["body"] for each in run("job", "ls", mail, "--body", "--json").documents] == ["c", "b", "a"]
    shown = run("job", "ls", mail, "--limit", "2")
    assert len(shown.out.splitlines()) == 3
    assert "there are more" in shown.err
    assert len(run("job", "ls", mail, "--future", "--json").documents) == 1
    refused = run("job", "ls", mail, "--future", "--state", "failed")
    assert (refused.code, refused.out) == (USAGE, "")
    assert "--future: expected with --state pending, got failed" in refused.err
    run("job", "dequeue", mail, "--limit", "3")
    assert run("job", "ls", mail).out == "queue mail: no pending jobs; 1 job due later: --future\n"
    heading, row, *_ = run("job", "ls", mail, "--state", "in_progress").out.splitlines()
    assert "claimed by" in heading
    assert f"  python:{socket.gethostname()}:" in row
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
    assert run("job", "retry", mail, "--limit", "1").out == "queue mail: 1 job enqueued again, 1 failed job remains\n"
    assert run("job", "retry", mail, "--delay", "1h", "--json").document == {"retried": 1, "failed": 0}


def test_rm_jobs(run: Run, mail: str) -> None:
    first, second, *_ = _fail(run, mail, "a", "b", "c", "d")
    assert run("job", "rm", first, second, "--json").document == {"removed": 2}
    assert run("job", "rm", first).code == NO
    removed = run("job", "rm", "--queue", mail, "--state", "failed", "--limit", "1", "--yes")
    assert (removed.code, removed.out) == (DONE, "queue mail: 1 job removed, 1 failed job remains\n")
    rest = run("job", "rm", "--queue", mail, "--state", "failed", "--json", "--yes")
    assert (rest.code, rest.document) == (DONE, {"removed": 1, "failed": 0})
    run("job", "enqueue", mail, "now")
    run("job", "enqueue", mail, "later", "--delay", "1h")
    pending = run("job", "rm", "--queue", mail, "--state", "pending", "--limit", "1", "--yes")
    assert pending.out == "queue mail: 1 job removed, 1 pending job remains\n"
    assert run("job", "count", mail, "--json").document["failed"] == 0


# --- tasks

STATES = ("pending", "in_progress", "succeeded", "failed")


@pytest.fixture
def tasks(server: Server, mail: str) -> dict[str, str]:
    """Descriptors by state, each of a task's job, and one of a plain body that is pending."""
    with PinLater(server.url) as app, Client(server.url) as client:

        @app.task(queue=mail, name="mail.send", attempts=1)
        def send(to: str, *, subject: str = "", n: int = 0) -> None: ...

        client.configure_queue(mail, keep_succeeded=10)
        for number in range(3):
            send.enqueue("ada", n=number)
        _, second, third = client.dequeue(mail, 3)
        client.ack(succeeded=[second], failed=[third])
        send.enqueue("ada", subject="x" * 3000)
        client.enqueue(mail, b"plain")
        return {state: next(client.scan(mail, state)).descriptor for state in STATES}


def test_jobs_of_tasks_are_listed_with_task_and_arguments_in_every_state(
    run: Run, mail: str, tasks: dict[str, str]
) -> None:
    for state in STATES:
        heading, *rows = run("job", "ls", mail, "--state", state).out.splitlines()
        assert "task" in heading.split(), state
        assert "mail.send" in rows[-1], state
        assert "arguments" not in heading
        listed = run("job", "ls", mail, "--state", state, "--json").documents
        assert [(each.get("task"), "args" in each, "body_base64" in each) for each in listed][-1] == (
            "mail.send",
            False,
            False,
        )
    heading, row = run("job", "ls", mail, "--state", "failed", "--body").out.splitlines()
    assert heading.split()[-1] == "arguments"
    assert row.endswith("'ada', n=2")
    [failed] = run("job", "ls", mail, "--state", "failed", "--body", "--json").documents
    assert (failed["args"], failed["kwargs"]) == (["ada"], {"n": 2})
    assert base64.b64decode(failed["body_base64"]).endswith(msgpack.packb([["ada"], {"n": 2}]))
    heading, *rows = run("job", "ls", mail, "--body").out.splitlines()
    assert sorted(row.split()[-1] for row in rows) == ["plain", f"subject='{'x' * 43}…"]


def test_a_lookup_shows_task_and_arguments(run: Run, mail: str, server: Server, tasks: dict[str, str]) -> None:
    shown = run("job", "lookup", tasks["failed"]).out
    assert [line.split(maxsplit=1) for line in shown.splitlines()[1:3]] == [
        ["task", "mail.send"],
        ["arguments", "'ada', n=2"],
    ]
    document = run("job", "lookup", tasks["failed"], "--json").document
    assert (document["task"], document["args"], document["kwargs"]) == ("mail.send", ["ada"], {"n": 2})
    with Client(server.url) as client:
        [long] = [each.descriptor for each in client.scan(mail, with_body=True) if each.body != b"plain"]
    clipped = run("job", "lookup", long).out.splitlines()[2]
    assert clipped.endswith("…")
    assert len(clipped) < 1100
    assert "x" * 3000 in run("job", "lookup", long, "--body").out
    assert "binary" not in run("job", "lookup", long, "--body").out


def test_a_claimed_job_of_a_task_is_shown_as_a_call(run: Run, mail: str, tasks: dict[str, str]) -> None:
    assert "mail.send('ada', subject='xx" in run("job", "dequeue", mail, "--dry-run").out
    assert "mail.send('ada', subject='xx" in run("job", "dequeue", mail, "--limit", "2", "--dry-run").out


def _envelope(document: bytes, version: int = 1, codec: int = 1) -> bytes:
    return bytes([0xFE, version, codec, 1]) + b"t" + document


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


NEW_YEAR = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ODD = {
    "a newer version": _envelope(msgpack.packb([[]]), version=2),
    "cut off": _envelope(msgpack.packb([[1, 2]])[:-1]),
    "no envelope": b"\xff\x00",
    "no words of JSON": _envelope(msgpack.packb([[b"\xff", NEW_YEAR, float("nan"), {b"k": {1: 2}}]], datetime=True)),
    "an unknown type": _envelope(msgpack.packb([[msgpack.ExtType(9, b"x")]])),
    "nested": _envelope(msgpack.packb([[_nested(400)]])),
    "nested more": _envelope(b"[[" + b"[" * 900 + b"]" * 900 + b"]]", codec=2),
    "a name that is no text": bytes([0xFE, 1, 1, 1]) + b"\xff" + msgpack.packb([[]]),
    "what moves a cursor": _envelope(msgpack.packb([["\x1b[31m\n"]])),
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_no_body_is_too_odd_to_be_shown(run: Run, mail: str, body: bytes) -> None:
    with Client(os.environ["PINLATER_URL"]) as client:
        descriptor = client.enqueue(mail, body)
    for command in (("job", "lookup", descriptor), ("job", "ls", mail), ("job", "dequeue", mail, "--dry-run")):
        for options in ((), ("--json",), ("--body",), ("--body", "--json")):
            if command[1] == "dequeue" and "--body" in options:
                continue
            ran = run(*command, *options)
            assert (ran.code, ran.err) == (DONE, ""), (command, options)
            assert "\x1b" not in ran.out


def test_arguments_that_json_has_no_words_for() -> None:
    assert output.as_json([b"\xff", NEW_YEAR, {b"k": (1, None)}, object]) == [
        "/w==",
        "2026-01-01T00:00:00+00:00",
        {"b'k'": [1, None]},
        "<class 'object'>",
    ]
    assert "…" in str(output.as_json(_nested(400)))
