"""Jobs whose bodies match a pattern: count, scan, delete. Flows only, no I/O.

Promises that no user's pattern comes into a script: bodies are read page by page and matched here, in time linear in
their bytes. A count or a deletion that its time does not allow ends with an error. Risks: it reads every body of the
jobs that it looks at. A count is not from one moment.
"""

from __future__ import annotations

import time

import pinlater._core as _core
from pinlater.model.errors import CallTimeout, InvalidArgument, checked
from pinlater.model.jobs import JobInfo, State
from pinlater.model.queue_config import check_integer
from pinlater.operations.admin import delete_named, in_round
from pinlater.operations.enqueue import MAX_BATCH
from pinlater.operations.scans import scan_merged, scan_page
from pinlater.store.effects import Flow
from pinlater.store.shards import Session


def count_matching(
    session: Session,
    queue: str,
    state: State | str,
    priority: int | None,
    future: bool,
    pattern: str,
    deadline_s: float,
) -> Flow[int]:
    """How many jobs of a state have a body in which the pattern is found.

    future: pending jobs that are due later, instead of due ones. Raises InvalidArgument for a bad pattern, and
    CallTimeout if there is more to read at the deadline.
    """
    matches, running = _compiled(pattern).matches, State.of(state) is State.IN_PROGRESS
    seen, count, looked, cursor, going = set[str](), 0, 0, "", True
    while going:
        _check_time(queue, looked, deadline_s)
        infos, cursor = yield from scan_page(
            session, queue, state, priority, future, True, MAX_BATCH, cursor, deadline_s
        )
        chosen = {info.descriptor for info in infos if matches(info.body or b"")}
        count += len(chosen - seen)
        if running:  # these may come twice
            seen |= chosen
        looked, going = looked + len(infos), bool(cursor)
    return count


def scan_matching(
    session: Session,
    queue: str,
    state: State | str,
    priority: int | None,
    future: bool,
    with_body: bool,
    pattern: str,
    limit: int,
    continuation: str,
    deadline_s: float,
) -> Flow[tuple[list[JobInfo], str]]:
    """A page of scan_merged with the jobs whose body the pattern is found in. Raises InvalidArgument for a bad one.

    At the deadline the page ends with what was found, and with its continuation.
    """
    matches = _compiled(pattern).matches
    page = scan_merged(
        session, queue, state, priority, future, with_body, limit, continuation, deadline_s, matches=matches
    )
    return (yield from page)


def delete_matching(
    session: Session,
    queue: str,
    state: State | str,
    priority: int | None,
    pattern: str,
    limit: int,
    deadline_s: float,
) -> Flow[int]:
    """Removes up to `limit` jobs of a state whose body the pattern is found in, pending ones due or not. Returns how
    many. A job that changes its state meanwhile stays.

    Raises InvalidArgument for a bad pattern, CallTimeout if there is more to read at the deadline, and PartialOutcome
    if some jobs are removed by then: its `result` says how many.
    """
    deletion = _Deletion(session, queue, State.of(state), priority, pattern)
    check_integer("limit", limit, 0, 2**63 - 1)
    done = 0
    for future in (False, True) if deletion.state is State.PENDING else (False,):
        deletion.cursor, going = "", True
        while going and done < limit:
            done = yield from in_round(done, deletion.page(future, limit - done, deadline_s))
            going = bool(deletion.cursor)
    return done


class _Deletion:
    """A deletion of the jobs that match, page by page. cursor: of the next page; "": there is none."""

    def __init__(self, session: Session, queue: str, state: State, priority: int | None, pattern: str) -> None:
        self._session, self._queue, self._priority = session, queue, priority
        self._matches = _compiled(pattern).matches
        self._looked = 0
        self.state = state
        self.cursor = ""

    def page(self, future: bool, most: int, deadline_s: float) -> Flow[int]:
        """Removes up to `most` jobs of a page. Returns how many."""
        _check_time(self._queue, self._looked, deadline_s)
        infos, self.cursor = yield from scan_page(
            self._session, self._queue, self.state, self._priority, future, True, MAX_BATCH, self.cursor, deadline_s
        )
        self._looked += len(infos)
        chosen = [info.descriptor for info in infos if self._matches(info.body or b"")]
        return (yield from delete_named(self._session, chosen[:most], deadline_s, self.state))


def _compiled(pattern: str) -> _core.BodyPattern:
    if not isinstance(pattern, str):
        raise InvalidArgument(f"pattern: expected a str, got {pattern!r:.60}")
    compiled: _core.BodyPattern = checked(_core.BodyPattern, pattern)
    return compiled


def _check_time(queue: str, looked: int, deadline_s: float) -> None:
    """Raises CallTimeout at the deadline. The first page is read in any case."""
    if looked and time.monotonic() >= deadline_s:
        raise CallTimeout(
            f"queue {queue!r}: {looked:,} bodies were read in the time of the call, and there are more: "
            "name one priority, or give it more time"
        )
