"""Metrics of a worker, and their sum over processes, in Prometheus's text format.

Promises that a job costs a few additions of integers, and all other work is done when metrics are read. The counts of a
process's own tasks are there from its start, as 0: a rule sees no increase to the first value of a series. Risks: a
process that is killed loses its counts since its last report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, TypeAlias

from pinlater.archive.status import ArchiveStatus
from pinlater.operations.workers import QueueMeasures
from pinlater.store.shards import QueueShard
from pinlater.tasks.meters import BOUNDS_S
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.worker import Worker

#: Type and help text of each metric, by its name, in the order of the output.
FAMILIES: Final[dict[str, tuple[str, str]]] = {
    "pinlater_jobs_total": (
        "counter",
        "Jobs whose task ran, by task and end: succeeded, retried (failed, to be tried again), failed (for good), "
        "snoozed, rate_limited (it paused its queue), cancelled, expired.",
    ),
    "pinlater_job_seconds": ("histogram", "How long the runs of a task took."),
    "pinlater_running_jobs": ("gauge", "Jobs that run."),
    "pinlater_prefetched_jobs": ("gauge", "Jobs claimed and not started."),
    "pinlater_ending_jobs": ("gauge", "Jobs that ran and are not acked yet."),
    "pinlater_claims_total": ("counter", "Claim calls answered."),
    "pinlater_claimed_jobs_total": ("counter", "Jobs claimed."),
    "pinlater_redelivered_jobs_total": (
        "counter",
        "Jobs of lost workers that a monitor here enqueued again, or failed after their last attempt.",
    ),
    "pinlater_crashed_jobs_total": (
        "counter",
        "Jobs that a process had started when it died, recovered by its supervisor, by end: retried (enqueued again), "
        "failed (at the crash limit, or after their last attempt).",
    ),
    "pinlater_failed_by_crash_total": (
        "counter",
        "Jobs that failed for good as their process died, or their lease ran out, by task and queue.",
    ),
    "pinlater_timeouts_total": ("counter", "Runs that took longer than their timeout."),
    "pinlater_expired_jobs_total": ("counter", "Jobs that were claimed after they had expired."),
    "pinlater_unreadable_jobs_total": ("counter", "Jobs whose body can not be read."),
    "pinlater_newer_envelopes_total": ("counter", "Jobs postponed because a newer version wrote their envelope."),
    "pinlater_unknown_tasks_total": (
        "counter",
        "Jobs released because no task has their name; the first 100 names have labels of their own.",
    ),
    "pinlater_stale_jobs_total": ("counter", "Jobs whose claim was lost before they ended."),
    "pinlater_released_jobs_total": ("counter", "Jobs released at a stop."),
    "pinlater_limited_seconds_total": (
        "counter",
        "How long processes claimed nothing from a queue because of a limit: rate, max_running, pause, or home (the "
        "home shard of the limits does not answer).",
    ),
    "pinlater_queue_jobs": (
        "gauge",
        "Jobs of a queue on a shard, by state: pending (due), scheduled, running, failed. One process shows them.",
    ),
    "pinlater_queue_oldest_due_seconds": (
        "gauge",
        "How long the oldest due job of a queue on a shard has waited; 0 if none is due. One process shows it.",
    ),
    "pinlater_archived_jobs": ("gauge", "Jobs of a queue on a shard that the archive has. One process shows them."),
    "pinlater_archive_lag_seconds": (
        "gauge",
        "For how long the first due job that the archive has of a queue on a shard has been due; 0 if none is due. One "
        "process shows it.",
    ),
    "pinlater_archive_up": (
        "gauge",
        "1 if the archive's MySQL answers, 0 if not; then the other metrics of the archive are missing. Processes that "
        "show queues show it.",
    ),
    "pinlater_server_jobs_total": (
        "counter",
        "What calls of the Thrift service did to jobs, by queue and what: enqueue, dequeue, ack_succeeded, ack_failed, "
        "ack_refused (another claim runs the job), checkpoint, checkpoint_noop; dequeue_requests_rate_limited counts "
        "calls. Of the monitor here: timeout_retry and timeout_done (a lease ran out: the job is tried again, or "
        "failed), succeeded_gc and failed_gc (removed past their time).",
    ),
    "pinlater_server_call_seconds": ("histogram", "How long calls of the Thrift service took, by method."),
    "pinlater_server_errors_total": ("counter", "Calls of the Thrift service that raised, by method and code."),
    "pinlater_server_first_dequeue_seconds": (
        "histogram",
        "Time from a job's enqueue to its first dequeue, by queue. One job of each dequeue is measured.",
    ),
    "pinlater_server_wrong_passwords_total": ("counter", "Calls of deleteQueue with a wrong password."),
    "pinlater_server_connections": ("gauge", "Connections of clients of the Thrift service."),
    "pinlater_server_calls": ("gauge", "Calls of the Thrift service that are carried out."),
    "pinlater_processes": ("gauge", "Processes that run."),
    "pinlater_process_restarts_total": (
        "counter",
        "Processes that ended and were replaced, by reason: crash, recycled, memory (killed over its cap), loop (it "
        "did not turn), reload.",
    ),
}
MAX_NAMES: Final = 100
_UNKNOWN: Final = "pinlater_unknown_tasks_total"
_OTHER: Final = '{task="(other)"}'

#: Values by the name of the metric, then by the rest of the line's name: labels, or a suffix such as _bucket{…}.
Samples: TypeAlias = dict[str, dict[str, float]]


def samples(worker: Worker, runner: TaskRunner | None) -> Samples:
    """The current values of this process.

    runner: None if the worker runs no tasks. Otherwise the runner's meters are added up first.
    """
    found = _worker_samples(worker)
    return found if runner is None else found | _task_samples(runner)


def add(
    total: Samples,
    more: Mapping[str, Mapping[str, float]],
    *,
    gauges: bool = True,
    names: set[str] | None = None,
) -> None:
    """Adds samples to a sum.

    gauges: add gauges too. Only a running process has gauges.
    names: the unknown tasks that have their own label. The call adds names until the limit is reached. By default the
        names in the sum.
    """
    for family, values in more.items():
        if gauges or FAMILIES[family][0] != "gauge":
            _add(total, {family: values}, names)


def histogram(label: str, bounds_s: tuple[float, ...], buckets: Sequence[int], seconds: float) -> dict[str, float]:
    """The lines of a histogram; none if it is empty.

    label: such as `task="mail"`.
    bounds_s: the upper bounds of its buckets. buckets: their counts, and one more for what is longer.
    seconds: the sum.
    """
    counts = list(accumulate(buckets))
    values = [*counts, seconds, counts[-1]]
    return dict(zip(_histogram_names(label, bounds_s), values, strict=True)) if counts[-1] else {}


@lru_cache(maxsize=10_000)
def _histogram_names(label: str, bounds_s: tuple[float, ...]) -> list[str]:
    """A process makes the same names each second."""
    buckets = [f'_bucket{{{label},le="{bound_s}"}}' for bound_s in (*bounds_s, "+Inf")]
    return [*buckets, f"_sum{{{label}}}", f"_count{{{label}}}"]


def text(found: Mapping[str, Mapping[str, float]]) -> str:
    """Samples in Prometheus's text format, version 0.0.4."""
    lines: list[str] = []
    for family, (kind, meaning) in FAMILIES.items():
        if family in found:
            lines += [f"# HELP {family} {meaning}", f"# TYPE {family} {kind}"]
            lines += [f"{family}{rest} {value:.10g}" for rest, value in found[family].items()]
    return "\n".join([*lines, ""])


