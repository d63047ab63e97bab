"""The options of `pinlater run`: --queues, TOML, which of the two counts, and the errors of bad input.

Promises: every key has a wrong value here. Risks: how processes follow them is in test_running.py.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pinlater import Client, InvalidArgument, PinLater
from pinlater.cli.command_base import DONE, USAGE
from pinlater.running.options import QueueOptions, RunOptions
from pinlater.running.probes import parse_address
from pinlater.running.process_slots import rearrange
from pinlater.running.read_options import options_of, parse_queues
from pinlater.running.status import STALE_S, SupervisorStatus
from pinlater.running.worker_process import ProcessSet
from pinlater.tasks.app import parts_of
from pinlater.worker.queue_order import QueueOrder
from tests.support.cli_runs import Run, run
from tests.support.pages import page, table
from tests.support.servers import Server

__all__ = ["run"]  # a fixture

PAGE = page("running")
FULL = """
app = "shop:app"
include = ["shop.emails"]
url = "redis://there:1"
strict = false
isolate = false
concurrency = 20
processes = 2
max_jobs = 1000
memory_mb = 500
stop_timeout = 5.5
log_format = "json"
log_success = true
http = "127.0.0.1:9100"
[queues.mail]
weight = 3
[queues.video]
concurrency = 1
processes = 4
memory_mb = 2000
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "weights", "strict"),
    [
        ("a", {"a": None}, False),
        ("a:3, b:1", {"a": 3, "b": 1}, False),
        ("b>a > c", {"b": None, "a": None, "c": None}, True),
    ],
)
def test_queues_in_words(text: str, weights: dict[str, int | None], strict: bool) -> None:
    assert parse_queues(text) == ({name: QueueOptions(weight=weight) for name, weight in weights.items()}, strict)
    assert list(parse_queues(text)[0]) == list(weights)


@pytest.mark.parametrize("name", ["pinlater.toml", "pyproject.toml", "other.toml"])
def test_every_key_of_toml(folder: Path, name: str) -> None:
    text = FULL.replace("[queues.", "[tool.pinlater.queues.") if name == "pyproject.toml" else FULL
    (folder / name).write_text(f"[tool.pinlater]\n{text}" if name == "pyproject.toml" else text)
    options = options_of({"app": None, "strict": None}, Path(name) if name == "other.toml" else None)
    assert options == RunOptions(
        app="shop:app",
        include=["shop.emails"],
        url="redis://there:1",
        concurrency=20,
        processes=2,
        max_jobs=1000,
        memory_mb=500,
        stop_timeout=5.5,
        log_format="json",
        log_success=True,
        http="127.0.0.1:9100",
        queues={"mail": QueueOptions(weight=3), "video": QueueOptions(concurrency=1, processes=4, memory_mb=2000)},
    )


def test_the_command_line_goes_before_toml(folder: Path) -> None:
    (folder / "pinlater.toml").write_text(FULL)
    given: dict[str, Any] = {"app": "other:app", "queues": "mail:5,video,new", "concurrency": 7, "http": None}
    options = options_of(given, None)
    assert (options.app, options.concurrency, options.processes, options.http) == ("other:app", 7, 2, "127.0.0.1:9100")
    assert options.queues == {
        "mail": QueueOptions(weight=5),
        "video": QueueOptions(concurrency=1, processes=4, memory_mb=2000),
        "new": QueueOptions(),
    }


def test_times_in_toml_may_have_a_unit(folder: Path) -> None:
    (folder / "pinlater.toml").write_text('stop_timeout = "2m"\nloop_timeout = "500ms"')
    with pytest.raises(InvalidArgument, match=r"loop_timeout: expected seconds, 1 to 86400, got 0\.5"):
        options_of({"app": "a:b"}, None)
    options = options_of({"app": "a:b", "loop_timeout": 30.0}, None)
    assert (options.stop_timeout, options.loop_timeout) == (120, 30)


def test_no_http(folder: Path) -> None:
    (folder / "pinlater.toml").write_text("http = false")
    assert options_of({"app": "a:b"}, None).http is None
    assert options_of({"app": "a:b", "http": ":1"}, None).http == ":1"
    (folder / "pinlater.toml").write_text("http = ':9100'")
    assert options_of({"app": "a:b", "http": ""}, None).http is None


