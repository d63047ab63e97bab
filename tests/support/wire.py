"""A raw caller of the scripts: ARGV packed by hand as docs/design.md §4 says, replies taken apart by hand.

Promises: nothing here is the product's client, so an error there cannot hide one in the Lua; every write
checks that the reply names its request and that the highest id h grew (a replay: that h is the first answer's).
Risks: one Wire is one lane, and must not be shared by threads.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pinlater.store.keys import queue_key, remnant_field
from pinlater.store.scripts import load_scripts
from tests.support.servers import Server, wait_until
from tests.support.wire_format import (
    BUDGET_BYTES,
    CLAIM,
    FAR_MS,
    NO_CONFIG_VERSION,
    NOW,
    Account,
    Claimed,
    Config,
    End,
    Expiry,
    Grant,
    Info,
    Job,
    LimitsSeen,
    Moved,
    Moves,
    ends,
    number,
    pack_checkpoint,
    pack_more,
    pack_moved,
    pack_runs,
    pack_specs,
    pack_statuses,
    record,
    settings,
    unpack_claim,
    unpack_config,
    unpack_info,
    unpack_moves,
    unpack_positions,
)

SESSIONS: Final = itertools.count(1)

Value = dict[bytes, bytes] | list[tuple[bytes, float]]
Snapshot = dict[str, Value]


@contextmanager
def refused(code: str) -> Iterator[None]:
    """The block is answered with an error reply whose first word is `code`."""
    with pytest.raises(redis.ResponseError, match=rf"^{re.escape(code)}\b"):
        yield


def apart(reply: Any) -> list[Any]:
    """A write's reply, which begins with one string, as `[sequence, h, payload, …]`."""
    first, *rest = reply if isinstance(reply, list) else [reply]
    return [first[:4], first[4:12], first[12:], *rest]


