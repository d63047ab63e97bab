"""What a supervisor knows of an app that it does not import.

Promises: shown on real processes, and beside a lone process, which imports the app.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pinlater import Client, PinLater
from pinlater.cli.command_base import NO, USAGE
from pinlater.running.app_facts import facts_without_import
from tests.support.app_runs import AppRuns, runs
from tests.support.servers import Server, wait_until

__all__ = ["runs"]  # a fixture

TASKS = """
note("imported", "module")

@app.task(name="work", attempts=3)
def work(name: str, path: str = "") -> None:
    note("began", name)
    if path and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    note("ended", name)
"""


@pytest.mark.parametrize("options", ["--processes 2", "--isolate --processes 2", "--watch", "--max-jobs 100"])
def test_a_supervisor_does_not_import_the_app(server: Server, runs: Callable[..., AppRuns], options: str) -> None:
    app_runs = runs(server.url, TASKS)
    supervisor = app_runs.start(*options.split())
    with PinLater(server.url) as app:
        app.by_name("work").enqueue("job")
        app_runs.wait("ended")
    pids = {each.pid for each in app_runs.notes("imported")}
    assert len(pids) > 1
    assert supervisor.pid not in pids


def test_a_lone_process_imports_the_app_and_starts_no_other(server: Server, runs: Callable[..., AppRuns]) -> None:
    app_runs = runs(server.url, TASKS)
    lone = app_runs.start()
    with PinLater(server.url) as app:
        app.by_name("work").enqueue("job")
        app_runs.wait("ended")
    assert {each.pid for each in app_runs.notes()} == {lone.pid}


MODULES = {
    "broken": "raise KeyError('settings')",
    "lacking": "import nowhere_at_all",
    "written": "def app(:",
    "asking": "import pinlater\napp = pinlater.PinLater()\n@app.task(attempts=0)\ndef task(): ...",
    "empty": "import pinlater\napp = pinlater.PinLater()",
    "other": "app = 5",
    "ending": "import sys\nsys.exit(7)",
    "saying": "import sys\nsys.exit('no settings')",
    "named": "import pinlater\napp = pinlater.PinLater('redis://one:1')\n@app.task\ndef task(): ...",
}
COMMANDS = [
    *([f"{name}:app"] for name in MODULES),
    ["named:app", "--url", "redis://two:2"],
    ["named:ap"],
    ["nowhere:app"],
    ["named"],
    ["named:app", "--queues", "a-b"],
]


#: They raise as "broken" does.
ALIKE = {"lacking:app", "written:app", "asking:app", "other:app"}


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(each, marks=[pytest.mark.campaign("imports")] if each[0] in ALIKE else [])
        for each in COMMANDS
        if each != ["named:app"]
    ],
    ids=" ".join,
)
def test_its_errors_are_those_of_an_import(tmp_path: Path, arguments: list[str]) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "PINLATER_URL"}

    def ran(*options: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "pinlater", "run", *arguments, *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    alone, supervisor = ran(), ran("--processes", "2")
    assert supervisor == alone
    assert alone[0] in (7, NO, USAGE)
    assert alone[2].count("error: ") == (0 if alone[0] == 7 or "no settings" in alone[2] else 1)


def test_a_signal_that_ends_the_import_is_named(runs: Callable[..., AppRuns]) -> None:
    app_runs = runs("redis://127.0.0.1:1", "os.kill(os.getpid(), signal.SIGSEGV)")
    assert app_runs.start("--processes", "2").wait(60) == NO
    assert "error: app 'tasks:app': the process that imports it was killed by SIGSEGV\n" in app_runs.log


def test_a_thread_that_an_import_leaves_behind_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text(
        "import threading, pinlater\nthreading.Thread(target=threading.Event().wait).start()\n"
        "app = pinlater.PinLater(shards={'a': 'redis://one:1'}, timeout_s=3)\n@app.task(queue='q')\ndef task(): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    facts = facts_without_import("leaving:app", ())
    assert (facts.tasks, facts.named, facts.folder) == ({"q": 1}, True, str(tmp_path))
    assert (facts.clients.shards, facts.clients.timeout_s) == ({"a": "redis://one:1"}, 3)


@pytest.mark.parametrize(
    "names", ["app = PinLater({url!r})", "os.environ['PINLATER_URL'] = os.environ['PINLATER_URL'] or {url!r}"]
)
def test_a_supervisor_has_the_servers_that_the_app_names_or_puts_into_the_environment(
    server: Server, runs: Callable[..., AppRuns], names: str
) -> None:
    """Its recoverer brings the job of a dead process back there."""
    app_runs = runs("", names.format(url=server.url) + TASKS)
    app_runs.start("--processes", "2")
    with PinLater(server.url) as app, Client(server.url) as client:
        app.by_name("work").enqueue("job", "died")
        app_runs.wait("ended")
        wait_until(lambda: client.count("default").in_progress == 0, "its ack")
    assert "its 1 leases end: 1 jobs tried again" in app_runs.log
