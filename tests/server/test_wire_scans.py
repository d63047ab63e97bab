"""Scans and counts through the service: pages over shards and priorities while jobs come and go.

Promises: each test runs over the three Thrift libraries, on three shards.
"""

from __future__ import annotations

import random

import pytest

from tests.support.service_calls import (
    FAILED,
    HOUR_MS,
    IN_PROGRESS,
    PENDING,
    SHARDS,
    STATES,
    SUCCEEDED,
    Caller,
    Service,
    failed,
    peer,
    pytest_generate_tests,
    queue,
    refused,
    service,
    wire,
)

__all__ = ["peer", "pytest_generate_tests", "queue", "service", "wire"]  # for pytest


def enqueue_each(wire: Caller, queue: str, count: int, start_ms: int) -> list[str]:
    """Jobs on any shard and of each priority, the latest last."""
    return [
        wire.enqueue(queue, b"%d" % at, priority=1 + at % 3, runAfterTimestampMillis=start_ms + at // 2)[0]
        for at in range(count)
    ]


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_jobs_that_stay_are_given_once_while_others_come_and_go(
    wire: Caller, queue: str, service: Service, limit: int
) -> None:
    start_ms = service.now_ms() - HOUR_MS
    jobs = enqueue_each(wire, queue, 45, start_ms)
    assert len({job.split(":")[1] for job in jobs}) == len(SHARDS)
    chosen = random.Random(limit)
    removed = set(chosen.sample(jobs, 15))
    left, seen, continuation = sorted(removed), list[str](), "0"
    while continuation != "-1":
        page, continuation = wire.scan(queue, limit=limit, continuation=continuation)
        assert len(page) <= limit
        seen += page
        # comes: at the front, in the middle, at the end. goes: any of the 15
        for at_ms in (start_ms - 1, start_ms + chosen.randrange(22), start_ms + HOUR_MS // 2):
            wire.enqueue(queue, b"new", priority=chosen.randrange(1, 4), runAfterTimestampMillis=at_ms)
        if left:
            service.delete_named(left.pop())
    assert len(seen) == len(set(seen))
    stayed = [job for job in jobs if job not in removed]
    assert [job for job in seen if job in set(stayed)] == in_order(wire, stayed)


def in_order(wire: Caller, jobs: list[str]) -> list[str]:
    """The latest first; those of one time by their ids, the highest first, and then by their shards."""
    infos = wire.lookup(*jobs)

    def place(job: str) -> tuple[int, int, str]:
        _, shard, _, id_ = job.split(":")
        return -infos[job]["runAfterTimestampMillis"], -int(id_), shard

    return sorted(jobs, key=place)


@pytest.mark.parametrize("state", STATES)
def test_pages_of_each_state_have_each_job_once(wire: Caller, queue: str, service: Service, state: int) -> None:
    jobs = enqueue_each(wire, queue, 40, service.now_ms() - HOUR_MS)
    if state != PENDING:
        for _ in range(4):
            wire.dequeue(queue, 10)
    if state == SUCCEEDED:
        wire.ack(queue, jobs)
    if state == FAILED:
        wire.request(
            "checkpointJobs", queue, requests=[{"jobDescriptor": job, "numOfAttemptsAllowed": 1} for job in jobs]
        )
        wire.ack(queue, failed=jobs)
    pages = []
    continuation = "0"
    while continuation != "-1":
        page, continuation = wire.scan(queue, state, limit=9, continuation=continuation)
        pages.append(page)
    found = [job for page in pages for job in page]
    assert sorted(found) == sorted(jobs)
    assert len(pages) >= 4
    for priority in (1, 2, 3):
        of_priority = {job for job in jobs if f":p{priority}:" in job}
        assert set(wire.scan_all(queue, state, priority=priority, limit=9)) == of_priority
        assert wire.count(queue, state, priority=priority) == len(of_priority)
    assert wire.count(queue, state) == 40
    assert all(wire.count(queue, other) == 0 for other in STATES if other != state)


def test_a_continuation_works_for_the_scan_that_gave_it_alone(wire: Caller, queue: str) -> None:
    wire.enqueue(queue, *[b""] * 10)
    wire.dequeue(queue, 4)
    _, of_pending = wire.scan(queue, limit=2)
    _, of_running = wire.scan(queue, IN_PROGRESS, limit=2)
    for state, continuation in ((IN_PROGRESS, of_pending), (PENDING, of_running)):
        with refused(400):
            wire.scan(queue, state, continuation=continuation)
    for other in ({"priority": 1}, {"scanFutureJobs": True}, {"bodyRegexToMatch": "x"}):
        with refused(400):
            wire.scan(queue, continuation=of_pending, **other)
    with refused(400):
        wire.scan(f"{queue}_", continuation=of_pending)


def test_patterns_go_through_pages(wire: Caller, queue: str, service: Service) -> None:
    jobs = enqueue_each(wire, queue, 50, service.now_ms() - HOUR_MS)
    late = wire.enqueue(queue, b"7late", b"late", runAfterTimestampMillis=service.now_ms() + HOUR_MS)
    with_7 = [job for at, job in enumerate(jobs) if "7" in str(at)]
    assert wire.scan_all(queue, bodyRegexToMatch="7", limit=2) == in_order(wire, with_7)
    assert wire.scan_all(queue, bodyRegexToMatch="^7", scanFutureJobs=True, limit=1) == late[:1]
    assert [
        wire.count(queue, bodyRegexToMatch="7"),
        wire.count(queue, bodyRegexToMatch="7", countFutureJobs=True),
        wire.count(queue, bodyRegexToMatch="7", priority=2),
        wire.count(queue, SUCCEEDED, bodyRegexToMatch="7"),
    ] == [len(with_7), 1, sum(":p2:" in job for job in with_7), 0]
    assert wire.count(queue, bodyRegexToMatch="(?i)LATE$", countFutureJobs=True) == 2
    assert wire.delete(queue, bodyRegexToMatch="7", priority=2) == sum(":p2:" in job for job in with_7)
    assert wire.count(queue, bodyRegexToMatch="7") == sum(":p2:" not in job for job in with_7)


def test_a_pattern_is_of_bytes(wire: Caller, queue: str) -> None:
    wire.enqueue(queue, "é".encode(), b"\xe9", b"e")
    assert [wire.count(queue, bodyRegexToMatch=pattern) for pattern in ("é", r"(?-u:\xe9)", "^.$", r"(?-u)^.$")] == [
        1,
        1,
        2,
        2,
    ]


def test_a_large_pattern_is_refused(wire: Caller, queue: str) -> None:
    wire.enqueue(queue, b"a")
    for pattern in ("a{1000}{1000}{1000}", "(" * 1_000 + ")" * 1_000, "a" * 1_000_000):
        with failed(6) as error:
            wire.count(queue, bodyRegexToMatch=pattern)
        assert error.value.message.startswith("bodyRegexToMatch: expected ")
        assert len(error.value.message) < 15_000  # it shows a pattern of up to 4,096 bytes, and where


@pytest.mark.parametrize("limit", [0, -1, -(2**31)])
def test_scans_of_no_jobs(wire: Caller, queue: str, limit: int) -> None:
    wire.enqueue(queue, b"")
    for fields in ({}, {"bodyRegexToMatch": ""}, {"scanFutureJobs": True}):
        assert wire.scan(queue, limit=limit, **fields) == ([], "-1")
    with refused(400):
        wire.scan(queue, limit=limit, continuation="-1")


def test_the_largest_limit_gives_all_that_an_answer_takes(wire: Caller, queue: str) -> None:
    jobs = wire.enqueue(queue, *[b""] * 2_500)
    assert set(wire.scan_all(queue, limit=2**31 - 1)) == set(jobs)
    assert wire.scan(queue, limit=2**31 - 1)[1] == "-1"
