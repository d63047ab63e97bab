"""`pinlater._core` against its Python twins, its edges and its messages: jobs, descriptors, enqueues.

Promises: any input, good or malformed, gives the twin's value or the twin's type of error.
Risks: a mistake made in both, so the formats also stand here as bytes written by hand.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from array import array
from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinlater import _core
from tests.support import twins
from tests.support.core_inputs import (
    JOB,
    TOKEN,
    bodies,
    delayed_jobs,
    descriptors,
    fields,
    ids,
    jobs,
    new_jobs,
    odd,
    odd_texts,
    outcome,
    queues,
    refusal,
    shards,
    statuses,
    times_ms,
)
from tests.support.paths import ROOT

# NewJob


@given(
    st.one_of(st.binary(max_size=5), st.builds(bytearray, st.binary(max_size=5)), odd),
    st.fixed_dictionaries(
        {},
        optional={
            "priority": st.one_of(st.sampled_from([0, 1, 100, 101]), odd),
            "run_after_ms": st.one_of(times_ms, odd),
            "delay_ms": st.one_of(times_ms, odd),
            "attempts": st.one_of(st.sampled_from([0, 1, 65_535, 65_536]), odd),
            "status": st.one_of(statuses, odd),
            "key": st.one_of(st.sampled_from([b"k" * 1024, b"k" * 1025, "\ud800", "é"]), odd),
        },
    ),
)
def test_a_new_job_is_its_twin(body: Any, options: dict[str, Any]) -> None:
    native = outcome(_core.NewJob, body, **options)
    assert fields(native, twins.NewJob) == outcome(twins.new_job, body, **options)
    many = outcome(_core.new_jobs, [body, body], **options)
    assert isinstance(many, type) if isinstance(native, type) else many == [native, native]


@given(new_jobs, st.one_of(st.binary(max_size=5), st.builds(bytearray, st.binary(max_size=5)), odd))
def test_a_job_with_another_body_is_its_twin(job: _core.NewJob, body: Any) -> None:
    other = outcome(job.with_body, body)
    assert fields(other, twins.NewJob) == outcome(fields(job, twins.NewJob).with_body, body)


def test_a_body_is_copied_whole_whatever_its_shape() -> None:
    body = bytearray(b"abcdef")
    job = _core.NewJob(body)
    strided = _core.NewJob(memoryview(body)[::2])
    body[0] = 0
    assert (job.body, strided.body) == (b"abcdef", b"ace")
    assert _core.NewJob(array("H", [1, 2])).body == array("H", [1, 2]).tobytes()


def test_new_jobs_are_equal_by_their_parts() -> None:
    job = _core.NewJob(b"a", priority=2, key="k")
    same = _core.NewJob(bytearray(b"a"), priority=2, key=b"k")
    others = [_core.NewJob(b"a", priority=2), _core.NewJob(b"b", priority=2, key="k")]
    assert job == same
    assert hash(job) == hash(same)
    assert job not in others
    assert job != b"a"


def test_a_new_job_shows_the_start_of_its_body() -> None:
    job = _core.NewJob(b"a", delay_ms=5, status="é", key="k")
    assert repr(job) == "NewJob(b'a', priority=1, delay_ms=5, attempts=2, status='é', key=b'k')"
    assert repr(_core.NewJob(bytes(2**20))).startswith(r"NewJob(b'\x00")
    assert len(repr(_core.NewJob(bytes(2**20)))) < 150


@pytest.mark.parametrize("value", [_core.NewJob(b"a"), JOB])
def test_jobs_do_not_change(value: Any) -> None:
    for name in ("body", "priority", "descriptor", "status", "new"):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


TIMES = "0 to 17,592,186,044,415"


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ("a", {}, "TypeError: body: expected bytes, got str 'a'; encode it first, such as text.encode()"),
        (1, {}, "TypeError: body: expected bytes, got int 1"),
        (b"", {"priority": 0}, "ValueError: priority: expected 1 to 100, got 0"),
        (b"", {"priority": True}, "TypeError: priority: expected an int from 1 to 100, got True"),
        (b"", {"priority": None}, "TypeError: priority: expected an int from 1 to 100, got None"),
        (b"", {"run_after_ms": -1}, f"ValueError: run_after_ms: expected {TIMES}, got -1"),
        (b"", {"run_after_ms": 2**62}, f"ValueError: run_after_ms: expected {TIMES}, got {2**62}"),
        (b"", {"delay_ms": math.nan}, f"TypeError: delay_ms: expected an int from {TIMES}, got nan"),
        (b"", {"delay_ms": 10**5000}, f"ValueError: delay_ms: expected {TIMES}, got a int too long to show"),
        (
            b"",
            {"run_after_ms": 1, "delay_ms": 2},
            "ValueError: expected run_after_ms or delay_ms, got both: run_after_ms=1, delay_ms=2",
        ),
        (b"", {"attempts": 65_536}, "ValueError: attempts: expected 1 to 65,535, got 65536"),
        (b"", {"status": "é" * 1501}, "ValueError: status: expected at most 3,000 bytes, got 3,002"),
        (b"", {"status": b"a"}, "TypeError: status: expected a str, got bytes b'a'"),
        (
            b"",
            {"status": "\ud800"},
            r"ValueError: status: expected text that UTF-8 can encode, got '\ud800'",
        ),
        (b"", {"key": ""}, "ValueError: key: expected 1 to 1,024 bytes, got 0"),
    ],
)
def test_a_new_job_says_what_is_wrong(body: Any, options: dict[str, Any], message: str) -> None:
    assert refusal(_core.NewJob, body, **options) == message


# Job


@given(jobs)
def test_a_job_gives_its_parts(job: _core.Job) -> None:
    assert job.descriptor == twins.format_descriptor(job.queue, job.shard, job.priority, job.id)
    assert job.attempt == max(job.attempts_allowed - job.attempts_remaining + 1, 1)
    assert job.created_ms == job.id >> 19
    assert job.claimed_ms == int.from_bytes(job.token, "big") >> 19


@given(jobs, jobs)
def test_jobs_are_equal_by_descriptor_and_token(a: _core.Job, b: _core.Job) -> None:
    again = _core.Job(a.queue, a.shard, a.priority, a.id, b"another body", a.token, 9, 9)
    assert again == a
    assert hash(again) == hash(a)
    assert (a == b) == ((a.descriptor, a.token) == (b.descriptor, b.token))
    assert a != a.descriptor


def test_a_job_shows_its_descriptor_and_attempt() -> None:
    assert repr(JOB) == f"<Job mail:s1:p2:{(7 << 19) + 3} attempt 2 of 3 body=b'body'>"


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, "a b", 'ValueError: queue: expected 1 to 255 of A-Z, a-z, 0-9 and _, got "a b"'),
        (1, "", 'ValueError: shard: expected 1 to 32 of A-Z, a-z, 0-9, _ and -, got ""'),
        (2, 101, "ValueError: priority: expected 1 to 100, got 101"),
        (3, 0, "ValueError: id: expected 1 to 9,223,372,036,854,775,807, got 0"),
        (4, "a", "TypeError: body: expected bytes, got str 'a'; encode it first, such as text.encode()"),
        (5, b"a", "ValueError: token: expected 8 bytes, got b'a'"),
        (6, 0, "ValueError: attempts_allowed: expected 1 to 65,535, got 0"),
        (7, -1, "ValueError: attempts_remaining: expected 0 to 65,535, got -1"),
    ],
)
def test_a_job_says_what_is_wrong(position: int, value: Any, message: str) -> None:
    parts: list[Any] = ["mail", "1", 2, 3, b"body", TOKEN, 3, 2]
    parts[position] = value
    assert refusal(_core.Job, *parts) == message


# Descriptors


@given(st.one_of(descriptors, odd_texts, odd))
def test_descriptors_are_parsed_as_the_twin_does(text: Any) -> None:
    parsed = outcome(_core.parse_descriptor, text)
    assert parsed == outcome(twins.parse_descriptor, text)
    if isinstance(parsed, tuple):
        assert _core.format_descriptor(*parsed) == text


@given(st.one_of(queues, odd_texts), st.one_of(shards, odd_texts), st.integers(-1, 102), st.one_of(ids, odd))
def test_descriptors_are_formatted_as_the_twin_does(queue: str, shard: str, priority: int, id: Any) -> None:
    expected = outcome(twins.format_descriptor, queue, shard, priority, id)
    assert outcome(_core.format_descriptor, queue, shard, priority, id) == expected


@given(
    queues,
    shards,
    st.one_of(st.binary(max_size=4), st.integers(-1, 102), st.binary(min_size=2, max_size=2), odd),
    st.one_of(ids, st.just(twins.MAX_ID)),
    st.sampled_from([-1, 0, 1, 2, 2, 3, 65_537, 2**62]),
)
def test_consecutive_descriptors_are_formatted_as_the_twin_does(
    queue: str, shard: str, priorities: Any, first_id: Any, count: int
) -> None:
    parts = (queue, shard, priorities, first_id, count)
    assert outcome(_core.format_descriptors, *parts) == outcome(twins.format_descriptors, *parts)


@given(st.lists(st.one_of(descriptors, descriptors, descriptors, odd_texts, odd), max_size=8))
def test_descriptors_are_grouped_as_the_twin_does(texts: list[Any]) -> None:
    assert outcome(_core.group_descriptors, texts) == outcome(twins.group_descriptors, texts)


def test_a_group_of_descriptors_has_at_most_a_thousand() -> None:
    texts = [f"a:s{i % 2}:p1:{i + 1}" for i in range(4002)]
    groups = _core.group_descriptors(texts)
    assert [(group[1], len(group[3])) for group in groups] == [
        (shard, count) for shard in "01" for count in (1000, 1000, 1)
    ]
    assert groups == twins.group_descriptors(texts)


EXPECTED = 'ValueError: job descriptor: expected "queue:s<shard>:p<priority>:<id>", got '


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a", "it does not have four parts"),
        ("a:s1:p1:1:1", "it does not have four parts"),
        ("-:s1:p1:1", "the queue is not [A-Za-z0-9_]{1,255}"),
        ("a:1:p1:1", "the shard is not s[A-Za-z0-9_-]{1,32}"),
        ("a:s1:p01:1", "the priority is not p1 to p100"),
        ("a:s1:p1:+1", "the id is not a decimal number from 1 to 2**63 - 1"),
    ],
)
def test_a_descriptor_says_which_part_is_wrong(text: str, wrong: str) -> None:
    assert refusal(_core.parse_descriptor, text) == f'{EXPECTED}"{text}": {wrong}'
    assert refusal(_core.group_descriptors, ["a:s1:p1:1", text]) == (
        f'{EXPECTED}"{text}": {wrong}'.replace("Error: ", "Error: job 1: ")
    )


def test_a_long_descriptor_is_cut_in_the_message() -> None:
    assert len(refusal(_core.parse_descriptor, "é" * 100_000)) < 250


# Enqueue


@given(
    st.one_of(
        st.lists(st.one_of(new_jobs, delayed_jobs, bodies), max_size=6),
        st.lists(bodies, max_size=6),
        st.lists(st.one_of(new_jobs, odd), max_size=4),
        odd,
    ),
    st.integers(5, 9),
    st.integers(0, 4),
)
def test_jobs_are_packed_as_the_twin_does(items: Any, body_limit: int, priorities: int) -> None:
    expected = outcome(twins.pack_jobs, items, body_limit, priorities)
    assert outcome(_core.pack_jobs, items, body_limit, priorities) == expected


def test_jobs_are_packed_as_the_page_says() -> None:
    later = _core.NewJob(b"b", priority=2, run_after_ms=0x010203040506, attempts=0x0102, status="é")
    delayed = _core.NewJob(b"", delay_ms=7)
    spec, statuses, records = _core.pack_jobs([b"a", later, delayed], 1, 2)
    assert (spec, statuses, list(records)) == (
        b"\x01\0\0\0\0\0\0\0\0\1" + b"\x02\x01\1\2\3\4\5\6\0\1" + b"\x01\x02\0\0\0\0\0\7\0\1",
        b"\0\1\0\2" + "é".encode(),
        [b"\1\0\2\1a", b"\1\1\2\2b", b"\1\0\2\1"],
    )
    assert _core.pack_jobs([_core.NewJob(b"a", priority=2, delay_ms=0)] * 2, 1, 2)[0] == b"\2" + bytes(8) + b"\2"
    spec, statuses, records = _core.pack_jobs([], 1, 2)
    assert (spec, statuses, list(records)) == (b"", b"", [])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            [b""] * 3 + [_core.NewJob(b"", priority=7)],
            "ValueError: job 4 of 4: priority: expected 1 to 3 (the priorities of the queue), got 7",
        ),
        (
            [bytes(2**20 + 1)],
            "ValueError: job: body: expected at most 1,048,576 bytes (the queue's body limit), got 1,048,577",
        ),
        (
            [b"", "a"],
            "TypeError: job 2 of 2: body: expected bytes, got str 'a'; encode it first, such as text.encode()",
        ),
        ([b""] * 65_537, "ValueError: job 65537 of 65537: expected at most 65,536 jobs a call, got more"),
    ],
)
def test_packing_says_which_job_is_wrong(items: Any, message: str) -> None:
    assert refusal(_core.pack_jobs, items, 2**20, 3) == message


def test_packing_a_part_names_positions_of_the_whole_request() -> None:
    assert refusal(_core.pack_jobs, [b"", 1], 9, 3, 1000, 1500).startswith("TypeError: job 1002 of 1500: ")
    assert refusal(_core.pack_jobs, iter([b"", 1]), 9, 3).startswith("TypeError: job 2: ")


@given(st.one_of(st.binary(max_size=6), st.builds(lambda rest: b"\1" + rest, st.binary(max_size=6))))
def test_records_are_unpacked_as_the_twin_does(record: bytes) -> None:
    assert outcome(_core.unpack_record, record) == outcome(twins.unpack_record, record)


@given(new_jobs)
def test_a_record_gives_back_what_was_packed(job: _core.NewJob) -> None:
    _, _, [record] = _core.pack_jobs([job], 9, 4)
    assert _core.unpack_record(record) == (job.attempts, job.priority, job.body)


# The module


# commands


arguments = st.lists(st.one_of(st.binary(max_size=12), st.text(max_size=5), st.integers(-9, 10**12)))


@given(st.lists(st.one_of(arguments.map(tuple), st.binary(max_size=12))))
def test_commands_are_packed_as_the_twin_does(commands: list[Any]) -> None:
    assert outcome(_core.pack_commands, commands) == outcome(twins.pack_commands, commands)


@given(arguments, arguments)
def test_a_head_and_the_rest_are_packed_as_the_twin_does(first: list[Any], rest: list[Any]) -> None:
    def whole(kind: Any) -> Any:
        return kind(first).command(rest)

    assert outcome(whole, _core.CommandHead) == outcome(whole, twins.CommandHead)


@pytest.mark.parametrize("argument", [None, 1.5, True, ["x"]])
def test_an_argument_of_another_type_is_refused(argument: Any) -> None:
    for pack in (
        lambda: _core.pack_commands([("GET", argument)]),
        lambda: _core.CommandHead(["GET", argument]),
        lambda: _core.CommandHead(["GET"]).command([argument]),
    ):
        assert refusal(pack) == f"TypeError: argument: expected bytes, str or int, got {type(argument).__name__}"


@pytest.mark.thorough("stub")
def test_the_stub_tells_the_truth() -> None:
    root = ROOT
    command = [sys.executable, "-m", "mypy.stubtest", "pinlater._core"]
    environment = {**os.environ, "MYPYPATH": str(root / "python")}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_limits_are_the_twins() -> None:
    for name in ("MAX_STATUS_BYTES", "MAX_PRIORITY", "MAX_ATTEMPTS", "MAX_TIME_MS", "MAX_BATCH"):
        assert getattr(_core, name) == getattr(twins, name)


def test_the_version_is_the_package_s() -> None:
    assert _core.__version__ == version("pinlater")
