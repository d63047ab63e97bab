"""What clients of the service may rely on: each line of the interface's "Behaviour that clients rely on" has a test.

Promises: a test with `wire` runs over the three Thrift libraries, one with `calls` over the direct clients too. Each
runs on three shards, and over the Thrift libraries on one shard.
tests/server/test_direct_clients.py has, for each test with `wire`, what the direct clients do instead.
"""

from __future__ import annotations

import re

import pytest

from pinlater.server.settings import ServerSettings
from pinlater.worker.monitor import Monitor
from tests.support.servers import wait_until
from tests.support.service_calls import (
    FAILED,
    HOUR_MS,
    IN_PROGRESS,
    PASSWORD,
    PENDING,
    SUCCEEDED,
    Caller,
    Service,
    Shown,
    ack_request,
    any_peer,
    calls,
    new_name,
    peer,
    pytest_generate_tests,
    queue,
    refused,
    service,
    wire,
)
from tests.support.thrift_clients import PEERS

__all__ = ["any_peer", "calls", "peer", "pytest_generate_tests", "queue", "service", "wire"]  # for pytest

ON_ONE_SHARD = tuple(PEERS)

#: The lines of the page, in its words.
shows = Shown(
    (
        "Job descriptor: queue:s<shard>:p<priority>:<local id>",
        "Queue names: letters, digits, underscore; anything else is QUEUE_NAME_INVALID",
        "Creating an existing queue and deleting a missing one are no-ops",
        "deleteQueue: a wrong password is PASSWORD_INVALID",
        "enqueue: an unknown queue is QUEUE_NOT_FOUND",
        "enqueue: a priority outside 1..levels is PRIORITY_NOT_SUPPORTED",
        "No run-after, or 0, means now",
        "Descriptors are unique and returned in the order of the jobs",
        "dequeue: jobs whose run-after has passed",
        "dequeue: higher priority first over all shards, then the next level, up to limit",
        "dryRun shows what would be given without taking it",
        "coverage is the share of shards to look at",
        "Acks that ride on a dequeue are carried out in the same request",
        "A queue over its rate gives DEQUEUE_RATE_LIMITED",
        "An unknown or empty queue gives no jobs",
        "The claim descriptor reads host:port:server start millis:source:counter",
        "ack succeeded: running to succeeded, custom status stored",
        "ack failed: attempts left > 1 to pending at now + retryDelayMillis, claim cleared, attempts - 1",
        "ack failed: otherwise to failed with 0 left",
        "Acking a job that is not running is a no-op, not an error",
        "checkpoint applies only to a running job whose claim holds the caller's source",
        "checkpoint refreshes the claim's time",
        "newBody replaces the body",
        "numOfAttemptsAllowed sets allowed and remaining",
        "prependCustomStatus goes in front of the status",
        "moveToPending puts the job back at runAfterTimestampMillis (or now) and clears the claim",
        "Custom status is cut to 3000 bytes, never inside a UTF-8 character",
        "lookup: unknown descriptors are left out of the map; the body only when asked",
        "getJobCount and scanJobs: current jobs by default, the future ones when asked",
        "getJobCount and scanJobs: without a priority, all of them",
        "bodyRegexToMatch filters on the body",
        "Scan is newest run-after first",
        "CONTINUATION_INVALID for what is no continuation; ours is a real token",
        "retryFailedJobs: up to limit failed jobs of the priority, with attemptsToAllow attempts left",
        "deleteJobs: up to limit jobs of that state and priority (and body match)",
        "A claim older than the claimed timeout goes back to pending, or to failed",
        "Succeeded and failed jobs are removed after their TTLs",
        "Original property names and defaults",
        "Metrics names",
    )
)


def test_each_line_has_a_test() -> None:
    assert shows.missing == set()


# queues


@shows("Job descriptor: queue:s<shard>:p<priority>:<local id>")
def test_a_descriptor_names_queue_shard_priority_and_id(calls: Caller, queue: str, service: Service) -> None:
    jobs = calls.enqueue(queue, *[{"body": b"", "priority": 1 + at % 3} for at in range(30)])
    read = [re.fullmatch(r"(\w+):s(\w+):p(\d+):(\d+)", job, re.ASCII) for job in jobs]
    assert [match and (match[1], int(match[3])) for match in read] == [(queue, 1 + at % 3) for at in range(30)]
    assert {match[2] for match in read if match} <= service.shards.keys()


