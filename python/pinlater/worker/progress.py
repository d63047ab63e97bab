"""Lets a worker wait until a job came, ended or was acked, or a stop began."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Progress:
    """For one task that waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.made = self._event.set

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits for the next progress, or for `timeout_s`."""
        self._event.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
