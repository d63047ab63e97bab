"""`pinlater task ls` and `pinlater task send`."""

# ruff: noqa: F811 (fixtures are parameters)
from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinlater import Client, PinLater
from pinlater.cli.command_base import DONE, NO, SERVER, USAGE
from pinlater.running.app_worker import worker_of
from pinlater.tasks.loading import load_app
from tests.support.cli_runs import Ran, Run, run  # noqa: F401
from tests.support.servers import Server

CODE = """
from __future__ import annotations

import datetime
from uuid import UUID

from pinlater import Constant, Context, Item, PinLater

app = PinLater()
empty = PinLater()
seen = []


@app.task(name="shop.mail.send", queue="mails", attempts=3, timeout=30, backoff=Constant(5), give_up_on=ValueError)
async def send(context: Context, to: str, order: UUID | None = None, day: datetime.date | None = None) -> None:
    seen.append((to, order, day))


@app.task(name="shop.report", priority=2, result_ttl=3600)
def report() -> None: ...


@app.task(name="shop.batch", batch=10, batch_wait=0.5, runs_in="thread")
def batch(items: list[Item[int]]) -> None: ...


@app.task(name="shop.raw", queue="raws", codec="raw")
def raw(body: bytes) -> None: ...
"""
ORDER = "6fa459ea-ee8a-3ca4-894e-db77e160355e"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an app that names no servers."""
    (tmp_path / "task_shop.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "task_shop:app"
    sys.modules.pop("task_shop", None)


def job_of(run: Run, sent: Ran) -> Any:
    assert sent.code == DONE, sent.err
    return run("job", "lookup", sent.out.strip(), "--json").document


def test_ls(run: Run, app: str) -> None:
    assert [line.rstrip() for line in run("task", "ls", app).out.splitlines()] == [
        "task            queue    signature                                                               options",
        "shop.batch      default  (items: list[Item[int]], /)                                             "
        "runs_in=thread, batch=10, batch_wait=500ms",
        "shop.mail.send  mails    (to: str, order: UUID | None = None, day: datetime.date | None = None)  "
        "attempts=3, backoff=Constant(seconds=5), give_up_on=ValueError, timeout=30s",
        "shop.raw        raws     (body: bytes)                                                           codec=raw",
        "shop.report     default  ()                                                                      "
        "priority=2, result_ttl=1h",
    ]
    found = {each["task"]: each for each in run("task", "ls", app, "--json").document}
    assert found["shop.report"] == {
        "task": "shop.report",
        "queue": "default",
        "signature": "()",
        "options": {"priority": 2, "result_ttl_ms": 3_600_000},
    }
    assert found["shop.mail.send"]["options"]["timeout_s"] == 30


def test_send_reaches_the_task_with_the_types_of_its_annotations(run: Run, app: str, server: Server) -> None:
    sent = run("task", "send", app, "shop.mail.send", f'{{"to": "ada", "order": "{ORDER}", "day": "2026-11-23"}}')
    job = job_of(run, sent)
    assert sent.out.startswith("mails:")
    assert (job["task"], job["attempts_allowed"], job["state"]) == ("shop.mail.send", 3, "pending")

    async def work() -> None:
        loaded = load_app(app)
        async with loaded, worker_of(loaded, ["mails"]) as worker:
            await worker.run(burst=True)

    asyncio.run(work())
    ((to, order, day),) = sys.modules["task_shop"].seen
    assert (to, str(order), day.isoformat()) == ("ada", ORDER, "2026-11-23")


def test_send_has_the_options_of_the_task_and_those_given(run: Run, app: str) -> None:
    run("queue", "create", "other")
    assert job_of(run, run("task", "send", app, "shop.report"))["priority"] == 2
    options = ("--queue", "other", "--priority", "3", "--delay", "1h", "--json")
    descriptor = run("task", "send", app, "shop.mail.send", '["ada"]', *options).document["descriptor"]
    job = run("job", "lookup", descriptor, "--json").document
    assert descriptor.startswith("other:")
    assert (job["priority"], job["args"], job["kwargs"]) == (3, ["ada"], {})
    assert job["run_after_ms"] - job["created_ms"] == 3_600_000
    at = job_of(run, run("task", "send", app, "shop.batch", "[5]", "--at", "2100-01-01T00:00Z"))
    assert at["run_after_ms"] == 4_102_444_800_000


def test_send_without_the_app(run: Run) -> None:
    run("queue", "create", "mails")
    sent = run("task", "send", "--name", "there.send", "--queue", "mails", '{"to": "ada", "self": [1, null]}')
    job = job_of(run, sent)
    assert (job["task"], job["args"], job["kwargs"]) == ("there.send", [], {"to": "ada", "self": [1, None]})
    assert job_of(run, run("task", "send", "--name", "there.send", "--queue", "mails"))["kwargs"] == {}


@pytest.fixture
def in_toml(app: str, tmp_path: Path) -> Iterator[None]:
    """The app and one more module, as TOML names them."""
    (tmp_path / "task_more.py").write_text(
        "from task_shop import empty\n\n\n@empty.task(name='more', queue='mores')\ndef more(x: int = 0) -> None: ...\n"
    )
    (tmp_path / "pinlater.toml").write_text('app = "task_shop:empty"\ninclude = ["task_more"]\nprocesses = 2\n')
    yield
    sys.modules.pop("task_more", None)


def test_ls_of_the_app_that_toml_names(run: Run, in_toml: None, app: str) -> None:
    (found,) = run("task", "ls", "--json").document
    assert (found["task"], found["queue"]) == ("more", "mores")
    assert len(run("task", "ls", app, "--json").document) == 4


@pytest.mark.parametrize("call", [["more"], ["more", "[1]"], ["more", '{"x": 1}'], ["task_shop:empty", "more", "[1]"]])
def test_send_to_the_app_that_toml_names(run: Run, in_toml: None, call: list[str]) -> None:
    sent = run("task", "send", *call)
    job = job_of(run, sent)
    assert sent.out.startswith("mores:")
    assert (job["task"], job["args"] + list(job["kwargs"].values())) == ("more", [1] * (call != ["more"]))


def test_send_to_another_app_than_that_of_toml(run: Run, in_toml: None, app: str) -> None:
    assert job_of(run, run("task", "send", app, "shop.report"))["task"] == "shop.report"


def test_ls_without_an_app(run: Run) -> None:
    ran = run("task", "ls")
    assert (ran.code, ran.out) == (USAGE, "")
    assert "app: expected MODULE:APP, on the command line or as `app` in TOML, got none" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["A", "shop.mail.send", "{}"],
            USAGE,
            "missing a required argument: 'to'; it takes (to, order=None, day=None)",
        ),
        (
            ["A", "shop.mail.send", '{"to": "a", "order": "x"}'],
            USAGE,
            "argument order: expected uuid.UUID | None, got 'x'",
        ),
        (["A", "shop.report", "[1]"], USAGE, "task 'shop.report': too many positional arguments; it takes ()"),
        (["A", "shop.batch", '{"x": 1}'], USAGE, "task 'shop.batch': "),
        (["A", "shop.raw", "[1]"], USAGE, "it takes bytes; pinlater job enqueue raws BODY sends them"),
        (["A", "send"], USAGE, "task 'send': not in the app; did you mean 'shop.mail.send'?"),
        (["A", "shop.reprot"], USAGE, "did you mean 'shop.report'?"),
        (["A", "x"], USAGE, "task 'x': not in the app; it has shop.batch, shop.mail.send, shop.raw, shop.report"),
        (["task_shop:empty", "x"], USAGE, "the app has no tasks"),
        (["task_shop:none", "x"], USAGE, "none"),
        (
            ["A", "shop.report", "5"],
            USAGE,
            "expected an object of named arguments or a list of positional ones, got '5'",
        ),
        (
            ["A", "shop.report", "{to: 1}"],
            USAGE,
            'JSON: expected the arguments, such as \'{"to": "ada"}\' or \'["ada"]\', got',
        ),
        (["A", "shop.report", "[NaN]"], USAGE, "NaN is not JSON"),
        (["A", "shop.report", "[" * 100_000], USAGE, "JSON: expected the arguments"),
        (["A"], USAGE, "expected [MODULE:APP] NAME [JSON], or --name NAME --queue QUEUE [JSON], got 'task_shop:app'"),
        ([], USAGE, "expected [MODULE:APP] NAME [JSON], or --name NAME --queue QUEUE [JSON], got neither"),
        (["A", "shop.report", "[]", "more"], USAGE, "expected [MODULE:APP] NAME [JSON]"),
        (["shop.report", "[]"], USAGE, "app: expected MODULE:APP, on the command line or as `app` in TOML, got none"),
        (["shop.report", "x"], USAGE, "JSON: expected the arguments"),
        (["--name", "x", "[]"], USAGE, "--name: expected --queue beside it, got none"),
        (["--name", "x", "--queue", "mails", "A", "[]"], USAGE, "expected [MODULE:APP] NAME [JSON]"),
        (["--name", "x", "--queue", "mials"], NO, "queue 'mials': not found; did you mean 'mails'?"),
        (["A", "shop.report", "--queue", "mials"], NO, "queue 'mials': not found; did you mean 'mails'?"),
        (["A", "shop.report", "--delay", "1h", "--at", "2100-01-01"], USAGE, "expected --delay or --at, got both"),
        (
            ["A", "shop.report", "--delay", "soon"],
            USAGE,
            "expected a time such as 30s, 5m, 2h or 1d, or seconds, got 'soon'",
        ),
        (["A", "shop.report", "--priority", "0"], USAGE, "priority: expected"),
        (
            ["A", "shop.report", "--url", "redis://127.0.0.1:1"],
            SERVER,
            "redis://127.0.0.1:1 (from an argument): not reached",
        ),
    ],
)
def test_what_cannot_be_sent(
    run: Run, app: str, server: Server, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    run("queue", "create", "mails")
    ran = run("task", "send", *(app if each == "A" else each for each in arguments))
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert said in ran.err
    with Client(server.url) as client:
        assert client.queue_names() in (["mails"], ["default", "mails"])
        assert client.count("mails").pending == 0


def test_an_app_that_names_its_servers(
    run: Run, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"from pinlater import PinLater\napp = PinLater({server.url!r})\n@app.task(name='t')\ndef t(): ...\n"
    (tmp_path / "task_named.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PINLATER_URL", "redis://127.0.0.1:1")
    monkeypatch.delitem(sys.modules, "task_named", raising=False)
    sent = run("task", "send", "task_named:app", "t")
    assert sent.code == DONE
    with PinLater(server.url) as app:
        assert app.handle(sent.out.strip()).status() is not None
    refused = run("task", "send", "task_named:app", "t", "--url", server.url)
    assert refused.code == USAGE
    assert "task_named:app names its servers itself; leave out --url, --shard and --shards-file" in refused.err
