"""Watches the Python files of an app, for `pinlater run --watch`.

Promises to compare modification times once a second. Risks: many thousand files make this slow. Use --watch for
development only.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

CHECK_S: Final = 1.0
_SKIPPED: Final = {"__pycache__", "node_modules", "site-packages"}


def folder_of(app: str) -> Path:
    """The folder with the code of an imported `module:app`: its package, or that of its module."""
    file = getattr(sys.modules[app.partition(":")[0].partition(".")[0]], "__file__", None)
    return Path(file).resolve().parent if file else Path.cwd()


async def watch(folder: Path, changed: Callable[[], None]) -> None:
    """Calls `changed` when a .py file was added, removed or written. Never returns."""
    before = dict(_files(str(folder)))
    while True:
        await asyncio.sleep(CHECK_S)
        now = dict(_files(str(folder)))
        if now != before:
            before = now
            changed()


def _files(folder: str) -> Iterator[tuple[str, int]]:
    """Paths and modification times."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # it was removed meanwhile
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _SKIPPED:
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path, entry.stat().st_mtime_ns
        except OSError:
            continue
