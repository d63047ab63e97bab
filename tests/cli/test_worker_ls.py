"""`pinlater worker ls`: what it prints, and that `worker` without it still takes a handler.

Promises: shown on a real server. tests/running/test_seen_from_outside.py has real worker processes.
"""

from __future__ import annotations

import time
from typing import Any

import orjson

from pinlater import Client
from pinlater.cli.command_base import DONE, NO, USAGE
from pinlater.operations.workers import beat
from pinlater.store.keys import queue_key
from tests.support.cli_runs import Run, mail, run
from tests.support.servers import Server

__all__ = ["mail", "run"]  # fixtures


def say(server: Server, **record: Any) -> None:
    about = {"host": "web", "process": 7, "version": "1", "concurrency": 3, "started_ms": 5, "running": 0, "jobs": []}
    with Client(server.url) as client:
        queue_shard = client.session.queue_shards("mail")[0]
        client.run(lambda end: beat(queue_shard, "one", orjson.dumps({**about, **record}), b"0", end))


def test_no_process_is_no_error(run: Run, mail: str) -> None:
    assert run("worker", "ls") == (DONE, "no worker process has said anything in the last minute\n", "")
    assert run("worker", "ls", "--json").document == []


def test_tables_and_documents(run: Run, mail: str, server: Server) -> None:
    job = {"descriptor": "mail:s1:p1:1", "task": "shop.send", "attempt": 2, "claimed_ms": int(time.time() * 1000)}
    say(server, running=3, jobs=[job, {**job, "task": None}])
    shown = run("worker", "ls")
    head, row, _, _, first, second = shown.out.splitlines()
    assert head.split() == ["host", "process", "queues", "concurrency", "running", "version", "started", "last", "beat"]
    assert row.split()[:6] == ["web", "7", "mail", "3", "3", "1"]
    assert first.split()[:5] == ["mail:s1:p1:1", "shop.send", "2", "web", "7"]
    assert second.split()[1] == "-"
    assert shown.err == "1 job more; a process names the 10 that it holds longest\n"
    [found] = run("worker", "ls", "--json").document
    assert (found["jobs"][0], found["source"], found["queues"]) == (job, "one", ["mail"])


def test_a_process_that_missed_a_beat_may_be_dead(run: Run, mail: str, server: Server) -> None:
    say(server)
    assert "may be dead" not in run("worker", "ls").out
    with server.client() as raw:
        key = queue_key("mail", "1", "workers")
        value: Any = raw.hget(key, "one")
        raw.hset(key, "one", (int.from_bytes(value[:6], "big") - 40_000).to_bytes(6, "big") + value[6:])
    assert "silent, may be dead" in run("worker", "ls").out


def test_control_characters_never_reach_the_terminal(run: Run, mail: str, server: Server) -> None:
    evil = "\x1b[2J"
    job = {"descriptor": evil, "task": evil, "attempt": 1, "claimed_ms": 1}
    say(server, host=evil, version=evil, running=1, jobs=[job])
    shown = run("worker", "ls").out
    assert "\x1b" not in shown
    assert r"\x1b[2J" in shown


def test_queues_are_named_and_a_wrong_name_has_its_near_miss(run: Run, mail: str, server: Server) -> None:
    run("queue", "create", "other")
    say(server)
    assert [found["process"] for found in run("worker", "ls", "--queue", "mail", "--json").document] == [7]
    assert run("worker", "ls", "--queue", "other", "--json").document == []
    wrong = run("worker", "ls", "--queue", "mial")
    assert (wrong.code, wrong.err) == (NO, "error: queue 'mial': not found; did you mean 'mail'?\n")
    assert run("worker", "ls", "--queue", "no name").code == USAGE


def test_worker_still_takes_a_handler(run: Run, mail: str) -> None:
    missing = run("worker", "ls:handler", "--queue", "mail")
    assert (missing.code, "ls" in missing.err) == (USAGE, True)
    assert "pinlater worker ls" in run("worker", "--help").out
    assert "--queue" in run("worker", "ls", "--help").out
