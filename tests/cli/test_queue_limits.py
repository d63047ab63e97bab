"""Limits, pauses and drains on the command line: what is set, what is shown, and what an empty dequeue says.

Promises: each is run as a user runs it. Risks: times that are shown are compared by pattern.
"""

# ruff: noqa: F811 (fixtures are parameters)
from __future__ import annotations

import getpass
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pinlater import Client, InvalidArgument, NewJob, QueueConfig
from pinlater.cli import queue_stops
from pinlater.cli.command_base import DONE, INTERRUPTED, NO, USAGE
from pinlater.store.keys import queue_key
from tests.conftest import FreshServer
from tests.support.cli_runs import Run, mail, run  # noqa: F401
from tests.support.servers import Server, wait_until

BY_HAND = "pinlater queue set mail --no-refuse-enqueue"
HOUR_MS = 3_600_000


def mode(run: Run) -> str:
    """The last column of `queue ls`."""
    return re.split(r"  +", run("queue", "ls").out.splitlines()[1])[-1]


def facts(run: Run, queue: str = "mail") -> dict[str, str]:
    """The names and values of `queue info`."""
    lines = [re.split(r"  +", line, maxsplit=1) for line in run("queue", "info", queue).out.splitlines()]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def config(run: Run, queue: str = "mail") -> dict[str, Any]:
    found: dict[str, Any] = run("queue", "info", queue, "--json").document["config"]
    return found


# --- settings


def test_a_rate_and_its_burst(run: Run, mail: str) -> None:
    assert run("queue", "set", mail, "--rate", "100/s", "--burst", "20").out == (
        "queue mail: rate = 100/s, burst = 20\n"
    )
    assert mode(run) == "100/s"
    assert {key: config(run)[key] for key in ("rate", "burst", "home")} == {"rate": "100/s", "burst": 20, "home": "1"}
    assert facts(run)["rate"] == "100/s, burst 20"
    assert run("queue", "set", mail, "--burst", "none", "--json").document["config"]["burst"] is None
    assert facts(run)["rate"] == "100/s, burst 100"
    assert run("queue", "set", mail, "--rate", "5/m").code == DONE
    assert run("queue", "ls", "--json").document[0]["rate"] == "5/m"
    assert facts(run)["rate"] == "5/m, burst 1"
    assert re.fullmatch(r"\d now, 0 granted; 0 processes asked in the last minute", facts(run)["tokens"])
    assert facts(run)["home shard"] == "1 (without it claims rest)"
    run("queue", "set", mail, "--run-on-home-loss")
    assert facts(run)["home shard"] == "1 (without it claims go on with a share of the rate)"
    assert run("queue", "set", mail, "--rate", "none").out == "queue mail: rate = none\n"
    assert mode(run) == "open"
    assert not {"rate", "tokens", "home shard"} & set(facts(run))


def test_max_running(run: Run, mail: str) -> None:
    assert run("queue", "set", mail, "--max-running", "10").out == "queue mail: max_running = 10\n"
    assert mode(run) == "max 10"
    run("job", "enqueue", mail, "a", "b", "c")
    run("job", "dequeue", mail, "--limit", "2")
    assert facts(run)["in progress"] == "2 of 10"
    assert run("queue", "info", mail, "--json").document["limits"]["running"] == 2
    assert run("queue", "set", mail, "--max-running", "none").out == "queue mail: max_running = none\n"
    assert mode(run) == "open"


def test_limits_from_the_start(run: Run) -> None:
    given = ("queue", "create", "mail", "--rate", "100/s", "--max-running", "3", "--home", "1")
    assert run(*given).code == DONE
    assert run(*given).code == DONE  # what was asked for
    assert run("queue", "create", "mail", "--rate", "0.1/ms").code == USAGE
    assert run("queue", "create", "mail", "--rate", "6000/m").code == DONE  # the same rate
    ran = run("queue", "create", "mail", "--rate", "1/s", "--burst", "7")
    assert ran.code == NO
    assert "not changed: rate is 100/s, burst is none; pinlater queue set changes it" in ran.err


