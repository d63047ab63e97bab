"""The clock by which leases and the TIME of servers are judged.

Promises that time in which the machine was suspended counts: a lease runs out on its server meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

#: Seconds by CLOCK_BOOTTIME; where the system has no such clock, by the monotonic clock.
boot_s: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
