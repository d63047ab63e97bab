"""Checks of one server: role, rights, memory, durability, clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from pinlater.cli.doctor.check_result import ERROR, NOTE, OK, WARNING, CheckResult
from pinlater.cli.doctor.permission_check import permissions
from pinlater.cli.doctor.reached_server import ReachedServer
from pinlater.cli.doctor.version_check import judge_version
from pinlater.model.urls import hide_user

#: Round trips for clock and latency. The best one gives the clock's offset, the median the latency.
PINGS: Final = 9
#: Above this the distance to the server limits a worker: each call costs a round trip.
SLOW_MS: Final = 10.0
#: Redis's clock decides about leases and due times. Users read their own clock, and notice a difference of a second.
CLOCK_OFFSET_MS: Final = 1000.0
#: If memory use is above this share of maxmemory, the server will soon refuse enqueues.
FULL_SHARE: Final = 0.9


def check_server(server: ReachedServer) -> list[CheckResult]:
    """Runs all checks of a server. A check that the server's rights do not allow gives a warning."""
    results: list[CheckResult] = []
    for check in _CHECKS:
        try:
            results += check(server)
        except (RedisError, OSError) as error:
            name = check.__name__.strip("_").replace("_", " ")
            results.append(server.result(WARNING, name, f"unknown: {hide_user(str(error))}", "check it by hand"))
    return results


def _version(server: ReachedServer) -> Iterator[CheckResult]:
    yield judge_version(server.server)


def _role(server: ReachedServer) -> Iterator[CheckResult]:
    if server.info.get("role") == "slave":
        of = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
        yield server.result(ERROR, "role", f"a replica of {of}", "name the primary: a replica takes no writes")
        return
    replicas = int(server.info.get("connected_slaves", 0))
    yield server.result(OK, "role", f"primary, {replicas} replica{'' if replicas == 1 else 's'}")


def _eviction(server: ReachedServer) -> Iterator[CheckResult]:
    policy = server.info.get("maxmemory_policy") or server.config("maxmemory-policy")
    if policy is None:
        yield server.result(WARNING, "eviction", "unknown", "check that maxmemory-policy is noeviction")
    elif policy != "noeviction":
        yield server.result(
            ERROR, "eviction", f"{policy}: a full server deletes jobs", "CONFIG SET maxmemory-policy noeviction"
        )
    else:
        yield server.result(OK, "eviction", "noeviction")


def _memory(server: ReachedServer) -> Iterator[CheckResult]:
    used, most = int(server.info.get("used_memory", 0)), int(server.info.get("maxmemory", 0))
    found = f"{used / 2**20:,.1f} MiB used"
    if not most:
        advice = "set maxmemory: the server then refuses enqueues before a backlog fills the machine"
        yield server.result(NOTE, "memory", f"{found}, no maxmemory", advice)
        return
    full = used >= FULL_SHARE * most
    advice = "enqueues will be refused soon: drain, purge or raise maxmemory" if full else ""
    yield server.result(WARNING if full else OK, "memory", f"{found} of {most / 2**20:,.1f} MiB", advice)


def _allocator(server: ReachedServer) -> Iterator[CheckResult]:
    allocator = str(server.info.get("mem_allocator", "unknown"))
    if not allocator.startswith("libc"):
        yield server.result(OK, "allocator", allocator)
    elif server.server.url.startswith("embedded:"):
        yield server.result(OK, "allocator", f"{allocator}, started with glibc.malloc.mxfast=0")
    else:
        advice = "start it with GLIBC_TUNABLES=glibc.malloc.mxfast=0 (invisible from here), or large drains stall it"
        yield server.result(NOTE, "allocator", allocator, advice)


def _durability(server: ReachedServer) -> Iterator[CheckResult]:
    fsync, save = server.config("appendfsync"), server.config("save")
    if int(server.info.get("aof_enabled", 0)):
        level, found, advice = _DISK.get(fsync, _DISK[None])
        yield server.result(level, "durability", found, advice)
    else:
        snapshots = f"snapshots ({save})" if save else "snapshots unknown" if save is None else "no snapshots"
        lost = "everything since the last snapshot" if save else "everything"
        found = f"memory, {snapshots}: a restart can lose {lost}"
        yield server.result(WARNING, "durability", found, "CONFIG SET appendonly yes, and put it in the server's file")
    if "err" in (server.info.get("aof_last_write_status"), server.info.get("rdb_last_bgsave_status")):
        yield server.result(ERROR, "saving", "the last write to disk failed", "check the server's log and its disk")


#: By appendfsync: level, what an acknowledgement means, advice.
_DISK: Final[dict[str | None, tuple[str, str, str]]] = {
    "always": (OK, "disk always: a power cut loses nothing acknowledged", ""),
    "everysec": (OK, "disk everysec: a power cut can lose the last 1 to 2 s, a killed server loses nothing", ""),
    "no": (WARNING, "disk, without fsync: a power cut can lose the last 30 s", "CONFIG SET appendfsync everysec"),
    None: (OK, "disk, fsync unknown: a power cut may lose the last changes", ""),
}


def _waitaof(server: ReachedServer) -> Iterator[CheckResult]:
    try:
        server.redis.waitaof(0, 0, 1)
    except NoPermissionError:
        yield server.result(NOTE, "WAITAOF", "denied", "ACL SETUSER … +waitaof, to wait for the disk call by call")
    except ResponseError:
        yield server.result(
            NOTE, "WAITAOF", "missing: Redis 7.2 or later has it", "use appendfsync always to wait for the disk"
        )
    else:
        yield server.result(OK, "WAITAOF", "available")


def _clock_and_latency(server: ReachedServer) -> Iterator[CheckResult]:
    trips: list[tuple[float, float]] = []
    for _ in range(PINGS):
        wall_s, started_s = time.time(), time.monotonic()
        seconds, microseconds = server.redis.time()
        trip_s = time.monotonic() - started_s
        trips.append((trip_s, seconds + microseconds / 1e6 - (wall_s + trip_s / 2)))
    trip_s, offset_s = min(trips)
    certain_ms = max(0.0, abs(offset_s) - trip_s / 2) * 1000
    found = f"{abs(offset_s):.3f} s {'ahead of' if offset_s > 0 else 'behind'} this machine's"
    if certain_ms > CLOCK_OFFSET_MS:
        yield server.result(WARNING, "clock", found, "run NTP on both: jobs are due by Redis's clock")
    else:
        yield server.result(OK, "clock", found)
    median_ms = statistics.median(trip for trip, _ in trips) * 1000
    advice = "each call takes at least this long: move clients closer, or batch more" if median_ms > SLOW_MS else ""
    yield server.result(NOTE if advice else OK, "latency", f"{median_ms:.2f} ms a round trip", advice)


_Check: TypeAlias = Callable[[ReachedServer], Iterator[CheckResult]]
_CHECKS: Final[tuple[_Check, ...]] = (
    _version,
    _role,
    permissions,
    _eviction,
    _memory,
    _allocator,
    _durability,
    _waitaof,
    _clock_and_latency,
)
