"""`job ls`, `job retry` and `job rm` with --task, --error, --since and --until."""

# ruff: noqa: F811 (fixtures are parameters)
from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from pinlater import Client, PinLater
from pinlater.cli import job_filter
from pinlater.cli.command_base import DONE, NO, USAGE
from pinlater.cli.job_filter import last_error
from pinlater.running.app_worker import worker_of
from tests.support.cli_runs import Run, run  # noqa: F401
from tests.support.servers import Server

QUEUE = "shop"


@pytest.fixture
def failed(server: Server, run: Run) -> Iterator[dict[str, list[str]]]:
    """The descriptors of failed jobs, by task."""
    with PinLater(server.url) as app:

        @app.task(name="mail", queue=QUEUE, attempts=1)
        def mail(to: str) -> None:
            try:
                raise TimeoutError("smtp is slow")
            except TimeoutError as error:
                raise ValueError(to) from error

        @app.task(name="report", queue=QUEUE, attempts=1)
        def report() -> None:
            raise KeyError("no data")

        async def work() -> None:
            async with worker_of(app) as worker:
                await worker.run(burst=True)

        enqueued = {
            "mail": [handle.descriptor for handle in mail.enqueue_many([("ada",), ("bob",)])],
            "report": [report.enqueue().descriptor],
        }
        asyncio.run(work())
        yield enqueued


def listed(run: Run, *options: str, state: str = "failed") -> set[str]:
    ran = run("job", "ls", QUEUE, "--state", state, "--json", *options)
    assert ran.code == DONE
    return {document["descriptor"] for document in ran.documents}


def test_ls(run: Run, failed: dict[str, list[str]]) -> None:
    (ada, bob), (report,) = failed["mail"], failed["report"]
    assert listed(run, "--task", "mail") == {ada, bob}
    assert listed(run, "--task", "mai") == set()
    assert listed(run, "--error", "ada") == {ada}
    assert listed(run, "--error", "smtp is slow") == {ada, bob}, "the cause"
    assert listed(run, "--error", "raise ") == set(), "the traceback is no part of the error"
    assert listed(run, "--task", "mail", "--error", "KeyError") == set()
    assert listed(run, "--since", "1h") == {ada, bob, report}
    assert listed(run, "--until", "1h") == set()
    assert listed(run, "--limit", "1", "--task", "report") == {report}
    assert listed(run, "--task", "report", state="pending") == set()


def test_times_are_those_of_the_last_update(run: Run, failed: dict[str, list[str]], server: Server) -> None:
    (report,) = failed["report"]
    with Client(server.url) as client:
        updated = client.lookup([report])[report].updated_ms
        others = [info.updated_ms for info in client.lookup(failed["mail"]).values()]

    def iso(ms: int) -> str:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")

    expected = {report} | {one for one, at in zip(failed["mail"], others, strict=True) if at == updated}
    assert listed(run, "--since", iso(updated), "--until", iso(updated + 1)) == expected
    assert listed(run, "--since", iso(max(updated, *others) + 1)) == set()
    assert listed(run, "--until", iso(min(updated, *others))) == set()


def test_ls_says_where_else_jobs_may_be(run: Run, failed: dict[str, list[str]]) -> None:
    shown = run("job", "ls", QUEUE, "--error", "smtp")
    assert shown.out == f"queue {QUEUE}: no pending jobs match; --future and --state failed look at others\n"
    assert (
        run("job", "ls", QUEUE, "--state", "failed", "--task", "x").out == f"queue {QUEUE}: no failed jobs of task x\n"
    )
    assert len(run("job", "ls", QUEUE, "--state", "failed", "--task", "mail").out.splitlines()) == 3


def test_retry(run: Run, failed: dict[str, list[str]]) -> None:
    dry = run("job", "retry", QUEUE, "--task", "mail", "--dry-run")
    assert dry.code == DONE
    assert all(each in dry.out for each in failed["mail"])
    assert failed["report"][0] not in dry.out
    assert dry.err == "dry run: 2 failed jobs would be enqueued again\n"
    assert len(listed(run)) == 3, "nothing was changed"
    first = run("job", "retry", QUEUE, "--task", "mail", "--limit", "1")
    assert first.out == f"queue {QUEUE}: 1 job enqueued again; more match: repeat the command\n"
    options = ("--task", "mail", "--delay", "1h", "--attempts", "3", "--json")
    assert run("job", "retry", QUEUE, *options).document == {"retried": 1, "more": False}
    (later,) = run("job", "ls", QUEUE, "--future", "--json").documents
    assert later["attempts_remaining"] == 3
    assert later["run_after_ms"] - later["updated_ms"] == 3_600_000
    assert listed(run) == set(failed["report"])
    assert run("job", "retry", QUEUE, "--task", "mail").out == f"queue {QUEUE}: no failed jobs of task mail\n"


