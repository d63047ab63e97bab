"""Watches the Python files of an app, for `pinlater run --watch`.

Promises one look a second, by modification times. Risks: a program of many thousand files makes that look slow; it is
for development.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

LOOK_S: Final = 1.0
_NOT_OURS: Final = {"__pycache__", "node_modules", "site-packages"}


def folder_of(app: str) -> Path:
    """Where the app of `module:app`, which is imported, has its code: its package, or the folder of its module."""
    file = sys.modules[app.partition(":")[0].partition(".")[0]].__file__
    return Path(file).resolve().parent if file else Path.cwd()


async def watch(folder: Path, changed: Callable[[], None]) -> None:
    """Calls `changed` after each look that finds a .py file new, gone or written. For ever."""
    seen = _look(folder)
    while True:
        await asyncio.sleep(LOOK_S)
        now = _look(folder)
        if now != seen:
            seen = now
            changed()


def _look(folder: Path) -> dict[str, int]:
    return dict(_files(str(folder)))


def _files(folder: str) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # it went meanwhile
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _NOT_OURS:
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path, entry.stat().st_mtime_ns
        except OSError:
            continue
