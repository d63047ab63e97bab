"""What the supervisor of `pinlater run` knows of its processes: health, readiness, and the sum of their counts.

Promises that counts never go down when a process ends or is replaced. Risks: they are a second old.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pinlater.running import metrics
from pinlater.running.probes import METRICS_TYPE, Answer, Answers, probe
from pinlater.running.recoverer import Recoverer
from pinlater.running.worker_process import Process, ProcessSet

#: A process whose loop has not turned for so long is not healthy.
STALE_S: Final = 10.0


class SupervisorStatus:
    """The observer of a supervisor of these sets, each of which is to have a process that is ready. sets: may be
    replaced. deaths: what became of the jobs of processes that died.
    """

    def __init__(self, sets: Sequence[ProcessSet], recoverer: Recoverer | None = None) -> None:
        self.sets = sets
        self._recoverer = recoverer
        self._running: dict[int, Process] = {}
        self._ended: metrics.Samples = {}
        #: Of unknown tasks; those that were told apart once are from then on, so that no count goes down.
        self._names: set[str] = set()
        self._restarts: Counter[str] = Counter(dict.fromkeys(("crash", "recycled", "memory", "reload"), 0))

    def reported(self, process: Process) -> None:
        """See Observer."""
        self._running[process.pid] = process

    def ended(self, process: Process, why: str) -> None:
        """See Observer."""
        self._running.pop(process.pid, None)
        metrics.add(self._ended, process.report.get("samples", {}), gauges=False, names=self._names)
        if why:
            self._restarts[why] += 1

    def answers(self) -> Answers:
        """Of the HTTP port."""
        return {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._metrics}

    def _health(self) -> Answer:
        late_s = time.monotonic() - STALE_S
        stuck = [str(pid) for pid, process in self._running.items() if process.reported_s < late_s]
        return probe(f"the loop of {', '.join(stuck)} does not turn" if stuck else "")

    def _readiness(self) -> Answer:
        late_s = time.monotonic() - STALE_S
        ready = {process.of.name for process in self._running.values() if process.ready and process.reported_s > late_s}
        missing = [of.name for of in self.sets if of.name not in ready]
        return probe(f"not ready: {', '.join(missing)}" if missing else "")

    def _metrics(self) -> Answer:
        total: metrics.Samples = {}
        metrics.add(total, self._ended, names=self._names)
        for process in self._running.values():
            metrics.add(total, process.report.get("samples", {}), names=self._names)
        if self._recoverer is not None:
            counts = {"retried": self._recoverer.retried, "failed": self._recoverer.failed}
            total["pinlater_crashed_jobs_total"] = {f'{{end="{end}"}}': count for end, count in counts.items()}
        total["pinlater_processes"] = {"": len(self._running)}
        total["pinlater_process_restarts_total"] = {
            f'{{reason="{reason}"}}': count for reason, count in self._restarts.items()
        }
        return Answer(200, metrics.text(total), METRICS_TYPE)
