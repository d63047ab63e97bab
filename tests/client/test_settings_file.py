"""Which servers are chosen, and who says where the choice came from.

Promises: each origin is seen in an error, in the doctor and in a worker's first line.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pinlater import Client, InvalidArgument, PinLater, Queue, ServerUnavailable
from pinlater.cli.command_base import DONE, NO, SERVER, USAGE
from pinlater.client import settings_file
from pinlater.running.read_options import options_of
from pinlater.store.shards import ORIGIN_VARIABLE, resolve_shards
from tests.support.cli_runs import Run, environment, run
from tests.support.servers import Server, free_port

__all__ = ["environment", "run"]  # fixtures

ONE_TASK = "from pinlater import PinLater\napp = PinLater()\n@app.task\ndef work(): ...\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a file at its root and one above it. The working directory is two levels below the root."""
    root = tmp_path / "repository"
    (root / "src" / "shop").mkdir(parents=True)
    (root / ".git").mkdir()
    (tmp_path / "pinlater.toml").write_text('url = "redis://outside:1"')
    (root / "pinlater.toml").write_text('url = "redis://:secret@root:1"\nconcurrency = 3')
    monkeypatch.chdir(root / "src" / "shop")
    monkeypatch.delenv("PINLATER_URL", raising=False)
    return root


def test_the_file_is_searched_upward_to_the_root_of_the_repository(repository: Path) -> None:
    assert str(settings_file.servers()) == f"redis://***@root:1 (from {repository}/pinlater.toml)"
    assert options_of({"app": "a:b"}, None).concurrency == 3

    nearer = repository / "src" / "pyproject.toml"
    nearer.write_text("[tool.other]\nx = 1")  # none of ours: the search goes on
    assert settings_file.servers().origin == f"from {repository}/pinlater.toml"
    nearer.write_text('[tool.pinlater]\nurl = "redis://near:1"')
    assert str(settings_file.servers()) == f"redis://near:1 (from {nearer})"
    nearer.write_text("[tool.pinlater]\nurl = 5")
    with pytest.raises(InvalidArgument, match=f"^{nearer}: url: expected a URL, got 5"):
        settings_file.servers()


def test_the_search_ends_at_the_root_and_in_no_repository_at_once(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "pinlater.toml").unlink()
    assert settings_file.servers().origin == "the default"
    monkeypatch.chdir(repository)
    assert settings_file.servers().origin == "the default"
    (repository / ".git").rmdir()
    (repository / "pinlater.toml").write_text('url = "redis://root:1"')
    assert settings_file.servers().origin == f"from {repository}/pinlater.toml"
    monkeypatch.chdir(repository / "src")
    assert settings_file.servers().origin == "the default"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ('url = "embedded://./data"', {"1": "{}/data"}),
        ('url = "a=embedded://./a,b=embedded://../b?fsync=always"', {"a": "{}/a", "b": "{}/../b?fsync=always"}),
        ('[shards]\na = "embedded://./a"\nb = "redis://there:1"', {"a": "{}/a", "b": "redis://there:1"}),
    ],
)
def test_paths_are_relative_to_the_directory_of_the_file(repository: Path, text: str, urls: dict[str, str]) -> None:
    (repository / "pinlater.toml").write_text(text)
    found = {name: url.removeprefix("embedded://") for name, url in settings_file.servers().items()}
    assert found == {
        name: url.replace("{}/..", str(repository.parent)).format(repository) for name, url in urls.items()
    }


