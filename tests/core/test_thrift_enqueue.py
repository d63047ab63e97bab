"""`enqueueJobs` of `pinlater._core`: calls as thriftpy2 writes them, any fields, packed jobs, answers.

Promises: a valid call says what thriftpy2 says; any bytes give the twin's value or the twin's error.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinlater import _core
from pinlater._core import BadMessage, MissingField, PriorityNotSupported
from tests.support import thrift_twins, twins
from tests.support.core_inputs import refusal, shards
from tests.support.thrift_inputs import (
    agree,
    changed,
    contexts,
    enqueue_call,
    enqueue_messages,
    enqueue_requests,
    outcome_of,
)
from tests.support.thrift_wire import (
    BYTE,
    CONTEXT,
    I32,
    I64,
    IDL,
    LIST,
    STRING,
    STRUCT,
    Elements,
    arguments,
    encode,
    read_answer,
    read_arguments,
)

DEFAULTS: dict[str, Any] = {"priority": 1, "runAfterTimestampMillis": 0, "numAttemptsAllowed": 2, "customStatus": ""}
LIMITS = (2**20, 3)


def call_of(*jobs: Any, queue: str = "mail", context: Any = CONTEXT) -> _core.EnqueueCall:
    """A call with these jobs: bodies, or jobs of the IDL."""
    made = [job if isinstance(job, IDL.PinLaterJob) else IDL.PinLaterJob(body=job) for job in jobs]
    request = IDL.PinLaterEnqueueRequest(queueName=queue, jobs=made)
    return _core.read_enqueue(arguments("enqueueJobs", request, context), 0)


def as_the_wire_says(job: Any) -> twins.NewJob:
    """What a job of the IDL comes to, if its priority is one of a queue."""
    values: Any = (default if getattr(job, name) is None else getattr(job, name) for name, default in DEFAULTS.items())
    priority, run_after_ms, attempts, status = values
    time_ms = min(max(run_after_ms, 0), 2**44 - 1)
    return twins.NewJob(job.body, priority, time_ms or None, None, min(max(attempts, 1), 65_535), status, None)


@given(contexts, enqueue_requests, st.binary(max_size=5), st.binary(max_size=5))
def test_a_call_says_what_thriftpy2_says(context: Any, request: Any, head: bytes, rest: bytes) -> None:
    message = arguments("enqueueJobs", request, context)
    call = _core.read_enqueue(head + message + rest, len(head))
    request = read_arguments("enqueueJobs", message).request
    expected = [as_the_wire_says(job) for job in request.jobs]
    assert (call.source, call.queue, call.count) == (context.source, request.queueName, len(expected))
    assert call.size == sum(len(job.body) + len(job.status.encode()) for job in expected)
    if all(1 <= job.priority <= 100 for job in expected):
        assert enqueue_call(call) == (context.source, request.queueName, expected)
    else:
        assert outcome_of(call.jobs) is PriorityNotSupported


@given(st.one_of(enqueue_messages, changed(enqueue_messages)), st.integers(0, 9), st.integers(0, 100))
def test_any_message_is_read_as_the_twin_does(message: bytes, body_limit: int, priorities: int) -> None:
    native, twin = (outcome_of(each.read_enqueue, message, 0) for each in (_core, thrift_twins))
    if isinstance(twin, type) or isinstance(native, type):
        assert agree(native, twin)
        return
    assert (native.source, native.queue, native.count) == (twin.source, twin.queue, len(twin.jobs))
    error = outcome_of(twin.check, body_limit, priorities)
    assert outcome_of(native.check, body_limit, priorities) == error
    packed = outcome_of(_core.pack_enqueues, [native], body_limit, priorities)
    assert packed == (error or twins.pack_jobs(twin.jobs, body_limit, priorities))
    if not error:
        assert enqueue_call(native) == tuple(twin)


@given(st.lists(enqueue_requests, max_size=4), st.integers(0, 9), st.integers(1, 100))
def test_the_jobs_of_calls_are_packed_one_behind_the_other(requests: Any, body_limit: int, priorities: int) -> None:
    calls = [call_of(*request.jobs) for request in requests]
    good = [call for call in calls if not outcome_of(call.check, body_limit, priorities)]
    jobs = [job for call in good for job in call.jobs()]
    assert _core.pack_enqueues(good, body_limit, priorities) == twins.pack_jobs(jobs, body_limit, priorities)
    errors = [error for call in calls if (error := outcome_of(call.check, body_limit, priorities))]
    assert errors == [] or outcome_of(_core.pack_enqueues, calls, body_limit, priorities) is errors[0]


def test_jobs_of_two_calls_are_packed_as_the_page_says() -> None:
    later = IDL.PinLaterJob(b"b", priority=2, runAfterTimestampMillis=0x010203040506, customStatus="é")
    packed = _core.pack_enqueues([call_of(b"a"), call_of(), call_of(b"c", later)], *LIMITS)
    assert packed == (
        b"\1\0\0\0\0\0\0\0\0\2" + b"\2\1\1\2\3\4\5\6\0\1",
        b"\0\2\0\2" + "é".encode(),
        [b"\1\0\2\1a", b"\1\0\2\1c", b"\1\0\2\2b"],
    )
    assert _core.pack_enqueues([], *LIMITS) == (b"", b"", [])


def test_a_group_of_calls_has_at_most_a_thousand_jobs() -> None:
    thousand = call_of(*[b""] * 1000)
    assert len(_core.pack_enqueues([thousand, call_of()], *LIMITS)[2]) == 1000
    message = "ValueError: expected at most 1,000 jobs of all calls, got 1,001"
    assert refusal(_core.pack_enqueues, [thousand, call_of(b"")], *LIMITS) == message
    assert len(call_of(*[b""] * 5000).jobs()) == 5000


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([bytes(11)], "ValueError: job: body: expected at most 10 bytes (the queue's body limit), got 11"),
        ([b"", bytes(11), b""], "ValueError: job 2 of 3: body: expected at most 10 bytes (the queue's body limit), "),
        (
            [b"", IDL.PinLaterJob(b"", priority=4)],
            "PriorityNotSupported: job 2 of 2: priority: expected 1 to 3 (the priorities of the queue), got 4",
        ),
        (
            [IDL.PinLaterJob(b"", priority=-1)],
            "PriorityNotSupported: job: priority: expected 1 to 3 (the priorities of the queue), got -1",
        ),
    ],
)
def test_a_call_says_which_job_its_queue_refuses(jobs: list[Any], message: str) -> None:
    call = call_of(*jobs)
    assert refusal(call.check, 10, 3).startswith(message)
    assert refusal(_core.pack_enqueues, [call_of(b""), call], 10, 3).startswith(message)


@pytest.mark.parametrize("priority", [-128, -1, 0, 101, 127])
def test_a_priority_of_no_queue_has_its_own_error(priority: int) -> None:
    call = call_of(b"", IDL.PinLaterJob(b"", priority=priority))
    for refused in (lambda: call.check(9, 100), call.jobs, lambda: answer_to(call)):
        assert refusal(refused).endswith(f"expected 1 to 100 (the priorities of the queue), got {priority}")
        assert outcome_of(refused) is PriorityNotSupported


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, (None, 2, "")),
        ({"runAfterTimestampMillis": 0}, (None, 2, "")),
        ({"runAfterTimestampMillis": -(2**63)}, (None, 2, "")),
        ({"runAfterTimestampMillis": 1}, (1, 2, "")),
        ({"runAfterTimestampMillis": 2**62}, (2**44 - 1, 2, "")),
        ({"numAttemptsAllowed": 0}, (None, 1, "")),
        ({"numAttemptsAllowed": -5}, (None, 1, "")),
        ({"numAttemptsAllowed": 65_536}, (None, 65_535, "")),
        ({"customStatus": "x" * 3001}, (None, 2, "x" * 3000)),
        ({"customStatus": "é" * 1501}, (None, 2, "é" * 1500)),
        ({"customStatus": "xx" + "€" * 1000}, (None, 2, "xx" + "€" * 999)),
        ({"customStatus": "x" + "\U0001f600" * 750}, (None, 2, "x" + "\U0001f600" * 749)),
    ],
)
def test_what_cannot_be_kept_is_changed(job: dict[str, Any], expected: tuple[Any, ...]) -> None:
    [made] = call_of(IDL.PinLaterJob(b"a", **job)).jobs()
    assert (made.run_after_ms, made.attempts, made.status) == expected


@given(st.integers(2990, 3010), st.binary(max_size=12), st.binary(max_size=5))
def test_a_status_is_cut_at_a_character_whatever_its_bytes(start: int, middle: bytes, end: bytes) -> None:
    status = b"x" * start + middle + end
    job = encode(STRUCT, [(STRING, 1, b""), (STRING, 5, status)])
    message = b"\x0c\0\1\x0b\0\1\0\0\0\0\0\x0c\0\2\x0b\0\1\0\0\0\0\x0f\0\2\x0c\0\0\0\1" + job + b"\0\0"
    [made] = _core.read_enqueue(message, 0).jobs()
    whole = status.decode(errors="replace")
    assert whole.startswith(made.status)
    assert 3000 >= len(made.status.encode()) >= min(2997, len(whole.encode()))
    assert (made.status == whole) == (len(whole.encode()) <= 3000)


@pytest.mark.parametrize("source", ["", "web:host:1", "x" * 256, "é" * 128, "x" + "é" * 127])
def test_a_source_is_cut_to_what_a_claim_takes(source: str) -> None:
    kept = call_of(context=IDL.RequestContext(source=source)).source
    assert source.startswith(kept)
    assert min(254, len(source.encode())) <= len(kept.encode()) <= 255


@pytest.mark.parametrize("body", [b"", b"\0\r\n", "\U0001f600".encode(), b"\xff\xfe", bytes(range(256)) * 4096])
def test_a_body_keeps_its_bytes(body: bytes) -> None:
    call = call_of(body)
    assert call.jobs()[0].body == body
    assert call.size == len(body)
    assert _core.pack_enqueues([call], *LIMITS)[2] == [b"\1\0\2\1" + body]


def test_text_that_is_no_utf_8_is_replaced() -> None:
    context, job = encode(STRUCT, [(STRING, 1, b"a\xff")]), [(STRING, 5, b"\xc3"), (STRING, 1, b"\xc3")]
    request = encode(STRUCT, [(STRING, 1, b"q\x80"), (LIST, 2, Elements(STRUCT, [job]))])
    call = _core.read_enqueue(b"\x0c\0\2" + request + b"\x0c\0\1" + context + b"\0", 0)
    assert (call.source, call.queue) == ("a\ufffd", "q\ufffd")
    assert [(job.status, job.body) for job in call.jobs()] == [("\ufffd", b"\xc3")]


JOB = [(STRING, 1, b"body")]
CONTEXT_FIELD = (STRUCT, 1, [(STRING, 1, b"web")])
QUEUE_FIELD, JOBS_FIELD = (STRING, 1, b"mail"), (LIST, 2, Elements(STRUCT, [JOB]))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ([(STRUCT, 2, [QUEUE_FIELD, JOBS_FIELD])], "context"),
        ([(STRUCT, 1, []), (STRUCT, 2, [QUEUE_FIELD, JOBS_FIELD])], "context.source"),
        ([CONTEXT_FIELD], "request"),
        ([CONTEXT_FIELD, (STRUCT, 2, [JOBS_FIELD])], "request.queueName"),
        ([CONTEXT_FIELD, (STRUCT, 2, [QUEUE_FIELD])], "request.jobs"),
        ([CONTEXT_FIELD, (STRUCT, 2, [QUEUE_FIELD, (LIST, 2, Elements(STRING, [b""]))])], "request.jobs"),
        ([CONTEXT_FIELD, (STRUCT, 2, [QUEUE_FIELD, (LIST, 2, Elements(STRUCT, [JOB, []]))])], "job 2 of 2: body"),
        ([CONTEXT_FIELD, (STRING, 2, b"")], "request"),
    ],
)
def test_a_required_field_that_is_missing_is_named(fields: Any, name: str) -> None:
    message = refusal(_core.read_enqueue, encode(STRUCT, fields), 0)
    assert message == f"MissingField: {name}: expected a value, as the field is required, got none"


def test_the_errors_are_value_errors_apart() -> None:
    assert BadMessage.__bases__ == MissingField.__bases__ == PriorityNotSupported.__bases__ == (ValueError,)


def test_the_last_of_a_field_counts_and_others_are_skipped() -> None:
    job = [(BYTE, 2, 2), (STRING, 1, b"first"), (I32, 2, 3), (I64, 4, 9), (STRING, 1, b"last"), (STRING, -1, b"x")]
    request = [(LIST, 2, Elements(STRUCT, [])), QUEUE_FIELD, (LIST, 2, Elements(STRUCT, [job])), (STRUCT, 1, [])]
    call = _core.read_enqueue(encode(STRUCT, [(STRUCT, 2, request), (LIST, 9, Elements(0, [])), CONTEXT_FIELD]), 0)
    assert [(job.body, job.priority, job.attempts) for job in call.jobs()] == [(b"last", 2, 2)]


# Answers


def answer_to(call: _core.EnqueueCall, sequence: int = 1, shard: str = "1", first_id: int = 1) -> bytes:
    """The answer to one call."""
    [answer], count = _core.enqueue_answers([call], [sequence], shard, first_id)
    assert count == call.count
    return answer


@given(shards, st.lists(st.integers(1, 100), max_size=5), st.integers(1, 2**63 - 9), st.integers(-(2**31), 2**31 - 1))
def test_an_answer_names_the_jobs_in_their_order(shard: str, priorities: list[int], first: int, sequence: int) -> None:
    call = call_of(*(IDL.PinLaterJob(b"", priority=priority) for priority in priorities), queue="a" * 255)
    descriptors = _core.format_descriptors("a" * 255, shard, bytes(priorities), first, len(priorities))
    frame = answer_to(call, sequence, shard, first)
    assert frame == _core.enqueue_answer(sequence, descriptors)
    answer = read_answer(frame)
    assert (answer.method, answer.kind, answer.sequence) == ("enqueueJobs", 2, sequence)
    assert (answer.result.e, answer.result.success.jobDescriptors) == (None, descriptors)


def test_an_answer_is_what_the_protocol_says() -> None:
    head = struct.pack(">iHBBi", 69, 0x8001, 0, 2, 11) + b"enqueueJobs" + struct.pack(">i", 5)
    field = b"\x0c\0\0" + b"\x0f\0\1" + b"\x0b\0\0\0\2"
    texts = b"\0\0\0\x0cmail:s1:p1:9" + b"\0\0\0\x0dmail:s1:p1:10"
    assert answer_to(call_of(b"", b""), 5, "1", 9) == head + field + texts + b"\0\0"


@pytest.mark.parametrize(
    ("shard", "first", "message"),
    [
        ("a b", 1, "ValueError: shard: expected 1 to 32 of A-Z, a-z, 0-9, _ and -, "),
        (1, 1, "TypeError: shard: expected a str, got int 1"),
        ("1", 0, "ValueError: first_id: expected 1 to 9,223,372,036,854,775,806, got 0"),
        ("1", 2**63, "ValueError: first_id: expected 1 to "),
        ("1", 1.5, "TypeError: first_id: expected an int from 1 to "),
    ],
)
def test_an_answer_refuses_what_no_job_has(shard: Any, first: Any, message: str) -> None:
    assert refusal(answer_to, call_of(b""), 1, shard, first).startswith(message)


def test_a_call_shows_itself() -> None:
    assert repr(call_of(b"a", b"b")) == "<EnqueueCall of 2 jobs to mail>"