def test_a_run_lets_the_archive_of_toml_alone_but_checks_its_url(folder: Path) -> None:
    (folder / "pinlater.toml").write_text('concurrency = 3\narchive = "mysql://u:p@h/x"')
    assert options_of({"app": "a:b"}, None) == RunOptions(app="a:b", concurrency=3)


def test_pinlater_toml_goes_before_pyproject(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.pinlater]\nconcurrency = 3")
    assert options_of({"app": "a:b"}, None).concurrency == 3
    (folder / "pinlater.toml").write_text("concurrency = 4")
    assert options_of({"app": "a:b"}, None).concurrency == 4


@pytest.mark.parametrize(
    ("text", "said"), [("tool = 3", "tool: expected a table, got 3"), ("[tool]\npinlater = 'x'", "")]
)
def test_a_pyproject_without_such_a_table(folder: Path, text: str, said: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidArgument, match=said or "pinlater: expected a table, got 'x'"):
        options_of({"app": "a:b"}, None)


def slots(app: PinLater) -> list[str]:
    """Where its two kinds of clients would go."""

    async def of_loop() -> list[str]:
        async with parts_of(app).clients.new() as client:
            return [str(shard) for shard in client.session.shards.values()]

    with app:
        found = [str(shard) for shard in parts_of(app).clients.sync().session.shards.values()]
        assert asyncio.run(of_loop()) == found
    return found


