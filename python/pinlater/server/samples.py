"""What a server counts, as metrics, and as the original's stats page.

Promises that both show the same counts. Percentiles of the page are read from the buckets of a histogram: they are
right to the width of a bucket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from pinlater.running.metrics import Samples, histogram
from pinlater.server.stats import ServerStats

_JOBS: Final = "pinlater_server_jobs_total"
_CALLS: Final = "pinlater_server_call_seconds"
_ERRORS: Final = "pinlater_server_errors_total"
_WAITS: Final = "pinlater_server_first_dequeue_seconds"
_WRONG_PASSWORDS: Final = "pinlater_server_wrong_passwords_total"
#: Gauges of the page by their metrics.
_GAUGES: Final = {
    "pinlater_server_connections": "connections",
    "pinlater_server_calls": "requests",
    "pinlater_processes": "processes",
}
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p9999": 0.9999}


def samples(stats: ServerStats, *, connections: int, calls: int, wrong_passwords: int) -> Samples:
    """The metrics of a process. connections, calls: those there are now."""
    timings, waits = stats.timings.items(), stats.first_waits.items()
    found: Samples = {
        _JOBS: job_samples(stats.counts),
        _ERRORS: {f'{{method="{method}",code="{code}"}}': count for (method, code), count in stats.errors.items()},
        _CALLS: {},
        _WAITS: {},
        _WRONG_PASSWORDS: {"": wrong_passwords},
        "pinlater_server_connections": {"": connections},
        "pinlater_server_calls": {"": calls},
    }
    for family, label, named in ((_CALLS, "method", timings), (_WAITS, "queue", waits)):
        for name, each in named:
            found[family] |= histogram(f'{label}="{name}"', each.bounds_s, each.buckets, each.seconds)
    return found


def job_samples(counts: Mapping[tuple[str, str], int]) -> dict[str, float]:
    """The values of the metric of jobs. counts: by queue and what."""
    return {f'{{queue="{queue}",what="{what}"}}': count for (queue, what), count in counts.items()}


def monitor_samples(counts: Mapping[tuple[str, str], int]) -> Samples:
    """What a monitor did to jobs. counts: by queue and what."""
    return {_JOBS: job_samples(counts)}


def stats_page(found: Mapping[str, Mapping[str, float]]) -> str:
    """The original's stats page. Times are in milliseconds."""
    counters = {f"{labels['queue']}_{labels['what']}": value for labels, value in _labelled(found.get(_JOBS, {}))}
    for labels, value in _labelled(found.get(_ERRORS, {})):
        counters[f"PinLater.{labels['method']}.errors.{labels['code']}"] = value
    counters |= dict.fromkeys(["deleteQueue_wrong_passwords"], sum(found.get(_WRONG_PASSWORDS, {}).values()))
    gauges = {name: sum(found.get(family, {}).values()) for family, name in _GAUGES.items()}
    metrics = {f"PinLaterService.{name}": each for name, each in _histograms(found.get(_CALLS, {}), "method").items()}
    for queue, each in _histograms(found.get(_WAITS, {}), "queue").items():
        metrics[f"{queue}_first_dequeue_delay_ms"] = each
    sections: dict[str, dict[str, str]] = {
        "counters": {name: f"{value:.0f}" for name, value in counters.items()},
        "gauges": {name: f"{value:.1f}" for name, value in gauges.items()},
        "labels": {},
        "metrics": {name: _summary(each) for name, each in metrics.items()},
    }
    lines: list[str] = []
    for section, values in sections.items():
        lines += [f"{section}:", *(f"  {name}: {values[name]}" for name in sorted(values))]
    return "\n".join([*lines, ""])


class _Histogram(NamedTuple):
    """buckets: the count of each by its upper bound, as metrics have them: with those before it."""

    buckets: dict[float, float]
    sum: float


def _labelled(values: Mapping[str, float]) -> Iterator[tuple[dict[str, str], float]]:
    return ((dict(_LABEL.findall(rest)), value) for rest, value in values.items())


def _histograms(values: Mapping[str, float], label: str) -> dict[str, _Histogram]:
    """The histograms of a metric by the value of a label."""
    buckets: dict[str, dict[float, float]] = {}
    sums: dict[str, float] = {}
    for rest, value in values.items():
        labels = dict(_LABEL.findall(rest))
        if rest.startswith("_bucket"):
            buckets.setdefault(labels[label], {})[float(labels["le"])] = value
        elif rest.startswith("_sum"):
            sums[labels[label]] = value
    return {name: _Histogram(found, sums[name]) for name, found in buckets.items()}


def _summary(found: _Histogram) -> str:
    """As the original writes it. Times in milliseconds."""
    edges = sorted(found.buckets.items())
    count = edges[-1][1]
    values = {
        "average": found.sum / count,
        "maximum": _at(edges, 1.0),
        "minimum": _at(edges, 0.0),
        **{name: _at(edges, share) for name, share in _PERCENTILES.items()},
        "sum": found.sum,
    }
    shown = {name: f"{value * 1000:.6g}" for name, value in values.items()} | {"count": f"{count:.0f}"}
    return f"({', '.join(f'{name}={shown[name]}' for name in sorted(shown))})"


def _at(edges: list[tuple[float, float]], share: float) -> float:
    """The time below which so great a share of the calls is; between two bounds as if calls were spread evenly."""
    wanted = share * edges[-1][1]
    for (low_s, below), (high_s, count) in pairwise([(0.0, 0.0), *edges]):
        if count > below and count >= wanted:
            reached_s = low_s if high_s == float("inf") else high_s
            return low_s + (reached_s - low_s) * max(0.0, wanted - below) / (count - below)
    raise AssertionError("a histogram without calls")
