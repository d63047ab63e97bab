"""One worker process of the demo: `python -m pinlater.demo.worker LOG`, its servers in PINLATER_URL."""

from __future__ import annotations

import logging
import sys

from pinlater.framework.running import run_app
from pinlater.worker import WorkerConfig

#: A short tick, so that the demo shows in seconds what takes half a minute by default.
CONFIG = WorkerConfig(concurrency=4, prefetch=4, tick_s=0.5)

if __name__ == "__main__":
    logging.basicConfig(filename=sys.argv[1], level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    sys.exit(run_app("pinlater.demo.thumbnails:app", config=CONFIG))