def test_a_producer_finds_the_servers_of_toml(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PINLATER_URL", raising=False)
    embedded = slots(PinLater())
    (folder / "pyproject.toml").write_text("[tool.other]")
    assert slots(PinLater()) == embedded
    (folder / "pyproject.toml").write_text('[tool.pinlater]\nurl = "redis://three:3"')
    assert slots(PinLater()) == ["shard 1 (redis://three:3)"]
    (folder / "pinlater.toml").write_text('[shards]\na = "redis://one:1"\nb = "redis://two:2"')
    assert slots(PinLater()) == ["shard a (redis://one:1)", "shard b (redis://two:2)"]
    monkeypatch.setenv("PINLATER_URL", "redis://four:4")
    assert slots(PinLater()) == ["shard 1 (redis://four:4)"]
    assert slots(PinLater("redis://five:5")) == ["shard 1 (redis://five:5)"]
    monkeypatch.delenv("PINLATER_URL")
    for text, said in (
        ("url = 5", r"pinlater\.toml: url: expected a URL, got 5"),
        ('shards = "x"', r"pinlater\.toml: shards: expected names and URLs, got .a malformed URL."),
        ("x = [", r"pinlater\.toml is not TOML"),
    ):
        (folder / "pinlater.toml").write_text(text)
        with pytest.raises(InvalidArgument, match=said):
            PinLater().send("task")


def test_every_command_finds_the_servers_of_toml(
    folder: Path, run: Run, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PINLATER_URL")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    (folder / "pinlater.toml").write_text(f'url = "{server.url}"\nconcurrency = 3')
    assert run("queue", "create", "mail").code == DONE
    assert run("job", "enqueue", "mail", "x").code == DONE
    with Client(server.url) as client:
        assert client.count("mail").pending == 1
    assert list(run("version", "--json").document["servers"]) == [server.url]
    assert {finding["subject"] for finding in run("doctor", "--json").document["findings"]} >= {server.url}
    assert not (folder / "state").exists()

    roles: list[Any] = []
    for name in ("worker_command.run_handler", "monitor_command.run_monitor"):
        monkeypatch.setattr(f"pinlater.running.{name}", lambda *_, shards, **__: roles.append(shards))
    for arguments in (["worker", "tests.support.handlers_for_tests:nothing", "--queue", "mail"], ["monitor"]):
        monkeypatch.delenv("PINLATER_URL", raising=False)  # a worker names the servers for its processes there
        assert run(*arguments).code == DONE
    assert roles == [{"1": server.url}] * 2


def test_the_command_line_goes_before_the_environment_and_that_before_toml(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def servers(*options: str) -> list[str]:
        return list(run("version", "--json", "--timeout", "0.1", *options).document["servers"])

    one, two, three = (f"redis://127.0.0.1:{port}" for port in (1, 2, 3))
    (folder / "pinlater.toml").write_text(f'[shards]\na = "{one}"')
    monkeypatch.setenv("PINLATER_URL", two)
    assert servers("--url", three) == servers("--shard", f"1={three}") == [three]
    assert servers() == [two]
    monkeypatch.delenv("PINLATER_URL")
    assert servers() == [one]
    (folder / "pinlater.toml").write_text("url = 5")
    ran = run("queue", "ls")
    assert (ran.code, ran.err) == (USAGE, "error: pinlater.toml: url: expected a URL, got 5\n")


def test_a_run_with_a_file_of_its_own_takes_no_servers_of_another(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str]] = []

    def run_app(*_: object, **__: object) -> int:
        found.append(slots(PinLater()))
        return DONE

    monkeypatch.setattr("pinlater.running.run_command.run_app", run_app)
    (folder / "pinlater.toml").write_text('url = "redis://one:1"')
    (folder / "none.toml").write_text("concurrency = 3")
    (folder / "own.toml").write_text('[shards]\na = "redis://two:2"')
    for options in (
        [],
        ["--config", "none.toml"],
        ["--config", "own.toml"],
        ["--config", "none.toml", "--url", "redis://x"],
    ):
        monkeypatch.delenv("PINLATER_URL", raising=False)
        assert run("run", "examples.mail:app", *options).code == DONE
    assert found == [
        ["shard 1 (redis://one:1)"],
        ["shard 1 (embedded://)"],
        ["shard a (redis://two:2)"],
        ["shard 1 (redis://x)"],
    ]
    monkeypatch.setenv("PINLATER_URL", "redis://three:3")
    assert run("run", "examples.mail:app", "--config", "own.toml").code == DONE
    assert found[-1] == ["shard 1 (redis://three:3)"]


def test_queues_with_processes_of_their_own_are_apart() -> None:
    queues = {"a": QueueOptions(), "b": QueueOptions(weight=2), "c": QueueOptions(processes=3)}
    together, apart = RunOptions(app="x:y", queues=queues).groups(queues)
    assert (list(together.queues), together.processes) == (["a", "b"], 1)
    assert (list(apart.queues), apart.processes) == (["c"], 3)
    assert together.config(together.queues).order == QueueOrder(weights={"b": 2})
    assert together.arguments()[-2:] == ["--queues", "a:1,b:2"]
    isolated = RunOptions(app="x:y", isolate=True, strict=True).groups(["a", "b"])
    assert [list(group.queues) for group in isolated] == [["a"], ["b"]]
    assert not any(group.strict for group in isolated)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("conccurrency = 1", r"pinlater.toml: unknown key 'conccurrency'; did you mean 'concurrency'\? expected one"),
        ("watch = true", "unknown key 'watch'"),
        (
            "archive = 'redis://h'",
            r"archive URL 'redis://h' \(from .*pinlater.toml\): expected a URL that begins with mysql://",
        ),
        ("archive = true", "expected a str, got True"),
        (
            "[queues.a]\nwieght = 1",
            r"unknown key 'wieght' in \[queues.a\]; did you mean 'weight'\? expected one of",
        ),
        ("[queues.a]\nrat = '5/m'", r"unknown key 'rat' in \[queues.a\]; did you mean 'rate'\?"),
        ("[queues.a]\nrate = 'fast'", "pinlater.toml: queues.a: rate: expected jobs in a time such as 100/s"),
        ("[queues.a]\nrate = true", "pinlater.toml: queues.a: rate: expected jobs in a time"),
        ("[queues.a]\nburst = 5", "pinlater.toml: queues.a: burst: expected a rate beside it"),
        ("[queues.a]\nmax_running = 0", "pinlater.toml: queues.a: max_running: expected an integer from 1"),
        ("queues = 'a'", "queues: expected a table, got 'a'"),
        ("[queues]\na = 3", "queues.a: expected a table, got 3"),
        ("shards = 1", "shards: expected a table"),
        ("app = 1", "app: expected MODULE:APP, got 1"),
        ("include = 'shop.emails'", "include: expected a list of module names, got 'shop.emails'"),
        ("strict = 'yes'", "strict: expected true or false, got 'yes'"),
        ("log_success = 1", "log_success: expected true or false, got 1"),
        ("isolate = 1", "isolate: expected true or false, got 1"),
        ("concurrency = 0", "concurrency: expected an integer from 1"),
        ("processes = 257", "processes: expected an integer from 1 to 256, got 257"),
        ("max_jobs = 0", "max_jobs: expected an integer"),
        ("memory_mb = 1.5", "memory_mb: expected an integer"),
        ("stop_timeout = -1", "pinlater.toml: stop_timeout: expected a time such as 30s, .*, or seconds, got -1"),
        ("stop_timeout = true", "pinlater.toml: stop_timeout: expected a time such as 30s, .*, or seconds, got True"),
        (
            "stop_timeout = '5 minutes'",
            "pinlater.toml: stop_timeout: expected a time such as 30s, 5m, 2h or 1d, or sec",
        ),
        ("loop_timeout = ''", "pinlater.toml: loop_timeout: expected a time such as 30s"),
        ("http = true", "http: expected HOST:PORT"),
        ("log_format = 'xml'", "log_format: expected text or json, got 'xml'"),
        ("http = 9100", "http: expected HOST:PORT, such as 127.0.0.1:9100, got 9100"),
        ("http = 'localhost'", "http: expected HOST:PORT"),
        ("url = 3", "url: expected a URL, got 3"),
        ("[shards]\n1 = 2", "shards: expected names and URLs, got"),
        ("[queues.a-b]", "queue name: expected"),
        ("[queues.a]\nweight = 1001", "queue 'a': weight: expected an integer from 1 to 1,000"),
        ("[queues.a]\nconcurrency = 0", "queue 'a': concurrency: expected an integer"),
        ("[queues.a]\nprocesses = true", "queue 'a': processes: expected an integer"),
        ("[queues.a]\nmemory_mb = 0", "queue 'a': memory_mb: expected an integer"),
        (
            "[queues.a]\nmemory_mb = 9\nweight = 2",
            "queue 'a': expected no weight for a queue with processes of its own",
        ),
        (
            "isolate = true\n[queues.a]\nweight = 2",
            "queue 'a': expected no weight for a queue with processes of its own",
        ),
        ("strict = true\n[queues.a]\nweight = 2\n[queues.b]", "expected weights or strict, got both"),
        ("x = [", "pinlater.toml is not TOML"),
    ],
)
def test_bad_toml_is_an_error(folder: Path, text: str, said: str) -> None:
    (folder / "pinlater.toml").write_text(text)
    with pytest.raises(InvalidArgument, match=said):
        options_of({} if text.startswith("app") else {"app": "x:y"}, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "app: expected MODULE:APP, on the command line or as `app` in TOML, got none"),
        (["x:y", "--config", "nowhere.toml"], "config: nowhere.toml can not be read: No such file"),
        (["x:y", "--queues", "a:b"], "queues: expected NAME or NAME:WEIGHT, got 'a:b'"),
        (["x:y", "--queues", "a>b,c"], "queues: expected A:3,B:1 or A>B, got 'a>b,c'"),
        (["x:y", "--queues", "a:3,b", "--strict"], "expected weights or strict, got both"),
        (["x:y", "--queues", "a,a"], "queues: 'a' is named twice"),
        (["x:y", "--http", "80"], "http: expected HOST:PORT"),
        (["examples.mail:app", "--http", "192.0.2.1:1"], "http: cannot listen on 192.0.2.1:1"),
    ],
)
def test_bad_arguments_are_errors(folder: Path, run: Run, arguments: list[str], said: str) -> None:
    ran = run("run", *arguments)
    assert ran.code == USAGE
    assert said in ran.err


