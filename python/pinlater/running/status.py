"""The status of a supervisor: health and readiness of its processes, and the sum of their counts.

Promises that counts never decrease when a process ends or is replaced. Risks: counts are up to a second old.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from pinlater.running import metrics
from pinlater.running.probes import METRICS_TYPE, Answer, Answers, probe
from pinlater.running.recoverer import Recoverer
from pinlater.running.worker_process import STUCK, Process, ProcessSet
from pinlater.worker.monitor import Monitor

#: A process that has sent no report for this long is unhealthy: its loop is blocked.
STALE_S: Final = 10.0


class SupervisorStatus:
    """Listens to a supervisor's processes, and answers HTTP requests about them.

    process_sets: the supervisor is ready if each set has a ready process. A reload replaces the sets.
    queues: the names of the queues at the start.
    recoverer: counts the jobs of processes that died.
    """

    def __init__(
        self, process_sets: Sequence[ProcessSet], queues: Sequence[str] = (), recoverer: Recoverer | None = None
    ) -> None:
        self.process_sets = process_sets
        self._queues = queues
        #: The supervisor's monitor, if it runs one.
        self.monitor: Monitor | None = None
        #: Returns what this process reads of queues, if it does.
        self.queue_samples: Callable[[], metrics.Samples] = dict
        #: Returns what this process counts itself, beside its processes.
        self.own_samples: Callable[[], metrics.Samples] = dict
        self._recoverer = recoverer
        self._running: dict[int, Process] = {}
        self._ended: metrics.Samples = {}
        #: The unknown tasks that have their own label. They keep it, so that no count decreases.
        self._names: set[str] = set()
        self._restarts: Counter[str] = Counter(dict.fromkeys(("crash", "recycled", "memory", STUCK, "reload"), 0))

    def reported(self, process: Process) -> None:
        """See ProcessListener."""
        self._running[process.pid] = process

    def ended(self, process: Process, why: str) -> None:
        """See ProcessListener."""
        self._running.pop(process.pid, None)
        metrics.add(self._ended, process.report.get("samples", {}), gauges=False, names=self._names)
        if why:
            self._restarts[why] += 1

    def queues(self) -> list[str]:
        """Those of the start and those that running processes report, which a reload may have added."""
        reported = (process.report.get("queues", []) for process in self._running.values())
        return list(dict.fromkeys([*self._queues, *chain.from_iterable(reported)]))

    def answers(self) -> Answers:
        """The answers of the HTTP port."""
        return {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._metrics}

    def _health(self) -> Answer:
        stale = [str(pid) for pid, process in self._running.items() if _is_stale(process)]
        return probe(f"no report from process {', '.join(stale)} for {STALE_S:.0f} s" if stale else "")

    def _readiness(self) -> Answer:
        ready = {
            process.process_set.name for process in self._running.values() if process.ready and not _is_stale(process)
        }
        missing = [process_set.name for process_set in self.process_sets if process_set.name not in ready]
        return probe("; ".join(f"not ready: {name}: {self._why(name)}" for name in missing))

    def _why(self, name: str) -> str:
        """Why no process of a set is ready."""
        found = [process for process in self._running.values() if process.process_set.name == name]
        return ", ".join(f"{process.pid} {_reason(process)}" for process in found) or "none has started yet"

    def samples(self) -> metrics.Samples:
        """The sum of all processes, those that have ended too, and what is known of queues."""
        total: metrics.Samples = {}
        metrics.add(total, self._ended, names=self._names)
        for process in self._running.values():
            metrics.add(total, process.report.get("samples", {}), names=self._names)
        if self.monitor is not None:
            metrics.add(total, {"pinlater_redelivered_jobs_total": {"": self.monitor.redelivered}}, names=self._names)
        if self._recoverer is not None:
            counts = {"retried": self._recoverer.retried, "failed": self._recoverer.failed}
            total["pinlater_crashed_jobs_total"] = {f'{{end="{end}"}}': count for end, count in counts.items()}
        metrics.add(total, self.own_samples(), names=self._names)
        total |= self.queue_samples()
        total["pinlater_processes"] = {"": len(self._running)}
        total["pinlater_process_restarts_total"] = {
            f'{{reason="{reason}"}}': count for reason, count in self._restarts.items()
        }
        return total

    def _metrics(self) -> Answer:
        return Answer(200, metrics.text(self.samples()), METRICS_TYPE)


def _reason(process: Process) -> str:
    if _is_stale(process):
        return f"has sent no report for {STALE_S:.0f} s"
    return f"is not: {process.report.get('unready') or 'it starts'}"


def _is_stale(process: Process) -> bool:
    return time.monotonic() - process.reported_s > STALE_S
