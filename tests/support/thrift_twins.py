"""The Thrift calls of `pinlater._core` in simple Python: the reference of their tests.

Promises: the same values as the Rust. It reads a whole message first, so of a message that is both cut off and without
a required field it reports the former. Risks: slow; a mistake made in both, so thriftpy2 reads valid messages too.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, NamedTuple, NoReturn

from pinlater._core import BadMessage, MissingField, PriorityNotSupported
from tests.support import twins
from tests.support.thrift_wire import (
    BOOL,
    BYTE,
    DOUBLE,
    I32,
    I64,
    LIST,
    MAP,
    PACKED,
    SET,
    STOP,
    STRING,
    STRUCT,
    Elements,
    Fields,
    Pairs,
)

MAX_DEPTH: Final = 64
_LEAST = {kind: struct.calcsize(packed) for kind, packed in PACKED.items()}
_LEAST |= {STRING: 4, STRUCT: 1, MAP: 6, SET: 5, LIST: 5}
_FORM = re.compile(r"[^:]*:s([A-Za-z0-9_-]{1,32}):p[+-]?[0-9]+:[+-]?[0-9]+")


class EnqueueCall(NamedTuple):
    """As `EnqueueCall`. jobs: their priorities are those that came."""

    source: str
    queue: str
    jobs: list[twins.NewJob]

    def check(self, body_limit: int, priorities: int) -> None:
        """As `EnqueueCall.check`."""
        for job in self.jobs:
            if len(job.body) > body_limit:
                raise ValueError("body")
            if not 1 <= job.priority <= priorities:
                raise PriorityNotSupported("priority")


class DequeueCall(NamedTuple):
    """As `DequeueCall`."""

    source: str
    queue: str
    limit: int
    dry_run: bool
    coverage: float
    acks: twins.AckCall | None


def check_message(message: bytes, start: int, max_depth: int = MAX_DEPTH) -> None:
    """As `check_message`."""
    if start > len(message):
        raise BadMessage("start")
    _Reader(message, start).value(STRUCT, max_depth)


def read_enqueue(message: bytes, start: int) -> EnqueueCall:
    """As `read_enqueue`."""
    source, requests = _read_call(message, start)
    return [EnqueueCall(source, *_read_jobs(request)) for request in requests][-1]


def read_ack(message: bytes, start: int) -> twins.AckCall:
    """As `read_ack`."""
    source, requests = _read_call(message, start)
    return _read_descriptors(source, [_read_ack_request(request) for request in requests][-1])


def read_dequeue(message: bytes, start: int) -> DequeueCall:
    """As `read_dequeue`."""
    source, requests = _read_call(message, start)
    queue, limit, dry_run, coverage, riding = [_read_dequeue_request(request) for request in requests][-1]
    acks = _read_descriptors(source, riding) if riding else None
    return DequeueCall(source, queue, limit, dry_run, coverage, acks)


class _Reader:
    def __init__(self, message: bytes, at: int) -> None:
        self._message, self._at = message, at

    def value(self, kind: int, depth: int) -> Any:
        if kind in PACKED:
            (number,) = self._unpack(PACKED[kind])
            return number if kind != BOOL or number in (0, 1) else self._refuse("bool")
        if kind == STRING:
            return self._string()
        if kind not in _LEAST or depth < 1:
            self._refuse("type or depth")
        if kind == STRUCT:
            return self._fields(depth - 1)
        if kind == MAP:
            key, value, count = self._unpack(">BBi")
            self._check(count, key, value)
            return Pairs(key, value, [(self.value(key, depth - 1), self.value(value, depth - 1)) for _ in range(count)])
        element, count = self._unpack(">Bi")
        self._check(count, element)
        return Elements(element, [self.value(element, depth - 1) for _ in range(count)])

    def _fields(self, depth: int) -> Fields:
        fields: Fields = []
        while (kind := self._unpack(">B")[0]) != STOP:
            (id_,) = self._unpack(">h")
            fields.append((kind, id_, self.value(kind, depth)))
        return fields

    def _string(self) -> bytes:
        (length,) = self._unpack(">i")
        if not 0 <= length <= len(self._message) - self._at:
            self._refuse("length")
        self._at += length
        return self._message[self._at - length : self._at]

    def _check(self, count: int, *kinds: int) -> None:
        if count == 0:
            return
        if any(kind not in _LEAST for kind in kinds):
            self._refuse("type")
        if not 0 <= count * sum(_LEAST[kind] for kind in kinds) <= len(self._message) - self._at:
            self._refuse("count")

    def _unpack(self, packed: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from(packed, self._message, self._at)
        except struct.error:
            self._refuse("end")
        self._at += struct.calcsize(packed)
        return values

    def _refuse(self, what: str) -> NoReturn:
        raise BadMessage(what)


def _read_call(message: bytes, start: int) -> tuple[str, list[Fields]]:
    """The source, and each request: every one must have what is required, the last one counts."""
    check_message(message, start)
    fields = _Reader(message, start).value(STRUCT, MAX_DEPTH)
    sources = [_required(context, 1, STRING) for context in _all(fields, 1, STRUCT)]
    requests = _all(fields, 2, STRUCT)
    if not sources or not requests:
        raise MissingField("context or request")
    return _cut(sources[-1], 255), requests


def _all(fields: Fields, id_: int, kind: int) -> list[Any]:
    """The values of a field that have its type; a list must be one of structs."""
    found = [value for named, number, value in fields if (named, number) == (kind, id_)]
    if kind != LIST:
        return found
    return [value.values for value in found if value.kind == STRUCT or not value.values]


def _last(fields: Fields, id_: int, kind: int, default: Any) -> Any:
    return next(reversed(_all(fields, id_, kind)), default)


def _required(fields: Fields, id_: int, kind: int) -> Any:
    if not (found := _all(fields, id_, kind)):
        raise MissingField(f"{id_}")
    return found[-1]


def _read_jobs(request: Fields) -> tuple[str, list[twins.NewJob]]:
    jobs = [[_read_job(job) for job in each] for each in _all(request, 2, LIST)]
    queue = _text(_required(request, 1, STRING))
    if not jobs:
        raise MissingField("jobs")
    return queue, jobs[-1]


def _read_job(fields: Fields) -> twins.NewJob:
    time_ms = min(max(_last(fields, 3, I64, 0), 0), twins.MAX_TIME_MS)
    attempts = min(max(_last(fields, 4, I32, 2), 1), twins.MAX_ATTEMPTS)
    status = _cut(_last(fields, 5, STRING, b""), 3000)
    body, priority = _required(fields, 1, STRING), _last(fields, 2, BYTE, 1)
    return twins.NewJob(body, priority, time_ms or None, None, attempts, status, None)


class _AckRequest(NamedTuple):
    """acks: kind, descriptor, status, delay_ms."""

    queue: str
    acks: list[tuple[int, str, str, int]]


def _read_ack_request(fields: Fields) -> _AckRequest:
    lists = [[[_read_info(kind, info) for info in each] for each in _all(fields, 2 + kind, LIST)] for kind in (0, 1)]
    return _AckRequest(_text(_required(fields, 1, STRING)), [ack for each in lists if each for ack in each[-1]])


def _read_info(kind: int, fields: Fields) -> tuple[int, str, str, int]:
    delay_ms = min(max(_last(fields, 3, I64, 0), 0), twins.MAX_TIME_MS)
    return kind, _text(_required(fields, 1, STRING)), _cut(_last(fields, 2, STRING, b""), 3000), delay_ms


def _read_descriptors(source: str, request: _AckRequest) -> twins.AckCall:
    """The acks of jobs that can exist. Raises ValueError for a malformed descriptor."""
    named, acks = [], []
    for ack in request.acks:
        match = _FORM.fullmatch(ack[1])
        if match is None:
            raise ValueError("descriptor")
        named.append(match[1])
        if _exists(ack[1]) and ack[1].split(":")[0] == request.queue:
            acks.append(ack)
    return twins.AckCall(source, request.queue, acks, list(dict.fromkeys(named)))


def _read_dequeue_request(fields: Fields) -> tuple[str, int, bool, float, _AckRequest | None]:
    riding = [_read_ack_request(value) for value in _all(fields, 3, STRUCT)]
    queue, limit = _text(_required(fields, 1, STRING)), _required(fields, 2, I32)
    dry_run, coverage = bool(_last(fields, 4, BOOL, 0)), _last(fields, 5, DOUBLE, 1.0)
    return queue, limit, dry_run, coverage, riding[-1] if riding else None


def _exists(descriptor: str) -> bool:
    try:
        twins.parse_descriptor(descriptor)
    except ValueError:
        return False
    return True


def _text(packed: bytes) -> str:
    return packed.decode(errors="replace")


def _cut(packed: bytes, most: int) -> str:
    """The longest start of the text that has at most so many bytes."""
    text = ""
    for character in _text(packed):
        if len((text + character).encode()) > most:
            break
        text += character
    return text