def test_a_rate_of_0_pauses(run: Run, mail: str) -> None:
    run("job", "enqueue", mail, "x")
    assert run("queue", "set", mail, "--rate", "0").code == DONE
    assert mode(run) == "rate 0"
    assert run("job", "dequeue", mail).out == (
        "queue mail gives no jobs: its rate is 0 (pinlater queue set mail --rate RATE)\n"
    )
    ran = run("queue", "resume", mail)
    assert ran.out == "queue mail is not paused\n"
    assert ran.err == "it gives no jobs, as its rate is 0: pinlater queue set mail --rate RATE\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--rate -1/s", "rate: expected jobs in a time such as 100/s, 5/m, .*; got '-1/s'"),
        ("--rate nan", "rate: expected jobs in a time .*; got 'nan'"),
        ("--rate inf", "rate: expected jobs in a time .*; got 'inf'"),
        ("--rate 4611686018427387904", "rate: expected jobs in a time .*; got '4611686018427387904'"),
        ("--rate 1000001", "rate: expected at most 1,000,000 jobs a second, got '1000001'"),
        ("--rate 5/fortnight", "rate: expected jobs in a time .*; got '5/fortnight'"),
        ("--rate 1/0s", "rate: expected jobs in a time .*; got '1/0s'"),
        ("--burst 5", "burst: expected a rate beside it, got a burst of 5 alone"),
        ("--rate none --burst 5", "burst: expected a rate beside it, got a burst of 5 alone"),
        ("--rate 1/s --burst -1", "burst: expected an integer from 1 to 1,000,000, got -1"),
        ("--rate 1/s --burst 4611686018427387904", "burst: expected an integer from 1 to 1,000,000, got 4611"),
        ("--rate 1/s --burst x", "'--burst': 'x' is not a valid integer"),
        ("--max-running 0", "max_running: expected an integer from 1 to 4,294,967,295, got 0"),
        ("--max-running 4611686018427387904", "max_running: expected an integer from 1 to 4,294,967,295, got 4611"),
        ("--home nowhere", "home: expected one of the shards 1, got 'nowhere'"),
        ("--rate 5/s --home nowhere", "home: expected one of the shards 1, got 'nowhere'"),
        ("--lease none", "'--lease': expected a time such as 30s, 5m, 2h or 1d, or seconds, got 'none'"),
    ],
)
def test_a_bad_limit_changes_nothing(run: Run, mail: str, options: str, said: str) -> None:
    before = run("queue", "info", mail, "--json").document["shards"]
    ran = run("queue", "set", mail, *options.split())
    assert ran.code == USAGE
    [line] = ran.err.splitlines()
    assert re.search(".*".join(map(re.escape, said.split(".*"))), line)
    assert run("queue", "info", mail, "--json").document["shards"] == before


def test_max_running_on_a_queue_that_is_spread(run: Run, server: Server) -> None:
    with Client(f"2={server.url}") as client:
        client.create_queue("mail")
        client.enqueue("mail", b"x")
    both = ("--shard", f"1={server.url}", "--shard", f"2={server.url}")
    before = run("queue", "info", "mail", *both, "--json").document["shards"]
    ran = run("queue", "set", "mail", "--max-running", "3", "--home", "1", *both)
    assert ran.code == USAGE
    assert ran.err == (
        "error: max_running: expected all jobs on the home shard 1, got 1 on shard 2: "
        "the queue is spread over its shards until it is empty\n"
    )
    assert run("queue", "info", "mail", *both, "--json").document["shards"] == before


# --- why a dequeue gives nothing


def test_a_dequeue_names_the_limit(run: Run, mail: str) -> None:
    run("job", "enqueue", mail, "a", "b", "c")
    run("queue", "set", mail, "--rate", "1/h")
    rests = r"queue mail gives no job now: its rate is 1/h, and the next token comes in (1 h|[\d.]+ min)\n"
    assert re.fullmatch(rests, run("job", "dequeue", mail).out)
    run("queue", "set", mail, "--rate", "none", "--max-running", "1")
    assert run("job", "dequeue", mail).out.startswith("claim ")
    full = "queue mail has 1 job in progress, and max_running is 1\n"
    assert run("job", "dequeue", mail).out == full
    run("queue", "pause", mail, "--for", "1h")
    paused = r"queue mail is paused (1 h|[\d.]+ min) more, by \S+@\S+ \(pinlater queue resume mail\)\n"
    assert re.fullmatch(paused, run("job", "dequeue", mail).out)
    run("queue", "pause", mail)
    assert run("job", "dequeue", mail).out == "queue mail is paused (pinlater queue resume mail)\n"
    run("queue", "resume", mail)
    assert run("job", "dequeue", mail).out == full
    run("queue", "purge", mail, "--yes")
    assert run("job", "dequeue", mail).out == "queue mail has no due jobs\n"
    run("job", "enqueue", mail, "x", "--delay", "1h")
    assert run("job", "dequeue", mail).out == "queue mail has no due jobs; 1 job due later\n"


def test_a_dequeue_names_a_home_that_is_away(run: Run, server: Server) -> None:
    server_of_home = f"2={server.url}"
    with Client(f"1={server.url},{server_of_home}") as client:
        client.create_queue("mail", QueueConfig(rate="5/s", home="2"))
    with Client(server.url) as client, pytest.raises(InvalidArgument, match="its limits count on shard '2'"):
        client.dequeue("mail")
    ran = run("job", "dequeue", "mail")
    assert ran.code == USAGE
    assert ran.err.endswith("its limits count on shard '2': expected that shard among 1\n")
    assert facts(run)["tokens"] == "unknown: the home shard is not among the shards of this command"


