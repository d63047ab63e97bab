"""Watches a file, and hands each new version on.

Promises that a version which can not be read, or is refused, changes nothing and is logged once. It is handed on again
at each look, until it is taken or replaced. Risks: a change is seen up to an interval late. A change that keeps size,
time and inode of the file is not seen.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from pinlater.model.errors import InvalidArgument, PinLaterError

log: Final = logging.getLogger("pinlater.files")

#: Seconds between two looks at a file.
LOOK_INTERVAL_S: Final = 1.0
#: A larger file is refused.
MAX_BYTES: Final = 16 * 1024 * 1024

#: Gets the bytes of a new version. Raises PinLaterError for one that it refuses.
Take: TypeAlias = Callable[[bytes], Awaitable[None]]
#: What tells two versions of a file apart: the time of its last change (ns), size, inode, device.
_Signature: TypeAlias = tuple[int, int, int, int]


class FileWatch:
    """A file that may change while the program runs.

    interval_s: seconds between two looks.
    """

    def __init__(self, path: Path, *, interval_s: float = LOOK_INTERVAL_S) -> None:
        self._path, self._interval_s = path, interval_s
        self._seen: _Signature | None = None
        self._logged = ""
        self._task: asyncio.Task[None] | None = None

    def read(self) -> bytes:
        """The file as it is now. What changes from here on is a new version. Raises InvalidArgument."""
        try:
            with self._path.open("rb") as file:
                # of these bytes, or of earlier ones: then the next look reads the file again
                self._seen = _signature_of(os.fstat(file.fileno()))
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise self._unreadable(error) from None
        if len(data) > MAX_BYTES:
            raise InvalidArgument(f"{self._path}: expected at most {MAX_BYTES:,} bytes, got more")
        return data

    def start(self, take: Take) -> None:
        """Looks in the background until stop()."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(take), name=f"pinlater-watch {self._path}")

    async def stop(self) -> None:
        """Ends the looks; unstarted or twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def look(self, take: Take) -> bool:
        """Hands the file on if it has changed. Returns whether a new version was taken."""
        try:
            changed = self._has_changed()
            if changed:
                await take(self.read())
                log.info("%s: its new version is in use", self._path)
            self._logged = ""
            return changed
        except PinLaterError as error:
            self._log_once(str(error))
        except Exception as error:
            self._log_once(f"{self._path}: an unexpected error: {error!r}")
        self._seen = None  # what it was refused for may be elsewhere, such as a server that is away
        return False

    async def _run(self, take: Take) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look(take)

    def _has_changed(self) -> bool:
        try:
            return _signature_of(self._path.stat()) != self._seen
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> InvalidArgument:
        return InvalidArgument(f"{self._path} can not be read: {error.strerror}")

    def _log_once(self, message: str) -> None:
        if message != self._logged:
            self._logged = message
            log.error("%s; the last good version stays in use", message)


def _signature_of(found: os.stat_result) -> _Signature:
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