@shows("Queue names: letters, digits, underscore; anything else is QUEUE_NAME_INVALID")
@pytest.mark.parametrize("name", ["", "a-b", "a b", "a:b", "x.y", "café", "x\n", "x\0", "٣"])
def test_a_bad_queue_name_is_refused(wire: Caller, name: str) -> None:
    with refused(410) as error:
        wire.create(name)
    assert error.value.message == f"queue name: expected letters, digits and underscores, got {name!r}"
    assert name not in wire.queue_names()


@shows("Queue names: letters, digits, underscore; anything else is QUEUE_NAME_INVALID")
def test_letters_digits_and_underscores_are_a_queue_name(calls: Caller) -> None:
    names = {f"{new_name()}_{end}" for end in ("A", "9", "_", "z" * 200)}
    for name in names:
        calls.create(name)
    assert names <= calls.queue_names()


@shows("Creating an existing queue and deleting a missing one are no-ops")
def test_a_queue_is_created_once_and_deleted_once(calls: Caller, queue: str) -> None:
    [job] = calls.enqueue(queue, b"kept")
    calls.create(queue)
    assert calls.body(job) == b"kept"
    for _ in range(2):
        calls.call("deleteQueue", name=queue, password=PASSWORD)
        assert queue not in calls.queue_names()


