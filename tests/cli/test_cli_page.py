"""docs/cli.md: its commands, run as they are written and in its order, print what it shows; it leaves no option out.

Promises: what differs from run to run (ids, tokens, times, sizes of a server) is compared by its place: the same id
stands for the same job on both sides. Risks: what follows on from a wall clock may fall on two days.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import click
import pytest

from pinlater.cli import cli
from tests.support.cli_runs import environment
from tests.support.pages import page, section
from tests.support.requirements import BASH, require

__all__ = ["environment"]  # a fixture

PAGE = page("cli")
#: Pattern of what differs, and what it becomes; None: its number, by first appearance.
VARYING: tuple[tuple[str, str | None], ...] = (
    (r"\b\d{18}\b", None),
    (r"(?<=@)[0-9a-f]{16}\b", None),
    (r'(?<=_ms":)\d{13}\b', "MS"),
    (r"\d\d:\d\d:\d\d", "TIME"),
    (r"\([\d.]+ (?:ms|s|min) ago\)", "(AGO)"),
    (r"(?<=Valkey )[\d.]+", "VERSION"),
    (r"[\d.]+ MiB used", "SIZE used"),
    (r"[\d.]+ s (?:behind|ahead of)", "OFFSET from"),
    (r"[\d.]+ ms a round trip", "TRIP"),
    (r"(?<=server in )\S+(?=:)", "DIRECTORY"),
)


def page_runs() -> list[tuple[str, str]]:
    """Each command of the page and what is shown below it."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", PAGE, re.MULTILINE)
    lines = [line[4:] for block in blocks if "    $ " in block for line in block.strip("\n").splitlines()]
    runs: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("$ "):
            runs.append((line[2:], ""))
        else:
            command, shown = runs[-1]
            runs[-1] = (command, f"{shown}{line}\n")
    return runs


def normal(text: str, known: dict[str, str], numbers: Iterator[int]) -> str:
    for pattern, becomes in VARYING:

        def replaced(found: re.Match[str], becomes: str | None = becomes) -> str:
            if becomes is not None:
                return becomes
            if found[0] not in known:
                known[found[0]] = f"#{next(numbers)}"
            return known[found[0]]

        text = re.sub(pattern, replaced, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_the_commands_print_what_the_page_shows(tmp_path: Path, environment: dict[str, str]) -> None:
    require(BASH)
    shown: tuple[dict[str, str], Iterator[int]] = ({}, count())
    printed: tuple[dict[str, str], Iterator[int]] = ({}, count())
    runs = page_runs()
    assert runs
    for command, expected in runs:
        ran = subprocess.run(
            ["bash", "-c", command],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert normal(ran.stdout, *printed) == normal(expected, *shown), command
        assert ran.returncode == (1 if expected.startswith("error:") else 0), command


def commands(group: click.Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name, command


@pytest.mark.parametrize("name", [name for name, _ in commands() if name != "version"])
def test_every_command_and_option_stands_on_the_page(name: str) -> None:
    command, text = dict(commands())[name], section(PAGE, name.split()[0])
    assert name in text
    options = [
        option
        for param in command.params
        if not getattr(param, "hidden", False)
        for option in [*param.opts, *param.secondary_opts]
    ]
    named = [option for option in options if option.startswith("--") and option not in ("--json", "--help")]
    assert [option for option in named if not re.search(rf"{option}\b(?!-)", text)] == []


def test_the_options_of_every_command_stand_in_their_section() -> None:
    options = [option for param in cli.params for option in param.opts if option != "--verbose"]
    assert len(options) >= 5
    assert [option for option in options if f"`{option}" not in PAGE] == []


def test_the_page_names_no_option_that_is_not_there() -> None:
    known = {
        option
        for _, command in commands()
        for param in command.params
        for option in [*param.opts, *param.secondary_opts]
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - known == set()
