"""Runs the commands of a page as they are written, in its order, and compares what they print with what it shows.

Promises: what differs from run to run (ids, tokens, times, sizes of a server) is compared by its place: the same id
stands for the same job on both sides.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

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
    (r" +late +", "  late  "),
    (r"(?<=\d) +[\d.]+ (?:ms|s) +(?=\d)", "  LATENESS  "),
    (r"(?<=server in )\S+(?=:)", "DIRECTORY"),
)


def page_runs(page: str) -> list[tuple[str, str]]:
    """Each command of a page and what is shown below it."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", page, re.MULTILINE)
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


def check_runs(page: str, directory: Path, environment: dict[str, str]) -> None:
    """Runs the commands of a page in a directory. One whose output begins with `error:` ends with exit code 1."""
    shown: tuple[dict[str, str], Iterator[int]] = ({}, count())
    printed: tuple[dict[str, str], Iterator[int]] = ({}, count())
    runs = page_runs(page)
    assert runs
    for command, expected in runs:
        ran = subprocess.run(
            ["bash", "-c", command],
            env=environment,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert normal(ran.stdout, *printed) == normal(expected, *shown), command
        assert ran.returncode == (1 if expected.startswith("error:") else 0), command
