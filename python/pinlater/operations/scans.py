"""Scans: the jobs of a state, page by page. Flows only, no I/O.

Promises to change nothing, and to return each job that keeps its state and its time exactly once. Risks: a scan shows a
job twice that leaves for the backlog meanwhile, and misses one that comes back.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple, TypeAlias

from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import JobInfo, State
from pinlater.model.queue_config import check_integer
from pinlater.operations.backlog import Backlog
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.operations.inspect import DEQUEUE_BYTES, REPLY_BYTES, check_priority
from pinlater.operations.queue_shards import every_queue_shard, naming
from pinlater.store.effects import Argument, Flow, all_of
from pinlater.store.requests import read
from pinlater.store.shards import QueueShard, Session

#: What a job of a page counts besides its texts, so that a page of jobs without any is bounded too.
_INFO_BYTES: Final = 100

#: A scan goes through these one by one: the name of a shard, and a priority.
_Step: TypeAlias = tuple[str, int]
#: Begins the position of a scan behind the jobs that Redis has. A position in Redis begins with an id or a digit.
_IN_BACKLOG: Final = b"\0"
#: A position among running jobs: a cursor of HSCAN, and ids that are still to be given.
_RUNNING_POSITION: Final = re.compile(rb"(?:[0-9]{1,19}(?::(?:.{8})*)?)?", re.DOTALL)
#: A place as text: the score in sixteenths of a ms and the id in hexadecimal digits, and the shard.
_PLACE: Final = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([A-Za-z0-9_-]{1,32})", re.ASCII)
#: Scores of Redis are exact below this; ids have 63 bits.
_MAX_SCORE, _MAX_ID = 2**53, 2**63


def scan_page(
    session: Session,
    queue: str,
    state: State | str,
    priority: int | None,
    future: bool,
    with_body: bool,
    limit: int,
    cursor: str,
    deadline_s: float,
) -> Flow[tuple[list[JobInfo], str]]:
    """One page of a scan, and the cursor of the next page ("" at the end). Shard by shard, priority by priority, latest
    time first; behind those in Redis the jobs in the backlog.

    cursor: "" for the first page.
    """
    scan = _Scan(session, State.of(state), future, with_body)
    steps = yield from _steps(session, queue, priority, deadline_s)
    check_integer("limit", limit, 1, MAX_BATCH)
    step, position = _read_cursor("cursor", cursor, list(steps))
    infos, position = yield from scan.page(steps[step], step[1], position, limit, deadline_s)
    return infos, _next_cursor(list(steps), step, position)


def _steps(session: Session, queue: str, priority: int | None, deadline_s: float) -> Flow[dict[_Step, QueueShard]]:
    """What a scan goes through: each priority of each shard."""
    queue_shards = yield from every_queue_shard(session, queue, deadline_s)
    priorities = check_priority(priority, queue_shards)
    return {(queue_shard.shard.name, at): queue_shard for queue_shard in queue_shards for at in priorities}


class _Scan:
    """What a scan asks for. Raises InvalidArgument for future jobs of another state than pending."""

    def __init__(self, session: Session, state: State, future: bool, with_body: bool) -> None:
        if future and state is not State.PENDING:
            raise InvalidArgument(f"future: expected with pending jobs, got {state.value} ones")
        self.state, self._future, self._with_body = state, future, with_body
        self.backlog: Backlog | None = session.backlog if state is State.PENDING else None

    def page(
        self, queue_shard: QueueShard, priority: int, position: bytes, limit: int, deadline_s: float
    ) -> Flow[tuple[list[JobInfo], bytes]]:
        """The jobs of one step from a position on, and the next position; b"": the step has no more jobs."""
        if self.backlog is not None and position.startswith(_IN_BACKLOG):
            behind = position.removeprefix(_IN_BACKLOG)
            infos, behind = yield from self.backlog.scan(
                queue_shard, priority, self._future, self._with_body, limit, behind, deadline_s
            )
            return infos, _IN_BACKLOG + behind if behind else b""
        position, _, packed = yield from self.read(queue_shard, priority, position, limit, REPLY_BYTES, deadline_s)
        infos = [JobInfo.unpack(queue_shard.queue, queue_shard.shard.name, each) for each in packed]
        return infos, position or (b"" if self.backlog is None else _IN_BACKLOG)

    def read(
        self, queue_shard: QueueShard, priority: int, position: bytes, limit: int, budget: int, deadline_s: float
    ) -> Flow[tuple[bytes, bytes, list[bytes]]]:
        """The reply of the script: the next position, the sixteenths of a ms in the score of each job, and the jobs."""
        code, future, with_body = self.state.code, int(self._future), int(self._with_body)
        arguments: list[Argument] = [code, priority, future, position, limit, with_body, budget]
        reply = yield from naming(queue_shard, read(queue_shard, "scan", arguments, deadline_s))
        _, _, position, sixteenths, *packed = reply
        return position, sixteenths, packed


def _read_cursor(name: str, cursor: str, steps: list[_Step]) -> tuple[_Step, bytes]:
    """The step that a cursor names, and the position within it. name: of the argument."""
    if not cursor:
        return steps[0], b""
    with suppress(ValueError, AttributeError, TypeError):
        shard, priority, position = cursor.split(".")
        if (step := (shard, int(priority))) in steps:
            return step, bytes.fromhex(position)
    raise _bad_cursor(name, cursor)


def _bad_cursor(name: str, cursor: object) -> InvalidArgument:
    return InvalidArgument(f"{name}: expected one of an earlier page of this scan, got {cursor!r:.80}")


def _next_cursor(steps: list[_Step], step: _Step, position: bytes, start: bytes = b"") -> str:
    """The cursor of the next page. position: the start of the page in this step; b"": the step has no more jobs.
    start: where the next step begins.
    """
    if position:
        return f"{step[0]}.{step[1]}.{position.hex()}"
    following = steps.index(step) + 1
    return f"{steps[following][0]}.{steps[following][1]}.{start.hex()}" if following < len(steps) else ""


def scan_merged(
    session: Session,
    queue: str,
    state: State | str,
    priority: int | None,
    future: bool,
    with_body: bool,
    limit: int,
    continuation: str,
    deadline_s: float,
    *,
    matches: Callable[[bytes], bool] | None = None,
) -> Flow[tuple[list[JobInfo], str]]:
    """One page over all shards and priorities, and the continuation of the next page ("" at the end).

    Latest time first: the run-after of pending jobs, the end of finished ones. Jobs of the same time come in one order,
    which no call changes. The continuation names a position in this order, so a job that keeps its place is given
    exactly once, whatever comes and goes. Behind those in Redis come the jobs in the backlog, shard by shard. Running
    jobs come in no order, and a later page may repeat one.

    limit: 1 to 2^31 - 1. A page may have fewer jobs: it ends after DEQUEUE_BYTES too, and at the deadline.
    continuation: "" for the first page.
    matches: gives only jobs with such a body.
    """
    scan = _Scan(session, State.of(state), future, with_body or matches is not None)
    steps = yield from _steps(session, queue, priority, deadline_s)
    check_integer("limit", limit, 1, 2**31 - 1)
    page = _Page(limit, with_body, matches, deadline_s)
    if scan.state is State.IN_PROGRESS:
        return page.infos, (yield from _fill_by_steps(page, scan, steps, continuation, b""))
    if not (isinstance(continuation, str) and "." in continuation):
        rest = yield from _fill_in_order(page, scan, steps, continuation)
        if rest or scan.backlog is None:
            return page.infos, rest
        continuation = _next_cursor(list(steps), next(iter(steps)), _IN_BACKLOG)
        if page.has_ended:
            return page.infos, continuation
    if scan.backlog is None:
        raise _bad_cursor("continuation", continuation)
    return page.infos, (yield from _fill_by_steps(page, scan, steps, continuation, _IN_BACKLOG))


class _Page:
    """The jobs of one page of a merged scan, and whether it has enough."""

    def __init__(self, limit: int, with_body: bool, matches: Callable[[bytes], bool] | None, deadline_s: float) -> None:
        self.infos: list[JobInfo] = []
        self.deadline_s = deadline_s
        self._limit, self._with_body, self._matches = limit, with_body, matches
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.infos) >= self._limit or self._bytes >= DEQUEUE_BYTES

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to be read for it: it is full, or its time is over."""
        return self.is_full or time.monotonic() >= self.deadline_s

    def ask(self, parts: int) -> int:
        """Jobs to read of each line: twice an even share. Unused ones are read again for the next page."""
        if self._matches is not None:
            return MAX_BATCH
        return min(self.missing, -(-2 * self.missing // parts))

    @property
    def missing(self) -> int:
        """How many jobs it still takes, at most what one call gives."""
        return min(MAX_BATCH, self._limit - len(self.infos))

    def add(self, info: JobInfo) -> None:
        """Adds a job, if it is one of those that the page is for."""
        if self._matches is not None:
            if not self._matches(info.body or b""):
                return
            if not self._with_body:
                info = replace(info, body=None)
        self.infos.append(info)
        self._bytes += _INFO_BYTES + len(info.status.encode()) + len(info.body or b"")


def _fill_by_steps(
    page: _Page, scan: _Scan, steps: dict[_Step, QueueShard], continuation: str, start: bytes
) -> Flow[str]:
    """Fills a page step by step, in the order of each. Returns the continuation. start: where a step begins."""
    step, position = _read_cursor("continuation", continuation, list(steps))
    if not position.startswith(start) or (not start and not _RUNNING_POSITION.fullmatch(position)):
        raise _bad_cursor("continuation", continuation)
    seen: set[str] = set()
    while True:
        infos, position = yield from scan.page(steps[step], step[1], position, page.missing, page.deadline_s)
        for info in infos:
            if info.descriptor not in seen:
                seen.add(info.descriptor)
                page.add(info)
        continuation = _next_cursor(list(steps), step, position, start)
        if not continuation or page.has_ended:
            return continuation
        step, position = _read_cursor("continuation", continuation, list(steps))


def _fill_in_order(page: _Page, scan: _Scan, steps: dict[_Step, QueueShard], continuation: str) -> Flow[str]:
    """Fills a page with the jobs that Redis has, latest first. Returns the continuation."""
    below = _read_place(continuation) if continuation else None
    lines = [_Line(scan, queue_shard, priority, below) for (_, priority), queue_shard in steps.items()]
    while any(not line.ended for line in lines):
        dry = [line for line in lines if not line.places and not line.ended]
        most, budget = page.ask(sum(not line.ended for line in lines)), min(REPLY_BYTES, DEQUEUE_BYTES // len(dry))
        yield from all_of([line.read(most, budget, page.deadline_s) for line in dry], list)
        last = _merge(page, lines)
        if last is not None and page.has_ended:
            return str(last) if any(line.places or not line.ended for line in lines) else ""
    return ""


def _merge(page: _Page, lines: list[_Line]) -> _Place | None:
    """Moves jobs to the page, the latest first, until it is full or a line has to be read. Returns the last one's
    place.
    """
    last = None
    heads = [(line.places[0], at) for at, line in enumerate(lines) if line.places]
    heapify(heads)
    while heads and not page.is_full:
        last, at = heads[0]
        line = lines[at]
        line.places.popleft()
        page.add(line.infos.popleft())
        if line.places:
            heapreplace(heads, (line.places[0], at))
        elif line.ended:
            heappop(heads)
        else:
            break
    return last


class _Place(NamedTuple):
    """Where a job stands in a merged scan. The smallest comes first: the latest time, then the highest id, then the
    first shard by name. Ids of one queue shard differ.

    minus_score: its time in sixteenths of a ms, negative. minus_id: its id, negative.
    """

    minus_score: int
    minus_id: int
    shard: str

    def __str__(self) -> str:
        return f"{-self.minus_score:x}-{-self.minus_id:x}-{self.shard}"

    def position_at(self, shard: str) -> bytes:
        """The position for the script, on a shard: what stands below it there stands behind this place."""
        # a job with this time and id on a shard whose name comes later stands behind it too
        id_ = -self.minus_id + (shard > self.shard)
        return id_.to_bytes(8, "big") + b"%.4f" % (-self.minus_score / 16)


def _read_place(continuation: object) -> _Place:
    if isinstance(continuation, str) and (match := _PLACE.fullmatch(continuation)):
        score, id_ = int(match[1], 16), int(match[2], 16)
        if score < _MAX_SCORE and id_ < _MAX_ID:
            return _Place(-score, -id_, match[3])
    raise _bad_cursor("continuation", continuation)


class _Line:
    """The jobs of one priority on one shard, latest first: those that were read and are still to be given.

    ended: Redis has no more.
    """

    def __init__(self, scan: _Scan, queue_shard: QueueShard, priority: int, below: _Place | None) -> None:
        self._scan, self._queue_shard, self._priority = scan, queue_shard, priority
        self._position = b"" if below is None else below.position_at(queue_shard.shard.name)
        self.places: deque[_Place] = deque()
        self.infos: deque[JobInfo] = deque()
        self.ended = False

    def read(self, most: int, budget: int, deadline_s: float) -> Flow[None]:
        shard = self._queue_shard.shard.name
        self._position, sixteenths, packed = yield from self._scan.read(
            self._queue_shard, self._priority, self._position, most, budget, deadline_s
        )
        self.ended = not self._position
        for sixteenth, each in zip(sixteenths, packed, strict=True):
            info = JobInfo.unpack(self._queue_shard.queue, shard, each)
            ms = info.run_after_ms or 0 if info.state is State.PENDING else info.updated_ms
            self.places.append(_Place(-(16 * ms + sixteenth), -int.from_bytes(each[2:10], "big"), shard))
            self.infos.append(info)