@shows("deleteQueue: a wrong password is PASSWORD_INVALID")
@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_deletes_nothing(
    wire: Caller, queue: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinlater.server.passwords.FIRST_PAUSE_S", 0.0)
    for name in (queue, "unknown"):
        with refused(403):
            wire.call("deleteQueue", name=name, password=password)
    assert queue in wire.queue_names()


# enqueue


@shows("enqueue: an unknown queue is QUEUE_NOT_FOUND")
def test_enqueuing_on_an_unknown_queue_is_refused(wire: Caller) -> None:
    name = new_name()
    with refused(413) as error:
        wire.enqueue(name, b"")
    assert error.value.message == f"queue {name!r}: not found; createQueue makes it"


@shows("enqueue: a priority outside 1..levels is PRIORITY_NOT_SUPPORTED")
@pytest.mark.parametrize("priority", [-128, -1, 0, 4, 127])
def test_a_priority_that_the_queue_lacks_is_refused(wire: Caller, queue: str, priority: int) -> None:
    with refused(416) as error:
        wire.enqueue(queue, b"in?", {"body": b"", "priority": priority})
    expected = f"job 2 of 2: priority: expected 1 to 3 (the priorities of the queue), got {priority}"
    assert error.value.message == expected
    assert wire.counts(queue) == (0, 0, 0, 0)


@shows("No run-after, or 0, means now", "dequeue: jobs whose run-after has passed")
def test_a_job_is_given_when_its_run_after_has_passed(calls: Caller, queue: str, service: Service) -> None:
    before_ms = service.now_ms()
    late, now, zero, past = calls.enqueue(
        queue,
        {"body": b"late", "runAfterTimestampMillis": before_ms + HOUR_MS},
        {"body": b"now"},
        {"body": b"zero", "runAfterTimestampMillis": 0},
        {"body": b"past", "runAfterTimestampMillis": before_ms - HOUR_MS},
    )
    times = {job: info["runAfterTimestampMillis"] for job, info in calls.lookup(late, now, zero, past).items()}
    after_ms = service.now_ms()
    assert before_ms <= times[now] <= after_ms
    assert before_ms <= times[zero] <= after_ms
    assert (times[late], times[past]) == (before_ms + HOUR_MS, before_ms - HOUR_MS)
    assert set(calls.dequeue(queue).values()) == {b"now", b"zero", b"past"}


@shows("Descriptors are unique and returned in the order of the jobs")
def test_descriptors_are_unique_and_in_the_order_of_the_jobs(calls: Caller, queue: str) -> None:
    bodies = [b"%d" % at for at in range(1_200)]
    jobs = calls.enqueue(queue, *[{"body": body, "priority": 1 + at % 3} for at, body in enumerate(bodies)])
    assert len(set(jobs)) == len(bodies)
    infos = calls.lookup(*jobs, includeBody=True)
    assert [infos[job]["body"] for job in jobs] == bodies


# dequeue


@shows("dequeue: higher priority first over all shards, then the next level, up to limit")
def test_higher_priorities_come_first_over_all_shards(calls: Caller, queue: str, service: Service) -> None:
    for at in range(36):
        calls.enqueue(queue, b"%d" % (3 - at % 3), priority=3 - at % 3)
    jobs = [calls.dequeue(queue, limit) for limit in (5, 7, 0, 15, 100)]
    assert [len(each) for each in jobs] == [5, 7, 0, 15, 9]
    assert [sorted(each.values()) for each in jobs[:2]] == [[b"1"] * 5, [b"1"] * 7]
    assert sorted(jobs[3].values()) == [b"2"] * 12 + [b"3"] * 3
    assert len({job.split(":")[1] for each in jobs for job in each}) == len(service.shards)


@shows("dryRun shows what would be given without taking it")
def test_a_dry_run_takes_nothing(calls: Caller, queue: str) -> None:
    calls.enqueue(queue, *[{"body": b"%d" % at, "priority": 1 + at % 2} for at in range(10)])
    shown = calls.dequeue(queue, 5, dryRun=True)
    assert calls.counts(queue) == (10, 0, 0, 0)
    assert calls.dequeue(queue, 5) == shown
    assert sorted(shown.values()) == [b"0", b"2", b"4", b"6", b"8"]


@shows("coverage is the share of shards to look at")
@pytest.mark.parametrize(("coverage", "of_three"), [(0.0, 1), (0.1, 1), (0.34, 2), (0.67, 3), (1.0, 3), (2.0, 3)])
def test_coverage_is_the_share_of_the_shards(
    wire: Caller, queue: str, service: Service, coverage: float, of_three: int
) -> None:
    for at in range(40):
        wire.enqueue(queue, b"%d" % at)
    held = {job.split(":")[1] for job in wire.dequeue(queue, dryRun=True)}
    assert len(held) == len(service.shards)
    seen = {job.split(":")[1] for job in wire.dequeue(queue, coverage=coverage)}
    assert len(seen) == min(of_three, len(service.shards))


@shows("Acks that ride on a dequeue are carried out in the same request")
def test_acks_ride_on_a_dequeue(calls: Caller, queue: str) -> None:
    done, again = calls.running(queue, b"done"), calls.running(queue, b"again")
    calls.ack(queue, [calls.running(queue)])  # servers know the script from here on: it leaves with the claim
    jobs = calls.dequeue(queue, jobAckRequest=ack_request(queue, [done], [again]))
    assert jobs == {again: b"again"}  # the acks come first
    assert calls.info(done)["jobState"] == SUCCEEDED
    assert calls.info(again)["attemptsRemaining"] == 1


@shows("A queue over its rate gives DEQUEUE_RATE_LIMITED")
def test_a_queue_over_its_rate_says_so(wire: Caller, service: Service) -> None:
    queue = service.new_queue(rate="1/h")
    wire.enqueue(queue, *[b""] * 5)
    for rate in ("1/h", 0):
        service.configure(queue, rate=rate)
        with refused(429) as error:
            wire.dequeue(queue)
        assert error.value.message.startswith(f"queue {queue!r}: gives no jobs now because of its ")
    assert service.counted(queue, "dequeue_requests_rate_limited") == 2
    service.configure(queue, rate=None)
    assert len(wire.dequeue(queue)) == 5


@shows("An unknown or empty queue gives no jobs")
def test_an_unknown_or_empty_queue_gives_no_jobs(wire: Caller, queue: str) -> None:
    for name in (queue, "unknown", "no-name", "x" * 1000):
        assert wire.request("dequeueJobs", name, limit=5) == {}
        assert wire.request("dequeueJobs", name, limit=5, dryRun=True) == {}


@shows("The claim descriptor reads host:port:server start millis:source:counter")
@pytest.mark.parametrize("source", ["web:1", "a:b:c", "x", "Ünï"])
def test_a_claim_descriptor_names_server_source_and_claim(
    wire: Caller, queue: str, service: Service, source: str
) -> None:
    claims = []
    for _ in range(2):
        claim = wire.info(wire.by(source).running(queue))["claimDescriptor"]
        match = re.fullmatch(rf"([^:]+):({service.port}):(\d{{13}}):({source}):(\d+)", claim)
        assert match is not None, claim
        claims.append(match)
    assert claims[0][1] == claims[1][1]
    assert int(claims[0][5]) < int(claims[1][5])


# ack


@shows("ack succeeded: running to succeeded, custom status stored")
def test_a_succeeded_job_is_kept_with_its_status(calls: Caller, queue: str) -> None:
    job = calls.running(queue, customStatus="a")
    calls.ack(queue, [{"jobDescriptor": job, "appendCustomStatus": "b"}])
    info = calls.info(job)
    assert (info["jobState"], info["customStatus"], info["attemptsRemaining"]) == (SUCCEEDED, "ab", 2)
    assert "claimDescriptor" not in info
    assert calls.counts(queue) == (0, 0, 1, 0)


@shows("ack failed: attempts left > 1 to pending at now + retryDelayMillis, claim cleared, attempts - 1")
@pytest.mark.parametrize("delay_ms", [0, HOUR_MS])
def test_a_failed_job_with_attempts_left_is_pending_again(
    calls: Caller, queue: str, service: Service, delay_ms: int
) -> None:
    job = calls.running(queue, numAttemptsAllowed=3, customStatus="a")
    before_ms = service.now_ms()
    ack = {"jobDescriptor": job, "appendCustomStatus": "b", "retryDelayMillis": delay_ms}
    calls.ack(queue, failed=[ack])
    info = calls.info(job)
    assert info["jobState"] == PENDING
    assert (info["attemptsRemaining"], info["attemptsAllowed"], info["customStatus"]) == (2, 3, "ab")
    assert "claimDescriptor" not in info
    assert before_ms + delay_ms <= info["runAfterTimestampMillis"] <= service.now_ms() + delay_ms
    assert list(calls.dequeue(queue)) == [job][: delay_ms == 0]


@shows("ack failed: otherwise to failed with 0 left")
def test_a_failed_job_without_attempts_is_failed(calls: Caller, queue: str) -> None:
    job = calls.running(queue, numAttemptsAllowed=1)
    calls.ack(queue, failed=[{"jobDescriptor": job, "retryDelayMillis": HOUR_MS}])
    info = calls.info(job)
    assert (info["jobState"], info["attemptsRemaining"]) == (FAILED, 0)
    assert calls.counts(queue) == (0, 0, 0, 1)


@shows("Acking a job that is not running is a no-op, not an error")
def test_acking_a_job_that_is_not_running_changes_nothing(calls: Caller, queue: str) -> None:
    over = calls.running(queue, b"over")
    calls.ack(queue, [over])
    [fresh] = calls.enqueue(queue, b"fresh")
    jobs = [over, fresh, f"{queue}:s1:p1:12345"]
    before = calls.lookup(*jobs)
    calls.ack(queue, jobs)
    calls.ack(queue, failed=jobs)
    assert calls.lookup(*jobs) == before
    assert calls.counts(queue) == (1, 0, 1, 0)


# checkpoint


@shows("checkpoint applies only to a running job whose claim holds the caller's source")
def test_a_checkpoint_of_somebody_else_changes_nothing(calls: Caller, queue: str) -> None:
    job = calls.running(queue, b"old")
    [pending] = calls.enqueue(queue, b"old")
    for caller, other in ((calls.by("web:10"), job), (calls, pending), (calls, f"{queue}:s1:p1:7")):
        caller.checkpoint(queue, other, newBody="new", moveToPending=True, prependCustomStatus="x")
    assert (calls.body(job), calls.body(pending)) == (b"old", b"old")
    assert calls.counts(queue) == (1, 1, 0, 0)
    calls.checkpoint(queue, job, newBody="new")
    assert calls.body(job) == b"new"


@shows("checkpoint refreshes the claim's time")
def test_a_checkpoint_refreshes_the_claim(calls: Caller, queue: str, service: Service) -> None:
    job = calls.running(queue)
    claimed = calls.info(job)
    later_ms = service.next_ms()
    calls.checkpoint(queue, job)
    info = calls.info(job)
    assert info["updatedAtTimestampMillis"] >= later_ms > claimed["updatedAtTimestampMillis"]
    assert info["claimDescriptor"] == claimed["claimDescriptor"]


@shows(
    "newBody replaces the body",
    "numOfAttemptsAllowed sets allowed and remaining",
    "prependCustomStatus goes in front of the status",
)
def test_a_checkpoint_changes_body_attempts_and_status(calls: Caller, queue: str) -> None:
    job = calls.running(queue, b"old", customStatus="b")
    calls.checkpoint(queue, job, newBody="", numOfAttemptsAllowed=9, prependCustomStatus="a")
    info = calls.info(job, includeBody=True)
    assert (info["body"], info["attemptsAllowed"], info["attemptsRemaining"]) == (b"", 9, 9)
    assert (info["customStatus"], info["jobState"]) == ("ab", IN_PROGRESS)
    calls.checkpoint(queue, job, newBody="néw")
    assert calls.body(job) == "néw".encode()
    assert calls.info(job)["customStatus"] == "ab"


@shows("moveToPending puts the job back at runAfterTimestampMillis (or now) and clears the claim")
def test_a_checkpoint_puts_a_job_back(calls: Caller, queue: str, service: Service) -> None:
    now, late = calls.running(queue, b"now"), calls.running(queue, b"late")
    before_ms = service.now_ms()
    calls.checkpoint(queue, now, moveToPending=True)
    calls.checkpoint(queue, late, moveToPending=True, runAfterTimestampMillis=before_ms + HOUR_MS)
    infos = calls.lookup(now, late)
    assert before_ms <= infos[now]["runAfterTimestampMillis"] <= service.now_ms()
    assert infos[late]["runAfterTimestampMillis"] == before_ms + HOUR_MS
    for info in infos.values():
        assert (info["jobState"], info["attemptsRemaining"]) == (PENDING, 2)
        assert "claimDescriptor" not in info
    assert list(calls.dequeue(queue)) == [now]


@shows("Custom status is cut to 3000 bytes, never inside a UTF-8 character")
def test_a_long_custom_status_is_cut_at_a_character(wire: Caller, queue: str) -> None:
    long = "a" + "é" * 3_000
    cut = long[:1500]
    assert len(cut.encode()) == 2_999
    job = wire.running(queue, customStatus=long)
    assert wire.info(job)["customStatus"] == cut
    other = wire.running(queue)
    wire.checkpoint(queue, other, prependCustomStatus=long)
    assert wire.info(other)["customStatus"] == cut
    wire.ack(queue, [{"jobDescriptor": job, "appendCustomStatus": "b" * 10_000}])
    assert wire.info(job)["customStatus"] == "b" * 3_000


# looking


@shows("lookup: unknown descriptors are left out of the map; the body only when asked")
def test_a_lookup_knows_only_what_there_is(calls: Caller, queue: str) -> None:
    first, second = calls.enqueue(queue, b"a", b"b")
    found = calls.lookup(first, f"{queue}:s1:p1:77", second)
    assert found.keys() == {first, second}
    assert "body" not in found[first]
    assert calls.lookup(first, includeBody=True)[first]["body"] == b"a"
    assert calls.lookup() == {}


@shows("lookup: unknown descriptors are left out of the map; the body only when asked")
def test_a_lookup_leaves_out_what_no_job_can_be(wire: Caller, queue: str) -> None:
    [job] = wire.enqueue(queue, b"")
    unknown = new_name()
    others = [
        f"{unknown}:s1:p1:77",
        f"{queue}:s1:p0:77",
        f"{queue}:s1:p9:77",
        f"{queue}:s1:p101:77",
        f"{queue}:s1:p1:0",
    ]
    assert wire.lookup(*others, job, f"{queue}:s1:p1:{2**64}", ":s1:p1:1").keys() == {job}


@shows(
    "getJobCount and scanJobs: current jobs by default, the future ones when asked",
    "getJobCount and scanJobs: without a priority, all of them",
)
def test_counts_and_scans_are_of_current_or_of_future_jobs(calls: Caller, queue: str, service: Service) -> None:
    late_ms = service.now_ms() + HOUR_MS
    jobs = {
        (priority, time_ms): calls.enqueue(queue, *[b""] * priority, priority=priority, runAfterTimestampMillis=time_ms)
        for priority in (1, 2, 3)
        for time_ms in (0, late_ms)
    }
    for time_ms, of_count, of_scan in (
        (0, {}, {}),
        (late_ms, {"countFutureJobs": True}, {"scanFutureJobs": True}),
    ):
        every = {job for (_, at_ms), each in jobs.items() if at_ms == time_ms for job in each}
        assert calls.count(queue, **of_count) == 6
        assert set(calls.scan_all(queue, **of_scan)) == every
        for priority in (1, 2, 3):
            assert calls.count(queue, priority=priority, **of_count) == priority
            assert set(calls.scan_all(queue, priority=priority, **of_scan)) == set(jobs[priority, time_ms])


@shows("bodyRegexToMatch filters on the body")
def test_a_pattern_filters_on_the_body(wire: Caller, queue: str) -> None:
    jobs = wire.enqueue(queue, b"apple", b"banana\npear", b"\xff pear", b"")
    assert [wire.count(queue, bodyRegexToMatch=pattern) for pattern in ("an", "^pear$", "pear$", "", "x")] == [
        1,
        0,
        2,
        4,
        0,
    ]
    assert set(wire.scan_all(queue, bodyRegexToMatch="p+[el]")) == {jobs[0], jobs[1], jobs[2]}


@shows("Scan is newest run-after first")
def test_a_scan_gives_the_newest_first(wire: Caller, queue: str, service: Service) -> None:
    start_ms = service.now_ms() - HOUR_MS
    made = {}
    for at in (5, 3, 9, 1, 7, 2, 8, 4, 6, 0):
        fields = {"priority": 1 + at % 3, "runAfterTimestampMillis": start_ms + at}
        [job] = wire.enqueue(queue, b"", **fields)
        made[job] = at
    jobs, continuation = wire.scan(queue)
    assert ([made[job] for job in jobs], continuation) == ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], "-1")


