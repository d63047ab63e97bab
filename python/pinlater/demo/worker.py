"""One worker process of the demo: `python -m pinlater.demo.worker SHARDS QUEUE` (SHARDS as PINLATER_URL has them)."""

from __future__ import annotations

import logging
import sys

from pinlater.demo.thumbnails import make_thumbnail
from pinlater.shards import resolve_shards
from pinlater.supervisor import run_worker
from pinlater.worker import WorkerConfig

#: A short tick and a short wait before a retry, so that the demo shows in seconds what takes half a minute by default.
CONFIG = WorkerConfig(concurrency=4, prefetch=4, retry_delay_ms=300, tick_s=0.5)

if __name__ == "__main__":
    logging.basicConfig(filename=sys.argv[3], level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    sys.exit(run_worker(make_thumbnail, [sys.argv[2]], shards=resolve_shards(sys.argv[1], None), config=CONFIG))