@dataclass
class Wire:
    """One lane to one queue on one server."""

    client: redis.Redis
    queue: str = "q"
    shard: str = "s"
    priorities: int = 3
    version: bytes = b""
    h: bytes = b""
    sequence: int = 0
    lane: bytes = field(default_factory=lambda: struct.pack(">QH", next(SESSIONS), 0))
    answer: list[Any] = field(default_factory=list)
    last: tuple[str, tuple[Any, ...], bytes, bool] | None = None

    def key(self, name: str) -> bytes:
        return queue_key(self.queue, self.shard, name)

    def raw(self, verb: str, *arguments: bytes | int | str, common: bool = False) -> list[Any]:
        """One EVALSHA with the script's keys; the reply as it comes. common: with those before the bar alone."""
        script = load_scripts()[verb]
        keys = script.names(self.queue, self.shard, self.priorities, common=common)
        command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        try:
            return self._send(*command)
        except redis.exceptions.NoScriptError:
            self._send("SCRIPT LOAD", script.source)
            return self._send(*command)

    def _send(self, *command: Any) -> list[Any]:
        reply: list[Any] = self.client.execute_command(*command)  # type: ignore[no-untyped-call]
        return reply

    def write(self, verb: str, *arguments: Any, version: bytes | None = None, common: bool = False) -> list[Any]:
        """A new request of this lane; returns the payload after `[sequence, h]`."""
        self.sequence += 1
        head = () if verb == "create" else (self.version if version is None else version,)
        sequence, h, *payload = apart(self.raw(verb, self.lane, self.packed_sequence, *head, *arguments, common=common))
        assert sequence == self.packed_sequence
        assert number(h) > number(self.h or b"\0"), f"h does not grow: {verb}"
        self.h, self.answer, self.last = h, payload, (verb, (*head, *arguments), h, common)
        return payload

    def again(self) -> list[Any]:
        """The last request once more, byte for byte; its payload."""
        assert self.last
        verb, arguments, first_h, common = self.last
        sequence, h, *payload = apart(self.raw(verb, self.lane, self.packed_sequence, *arguments, common=common))
        assert (sequence, h) == (self.packed_sequence, first_h)
        return payload

    def set_head(self, *, due_ms: int | None = None, waiting: bool | None = None) -> None:
        """Changes what the head says: no job is scheduled before due_ms, somebody may wait."""
        head: Any = self.client.hget(self.key("meta"), "head")
        due = head[8:14] if due_ms is None else due_ms.to_bytes(6, "big")
        waits = head[14:15] if waiting is None else bytes([waiting])
        self.client.hset(self.key("meta"), "head", head[:8] + due + waits + head[15:])

    @property
    def packed_sequence(self) -> bytes:
        return struct.pack(">I", self.sequence)

    def read(self, verb: str, *arguments: Any, version: bytes | None = None) -> list[Any]:
        """A read; returns the payload after `[nonce, h]`."""
        head = () if verb == "config" else (self.version if version is None else version,)
        nonce, h, *payload = self.raw(verb, b"nonc", *head, *arguments)
        assert nonce == b"nonc"
        assert h == (self.client.hget(self.key("meta"), "head") or bytes(8))[:8]
        return payload

    def other(self) -> Wire:
        """Another lane to the same queue, which knows the same configuration."""
        return Wire(self.client, self.queue, self.shard, self.priorities, self.version)

    # -- the verbs

    def permit(self) -> bytes:
        """The right to create the queue."""
        return bytes(self.raw("permit", b"nonc")[1])

    def keep(self, remnant: bytes) -> bytes:
        """Writes what the queue leaves into the registry. Returns what the registry has then."""
        return bytes(self.raw("keep_remnant", b"nonc", remnant_field(self.queue), remnant)[1])

    def forget(self, remnant: bytes) -> int:
        """Ends a deletion. Returns whether (1 or 0) the queue is there again."""
        return int(self.raw("forget_queue", b"nonc", remnant)[1])

    def create(
        self,
        packed: bytes = b"",
        carried: bytes = b"",
        epoch: int = 1,
        *,
        remnant: bytes = b"",
        permit: bytes | None = None,
    ) -> bool:
        """carried: a version, of that epoch. remnant: what the registry has. permit: None gets one."""
        state = carried and carried + struct.pack(">I", epoch)
        permit = self.permit() if permit is None else permit
        (payload,) = self.write("create", packed or settings(priorities=self.priorities), state, permit, remnant)
        config = unpack_config(payload[1:])
        self.version, self.priorities = config.version, config.priorities
        return bool(payload[0])

    def configure(self, packed: bytes, carried: bytes = b"", version: bytes | None = None, epoch: int = 1) -> Config:
        """carried: a version, of that epoch. Returns what the shard has then; this Wire goes on with it."""
        state = carried and carried + struct.pack(">I", epoch)
        (reply,) = self.write("configure", packed, state, version=version)
        config = unpack_config(reply)
        self.version, self.priorities = config.version, config.priorities
        return config

    def enqueue(self, *jobs: Job) -> list[bytes]:
        return self._ids(self.write("enqueue", *self._arrivals(jobs))[0], len(jobs))

    def enqueue_bodies(self, *bodies: bytes) -> list[bytes]:
        return self.enqueue(*(Job(body) for body in bodies))

    def prepare(self, count: int) -> bytes:
        return bytes(self.write("prepare", count)[0])

    def load(self, reservation: bytes, *jobs: Job) -> list[bytes]:
        return self._ids(self.write("load", reservation, *self._arrivals(jobs))[0], len(jobs))

    def claim(
        self,
        limit: int = 1000,
        *,
        quotas: Sequence[int] = (),
        claim: bytes = CLAIM,
        channel: bytes = b"",
        budget: int = BUDGET_BYTES,
        unconfirmed_ms: int | None = None,
    ) -> Claimed:
        packed = struct.pack(f">{len(quotas)}H", *quotas)
        more = () if unconfirmed_ms is None else (unconfirmed_ms,)
        return unpack_claim(self.write("claim", claim, limit, packed, channel, budget, *more))

    def claim_one(self, claim: bytes = CLAIM) -> Claimed:
        return unpack_claim(self.write("claim", claim, common=True))

    def replayed_claim(self) -> Claimed:
        """Repeats the last claim, and returns its answer."""
        return unpack_claim(self.again())

    def dry_run(self, limit: int = 1000, budget: int = BUDGET_BYTES) -> Claimed:
        return self.dry_page(limit, budget)[0]

    def dry_page(self, limit: int = 1000, budget: int = BUDGET_BYTES, after: bytes = b"") -> tuple[Claimed, bytes]:
        """What a claim would give behind a position, and the next position (empty at the end)."""
        after, *claim = self.read("dry_run", limit, budget, after)
        return unpack_claim(claim), after

    def ack(
        self, *ends: End, sources: Sequence[bytes] = (), tombstones: bool = False, any_source: bool = False
    ) -> list[int]:
        """Acks in groups by priority and kind, in the order given; returns refused positions."""
        groups = b""
        for (priority, failed), run in itertools.groupby(ends, key=lambda end: (end.priority, end.failed)):
            part = list(run)
            groups += struct.pack(">BBH", priority, failed, len(part)) + pack_runs(end.token for end in part)
            groups += b"".join(end.delay_ms.to_bytes(6, "big") for end in part if failed)
        texts, ids = pack_statuses(end.status for end in ends), [end.id for end in ends]
        more = pack_more(texts, sources, tombstones, any_source)
        return unpack_positions(self.write("ack", more, groups, *ids)[0])

    def succeed(self, claimed: Claimed) -> list[int]:
        return self.ack(*(End(job.priority, job.id, claimed.token) for job in claimed.jobs))

    def fail(self, claimed: Claimed, delay_ms: int = 0, status: bytes = b"") -> list[int]:
        return self.ack(*(End(j.priority, j.id, claimed.token, True, delay_ms, status) for j in claimed.jobs))

    def release(self, *ends: End, source: bytes = b"") -> list[int]:
        groups = b""
        for priority, run in itertools.groupby(ends, key=lambda end: end.priority):
            part = list(run)
            groups += struct.pack(">BH", priority, len(part)) + pack_runs(end.token for end in part)
        return unpack_positions(self.write("release", source, groups, *(end.id for end in ends))[0])

    def renew(self, *claims: bytes | End, own: Sequence[End] = (), lease_ms: int = 0) -> list[int]:
        """claims: for each claim one of its jobs, or its token. own: jobs with leases of their own."""
        jobs = [claim if isinstance(claim, End) else End(1, bytes(8), claim) for claim in claims]
        given = [b"".join(bytes([end.priority]) + end.id + end.token for end in ends) for ends in (jobs, own)]
        reply = self.write("renew", *given, lease_ms, version=NO_CONFIG_VERSION)
        return unpack_positions(reply[0])

    def checkpoint(
        self,
        end: End,
        *,
        body: bytes | None = None,
        move: tuple[int, int] | None = None,
        attempts: int | None = None,
        source: bytes = b"",
        own: bool = False,
    ) -> list[int]:
        """One job's checkpoint; `move` = (kind, ms), `end.status` is prepended when not empty."""
        item = pack_checkpoint(end, body=body is not None, move=move, attempts=attempts, own=own)
        bodies = [] if body is None else [body]
        reply = self.write("checkpoint", source, item, pack_statuses([end.status]), *bodies)[0]
        assert reply[:2] == b"\0\1"  # the call came to the only item
        return unpack_positions(reply[2:])

    def expire(
        self,
        expected: tuple[int, ...] | None = (0, FAR_MS),
        owner: bytes = b"monitor1",
        hold_ms: int = 15_000,
        sweep: bytes = b"",
        *,
        jumped: bool = False,
    ) -> Expiry:
        """expected: earliest and latest TIME, and TIME of the last look; by default it was just now."""
        times = expected and (*expected, FAR_MS)[:3]
        window = b"".join(ms.to_bytes(6, "big") for ms in times) + bytes([jumped]) if times else b""
        (packed,) = self.write("expire", owner, hold_ms, window, sweep, version=NO_CONFIG_VERSION)
        now, until = (int.from_bytes(packed[at : at + 6], "big") for at in (3, 21))
        leases, retried, failed = struct.unpack_from(">III", packed, 9)
        named = 29 + 9 * int.from_bytes(packed[27:29], "big")
        jobs = [(packed[at], packed[at + 1 : at + 9]) for at in range(29, named, 9)]
        return Expiry(packed[0], packed[1], packed[2], now, leases, retried, failed, until, packed[named:], jobs)

    def end_leases(
        self, source: bytes, how: bytes = b"", cursor: bytes = b"0:0", started: bytes = b""
    ) -> tuple[int, int, int, int, bytes]:
        """Returns leases, jobs tried again, failed, not started, and the next cursor, empty at the end."""
        (packed,) = self.write("end_leases", source, how, started, cursor, version=NO_CONFIG_VERSION)
        *counts, more, failed = struct.unpack_from(">IIIIBH", packed)
        return *counts, packed[19 + 9 * failed :] if more else b""

    def leave_quarantine(
        self, priority: int, id_: bytes, what: int, reservation: bytes = bytes(8), queue: bytes = b""
    ) -> bytes:
        """Returns the reservation there is then, and of which queue."""
        return bytes(self.write("leave_quarantine", queue, struct.pack(">B8sB8s", priority, id_, what, reservation))[0])

    def collect(self, cursor: bytes = b"0") -> tuple[list[int], bytes]:
        """Returns [succeeded, failed, lanes, reservations, waiters, more] and the next cursor."""
        (packed,) = self.write("collect", cursor, version=NO_CONFIG_VERSION)
        return list(struct.unpack_from(">IIIIIB", packed)), packed[21:]

    def grant(self, want: int, *, unused: int = 0, place: bool = False, grantee: bytes = b"client-1") -> Grant:
        (packed,) = self.write("grant", grantee, want, unused, int(place))
        tokens, valid, wait, processes = struct.unpack(">I6s6sI", packed)
        return Grant(tokens, number(valid), number(wait), processes)

    @property
    def account(self) -> Account | None:
        """The account as it is stored."""
        packed: Any = self.client.hget(self.key("meta"), "account")
        return packed and Account.unpack(packed)

    @account.setter
    def account(self, account: Account) -> None:
        self.client.hset(self.key("meta"), "account", account.pack())

    def pause(self, ms: int, by: bytes = b"") -> int:
        """Returns for how many ms claims rest."""
        return number(self.write("pause", ms, by)[0])

    def limits(self) -> LimitsSeen:
        (packed,) = self.read("limits")
        home, tokens, granted, processes, running, *times = struct.unpack_from(">B6sIII6s6s6s", packed)
        begin_ms, end_ms, now_ms = map(number, times)
        by = packed[37:]
        return LimitsSeen(home, number(tokens), granted, processes, running, begin_ms, end_ms, now_ms, by)

    def retry_failed(
        self,
        priority: int = 1,
        limit: int = 1000,
        attempts: int = 3,
        kind: int = NOW,
        ms: int = 0,
        ids: Sequence[bytes] = (),
    ) -> int:
        return number(self.write("retry_failed", priority, limit, attempts, kind, ms, *ids)[0][:4])

    def delete_jobs(
        self, state: bytes, priority: int = 1, limit: int = 0, ids: Sequence[bytes] = (), channel: bytes = b""
    ) -> tuple[int, int]:
        """Returns how many went, and whether more of that state are left."""
        deleted, more = struct.unpack_from(">IB", self.write("delete_jobs", state, priority, limit, channel, *ids)[0])
        return deleted, more

    def store_results(self, *kept: tuple[End, bytes], ms: int = 60_000, channel: bytes = b"results:") -> list[int]:
        """Keeps results of running jobs; returns refused positions."""
        items = b"".join(bytes([e.priority]) + e.id + e.token + ms.to_bytes(6, "big") for e, _ in kept)
        return unpack_positions(self.write("store_results", channel, items, *(value for _, value in kept))[0])

    def outcome(self, id_: bytes, priority: int = 1) -> tuple[int, bytes]:
        """What (0 gone, 1 result, 2 failed, 3 on its way), and the result or the status."""
        (outcome,) = self.outcomes([id_], priority)
        return outcome[0], outcome[1:]

    def outcomes(self, ids: Sequence[bytes], priority: int = 1, budget: int = BUDGET_BYTES) -> list[bytes]:
        return self.read("outcome", budget, bytes([priority]) * len(ids), *ids)

    # -- the archive

    def withdraw(
        self,
        batch: bytes,
        priority: int = 1,
        line: str = "ready",
        *,
        order: str = "earliest",
        first: str = "-inf",
        last: str = "+inf",
        limit: int = 500,
        budget: int = BUDGET_BYTES,
        epoch: int = 1,
    ) -> tuple[int, int]:
        """Returns how many left, and whether more are left."""
        words = (epoch, batch, priority, line, order, first, last, limit, budget)
        count, more = struct.unpack(">IB", self.write("withdraw", *words)[0])
        return count, more

    def read_batch(
        self, batch: bytes, start: int = 0, budget: int = BUDGET_BYTES
    ) -> tuple[tuple[int, int, int], bytes, list[Moved]]:
        """(known, priority, jobs of the batch), the next position (empty at the end), the jobs."""
        head, position, *parts = self.read("read_batch", batch, start, budget)
        jobs = [Moved(one[:8], one[8:], record, extras) for one, record, extras in zip(*[iter(parts)] * 3, strict=True)]
        known, priority, count = struct.unpack(">BBI", head)
        return (known, priority, count), position, jobs

    def batch_jobs(self, batch: bytes) -> list[Moved]:
        """All jobs of a batch."""
        return self.read_batch(batch)[2]

    def finalize(self, batch: bytes, removed: Sequence[bytes] = ()) -> tuple[int, list[bytes]]:
        """What (0 unknown, 1 ended, 2 not ended), and the ids that are missing."""
        (reply,) = self.write("finalize", batch, b"".join(removed))
        return reply[0], [reply[at : at + 8] for at in range(1, len(reply), 8)]

    def abort(self, batch: bytes) -> int:
        return number(self.write("abort", batch)[0])

    def restore(self, restore: int, *jobs: Moved, epoch: int = 1) -> tuple[int, list[bytes]]:
        """What (0 refused, 1 done, 2 done before, 3 nothing is closed), and the ids that were left out."""
        records = [job.record for job in jobs]
        (reply,) = self.write("restore", epoch, restore.to_bytes(8, "big"), pack_moved(jobs), *records)
        if reply[0] == 3:
            assert reply[1:] == self.version
            return 3, []
        return reply[0], [reply[at : at + 8] for at in range(1, len(reply), 8)]

    def close(self, restore: int, epoch: int = 1, known: bytes | None = None) -> None:
        """known: by default what `restore` answers where nothing is closed."""
        known = self.version if known is None else known
        assert self.write("close", epoch, restore.to_bytes(8, "big"), known) == [b""]

    def settled(
        self, open_batches: Sequence[bytes] = (), ended: Sequence[bytes] = (), restores: Sequence[int] = ()
    ) -> list[int]:
        names = [b"".join(open_batches), b"".join(ended), b"".join(each.to_bytes(8, "big") for each in restores)]
        nonce, flags, _ = self.raw("settled", b"nonce008", *names)
        assert nonce == b"nonce008"
        return list(flags)

    def held(self, *ids: bytes, epoch: int = 1) -> list[int]:
        return list(self.read("held", epoch, *ids)[0])

    def moves(self, cursor: bytes = b"0") -> Moves:
        return unpack_moves(self.read("moves", cursor))

    def counts(self) -> list[tuple[int, ...]]:
        """A priority: pending now, pending later, in progress, succeeded, failed."""
        return list(struct.iter_unpack(">IIIII", self.read("count")[0]))

    def lookup(
        self, ids: Sequence[bytes], priorities: Sequence[int] = (), budget: int = BUDGET_BYTES
    ) -> list[Info | None]:
        at = bytes(priorities or [1] * len(ids))
        return [unpack_info(one) if one else None for one in self.read("lookup", "1", budget, at, *ids)]

    def scan(
        self,
        state: bytes,
        cursor: bytes = b"",
        *,
        priority: int = 1,
        future: bool = False,
        limit: int = 1000,
        bodies: bool = False,
        budget: int = BUDGET_BYTES,
    ) -> tuple[list[Info], bytes]:
        """One page and the next cursor (empty at the end)."""
        words = (state, priority, int(future), cursor, limit, int(bodies), budget)
        reply = self.read("scan", *words)
        return [unpack_info(one) for one in reply[2:]], reply[0]

    def audit(
        self, ids: Sequence[bytes], tokens: Sequence[bytes] = (), priority: int = 1
    ) -> tuple[list[int], list[int]]:
        positions, leases = self.read(
            "audit", priority, b"".join(ids), b"".join(one.rjust(17, b"\0") for one in tokens)
        )
        return [bits for (bits,) in struct.iter_unpack(">I", positions)], list(leases)

    @staticmethod
    def _arrivals(jobs: Sequence[Job]) -> tuple[bytes | int, ...]:
        return (pack_specs(jobs), pack_statuses(job.status for job in jobs), *(record(job) for job in jobs))

    @staticmethod
    def _ids(first: bytes, count: int) -> list[bytes]:
        return [(number(first) + i).to_bytes(8, "big") for i in range(count)]


