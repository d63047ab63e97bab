"""Instructions a job, counted by valgrind: the server's for each script, the client's for an enqueue, the worker's for
a drained job.

    python benches/instructions.py [--tree FOLDER] [--server valkey|redis] [--only server client] [--before FILE]
                                   [--json FILE]

--tree: another checkout, after `make setup`. The bench counts its client and scripts, run by this checkout's Python. It
uses public names only, so that checkout can be older or newer.
--before: a file that --json wrote. The table shows both, and the exit code is 1 if a figure grew by more than 2 %.

Promises counts that a second run repeats, on a busy machine too. Needs valgrind. Risks: instructions are not time.
System calls, cache misses and waits cost nothing here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.servers import KINDS, Kind, Server

ROOT = Path(__file__).resolve().parents[1]
#: A figure may grow by this factor.
GROWTH = 1.02
#: The server's periodic work runs once a second. It belongs to no job and is not counted.
QUIET = {"hz": "1", "dynamic-hz": "no"}
CLOCK_WORK = "serverCron"
_COST = set("0123456789+-*")
#: Roles of instructions_process.py: the first count the server's instructions, the others those of the process.
SERVER_ROLES, CLIENT_ROLES = ("calls",), ("enqueue", "worker", "task")

Counts = dict[str, float]


def main() -> int:
    """Prints the table; 1 if a figure is up by more than 2 %."""
    given = _arguments()
    counts: Counts = {}
    if "server" in given.only:
        for kind in (given.server,) if given.server else KINDS:
            counts |= {f"{kind}: {name}": count for name, count in count_server(kind, given.tree).items()}
    if "client" in given.only:
        for role in CLIENT_ROLES:
            counts |= count_client(role, given.tree)
    before: Counts = json.loads(given.before.read_text()) if given.before else {}
    print_table(counts, before)
    if given.json:
        given.json.write_text(json.dumps(counts, indent=1) + "\n")
    return int(any(count > GROWTH * before.get(name, count) for name, count in counts.items()))


def count_server(kind: Kind, tree: Path) -> Counts:
    """The server's instructions a job, by script and batch size."""
    with (
        TemporaryDirectory(prefix="pinlater-bench-") as folder,
        Server(kind, Path(folder), config=QUIET, under=callgrind(folder)) as server,
    ):
        found: Counts = {}
        for role in SERVER_ROLES:
            with _child(tree, role, server.url) as child:
                found |= _measure(child, server.pid, Path(folder))
        return found


def count_client(role: str, tree: Path) -> Counts:
    """Instructions of a process that enqueues jobs or runs them."""
    with (
        TemporaryDirectory(prefix="pinlater-bench-") as folder,
        Server("valkey", Path(folder), config=QUIET) as server,
        _child(tree, role, server.url, under=callgrind(folder)) as child,
    ):
        return _measure(child, child.pid, Path(folder))


def print_table(counts: Counts, before: Counts) -> None:
    """A line a figure: before, now, growth."""
    width = max(map(len, counts))
    for name, count in counts.items():
        was = before.get(name)
        change = f"{was:>10,.0f} -> {count:>10,.0f}  {count / was - 1:+.1%}" if was else f"{count:>10,.0f}"
        print(f"{name:<{width}}  {change}")


def callgrind(folder: str) -> list[str]:
    options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
    return ["valgrind", "--quiet", *options]


@contextmanager
def _child(tree: Path, role: str, url: str, under: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """The process of a role, with the package of the tree."""
    command = [*under, sys.executable, str(ROOT / "benches/instructions_process.py"), role, url]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(tree / "python")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as child:
        try:
            yield child
        finally:
            child.kill()


def _measure(child: subprocess.Popen[str], pid: int, folder: Path) -> Counts:
    """Instructions a job of the process `pid`, by name.

    The child prints `begin NAME JOBS` and `end` around each round, and waits for an answer to each. The least of
    several rounds counts: a busy machine only adds instructions, for example if a request arrives in two pieces.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    found: Counts = {}
    name, jobs = "", "1"
    for line in child.stdout:
        word, *rest = line.split("\t")
        if word.strip() == "end":
            count = stop_counting(pid, folder) / int(jobs)
            found[name] = min(count, found.get(name, count))
        elif word == "begin":
            name, jobs = rest
            control(pid, "zero", "instrumentation on")
        child.stdin.write("go\n")
        child.stdin.flush()
    if child.wait():
        raise RuntimeError(f"expected {child.args!r} to exit with 0, got {child.returncode}")
    return found


def stop_counting(pid: int, folder: Path) -> int:
    control(pid, "instrumentation off", "dump")
    newest = max(folder.glob("counts.*"), key=lambda path: int(path.suffix[1:]))
    lines = newest.read_text().splitlines()
    total = int(next(line for line in lines if line.startswith("totals: ")).split()[1])
    return total - _inclusive(lines, CLOCK_WORK)


def _inclusive(lines: Iterable[str], function: str) -> int:
    """Instructions of a function and its calls, from callgrind's format: the block of a function has lines `LINE COST`,
    and the line after `calls=` has the cost of that call.
    """
    cost, number, inside = 0, "", False
    for line in lines:
        if line.startswith("fn="):
            current, _, name = line[3:].partition(" ")
            number = current if name == function else number
            inside = current == number
        elif inside and line[:1] in _COST:
            cost += int(line.split()[1])
    return cost


def control(pid: int, *commands: str) -> None:
    """Sends commands to callgrind in a process."""
    words = [word for command in commands for word in ("-c", *command.split())]
    subprocess.run(["vgdb", f"--pid={pid}", *words], check=True, capture_output=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Instructions a job, counted by valgrind.")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout, after make setup")
    parser.add_argument("--server", choices=KINDS, help="only this server")
    parser.add_argument("--only", nargs="*", choices=["server", "client"], default=["server", "client"])
    parser.add_argument("--before", type=Path, metavar="FILE", help="a file that --json wrote, to compare with")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    given.tree = given.tree.resolve()
    return given


if __name__ == "__main__":
    sys.exit(main())
