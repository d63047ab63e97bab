"""Lanes that threads take at the same time."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pinlater.store.lanes import LanePool

THREADS = 8
LANES = 50


def switch_at_each_line(*_: Any) -> Any:
    time.sleep(0)  # another thread runs
    return switch_at_each_line


def test_threads_never_share_a_lane() -> None:
    pool = LanePool(bytes(8))

    def take() -> list[bytes]:
        sys.settrace(switch_at_each_line)
        try:
            return [pool.take().field for _ in range(LANES)]
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor(THREADS) as threads:
        taken = [taking.result() for taking in [threads.submit(take) for _ in range(THREADS)]]
    fields = [field for fields in taken for field in fields]
    assert len(set(fields)) == THREADS * LANES
