"""The load of benches/locustfile.py: its shapes, its ledger of jobs, and short runs of each kind of users."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benches.load.run import thrift_service
from benches.load.shapes import SHAPES, Patience, target
from benches.load.tally import Ledger, Tally, read_body
from benches.support import serving
from tests.support.paths import ROOT
from tests.support.requirements import LOCUST, require

#: A user that takes one job and never acks it.
THIEF = """
from contextlib import nullcontext

import gevent
from benches.load.calls import ThriftCalls
from locust import User, task


class Thief(User):
    fixed_count = 1

    @task
    def steal(self):
        calls = ThriftCalls(self.environment.host, lambda method: nullcontext())
        while not calls.take("load", 1, [], lambda jobs: None):
            gevent.sleep(0.05)
        gevent.sleep(60)
"""
#: A client on the loop's thread, in a process that gevent has patched.
BESIDE_GEVENT = """
from gevent import monkey

monkey.patch_all()
import sys
import gevent
from gevent._hub_local import get_hub_if_exists
from benches.load.calls import Direct


async def hub():
    return get_hub_if_exists()


direct = Direct(sys.argv[1])
direct.run("create_queue", "q")
ticks = []
clock = gevent.spawn(lambda: [(gevent.sleep(0.01), ticks.append(1)) for _ in range(10)])
waits = gevent.spawn(direct.run, "dequeue", "q", wait=60)
clock.join()
descriptor = direct.run("enqueue", "q", b"job")
[job] = waits.get()
assert job.descriptor == descriptor and len(ticks) == 10
try:
    direct.run("enqueue", "unknown", b"job")
except Exception as error:
    print(type(error).__name__)
found = direct.loop.call(hub)
assert found is not gevent.get_hub() and not (found and found.started), found
direct.close()
"""

#: locust stops a user in the midst of a call.
STOPPED = """
import gevent
from gevent.event import Event
from benches.locustfile import unbroken

called, answered = Event(), Event()


@unbroken
def work(user):
    called.set()
    answered.wait()
    print("the call ended", flush=True)


