"""docs/cli.md: its commands, run as they are written and in its order, print what it shows; it leaves no option out.

Risk: what follows on from a wall clock may fall on two days.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pinlater.cli import cli
from tests.support.cli_runs import environment
from tests.support.page_runs import check_runs
from tests.support.pages import page, section
from tests.support.requirements import BASH, require

__all__ = ["environment"]  # a fixture

PAGE = page("cli")


@pytest.mark.thorough("pages")
def test_the_commands_print_what_the_page_shows(tmp_path: Path, environment: dict[str, str]) -> None:
    require(BASH)
    check_runs(PAGE, tmp_path, environment)


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
