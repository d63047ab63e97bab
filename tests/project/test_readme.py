"""The README's code and commands, run as they are written."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_runs import environment
from tests.support.paths import ROOT
from tests.support.servers import wait_until

__all__ = ["environment"]  # a fixture

README = (ROOT / "README.md").read_text("utf-8")


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


def test_the_five_lines_run(tmp_path: Path, environment: dict[str, str]) -> None:
    first = _blocks("python")[0]
    run = subprocess.run([sys.executable, "-c", first], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.thorough("pages")
def test_the_worker_commands_run(tmp_path: Path, environment: dict[str, str]) -> None:
    handler = next(block for block in _blocks("python") if "thumbs.py" in block)
    (tmp_path / "thumbs.py").write_text(handler)
    create, enqueue, work = re.findall(r"^    (pinlater .* thumbs.*|pinlater .*:handle.*)$", README, re.MULTILINE)
    output = tmp_path / "output"
    for command in (create, enqueue):
        subprocess.run(command, shell=True, check=True, env=environment, cwd=tmp_path, capture_output=True)  # noqa: S602
    with output.open("wb") as sink:
        worker = subprocess.Popen(
            ["sh", "-c", f"exec {work}"],
            env=environment,
            cwd=tmp_path,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: {"b'first'", "b'second'"} <= set(output.read_text().split()), "both jobs handled")
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=60) == 0
    check_the_commands_in_the_text(environment, tmp_path)


def test_the_first_task_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "mail.py").write_text(next(block for block in _blocks("python") if "# mail.py" in block))
    subprocess.run([sys.executable, "mail.py"], env=environment, cwd=tmp_path, check=True)
    [command] = re.findall(r"^    (pinlater run mail:app --processes.*)$", README, re.MULTILINE)
    output = tmp_path / "output"
    with (
        output.open("wb") as sink,
        subprocess.Popen(command.split(), env=environment, cwd=tmp_path, stdout=sink) as run,
    ):
        try:
            wait_until(lambda: output.read_text() == "to ada@example.org: welcome\n", "the mail")
        finally:
            run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 0


@pytest.mark.thorough("pages")
def test_a_project_has_a_server_of_its_own_where_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    pages = README + (ROOT / "docs" / "tasks.md").read_text("utf-8")
    [found] = set(re.findall(r"`(export PINLATER_URL=[^`]+)`", pages))
    for name in ("mail", "shop"):
        (tmp_path / name).mkdir()
        command = ["sh", "-c", f"{found} && pinlater queue create {name} && pinlater queue ls --json"]
        ran = subprocess.run(command, env=environment, cwd=tmp_path / name, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert [queue["queue"] for queue in json.loads(ran.stdout.splitlines()[-1])] == [name]
        assert (tmp_path / name / ".pinlater").is_dir()
    assert not (tmp_path / "state").exists()


def test_the_example_prints_what_it_says(environment: dict[str, str]) -> None:
    folder, *commands = re.findall(
        r"^    (cd examples|(?:python|pinlater run) mail\S*(?: --burst)?) *(?:#.*)?$", README, re.M
    )[1:]
    assert (folder, len(commands)) == ("cd examples", 2)
    for command in commands:
        words = [sys.executable if word == "python" else word for word in command.split()]
        ran = subprocess.run(
            words,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=ROOT / "examples",
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == sorted(re.findall(r"^    (to \S+: .*)$", README, re.MULTILINE))


def check_the_commands_in_the_text(environment: dict[str, str], folder: Path) -> None:
    """Of the queue that the worker's commands made."""
    for command in re.findall(r"`(pinlater (?:job|doctor)\b[^`]*)`", README):
        ran = subprocess.run(command.split(), env=environment, cwd=folder, capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, ""), command
        assert "thumbs" in ran.stdout, command


def test_the_targets_it_names_are_there(environment: dict[str, str]) -> None:
    pages = README + (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = set(re.findall(r"(?:`| {4})make (\w+)", pages))
    assert {"demo", "test"} <= named
    for target in named:
        subprocess.run(["make", "--dry-run", target], env=environment, cwd=ROOT, check=True, capture_output=True)


def test_every_file_it_names_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        file, _, heading = link.partition("#")
        assert (ROOT / file).exists(), link
        headings = re.findall(r"^#+ (.*)$", (ROOT / file).read_text("utf-8"), re.MULTILINE) if heading else []
        assert heading in ("", *(each.lower().replace(" ", "-") for each in headings)), link


def test_every_file_that_contributing_names_is_there() -> None:
    named = re.findall(r"`([a-z_/]+\.(?:py|md|toml)|[a-z_]+/[a-z_/]*)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert named
    assert [
        name for name in named if not any((ROOT / folder / name).exists() for folder in ("", "python/pinlater"))
    ] == []


#: What stands in for the machine's python: nothing, one that says no, one that has no venv; and what make says then.
MISSING = {
    "python": ("python3", None, "missing: Python 3.11 or later", "apt-get install python3"),
    "an old python": ("python3", "exit 1", "missing: Python 3.11 or later", "make PYTHON=python3.12"),
    "venv": (
        "python3",
        'case "$2" in *venv*) exit 1; esac',
        "missing: the venv module",
        "apt-get install python3-venv",
    ),
    "cc": ("cc", None, "missing: a C compiler", "apt-get install gcc libc6-dev"),
    "cargo": ("cargo", None, "missing: Rust 1.85 or later", "rustup.rs"),
}


@pytest.mark.parametrize("what", MISSING)
def test_make_names_what_is_missing_and_how_to_get_it(what: str, tmp_path: Path) -> None:
    tool, stand_in, says, command = MISSING[what]
    tools = {"python3": sys.executable} | {name: f"/bin/{name}" for name in ("sh", "true")}
    tools |= {"find": "/usr/bin/find", "cc": "/bin/true", "cargo": "/bin/true"}
    for name in tools.keys() - {tool}:
        (tmp_path / name).symlink_to(tools[name])
    if stand_in is not None:
        (tmp_path / tool).write_text(f"#!/bin/sh\n{stand_in}\n")
        (tmp_path / tool).chmod(0o755)
    for target in ("demo", "test"):
        make = [shutil.which("make") or "make", "VENV=" + str(tmp_path / "venv"), target]
        ran = subprocess.run(make, env={"PATH": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 2
        [found] = ran.stdout.splitlines()
        assert found.startswith(says)
        assert command in found