def test_the_page_has_what_there_is(folder: Path) -> None:
    from pinlater.running.metrics import FAMILIES

    (folder / "pinlater.toml").write_text(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0])
    options = options_of({}, None)
    assert [list(group.queues) for group in options.groups(options.queues)] == [["mail", "reports"], ["video"]]
    keys = " ".join(cell for _, cell, *_ in table(PAGE, "options"))
    named = {"queues", "shards", *re.findall(r"`(\w+)`", keys)}
    assert {field.name for field in fields(RunOptions)} - {"burst", "watch", "create"} == named
    documented = [row[0].strip("`") for text in (PAGE, page("thrift")) for row in table(text, "metrics")]
    assert sorted(FAMILIES) == sorted(documented)


def test_addresses() -> None:
    assert parse_address("127.0.0.1:9100") == ("127.0.0.1", 9100)
    assert parse_address(":0") == (None, 0)
    assert parse_address("[::1]:80") == ("::1", 80)
    for text in ("::1:80", "a:b", "a:70000", ""):
        with pytest.raises(InvalidArgument, match="http: expected HOST:PORT"):
            parse_address(text)


class Reporting:
    """The part of a process that a status reads."""

    def __init__(self, process_set: ProcessSet, pid: int, reported_s: float, ready: bool, jobs: int) -> None:
        self.process_set, self.pid, self.reported_s, self.ready = process_set, pid, reported_s, ready
        self.report = {"samples": {"pinlater_claimed_jobs_total": {"": jobs}, "pinlater_running_jobs": {"": 1}}}


