"""The core's figures: the cost of a job for server, client and worker, compared with native commands in the same run.

    python benches/core.py [--only 1,2,…] [--server valkey|redis] [--rounds 5] [--quick] [--json FILE]

Promises one table (figure, measured, bar, aim, met?) of medians over interleaved rounds. Risks: a busy machine changes
times, but not ratios. `--quick` measures less of everything; the JSON says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches import client_rate, memory, server_cost, worker_cost
from benches.support import Figure, Options, print_table, serving, write_json
from tests.support.requirements import REDIS_SERVER
from tests.support.servers import KINDS, Kind

Measure = Callable[[Kind, Options], list[Figure]]

#: Figures by number. Those of the server are measured on both servers, the others on Valkey.
ON_EACH: dict[int, Measure] = {
    1: server_cost.batches,
    2: server_cost.singles,
    3: memory.pending,
    4: server_cost.growth,
}
ON_ONE: dict[int, Measure] = {
    5: client_rate.closed_loop,
    6: client_rate.hundreds,
    7: worker_cost.drain,
    8: worker_cost.latency,
    9: worker_cost.idle,
}


def main() -> int:
    """Exit code 1 if a bar is not met."""
    arguments = _arguments()
    options = Options(arguments.rounds, arguments.quick)
    kinds = (arguments.server,) if arguments.server else _kinds_at_hand()
    figures: list[Figure] = []
    for number in arguments.only:
        for kind in kinds if number in ON_EACH else kinds[:1]:
            started_s = time.monotonic()
            figures += (ON_EACH | ON_ONE)[number](kind, options)
            print(f"figure {number}, {kind}: {time.monotonic() - started_s:.0f} s", file=sys.stderr, flush=True)
    print_table(figures)
    if arguments.json:
        write_json(arguments.json, figures, options, {kind: _version(kind) for kind in kinds})
    return int(any(each.is_met is False for each in figures))


def _kinds_at_hand() -> tuple[Kind, ...]:
    return KINDS if REDIS_SERVER.is_met() else ("valkey",)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The core's figures, compared with native commands in the same run.")
    everything = sorted(ON_EACH | ON_ONE)
    parser.add_argument("--only", type=_numbers, default=everything, metavar="1,2,…", help="figures to measure")
    parser.add_argument("--server", choices=KINDS, help="only this server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer jobs and seconds, to check that it works")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    unknown = set(numbers) - set(ON_EACH | ON_ONE)
    if unknown:
        raise argparse.ArgumentTypeError(f"expected figures 1 to {max(ON_ONE)}, got {sorted(unknown)}")
    return numbers


def _version(kind: Kind) -> str:
    with serving(kind) as server:
        info = server.info("server")
    return str(info.get("valkey_version", info["redis_version"]))


if __name__ == "__main__":
    sys.exit(main())
