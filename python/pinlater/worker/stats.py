"""What a worker counts, and these counts in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Final

#: Of counts by name, so many names are shown.
MOST_NAMES: Final = 5


@dataclass(slots=True)
class WorkerStats:
    """Counts since the start.

    claims: answered claim calls.
    claimed: jobs.
    succeeded: jobs.
    failed: attempts.
    postponed: jobs whose handlers put them off.
    stale: jobs whose claim was lost before they ended.
    released: jobs that a stop gave back.
    cancelled: jobs that were removed while the worker held them.
    """

    claims: int = 0
    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    postponed: int = 0
    stale: int = 0
    released: int = 0
    cancelled: int = 0


def counts_of(*stats: Any) -> dict[str, Any]:
    """Counts of such objects by name: fields of a log record, and what in_words takes."""
    return {field.name: _by_name(getattr(each, field.name)) for each in stats for field in fields(each)}


def _by_name(count: Any) -> Any:
    """Of counts by name and more, such as a queue, those by name. Names are text. A single count stays as it is."""
    if not isinstance(count, Mapping):
        return count
    named: dict[str, int] = {}
    for key, number in count.items():
        name = str(key[0] if isinstance(key, tuple) else key)
        named[name] = named.get(name, 0) + number
    return named


def in_words(counts: Mapping[str, Any]) -> str:
    """`12 claimed, 10 succeeded, 2 failed`: those that are not 0. A mapping counts by its sum, with its first names."""
    parts = []
    for name, count in counts.items():
        if isinstance(count, Mapping) and count:
            parts.append(f"{sum(count.values())} {name} ({', '.join(map(repr, islice(count, MOST_NAMES)))})")
        elif count and name != "claims":
            parts.append(f"{count} {name}")
    return ", ".join(parts) or "nothing was claimed"
