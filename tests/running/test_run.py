"""`pinlater run`: processes of an app, its options, and a worker that dies.

Promises: shown on real processes. Risks: none known.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinlater import Client, CountsByState, PinLater, State
from pinlater.cli.command_base import DONE, NO, SERVER, USAGE
from tests.conftest import FreshServer
from tests.support.app_runs import AppRuns, runs
from tests.support.cli_runs import Run, run
from tests.support.servers import Server, wait_until

__all__ = ["run", "runs"]  # fixtures

APP = """
import os, signal, sys
from pathlib import Path
from pinlater import PinLater, SyncContext

app = PinLater()

@app.task(name="note")
async def note(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text + "\\n")

@app.task(name="second", queue="second")
def second(path: str) -> None:
    note.enqueue(path, f"by {os.getpid()}")

@app.task(name="die", queue="deadly", lease=0.5, attempts=2)
def die(context: SyncContext, path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{context.attempt} {context.state}\\n")
    if context.state is None:
        context.checkpoint("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Start]:
    """`start(*options)`: pinlater run tasks:app in a folder that has it."""
    (tmp_path / "tasks.py").write_text(APP)
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pinlater", "run", "tasks:app", "--json", *options]
        environment = {**os.environ, "PINLATER_URL": server.url}
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def app(server: Server) -> Iterator[PinLater]:
    with PinLater(server.url) as app:
        yield app


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_burst_runs_what_is_due_and_ends(
    start: Start, app: PinLater, server: Server, tmp_path: Path, processes: int
) -> None:
    out = tmp_path / "out"
    with Client(server.url) as client:
        app.by_name("note").enqueue_many([(str(out), str(number)) for number in range(300)])
        app.by_name("second").using(queue="second").enqueue(str(out))
        process = start("--burst", "--processes", str(processes), "--concurrency", "20")
        output, log = process.communicate(timeout=60)
        assert (process.returncode, json.loads(output.splitlines()[-1])) == (DONE, {"role": "run", "exit_code": 0})
        # another process may see its queue empty before the last task puts one in line there
        left = client.count("default").pending
        assert {str(number) for number in range(300)} <= set(lines(out))
        assert len(lines(out)) + left == 301
        assert processes == 2 or not left
        assert log.count("working on default, second, deadly: 3 tasks") == processes
        assert "starting another" not in log


def test_only_the_queues_named_are_worked_on(start: Start, app: PinLater, tmp_path: Path) -> None:
    out = tmp_path / "out"
    there, elsewhere = app.send("note", str(out), "x"), app.by_name("second").using(queue="second").enqueue(str(out))
    process = start("--burst", "--create", "--queues", "third,default")
    _, log = process.communicate(timeout=60)
    assert "working on third, default: 1 task\n" in log
    assert "WARNING pinlater.worker: queue third: created, as it was missing; no task of the app uses it" in log
    assert "queue default: created" not in log
    assert (there.status(), elsewhere.status()) == (None, State.PENDING)
    assert lines(out) == ["x"]


def test_a_signal_stops_it_when_what_runs_has_ended(start: Start, app: PinLater, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start()
    for number in range(50):
        app.send("note", str(out), str(number))
    wait_until(lambda: len(lines(out)) == 50, "50 lines")
    process.terminate()
    output, log = process.communicate(timeout=30)
    assert (process.returncode, json.loads(output.splitlines()[-1])) == (DONE, {"role": "run", "exit_code": 0})
    assert "stopped: 50 claimed, 50 succeeded\n" in log


def test_its_last_line_counts_what_became_of_jobs(start: Start, app: PinLater, server: Server, tmp_path: Path) -> None:
    app.send("note", str(tmp_path / "out"), "x")
    app.send("old")
    with Client(server.url) as client:
        client.enqueue("default", b"no envelope")
    process = start("--burst", "--log-format", "json")
    _, log = process.communicate(timeout=30)
    last = json.loads(log.splitlines()[-1])
    assert last["message"] == "stopped: 3 claimed, 1 succeeded, 1 failed, 1 postponed, 1 unknown ('old'), 1 unreadable"
    counts: dict[str, Any] = {"claimed": 3, "succeeded": 1, "failed": 1, "postponed": 1, "stale": 0, "released": 0}
    counts |= {"cancelled": 0, "unknown": {"old": 1}, "unreadable": 1, "expired": 0, "timeouts": 0}
    assert {name: last[name] for name in counts} == counts
    process = start("--burst", "--queues", "second")
    assert process.communicate(timeout=30)[1].endswith("stopped: nothing was claimed\n")


@pytest.mark.thorough("processes")
def test_a_burst_that_reaches_no_server_ends(runs: Callable[..., AppRuns]) -> None:
    app = runs("redis://127.0.0.1:1", "app = PinLater(timeout_s=0.5)\n@app.task\ndef nothing(): ...\n")
    assert app.start("--burst", "--processes", "2").wait(60) == SERVER
    assert (
        app.log.count(
            "error: no claim or ack was answered in 0.5 s: server redis://127.0.0.1:1 (from PINLATER_URL): not reached"
        )
        == 2
    )
    assert "start it, or name another one" in app.log
    assert "starting another" not in app.log


@pytest.mark.parametrize("processes", [1, 2])
def test_it_says_that_it_works_once_a_server_answers(
    runs: Callable[..., AppRuns], fresh_server: FreshServer, processes: int
) -> None:
    server = fresh_server(aof_always=True)
    server.kill()
    app = runs(server.url, '@app.task(queue="mail")\ndef nothing(): ...\n')
    app.start("--processes", str(processes))
    wait_until(lambda: app.log.count("queues not looked at yet") >= processes, "workers without a server")
    assert "working on" not in app.log
    server.start()
    wait_until(lambda: app.log.count("INFO pinlater.worker: working on mail: 1 task\n") == processes, "work")


@pytest.mark.thorough("minutes")  # three looks of a monitor
def test_a_first_start_warns_of_nothing_though_its_workers_are_slow(
    runs: Callable[..., AppRuns], fresh_server: FreshServer
) -> None:
    server = fresh_server()
    app = runs(
        server.url,
        """
note("imported", "app")
if Path("record").read_text().count("imported") > 1:  # not the supervisor's
    wait_for("go")

@app.task(name="work", queue="mail")
def work() -> None: ...
""",
    )
    app.start("--processes", "2")
    app.wait("imported", 3)

    def looks() -> int:
        with server.client() as client:
            return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    before = looks()
    wait_until(lambda: looks() > before + 2, "three looks of the monitor")
    (app.folder / "go").touch()
    wait_until(lambda: app.log.count("working on mail: 1 task") == 2, "two workers")
    assert "WARNING" not in app.log
    assert "ERROR" not in app.log


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_burst_goes_on_while_a_job_runs_and_then_ends_when_its_server_is_away(
    runs: Callable[..., AppRuns], fresh_server: FreshServer, comes_back: bool
) -> None:
    server = fresh_server(aof_always=True)
    app = runs(
        server.url,
        """
app = PinLater(timeout_s=0.5)

@app.task
def work():
    note("began", "work")
    wait_for("killed")
    time.sleep(1.0)
    note("outlived", "it")
    wait_for("told")
""",
    )
    with PinLater(server.url) as producer:
        producer.by_name("tasks.work").enqueue()
    burst = app.start("--burst", "--stop-timeout", "1")
    app.wait("began")
    server.kill()
    (app.folder / "killed").touch()
    app.wait("outlived")
    if comes_back:
        server.start()
    (app.folder / "told").touch()
    assert burst.wait(60) == (DONE if comes_back else SERVER)
    assert ("1 claimed, 1 succeeded" in app.log) is comes_back
    assert ("error: no claim or ack was answered in 0.5 s" in app.log) is not comes_back


def test_a_task_whose_worker_is_killed_goes_on_at_its_checkpoint(
    start: Start, app: PinLater, server: Server, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    start("--processes", "2", "--queues", "deadly")
    with Client(server.url) as client:
        wait_until(lambda: "deadly" in client.queue_names(), "the queue")
        assert client.queue_config("deadly").lease_ms == 500
        app.by_name("die").using(queue="deadly").enqueue(str(out))
        wait_until(lambda: len(lines(out)) == 2, "two attempts")
        assert lines(out) == ["1 None", "1 half"]
        wait_until(lambda: client.count("deadly") == CountsByState(), "its end")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tasks"], "app: expected module:app, got 'tasks'; did you mean 'tasks:app'?"),
        (["examples/mail.py:app"], "got 'examples/mail.py:app'; did you mean 'examples.mail:app'?"),
        (["version.py:app"], "app 'version.py:app': no module named"),
        (["nowhere:app"], "app 'nowhere:app': no module named 'nowhere'"),
        (["tests.running.test_run:APP"], "app 'tests.running.test_run:APP': expected a PinLater, got"),
        (["examples.mail:app", "--concurrency", "0"], "concurrency: expected an integer"),
        (["examples.mail:app", "--queues", "a-b"], "queue name: expected"),
    ],
)
def test_bad_arguments(run: Run, arguments: list[str], said: str) -> None:
    ran = run("run", *arguments)
    assert ran.code == USAGE
    assert said in ran.err


def test_an_app_that_names_its_servers_takes_no_others(run: Run, server: Server) -> None:
    module = sys.modules[__name__]
    module.named = PinLater(server.url)  # type: ignore[attr-defined]
    ran = run("run", f"{__name__}:named", "--url", "redis://elsewhere:1")
    assert ran.code == USAGE
    assert f"{__name__}:named names its servers itself" in ran.err


MODULES = {
    "broken": ("raise KeyError('settings')", r"its module can not be imported: KeyError: 'settings'", "raise KeyError"),
    "lacking": (
        "import nowhere_at_all",
        "its module can not be imported: ModuleNotFoundError: No module",
        "import now",
    ),
    "written": ("def app(:", "its module can not be imported: SyntaxError: invalid syntax", "def app(:"),
    "asking": (
        "app = pinlater.PinLater()\n@app.task(attempts=0)\ndef task(): ...",
        "its module can not be imported: InvalidArgument: attempts: expected an integer from 1",
        "@app.task(attempts=0)",
    ),
    "entering": (
        "app = pinlater.PinLater()\n@app.lifespan\nasync def life():\n    raise OSError('no database')\n    yield\n"
        "@app.task\ndef task(): ...",
        "its lifespan raised OSError: no database",
        "in life\n    raise OSError('no database')",
    ),
    "leaving": (
        "app = pinlater.PinLater()\n@app.lifespan\nasync def life():\n    yield\n    raise OSError('no database')\n"
        "@app.task\ndef task(): ...",
        "its lifespan raised OSError: no database",
        "in life\n    raise OSError('no database')",
    ),
}


@pytest.mark.parametrize(
    ("role", "name"),
    [("run", name) for name in MODULES] + [("worker", name) for name in ("broken", "lacking", "written", "asking")],
)
def test_what_the_users_code_raises_is_shown_as_theirs(run: Run, tmp_path: Path, role: str, name: str) -> None:
    text, said, line = MODULES[name]
    (tmp_path / f"app_that_is_{name}.py").write_text(f"import pinlater\n{text}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        ran = run(role, f"app_that_is_{name}:app", *(["--burst"] if role == "run" else ["--queue", "q"]))
    assert ran.code == NO
    *above, last = ran.err.splitlines()
    assert last.startswith(f"error: {'app' if role == 'run' else 'handler'} 'app_that_is_{name}:app': {said}")
    (begin,) = [number for number, line in enumerate(above) if line.startswith(("Traceback", '  File "'))][:1]
    shown = "\n".join(above[begin:])
    assert line in shown
    files = re.findall(r'File "(.*?)"', shown)
    assert files
    assert {Path(file).name for file in files} == {f"app_that_is_{name}.py"}


def test_what_runs_within_a_lifespan_is_not_the_lifespans(run: Run, tmp_path: Path) -> None:
    (tmp_path / "app_within.py").write_text(
        "import pinlater\napp = pinlater.PinLater()\n@app.lifespan\nasync def life():\n    yield\n"
        "@app.task\ndef task(*, db=pinlater.Shared(int)): ...\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        ran = run("run", "app_within:app", "--burst")
    assert ran.code == USAGE
    assert "error: task 'app_within.task': expected the app's lifespan to yield a int" in ran.err
    assert "Traceback" not in ran.err
