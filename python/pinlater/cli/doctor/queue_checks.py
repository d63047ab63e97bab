"""Checks of queues: configuration, mode, limits, archive, monitor, lost records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis.exceptions import RedisError

from pinlater.cli.doctor.archive_checks import ArchiveChecks
from pinlater.cli.doctor.check_result import ERROR, NOTE, OK, WARNING, CheckResult
from pinlater.cli.doctor.limit_checks import LimitChecks
from pinlater.cli.doctor.queue_states import QueueShardState, queue_state
from pinlater.cli.doctor.reached_server import ReachedServer
from pinlater.model.queue_config import QueueConfig, read_registry
from pinlater.model.urls import hide_user
from pinlater.operations.opening import drains
from pinlater.store.keys import registry_key
from pinlater.store.servers import Server
from pinlater.store.shards import Session


def check_queues(
    session: Session, reached: dict[Server, ReachedServer], queues: Sequence[str], archive: ArchiveChecks
) -> list[CheckResult]:
    """Checks the named queues; all if none is named."""
    results: list[CheckResult] = []
    try:
        names, others = (set(queues), []) if queues else _read_registries(session, reached)
        results += _check_registries(others)
        for queue in queues or sorted(names):
            states = [queue_state(reached[shard.server], shard, queue) for shard in session.shards.values()]
            if queues or any(state.config or state.error for state in states):
                results += _check_queue(session, reached, queue, states, archive)
    except (RedisError, OSError) as error:
        found = f"unknown: {hide_user(str(error))}"
        results.append(CheckResult(WARNING, "queues", "configuration", found, "name queues with --queue"))
    return results


def _check_registries(others: list[bytes]) -> Iterator[CheckResult]:
    if others:
        found = f"{len(others):,} entries are no queue names: {others[0]!r:.60}"
        yield CheckResult(WARNING, "queues", "registry", found, "SREM them from pl:{…}:queues: docs/acl.md")


def _read_registries(session: Session, reached: dict[Server, ReachedServer]) -> tuple[set[str], list[bytes]]:
    members: set[bytes] = set()
    for shard in session.shards.values():
        members |= set(reached[shard.server].redis.smembers(registry_key(shard.name)))  # type: ignore[arg-type]
    return read_registry(members)


def _check_queue(
    session: Session,
    reached: dict[Server, ReachedServer],
    queue: str,
    states: list[QueueShardState],
    archive: ArchiveChecks,
) -> Iterator[CheckResult]:
    subject = f"queue {queue}"
    existing = [state for state in states if state.config is not None]
    unsupported = [state for state in states if state.error]
    yield from (_check_format(subject, state) for state in unsupported)
    if unsupported and not existing:
        return
    if not existing:
        yield CheckResult(ERROR, subject, "configuration", "not found", f"pinlater queue create {queue}")
        return
    yield _check_configuration(subject, states)
    assert existing[0].config is not None
    yield from _check_mode(queue, subject, existing[0].config)
    yield from LimitChecks(session, reached, queue, existing).run(existing[0].config)
    yield from archive.of_queue(queue, existing[0].config)
    yield _check_monitor(queue, subject, existing)
    yield from _check_lost_records(queue, subject, existing)


def _check_format(subject: str, state: QueueShardState) -> CheckResult:
    found, _, advice = state.error.partition(": ")
    return CheckResult(ERROR, subject, "format", f"shard {state.shard}: {found}", advice)


def _check_configuration(subject: str, states: list[QueueShardState]) -> CheckResult:
    missing = ", ".join(state.shard for state in states if state.config is None)
    configs = [state.config for state in states if state.config is not None]
    if missing or any(config != configs[0] for config in configs):
        found = f"not on shard {missing}" if missing else "differs between shards"
        return CheckResult(WARNING, subject, "configuration", found, "pinlater queue info copies the newest one")
    found = f"alike on {len(states)} shard{'' if len(states) == 1 else 's'}"
    return CheckResult(OK, subject, "configuration", found)


def _check_mode(queue: str, subject: str, config: QueueConfig) -> Iterator[CheckResult]:
    modes = {"paused": config.paused, "refuse_enqueue": config.refuse_enqueue and not drains(config)}
    closed = [name for name, is_set in modes.items() if is_set]
    if closed:
        options = " ".join(f"--no-{name.replace('_', '-')}" for name in closed)
        yield CheckResult(NOTE, subject, "open", ", ".join(closed), f"pinlater queue set {queue} {options} opens it")


def _check_monitor(queue: str, subject: str, existing: list[QueueShardState]) -> CheckResult:
    idle = ", ".join(state.shard for state in existing if not state.monitor_active)
    if not idle:
        return CheckResult(OK, subject, "monitor", "active")
    found = f"none active on shard {idle}: leases do not expire, old jobs stay"
    return CheckResult(WARNING, subject, "monitor", found, f"start a worker, or pinlater monitor --queue {queue}")


def _check_lost_records(queue: str, subject: str, existing: list[QueueShardState]) -> Iterator[CheckResult]:
    lost = sum(state.lost for state in existing)
    if lost:
        found = f"{lost:,} job{' was' if lost == 1 else 's were'} found without a record"
        advice = (
            "records were evicted or removed by hand, so these jobs cannot run; see eviction above, and use --audit to "
            f"find more; when the cause is fixed: pinlater queue reset-lost {queue}"
        )
        yield CheckResult(ERROR, subject, "lost records", found, advice)