@shows("CONTINUATION_INVALID for what is no continuation; ours is a real token")
def test_a_continuation_is_a_real_one_or_refused(wire: Caller, queue: str) -> None:
    jobs = {job for at in range(10) for job in wire.enqueue(queue, b"%d" % at, priority=1 + at % 3)}
    assert jobs == set(wire.scan_all(queue, limit=3))
    page, continuation = wire.scan(queue, limit=3)
    rest, end = wire.scan(queue, limit=8, continuation=continuation)
    assert (set(page + rest), len(page + rest), end) == (jobs, 10, "-1")
    for bad in ("", "-1", "1", "abc", "0 "):
        with refused(400):
            wire.scan(queue, continuation=bad)


# retries and removals


@shows("retryFailedJobs: up to limit failed jobs of the priority, with attemptsToAllow attempts left")
def test_failed_jobs_are_pending_again(calls: Caller, queue: str, service: Service) -> None:
    calls.enqueue(queue, *[{"body": b"", "priority": 1 + at % 2, "numAttemptsAllowed": 1} for at in range(10)])
    calls.ack(queue, failed=list(calls.dequeue(queue)))
    late_ms = service.now_ms() + HOUR_MS
    assert calls.retry(queue, limit=3, attemptsToAllow=4) == 3
    assert calls.retry(queue, priority=2, runAfterTimestampMillis=late_ms) == 5
    assert calls.retry(queue, priority=3) == 0
    assert calls.counts(queue) == (3, 0, 0, 2)
    assert calls.count(queue, countFutureJobs=True, priority=2) == 5
    infos = calls.lookup(*calls.dequeue(queue))
    assert {(info["attemptsRemaining"], info["attemptsAllowed"]) for info in infos.values()} == {(4, 4)}


