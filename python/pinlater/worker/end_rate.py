"""How fast a worker's jobs end, which limits what it prefetches.

Promises that a job costs one addition.
Risk: in the first tenth of a second nothing is known, so nothing is prefetched.
"""

from __future__ import annotations

import time
from typing import Final

#: The rate is measured over so long, and jobs for so long are prefetched: enough to cover a claim, too little to keep
#: jobs from an idle worker.
PREFETCH_S: Final = 0.1


class EndRate:
    """ended: jobs that ended since the last measurement; the worker adds them."""

    def __init__(self) -> None:
        self.ended = 0
        self._per_s = self._since_s = 0.0

    def begin(self) -> None:
        """Starts the first measurement."""
        self._since_s = time.monotonic()

    def per_s(self) -> float:
        """Jobs that ended a second, in the last measurement."""
        now_s = time.monotonic()
        elapsed_s = now_s - self._since_s
        if elapsed_s >= PREFETCH_S:
            self._per_s = self.ended / elapsed_s
            self._since_s, self.ended = now_s, 0
        return self._per_s
