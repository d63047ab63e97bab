"""PinLater compared with other queues, by the peers' own compare.py and our adapter (benches/peer_pinlater.py).

Promises that the sides of a ratio are measured in one run, in turns, on one server (redis-server). Risks: each figure
is the median of a few readings; compare.py prints their spread.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benches.support import Figure, Options

PYTHON: Final = ("huey", "dramatiq", "taskiq-list", "taskiq-stream", "arq", "saq", "celery", "rq")
#: Settings of peers that are left out: slower ones, and those of several processes.
SKIPPED: Final = (
    "pinlater: defaults; huey: 2 processes; dramatiq: defaults; taskiq-list: defaults; taskiq-stream: defaults;"
    "arq: defaults; saq: defaults; celery: 8 threads; celery: prefork of 2; rq: defaults; bullmq: defaults;"
    "asynq: tuned; asynq: defaults"
)
DRAIN: Final = "drain tuned"
LATENCY: Final = "latency tuned"


def measure(folder: Path, options: Options) -> list[Figure]:
    """Runs compare.py, and makes figures from its results."""
    root = os.environ.setdefault("PEERS_ROOT", str(folder.resolve() / ".peers"))
    with TemporaryDirectory(prefix="pinlater-peers-") as temporary:
        copy, out = Path(temporary) / "peers", Path(temporary) / "results.json"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".peers"))
        shutil.copy(Path(__file__).with_name("peer_pinlater.py"), copy)
        sys.path.insert(0, str(copy))
        compare = importlib.import_module("compare")
        names = [name for name in ("pinlater", *PYTHON, "bullmq", "asynq") if shutil.which(compare.PEERS[name][0])]
        seconds, tries = str(options.scaled(3, 1)), str(options.scaled(3, 1))
        command = [f"{root}/venv/bin/python", "compare.py", "--peers", ",".join(names), "--skip", SKIPPED]
        command += ["--rounds", str(options.rounds), "--tries", tries, "--out", str(out)]
        environment = {"PRODUCE_S": seconds, "DRAIN_S": seconds, **os.environ}
        subprocess.run(command, cwd=copy, env=environment, check=True, stdout=sys.stderr)
        return list(_figures(compare, json.loads(out.read_text())["peers"]))


def _figures(compare: Any, found: dict[str, Any]) -> Iterable[Figure]:
    def median(peer: str, key: str, field: str) -> float | None:
        value: float | None = compare.median(found[peer]["results"], key, field) if peer in found else None
        return value

    def best(
        key: str, field: str = "jobs_s", peers: Iterable[str] = PYTHON, least: bool = False
    ) -> tuple[str, float | None]:
        """The best of some peers, and its value. Each peer has one setting; its name does not matter."""
        every: dict[str, float] = {}
        for peer in peers:
            keys = [own for own in found.get(peer, {"results": {}})["results"] if own.startswith(key)]
            values = [value for own in keys if (value := median(peer, own, field)) is not None]
            every |= {peer: values[0]} if values else {}
        if not every:
            return "-", None
        peer = (min if least else max)(every, key=every.__getitem__)
        return peer, every[peer]

    def ratio(
        name: str, ours: float | None, theirs: tuple[str, float | None], bar: float, aim: float, unit: str
    ) -> Iterable[Figure]:
        peer, value = theirs
        if ours is None or value is None:
            return
        note = f"ours {ours:,.4g} {unit}, {peer} {value:,.4g}"
        yield Figure(name, "redis", ours / value, bar, aim, at_least=unit == "jobs/s", note=note)

    rate = median("pinlater", DRAIN, "jobs_s")
    yield from ratio("drain, against Python queues", rate, best("drain"), 5, 10, "jobs/s")
    yield from ratio("drain, against BullMQ", rate, best("drain", peers=["bullmq"]), 1.6, 3, "jobs/s")
    yield from ratio("drain, against asynq, GOMAXPROCS=1", rate, best("drain", peers=["asynq"]), 2.5, 5, "jobs/s")
    bulk, at_once = (median("pinlater", f"enqueue {mode}", "jobs_s") for mode in ("bulk", "conc50"))
    yield from ratio(
        "enqueue_many of 100, against BullMQ", bulk, best("enqueue bulk", peers=["bullmq"]), 4, 8, "jobs/s"
    )
    yield from ratio("50 aenqueue, against Python queues", at_once, best("enqueue conc50"), 5, 8, "jobs/s")
    yield from ratio("50 aenqueue, against asynq", at_once, best("enqueue conc50", peers=["asynq"]), 1, 1.5, "jobs/s")
    one = median("pinlater", "enqueue seq", "jobs_s")
    yield from ratio("enqueue one by one, against huey", one, best("enqueue seq", peers=["huey"]), 1, 1.4, "jobs/s")
    cpu = best("drain", "redis_us", ["taskiq-stream", "bullmq"], least=True)
    yield from ratio("Redis CPU a drained task", median("pinlater", DRAIN, "redis_us"), cpu, 0.4, 0.25, "µs")
    for field in ("p50_ms", "p99_ms"):
        ours = median("pinlater", LATENCY, field)
        name = f"enqueue -> start against huey, {field[:3]}"
        yield from ratio(name, ours, best("latency", field, ["huey"]), 1, 0.6, "ms")
