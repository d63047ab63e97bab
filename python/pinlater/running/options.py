"""What `pinlater run` is told: on the command line, and in TOML.

Promises that what is not known is an error that names what is; the command line goes before TOML. Risks: none known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, get_args

from pinlater.client import settings_file as toml_file
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import check_integer, check_queue_name
from pinlater.running.probes import parse_address
from pinlater.running.worker_process import REPORT_VARIABLE
from pinlater.tasks.logs import LogFormat
from pinlater.worker.queue_order import MAX_WEIGHT, QueueOrder
from pinlater.worker.worker import WorkerConfig

MAX_PROCESSES: Final = 256
MAX_MEMORY_MB: Final = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Of one queue; None: as all. One with concurrency, processes or memory_mb has processes of its own."""

    weight: int | None = None
    concurrency: int | None = None
    processes: int | None = None
    memory_mb: int | None = None

    @property
    def apart(self) -> bool:
        """Whether it has processes of its own."""
        return (self.concurrency, self.processes, self.memory_mb) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """queues: in their order; none: those of the app's tasks. strict: that order holds. isolate: each has processes of
    its own. concurrency: tasks that run at once in each process; task_processes: of those with runs_in="process", None:
    as many as there are cores. memory_mb, max_jobs: a process is replaced then.
    http: HOST:PORT of probes and metrics. url, shards: for an app that names no servers. Times are seconds.
    """

    app: str
    queues: Mapping[str, QueueOptions] = field(default_factory=dict)
    strict: bool = False
    isolate: bool = False
    concurrency: int = 10
    processes: int = 1
    task_processes: int | None = None
    max_jobs: int | None = None
    memory_mb: int | None = None
    stop_timeout: float = 30.0
    burst: bool = False
    watch: bool = False
    log_format: LogFormat = "text"
    http: str | None = None
    url: str | None = None
    shards: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.app, str):
            raise InvalidArgument(f"app: expected MODULE:APP, got {self.app!r}")
        for name in ("strict", "isolate", "burst", "watch"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name}: expected true or false, got {getattr(self, name)!r}")
        if self.log_format not in get_args(LogFormat):
            raise InvalidArgument(f"log_format: expected text or json, got {self.log_format!r}")
        if self.http is not None:
            parse_address(self.http)
        toml_file.check_servers(self.url, self.shards)
        check_integer("processes", self.processes, 1, MAX_PROCESSES)
        if self.task_processes is not None:
            check_integer("task_processes", self.task_processes, 1, MAX_PROCESSES)
        _check_memory("memory_mb", self.memory_mb)
        for queue, own in self.queues.items():
            check_queue_name(queue)
            _check_queue(queue, own)
            if own.weight is not None and (self.isolate or own.apart):
                raise InvalidArgument(f"queue {queue!r}: it has processes of its own, where a weight means nothing")
        self.config(self.queues)

    def config(self, queues: Iterable[str]) -> WorkerConfig:
        """Of a worker of these queues, which share processes."""
        weights = {queue: own.weight for queue, own in self.queues.items() if own.weight is not None}
        order = QueueOrder(weights={queue: weights[queue] for queue in queues if queue in weights}, strict=self.strict)
        return WorkerConfig(
            concurrency=self.concurrency, stop_timeout_s=self.stop_timeout, max_jobs=self.max_jobs, order=order
        )

    def groups(self, names: Iterable[str]) -> list[RunOptions]:
        """The options of each set of processes, of a worker that has these queues."""
        names = list(names)
        apart = [name for name in names if self.isolate or self.queues.get(name, QueueOptions()).apart]
        together = [name for name in names if name not in apart]
        groups = [self._of_one(name) for name in apart]
        if not apart:
            return [self]
        if together:
            shared = {name: self.queues.get(name, QueueOptions()) for name in together}
            groups.insert(0, replace(self, queues=shared))
        return groups

    def _of_one(self, name: str) -> RunOptions:
        own = self.queues.get(name, QueueOptions())
        return replace(
            self,
            queues={name: QueueOptions()},
            isolate=False,
            strict=False,
            concurrency=own.concurrency or self.concurrency,
            processes=own.processes or self.processes,
            memory_mb=own.memory_mb or self.memory_mb,
        )

    def arguments(self) -> list[str]:
        """The command line of one process of these, after `pinlater run`."""
        told = [self.app, "--concurrency", str(self.concurrency), "--stop-timeout", str(self.stop_timeout)]
        told += ["--log-format", self.log_format]
        if self.queues:
            weights = [f"{name}:{own.weight or 1}" for name, own in self.queues.items()]
            told += ["--queues", ",".join(weights)]
        for name, value in (
            ("--task-processes", self.task_processes),
            ("--max-jobs", self.max_jobs),
            ("--max-memory", self.memory_mb),
            ("--http", self.http),
        ):
            told += [] if value is None else [name, str(value)]
        return [*told, *["--strict"] * self.strict, *["--burst"] * self.burst]