def queue_samples(measures: Mapping[QueueShard, QueueMeasures]) -> Samples:
    """The values of queues."""
    jobs: dict[str, float] = {}
    waits_s: dict[str, float] = {}
    for queue_shard, of_shard in measures.items():
        labels = f'queue="{queue_shard.queue}",shard="{queue_shard.shard.name}"'
        for state in ("pending", "scheduled", "running", "failed"):
            jobs[f'{{{labels},state="{state}"}}'] = getattr(of_shard, state)
        waits_s[f"{{{labels}}}"] = of_shard.oldest_due_ms / 1000
    return {"pinlater_queue_jobs": jobs, "pinlater_queue_oldest_due_seconds": waits_s} if measures else {}


def archive_samples(statuses: Mapping[QueueShard, ArchiveStatus], *, is_up: bool) -> Samples:
    """The values of the archive."""
    labels = {each: f'{{queue="{each.queue}",shard="{each.shard.name}"}}' for each in statuses}
    of_queues: Samples = {
        "pinlater_archived_jobs": {labels[each]: status.archived for each, status in statuses.items()},
        "pinlater_archive_lag_seconds": {labels[each]: status.late_ms / 1000 for each, status in statuses.items()},
    }
    return (of_queues if statuses else {}) | {"pinlater_archive_up": {"": int(is_up)}}