@shows("deleteJobs: up to limit jobs of that state and priority (and body match)")
def test_jobs_of_a_state_and_priority_are_deleted(calls: Caller, queue: str) -> None:
    calls.enqueue(queue, *[{"body": b"", "priority": 1 + at % 2} for at in range(12)])
    [*held] = calls.dequeue(queue, 2)
    assert calls.delete(queue, limit=3) == 3
    assert calls.delete(queue, SUCCEEDED) == 0
    assert calls.delete(queue, IN_PROGRESS) == 2
    calls.ack(queue, held)  # of deleted jobs: nothing
    assert calls.counts(queue) == (7, 0, 0, 0)
    assert calls.delete(queue, priority=2) == 6
    assert calls.counts(queue) == (1, 0, 0, 0)


@shows("deleteJobs: up to limit jobs of that state and priority (and body match)")
def test_jobs_with_a_matching_body_are_deleted(wire: Caller, queue: str) -> None:
    wire.enqueue(queue, b"a1", b"a2", b"b1", b"a3")
    wire.enqueue(queue, b"a4", priority=2)
    assert wire.delete(queue, bodyRegexToMatch="^a", limit=2) == 2
    assert wire.delete(queue, bodyRegexToMatch="^a") == 1
    assert sorted(wire.dequeue(queue).values()) == [b"a4", b"b1"]