def test_a_dequeue_names_a_home_that_does_not_answer(run: Run, fresh_server: FreshServer) -> None:
    here, home = fresh_server(), fresh_server()
    shards = f"1={here.url},2={home.url}"
    with Client(shards) as client:
        client.create_queue("mail", QueueConfig(rate="5/s", home="2"))
    with Client(here.url) as client:
        client.enqueue("mail", b"x")
    home.stop()
    ran = run("job", "dequeue", "mail", "--url", shards, "--timeout", "2s")
    assert ran.out == "queue mail gives no jobs: shard 2, which counts for its limits, does not answer\n"


# --- pause and resume


def test_pause_and_resume(run: Run, mail: str) -> None:
    assert run("queue", "pause", mail).out == "queue mail is paused; pinlater queue resume mail ends it\n"
    assert mode(run) == "paused"
    assert facts(run)["paused"] == "until pinlater queue resume mail"
    assert run("queue", "resume", mail).out == "queue mail is not paused\n"
    assert mode(run) == "open"
    assert run("queue", "pause", mail, "--for", "1h").out == "queue mail is paused for 1 h\n"
    assert re.fullmatch(r"paused (1 h|[\d.]+ min) more", mode(run))
    assert re.fullmatch(r"(1 h|[\d.]+ min) more, since \S+ \([^)]*\), by \S+@\S+", facts(run)["paused"])
    limits = run("queue", "info", mail, "--json").document["limits"]
    assert limits["paused_by"] == f"{getpass.getuser()}@{socket.gethostname()}"
    assert 0 < run("queue", "ls", "--json").document[0]["paused_ms"] <= HOUR_MS
    shorter = run("queue", "pause", mail, "--for", "1s").out
    assert re.fullmatch(r"queue mail is paused for .*: an earlier pause ends later\n", shorter)
    assert run("queue", "resume", mail, "--json").document == {"queue": mail, "paused": False, "paused_ms": 0}
    assert run("queue", "pause", mail, "--json").document == {"queue": mail, "paused": True, "paused_ms": None}
    assert run("queue", "info", mail, "--json").document["limits"]["paused_ms"] == 0


