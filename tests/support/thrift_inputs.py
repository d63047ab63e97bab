"""Random Thrift messages for the tests of `pinlater._core`: valid ones, any fields, changed bytes.

Promises: `outcome_of` a native piece and of its twin can be compared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st

from pinlater import _core
from pinlater._core import BadMessage, MissingField
from tests.support import thrift_wire as wire
from tests.support import twins
from tests.support.core_inputs import descriptors, fields, odd_texts
from tests.support.thrift_wire import IDL, Elements, Pairs

texts: Final = st.text(max_size=9)
optional_texts = st.one_of(st.none(), texts)
times_ms = st.one_of(st.none(), st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1), st.just(2**44))

# Valid calls, as clients that were generated from the IDL make them.

contexts = st.builds(IDL.RequestContext, source=texts, requestId=optional_texts)
jobs = st.builds(
    IDL.PinLaterJob,
    body=st.binary(max_size=9),
    priority=st.one_of(st.none(), st.integers(1, 3), st.integers(-128, 127)),
    runAfterTimestampMillis=times_ms,
    numAttemptsAllowed=st.one_of(st.none(), st.integers(-2, 3), st.integers(-(2**31), 2**31 - 1)),
    customStatus=optional_texts,
)
enqueue_requests = st.builds(IDL.PinLaterEnqueueRequest, queueName=texts, jobs=st.lists(jobs, max_size=4))
few_descriptors = st.builds("mail:s{}:p{}:{}".format, st.sampled_from("12"), st.integers(1, 2), st.integers(1, 4))
impossible = st.sampled_from(["mail:s1:p0:1", "mail:s1:p101:7", "mail:s3:p1:0", "m-l:s1:p1:-1", "mail:s1:p01:+1"])
infos = st.builds(
    IDL.PinLaterJobAckInfo,
    jobDescriptor=st.one_of(few_descriptors, few_descriptors, descriptors, impossible),
    appendCustomStatus=optional_texts,
    retryDelayMillis=times_ms,
)
lists_of_infos = st.one_of(st.none(), st.lists(infos, max_size=6))
ack_requests = st.builds(
    IDL.PinLaterJobAckRequest,
    queueName=st.sampled_from(["mail", "mail", "a", ""]),
    jobsSucceeded=lists_of_infos,
    jobsFailed=lists_of_infos,
)
dequeue_requests = st.builds(
    IDL.PinLaterDequeueRequest,
    queueName=texts,
    limit=st.integers(-(2**31), 2**31 - 1),
    jobAckRequest=st.one_of(st.none(), ack_requests),
    dryRun=st.one_of(st.none(), st.booleans()),
    coverage=st.one_of(st.none(), st.floats(allow_nan=False)),
)

# Any fields: unknown ones, of other types, twice, in any order.

_NUMBERS = {
    wire.BOOL: st.integers(0, 1),
    wire.BYTE: st.integers(-128, 127),
    wire.DOUBLE: st.floats(allow_nan=False),
    wire.I16: st.integers(-(2**15), 2**15 - 1),
    wire.I32: st.integers(-(2**31), 2**31 - 1),
    wire.I64: st.integers(-(2**63), 2**63 - 1),
}
_STRINGS = st.one_of(st.binary(max_size=9), texts.map(str.encode), few_descriptors.map(str.encode))
_KINDS = st.sampled_from([*_NUMBERS, wire.STRING, wire.STRUCT, wire.MAP, wire.SET, wire.LIST])


def value_of(kind: int, depth: int = 2) -> st.SearchStrategy[Any]:
    """Any value of a type. depth: of what it holds; below 1 it holds nothing."""
    if kind in _NUMBERS:
        return _NUMBERS[kind]
    if kind == wire.STRING:
        return _STRINGS
    size = 3 if depth > 0 else 0
    if kind == wire.STRUCT:
        return st.lists(any_field(depth - 1), max_size=size) if size else st.just([])
    if kind == wire.MAP:
        return st.tuples(_KINDS, _KINDS).flatmap(
            lambda kinds: st.builds(
                Pairs,
                st.just(kinds[0]),
                st.just(kinds[1]),
                st.lists(st.tuples(*(value_of(each, depth - 1) for each in kinds)), max_size=size),
            )
        )
    return _KINDS.flatmap(lambda each: elements_of(each, value_of(each, depth - 1), size))


def elements_of(kind: int, values: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[Elements]:
    return st.builds(Elements, st.just(kind), st.lists(values, max_size=size))


def any_field(depth: int) -> st.SearchStrategy[tuple[int, int, Any]]:
    """One of the first ids, or another."""
    return _KINDS.flatmap(
        lambda kind: st.tuples(st.just(kind), st.one_of(st.integers(1, 5), st.integers(-9, 9)), value_of(kind, depth))
    )


def struct_of(*known: tuple[int, int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """These fields, or all but one, some twice, between other ones."""
    one_each = [st.tuples(st.just(kind), st.just(id_), values) for kind, id_, values in known]
    others = st.lists(st.one_of(*one_each, any_field(1)), max_size=2)
    missing = st.sampled_from([-1] * 40 + list(range(len(known))))

    def in_any_order(drawn: tuple[list[Any], list[Any], int]) -> st.SearchStrategy[Any]:
        each, more, without = drawn
        return st.permutations([*(field for at, field in enumerate(each) if at != without), *more])

    return st.tuples(st.tuples(*one_each), others, missing).flatmap(in_any_order)


def structs_of(*known: tuple[int, int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Elements]:
    return elements_of(wire.STRUCT, struct_of(*known))


def messages_of(request: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    context = struct_of((wire.STRING, 1, _STRINGS), (wire.STRING, 2, _STRINGS))
    whole = struct_of((wire.STRUCT, 1, context), (wire.STRUCT, 2, request))
    return whole.map(lambda fields_: wire.encode(wire.STRUCT, fields_))


_JOBS = structs_of(
    (wire.STRING, 1, _STRINGS),
    (wire.BYTE, 2, _NUMBERS[wire.BYTE]),
    (wire.I64, 3, _NUMBERS[wire.I64]),
    (wire.I32, 4, _NUMBERS[wire.I32]),
    (wire.STRING, 5, _STRINGS),
)
_DESCRIPTORS = (
    st.integers(0, 9)
    .flatmap(lambda at: st.one_of(impossible, odd_texts) if at == 9 else few_descriptors)
    .map(str.encode)
)
_INFOS = structs_of((wire.STRING, 1, _DESCRIPTORS), (wire.STRING, 2, _STRINGS), (wire.I64, 3, _NUMBERS[wire.I64]))
_ACKS = struct_of((wire.STRING, 1, st.sampled_from([b"mail", b"a"])), (wire.LIST, 2, _INFOS), (wire.LIST, 3, _INFOS))
_DEQUEUE = struct_of(
    (wire.STRING, 1, _STRINGS),
    (wire.I32, 2, _NUMBERS[wire.I32]),
    (wire.STRUCT, 3, _ACKS),
    (wire.BOOL, 4, _NUMBERS[wire.BOOL]),
    (wire.DOUBLE, 5, _NUMBERS[wire.DOUBLE]),
)
enqueue_messages = messages_of(struct_of((wire.STRING, 1, _STRINGS), (wire.LIST, 2, _JOBS)))
ack_messages = messages_of(_ACKS)
dequeue_messages = messages_of(_DEQUEUE)


# Changed bytes.


def changed(messages: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Messages of which some bytes are others, missing or added; at the edges of types and lengths too."""
    pieces = st.one_of(
        st.binary(min_size=1, max_size=1),
        st.sampled_from(
            [b"\0", b"\1", b"\2", b"\x0f\x0c", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", struct.pack(">Bi", 15, 9)]
        ),
    )
    changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), pieces), min_size=1, max_size=3)
    return st.builds(_change, messages, changes)


