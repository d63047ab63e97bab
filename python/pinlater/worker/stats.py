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

    claims: answered claim calls. failed: attempts that failed. postponed: jobs put back in line by their handler.
    stale: jobs whose claim was lost before they ended. released: jobs handed back at a stop. cancelled: jobs that were
    removed while they were held here.
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
    """Counts of such classes by name: as fields of a log record, and for in_words."""
    return {field.name: getattr(each, field.name) for each in stats for field in fields(each)}


def in_words(counts: Mapping[str, Any]) -> str:
    """`12 claimed, 10 succeeded, 2 failed`: what is not 0. Of counts by name the sum and the first names."""
    told = []
    for name, count in counts.items():
        if isinstance(count, Mapping) and count:
            told.append(f"{sum(count.values())} {name} ({', '.join(map(repr, islice(count, MOST_NAMES)))})")
        elif count and name != "claims":
            told.append(f"{count} {name}")
    return ", ".join(told) or "nothing was claimed"
