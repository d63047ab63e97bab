"""The doctor: looks at servers and queues, and says what is wrong and what to do about it.

Promises to change nothing (but the servers' script cache), to need no more permissions than a client, and to say
`unknown` where a managed server hides something. Risks: it sees one moment; a setting can be changed after it looked.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from pinlater.client.base import ClientSettings
from pinlater.model.errors import FormatUnsupported, PinLaterError, ServerTooOld, from_reply
from pinlater.model.queue_config import QueueConfig, StoredConfig
from pinlater.store.keys import registry_key, script_keys
from pinlater.store.scripts import load_scripts
from pinlater.store.servers import Server
from pinlater.store.shards import Session, Shard

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"

#: First patch level of each release line without CVE-2025-49844, -46817 and -46818 (code execution from Lua). Lines
#: before and in between have none, later ones never had the fault. As their release notes of October 2025 say: of Redis
#: in redis/docs 2211 and redis/docker-library-redis 478, of Valkey in osv.dev/vulnerability/BIT-valkey-2025-46818.
CURED_PATCHES: Final = {
    "Redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
FIRST_CURED_LINE: Final = {"Redis": (8, 4), "Valkey": (9, 0)}

#: Round trips; the best tells the clock's offset, the median the latency.
PINGS: Final = 9
#: A queue's call costs a round trip: from here on it is the server's distance that limits a worker.
SLOW_MS: Final = 10.0
#: Leases and due times are by Redis's clock, what users write by theirs; a second of difference is seen by users.
CLOCK_OFFSET_MS: Final = 1000.0
#: Of maxmemory; above it enqueues are soon refused.
FULL_SHARE: Final = 0.9

#: Commands a client sends itself, besides EVALSHA and SCRIPT LOAD.
CLIENT_COMMANDS: Final = ("SADD", "SREM", "SMEMBERS", "BLPOP")
CHANNEL_COMMANDS: Final = ("PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE")
_CALLS: Final = re.compile(rb"\b(?:call|call_in_chunks)\('([A-Z]+)'(?:, '([A-Z]+)')?")
_ACL_PROBE: Final = """#!lua flags=no-writes
local denied = {}
for i = 2, #ARGV do
  local on_channel = ARGV[i] == 'PUBLISH' or ARGV[i] == 'SUBSCRIBE'
  local words = {string.match(ARGV[i], '^(%u+)|?(%u*)$')}
  if words[2] == '' then table.remove(words) end
  words[#words + 1] = on_channel and ARGV[1] or KEYS[1]
  if not redis.acl_check_cmd(unpack(words)) then denied[#denied + 1] = ARGV[i] end
end
return denied
"""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the doctor's. level: ok, note, warning or error. advice: what to do, "" if nothing."""

    level: str
    subject: str
    check: str
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShardState:
    """How one shard has a queue.

    version: grows with each change of the configuration. config: None if the shard has no such queue. lost: ids that
    claims found without a record. error: "" unless the shard could not be asked.
    """

    shard: str
    server: str
    version: int = 0
    generation: int = 0
    config: QueueConfig | None = None
    monitor_active: bool = False
    monitor_until_ms: int | None = None
    lost: int = 0
    error: str = ""


def examine(settings: ClientSettings, queues: Sequence[str] = ()) -> list[CheckResult]:
    """Looks at every server, and at the named queues (all of them if none is named)."""
    findings: list[CheckResult] = []
    with _reached(settings) as (patients, reports):
        for server in settings.session.servers:
            findings.append(reports[server])
            if server in patients:
                findings += _examine_server(patients[server])
        if len(patients) == len(reports):
            findings += _examine_queues(settings.session, patients, queues)
    return findings


def queue_states(settings: ClientSettings, queue: str) -> list[QueueShardState]:
    """How each shard has a queue, in the shards' order."""
    with _reached(settings) as (patients, reports):
        return [
            _queue_state(patients[shard.server], shard, queue)
            if shard.server in patients
            else QueueShardState(shard=shard.name, server=repr(shard.server), error=reports[shard.server].found)
            for shard in settings.session.shards.values()
        ]


def server_versions(settings: ClientSettings) -> dict[str, str | None]:
    """The version of each server by its URL (passwords hidden); None of one that was not reached."""
    with _reached(settings) as (patients, reports):
        return {repr(server): server.version if server in patients else None for server in reports}


# --- servers


@dataclass(slots=True)
class _Patient:
    """A server that was reached, and what it told of itself."""

    server: Server
    redis: redis.Redis
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return repr(self.server)

    def config(self, name: str) -> str | None:
        """A setting, or None where CONFIG GET is denied, as on managed servers."""
        try:
            return dict(self.redis.config_get(name)).get(name)
        except ResponseError:
            return None

    def find(self, level: str, check: str, found: str, advice: str = "") -> CheckResult:
        return CheckResult(level, self.name, check, found, advice)


@contextmanager
def _reached(settings: ClientSettings) -> Iterator[tuple[dict[Server, _Patient], dict[Server, CheckResult]]]:
    """The servers that answer, and what to say of reaching each."""
    patients: dict[Server, _Patient] = {}
    reports: dict[Server, CheckResult] = {}
    try:
        for server in settings.session.servers:
            reports[server] = _reach(server, settings.timeouts, patients)
        yield patients, reports
    finally:
        for patient in patients.values():
            with suppress(RedisError, OSError):
                patient.redis.close()
        for server in settings.session.servers:
            server.release()


def _reach(server: Server, timeouts: tuple[float, float], patients: dict[Server, _Patient]) -> CheckResult:
    try:
        url, arguments = server.connection_arguments(*timeouts)
        patient = _Patient(server, redis.Redis.from_url(url, **arguments))
        patient.info = dict(patient.redis.info())
        server.check_version("\n".join(f"{key}:{value}" for key, value in patient.info.items()))
    except (AuthenticationError, NoPermissionError) as error:
        found, advice = (
            f"login refused: {error}",
            "check user and password in the URL; a client needs INFO and CLIENT SETNAME",
        )
    except ServerTooOld as error:
        found, advice = str(error), "upgrade it: the scripts need Redis 7.0"
    except (RedisError, OSError, PinLaterError) as error:
        found, advice = str(error), "start it, or correct the URL"
    else:
        patients[server] = patient
        return patient.find(OK, "reachable", "answers, login accepted")
    return CheckResult(ERROR, repr(server), "reachable", found, advice)


def _examine_server(patient: _Patient) -> list[CheckResult]:
    findings: list[CheckResult] = []
    for check in _CHECKS:
        try:
            findings += check(patient)
        except (RedisError, OSError) as error:
            name = check.__name__.strip("_").replace("_", " ")
            findings.append(patient.find(WARNING, name, f"unknown: {error}", "look at it by hand"))
    return findings


def _version(patient: _Patient) -> Iterator[CheckResult]:
    yield judge_version(patient.server)


def judge_version(server: Server) -> CheckResult:
    """Whether the Lua engine of a server whose version is known has faults that are cured elsewhere."""
    product, _, number = (server.version or "").partition(" ")
    parts = [int(part) for part in re.findall(r"\d+", number)[:3]]
    line, patch = (parts[0], parts[1]), parts[2] if len(parts) > 2 else 0
    cured = line >= FIRST_CURED_LINE[product] or patch >= CURED_PATCHES[product].get(line, patch + 1)
    found = server.version or ""
    if cured:
        return CheckResult(OK, repr(server), "version", found)
    newest = ", ".join(f"{a}.{b}.{c}" for (a, b), c in CURED_PATCHES[product].items())
    advice = f"{newest} or later cure it; a distribution's package may be patched under its old number"
    return CheckResult(WARNING, repr(server), "version", f"{found}: Lua engine with CVE-2025-49844", advice)


def _role(patient: _Patient) -> Iterator[CheckResult]:
    if patient.info.get("role") == "slave":
        of = f"{patient.info.get('master_host')}:{patient.info.get('master_port')}"
        yield patient.find(ERROR, "role", f"a replica of {of}", "name the primary: a replica takes no writes")
        return
    replicas = int(patient.info.get("connected_slaves", 0))
    yield patient.find(OK, "role", f"primary, {replicas} replica{'' if replicas == 1 else 's'}")


def _permissions(patient: _Patient) -> Iterator[CheckResult]:
    calls = {call for script in load_scripts().values() for call in _CALLS.findall(script.source)}
    commands = sorted(b"|".join(filter(None, words)).decode() for words in calls)
    probe = patient.redis.script_load(_ACL_PROBE)
    wanted = list(dict.fromkeys([*commands, *CLIENT_COMMANDS, *CHANNEL_COMMANDS]))
    key, channel = script_keys("doctor", "1", ("meta",), 0)[0], "pl:wake:doctor"
    denied = [name.decode() for name in patient.redis.evalsha(probe, 1, key, channel, *wanted)]
    if denied:
        rules = " ".join(f"+{name.lower()}" for name in denied)
        advice = f"ACL SETUSER … {rules} ~pl:* &pl:wake:*; until then a script can stop half-way"
        yield patient.find(ERROR, "permissions", f"denied on pl:*: {', '.join(denied)}", advice)
    else:
        yield patient.find(OK, "permissions", f"all {len(wanted)} commands of the scripts and clients")


def _eviction(patient: _Patient) -> Iterator[CheckResult]:
    policy = patient.info.get("maxmemory_policy") or patient.config("maxmemory-policy")
    if policy is None:
        yield patient.find(WARNING, "eviction", "unknown", "see that maxmemory-policy is noeviction")
    elif policy != "noeviction":
        yield patient.find(
            ERROR, "eviction", f"{policy}: a full server deletes jobs", "CONFIG SET maxmemory-policy noeviction"
        )
    else:
        yield patient.find(OK, "eviction", "noeviction")


def _memory(patient: _Patient) -> Iterator[CheckResult]:
    used, most = int(patient.info.get("used_memory", 0)), int(patient.info.get("maxmemory", 0))
    told = f"{used / 2**20:,.1f} MiB used"
    if not most:
        advice = "with maxmemory set, a backlog is refused at enqueue before it fills the machine"
        yield patient.find(NOTE, "memory", f"{told}, no maxmemory", advice)
        return
    full = used >= FULL_SHARE * most
    advice = "enqueues will be refused soon: drain, purge or raise maxmemory" if full else ""
    yield patient.find(WARNING if full else OK, "memory", f"{told} of {most / 2**20:,.1f} MiB", advice)


def _allocator(patient: _Patient) -> Iterator[CheckResult]:
    allocator = str(patient.info.get("mem_allocator", "unknown"))
    if not allocator.startswith("libc"):
        yield patient.find(OK, "allocator", allocator)
    elif patient.server.url.startswith("embedded:"):
        yield patient.find(OK, "allocator", f"{allocator}, started with glibc.malloc.mxfast=0")
    else:
        advice = "start it with GLIBC_TUNABLES=glibc.malloc.mxfast=0 (not visible from here), or large drains stall it"
        yield patient.find(NOTE, "allocator", allocator, advice)


def _durability(patient: _Patient) -> Iterator[CheckResult]:
    fsync, save = patient.config("appendfsync"), patient.config("save")
    if int(patient.info.get("aof_enabled", 0)):
        level, found, advice = _DISK.get(fsync, _DISK[None])
        yield patient.find(level, "durability", found, advice)
    else:
        snapshots = f"snapshots ({save})" if save else "snapshots unknown" if save is None else "no snapshots"
        lost = "everything since the last snapshot" if save else "everything"
        found = f"memory, {snapshots}: a restart can lose {lost} acknowledged"
        yield patient.find(WARNING, "durability", found, "CONFIG SET appendonly yes, and put it in the server's file")
    if "err" in (patient.info.get("aof_last_write_status"), patient.info.get("rdb_last_bgsave_status")):
        yield patient.find(ERROR, "saving", "the last write to disk failed", "look at the server's log and its disk")


#: By appendfsync: level, what an acknowledgement means, advice.
_DISK: Final[dict[str | None, tuple[str, str, str]]] = {
    "always": (OK, "disk always: what was acknowledged survives a power cut", ""),
    "everysec": (OK, "disk everysec: a power cut can lose the last 1 to 2 s acknowledged, a killed server nothing", ""),
    "no": (WARNING, "disk at leisure: a power cut can lose the last 30 s acknowledged", "appendfsync everysec"),
    None: (OK, "disk, fsync unknown: a power cut may lose what was acknowledged last", ""),
}


def _waitaof(patient: _Patient) -> Iterator[CheckResult]:
    try:
        patient.redis.waitaof(0, 0, 1)
    except NoPermissionError:
        yield patient.find(NOTE, "WAITAOF", "denied", "ACL SETUSER … +waitaof, to wait for the disk call by call")
    except ResponseError:
        yield patient.find(
            NOTE, "WAITAOF", "not there (Redis 7.2 brought it)", "use appendfsync always to wait for the disk"
        )
    else:
        yield patient.find(OK, "WAITAOF", "available")


def _clock_and_latency(patient: _Patient) -> Iterator[CheckResult]:
    trips: list[tuple[float, float]] = []
    for _ in range(PINGS):
        wall_s, started_s = time.time(), time.monotonic()
        seconds, microseconds = patient.redis.time()
        trip_s = time.monotonic() - started_s
        trips.append((trip_s, seconds + microseconds / 1e6 - (wall_s + trip_s / 2)))
    trip_s, offset_s = min(trips)
    certain_ms = max(0.0, abs(offset_s) - trip_s / 2) * 1000
    told = f"{abs(offset_s):.3f} s {'ahead of' if offset_s > 0 else 'behind'} this machine's"
    if certain_ms > CLOCK_OFFSET_MS:
        yield patient.find(WARNING, "clock", told, "run NTP on both: jobs are due by Redis's clock")
    else:
        yield patient.find(OK, "clock", told)
    median_ms = statistics.median(trip for trip, _ in trips) * 1000
    advice = "a call takes this long at least: bring clients closer, batch more" if median_ms > SLOW_MS else ""
    yield patient.find(NOTE if advice else OK, "latency", f"{median_ms:.2f} ms a round trip", advice)


_Check: TypeAlias = Callable[[_Patient], Iterator[CheckResult]]
_CHECKS: Final[tuple[_Check, ...]] = (
    _version,
    _role,
    _permissions,
    _eviction,
    _memory,
    _allocator,
    _durability,
    _waitaof,
    _clock_and_latency,
)


# --- queues


def _examine_queues(session: Session, patients: dict[Server, _Patient], queues: Sequence[str]) -> list[CheckResult]:
    findings = []
    try:
        for queue in queues or _queue_names(session, patients):
            states = [_queue_state(patients[shard.server], shard, queue) for shard in session.shards.values()]
            if queues or any(state.config or state.error for state in states):
                findings += list(_examine_queue(queue, states))
    except (RedisError, OSError) as error:
        findings.append(CheckResult(WARNING, "queues", "configuration", f"unknown: {error}", "see permissions above"))
    return findings


def _queue_names(session: Session, patients: dict[Server, _Patient]) -> list[str]:
    names: set[bytes] = set()
    for shard in session.shards.values():
        names |= set(patients[shard.server].redis.smembers(registry_key(shard.name)))  # type: ignore[arg-type]
    return sorted(name.decode() for name in names)


def _queue_state(patient: _Patient, shard: Shard, queue: str) -> QueueShardState:
    script = load_scripts()["config"]
    sha = patient.redis.script_load(script.source.decode())
    keys = script.names(queue, shard.name, 0)
    try:
        _, _, packed, owner, lost = patient.redis.evalsha(sha, len(keys), *keys, b"look")
    except ResponseError as error:
        if not isinstance(from_reply(str(error), ""), FormatUnsupported):
            raise
        return QueueShardState(shard=shard.name, server=patient.name, error=str(error).partition(" ")[2])
    stored = StoredConfig.unpack(packed) if packed else None
    if stored is None or stored.deleted:
        return QueueShardState(shard=shard.name, server=patient.name)
    until_ms = int.from_bytes(owner[8:], "big") if owner else None
    seconds, microseconds = patient.redis.time()
    now_ms = seconds * 1000 + microseconds // 1000
    return QueueShardState(
        shard=shard.name,
        server=patient.name,
        version=int.from_bytes(stored.version, "big"),
        generation=stored.generation,
        config=stored.config,
        monitor_active=until_ms is not None and until_ms > now_ms,
        monitor_until_ms=until_ms,
        lost=int(lost),
    )


def _examine_queue(queue: str, states: list[QueueShardState]) -> Iterator[CheckResult]:
    subject = f"queue {queue}"
    unsupported = [state for state in states if state.error]
    for state in unsupported:
        found, _, advice = state.error.partition(": ")
        yield CheckResult(ERROR, subject, "format", f"shard {state.shard}: {found}", advice)
    there = [state for state in states if state.config is not None]
    if not there and not unsupported:
        yield CheckResult(ERROR, subject, "configuration", "not found", f"pinlater queue create {queue}")
    if not there:
        return
    missing = ", ".join(state.shard for state in states if state.config is None)
    unlike = any(state.config != there[0].config for state in there)
    if missing or unlike:
        found = f"not on shard {missing}" if missing else "differs between shards"
        yield CheckResult(WARNING, subject, "configuration", found, "pinlater queue info carries the newest one over")
    else:
        yield CheckResult(
            OK, subject, "configuration", f"alike on {len(states)} shard{'' if len(states) == 1 else 's'}"
        )
    config = there[0].config
    closed = [name for name in ("paused", "refuse_enqueue") if getattr(config, name)]
    if closed:
        yield CheckResult(NOTE, subject, "open", ", ".join(closed), f"pinlater queue set {queue} opens it again")
    idle = ", ".join(state.shard for state in there if not state.monitor_active)
    if idle:
        found = f"none active on shard {idle}: leases do not expire, old jobs stay"
        yield CheckResult(
            WARNING, subject, "monitor", found, f"pinlater monitor --queue {queue}, or a worker, which runs one"
        )
    else:
        yield CheckResult(OK, subject, "monitor", "active")
    lost = sum(state.lost for state in states)
    if lost:
        advice = (
            "they were evicted or removed by hand, and can not run; see eviction above, and --audit for more of them; "
            f"when the cause is mended: pinlater queue reset-lost {queue}"
        )
        yield CheckResult(ERROR, subject, "lost records", f"{lost:,} jobs were found without their record", advice)
