"""The audit: it proves that each job of a queue is in exactly one state, and that records, leases and results match it.
It also checks that the account of a rate can be right, and that no job waits where max_running lets none run.

Promises:
    The audit changes nothing, and blocks a server no longer than other calls do.
    It reports only lasting problems: a script checks each id atomically, and the audit checks a suspect id twice.
Risks: the audit reads every job. Under load its counts are not a snapshot.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pinlater._core as _core
from pinlater.model.errors import from_reply
from pinlater.model.jobs import CountsByState
from pinlater.model.queue_config import StoredConfig, check_queue_name
from pinlater.operations.queue_shards import exists, not_found
from pinlater.store.effects import Command, Flow, ReplyError, send
from pinlater.store.keys import queue_key
from pinlater.store.requests import load_config, read
from pinlater.store.shards import QueueShard, Session

#: One script call checks this many ids and leases, which takes a server about 2 ms. Most leases have a few jobs; no
#: lease has more than 1,000.
IDS_A_CALL: Final = 200
LEASES_A_CALL: Final = 10
#: A page of a scan has this many elements. Records come with their bodies, so a page of them is limited in bytes.
PAGE: Final = 200
RECORD_PAGE_BYTES: Final = 256 * 1024
#: The audit of a shard ends after this many findings: the whole queue is damaged.
MAX_FINDINGS: Final = 1000

_FAMILIES: Final = ("ready", "scheduled", "withdrawn", "running", "failed", "succeeded")
_HASHES: Final = ("jobs", "extras", "lease_jobs", "results", "batch_of", "running")
_ID_BYTES: Final = 8
_SINGLE_LEASE_BYTES: Final = 17  # the name of the lease of a single job: priority, id, token
_PRIORITY_AT: Final = 3  # in a record
#: What can follow an id: a count of a lease's jobs (`lease_jobs`), the byte of a decorated job (`ready`).
_SUFFIXES: Final = {"lease_jobs": b"n", "ready": b"\1"}

#: Field `account` (lua/lib/account.lua): last refill, units, end of the line, since when `granted` counts; granted
#: since then, and before.
_ACCOUNT: Final = struct.Struct(">6s6s6s6sII")
#: As in lua/lib/config_layout.lua.
GRANT_MS: Final = 1_000
LONGEST_REST_MS: Final = 15_000
#: What was granted is judged by a configuration so old, as the clocks of two shards may differ.
SETTLED_MS: Final = 60_000
#: A version is an id: milliseconds above 19 bits of sequence.
_VERSION_SHIFT: Final = 19

# Bits of lua/audit.lua.
_STATES: Final = {1: "ready", 2: "scheduled", 4: "running", 8: "failed", 16: "succeeded", 16384: "withdrawn"}
_RECORD, _EXTRA, _NO_LEASE, _OTHER_PRIORITY, _OVERLOOKED, _NOT_NAMED, _NOT_SIMPLE = 32, 64, 128, 256, 512, 1024, 2048
_RESULT, _RESULT_EXPIRY = 4096, 8192
_WITHDRAWN, _OF_BATCH, _OF_OTHER_BATCH, _NOT_WITHDRAWN = 16384, 32768, 65536, 131072
_EXPIRY, _ENTRY, _COUNTED, _ONLY_COUNT = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that the audit found.

    shard: the name of the shard.
    subject: the descriptor of a job, or the name of a lease, a record or an element of a key.
    problem: what is wrong with it.
    """

    shard: str
    subject: str
    problem: str

    def __str__(self) -> str:
        return f"shard {self.shard}: {self.subject}: {self.problem}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit. jobs: the number of jobs in each state, over all shards."""

    queue: str
    jobs: CountsByState
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether the audit found no problem."""
        return not self.findings


def audit(session: Session, queue: str, deadline_s: float) -> Flow[AuditReport]:
    """Audits a queue on all its shards. Raises an error if a shard cannot be read.

    deadline_s: the time until then is what each single call may take; the whole audit may take longer.
    """
    check_queue_name(queue)
    patience_s = deadline_s - time.monotonic()
    findings: list[Finding] = []
    jobs = CountsByState()
    found = False
    for queue_shard in session.queue_shards(queue):
        stored = yield from load_config(queue_shard, time.monotonic() + patience_s)
        if not exists(stored):
            continue
        found = True
        findings += yield from _Auditor(queue_shard, patience_s).run()
        reply = yield from read(queue_shard, "count", [], time.monotonic() + patience_s)
        jobs = sum(CountsByState.unpack(reply[2]), jobs)
    if not found:
        raise not_found(queue)
    return AuditReport(queue, jobs, findings)


class _Auditor:
    """The audit of one queue on one shard."""

    def __init__(self, queue_shard: QueueShard, patience_s: float) -> None:
        self._queue_shard = queue_shard
        self._patience_s = patience_s
        self._record_page = 1
        self._findings: dict[tuple[str, str], Finding] = {}

    def run(self) -> Flow[list[Finding]]:
        """Reads every key in pages, all keys side by side, and checks each round of pages."""
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
        yield from self._judge_limits()
        if scans:
            self._report("audit", f"ended after {len(self._findings):,} findings")
        return list(self._findings.values())

    def _names(self) -> Iterator[str]:
        yield from ("jobs", "extras", "lease_jobs", "leases", "results", "result_expiries", "batch_of")
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
        return answer[0], list(answer[1])

    def _judge(self, pages: dict[str, list[bytes]]) -> Flow[None]:
        """Checks one page of each key. Each job is checked at the priority where it was found."""
        by_priority: dict[int, set[bytes]] = {}
        leases: set[bytes] = set()
        for name, page in pages.items():
            if name == "jobs":
                yield from self._sort_records(page, by_priority)
                continue
            members = self._whole_ids(name, page[::2])
            if name == "extras":
                yield from self._judge_ids(1, members, extras_problem)
            elif name == "batch_of":
                yield from self._judge_ids(1, members, batch_problem)
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
            if priority > self._priorities():  # the queue may have more priorities by now
                yield from load_config(self._queue_shard, self._deadline_s())
            if not 1 <= priority <= self._priorities():
                self._report(f"record {id_.hex()}", f"priority: expected 1 to {self._priorities()}, got {priority}")
            elif id_ in ids:
                by_priority.setdefault(priority, set()).add(id_)

    def _whole_ids(self, name: str, members: list[bytes]) -> set[bytes]:
        """The members that are ids, and reports the others.

        In `lease_jobs`, a field that counts the jobs of a lease becomes the lease. In a ready set, a decorated job
        becomes its id.
        """
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
            return [problem_of(bits) for (bits,) in struct.iter_unpack(">I", reply[2])]

        for id_, problem in (yield from _judge_twice(ids, IDS_A_CALL, ask)).items():
            queue, shard, number = self._queue_shard.queue, self._queue_shard.shard.name, int.from_bytes(id_, "big")
            self._report(_core.format_descriptor(queue, shard, priority, number), problem)

    def _judge_leases(self, leases: set[bytes]) -> Flow[None]:
        def ask(packed: bytes) -> Flow[list[str]]:
            reply = yield from self._ask(1, b"", packed)
            return [lease_problem(bits) for bits in reply[3]]

        for lease, problem in (yield from _judge_twice(leases, LEASES_A_CALL, ask)).items():
            self._report(f"lease {lease[-_ID_BYTES:].hex()}", problem)

    def _judge_limits(self) -> Flow[None]:
        queue, shard = self._queue_shard.queue, self._queue_shard.shard
        command = ("HMGET", queue_key(queue, shard.name, "meta"), "config", "account")
        [answer] = yield from send(shard.server, command, deadline_s=self._deadline_s())
        if not isinstance(answer, list) or answer[0] is None:
            return  # it was deleted meanwhile
        stored = StoredConfig.unpack(answer[0])
        config, at_home = stored.config, stored.config.home == shard.name
        if answer[1] is not None and at_home:
            for problem in account_problems(answer[1], stored):
                self._report("account", problem)
        if config.max_running is not None and not at_home:
            reply = yield from read(self._queue_shard, "count", [], self._deadline_s())
            counts = sum(CountsByState.unpack(reply[2]), CountsByState())
            if waiting := counts.pending + counts.scheduled:
                self._report("max_running", f"{waiting:,} jobs never run: only the home shard {config.home} gives jobs")

    def _ask(self, priority: int, ids: bytes, leases: bytes) -> Flow[list[Any]]:
        return (yield from read(self._queue_shard, "audit", [priority, ids, leases], self._deadline_s()))

    def _deadline_s(self) -> float:
        return time.monotonic() + self._patience_s

    def _report(self, subject: str, problem: str) -> None:
        self._findings[subject, problem] = Finding(self._queue_shard.shard.name, subject, problem)


def _judge_twice(items: set[bytes], a_call: int, ask: Callable[[bytes], Flow[list[str]]]) -> Flow[dict[bytes, str]]:
    """The problems that two checks found, by item.

    a_call: items a call.
    ask: checks joined items; returns a problem for each, or "". It may end before the last one.
    """
    wrong, problems = sorted(items), dict[bytes, str]()
    for _ in range(2):
        problems = {}
        for first in range(0, len(wrong), a_call):
            chunk = wrong[first : first + a_call]
            found: list[str] = []
            while len(found) < len(chunk):
                found += yield from ask(b"".join(chunk[len(found) :]))
            problems |= {item: problem for item, problem in zip(chunk, found, strict=True) if problem}
        wrong = list(problems)
    return problems


def extras_problem(bits: int) -> str:
    """The problem of an id that has extras, of any priority, or ""."""
    return "has extras (attempts and a status), but no record" if bits & (_RECORD | _EXTRA) == _EXTRA else ""


def result_problem(bits: int) -> str:
    """The problem of a result, or "". A result that was removed meanwhile has none."""
    if bits & _RESULT and not bits & _RESULT_EXPIRY:
        return "has a result that never expires"
    return "has an expiry, but no result" if bits & _RESULT_EXPIRY and not bits & _RESULT else ""


def batch_problem(bits: int) -> str:
    """The problem of an id that has a batch of the archive, of any priority, or ""."""
    if bits & _OF_OTHER_BATCH:
        return "withdrawn for a batch that does not name it"
    return "has a batch, but is not withdrawn" if bits & _NOT_WITHDRAWN else ""


def job_problem(bits: int) -> str:
    """The problem of a job that has these bits of lua/audit.lua, or "". A job that was removed meanwhile has none."""
    states = [name for bit, name in _STATES.items() if bits & bit]
    if not bits & _RECORD:
        return f"{' and '.join(states)}, but has no record" if states else extras_problem(bits)
    if bits & _OTHER_PRIORITY:
        return f"{' and '.join(states) or 'in no state'}, but its record has another priority"
    if len(states) != 1:
        return f"in several states: {' and '.join(states)}" if states else "has a record, but is in no state"
    if bits & _OVERLOOKED:
        return "scheduled earlier than claims look, so they do not find it"
    if bits & (_NO_LEASE | _NOT_NAMED):
        return "running without a lease" if bits & _NO_LEASE else "running, but its lease does not name it"
    if bits & _NOT_SIMPLE:
        return "ready as a simple job, but it has extras or a run-after time of its own"
    return "withdrawn, but for no batch" if bits & (_WITHDRAWN | _OF_BATCH) == _WITHDRAWN else ""


def lease_problem(bits: int) -> str:
    """The problem of a lease that has these bits of lua/audit.lua, or "". A lease that ended meanwhile has none."""
    if bits & _ONLY_COUNT:
        return "has a count of jobs, but nothing else"
    if bits & (_EXPIRY | _ENTRY) == 0:
        return ""
    if not bits & _ENTRY:
        return "has an expiry, but no jobs"
    if not bits & _EXPIRY:
        return "never expires"
    return "" if bits & _COUNTED else "its count is not the number of jobs that run on it"


def account_problems(account: bytes, stored: StoredConfig) -> Iterator[str]:
    """What is wrong with the field `account` of the home shard (lua/lib/account.lua).

    Its times are compared with one another, not with the clock: a clock that went back leaves them ahead of it until
    the next grant.
    """
    rate = stored.config.exact_rate
    if rate is None or len(account) != _ACCOUNT.size:
        yield f"expected {_ACCOUNT.size} bytes and a rate, got {len(account)} bytes and {rate or 'no rate'}"
        return
    *numbers, granted, granted_before = _ACCOUNT.unpack(account)
    refilled_ms, units, line_ms, since_ms = (int.from_bytes(number, "big") for number in numbers)
    burst = stored.config.burst or rate.default_burst
    if units > burst * rate.per_ms:
        yield f"tokens: expected at most the burst of {burst:,}, got {units / rate.per_ms:,.1f}"
    # a grant takes from the burst, and from what flows in while it counts
    most = burst + rate.count * GRANT_MS // rate.per_ms + 1
    is_of_this_rate = since_ms > (int.from_bytes(stored.version, "big") >> _VERSION_SHIFT) + SETTLED_MS
    if is_of_this_rate and max(granted, granted_before) > most:
        yield f"granted: expected at most {most:,} in a second, got {max(granted, granted_before):,}"
    token_ms = rate.per_ms // rate.count + 1 if rate.count else 0
    if line_ms > refilled_ms + max(LONGEST_REST_MS, token_ms):
        yield f"line: expected its end soon after the last refill, got {line_ms - refilled_ms:,} ms"
    if since_ms > refilled_ms:
        yield f"granted: expected a time before the last refill, got {since_ms - refilled_ms:,} ms after it"
