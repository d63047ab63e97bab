"""Apps of several modules: workers import what an app includes, and producers do not.

Promises: each kind of worker is shown: a worker in a program, `pinlater run` with its processes, a task process, the
harness and immediate mode.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinlater import InvalidArgument, PinLater
from pinlater.model.errors import AppFailed
from pinlater.running.app_worker import worker_of
from pinlater.tasks.loading import load_app
from pinlater.testing import Harness
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server

#: An app whose own module has no task.
APP = 'from pinlater import PinLater\napp = PinLater(include=["shop.emails"])\n'
EMAILS = """
from pathlib import Path
from shop import app
@app.task(name="send", attempts=1, runs_in={kind!r})
def send(path): Path(path).write_text("sent")
"""
REPORTS = EMAILS.replace("send", "report").replace("sent", "reported")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package `shop`, which can be imported."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text(APP)
    (package / "emails.py").write_text(EMAILS.format(kind=None))
    (package / "reports.py").write_text(REPORTS.format(kind="process"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def app_of_shop(server: Server) -> PinLater:
    """The app, as a producer imports it."""
    app: PinLater = importlib.import_module("shop").app
    assert app.tasks == {}
    assert "shop.emails" not in sys.modules
    return app


@on_loop
async def test_a_worker_in_a_program_imports_it(server: Server, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINLATER_URL", server.url)
    app = app_of_shop(server)
    async with app:
        await app.asend("send", str(shop / "out"))
        assert "shop.emails" not in sys.modules
        async with worker_of(app) as worker:
            await worker.run(burst=True)
    assert (shop / "out").read_text() == "sent"


def test_the_harness_imports_it(server: Server, shop: Path) -> None:
    app = app_of_shop(server)
    with Harness(app) as harness:
        app.send("send", str(shop / "out"))
        [ran] = harness.drain()
    assert (ran.task, ran.outcome, (shop / "out").read_text()) == ("send", "succeeded", "sent")


def test_immediate_mode_imports_it(server: Server, shop: Path) -> None:
    app = app_of_shop(server)
    with app.immediate():
        app.send("send", str(shop / "out"))
    assert (shop / "out").read_text() == "sent"


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("options", [["--processes", "1"], ["--processes", "2"], ["--include", "shop.reports"]])
def test_run_imports_it_with_what_toml_or_the_command_line_adds(
    server: Server, shop: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setenv("PINLATER_URL", server.url)
    if "--include" not in options:
        (shop.parent / "pinlater.toml").write_text('include = ["shop.reports"]')
    with PinLater(server.url) as producer:
        for name in ("send", "report"):
            producer.send(name, str(shop / name))
        command = [sys.executable, "-m", "pinlater", "run", "shop:app", "--burst", "--task-processes", "1", *options]
        subprocess.run(command, cwd=shop.parent, env=os.environ, timeout=120, check=True)
    assert ((shop / "send").read_text(), (shop / "report").read_text()) == ("sent", "reported")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InvalidArgument, None, "include: module 'shop.emails': no module named 'shop.emails'"),
        (
            AppFailed,
            "raise ValueError('not now')",
            "include: module 'shop.emails' can not be imported: ValueError: not",
        ),
        (AppFailed, "raise SystemExit(3)", "include: module 'shop.emails' can not be imported: SystemExit: 3"),
        (AppFailed, "import nowhere", "include: module 'shop.emails' can not be imported: ModuleNotFoundError"),
    ],
)
def test_a_module_that_can_not_be_imported_is_named(shop: Path, error: Any, code: str | None, said: str) -> None:
    (shop / "emails.py").unlink() if code is None else (shop / "emails.py").write_text(code)
    with pytest.raises(error, match=said):
        load_app("shop:app")


@pytest.mark.parametrize(
    ("include", "said"),
    [
        ("shop.emails", "include: expected a list of module names, got 'shop.emails'"),
        (3, "include: expected a list of module names, got 3"),
        (["shop/emails.py"], "include: expected module names like 'shop.emails', got 'shop/emails.py'"),
        ([".emails"], "include: expected module names like 'shop.emails', got '.emails'"),
        ([None], "include: expected module names like 'shop.emails', got None"),
    ],
)
def test_what_is_no_list_of_modules_is_refused(include: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=said):
        PinLater(include=include)


@on_loop
async def test_a_worker_names_its_modules_where_a_task_is_unknown(
    server: Server, shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PINLATER_URL", server.url)
    app = app_of_shop(server)
    app.task(name="of this test")(lambda: None)
    async with app:
        await app.asend("report", "x")
        async with worker_of(app) as worker:
            await worker.run_once()
    [said] = [record.getMessage() for record in caplog.records if "no task" in record.getMessage()]
    assert f"no task 'report' here, only tasks of {', '.join(sorted(['shop.emails', __name__]))} (include=" in said
