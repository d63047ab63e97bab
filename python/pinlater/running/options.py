"""The options of `pinlater run`.

Promises that a wrong value raises an error that names the expected values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, get_args

from pinlater.client import settings_file
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import check_integer, check_queue_name
from pinlater.running.probes import parse_address
from pinlater.store.shards import NamedShards
from pinlater.tasks.functions import checked_modules
from pinlater.tasks.logs import LogFormat
from pinlater.worker.queue_order import MAX_WEIGHT, QueueOrder
from pinlater.worker.worker import WorkerConfig

MAX_PROCESSES: Final = 256
MAX_MEMORY_MB: Final = 2**24
MAX_LOOP_TIMEOUT_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The options of one queue. None: the option of the whole run."""

    weight: int | None = None
    concurrency: int | None = None
    processes: int | None = None
    memory_mb: int | None = None

    @property
    def has_own_processes(self) -> bool:
        """Whether the queue has its own processes. It has them if concurrency, processes or memory_mb is set."""
        return (self.concurrency, self.processes, self.memory_mb) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of one run.

    app: the app, as `module:app`.
    include: modules to import, beside those that the app includes itself.
    queues: the queues and their order. Empty: the queues of the app's tasks.
    strict: claim from a queue only while the queues before it have no due jobs.
    isolate: give each queue its own processes.
    concurrency: the number of tasks that run at once in each process.
    processes: the number of worker processes.
    task_processes: the number of task processes in each worker process, for tasks with runs_in="process". None: the
        number of cores.
    max_jobs: replace a process after this many jobs.
    memory_mb: replace a process that uses more memory than this, in MiB.
    stop_timeout: the time that running jobs have at a stop, in seconds.
    loop_timeout: end a process whose event loop has not turned for this long, in seconds. None: never.
    create: create missing queues that no task of the app names.
    burst: stop when no job is due.
    watch: reload when the app's Python files change.
    log_success: log each job that succeeded.
    http: HOST:PORT of probes and metrics.
    url, shards: the servers, if the app names none.
    """

    app: str
    include: Sequence[str] = ()
    queues: Mapping[str, QueueOptions] = field(default_factory=dict)
    strict: bool = False
    isolate: bool = False
    concurrency: int = 10
    processes: int = 1
    task_processes: int | None = None
    max_jobs: int | None = None
    memory_mb: int | None = None
    stop_timeout: float = 30.0
    loop_timeout: float | None = None
    create: bool = False
    burst: bool = False
    watch: bool = False
    log_format: LogFormat = "text"
    log_success: bool = False
    http: str | None = None
    url: str | None = field(default=None, repr=False)
    shards: NamedShards = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.app, str):
            raise InvalidArgument(f"app: expected MODULE:APP, got {self.app!r}")
        checked_modules(self.include)
        for name in ("strict", "isolate", "create", "burst", "watch", "log_success"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name}: expected true or false, got {getattr(self, name)!r}")
        if self.log_format not in get_args(LogFormat):
            raise InvalidArgument(f"log_format: expected text or json, got {self.log_format!r}")
        if self.http is not None:
            parse_address(self.http)
        settings_file.check_servers(self.url, self.shards)
        check_integer("processes", self.processes, 1, MAX_PROCESSES)
        if self.task_processes is not None:
            check_integer("task_processes", self.task_processes, 1, MAX_PROCESSES)
        _check_memory("memory_mb", self.memory_mb)
        _check_loop_timeout(self.loop_timeout)
        for queue, own in self.queues.items():
            check_queue_name(queue)
            _check_queue(queue, own)
            if own.weight is not None and (self.isolate or own.has_own_processes):
                raise InvalidArgument(f"queue {queue!r}: expected no weight for a queue with processes of its own")
        self.config(self.queues)

    def config(self, queues: Iterable[str]) -> WorkerConfig:
        """The configuration of a worker. These queues share its process."""
        weights = {queue: own.weight for queue, own in self.queues.items() if own.weight is not None}
        order = QueueOrder(weights={queue: weights[queue] for queue in queues if queue in weights}, strict=self.strict)
        return WorkerConfig(
            concurrency=self.concurrency, stop_timeout_s=self.stop_timeout, max_jobs=self.max_jobs, order=order
        )

    @property
    def may_be_apart(self) -> bool:
        """Whether a queue may have its own processes; groups() says which."""
        return self.isolate or any(own.has_own_processes for own in self.queues.values())

    def groups(self, names: Iterable[str]) -> list[RunOptions]:
        """The options of each process set, for a run of these queues."""
        names = list(names)
        alone = [name for name in names if self.isolate or self._own(name).has_own_processes]
        if not alone:
            return [self]
        shared = {name: self._own(name) for name in names if name not in alone}
        groups = [self._of_one(name) for name in alone]
        return [replace(self, queues=shared), *groups] if shared else groups

    def _own(self, name: str) -> QueueOptions:
        return self.queues.get(name, QueueOptions())

    def _of_one(self, name: str) -> RunOptions:
        own = self._own(name)
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
        """The command line of one process, after `pinlater run`."""
        arguments = [self.app, "--concurrency", str(self.concurrency), "--stop-timeout", str(self.stop_timeout)]
        arguments += ["--log-format", self.log_format]
        if self.queues:
            weights = [f"{name}:{own.weight or 1}" for name, own in self.queues.items()]
            arguments += ["--queues", ",".join(weights)]
        for name, value in (
            ("--include", ",".join(self.include) or None),
            ("--task-processes", self.task_processes),
            ("--max-jobs", self.max_jobs),
            ("--max-memory", self.memory_mb),
            ("--loop-timeout", self.loop_timeout),
            ("--http", self.http),
        ):
            arguments += [] if value is None else [name, str(value)]
        flags = ("strict", "create", "burst", "log_success")
        return [*arguments, *(f"--{name.replace('_', '-')}" for name in flags if getattr(self, name))]


def _check_queue(queue: str, own: QueueOptions) -> None:
    for name, most in (("weight", MAX_WEIGHT), ("concurrency", 100_000), ("processes", MAX_PROCESSES)):
        value = getattr(own, name)
        check_integer(f"queue {queue!r}: {name}", 1 if value is None else value, 1, most)
    _check_memory(f"queue {queue!r}: memory_mb", own.memory_mb)


def _check_memory(name: str, value: int | None) -> None:
    check_integer(name, 1 if value is None else value, 1, MAX_MEMORY_MB)


def _check_loop_timeout(value: float | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_LOOP_TIMEOUT_S:
        raise InvalidArgument(f"loop_timeout: expected seconds, 1 to {MAX_LOOP_TIMEOUT_S}, got {value!r}")
