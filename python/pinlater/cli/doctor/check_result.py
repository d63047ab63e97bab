"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
ERROR: Final = "error"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A line of the doctor's output.

    level: ok, note, warning or error.
    subject: the server or queue.
    check: the name of the check.
    found: what is there.
    advice: what to do; "" if nothing.
    """

    level: str
    subject: str
    check: str
    found: str
    advice: str = ""
