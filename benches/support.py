"""Tools of every figure: a raw connection, interleaved rounds, and the table that shows which bar is met.

Promises that the sides of a ratio are measured in turns within one round, in changing order, and that a figure is the
median of the rounds' ratios. Risks: absolute numbers depend on the machine and the minute; compare only ratios of one
run.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hiredis
import redis

from tests.support.servers import Kind, Server

#: Body of every job measured.
BODY = b"x" * 100
#: Percent of jobs that are scheduled, and of acks that fail.
SPECIAL_PERCENT = 1
#: Failed jobs that stay in the queue, so that the key of custom statuses exists as in real use.
STANDING_FAILED = 1_000


@dataclass(frozen=True, slots=True)
class Options:
    """How long and how often to measure."""

    rounds: int
    quick: bool

    def scaled(self, full: int, quick: int) -> int:
        """The full amount, or the quick one."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    bar: the promised limit; None: the line is for comparison only.
    at_least: larger is better.
    """

    name: str
    server: str
    measured: float
    bar: float | None
    aim: float | None
    unit: str = "x"
    at_least: bool = False
    note: str = ""
    rounds: tuple[float, ...] = ()

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.bar is None:
            return None
        return self.measured >= self.bar if self.at_least else self.measured <= self.bar


def figure(
    name: str, server: str, rounds: Sequence[float], bar: float | None, aim: float | None, **more: Any
) -> Figure:
    """A figure that is the median of its rounds."""
    return Figure(name, server, statistics.median(rounds), bar, aim, rounds=tuple(rounds), **more)


def interleave(sides: Mapping[str, Callable[[], float]], rounds: int, turns: int = 1) -> dict[str, list[float]]:
    """The values of each side by round; a value is the mean of `turns` turns.

    Turns are short, so that a slow second of the machine slows all sides. Their order changes, so that no side is
    always first.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds * turns):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(sides[name]())
    return {
        name: [statistics.fmean(each[at : at + turns]) for at in range(0, len(each), turns)]
        for name, each in found.items()
    }


def ratios(top: Sequence[float], bottom: Sequence[float]) -> list[float]:
    """The ratio of each round."""
    return [a / b for a, b in zip(top, bottom, strict=True)]


def per_job(values: Sequence[float], unit: str = "µs") -> str:
    """A note with an absolute median, for orientation."""
    return f"{statistics.median(values):.2f} {unit}"


@contextmanager
def serving(kind: Kind) -> Iterator[Server]:
    """A fresh server of a kind, without persistence, that allows DEBUG (for HTSTATS)."""
    with (
        TemporaryDirectory(prefix="pinlater-bench-") as directory,
        Server(kind, Path(directory), config={"enable-debug-command": "local"}) as server,
    ):
        yield server


@contextmanager
def apart(server: Server) -> Iterator[None]:
    """Moves the server's process to a core of its own, and this process to the others.

    By itself the kernel puts a quick client on the server's core, where a wake-up costs a third, and a slower client on
    another. Then a ratio of one-job calls compares two placements, not two pieces of work. With one core this does
    nothing.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores[-1:])
        os.sched_setaffinity(0, cores[:-1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class Native:
    """A raw connection: a pipeline is one packet and one read loop, as lean as a native client can be."""

    def __init__(self, server: Server) -> None:
        kind: Any = redis.Connection  # redis-py leaves it untyped
        self._connection = kind(host="127.0.0.1", port=server.port)
        self._connection.connect()

    def pipeline(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Sends commands together. Returns their replies. Raises the errors of redis-py."""
        self._connection.send_packed_command([b"".join(map(hiredis.pack_command, commands))], check_health=False)
        return [self._connection.read_response(disable_decoding=True) for _ in commands]

    def call(self, *command: Any) -> Any:
        """One command."""
        return self.pipeline(command)[0]

    def close(self) -> None:
        """Ends the connection."""
        self._connection.disconnect()


class CpuMeter:
    """CPU of a server's main thread (user and system), read over its own connection."""

    def __init__(self, server: Server) -> None:
        self._native = Native(server)

    def used_us(self) -> float:
        """Microseconds since the server started."""
        text = self._native.call("INFO", "cpu").decode()
        fields = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
        return 1e6 * (float(fields["used_cpu_user_main_thread"]) + float(fields["used_cpu_sys_main_thread"]))

    def close(self) -> None:
        """Ends the connection."""
        self._native.close()


def print_table(figures: Sequence[Figure]) -> None:
    """Prints one line a figure: name, measured, bar, aim, met?."""
    head = ("figure", "server", "measured", "bar", "aim", "met?", "note")
    rows = [head, *(_row(each) for each in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + f"  {row[-1]}".rstrip())


def _row(each: Figure) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        if value is None:
            return "-"
        sign = ">=" if each.at_least else "<="
        return f"{sign} {value:g}"

    spread = f"[{min(each.rounds):.2f}..{max(each.rounds):.2f}] " if len(each.rounds) > 1 else ""
    met = {None: "-", True: "yes", False: "NO"}[each.is_met]
    return (
        each.name,
        each.server,
        f"{each.measured:.3g} {each.unit}",
        number(each.bar),
        number(each.aim),
        met,
        spread + each.note,
    )


def write_json(path: Path, figures: Sequence[Figure], options: Options, servers: Mapping[str, str]) -> None:
    """Writes the figures with every round, for other programs."""
    content = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "servers": dict(servers),
        "rounds": options.rounds,
        "quick": options.quick,
        "figures": [{**asdict(each), "met": each.is_met} for each in figures],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
