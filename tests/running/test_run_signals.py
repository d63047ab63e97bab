"""`pinlater run`: reload, dumps of running jobs, logs, probes and metrics, on real processes.

Promises: signals are real ones, /metrics is read by Prometheus's own parser. Risks: none known.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pinlater import AsyncClient, Client, PinLater, QueueConfig
from pinlater.operations.queues import recreate_lost
from pinlater.tasks.app import parts_of
from pinlater.tasks.app_parts import DEFAULT_CRASH_LIMIT
from tests.conftest import FreshServer
from tests.support.run_processes import APP, DEADLINE_S, AppRun, Start, app, client, start
from tests.support.servers import Server, is_alive, wait_until

__all__ = ["app", "client", "start"]  # fixtures

#: Those that take a server: what is shown is not the server's.
one_server = pytest.mark.parametrize("server", ["valkey"], indirect=True)


def set_version(folder: Path, text: str) -> None:
    code = folder / "tasks.py"
    code.write_text(code.read_text().replace("VERSION = 1", text))


def samples(run: AppRun) -> dict[str, float]:
    """What /metrics says: `name label=value …` and its value."""
    status, text = run.get("/metrics")
    assert status == 200
    return {
        " ".join([sample.name, *(f"{name}={value}" for name, value in sample.labels.items())]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# reload


@one_server
def test_a_reload_leaves_no_gap_and_loses_nothing(start: Start, app: PinLater, client: Client, tmp_path: Path) -> None:
    run, gate = start("--processes", "2", "--concurrency", "5"), tmp_path / "gate"
    run.logged("working on", 2)
    app.send("wait", str(gate))
    [(_, old)] = run.noted("waits")
    set_version(tmp_path, "VERSION = 2")
    note = app.by_name("note")
    note.enqueue_many([(f"a{number}", 0.01) for number in range(300)])
    run.send(signal.SIGHUP)
    run.logged("working on", 4)
    assert is_alive(old)
    sent = 0
    while not run.notes("version-2"):  # an old process may still claim one before its stop
        app.send("version")
        sent += 1
        wait_until(lambda: len(run.notes("version-1") + run.notes("version-2")) == sent, "another version")  # noqa: B023
    assert run.notes("version-2")[0][1] != old  # the old one still runs its last job
    gate.touch()
    assert run.noted("waited") == [("waited", old)]
    wait_until(lambda: not is_alive(old), "the old process to end")
    run.noted(count=302 + sent)
    assert run.end() == 0
    counts = Counter(text for text, _ in run.notes())
    assert counts.pop("version-2") == 1
    assert counts.pop("version-1", 0) == sent - 1
    assert set(counts.values()) == {1}
    assert client.count("default").in_progress == 0
    assert "starting another" not in run.log


@pytest.mark.thorough("processes")
@one_server
def test_code_that_does_not_load_leaves_the_old_processes(start: Start, app: PinLater, tmp_path: Path) -> None:
    run = start("--processes", "2")
    run.logged("working on", 2)
    set_version(tmp_path, "VERSION = ")
    run.send(signal.SIGHUP)
    run.logged("before it was ready; the old one goes on", 2)
    app.send("version")
    run.noted("version-1")
    assert run.end() == 0


def write_toml(folder: Path, text: str) -> None:
    (folder / "pinlater.toml").write_text(text)


@pytest.mark.thorough("processes")
@one_server
def test_a_reload_reads_toml_again(start: Start, app: PinLater, client: Client, tmp_path: Path) -> None:
    """More processes, other limits, a queue that comes and one that goes; the jobs under way end where they are."""
    gate, later = tmp_path / "gate", tmp_path / "later"
    write_toml(tmp_path, "concurrency = 1\n[queues.a]\n[queues.b]\nprocesses = 2")
    run = start("--http", "127.0.0.1:0")
    run.logged("working on", 3)
    for queue, count in (("a", 1), ("b", 2)):
        app.by_name("wait").using(queue=queue).enqueue_many([(str(gate),)] * count)
    old = {pid for _, pid in run.noted("waits", 3)}

    write_toml(tmp_path, "concurrency = 0")
    run.send(signal.SIGHUP)
    run.logged("reload: concurrency: expected an integer from 1 to 100,000, got 0; nothing changes")

    write_toml(tmp_path, "concurrency = 2\nlog_format = 'json'\n[queues.a]\nprocesses = 1\n[queues.c]\nprocesses = 1")
    run.send(signal.SIGHUP)
    run.logged("reload: a change of log_format takes effect at the next start")
    run.logged("working on", 5)
    for queue in "ac":
        app.by_name("wait").using(queue=queue).enqueue_many([(str(later),)] * 2)
    fresh = Counter(pid for _, pid in run.noted("waits", 7)[3:])
    assert sorted(fresh.values()) == [2, 2]
    assert not old & fresh.keys()
    wait_until(lambda: run.get("/readyz") == (200, "ok\n"), "readiness of the new queues")
    assert all(is_alive(pid) for pid in old)  # until their jobs have ended
    gate.touch()
    wait_until(lambda: not any(is_alive(pid) for pid in old), "the end of the old processes")
    later.touch()
    run.noted("waited", 7)
    assert run.end() == 0
    assert {client.count(queue).in_progress for queue in "abc"} == {0}


@one_server
def test_a_reload_of_one_process_reads_toml_again(start: Start, app: PinLater, tmp_path: Path) -> None:
    write_toml(tmp_path, "concurrency = 1")
    run, gate = start(), tmp_path / "gate"
    run.logged("working on")
    write_toml(tmp_path, "concurrency =")
    run.send(signal.SIGHUP)
    run.logged("pinlater.toml is not TOML: ")
    run.logged("; nothing changes")
    write_toml(tmp_path, "concurrency = 3")
    run.send(signal.SIGHUP)
    run.logged("working on", 2)
    app.by_name("wait").enqueue_many([(str(gate),)] * 3)
    assert run.noted("waits", 3) == [("waits", run.process.pid)] * 3
    gate.touch()
    assert run.end() == 0


@pytest.mark.thorough("processes")
@one_server
def test_one_process_starts_again_in_place(start: Start, app: PinLater, tmp_path: Path) -> None:
    run = start()
    run.logged("working on")
    app.send("version")
    run.noted("version-1")
    set_version(tmp_path, "VERSION = 2")
    run.send(signal.SIGHUP)
    run.logged("working on", 2)
    app.send("version")
    assert run.noted("version-2") == [("version-2", run.process.pid)]
    assert run.end() == 0


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
@one_server
def test_a_stop_right_after_a_reload_is_graceful(
    start: Start, app: PinLater, tmp_path: Path, options: tuple[str, ...]
) -> None:
    run, gate = start(*options), tmp_path / "gate"
    run.logged("working on", len(options) or 1)
    app.send("wait", str(gate))
    run.noted("waits")
    run.send(signal.SIGHUP)
    run.logged("working on", 2 * len(options) or 1)
    run.send(signal.SIGTERM)
    gate.touch()
    assert run.process.wait(60) == 0
    assert len(run.notes("waited")) == 1


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
@one_server
def test_a_stop_says_once_how_jobs_are_given_up(
    start: Start, app: PinLater, tmp_path: Path, options: tuple[str, ...]
) -> None:
    run = start(*options)
    run.logged("working on", len(options) or 1)
    app.send("wait", str(tmp_path / "gate"))
    run.noted("waits")
    run.send(signal.SIGINT)
    run.logged("stopping, press Ctrl-C again to give jobs up")
    run.send(signal.SIGINT)
    run.process.wait(60)
    assert run.log.count("press Ctrl-C again") == 1
    assert run.log.count("giving running jobs up") == 1


SLOW = """
def gate(name):
    line(name)
    while not Path(name).exists():
        time.sleep(0.01)