def test_the_sum_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    sets = [ProcessSet(command=[name], name=name) for name in "ab"]
    status = SupervisorStatus(sets)
    health, readiness, metrics = status.answers().values()
    processes: list[Any] = [Reporting(sets[0], 1, 99.0, True, 5), Reporting(sets[1], 2, 99.0, False, 7)]
    for process in processes:
        status.reported(process)
    assert (health().status, readiness()) == (200, (503, "not ready: b: 2 is not: it starts\n", readiness().type))
    assert "pinlater_claimed_jobs_total 12\n" in metrics().text
    processes[1].ready = True
    assert readiness().status == 200
    processes[1].reported_s = 100.0 - STALE_S - 1
    assert health()[:2] == (503, "no report from process 2 for 10 s\n")
    assert readiness()[:2] == (503, "not ready: b: 2 has sent no report for 10 s\n")
    status.ended(processes[0], "memory")
    text = metrics().text
    assert "pinlater_claimed_jobs_total 12\n" in text  # counts stay, what runs does not
    assert "pinlater_running_jobs 1\n" in text
    assert "pinlater_processes 1\n" in text
    assert 'pinlater_process_restarts_total{reason="memory"} 1\n' in text


def test_unknown_names_keep_their_labels_when_processes_end() -> None:
    process_set = ProcessSet(command=["w"], name="w")
    status = SupervisorStatus([process_set])
    processes: list[Any] = [Reporting(process_set, pid, 0.0, True, 0) for pid in range(3)]
    for process in processes:
        names = {f'{{task="{process.pid}-{number}"}}': 1 for number in range(80)}
        process.report = {"samples": {"pinlater_unknown_tasks_total": names}}
        status.reported(process)

    def samples() -> list[str]:
        text = status.answers()["/metrics"]().text
        return sorted(line for line in text.splitlines() if line.startswith("pinlater_unknown"))

    before = samples()
    assert len(before) == 101
    assert 'pinlater_unknown_tasks_total{task="(other)"} 140' in before
    for process in processes[::-1]:
        status.ended(process, "recycled")
        assert samples() == before


def test_unknown_names_are_bounded_and_escaped() -> None:
    from pinlater.running.metrics import Samples, add, text

    total: Samples = {}
    for number in range(150):
        add(total, {"pinlater_unknown_tasks_total": {f'{{task="{number}"}}': 1}})
    assert len(total["pinlater_unknown_tasks_total"]) == 101
    assert 'pinlater_unknown_tasks_total{task="(other)"} 50\n' in text(total)


def test_slots_go_to_the_sets_of_their_names_and_then_to_any() -> None:
    def sets(**processes: int) -> list[ProcessSet]:
        return [ProcessSet(command=[name], name=name, processes=count) for name, count in processes.items()]

    old, none = rearrange([], sets(a=2, b=1, c=1))
    assert ([slot.process_set.name for slot in old], none) == (["a", "a", "b", "c"], [])
    a, more, b, c = old
    assert rearrange(old, sets(b=1, a=1, c=1)) == ([b, a, c], [more])
    again, left = rearrange(old, sets(d=1, b=2, a=2))
    assert ([slot.process_set.name for slot in again], left) == (["d", "b", "b", "a", "a"], [])
    assert (again[0], again[1], again[3:]) == (c, b, [a, more])
    assert again[2] not in old