def connect(server: Server) -> redis.Redis:
    """A connection that never resends, so that only the product can send a write twice."""
    return server.client(retry=Retry(NoBackoff(), 0), socket_timeout=60)


def jump(server: Server, seconds: float) -> None:
    """Moves the server's clock, and returns once scripts see it (Valkey's scripts use a time read before them)."""

    def time_s() -> float:
        now_s, now_us = server.call("EVAL", "return redis.call('TIME')", 0)
        return int(now_s) + int(now_us) / 1_000_000

    def is_seen() -> bool:
        moved_s = time_s() - before_s  # with what went by meanwhile: a second and more on a loaded machine
        return moved_s >= seconds if seconds > 0 else moved_s < seconds / 2

    before_s = time_s()
    server.jump_clock(seconds)
    wait_until(is_seen, "scripts to see the new time")


def snapshot(wire: Wire, *, lane: bool = True) -> Snapshot:
    """Every key of the queue and shard with its decoded content; `lane=False` leaves out h and all lanes."""
    found: Snapshot = {}
    for key in wire.client.scan_iter(match=wire.key("*"), count=1000):
        found[key.decode().partition("}:")[2]] = _content(wire.client, key)
    meta = found.get("meta")
    if not lane and isinstance(meta, dict):
        found["meta"] = {name: value for name, value in meta.items() if name != b"head" and len(name) != 10}
    return found