def _worker_samples(worker: Worker) -> Samples:
    stats = worker.stats
    return {
        "pinlater_running_jobs": {"": len(worker.running)},
        "pinlater_prefetched_jobs": {"": len(worker.prefetched)},
        "pinlater_ending_jobs": {"": worker.unacked},
        "pinlater_claims_total": {"": stats.claims},
        "pinlater_claimed_jobs_total": {"": stats.claimed},
        "pinlater_redelivered_jobs_total": {"": 0 if worker.monitor is None else worker.monitor.redelivered},
        "pinlater_stale_jobs_total": {"": stats.stale},
        "pinlater_released_jobs_total": {"": stats.released},
        "pinlater_limited_seconds_total": {
            f'{{queue="{queue}",limit="{limit}"}}': seconds
            for (queue, limit), seconds in worker.fetcher.limit_rests.seconds.items()
        },
    }


def _task_samples(runner: TaskRunner) -> Samples:
    stats = runner.stats
    found: Samples = {
        "pinlater_timeouts_total": {"": stats.timeouts},
        "pinlater_expired_jobs_total": {"": stats.expired},
        "pinlater_unreadable_jobs_total": {"": stats.unreadable},
        "pinlater_jobs_total": {},
        "pinlater_job_seconds": {},
    }
    for name, meter in runner.meters.items():
        meter.fold()
        label = f'task="{_escaped(name)}"'
        for end, count in meter.ends.items():
            found["pinlater_jobs_total"][f'{{{label},end="{end}"}}'] = count
        found["pinlater_job_seconds"] |= histogram(label, BOUNDS_S, meter.buckets, meter.seconds)
    newer = {f'{{version="{version}"}}': count for version, count in stats.newer.items()}
    _add(found, {"pinlater_newer_envelopes_total": newer})
    crashed = {(task.name, task.queue): 0 for task in runner.tasks()} | stats.crashed
    for (name, queue), count in crashed.items():
        _add(found, {"pinlater_failed_by_crash_total": {f'{{task="{_escaped(name)}",queue="{queue}"}}': count}})
    unknown = {f'{{task="{_escaped(name)}"}}': count for name, count in stats.unknown.items()}
    _add(found, {_UNKNOWN: unknown})
    return found


def _add(total: Samples, more: Mapping[str, Mapping[str, float]], names: set[str] | None = None) -> None:
    for family, values in more.items():
        sums = total.setdefault(family, {})
        labelled = set(sums) if names is None else names
        for rest, value in values.items():
            key = rest
            if family == _UNKNOWN and rest not in labelled:
                if len(labelled - {_OTHER}) < MAX_NAMES:
                    labelled.add(rest)
                else:
                    key = _OTHER
            sums[key] = sums.get(key, 0) + value


def _escaped(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