gate("imports")

@app.lifespan
async def lifespan():
    yield
    gate("closes")
"""


@one_server
def test_other_signals_do_not_end_what_starts_or_ends(start: Start, tmp_path: Path) -> None:
    with (tmp_path / "tasks.py").open("a") as code:
        code.write(SLOW)
    run = start()
    for gate in ("imports", "closes"):
        run.noted(gate)
        run.send(signal.SIGHUP)
        run.send(signal.SIGUSR1)
        (tmp_path / gate).touch()
        run.logged("working on")
        if gate == "imports":
            run.send(signal.SIGTERM)
    assert run.process.wait(60) == 0
    assert run.log.count("working on") == 1


@one_server
def test_processes_of_a_killed_supervisor_end_without_an_error(start: Start, app: PinLater, tmp_path: Path) -> None:
    run, gate = start("--processes", "2"), tmp_path / "gate"
    run.logged("working on", 2)
    app.send("wait", str(gate))
    [(_, pid)] = run.noted("waits")
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode()
    reports = Path(f"/proc/{pid}/fd/{variables.partition('PINLATER_REPORT_FD=')[2].partition(chr(0))[0]}")
    pipe = reports.readlink()

    def closed() -> bool:  # another connection may have its number by then
        try:
            return reports.readlink() != pipe
        except FileNotFoundError:
            return True

    run.send(signal.SIGKILL)
    wait_until(closed, "the end of its reports")
    gate.touch()
    wait_until(lambda: not is_alive(pid), "its end")
    assert len(run.notes("waited")) == 1
    run.logged("stopped: ", 2)
    assert "Error" not in run.log


# what runs


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
@one_server
def test_a_dump_shows_running_jobs_with_their_stacks(
    start: Start, app: PinLater, tmp_path: Path, options: tuple[str, ...]
) -> None:
    run, gate = start(*options), tmp_path / "gate"
    run.logged("working on", len(options) or 1)
    handles = {name: app.send(name, str(gate)) for name in ("wait", "block")}
    run.noted("waits")
    run.noted("blocks")
    dumps = 0

    def stack_of(name: str) -> str:
        """What the last dump says of a job."""
        _, _, dump = run.log.rpartition(f"job {handles[name].descriptor}: task {name}, attempt 1, claimed")
        return dump.partition("\njob ")[0]

    def dumped() -> bool:
        """Whether a dump found the task where it waits: now and then it looks at its gate, and then awaits nothing."""
        nonlocal dumps
        dumps += 1
        run.send(signal.SIGUSR1)
        run.logged("thread MainThread", dumps * (len(options) or 1))  # written after the jobs: their stacks are whole
        return "in wait\n" in stack_of("wait")

    wait_until(dumped, "a dump of a task that waits", DEADLINE_S)
    assert 'await until(gate, "waits")' in stack_of("wait")
    assert re.search(r", in block\n.*(line\(|while |time\.sleep)", stack_of("block"))
    gate.touch()
    assert run.end() == 0


@one_server
def test_a_dump_while_a_task_keeps_the_loop_busy(start: Start, app: PinLater, tmp_path: Path) -> None:
    run, gate = start(), tmp_path / "gate"
    app.send("spin", str(gate))
    run.noted("spins")
    run.send(signal.SIGUSR1)
    in_spin = re.compile(r", in spin\n.*(line\(|while |pass)")  # any of its lines from its note on
    wait_until(lambda: in_spin.search(run.log.partition("thread MainThread")[2]), "the loop's stack", DEADLINE_S)
    gate.touch()
    assert run.end() == 0


# logs


@one_server
def test_json_logs_have_the_job_of_every_line(start: Start, app: PinLater) -> None:
    run = start("--log-format", "json", "--burst")
    handles = {name: app.send(name, "hello") for name in ("say", "say_plain")}
    failing = app.send("fail")
    app.send("nowhere")
    assert run.process.wait(60) == 0
    lines = {line["message"]: line for line in run.json_lines()}
    assert len(run.json_lines()) == len(run.log.splitlines())

    def about(message: str) -> dict[str, object]:
        return {name: lines[message].get(name) for name in ("job", "queue", "task", "attempt")}

    said = {"job": handles["say"].descriptor, "queue": "default", "task": "say", "attempt": 1}
    assert about("hello") == about("a thread says hello") == said
    assert lines["hello"]["amount"] == 3
    assert (lines["hello"]["level"], lines["hello"]["logger"]) == ("INFO", "shop")
    assert about("plain hello") == {**said, "job": handles["say_plain"].descriptor, "task": "say_plain"}
    [failed] = [line for line in lines.values() if line.get("task") == "fail"]
    assert failed["job"] == failing.descriptor
    assert "ValueError: as told" in failed["error"]
    [unknown] = [line for line in lines.values() if line.get("task") == "nowhere"]
    assert "no task 'nowhere' here" in unknown["message"]
    assert all("job" not in line for message, line in lines.items() if message.startswith(("working on", "stopped")))


@pytest.mark.thorough("processes")
@one_server
def test_a_success_is_logged_where_it_is_asked_for(start: Start, app: PinLater, tmp_path: Path) -> None:
    for option, successes in ((), 0), (("--log-success",), 1), (("--log-success", "--max-jobs", "9"), 1):
        handle = app.send("say", "hello")
        run = start("--burst", *option)
        assert run.process.wait(60) == 0
        said = f"INFO pinlater.worker: job {handle.descriptor}: task say succeeded in "
        assert run.log.count(said) == successes


@one_server
def test_text_logs_have_it_at_the_end(start: Start, app: PinLater) -> None:
    handle = app.send("say", "hello")
    run = start("--burst")
    assert run.process.wait(60) == 0
    assert f"INFO shop: hello [job={handle.descriptor} task=say attempt=1]\n" in run.log


# probes and metrics


@pytest.mark.parametrize("processes", [1, 2])
@one_server
def test_probes_and_metrics(start: Start, app: PinLater, tmp_path: Path, processes: int) -> None:
    run, gate = start("--http", "127.0.0.1:0", "--processes", str(processes)), tmp_path / "gate"
    wait_until(lambda: run.get("/readyz") == (200, "ok\n"), "readiness")
    assert run.get("/healthz") == (200, "ok\n")
    assert run.get("/nowhere")[0] == 404
    assert samples(run)["pinlater_failed_by_crash_total task=note queue=default"] == 0
    assert samples(run)["pinlater_jobs_total task=note end=expired"] == 0
    app.by_name("note").enqueue_many([(str(number),) for number in range(100)])
    for name in ("fail", "nowhere", "nowhere"):
        app.send(name)
    app.send("wait", str(gate))
    app.by_name("x").enqueue()
    client = parts_of(app).clients.sync()
    client.enqueue("default", b"\xff no task")
    wait_until(lambda: samples(run)["pinlater_jobs_total task=note end=succeeded"] == 100, "100 jobs counted")
    wait_until(lambda: samples(run).get("pinlater_unknown_tasks_total task=nowhere", 0) >= 2, "unknown ones")
    wait_until(lambda: samples(run)["pinlater_running_jobs"] == 1, "one that runs")
    wait_until(lambda: samples(run)["pinlater_jobs_total task=fail end=failed"] == 1, "a failed one")
    found = samples(run)
    assert found["pinlater_job_seconds_count task=note"] == 100
    assert found["pinlater_job_seconds_bucket task=note le=+Inf"] == 100
    assert found["pinlater_job_seconds_sum task=note"] > 0
    assert found["pinlater_unreadable_jobs_total"] == 1
    assert found["pinlater_unknown_tasks_total task=x"] >= 1
    assert found["pinlater_claimed_jobs_total"] >= 105
    assert found["pinlater_claims_total"] >= 1
    gate.touch()
    wait_until(lambda: samples(run)["pinlater_jobs_total task=wait end=succeeded"] == 1, "its end")
    assert run.end() == 0


@pytest.mark.thorough("processes")
@one_server
def test_counts_outlive_processes_and_restarts_are_counted(start: Start, app: PinLater) -> None:
    run = start("--http", "127.0.0.1:0", "--processes", "2", "--max-jobs", "30")
    app.by_name("note").enqueue_many([(str(number),) for number in range(100)])
    run.noted(count=100)
    wait_until(lambda: samples(run)["pinlater_jobs_total task=note end=succeeded"] == 100, "100 jobs counted")
    assert samples(run)["pinlater_process_restarts_total reason=recycled"] >= 2
    wait_until(lambda: samples(run)["pinlater_processes"] == 2, "two processes")
    app.send("die")
    run.noted("dies")
    wait_until(lambda: samples(run)["pinlater_process_restarts_total reason=crash"] == 1, "the crash")
    wait_until(lambda: samples(run)["pinlater_crashed_jobs_total end=retried"] == 1, "its job, enqueued again")
    assert samples(run)["pinlater_crashed_jobs_total end=failed"] == 0
    assert samples(run)["pinlater_jobs_total task=note end=succeeded"] == 100
    assert run.end() == 0


def test_a_worker_without_its_server_is_alive_and_not_ready(tmp_path: Path, fresh_server: FreshServer) -> None:
    server = fresh_server()
    (tmp_path / "tasks.py").write_text(APP)
    run = AppRun(tmp_path, server, "--http", "127.0.0.1:0")
    wait_until(lambda: run.get("/readyz")[0] == 200, "readiness")
    server.kill()
    wait_until(lambda: run.get("/readyz")[0] == 503, "no readiness")
    assert run.get("/healthz")[0] == 200
    server.start()
    with PinLater(server.url) as app, Client(server.url) as client:
        wait_until(lambda: client.queue_names() == ["default"], "the queue, which the killed server has forgotten")
        wait_until(lambda: run.get("/readyz")[0] == 200, "readiness again")
        assert client.queue_config("default").crash_limit == DEFAULT_CRASH_LIMIT  # that of the app
        app.by_name("note").enqueue("back")
    run.noted("back")
    assert run.end() == 0


@one_server
def test_a_queue_that_was_deleted_is_not_made_again(server: Server, client: Client) -> None:
    async def make() -> None:
        async with AsyncClient(server.url) as own:
            await own.run(lambda end: recreate_lost(own.session, "q", QueueConfig(lease_ms=2_000), end))

    asyncio.run(make())
    assert client.queue_config("q").lease_ms == 2_000
    client.delete_queue("q")
    asyncio.run(make())
    assert client.queue_names() == []


@one_server
def test_a_connection_that_asks_nothing_is_cut_at_the_stop(start: Start) -> None:
    run = start("--http", "127.0.0.1:0")
    wait_until(lambda: run.get("/readyz")[0] == 200, "readiness")
    port = int(run.log.partition("http on port ")[2].partition(":")[0])
    with socket.create_connection(("127.0.0.1", port)):
        assert run.get("/healthz")[0] == 200  # it was accepted before this one
        assert run.end() == 0
    assert "Traceback" not in run.log
    assert "CancelledError" not in run.log


@pytest.mark.thorough("minutes")
@one_server
def test_a_stuck_loop_is_not_healthy(start: Start, app: PinLater, tmp_path: Path) -> None:
    run, gate = start("--http", "127.0.0.1:0", "--processes", "2"), tmp_path / "gate"
    wait_until(lambda: run.get("/readyz")[0] == 200, "readiness")
    app.send("spin", str(gate))
    [(_, pid)] = run.noted("spins")
    wait_until(lambda: run.get("/healthz") == (503, f"no report from process {pid} for 10 s\n"), "ill health")
    gate.touch()
    wait_until(lambda: run.get("/healthz")[0] == 200, "health")
    assert run.end() == 0


AT_CONNECT = """
import asyncio, signal
from pinlater.worker.stop_signals import StopSignals

class Signals(StopSignals):
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "_request" and value is not None:
            signal.raise_signal(signal.SIGTERM)

async def role():
    signals.connect(lambda: print("told"))
    for _ in range(3):
        await asyncio.sleep(0)

with Signals(60.0) as signals:
    asyncio.run(role())
"""


def test_a_signal_that_comes_as_the_loop_is_connected_counts_once() -> None:
    """Twice is "at once"."""
    ended = subprocess.run([sys.executable, "-c", AT_CONNECT], capture_output=True, text=True, check=True)
    assert ended.stdout == "told\n"