def test_retry_takes_the_oldest_first(run: Run, failed: dict[str, list[str]], server: Server) -> None:
    with Client(server.url) as client:
        updates = client.lookup([*failed["mail"], *failed["report"]])
    dry = run("job", "retry", QUEUE, "--dry-run", "--limit", "2", "--json").documents
    in_order = sorted(updates.values(), key=lambda info: (info.updated_ms, info.descriptor))
    assert [each["descriptor"] for each in dry] == [info.descriptor for info in in_order[:2]]
    text = run("job", "retry", QUEUE, "--dry-run", "--limit", "2")
    assert text.err == "dry run: 2 failed jobs would be enqueued again, and more match (--limit)\n"


def test_retry_of_named_jobs_after_a_delay(run: Run, failed: dict[str, list[str]]) -> None:
    (report,) = failed["report"]
    assert run("job", "retry", report, "--delay", "1h").out == "1 job of 1 enqueued again\n"
    assert [each["descriptor"] for each in run("job", "ls", QUEUE, "--future", "--json").documents] == [report]
    assert run("job", "retry", report).code == NO


def test_rm_asks(run: Run, failed: dict[str, list[str]]) -> None:
    chosen = ("job", "rm", "--queue", QUEUE, "--state", "failed")
    for options, question in (
        ((), "3 failed jobs"),
        (("--task", "mail"), "2 failed jobs"),
        (("--limit", "1"), "1 failed job"),
    ):
        ran = run(*chosen, *options)
        assert ran.code == USAGE
        assert (
            f"Remove {question} of queue {QUEUE} for good? There is no terminal to ask on: confirm with --yes"
            in ran.err
        )
    assert len(listed(run)) == 3
    dry = run(*chosen, "--task", "mail", "--dry-run")
    assert dry.err == "dry run: 2 failed jobs would be removed\n"
    assert run(*chosen, "--task", "mail", "--yes").out == f"queue {QUEUE}: 2 jobs removed\n"
    assert listed(run) == set(failed["report"])


def test_rm_of_pending_jobs_has_the_scheduled_ones(run: Run) -> None:
    run("queue", "create", QUEUE)
    run("job", "enqueue", QUEUE, "now", "--status", "by hand")
    run("job", "enqueue", QUEUE, "later", "--status", "by hand", "--delay", "1h")
    run("job", "enqueue", QUEUE, "kept", "--status", "other")
    options = ("--queue", QUEUE, "--state", "pending", "--error", "by hand", "--yes", "--json")
    assert run("job", "rm", *options).document == {"removed": 2, "more": False}
    assert [each["status"] for each in run("job", "ls", QUEUE, "--json").documents] == ["other"]


def test_rm_keeps_a_job_that_changed_meanwhile(
    run: Run, failed: dict[str, list[str]], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(question: str, yes: bool) -> None:
        with Client(server.url) as client:  # while the user thinks
            assert client.retry_jobs(failed["mail"][:1]) == 1

    monkeypatch.setattr(importlib.import_module("pinlater.cli.job"), "confirm", confirm)
    ran = run("job", "rm", "--queue", QUEUE, "--state", "failed", "--task", "mail")
    assert ran.out == f"queue {QUEUE}: 1 job removed\n"
    assert listed(run, state="pending") == set(failed["mail"][:1])


def test_filters_are_for_queues(run: Run) -> None:
    for options in (("--task", "x"), ("--error", "x"), ("--since", "1h"), ("--until", "1h"), ("--dry-run",)):
        for verb, queue in (("retry", "a queue"), ("rm", "--queue")):
            ran = run("job", verb, "mail:s1:p1:7", *options)
            assert ran.code == USAGE
            assert f"--since, --until and --dry-run: expected with {queue}, got descriptors" in ran.err


def test_a_long_scan_goes_page_by_page(run: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_filter, "SCAN_PAGE", 2)
    run("queue", "create", QUEUE)
    for status in "abcde":
        run("job", "enqueue", QUEUE, "x", "--status", status)
    dry = run("job", "rm", "--queue", QUEUE, "--state", "pending", "--error", "e", "--dry-run", "--json")
    assert [each["status"] for each in dry.documents] == ["e"]


def test_the_last_error() -> None:
    first = "KeyError: 'a'\n  attempt 1 of 2 by python:host:1, 2026-11-22T20:49:16Z, 0.002 s\n  File x\n"
    second = (
        "ValueError: two\n  lines\n  from OSError: away\n  attempt 2 of 2 by python:host:1, 2026-11-22, 1 s\n  File y\n"
    )
    assert last_error(first + second) == "ValueError: two\n  lines\n  from OSError: away"
    assert last_error("boom") == "boom"
    assert last_error("") == ""


@pytest.mark.parametrize("command", [("ls", QUEUE, "--state", "failed"), ("retry", QUEUE)])
@pytest.mark.parametrize(
    ("window", "said"),
    [
        (["--since", "1h", "--until", "2h"], "--since and --until: expected a time and a later one, got "),
        (["--since", "2026-01-01", "--until", "2026-01-01"], "--since and --until: expected a time and a later one"),
        (["--since", "2200-01-01"], "--since: expected a time that is over, got "),
    ],
)
def test_a_window_that_no_update_is_in(run: Run, command: tuple[str, ...], window: list[str], said: str) -> None:
    ran = run("job", *command, *window)
    assert ran.code == USAGE
    assert said in ran.err