user = gevent.spawn(work, None)
called.wait()
user.kill(block=False)
gevent.idle()
print("stopped", user.dead)
answered.set()
user.join()
"""


# the ledger


def issued(tally: Tally, count: int) -> list[int]:
    """The keys of jobs that were enqueued."""
    numbers, bodies = tally.issue(count)
    tally.enqueued(numbers)
    return [read_body(body)[0] for body in bodies]


def test_each_job_ran_once_in_whatever_process() -> None:
    producer, worker, ledger = Tally(), Tally(), Ledger()
    keys = issued(producer, 3)
    worker.ran(keys)
    worker.acked(keys)
    for each in (worker, producer, worker, producer):  # the acks come first, and a second report has nothing new
        ledger.merge(each.report(users=0))
    found = ledger.outcome()
    assert (found.enqueued, found.acked, found.is_once) == (3, 3, True)
    assert found.sentence.endswith("each ran once")
    assert "NOT" not in found.sentence


@pytest.mark.parametrize(
    ("ran", "acked", "wrong"),
    [([0, 1], [0], "lost"), ([0, 1, 1], [0, 1], "twice"), ([0, 1], [0, 1, 1], "twice"), ([], [], "lost")],
)
def test_a_job_that_did_not_run_once_is_counted(ran: list[int], acked: list[int], wrong: str) -> None:
    tally, ledger = Tally(), Ledger()
    keys = issued(tally, 2)
    tally.ran(keys[at] for at in ran)
    tally.acked(keys[at] for at in acked)
    ledger.merge(tally.report(users=0))
    found = ledger.outcome()
    assert getattr(found, wrong) == (1 if ran else 2)
    assert not found.is_once
    assert "NOT each ran once" in found.sentence


def test_a_job_of_a_failed_enqueue_may_run_or_not() -> None:
    tally, ledger = Tally(), Ledger()
    issued(tally, 1)
    _, [body, _] = tally.issue(2)
    tally.acked([tally.origin << 32, read_body(body)[0]])
    ledger.merge(tally.report(users=0))
    found = ledger.outcome()
    assert (found.unclear, found.lost, found.is_once) == (2, 0, True)


def test_a_job_that_nobody_enqueued_is_no_job_of_this_load() -> None:
    tally, ledger = Tally(), Ledger()
    [key] = issued(tally, 1)
    tally.acked([key])
    ledger.merge(tally.report(users=0))
    tally.acked([key + 1])
    ledger.merge(tally.report(users=0))
    assert ledger.outcome().stray == 1
    assert not ledger.outcome().is_once


def test_jobs_of_other_loads_are_counted_apart() -> None:
    tally, ledger = Tally(), Ledger()
    tally.acked([*issued(tally, 1), *issued(Tally(), 2), read_body(b"not of a load")[0]])
    ledger.merge(tally.report(users=0))
    found = ledger.outcome()
    assert (found.acked, found.foreign, found.is_once) == (1, 3, True)


def test_a_load_without_jobs_shows_nothing() -> None:
    ledger = Ledger()
    ledger.merge(Tally().report(users=0))
    assert not ledger.outcome().is_once


def test_idle_needs_a_new_report_of_each_process() -> None:
    one, other, ledger = Tally(), Tally(), Ledger()
    assert not ledger.is_idle(2)
    for each in (one, other):
        ledger.merge(each.report(users=0))
    assert ledger.is_idle(2)
    ledger.await_idle()
    assert not ledger.is_idle(2)
    ledger.merge(one.report(users=0))
    assert not ledger.is_idle(1)  # the other one counts, though locust has lost it
    ledger.merge(other.report(users=2))
    assert not ledger.is_idle(2)
    ledger.merge(other.report(users=0))
    assert ledger.is_idle(2)


# shapes


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_has_its_users_and_ends(shape: str) -> None:
    wanted = [target(shape, 40, 10, at_s) for at_s in range(10)]
    assert max(each.users for each in wanted if each) == 40
    assert None not in wanted
    assert target(shape, 40, 10, 10) is None


def test_the_shapes_differ() -> None:
    def users(shape: str) -> list[int]:
        return [each.users for at_s in (0, 5, 9) if (each := target(shape, 40, 10, at_s))]

    assert users("spike") == [10, 40, 10]
    assert users("sustained") == users("ramp") == [40, 40, 40]
    ramp, sustained = target("ramp", 40, 10, 0), target("sustained", 40, 10, 0)
    assert ramp is not None
    assert sustained is not None
    assert ramp.rate == 4
    assert sustained.rate > 40
    backlog = target("backlog", 40, 10, 0)
    assert backlog is not None
    assert backlog.roles == {"producer"}


def test_patience_ends_when_nothing_changes() -> None:
    patience = Patience(10)
    assert [patience.is_over(value, now_s) for value, now_s in [(1, 0), (1, 9), (2, 12), (2, 21), (2, 22)]] == [
        False,
        False,
        False,
        False,
        True,
    ]


# runs


def rows(out: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (out / "load_stats.csv").open() as table:
        return {(row["Type"], row["Name"]): row for row in csv.DictReader(table)}


@pytest.mark.thorough("load")
@pytest.mark.parametrize(
    ("kind", "more", "calls"),
    [
        ("thrift", [], {"enqueueJobs", "dequeueJobs"}),
        ("direct", ["--processes", "2", "--shape", "spike"], {"enqueue", "dequeue", "ack"}),
    ],
)
def test_a_short_load_of_each_kind(kind: str, more: list[str], calls: set[str], tmp_path: Path) -> None:
    require(LOCUST)
    command = [sys.executable, "benches/load/run.py", "--users", "10", "--seconds", "5", "--kind", kind, *more]
    ran = subprocess.run([*command, "--out", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    [said] = re.findall(r"^jobs: (\S+) enqueued, (\S+) acked in .*, each ran once$", ran.stdout, re.MULTILINE)
    assert said[0] == said[1]
    found = rows(tmp_path)
    assert calls <= {name for type_, name in found if type_ == kind}
    for name in ("enqueued", "ran"):
        assert f"{int(found['jobs', name]['Request Count']):,}" == said[0]
    requests = [int(row["Request Count"]) for (type_, _), row in found.items() if type_ == kind]
    assert int(found["", "Aggregated"]["Request Count"]) == sum(requests)
    assert "enqueued" in (tmp_path / "report.html").read_text("utf-8")
    assert (tmp_path / "load_stats_history.csv").stat().st_size > 0


@pytest.mark.thorough("load")
def test_a_lost_job_makes_the_load_fail(tmp_path: Path) -> None:
    require(LOCUST)
    (tmp_path / "thief.py").write_text(THIEF)
    files = f"benches/locustfile.py,{tmp_path / 'thief.py'}"
    load = ["--headless", "--users", "10", "--run-time", "3s", "--stop-timeout", "1"]
    with serving("valkey") as server, thrift_service(server.url, tmp_path / "server.log") as host:
        ran = subprocess.run(
            [sys.executable, "-m", "locust", "-f", files, "--host", host, *load],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert ran.returncode == 1, ran.stderr
    assert re.search(r"^jobs: .*, 1 lost, NOT each ran once$", ran.stdout, re.MULTILINE), ran.stdout


def test_the_client_beside_gevent_blocks_no_greenlet_and_is_not_patched(tmp_path: Path) -> None:
    require(LOCUST)
    with serving("valkey") as server:
        ran = subprocess.run(
            [sys.executable, "-c", BESIDE_GEVENT, server.url], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
    assert (ran.returncode, ran.stdout) == (0, "QueueNotFound\n"), ran.stderr


def test_a_user_that_is_stopped_ends_its_call() -> None:
    require(LOCUST)
    ran = subprocess.run([sys.executable, "-c", STOPPED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "stopped False\nthe call ended\n", ran.stderr
