"""How long a worker claims nothing because of a limit: told once in the log, and counted.

Promises one line of log when a limit begins to hold the worker back, and one when it does so no more. A rate holds a
worker back again and again, so that line comes once it did not for QUIET_S.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pinlater.model.limits import Limit, Rest

log: Final = logging.getLogger("pinlater.worker")

#: A limit that has not held the worker back for so long does so no more.
QUIET_S: Final = 60.0
_REASONS: Final[Mapping[Limit, str]] = {
    Limit.RATE: "claims rest at its rate",
    Limit.MAX_RUNNING: "claims rest, as max_running jobs are in progress",
    Limit.PAUSE: "claims rest, as it is paused",
    Limit.HOME: "claims rest, as the home shard of its limits does not answer",
}


@dataclass(slots=True)
class _Spell:
    """One limit of one queue. since_s: the worker rests since then; None: it does not. ended_s: the last end."""

    since_s: float | None = None
    ended_s: float = float("-inf")
    logged: bool = False


class LimitRests:
    """The rests of one worker."""

    def __init__(self) -> None:
        self._spells: dict[tuple[str, Limit], _Spell] = {}
        self._seconds: dict[tuple[str, Limit], float] = {}

    def rests(self, queue: str, rest: Rest | None) -> None:
        """A claim from the queue was answered. rest: what kept it from jobs; None: nothing did."""
        now_s = time.monotonic()
        for (name, limit), spell in self._spells.items():
            if name == queue and (rest is None or limit is not rest.limit):
                self._end(queue, limit, spell, now_s)
        if rest is not None:
            self._begin(queue, rest.limit, now_s)

    def _begin(self, queue: str, limit: Limit, now_s: float) -> None:
        spell = self._spells.setdefault((queue, limit), _Spell())
        if spell.since_s is None:
            spell.since_s = now_s
        if not spell.logged:
            spell.logged = True
            log.log(logging.WARNING if limit is Limit.HOME else logging.INFO, "queue %s: %s", queue, _REASONS[limit])

    def _end(self, queue: str, limit: Limit, spell: _Spell, now_s: float) -> None:
        if spell.since_s is not None:
            self._seconds[queue, limit] = self._seconds.get((queue, limit), 0.0) + now_s - spell.since_s
            spell.since_s, spell.ended_s = None, now_s
        if spell.logged and (limit is not Limit.RATE or now_s - spell.ended_s >= QUIET_S):
            spell.logged = False
            log.info("queue %s: claims go on", queue)

    def at_home(self) -> bool:
        """Whether the home shard of a queue does not answer."""
        return any(limit is Limit.HOME and spell.since_s is not None for (_, limit), spell in self._spells.items())

    @property
    def seconds(self) -> dict[tuple[str, Limit], float]:
        """How long the worker has rested, by queue and limit."""
        now_s, found = time.monotonic(), dict(self._seconds)
        for key, spell in self._spells.items():
            if spell.since_s is not None:
                found[key] = found.get(key, 0.0) + now_s - spell.since_s
        return found