def test_who_pauses_may_have_no_name(run: Run, mail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert run("queue", "pause", mail, "--for", "1h").code == DONE
    assert facts(run)["paused"].endswith(f"by somebody@{socket.gethostname()}")


def test_who_paused_cannot_write_to_the_terminal(run: Run, server: Server, mail: str) -> None:
    with Client(server.url) as client:
        client.pause_queue(mail, 60, by="\x1b[31mada")
        client.enqueue(mail, b"x")
    assert facts(run)["paused"].endswith(r"by \x1b[31mada")
    assert r"by \x1b[31mada (" in run("job", "dequeue", mail).out


@pytest.mark.parametrize("verb", ["pause", "resume", "drain"])
def test_an_unknown_queue(run: Run, mail: str, verb: str) -> None:
    ran = run("queue", verb, "mial")
    assert (ran.code, ran.err) == (NO, "error: queue 'mial': not found; did you mean 'mail'?\n")


# --- drain


def test_an_empty_queue_is_drained_at_once(run: Run, mail: str) -> None:
    ran = run("queue", "drain", mail)
    assert (ran.code, ran.out) == (DONE, "queue mail was empty and is open\n")
    assert config(run) == {**config(run), "refuse_enqueue": False, "open_when_empty": False}
    ran = run("queue", "drain", mail, "--stay-closed")
    assert (ran.code, ran.out) == (DONE, "queue mail is empty and refuses new jobs\n")
    assert mode(run) == "enqueue refused"
    assert run("queue", "drain", mail, "--json").document["open"] is True


def test_a_drain_waits_for_what_runs(run: Run, server: Server, mail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_stops, "LOOK_S", 0.01)
    with Client(server.url) as client:
        client.enqueue_many(mail, [b"x"] * 3)

        def work() -> None:
            wait_until(lambda: client.queue_config(mail).refuse_enqueue, "a queue that is drained")
            while held := client.dequeue(mail):
                client.ack(succeeded=held)

        worker = threading.Thread(target=work)
        worker.start()
        ran = run("queue", "drain", mail)
        worker.join()
        assert (ran.code, ran.out) == (DONE, "queue mail was empty and is open\n")
        assert client.queue_config(mail) == QueueConfig()


def test_a_drain_that_takes_too_long(run: Run, server: Server, mail: str) -> None:
    with Client(server.url) as client:
        client.enqueue_many(mail, [b"x", b"y", NewJob(b"z", delay_ms=HOUR_MS)])
        client.dequeue(mail)
    ran = run("queue", "drain", mail, "--wait", "0")
    assert (ran.code, ran.out) == (NO, "")
    assert ran.err == (
        "error: queue mail: 3 jobs left (1 pending, 1 due later, 1 in progress); it refuses new jobs; "
        "a monitor (a worker runs one, and none is active now) opens it once it is empty; "
        f"by hand: {BY_HAND}\n"
    )
    assert mode(run) == "draining"
    assert facts(run)["draining"] == "3 jobs left, then it accepts new jobs again"
    until_ms = server.time_ms() + 60_000
    server.call("HSET", queue_key(mail, "1", "meta"), "monitor", b"monitor." + until_ms.to_bytes(6, "big"))
    assert "; its monitor opens it once it is empty; by hand: " in run("queue", "drain", mail, "--wait", "0.1s").err
    ran = run("queue", "drain", mail, "--wait", "0", "--stay-closed")
    assert ran.err.endswith(f"; it refuses new jobs; {BY_HAND} opens it\n")
    assert mode(run) == "enqueue refused"
    ran = run("queue", "drain", mail, "--wait", "0", "--json")
    assert (ran.code, ran.document["open"], ran.document["in_progress"]) == (NO, False, 1)


def test_a_queue_that_could_not_be_opened_yet(run: Run, mail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_now(*_: object) -> Iterator[None]:
        yield from ()

    monkeypatch.setattr(queue_stops, "open_if_empty", not_now)
    ran = run("queue", "drain", mail, "--wait", "0")
    assert ran.code == NO
    assert ran.err.startswith("error: queue mail: empty, but not opened yet; it refuses new jobs; a monitor ")


def test_a_paused_queue_is_not_drained_by_waiting(run: Run, mail: str) -> None:
    run("job", "enqueue", mail, "x")
    run("queue", "pause", mail)
    first, last = run("queue", "drain", mail, "--wait", "0").err.splitlines()
    assert first == "queue mail is paused, so its jobs do not run: pinlater queue resume mail"
    assert last.startswith("error: queue mail: 1 job left (1 pending)")


@pytest.mark.parametrize("stay_closed", [False, True])
def test_somebody_else_opens_it(
    run: Run, server: Server, mail: str, monkeypatch: pytest.MonkeyPatch, stay_closed: bool
) -> None:
    with Client(server.url) as client:
        client.enqueue(mail, b"x")
        monkeypatch.setattr(queue_stops, "LOOK_S", 0.01)

        def open_it() -> None:
            wait_until(lambda: client.queue_config(mail).refuse_enqueue, "a queue that is drained")
            client.configure_queue(mail, refuse_enqueue=False)

        other = threading.Thread(target=open_it)
        other.start()
        ran = run("queue", "drain", mail, *["--stay-closed"] * stay_closed)
        other.join()
    if stay_closed:
        assert (ran.code, ran.err) == (NO, "error: queue mail: somebody opened it meanwhile\n")
    else:
        assert (ran.code, ran.out) == (DONE, "queue mail is open again, with 1 job\n")


def test_ctrl_c_says_who_opens_it(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("mail")
        client.enqueue("mail", b"x")
        command = [sys.executable, "-m", "pinlater", "--url", server.url, "queue", "drain", "mail"]
        # a test that runs in the background has SIGINT ignored, and so would its children
        with subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as drain:
            wait_until(lambda: client.queue_config("mail").refuse_enqueue, "a queue that is drained")
            drain.send_signal(signal.SIGINT)
            _, said = drain.communicate(timeout=30)
        assert drain.returncode == INTERRUPTED
        assert said.splitlines()[0] == (
            "queue mail refuses new jobs; a monitor (a worker runs one, and none is active now) opens it once it is "
            f"empty; by hand: {BY_HAND}"
        )
        assert client.queue_config("mail").open_when_empty is True


def test_a_pause_without_length_is_wrong_usage(run: Run, mail: str) -> None:
    ran = run("queue", "pause", mail, "--for", "0")
    assert (ran.code, ran.out) == (USAGE, "")
    assert "--for: expected a time above 0, such as 10m" in ran.err


def test_the_setting_does_not_end_a_pause_that_ends_by_itself(run: Run, mail: str) -> None:
    run("queue", "pause", mail, "--for", "1h")
    ran = run("queue", "set", mail, "--no-paused")
    assert re.search(r"a pause goes on for (1 h|[\d.]+ min): pinlater queue resume mail ends it\n", ran.out + ran.err)
