"""The conservation audit: every job of a queue in exactly one state, every record with a place, every lease with its
jobs, every result with its expiry.

Promises to change nothing, to hold a server for no longer than other calls do, and to report nothing that is only on
its way: a script judges each id in one moment, and what looks wrong is judged again. Risks: reads every job; what it
says of a queue under load is no snapshot.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pinlater._core as _core
from pinlater.model.errors import QueueNotFound, from_reply
from pinlater.model.jobs import CountsByState
from pinlater.model.queue_config import check_queue_name
from pinlater.store.effects import Command, Flow, ReplyError, send
from pinlater.store.keys import queue_key
from pinlater.store.requests import load_config, read
from pinlater.store.shards import QueueShard, Session

#: Ids and leases a call of the script judges: some 2 ms of the server (a lease is mostly of a few jobs, at most of
#: 1,000).
IDS_A_CALL: Final = 200
LEASES_A_CALL: Final = 10
#: Elements a page of a scan; of records (they come with their bodies) so many that a page is about so many bytes.
PAGE: Final = 200
RECORD_PAGE_BYTES: Final = 256 * 1024
#: A queue with more findings than this on a shard is damaged as a whole; the audit of the shard ends there.
MAX_FINDINGS: Final = 1000

_FAMILIES: Final = ("ready", "scheduled", "running", "failed", "succeeded")
_HASHES: Final = ("jobs", "extras", "lease_jobs", "results", "running")
_ID_BYTES: Final = 8
_SINGLE_LEASE_BYTES: Final = 17  # the name of a lease of one job without an entry: level, id, token
_PRIORITY_AT: Final = 3  # in a record
#: What may follow an id: the count of a lease's jobs (`lease_jobs`), or a job that is not as its id says (`ready`).
_SUFFIXES: Final = {"lease_jobs": b"n", "ready": b"\1"}

# Bits of lua/audit.lua.
_PLACES: Final = {1: "ready", 2: "scheduled", 4: "running", 8: "failed", 16: "succeeded"}
_RECORD, _EXTRA, _NO_LEASE, _OTHER_PRIORITY, _OVERLOOKED, _NOT_NAMED, _NOT_BARE = 32, 64, 128, 256, 512, 1024, 2048
_RESULT, _RESULT_EXPIRY = 4096, 8192
_EXPIRY, _ENTRY, _COUNTED, _BARE_COUNT = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. subject: the job's descriptor, or which lease, or which element of which key."""

    shard: str
    subject: str
    problem: str

    def __str__(self) -> str:
        return f"shard {self.shard}: {self.subject}: {self.problem}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found. jobs: how many there are in each state, over all shards."""

    queue: str
    jobs: CountsByState
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def audit(session: Session, queue: str, deadline_s: float) -> Flow[AuditReport]:
    """Audits a queue on all its shards. Raises if a shard cannot be read.

    deadline_s: how long from now one call may take, not the whole audit.
    """
    check_queue_name(queue)
    patience_s = deadline_s - time.monotonic()
    findings: list[Finding] = []
    jobs = CountsByState()
    found = False
    for queue_shard in session.queue_shards(queue):
        stored = yield from load_config(queue_shard, time.monotonic() + patience_s)
        if stored is None or stored.deleted:
            continue
        found = True
        findings += yield from _Auditor(queue_shard, patience_s).run()
        reply = yield from read(queue_shard, "count", [], time.monotonic() + patience_s)
        jobs = sum(CountsByState.unpack(reply[2]), jobs)
    if not found:
        raise QueueNotFound(f"queue {queue!r}: not found; create_queue makes it")
    return AuditReport(queue, jobs, findings)


