"""Jobs that this worker does not know how to run: of an unknown task, or with an envelope of a newer version.

Promises that they wait for a worker that knows them, at no cost of an attempt, and that the log names each unknown task
and each version once. Risks: a job whose task no worker has waits for ever.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pinlater.model.jobs import Job
from pinlater.tasks import envelope
from pinlater.worker.executor import Postponed

log: Final = logging.getLogger("pinlater.worker")

#: How long such a job waits. In a rolling deploy another worker may know it by then.
UNKNOWN_PAUSE_MS: Final = 5_000
#: The most modules that a record names.
MAX_NAMED_MODULES: Final = 10
#: The most unknown names that are counted: they come from bodies, so there may be any number.
MAX_UNKNOWN_NAMES: Final = 1_000


def postpone_unknown(job: Job, name: str, counts: Counter[str], modules: Sequence[str]) -> Postponed:
    """The end of a job whose task is unknown here.

    counts: such jobs, by the name of their task.
    modules: those whose tasks this worker has.
    """
    if name not in counts and len(counts) < MAX_UNKNOWN_NAMES:
        log.warning(
            "job %s: no task %r here, only tasks of %s (include= adds modules); its jobs are postponed by %d s each "
            "time, until a worker that has it comes",
            job.descriptor,
            name,
            _listed(modules),
            UNKNOWN_PAUSE_MS // 1000,
            extra={"job": job},
        )
        counts[name] = 0
    if name in counts:
        counts[name] += 1
    return Postponed(UNKNOWN_PAUSE_MS)


def postpone_newer(job: Job, version: int, counts: Counter[int]) -> Postponed:
    """The end of a job whose envelope is of a newer version. counts: such jobs, by version."""
    if version not in counts:
        log.warning(
            "job %s: its envelope is of version %d, and this worker reads %d; such jobs are postponed by %d s each "
            "time, until a newer worker takes them",
            job.descriptor,
            version,
            envelope.VERSION,
            UNKNOWN_PAUSE_MS // 1000,
            extra={"job": job},
        )
    counts[version] += 1
    return Postponed(UNKNOWN_PAUSE_MS)


def _listed(modules: Sequence[str]) -> str:
    more = len(modules) - MAX_NAMED_MODULES
    return ", ".join([*modules[:MAX_NAMED_MODULES], *([f"{more} more"] if more > 0 else [])])
