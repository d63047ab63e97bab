"""`pinlater._core` against its Python twins, its edges and messages: claims, acks, infos.

Promises: any input, good or malformed, gives the twin's value or the twin's type of error.
Risks: a mistake made in both, so the formats also stand here as bytes written by hand.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinlater import _core
from tests.support import twins
from tests.support.core_inputs import (
    JOB,
    TOKEN,
    descriptors,
    fields,
    ids,
    odd,
    odd_texts,
    outcome,
    priorities,
    refusal,
    statuses,
    targets,
    times_ms,
)

# Claim

BLOCK = b"\2\0\1" + bytes(7) + b"\5" + b"\0\1\0\0\0\1"
#: Due in, limited, left of two priorities.
REST = bytes(5) + b"\7" + b"\1\2" + bytes(8)
RECORD = b"\1\0\3\2xyz"
ONE_JOB: list[Any] = [b"s", b"h", TOKEN + REST + BLOCK, [RECORD]]
SIMPLE_JOB: list[Any] = [b"s", b"h", b"\2" + bytes(7) + b"\5" + TOKEN + RECORD]
TWO_IDS = b"\2\0\2" + bytes(7) + b"\5" + bytes(7) + b"\6"


@st.composite
def claim_replies(draw: st.DrawFn) -> list[Any]:
    block, records = b"", []
    for priority in draw(st.lists(priorities, max_size=3)):
        entries = draw(st.lists(st.tuples(ids, st.none() | st.integers(0, 65_535)), max_size=4))
        lefts = [struct.pack(">HH", index, left) for index, (_, left) in enumerate(entries) if left is not None]
        block += struct.pack(">BH", priority, len(entries))
        block += b"".join(struct.pack(">Q", id) for id, _ in entries)
        block += struct.pack(">H", len(lefts)) + b"".join(lefts)
        records += [b"\1" + draw(st.binary(min_size=3, max_size=6)) for _ in entries]
    cut = draw(st.integers(0, len(records)))
    left = struct.pack(">2I", *draw(st.tuples(*[st.integers(0, 2**32 - 1)] * 2)))
    due_in = draw(st.binary(min_size=6, max_size=6))
    token, limited = draw(st.sampled_from([bytes(8), TOKEN])), draw(st.sampled_from([b"\0", b"\1"]))
    if draw(st.booleans()):
        return [b"s", b"h", token + due_in + limited + b"\2" + left + block, records[:cut], records[cut:]]
    simple = struct.pack(">BQ", draw(priorities), draw(ids)) + TOKEN + b"\1" + draw(st.binary(min_size=3, max_size=6))
    return [b"s", b"h", draw(st.sampled_from([b"", simple]))]


@st.composite
def broken_claim_replies(draw: st.DrawFn) -> list[Any]:
    reply = draw(claim_replies())
    index = draw(st.integers(0, len(reply) - 1))
    part = reply[index]
    shorter = part[: draw(st.integers(0, len(part)))]
    longer = [*part, draw(odd)] if isinstance(part, list) else part + draw(st.binary(max_size=11))
    reply[index] = draw(st.one_of(odd, st.just(shorter), st.just(longer)))
    return reply[: draw(st.integers(0, len(reply)))] if draw(st.booleans()) else reply


@given(st.one_of(claim_replies(), broken_claim_replies()))
def test_claims_are_decoded_as_the_twin_does(reply: list[Any]) -> None:
    claim: Any = outcome(_core.decode_claim, reply, "mail", "1")
    if isinstance(claim, _core.Claim):
        claim = fields(claim, twins.Claim)
        claim = claim._replace(jobs=[fields(job, twins.Job) for job in claim.jobs])
    assert claim == outcome(twins.decode_claim, reply, "mail", "1")


def test_a_claim_is_decoded_as_the_page_says() -> None:
    claim = _core.decode_claim(ONE_JOB, "mail", "1")
    [job] = claim.jobs
    assert fields(job, twins.Job) == ("mail", "1", 2, 5, b"xyz", TOKEN, 3, 1, False)
    assert (claim.token, claim.left, claim.due_in_ms, claim.limited, claim.crashed) == (TOKEN, [0, 0], 7, 1, False)


def test_a_claim_of_a_simple_job_is_one_string() -> None:
    claim = _core.decode_claim(SIMPLE_JOB, "mail", "1")
    [job] = claim.jobs
    assert fields(job, twins.Job) == ("mail", "1", 2, 5, b"xyz", TOKEN, 3, 3, False)
    assert (claim.token, claim.left, claim.due_in_ms, claim.limited) == (TOKEN, [], 0, 0)
    none = _core.decode_claim([b"s", b"h", b""], "mail", "1")
    assert (none.count, none.token, none.left) == (0, b"", [])


def test_a_claim_says_which_jobs_have_crashed() -> None:
    head = TOKEN + REST + TWO_IDS + b"\0\1" + b"\x80\1\0\1"
    claim = _core.decode_claim([b"s", b"h", head, [b"\1\0\3\2x"] * 2], "mail", "1")
    assert claim.crashed
    assert [(job.crashed, job.attempts_remaining) for job in claim.jobs] == [(False, 3), (True, 1)]


def test_the_jobs_of_a_dry_run_have_no_token() -> None:
    claim = _core.decode_claim([b"s", b"h", bytes(8) + REST + BLOCK, [RECORD]], "mail", "1")
    assert (claim.token, claim.jobs[0].token, claim.jobs[0].claimed_ms) == (b"", bytes(8), 0)


def test_the_jobs_of_a_claim_share_what_they_have_in_common() -> None:
    head = TOKEN + REST + TWO_IDS + b"\0\0"
    claim = _core.decode_claim([b"s", b"h", head, [b"\1\0\3\2x"] * 2], "mail", "1")
    first, second = claim.jobs
    assert first.queue is second.queue
    assert first.shard is second.shard
    assert first.token is second.token is claim.token


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([], "expected at least 3 elements, got 2"),
        ([None], "head: expected bytes, got None"),
        ([TOKEN[:7], []], "head: expected 8 more bytes at byte 0 of 7, got 7"),
        ([TOKEN + bytes(5), []], "head: expected 6 more bytes at byte 8 of 13, got 5"),
        ([TOKEN + bytes(6) + b"\5\0", []], "limited: expected 0 to 4, got 5"),
        ([TOKEN + bytes(7) + b"\1abc", []], "head: expected 4 more bytes at byte 16 of 19, got 3"),
        ([TOKEN + REST + b"\2\0", []], "jobs block: expected 2 more bytes at byte 1 of 2, got 1"),
        ([TOKEN + REST + bytes(3), []], "jobs block: expected a priority from 1 to 100, got 0"),
        ([TOKEN + REST + BLOCK, b""], "records: expected a list, got b''"),
        ([TOKEN + REST + BLOCK, [None]], "record 0: expected bytes, got None"),
        ([TOKEN + REST + BLOCK, [b"\1\0\1"]], "job 0: record: expected at least 4 bytes, got 3"),
        ([TOKEN + REST + BLOCK, [b"\2\0\1\1"]], "job 0: record: expected format 1, got 2"),
        ([TOKEN + REST + BLOCK, []], "expected 1 records, as there are ids, got 0"),
        ([TOKEN + REST + BLOCK, [b"\1\0\1\1"] * 2], "expected 1 records, as there are ids, got more"),
        ([b"\2" + bytes(7)], "head: expected 8 more bytes at byte 1 of 8, got 7"),
        ([b"\2" + bytes(8) + TOKEN + b"\1\0"], "job 0: record: expected at least 4 bytes, got 2"),
    ],
)
def test_a_claim_reply_says_what_is_wrong(elements: list[Any], message: str) -> None:
    assert refusal(_core.decode_claim, [b"s", b"h", *elements], "mail", "1") == f"ValueError: claim reply: {message}"


# Claims of a packet


def test_the_claims_of_several_answers_are_those_of_each() -> None:
    first, second, late = b"\0\0\0\1" + bytes(7) + b"\5", b"\0\0\0\2" + bytes(7) + b"\7", b"\0\0\0\3" + bytes(8)
    answers: list[Any] = [
        [first + ONE_JOB[2], ONE_JOB[3]],
        second + SIMPLE_JOB[2],
        late + ONE_JOB[2],
        [second[:4] + bytes(8), [RECORD]],
        None,
        [],
        b"\0\0\0\1" + bytes(7),
    ]
    sequences = [b"\0\0\0" + bytes([number]) for number in (1, 2, 9, 2, 1, 1, 1)]
    highest, claims = _core.read_claims(answers, sequences, "mail", "1")
    assert highest == bytes(7) + b"\7"
    for claim, reply in zip(claims, (ONE_JOB, SIMPLE_JOB), strict=False):
        assert isinstance(claim, _core.Claim)
        assert fields(claim, twins.Claim)[0] == TOKEN
        assert claim.jobs == _core.decode_claim(reply, "mail", "1").jobs
    assert claims[2] is None
    assert str(claims[3]) == "claim reply: expected 0 records, as there are ids, got more"
    assert claims[4:] == [None, None, None]
    assert _core.read_claims([None], [b"1234"], "mail", "1") == (b"", [None])


@given(claim_replies(), st.lists(st.integers(0, 5), max_size=4))
def test_parts_of_a_claim_have_its_jobs_in_order(reply: list[Any], limits: list[int]) -> None:
    claim: Any = outcome(_core.decode_claim, reply, "mail", "1")
    if not isinstance(claim, _core.Claim):
        return
    parts, rest = claim.split(limits), claim.jobs
    for limit, part in zip(limits, parts, strict=True):
        assert (part.jobs, part.count) == (rest[:limit], len(rest[:limit]))
        assert part.token == (claim.token if part.count else b"")
        assert (part.left, part.limited, part.due_in_ms, part.shard) == (
            claim.left,
            claim.limited,
            claim.due_in_ms,
            "1",
        )
        rest = rest[limit:]


# Acks

acks = st.one_of(targets, st.tuples(targets, statuses, st.one_of(times_ms, st.just(0))))
few_jobs = st.builds(
    _core.Job,
    st.just("a"),
    st.sampled_from("12"),
    st.integers(1, 2),
    st.integers(1, 4),
    st.just(b""),
    st.sampled_from([bytes(8), TOKEN, b"\0" * 7 + b"\1"]),
    st.just(2),
    st.just(1),
)
odd_acks = st.one_of(odd, odd_texts, st.tuples(odd), st.tuples(descriptors, odd), st.tuples(targets, odd, odd))


def batches(made: Any) -> Any:
    return [fields(batch, twins.AckBatch) for batch in made] if isinstance(made, list) else made


@given(
    st.lists(st.one_of(few_jobs, targets, st.tuples(targets, st.text(max_size=3), st.just(0))), max_size=6),
    st.lists(st.one_of(few_jobs, st.tuples(few_jobs, st.text(max_size=3), st.integers(0, 9))), max_size=6),
    st.booleans(),
)
def test_acks_are_packed_as_the_twin_does(succeeded: list[Any], failed: list[Any], tombstone: bool) -> None:
    packed = _core.group_acks(succeeded, failed, tombstone)
    assert batches(packed) == twins.group_acks(succeeded, failed, tombstone)


@given(st.lists(st.one_of(acks, odd_acks), max_size=3), st.lists(st.one_of(acks, odd_acks), max_size=3))
def test_malformed_acks_are_refused_as_the_twin_does(succeeded: list[Any], failed: list[Any]) -> None:
    expected = outcome(twins.group_acks, succeeded, failed)
    assert batches(outcome(_core.group_acks, succeeded, failed)) == expected


@given(st.lists(st.one_of(few_jobs, targets, odd_acks), max_size=6))
def test_releases_are_packed_as_the_twin_does(items: list[Any]) -> None:
    assert batches(outcome(_core.group_releases, items)) == outcome(twins.group_releases, items)


def test_acks_are_packed_as_the_page_says() -> None:
    first, second = (_core.Job("a", "1", 1, id, b"", TOKEN, 2, 2) for id in (5, 6))
    [batch] = _core.group_acks(["a:s1:p2:7", first], [(second, "é", 0x010203040506)], tombstone=True)
    assert fields(batch, twins.AckBatch) == (
        "a",
        "1",
        b"\1",
        b"\1\0\0\1"
        + TOKEN
        + b"\0\1"
        + b"\1\1\0\1"
        + TOKEN
        + b"\0\1"
        + b"\1\2\3\4\5\6"
        + b"\2\0\0\1"
        + bytes(8)
        + b"\0\1",
        b"",
        b"\0\1\0\2" + "é".encode(),
        [bytes(7) + b"\5", bytes(7) + b"\6", bytes(7) + b"\7"],
        [1, 2, 0],
        True,
        True,
    )
    assert repr(batch) == "<AckBatch of 3 jobs of a/1>"


def test_releases_are_packed_as_the_page_says() -> None:
    jobs = [_core.Job("a", "1", 1, id, b"", TOKEN, 2, 2) for id in (5, 6)]
    [batch] = _core.group_releases(jobs)
    assert (batch.groups, batch.positions) == (b"\1\0\2" + TOKEN + b"\0\2", [0, 1])
    assert (batch.sources, batch.statuses, batch.tokenless, batch.fails) == (b"", b"", False, False)


def test_a_job_acked_twice_is_acked_once_and_success_wins() -> None:
    [batch] = _core.group_acks([JOB], [(JOB, "late", 5), (JOB.descriptor, JOB.token), JOB.descriptor])
    assert (batch.positions, batch.groups[1], batch.statuses) == ([0], 0, b"")


def test_two_claims_of_a_job_are_two_acks() -> None:
    another = _core.Job("mail", "1", 2, JOB.id, b"", (9 << 19).to_bytes(8, "big"), 3, 1)
    [batch] = _core.group_acks([JOB], [another, another])
    assert batch.positions == [0, 1]


def test_a_batch_of_acks_has_at_most_a_thousand_in_the_order_they_came() -> None:
    items = [(f"a:s1:p{i % 3 + 1}:{i + 1}", TOKEN) for i in range(2001)]
    made = _core.group_acks(items, [])
    assert [len(batch.ids) for batch in made] == [1000, 1000, 1]
    assert sorted(made[0].positions) == list(range(1000))
    assert batches(made) == twins.group_acks(items, [])


def test_a_batch_has_as_few_jobs_as_its_caller_says() -> None:
    items = [(f"a:s1:p1:{i + 1}", TOKEN) for i in range(501)]
    for made in (_core.group_acks(items[:10], items[10:], False, 250), _core.group_releases(items, 250)):
        assert [len(batch.ids) for batch in made] == [250, 250, 1]
        assert sorted(position for batch in made for position in batch.positions) == list(range(501))


TARGETS = "expected a Job, a descriptor or a (descriptor, token) pair, got "


@pytest.mark.parametrize(
    ("succeeded", "failed", "message"),
    [
        ([JOB, 3], [], f"TypeError: succeeded job 1: {TARGETS}3"),
        ([JOB], [(JOB,)], f"TypeError: failed job 0: {TARGETS}(<Job mail:s1:p2:"),
        (
            [(JOB, "", 4)],
            [],
            "ValueError: succeeded job 0: delay_ms: expected 0 (a job that succeeded does not ",
        ),
        ([], [(JOB, "", -1)], "ValueError: failed job 0: delay_ms: expected 0 to 17,592,186,044,415, got -1"),
        (
            [],
            [(JOB, "é" * 1501, 0)],
            "ValueError: failed job 0: status: expected at most 3,000 bytes, got 3,002",
        ),
        ([("a:s1:p1:1", b"x")], [], "ValueError: succeeded job 0: token: expected 8 bytes, got b'x'"),
        (["a"], [], "ValueError: succeeded job 0: job descriptor: expected "),
    ],
)
def test_acks_say_which_item_is_wrong(succeeded: list[Any], failed: list[Any], message: str) -> None:
    assert refusal(_core.group_acks, succeeded, failed).startswith(message)


def test_releases_say_which_item_is_wrong() -> None:
    assert refusal(_core.group_releases, [JOB, (JOB, "", 0)]).startswith(f"TypeError: job 1: {TARGETS}(<Job ")


# Job info

INFO = (
    b"\1\2" + bytes(7) + b"\5" + b"\0\3\0\1" + b"\1\2\3\4\5\6" + bytes(5) + b"\7" + b"\0\4"
    + b"\0\2" + "é".encode() + b"\0\3" + b"me!" + b"\1body"
)  # fmt: skip


@given(
    st.one_of(
        st.binary(max_size=50),
        st.integers(0, len(INFO)).map(lambda length: INFO[:length]),
        st.tuples(st.integers(0, len(INFO) - 1), st.binary(max_size=2)).map(
            lambda change: INFO[: change[0]] + change[1] + INFO[change[0] + 1 :]
        ),
    )
)
def test_job_infos_are_unpacked_as_the_twin_does(info: bytes) -> None:
    assert outcome(_core.unpack_info, info) == outcome(twins.unpack_info, info)


def test_a_job_info_is_unpacked_as_the_page_says() -> None:
    assert _core.unpack_info(INFO) == (1, 2, 5, 3, 1, 0x010203040506, 7, 4, "é", "me!", b"body")
    assert _core.unpack_info(INFO[:-5] + b"\0")[-1] is None


def test_a_job_info_says_what_is_wrong() -> None:
    assert refusal(_core.unpack_info, b"\4" + INFO[1:]) == ("ValueError: job info: expected a state from 0 to 3, got 4")
    assert refusal(_core.unpack_info, INFO[:3]) == ("ValueError: job info: expected 8 more bytes at byte 2 of 3, got 1")
    assert refusal(_core.unpack_info, INFO[:-5] + b"\0body") == ("ValueError: job info: expected no body, got 4 bytes")
