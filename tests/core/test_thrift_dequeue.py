"""`dequeueJobs` and `ackDequeuedJobs` of `pinlater._core`: calls, batches of several calls, answers.

Promises: a valid call says what thriftpy2 says; any bytes give the twin's value or the twin's error.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinlater import _core
from pinlater._core import MissingField
from tests.support import thrift_twins, twins
from tests.support.core_inputs import fields, refusal
from tests.support.thrift_inputs import (
    ack_call,
    ack_messages,
    ack_requests,
    agree,
    changed,
    contexts,
    dequeue_call,
    dequeue_messages,
    dequeue_requests,
    few_descriptors,
    outcome_of,
)
from tests.support.thrift_wire import (
    BOOL,
    CONTEXT,
    DOUBLE,
    I32,
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

Info = IDL.PinLaterJobAckInfo
TOKEN = (5 << 19).to_bytes(8, "big")


def acks_of(succeeded: Any = (), failed: Any = (), *, queue: str = "mail", source: str = "web:1") -> _core.AckCall:
    """A call with these jobs: descriptors, or infos of the IDL."""
    lists = ([job if isinstance(job, Info) else Info(job) for job in jobs] for jobs in (succeeded, failed))
    request = IDL.PinLaterJobAckRequest(queue, *lists)
    return _core.read_ack(arguments("ackDequeuedJobs", request, IDL.RequestContext(source)), 0)


def twin_of(source: str, request: Any) -> twins.AckCall:
    """What thriftpy2 read of a call without malformed descriptors."""
    acks, named = [], []
    for kind, infos in enumerate((request.jobsSucceeded or [], request.jobsFailed or [])):
        for info in infos:
            named.append(info.jobDescriptor.split(":")[1][1:])
            delay_ms = min(max(info.retryDelayMillis or 0, 0), 2**44 - 1)
            if info.jobDescriptor.startswith(f"{request.queueName}:") and not outcome_of(
                lambda text: twins.parse_descriptor(text) and None, info.jobDescriptor
            ):
                acks.append((kind, info.jobDescriptor, info.appendCustomStatus or "", delay_ms))
    return twins.AckCall(source, request.queueName, acks, list(dict.fromkeys(named)))


# Calls


@given(contexts, ack_requests, st.binary(max_size=5), st.binary(max_size=5))
def test_an_ack_says_what_thriftpy2_says(context: Any, request: Any, head: bytes, rest: bytes) -> None:
    message = arguments("ackDequeuedJobs", request, context)
    read = read_arguments("ackDequeuedJobs", message)
    call = _core.read_ack(head + message + rest, len(head))
    assert ack_call(call) == ack_call(twin_of(read.context.source, read.request))


@given(contexts, dequeue_requests, st.binary(max_size=5), st.binary(max_size=5))
def test_a_dequeue_says_what_thriftpy2_says(context: Any, request: Any, head: bytes, rest: bytes) -> None:
    message = arguments("dequeueJobs", request, context)
    read = read_arguments("dequeueJobs", message)
    source, asked = read.context.source, read.request
    acks = None if asked.jobAckRequest is None else twin_of(source, asked.jobAckRequest)
    expected = (source, asked.queueName, asked.limit, asked.dryRun, asked.coverage, acks)
    call = _core.read_dequeue(head + message + rest, len(head))
    assert dequeue_call(call) == dequeue_call(thrift_twins.DequeueCall(*expected))


@given(st.one_of(ack_messages, changed(ack_messages)))
def test_any_ack_is_read_as_the_twin_does(message: bytes) -> None:
    native, twin = (ack_call(outcome_of(each.read_ack, message, 0)) for each in (_core, thrift_twins))
    assert agree(native, twin)


@given(st.one_of(dequeue_messages, changed(dequeue_messages)))
def test_any_dequeue_is_read_as_the_twin_does(message: bytes) -> None:
    native, twin = (dequeue_call(outcome_of(each.read_dequeue, message, 0)) for each in (_core, thrift_twins))
    assert agree(native, twin)


@pytest.mark.parametrize(
    ("descriptor", "why"),
    [
        ("", "it does not have four parts"),
        ("abc", "it does not have four parts"),
        ("mail:s1:p1", "it does not have four parts"),
        ("mail:s1:p1:1:1", "it does not have four parts"),
        ("mail:1:p1:1", "the shard is not s[A-Za-z0-9_-]{1,32}"),
        ("mail:s:p1:1", "the shard is not s[A-Za-z0-9_-]{1,32}"),
        ("mail:s1:1:1", "the priority is not p1 to p100"),
        ("mail:s1:p:1", "the priority is not p1 to p100"),
        ("mail:s1:p1.0:1", "the priority is not p1 to p100"),
        ("mail:s1:p1:", "the id is not a decimal number from 1 to 2**63 - 1"),
        ("mail:s1:p1:x", "the id is not a decimal number from 1 to 2**63 - 1"),
        ("mail:s1:p1:1 ", "the id is not a decimal number from 1 to 2**63 - 1"),
        ("mail:s1:p1:-", "the id is not a decimal number from 1 to 2**63 - 1"),
    ],
)
def test_a_malformed_descriptor_is_named(descriptor: str, why: str) -> None:
    expected = f'job descriptor: expected "queue:s<shard>:p<priority>:<id>", got "{descriptor}": {why}'
    assert refusal(acks_of, ["mail:s1:p1:1", descriptor]) == f"ValueError: succeeded job 1: {expected}"
    assert refusal(acks_of, ["mail:s1:p1:1"], [descriptor]) == f"ValueError: failed job 0: {expected}"


@pytest.mark.parametrize(
    "descriptor",
    ["p0:1", "p101:1", "p-1:1", "p01:1", "p99999999999999999999:1", "p1:0", "p1:-1", "p1:+1", "p1:01", f"p1:{2**63}"],
)
def test_a_job_that_cannot_exist_is_left_out(descriptor: str) -> None:
    call = acks_of([f"mail:s1:p1:{number}" for number in (1, 2)] + [f"mail:s9:{descriptor}"], [f"mail:s1:{descriptor}"])
    assert (call.count, call.shards()) == (2, ["1", "9"])
    [batch] = _core.group_ack_calls([call], False, 1000)
    assert batch.positions == [0, 1]


@pytest.mark.parametrize("queue", ["mails", "mai", "m-l", "", "é"])
def test_a_job_of_another_queue_is_left_out(queue: str) -> None:
    call = acks_of([f"{queue}:s2:p1:1", "mail:s1:p1:1"], [f"{queue}:s3:p1:2"])
    assert (call.count, call.shards()) == (1, ["2", "1", "3"])
    nothing = acks_of([f"{queue}:s2:p1:1"], queue="a b")
    assert (nothing.count, _core.group_ack_calls([nothing], False, 1000)) == (0, [])


def test_many_shards_keep_their_order() -> None:
    names = [str(number % 20) for number in range(100)]
    call = acks_of([f"mail:s{name}:p1:{at + 1}" for at, name in enumerate(names)])
    assert call.shards() == names[:20]
    made = _core.group_ack_calls([call], False, 1000)
    assert [(batch.shard, len(batch.ids)) for batch in made] == [(name, 5) for name in names[:20]]


def test_an_ack_without_lists_is_an_ack_of_nothing() -> None:
    call = _core.read_ack(arguments("ackDequeuedJobs", IDL.PinLaterJobAckRequest("mail")), 0)
    assert (call.queue, call.count, call.shards(), call.keys()) == ("mail", 0, [], frozenset())
    assert repr(call) == "<AckCall of 0 jobs of mail>"


CONTEXT_FIELD = (STRUCT, 1, [(STRING, 1, b"web")])
QUEUE_FIELD, LIMIT_FIELD = (STRING, 1, b"mail"), (I32, 2, 1)


@pytest.mark.parametrize(
    ("read", "request_fields", "name"),
    [
        (_core.read_ack, [], "jobAckRequest.queueName"),
        (_core.read_ack, [QUEUE_FIELD, (LIST, 2, Elements(STRUCT, [[]]))], "jobDescriptor"),
        (_core.read_dequeue, [LIMIT_FIELD], "request.queueName"),
        (_core.read_dequeue, [QUEUE_FIELD], "request.limit"),
        (_core.read_dequeue, [QUEUE_FIELD, LIMIT_FIELD, (STRUCT, 3, [])], "jobAckRequest.queueName"),
    ],
)
def test_a_required_field_that_is_missing_is_named(read: Any, request_fields: Any, name: str) -> None:
    message = refusal(read, encode(STRUCT, [CONTEXT_FIELD, (STRUCT, 2, request_fields)]), 0)
    assert message == f"MissingField: {name}: expected a value, as the field is required, got none"
    assert outcome_of(read, encode(STRUCT, [CONTEXT_FIELD]), 0) is MissingField
    assert outcome_of(read, encode(STRUCT, [(STRUCT, 2, [QUEUE_FIELD, LIMIT_FIELD])]), 0) is MissingField


def test_the_acks_of_a_dequeue_have_its_source_wherever_it_stands() -> None:
    info = [(STRING, 1, b"a:s1:p1:7")]
    riding = (STRUCT, 3, [(LIST, 2, Elements(STRUCT, [info])), (STRING, 1, b"a")])
    message = encode(STRUCT, [(STRUCT, 2, [riding, LIMIT_FIELD, QUEUE_FIELD]), CONTEXT_FIELD])
    call = _core.read_dequeue(message, 0)
    assert call.acks is not None
    assert (call.queue, call.source, call.acks.queue, call.acks.source) == ("mail", "web", "a", "web")
    assert (call.limit, call.dry_run, call.coverage, call.acks.count) == (1, False, 1.0, 1)
    assert repr(call) == "<DequeueCall of 1 jobs of mail>"


@pytest.mark.parametrize("coverage", [0.0, -1.0, 0.1, math.inf, -math.inf, math.nan])
def test_a_coverage_is_read_as_it_came(coverage: float) -> None:
    request = [QUEUE_FIELD, LIMIT_FIELD, (DOUBLE, 5, coverage), (BOOL, 4, 1)]
    call = _core.read_dequeue(encode(STRUCT, [CONTEXT_FIELD, (STRUCT, 2, request)]), 0)
    assert struct.pack(">d", call.coverage) == struct.pack(">d", coverage)
    assert (call.dry_run, call.acks) == (True, None)


# Batches


@given(
    st.lists(st.tuples(st.sampled_from(["", "web", "é" * 127]), ack_requests), max_size=5),
    st.booleans(),
    st.integers(0, 9),
)
def test_calls_are_grouped_as_the_twin_does(calls: list[Any], any_source: bool, most: int) -> None:
    messages = [arguments("ackDequeuedJobs", request, IDL.RequestContext(source)) for source, request in calls]
    native = _core.group_ack_calls([_core.read_ack(message, 0) for message in messages], any_source, most)
    twin = twins.group_ack_calls([thrift_twins.read_ack(message, 0) for message in messages], any_source, most)
    assert [fields(batch, twins.AckBatch) for batch in native] == twin


def test_calls_are_grouped_as_the_page_says() -> None:
    first = acks_of(["mail:s1:p1:5"], [Info("mail:s1:p2:7", "é", 0x010203040506)], source="web")
    second = acks_of(["mail:s1:p1:4", "mail:s1:p1:6", "mail:s2:p1:9"], source="")
    one, other = _core.group_ack_calls([first, second], False, 1000)
    assert fields(one, twins.AckBatch) == (
        "mail",
        "1",
        b"\0",
        b"\1\0\0\3" + bytes(8) + b"\0\1" + bytes(7) + b"\1\0\2" + b"\2\1\0\1" + bytes(8) + b"\0\1" + b"\1\2\3\4\5\6",
        b"\3web\0",
        b"\0\3\0\2" + "é".encode(),
        [bytes(7) + bytes([number]) for number in (5, 4, 6, 7)],
        [0, 2, 3, 1],
        True,
        True,
    )
    assert (other.shard, other.sources, other.positions, other.fails) == ("2", b"\0", [4], False)
    assert other.groups == b"\1\0\0\1" + bytes(8) + b"\0\1"


def test_any_source_names_none() -> None:
    [batch] = _core.group_ack_calls([acks_of(["mail:s1:p1:5"]), acks_of(["mail:s1:p1:6"], source="b")], True, 9)
    assert (batch.flags, batch.sources, batch.groups) == (b"\2", b"", b"\1\0\0\2" + bytes(8) + b"\0\2")


def test_a_job_that_is_named_twice_is_acked_once() -> None:
    job = "mail:s1:p1:5"
    [batch] = _core.group_ack_calls([acks_of([job, job], [Info(job, "late", 9)])], False, 9)
    assert (len(batch.ids), batch.fails, batch.statuses) == (1, False, b"")
    # of several calls of one source the first one counts, as they came in this order
    [batch] = _core.group_ack_calls([acks_of([], [job], source="a"), acks_of([job], source="a")], False, 9)
    assert (batch.positions, batch.fails, batch.sources) == ([0], True, b"\1a")


def test_a_job_that_two_sources_name_stands_there_for_each() -> None:
    job = "mail:s1:p1:5"
    calls = [acks_of([], [job], source="a"), acks_of([job, job], source="b"), acks_of([job], source="a")]
    [batch] = _core.group_ack_calls(calls, False, 9)
    assert (batch.positions, batch.fails, batch.sources) == ([1, 0], True, b"\1a\1b")
    [batch] = _core.group_ack_calls(calls, True, 9)  # whoever claimed it: the first call counts
    assert (batch.positions, batch.fails, batch.sources) == ([0], True, b"")


def test_the_sources_of_a_batch_fit_their_length() -> None:
    calls = [acks_of([f"mail:s1:p1:{at + 1}"], source=f"{at:03}".rjust(255, "x")) for at in range(300)]
    made = _core.group_ack_calls(calls, False, 1000)
    assert [len(batch.ids) for batch in made] == [255, 45]
    assert [len(batch.sources) for batch in made] == [255 * 256, 45 * 256]
    short = [acks_of([f"mail:s1:p1:{at + 1}"], source=f"{at}") for at in range(1001)]
    assert [len(batch.ids) for batch in _core.group_ack_calls(short, False, 5000)] == [1000, 1]


@given(st.lists(few_descriptors, max_size=5), st.lists(few_descriptors, max_size=5), st.sampled_from(["mail", "a"]))
def test_calls_without_a_common_key_have_no_job_in_common(first: list[str], second: list[str], queue: str) -> None:
    one = acks_of(first)
    other = acks_of([text.replace("mail", queue) for text in second], queue=queue)
    # shard and id: no two jobs of a queue shard have one id
    ids, others = ({tuple(text.split(":")[1::2]) for text in texts} for texts in (first, second))
    assert (len(one.keys()), len(other.keys())) == (len(ids), len(others))
    assert len(one.keys() & other.keys()) == (len(ids & others) if queue == "mail" else 0)


# Answers


def claim_of(
    *jobs: tuple[int, int, bytes, int | None], queue: str = "mail", shard: str = "1", token: bytes = TOKEN
) -> _core.Claim:
    """A claim of jobs: priority, id, body, attempts left of three (None: all)."""
    block = b""
    for priority, id_, _, left in jobs:
        exceptions = struct.pack(">H", 0) if left is None else struct.pack(">HHH", 1, 0, left)
        block += struct.pack(">BHQ", priority, 1, id_) + exceptions
    records = [struct.pack(">BHB", 1, 3, priority) + body for priority, _, body, _ in jobs]
    return _core.decode_claim([1, 1, token + bytes(8) + block, records], queue, shard)


jobs_of_claims = st.tuples(
    st.integers(1, 100), st.integers(1, 2**63 - 1), st.binary(max_size=9), st.none() | st.integers(0, 3)
)


@given(
    st.lists(st.lists(jobs_of_claims, max_size=4), max_size=3),
    st.sampled_from(["1", "a-b", "s" * 32]),
    st.integers(-(2**31), 2**31 - 1),
)
def test_an_answer_has_the_jobs_of_the_claims(lists: Any, shard: str, sequence: int) -> None:
    claims = [claim_of(*jobs, shard=shard) for jobs in lists]
    answer = read_answer(_core.dequeue_answer(sequence, [job for claim in claims for job in claim.jobs]))
    assert (answer.method, answer.kind, answer.sequence, answer.result.e) == ("dequeueJobs", 2, sequence, None)
    jobs = {job.descriptor: job for claim in claims for job in claim.jobs}
    result = answer.result.success
    if not jobs:
        assert (result.jobs, result.jobMetadata) == (None, None)
        return
    assert list(result.jobs.items()) == [(name, job.body) for name, job in jobs.items()]
    attempts = [(name, job.attempts_allowed, job.attempts_remaining) for name, job in jobs.items()]
    assert [(name, one.attemptsAllowed, one.attemptsRemaining) for name, one in result.jobMetadata.items()] == attempts


@given(st.lists(jobs_of_claims, max_size=5), st.integers(-(2**31), 2**31 - 1))
def test_a_claim_is_answered_as_its_jobs_are(jobs: list[Any], sequence: int) -> None:
    claim = claim_of(*jobs)
    assert claim.count == len(jobs) == len(claim.jobs)
    assert _core.claim_answer(sequence, claim) == _core.dequeue_answer(sequence, claim.jobs)
    assert (claim.jobs is claim.jobs, claim.shard) == (True, "1")


def test_a_claim_has_the_wait_of_its_middle_job_if_that_was_its_first() -> None:
    claimed_ms = 1_700_000_000_000
    first, later, token = (claimed_ms - 70) << 19, (claimed_ms + 5) << 19, (claimed_ms << 19).to_bytes(8, "big")

    def wait_ms(*jobs: tuple[int, int, bytes, int | None]) -> int | None:
        return claim_of(*jobs, token=token).first_wait_ms

    assert wait_ms() is None
    assert wait_ms((1, later, b"", None), (1, first, b"", None), (1, later, b"", None)) == 70
    assert wait_ms((1, later, b"", None)) == 0  # the servers' clocks differ
    assert wait_ms((1, first, b"", 2)) is None


def test_a_dequeue_that_can_share_a_claim_is_known() -> None:
    def is_plain(*acked: str, shards: str = "1", **asked: Any) -> bool:
        acks = IDL.PinLaterJobAckRequest("mail", [Info(each) for each in acked]) if acked else None
        request = IDL.PinLaterDequeueRequest(**{"queueName": "mail", "limit": 5, "jobAckRequest": acks, **asked})
        call = _core.read_dequeue(arguments("dequeueJobs", request, IDL.RequestContext("web:1")), 0)
        assert call.jobs == max(len(acked), asked.get("limit", 5), 1)
        return call.is_of([*shards], 500)

    assert is_plain()
    assert is_plain("mail:s1:p1:5", "mail:s1:p2:6")
    assert is_plain("mail:s1:p1:5", limit=500)
    assert not is_plain("mail:s1:p1:5", shards="2")
    assert is_plain("mail:s1:p1:5", "mail:s2:p1:5", shards="321")
    assert not is_plain("post:s1:p1:5")
    assert not is_plain("mail:s1:p1:5", queueName="post")
    assert not is_plain("mail:s1:p1:5", "mail:s2:p1:5")
    assert [is_plain(limit=limit) for limit in (-1, 0, 1, 501)] == [False, False, True, False]
    assert [is_plain(coverage=each) for each in (0.5, 1.0, 2.0, float("nan"))] == [False, True, True, False]
    assert not is_plain(dryRun=True)


def test_an_answer_is_what_the_protocol_says() -> None:
    head = struct.pack(">HBBi", 0x8001, 0, 2, 11) + b"dequeueJobs" + struct.pack(">i", 5)
    name = b"\0\0\0\x0cmail:s1:p2:7"
    bodies = b"\x0d\0\1" + b"\x0b\x0b\0\0\0\1" + name + b"\0\0\0\1b"
    metadata = b"\x0d\0\2" + b"\x0b\x0c\0\0\0\1" + name + b"\x08\0\1\0\0\0\3" + b"\x08\0\2\0\0\0\1" + b"\0"
    message = head + b"\x0c\0\0" + bodies + metadata + b"\0\0"
    assert _core.dequeue_answer(5, claim_of((2, 7, b"b", 1)).jobs) == struct.pack(">i", len(message)) + message
    nothing = head + b"\x0c\0\0" + b"\0\0"
    assert _core.dequeue_answer(5, []) == struct.pack(">i", len(nothing)) + nothing


def test_an_answer_takes_jobs_alone() -> None:
    assert refusal(_core.dequeue_answer, 1, [CONTEXT]).startswith("TypeError")