def _content(client: redis.Redis, key: bytes) -> Value:
    match client.type(key):
        case b"hash":
            return dict(client.hgetall(key))  # type: ignore[arg-type]
        case b"zset":
            return list(client.zrange(key, 0, -1, withscores=True))  # type: ignore[arg-type]
        case other:
            raise AssertionError(f"expected a hash or a sorted set at {key!r}, got {other!r}")


def drain(wire: Wire) -> list[bytes]:
    """Claims and acks until nothing is left. Returns the bodies in the order of the claims."""
    bodies: list[bytes] = []
    while (claimed := wire.claim()).jobs:
        bodies += claimed.bodies
        assert wire.succeed(claimed) == []
    return bodies


def is_clean(found: Mapping[str, Value]) -> bool:
    """Whether nothing but the head is left."""
    return set(found) <= {"meta"}


def fail_all(wire: Wire, count: int, priority: int = 1) -> list[bytes]:
    """Enqueues jobs of one attempt and fails them all; their ids."""
    ids = wire.enqueue(*(Job(b"%d" % i, priority, allowed=1) for i in range(count)))
    assert wire.ack(*ends(wire.claim(), failed=True, status=b"no")) == []
    return ids


class Timed(NamedTuple):
    """A queue on a server whose clock the test moves."""

    wire: Wire
    server: Server

    def later(self, seconds: float) -> None:
        jump(self.server, seconds)


def expiries(wire: Wire) -> dict[bytes, float]:
    """Lease token -> expiry (ms)."""
    return dict(wire.client.zrange(wire.key("leases"), 0, -1, withscores=True))  # type: ignore[arg-type]


def lease_fields(wire: Wire) -> tuple[int, int]:
    """How many leases have an expiry, and how many fields `lease_jobs` has."""
    return int(wire.client.zcard(wire.key("leases"))), int(wire.client.hlen(wire.key("lease_jobs")))


def known(wire: Wire, id_: bytes, priority: int = 1) -> Info:
    """What lookup tells of a job that is there."""
    (info,) = wire.lookup([id_], [priority])
    assert info is not None, "expected the job to be there"
    return info