class _Auditor:
    """The audit of one queue on one shard."""

    def __init__(self, queue_shard: QueueShard, patience_s: float) -> None:
        self._queue_shard = queue_shard
        self._patience_s = patience_s
        self._record_page = 10
        self._findings: dict[tuple[str, str], Finding] = {}

    def run(self) -> Flow[list[Finding]]:
        """Pages through every key, all of them side by side, and judges what a round of pages brought."""
        scans: dict[str, bytes] = dict.fromkeys(self._names(), b"0")
        while scans and len(self._findings) < MAX_FINDINGS:
            commands = [self._command(name, cursor) for name, cursor in scans.items()]
            answers = yield from send(self._queue_shard.shard.server, *commands, deadline_s=self._deadline_s())
            pages: dict[str, list[bytes]] = {}
            for name, answer in zip(list(scans), answers, strict=True):
                scans[name], pages[name] = self._checked(name, answer)
                if scans[name] == b"0":
                    del scans[name]
            yield from self._judge(pages)
        if scans:
            self._report("audit", f"ended after {len(self._findings):,} findings")
        return list(self._findings.values())

    def _names(self) -> Iterator[str]:
        yield from ("jobs", "extras", "lease_jobs", "leases", "results", "result_expiries")
        for priority in range(1, self._priorities() + 1):
            yield from (f"{family}:{priority}" for family in _FAMILIES)

    def _priorities(self) -> int:
        assert self._queue_shard.stored is not None
        return self._queue_shard.stored.config.priorities

    def _command(self, name: str, cursor: bytes) -> Command:
        verb = "HSCAN" if name.partition(":")[0] in _HASHES else "ZSCAN"
        key = queue_key(self._queue_shard.queue, self._queue_shard.shard.name, name)
        return (verb, key, cursor, "COUNT", self._record_page if name == "jobs" else PAGE)

    def _checked(self, name: str, answer: Any) -> tuple[bytes, list[bytes]]:
        if isinstance(answer, ReplyError):
            raise from_reply(answer.text, f"audit of {self._queue_shard}, key {name}")
        if not isinstance(answer, list):
            raise answer.error
        return answer[0], answer[1]

    def _judge(self, pages: dict[str, list[bytes]]) -> Flow[None]:
        """Judges what stands in one page of each key: jobs at the level at which they were found."""
        by_priority: dict[int, set[bytes]] = {}
        leases: set[bytes] = set()
        for name, page in pages.items():
            if name == "jobs":
                yield from self._sort_records(page, by_priority)
                continue
            members = self._whole_ids(name, page[::2])
            if name == "extras":
                yield from self._judge_ids(1, members, extra_problem)
            elif name in ("results", "result_expiries"):
                yield from self._judge_ids(1, members, result_problem)
            elif name in ("leases", "lease_jobs"):
                leases |= {member.rjust(_SINGLE_LEASE_BYTES, b"\0") for member in members}
            else:
                by_priority.setdefault(int(name.partition(":")[2]), set()).update(members)
        for priority, ids in by_priority.items():
            yield from self._judge_ids(priority, ids, job_problem)
        yield from self._judge_leases(leases)

    def _sort_records(self, page: list[bytes], by_priority: dict[int, set[bytes]]) -> Flow[None]:
        size = sum(map(len, page))
        self._record_page = max(1, min(PAGE, len(page) * RECORD_PAGE_BYTES // (2 * size or 1)))
        ids = self._whole_ids("jobs", page[::2])
        for id_, record in zip(page[::2], page[1::2], strict=True):
            priority = record[_PRIORITY_AT] if len(record) > _PRIORITY_AT else 0
            if priority > self._priorities():  # the queue may have grown since
                yield from load_config(self._queue_shard, self._deadline_s())
            if not 1 <= priority <= self._priorities():
                self._report(f"record {id_.hex()}", f"priority: expected 1 to {self._priorities()}, got {priority}")
            elif id_ in ids:
                by_priority.setdefault(priority, set()).add(id_)

    def _whole_ids(self, name: str, members: list[bytes]) -> set[bytes]:
        """The members that are ids. A field that counts a lease's jobs stands for the lease."""
        suffix = _SUFFIXES.get(name.partition(":")[0], b"")
        if suffix:
            members = [member.removesuffix(suffix) if len(member) == _ID_BYTES + 1 else member for member in members]
        known = (_ID_BYTES, _SINGLE_LEASE_BYTES) if name == "leases" else (_ID_BYTES,)
        for member in members:
            if len(member) not in known:
                self._report(f"{member.hex()} in key {name}", "not an id")
        return {member for member in members if len(member) in known}

    def _judge_ids(self, priority: int, ids: set[bytes], problem_of: Callable[[int], str]) -> Flow[None]:
        def ask(packed: bytes) -> Flow[list[str]]:
            reply = yield from self._ask(priority, packed, b"")
            return [problem_of(bits) for (bits,) in struct.iter_unpack(">H", reply[2])]

        for id_, problem in (yield from _judge_twice(ids, IDS_A_CALL, ask)).items():
            queue, shard, number = self._queue_shard.queue, self._queue_shard.shard.name, int.from_bytes(id_, "big")
            self._report(_core.format_descriptor(queue, shard, priority, number), problem)

    def _judge_leases(self, leases: set[bytes]) -> Flow[None]:
        def ask(packed: bytes) -> Flow[list[str]]:
            reply = yield from self._ask(1, b"", packed)
            return [lease_problem(bits) for bits in reply[3]]

        for lease, problem in (yield from _judge_twice(leases, LEASES_A_CALL, ask)).items():
            self._report(f"lease {lease[-_ID_BYTES:].hex()}", problem)

    def _ask(self, priority: int, ids: bytes, leases: bytes) -> Flow[list[Any]]:
        return (yield from read(self._queue_shard, "audit", [priority, ids, leases], self._deadline_s()))

    def _deadline_s(self) -> float:
        return time.monotonic() + self._patience_s

    def _report(self, subject: str, problem: str) -> None:
        self._findings[subject, problem] = Finding(self._queue_shard.shard.name, subject, problem)


def _judge_twice(items: set[bytes], a_call: int, ask: Callable[[bytes], Flow[list[str]]]) -> Flow[dict[bytes, str]]:
    """What is wrong with items, by item; ask: items, joined, -> a problem an item, '' if there is none."""
    wrong, problems = sorted(items), dict[bytes, str]()
    for _ in range(2):
        problems = {}
        for first in range(0, len(wrong), a_call):
            chunk = wrong[first : first + a_call]
            told = yield from ask(b"".join(chunk))
            problems |= {item: problem for item, problem in zip(chunk, told, strict=True) if problem}
        wrong = list(problems)
    return problems


def extra_problem(bits: int) -> str:
    """What is wrong with an id of x, of whatever level; '' if nothing is."""
    return "attempts and status (extras), but no record" if bits & (_RECORD | _EXTRA) == _EXTRA else ""


def result_problem(bits: int) -> str:
    """What is wrong with an id of v or V; '' if nothing is, or if it is gone."""
    if bits & _RESULT and not bits & _RESULT_EXPIRY:
        return "a result that never goes"
    return "an expiry of a result that is not there" if bits & _RESULT_EXPIRY and not bits & _RESULT else ""


def job_problem(bits: int) -> str:
    """What is wrong with an id that has these bits of lua/audit.lua; '' if nothing is, or if it is gone."""
    queue_shards = [name for bit, name in _PLACES.items() if bits & bit]
    if not bits & _RECORD:
        return f"{' and '.join(queue_shards)}, but has no record" if queue_shards else extra_problem(bits)
    if bits & _OTHER_PRIORITY:
        return f"{' and '.join(queue_shards) or 'in no state'}, but its record is of another priority"
    if len(queue_shards) != 1:
        return f"in several states: {' and '.join(queue_shards)}" if queue_shards else "a record in no state"
    if bits & _OVERLOOKED:
        return "scheduled before the time at which claims begin to look"
    if bits & (_NO_LEASE | _NOT_NAMED):
        return "running without a lease" if bits & _NO_LEASE else "running on a lease that does not name it"
    if bits & _NOT_BARE:
        return "ready as if it had neither extra nor a run-after of its own"
    return ""


def lease_problem(bits: int) -> str:
    """What is wrong with a lease that has these bits of lua/audit.lua; '' if nothing is, or if it is gone."""
    if bits & _BARE_COUNT:
        return "a count of jobs without a lease"
    if bits & (_EXPIRY | _ENTRY) == 0:
        return ""
    if not bits & _ENTRY:
        return "has an expiry, but no jobs"
    if not bits & _EXPIRY:
        return "never expires"
    return "" if bits & _COUNTED else "counts another number of jobs than run on it"
