"""What others see of worker processes: `pinlater worker ls`, and the metrics of queues.

Promises: shown with real processes.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from pinlater import Client, PinLater, QueueConfig
from pinlater.tasks.runner import TaskStats
from pinlater.worker.stats import counts_of, in_words
from tests.support.cli_runs import Run, run
from tests.support.run_processes import DEADLINE_S, AppRun, Start, app, client, start
from tests.support.servers import wait_until

__all__ = ["app", "client", "run", "start"]  # fixtures


def listed(run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("worker", "ls", "--json").document
    return found


def listed_with_jobs(run: Run, count: int = 1) -> list[dict[str, Any]]:
    """Waits until processes say that they run so many jobs."""
    wait_until(lambda: sum(each["running"] for each in listed(run)) == count, f"{count} running jobs", DEADLINE_S)
    return listed(run)


def test_a_lone_process_says_what_it_runs_until_it_stops(start: Start, app: PinLater, run: Run) -> None:
    handle = app.send("wait", "gate")
    process = start("--queues", "default", "--concurrency", "7")
    [found] = listed_with_jobs(run)
    [job] = found["jobs"]
    assert (found["process"], found["queues"], found["concurrency"]) == (process.process.pid, ["default"], 7)
    assert (job["descriptor"], job["task"], job["attempt"]) == (handle.descriptor, "wait", 1)
    assert found["host"] == os.uname().nodename
    assert found["version"]
    shown = run("worker", "ls").out
    assert f"{handle.descriptor}  wait" in shown
    assert "may be dead" not in shown
    (process.folder / "gate").touch()
    process.noted("waited")
    assert process.end() == 0
    assert listed(run) == []
    assert run("worker", "ls").out == "no worker process has said anything in the last minute\n"


@pytest.mark.thorough("processes")
def test_a_killed_process_stays_listed_beside_its_successor(start: Start, app: PinLater, run: Run) -> None:
    app.send("wait", "gate")
    supervisor = start("--processes", "2")
    [(_, killed)] = supervisor.noted("waits")
    before = {each["process"] for each in listed_with_jobs(run)}
    assert killed in before
    assert supervisor.process.pid not in before
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(listed(run)) == 3, "the successor", DEADLINE_S)
    assert {each["process"] for each in listed(run)} > before
    [dead] = [each for each in listed(run) if each["process"] == killed]
    assert [job["task"] for job in dead["jobs"]] == ["wait"]


def test_a_handler_that_keeps_the_loop_busy_delays_no_beat(start: Start, app: PinLater, run: Run) -> None:
    handle = app.send("spin", "gate")
    process = start("--queues", "default")
    [found] = listed_with_jobs(run)
    assert [job["descriptor"] for job in found["jobs"]] == [handle.descriptor]
    (process.folder / "gate").touch()


@pytest.mark.thorough("processes")
def test_ten_jobs_are_named_and_the_others_counted(start: Start, app: PinLater, run: Run) -> None:
    app.by_name("wait").enqueue_many([("gate",)] * 15)
    start("--queues", "default", "--concurrency", "15")
    [found] = listed_with_jobs(run, 15)
    assert len(found["jobs"]) == 10
    assert "5 jobs more" in run("worker", "ls").err


def queue_metrics(process: AppRun) -> list[str]:
    return [line for line in process.get("/metrics")[1].splitlines() if line.startswith("pinlater_queue_")]


@pytest.mark.thorough("processes")
def test_one_process_shows_the_metrics_of_a_queue(start: Start, app: PinLater, client: Client, run: Run) -> None:
    first = start("--queues", "default", "--http", "127.0.0.1:0")
    wait_until(lambda: bool(queue_metrics(first)), "its metrics", DEADLINE_S)
    second = start("--queues", "default", "--http", "127.0.0.1:0", "--processes", "2")
    wait_until(lambda: second.get("/readyz")[0] == 200, "the other process", DEADLINE_S)
    wait_until(lambda: len(listed(run)) == 3, "the processes of both", DEADLINE_S)
    assert queue_metrics(second) == []
    assert {line.rpartition(" ")[0] for line in queue_metrics(first)} == {
        *(f'pinlater_queue_jobs{{queue="default",shard="1",state="{state}"}}' for state in STATES),
        'pinlater_queue_oldest_due_seconds{queue="default",shard="1"}',
    }


STATES = ("pending", "scheduled", "running", "failed")


def test_a_supervisor_shows_how_long_the_oldest_due_job_waits(start: Start, app: PinLater, client: Client) -> None:
    app.send("note", "x")
    client.create_queue("late")
    client.enqueue("late", b"body", run_after_ms=1)
    client.configure_queue("late", paused=True)
    process = start("--queues", "late", "--processes", "2", "--http", "127.0.0.1:0")
    wait_until(lambda: bool(queue_metrics(process)), "its metrics", DEADLINE_S)
    values = dict(line.rsplit(" ", 1) for line in queue_metrics(process))
    assert values['pinlater_queue_jobs{queue="late",shard="1",state="pending"}'] == "1"
    assert float(values['pinlater_queue_oldest_due_seconds{queue="late",shard="1"}']) > 1e9


@pytest.mark.thorough("processes")
def test_the_last_line_of_a_process_names_the_tasks_that_crashed(start: Start, app: PinLater, client: Client) -> None:
    client.create_queue("default", QueueConfig(lease_ms=600_000, crash_limit=1))
    supervisor = start("--processes", "2", "--log-format", "json")
    handle = app.send("die")
    supervisor.logged(f"job {handle.descriptor}: task die failed for good")
    assert supervisor.end() == 0
    stops = [line for line in supervisor.json_lines() if " stopped: " in line["message"]]
    [line] = [line for line in stops if line["crashed"]]
    assert line["crashed"] == {"die": 1}
    assert line["message"].endswith(" stopped: 1 crashed ('die')")


def test_the_last_line_counts_newer_envelopes_by_version() -> None:
    counts = counts_of(TaskStats(newer=Counter({2: 3})))
    assert counts["newer"] == {"2": 3}
    assert in_words(counts) == "3 newer ('2')"