def _change(message: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for at, removed, piece in changes:
        at %= len(message) + 1
        message = message[:at] + piece + message[at + removed :]
    return message


def outcome_of(call: Callable[..., Any], *args: Any) -> Any:
    """The returned value, or the type of the error."""
    try:
        return call(*args)
    except ValueError as error:
        return type(error)


def agree(native: Any, twin: Any) -> bool:
    """Whether two outcomes are the same. The Rust reads on from where it is, so it may miss a field before it comes to
    bytes that are no message.
    """
    return bool(native == twin or (twin is BadMessage and native is MissingField))


def enqueue_call(call: Any) -> Any:
    """A native call as its twin, if its priorities are those of a queue. An error is itself."""
    if isinstance(call, type):
        return call
    return call.source, call.queue, [fields(job, twins.NewJob) for job in call.jobs()]


def ack_call(call: Any) -> Any:
    """What a call shows of itself, and the batches of it alone. For the native call and for its twin."""
    if isinstance(call, type) or call is None:
        return call
    if isinstance(call, twins.AckCall):
        return call.source, call.queue, call.named, len(call.acks), twins.group_ack_calls([call], False, 1000)
    made = [fields(batch, twins.AckBatch) for batch in _core.group_ack_calls([call], False, 1000)]
    return call.source, call.queue, call.shards(), call.count, made


def dequeue_call(call: Any) -> Any:
    """As `ack_call`. A coverage is compared by its bits."""
    if isinstance(call, type):
        return call
    coverage = struct.pack(">d", call.coverage)
    return call.source, call.queue, call.limit, call.dry_run, coverage, ack_call(call.acks)