def test_a_shard_of_the_file_may_be_dequeue_only(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = repository / "pinlater.toml"
    file.write_text('[shards]\n1 = "redis://a:1"\n2 = { url = "embedded://./b", dequeue_only = true }')
    found = settings_file.servers()
    directory = f"embedded://{repository}/b"
    assert (found, found.dequeue_only) == ({"1": "redis://a:1", "2": directory}, frozenset("2"))
    assert str(found) == f"1=redis://a:1, 2={directory} (dequeue-only) (from {file})"
    assert options_of({"app": "a:b"}, None).shards
    file.write_text("[shards]\n2 = { url = 'redis://:pw@b', dequeue_onyl = true }")
    expected = "shards.2: unknown key 'dequeue_onyl'; did you mean 'dequeue_only'? expected one of url, dequeue_only"
    for read in (settings_file.servers, lambda: options_of({"app": "a:b"}, None)):
        with pytest.raises(InvalidArgument) as raised:
            read()
        assert expected in str(raised.value)
    file.write_text("[shards]\n2 = 5")
    with pytest.raises(InvalidArgument, match=f"^{file}: shards: expected names and URLs, got 2 = 5$"):
        settings_file.servers()


@pytest.mark.thorough("processes")
def test_worker_processes_and_commands_know_which_shards_are_dequeue_only(
    repository: Path, environment: dict[str, str], run: Run, server: Server
) -> None:
    shards = f'1 = "{server.url}"\n2 = {{ url = "{server.url}", dequeue_only = true }}'
    (repository / "pinlater.toml").write_text(f"[shards]\n{shards}")
    Path("shop.py").write_text(ONE_TASK)
    command = [sys.executable, "-m", "pinlater", "run", "shop:app", "--burst", "--processes", "2"]
    log = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stderr
    said = f"servers: 1={server.url}, 2={server.url} (dequeue-only) (from {repository}/pinlater.toml)"
    assert len([line for line in log.splitlines() if line.endswith(said)]) == 3

    named = ["--shard", f"1={server.url}", "--shard", f"2:dequeue_only={server.url}"]
    for chosen in (["--url", f"1={server.url},2:dequeue_only={server.url}"], named):
        assert "2 (dequeue-only)" in run("queue", "info", "default", *chosen).out
        states = run("queue", "info", "default", "--json", *chosen).document["shards"]
        assert [state["dequeue_only"] for state in states] == [False, True]
        assert "dequeue-only, so without new jobs: shard 2" in run("queue", "ls", *chosen).err
        enqueued = [run("job", "enqueue", "default", "x", *chosen).out for _ in range(6)]
        assert all(":s1:" in descriptor for descriptor in enqueued)
    wrong = run("queue", "ls", "--shard", f"2:drained={server.url}")
    assert wrong.code == USAGE
    assert "expected NAME=URL or NAME:dequeue_only=URL, got 2:drained=…" in wrong.err


def test_a_file_names_one_url_or_shards(repository: Path) -> None:
    (repository / "pinlater.toml").write_text('url = "redis://a"\n[shards]\na = "redis://a"')
    with pytest.raises(InvalidArgument, match="expected url or shards, got both"):
        PinLater().send("task")


def test_errors_and_the_doctor_say_where_the_choice_came_from(
    repository: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    shown = url.replace(":secret", "***")
    (repository / "pinlater.toml").write_text(f'url = "{url}"')
    monkeypatch.setenv("PINLATER_URL", url)
    for arguments, origin in (
        (["--url", url], "from an argument"),
        (["--shard", f"1={url}"], "from an argument"),
        ([], "from PINLATER_URL"),
        ([], f"from {repository}/pinlater.toml"),
    ):
        if origin.endswith(".toml"):
            monkeypatch.delenv("PINLATER_URL")
        ran = run("queue", "ls", "--timeout", "0.1", *arguments)
        assert ran.code == SERVER
        assert f"server {shown} ({origin}): not reached: " in ran.err
        looked = run("doctor", "--json", "--timeout", "0.1", *arguments)
        assert looked.code == NO
        assert [each["found"] for each in looked.document["findings"] if each["check"] == "chosen"] == [origin]
        assert "secret" not in ran.err + looked.out
    with pytest.raises(ServerUnavailable, match=re.escape(f"server {shown} (from an argument): not reached")):
        Client(url, timeout_s=0.1).queue_names()
    with pytest.raises(ServerUnavailable, match=re.escape(f"(from {repository}/pinlater.toml): not reached")):
        PinLater(timeout_s=0.1).send("task")


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("processes", [1, 2])
def test_the_first_line_of_every_worker_names_the_servers(
    repository: Path, environment: dict[str, str], server: Server, processes: int
) -> None:
    file = repository / "pinlater.toml"
    file.write_text(f'url = "{server.url}"')
    Path("shop.py").write_text(ONE_TASK)
    command = [sys.executable, "-m", "pinlater", "run", "shop:app", "--burst", "--processes", str(processes)]
    log = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stderr
    lines = log.splitlines()
    said = f"servers: {server.url} (from {file})"
    assert lines[0].endswith(said)
    assert len([line for line in lines if line.endswith(said)]) == (1 if processes == 1 else 3)


def test_a_variable_that_changed_after_a_command_set_it_is_its_own_origin(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINLATER_URL", "redis://before:1")
    monkeypatch.setenv(ORIGIN_VARIABLE, "")
    resolve_shards(None, {"1": "redis://a:1"}).export()
    assert os.environ["PINLATER_URL"] == "1=redis://a:1"
    assert str(settings_file.servers()) == "redis://a:1 (from an argument)"
    monkeypatch.setenv("PINLATER_URL", "redis://b:1")
    assert str(settings_file.servers()) == "redis://b:1 (from PINLATER_URL)"


def test_a_command_says_that_it_started_an_empty_embedded_server(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "pinlater.toml").write_text('url = "embedded://./.pinlater"')

    def said(*arguments: str) -> str:
        command = [sys.executable, "-m", "pinlater", *arguments]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert ran.returncode == DONE
        return ran.stderr

    empty = f"started an empty server in {tmp_path}/.pinlater: it has no queues yet\n"
    assert said("queue", "ls").startswith(empty)
    assert empty in said("queue", "create", "mail")
    assert empty not in said("queue", "ls")
    assert (tmp_path / ".pinlater" / ".gitignore").read_text() == "*\n"


def test_limits_of_queues_stand_in_the_found_file_alone(repository: Path) -> None:
    (repository / "pinlater.toml").write_text(
        """
        [queues.mail]
        rate = "100/s"
        burst = 20
        [queues.video]
        max_running = 10
        processes = 2
        [queues.night]
        spill_above = "5M"
        restore_below = 1_000_000
        horizon = "24h"
        refuse_above = "10M"
        [queues.reports]
        """
    )
    assert settings_file.queues() == {
        "mail": Queue("mail", rate=100, burst=20),
        "video": Queue("video", max_running=10),
        "night": Queue("night", spill_above="5M", restore_below=1_000_000, horizon="24h", refuse_above="10M"),
    }
    assert list(options_of({"app": "a:b"}, None).queues) == ["video", "reports"]  # mail and night have settings alone
    assert list(options_of({"app": "a:b"}, repository / "pinlater.toml").queues) == ["video", "reports"]

    other = repository / "other.toml"
    other.write_text("[queues.mail]\nrate = 5")
    with pytest.raises(InvalidArgument, match=rf"^{other}: queues.mail: expected its settings in pinlater.toml, which"):
        options_of({"app": "a:b"}, other)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rat = 5", r"unknown key 'rat' in \[queues.mail\]; did you mean 'rate'\? expected one of weight, "),
        ("zzz = 5", r"unknown key 'zzz' in \[queues.mail\]; expected one of weight, "),
        ("rate = -1", "queues.mail: rate: expected jobs in a time"),
        ("rate = 5\nburst = 0", "queues.mail: burst: expected an integer from 1"),
        ("max_running = 2.5", "queues.mail: max_running: expected an integer from 1"),
        ("spill_above = '5X'", "queues.mail: spill_above: expected a number such as 5M, 500k or 1000, got '5X'"),
        ("horizon = '1 week'", "queues.mail: horizon: expected a time such as 30s, 5m, 2h or 1d"),
        ("horizon_ms = 90000", r"unknown key 'horizon_ms' in \[queues.mail\]; did you mean 'horizon'"),
    ],
)
def test_wrong_limits_of_a_queue(repository: Path, text: str, said: str) -> None:
    (repository / "pinlater.toml").write_text(f"[queues.mail]\n{text}")
    with pytest.raises(InvalidArgument, match=f"^{repository}/pinlater.toml: {said}"):
        settings_file.queues()


def test_a_program_without_limits_in_its_file_has_none(repository: Path) -> None:
    (repository / "pinlater.toml").write_text("[queues.mail]\nweight = 5")
    assert settings_file.queues() == {}
    (repository / "pinlater.toml").unlink()
    assert settings_file.queues() == {}