# what time does


@shows(
    "A claim older than the claimed timeout goes back to pending, or to failed",
    "Succeeded and failed jobs are removed after their TTLs",
)
def test_old_claims_end_and_old_jobs_go(wire: Caller, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinlater.worker.monitor.COLLECT_S", 0.1)
    queue = service.new_queue(lease_ms=200)
    again, over, done = (wire.running(queue, b"", numAttemptsAllowed=allowed) for allowed in (2, 1, 1))
    wire.ack(queue, [done])
    client = service.running.client

    async def start() -> Monitor:
        monitor = Monitor(client, [queue], tick_s=0.1)
        await monitor.start()
        return monitor

    monitor = service.running.run(start())
    try:
        wait_until(lambda: wire.counts(queue) == (1, 0, 1, 1), "the claims to end")
        infos = wire.lookup(again, over)
        assert [infos[job]["attemptsRemaining"] for job in (again, over)] == [1, 0]
        service.configure(queue, succeeded_ttl_s=1, failed_ttl_s=1)
        wait_until(lambda: wire.counts(queue) == (1, 0, 0, 0), "the finished jobs to go")
    finally:
        service.running.run(monitor.stop())


@shows("Original property names and defaults")
def test_the_defaults_are_those_of_the_original() -> None:
    """tests of the configuration have the names."""
    settings = ServerSettings()
    assert (settings.port, settings.priorities, settings.lease_s) == (9010, 3, 600)
    assert (settings.failed_ttl_s, settings.succeeded_ttl_s) == (168 * 3600, 24 * 3600)
    assert (settings.max_requests, settings.idle_s) == (5000, 5 * 60)
    config = settings.queue_config
    assert (config.lease_ms, config.priorities) == (600_000, 3)
    assert (config.failed_ttl_s, config.succeeded_ttl_s) == (168 * 3600, 24 * 3600)


@shows("Metrics names")
def test_calls_are_counted_under_the_names_of_the_original(wire: Caller, queue: str, service: Service) -> None:
    wire.enqueue(queue, *[b""] * 5)
    first, second, third, *_ = wire.dequeue(queue, 4)
    wire.ack(queue, [first, second], [third])
    wire.ack(queue, [first], [second, third])  # all are refused
    wire.checkpoint(queue, first)
    wire.checkpoint(queue, next(iter(wire.dequeue(queue, 1))))
    names = ("enqueue", "dequeue", "ack_succeeded", "ack_failed", "ack_refused", "checkpoint", "checkpoint_noop")
    assert {name: service.counted(queue, name) for name in names} == {
        "enqueue": 5,
        "dequeue": 5,
        "ack_succeeded": 2,
        "ack_failed": 1,
        "ack_refused": 3,
        "checkpoint": 1,
        "checkpoint_noop": 1,
    }
    stats = service.running.process.stats
    before = stats.errors["enqueueJobs", "QUEUE_NOT_FOUND"]
    with refused(413):
        wire.enqueue("unknown", b"")
    assert stats.errors["enqueueJobs", "QUEUE_NOT_FOUND"] == before + 1
    assert sum(stats.timings["checkpointJobs"].buckets) >= 2
