"""What a server counts, as metrics and as the original's stats page."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pinlater import Job
from pinlater.running import metrics
from pinlater.server.samples import monitor_samples, samples, stats_page
from pinlater.server.stats import CALL_BOUNDS_S, ServerStats, first_wait_ms

CREATED_MS = 1_700_000_000_000


def job(*, waited_ms: int = 0, attempts_remaining: int = 2) -> Job:
    token = ((CREATED_MS + waited_ms) << 19).to_bytes(8, "big")
    return Job("mail", "1", 1, CREATED_MS << 19, b"", token, 2, attempts_remaining)


def dequeued(stats: ServerStats, *jobs: Job) -> None:
    stats.dequeued("mail", len(jobs), [first_wait_ms(jobs)])


def of(stats: ServerStats, connections: int = 0, calls: int = 0) -> metrics.Samples:
    return samples(stats, connections=connections, calls=calls, wrong_passwords=0)


def busy() -> ServerStats:
    stats = ServerStats()
    stats.add("mail", "enqueue", 3)
    dequeued(stats, job(waited_ms=50))
    stats.failed("enqueueJobs", "UNKNOWN")
    for seconds in (0.002, 0.002, 0.2):
        stats.timings_of("enqueueJobs").add(seconds)
    return stats


def summary(page: str, name: str) -> dict[str, float]:
    [found] = re.findall(rf"^  {re.escape(name)}: \((.*)\)$", page, re.MULTILINE)
    return {key: float(value) for key, value in (each.split("=") for each in found.split(", "))}


def test_the_page_has_the_names_of_the_original() -> None:
    page = stats_page({**of(busy(), connections=2, calls=1), "pinlater_processes": {"": 4}})
    assert page.startswith(
        "counters:\n"
        "  PinLater.enqueueJobs.errors.UNKNOWN: 1\n"
        "  deleteQueue_wrong_passwords: 0\n"
        "  mail_dequeue: 1\n"
        "  mail_enqueue: 3\n"
        "gauges:\n"
        "  connections: 2.0\n"
        "  processes: 4.0\n"
        "  requests: 1.0\n"
        "labels:\n"
        "metrics:\n"
        "  PinLaterService.enqueueJobs: (average=68, count=3, maximum=250, minimum=1, p50="
    )
    found = summary(page, "PinLaterService.enqueueJobs")
    assert list(found) == ["average", "count", "maximum", "minimum", "p50", "p90", "p95", "p99", "p999", "p9999", "sum"]
    assert found["sum"] == 204
    assert 1 < found["p50"] <= 2.5
    assert 100 < found["p90"] < found["p99"] <= 250
    assert summary(page, "mail_first_dequeue_delay_ms")["average"] == 50


def test_the_page_of_a_server_that_did_nothing() -> None:
    assert stats_page({}) == (
        "counters:\n  deleteQueue_wrong_passwords: 0\ngauges:\n  connections: 0.0\n  processes: 0.0\n  requests: 0.0\n"
        "labels:\nmetrics:\n"
    )


def test_percentiles_are_right_to_the_width_of_a_bucket() -> None:
    stats = ServerStats()
    times_s = [n / 1000 for n in range(1, 1001)]  # 1 ms to 1 s
    for seconds in times_s:
        stats.timings_of("dequeueJobs").add(seconds)
    found = summary(stats_page(of(stats)), "PinLaterService.dequeueJobs")
    for name, exact_ms in {"minimum": 1, "p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}.items():
        widest_ms = max(
            1000 * (high - low) for low, high in zip((0, *CALL_BOUNDS_S), CALL_BOUNDS_S, strict=False) if high <= 1
        )
        assert abs(found[name] - exact_ms) <= widest_ms
    assert found["p50"] == pytest.approx(500, abs=1)
    assert found["maximum"] == 1000


def test_a_call_beyond_the_last_bucket_counts_as_its_bound() -> None:
    stats = ServerStats()
    stats.timings_of("dequeueJobs").add(99)
    found = summary(stats_page(of(stats)), "PinLaterService.dequeueJobs")
    assert found["maximum"] == found["p50"] == 10_000
    assert found["average"] == 99_000


def test_prometheus_reads_the_metrics() -> None:
    families = {family.name: family for family in text_string_to_metric_families(metrics.text(of(busy())))}
    jobs = {
        (each.labels["queue"], each.labels["what"]): each.value for each in families["pinlater_server_jobs"].samples
    }
    assert jobs == {("mail", "enqueue"): 3, ("mail", "dequeue"): 1}
    buckets = {
        each.labels["le"]: each.value
        for each in families["pinlater_server_call_seconds"].samples
        if each.name.endswith("_bucket")
    }
    assert (buckets["0.001"], buckets["0.0025"], buckets["0.25"], buckets["+Inf"]) == (0, 2, 3, 3)


def test_processes_add_up_and_gauges_end_with_theirs() -> None:
    total: metrics.Samples = {}
    metrics.add(total, of(busy(), connections=3), gauges=False)  # a process that has ended
    metrics.add(total, of(busy(), connections=2))
    metrics.add(total, monitor_samples({("mail", "timeout_retry"): 7}))
    page = stats_page(total)
    assert "  mail_enqueue: 6\n" in page
    assert "  mail_timeout_retry: 7\n" in page
    assert "  connections: 2.0\n" in page
    assert summary(page, "PinLaterService.enqueueJobs")["count"] == 6


def test_first_dequeues_alone_are_measured() -> None:
    stats = ServerStats()
    dequeued(stats, job(waited_ms=9_000_000, attempts_remaining=1))
    assert stats.first_waits == {}
    dequeued(stats, job(waited_ms=-5))  # the servers' clocks differ
    dequeued(stats, job(), job(waited_ms=2000), job())
    assert (stats.first_waits["mail"].seconds, sum(stats.first_waits["mail"].buckets)) == (2.0, 2)
    assert stats.counts["mail", "dequeue"] == 5


def test_clients_that_make_up_methods_add_one_name() -> None:
    stats = ServerStats()
    for n in range(1000):
        stats.timings_of(f"method{n}").add(0.001)
        stats.failed(f"method{n}", "UnknownMethod")
    assert sum(stats.timings["(unknown)"].buckets) == 1000
    assert stats.errors == {("(unknown)", "UnknownMethod"): 1000}
    assert len(stats.timings) == 1