def parse_queues(text: str) -> tuple[dict[str, QueueOptions], bool]:
    """`a:3,b` (weights) or `a>b` (strict order), and whether it is the latter."""
    strict = ">" in text
    if strict and "," in text:
        raise InvalidArgument(f"queues: expected A:3,B:1 or A>B, got {text!r}")
    queues: dict[str, QueueOptions] = {}
    for part in text.split(">" if strict else ","):
        name, colon, weight = part.strip().partition(":")
        if colon and not weight.isdecimal():
            raise InvalidArgument(f"queues: expected NAME or NAME:WEIGHT, got {part!r}")
        if check_queue_name(name) in queues:
            raise InvalidArgument(f"queues: {name!r} is named twice")
        queues[name] = QueueOptions(weight=int(weight) if colon else None)
    return queues, strict


def options_of(told: Mapping[str, Any], config: Path | None) -> RunOptions:
    """Of the command line (None: not said; queues as text) and the TOML file: that one, or pinlater.toml or
    pyproject.toml of the current directory. A supervisor's process is told all on its command line.
    """
    values = {} if REPORT_VARIABLE in os.environ else read_config(config)
    said = {name: value for name, value in told.items() if value is not None}
    if "queues" in said:
        named, strict = parse_queues(said["queues"])
        of_file: dict[str, QueueOptions] = values.get("queues", {})
        said["queues"] = {
            name: of_file.get(name, own) if own.weight is None else replace(of_file.get(name, own), weight=own.weight)
            for name, own in named.items()
        }
        said["strict"] = said.get("strict") or strict or values.get("strict", False)
    values |= said
    if "app" not in values:
        raise InvalidArgument("app: expected MODULE:APP, on the command line or as `app` in TOML, got none")
    return RunOptions(**values)


def read_config(path: Path | None) -> dict[str, Any]:
    """The options that stand in a file; its queues as QueueOptions."""
    if path is not None:
        return _checked(str(path), toml_file.table_of(path))
    return _checked(*toml_file.found())


def _checked(file: str, table: dict[str, Any]) -> dict[str, Any]:
    known = [one.name for one in fields(RunOptions) if one.name not in ("burst", "watch")]
    _check_keys(file, "", table, known)
    for name in ("queues", "shards"):
        if not isinstance(table.get(name, {}), dict):
            raise InvalidArgument(f"{file}: {name}: expected a table, got {table[name]!r:.60}")
    queues = {}
    for queue, own in table.get("queues", {}).items():
        if not isinstance(own, dict):
            raise InvalidArgument(f"{file}: queues.{queue}: expected a table, got {own!r:.60}")
        _check_keys(file, f" in [queues.{queue}]", own, [one.name for one in fields(QueueOptions)])
        queues[queue] = QueueOptions(**own)
    return {**table, "queues": queues} if queues else table


def _check_keys(file: str, where: str, table: Mapping[str, Any], known: list[str]) -> None:
    if unknown := [key for key in table if key not in known]:
        raise InvalidArgument(f"{file}: unknown key {unknown[0]!r}{where}; expected one of {', '.join(known)}")


def _check_queue(queue: str, own: QueueOptions) -> None:
    for name, most in (("weight", MAX_WEIGHT), ("concurrency", 100_000), ("processes", MAX_PROCESSES)):
        value = getattr(own, name)
        check_integer(f"queue {queue!r}: {name}", 1 if value is None else value, 1, most)
    _check_memory(f"queue {queue!r}: memory_mb", own.memory_mb)


def _check_memory(name: str, value: int | None) -> None:
    check_integer(name, 1 if value is None else value, 1, MAX_MEMORY_MB)
