"""The progress of long commands, on stderr, for people who wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from pinlater.cli.output import count


@contextmanager
def counting(what: str, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Shows `what: 12,345` while the block runs, which sets the number. Only a terminal shows it."""
    console = Console(stderr=True)
    columns = Progress.get_default_columns()[:1]
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda number: progress.update(task, completed=number, description=f"{what}: {count(number)}")


@contextmanager
def moving(what: str, total: int, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Shows a bar, `what: 12,345 of 50,000 jobs, 17,000 jobs/s`, while the block runs, which says how many more moved.
    Only a terminal shows it.
    """
    console = Console(stderr=True)
    since_s, moved = time.monotonic(), 0
    with Progress(console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)

        def advance(number: int) -> None:
            nonlocal moved
            moved += number
            rate = round(moved / max(0.001, time.monotonic() - since_s))
            shown = f"{what}: {count(moved)} of {count(total)} jobs, {count(rate)} jobs/s"
            progress.update(task, completed=moved, description=shown)

        yield advance
