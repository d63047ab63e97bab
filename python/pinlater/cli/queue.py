"""`pinlater queue`: creates, lists, shows, changes, empties and deletes queues.

Promises to empty or delete a queue only if the user agrees. Risks: counts of several shards are not from one moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, Final, TypeVar

import click

from pinlater.cli.command_base import DONE, NO, CommandFailed, Group, confirm, usage
from pinlater.cli.doctor.queue_states import QueueShardState, queue_states
from pinlater.cli.output import count, duration, jobs, moment, print_facts, print_json, print_table, remark, say, size
from pinlater.cli.settings import Settings
from pinlater.cli.times import MILLISECONDS, WHOLE_SECONDS, written
from pinlater.model.jobs import CountsByState
from pinlater.model.queue_config import CONFIG_FIELDS, QueueConfig

F = TypeVar("F", bound=Callable[..., Any])

#: A configuration's version is an id: milliseconds above 19 bits of sequence.
_VERSION_SHIFT: Final = 19
STATES: Final = ("pending", "scheduled", "in_progress", "succeeded", "failed")
_HEADINGS: Final = ("#pending", "#scheduled", "#in progress", "#succeeded", "#failed")
_HELP: Final = {
    "lease_ms": "How long a claim lasts without renewal, such as 30s or 5m.",
    "paused": "Stop giving jobs to workers.",
    "refuse_enqueue": "Refuse new jobs.",
    "priorities": "Number of priorities; can only grow.",
    "keep_succeeded": "Succeeded jobs to keep, per shard and priority. A monitor removes surplus ones within 30 s.",
    "succeeded_ttl_s": "How long succeeded jobs are kept, such as 1h or 7d.",
    "failed_ttl_s": "How long failed jobs are kept, such as 1h or 7d.",
    "body_limit": "Largest body, in bytes.",
    "crash_limit": "Crashes after which a job fails; a crash then uses no attempt. 0: no limit, each crash uses one.",
    "rate": "Most jobs that all clients may claim, such as 100/s or 5/m. 0 pauses the queue, none takes it away.",
    "burst": "Claims that may come at once after a pause. none: what the rate gives in a second.",
    "max_running": "Most jobs in progress at once. none takes the limit away.",
    "home": "Shard that counts for the limits. '': chosen when the queue gets its first limit.",
    "run_on_home_loss": "Go on with a share of the rate while the home shard does not answer.",
    "open_when_empty": "Accept new jobs again once the queue is empty (with --refuse-enqueue).",
    "quarantine_queue": "Queue to which a monitor moves jobs that reached the crash limit. '': they stay, as failed.",
}


def config_options(function: F) -> F:
    """An option for each field of QueueConfig. One that was not given is None."""
    for setting in reversed(fields(QueueConfig)):
        dashed = _option_name(setting.name)
        text = f"{_HELP[setting.name]} [default: {_default(setting.name, setting.default)}]"
        if isinstance(setting.default, bool):
            option = click.option(f"--{dashed}/--no-{dashed}", default=None, help=text)
        else:
            kind, metavar = _type_of(setting.name, setting.default)
            option = click.option(f"--{dashed}", setting.name, type=kind, default=None, metavar=metavar, help=text)
        function = option(function)
    return function


def _option_name(setting: str) -> str:
    """`lease` of lease_ms: a time on the command line has its own unit."""
    return setting.removesuffix("_ms").removesuffix("_s").replace("_", "-")


def _type_of(setting: str, default: object) -> tuple[Any, str]:
    """The type and the metavar of an option."""
    if setting.endswith(("_ms", "_s")):
        return (MILLISECONDS if setting.endswith("_ms") else WHOLE_SECONDS), "TIME"
    return (str, "NAME") if isinstance(default, str) else (int, "N")


def _default(setting: str, default: Any) -> str:
    if setting.endswith(("_ms", "_s")):
        return written(default if setting.endswith("_ms") else 1000 * default)
    return str(default).lower()


@click.group("queue", cls=Group)
def queue() -> None:
    """Queues: create, ls, info, set, purge, reset-lost, rm."""


@queue.verb("create")
@click.argument("name")
@config_options
def create(settings: Settings, name: str, **options: Any) -> int:
    """Create a queue. An existing one stays as it is; exit code 1 if its settings differ."""
    asked = _given(options)
    with settings.client() as client:
        created = client.create_queue(name, QueueConfig(**asked))
        config = client.queue_config(name)
    if settings.as_json:
        print_json({"queue": name, "created": created, "config": asdict(config)})
    elif created:
        say(f"queue {name} created")
        remark(f"next: pinlater job enqueue {name} 'hello'")
    else:
        say(f"queue {name} exists already")
    other = {key: getattr(config, key) for key, value in asked.items() if getattr(config, key) != value}
    if other and not created:
        found = ", ".join(f"{key} is {value}" for key, value in other.items())
        raise CommandFailed(f"queue {name!r}: not changed: {found}; pinlater queue set changes it", NO)
    return DONE


@queue.verb("ls")
def ls(settings: Settings) -> int:
    """List all queues, with their jobs by state."""
    with settings.client() as client:
        found = [(name, client.count(name), client.queue_config(name)) for name in client.queue_names()]
    if settings.as_json:
        print_json([{"queue": name, **asdict(counts), "paused": config.paused} for name, counts, config in found])
    elif not found:
        say("no queues yet; to create one: pinlater queue create mail")
    else:
        rows = [(name, *counted(counts), _flags(config) or "open") for name, counts, config in found]
        print_table(("queue", *_HEADINGS, "mode"), rows)
    return DONE


@queue.verb("info")
@click.argument("name")
def info(settings: Settings, name: str) -> int:
    """Show a queue: settings, jobs by state and priority, shards."""
    with settings.client() as client:
        config = client.queue_config(name)
        by_priority = [client.count(name, priority=priority) for priority in range(1, config.priorities + 1)]
    total = sum(by_priority, CountsByState())
    shards = queue_states(settings.client_settings(), name)
    if settings.as_json:
        priorities = [{"priority": priority, **asdict(counts)} for priority, counts in enumerate(by_priority, 1)]
        shown = [asdict(state) for state in shards]
        print_json(
            {"queue": name, "config": asdict(config), **asdict(total), "priorities": priorities, "shards": shown}
        )
        return DONE
    say(f"queue {name}" + (f"  ({_flags(config)})" if _flags(config) else ""))
    say("")
    print_facts(_settings_of(config))
    say("")
    rows = [(str(priority), *counted(counts)) for priority, counts in enumerate(by_priority, 1)]
    print_table(("priority", *_HEADINGS), [*rows, ("all", *counted(total))])
    say("")
    print_table(
        ("shard", "server", "configuration", "monitor", "#lost records"), [_shard_row(state) for state in shards]
    )
    return DONE


@queue.verb("set")
@click.argument("name")
@config_options
def set_(settings: Settings, name: str, **options: Any) -> int:
    """Change settings of a queue. It may be in use."""
    changes = _given(options)
    if not changes:
        names = ", ".join("--" + _option_name(name) for name in CONFIG_FIELDS)
        usage(f"expected a setting to change, one of {names}")
    with settings.client() as client:
        config = client.configure_queue(name, **changes)
    if settings.as_json:
        print_json({"queue": name, "config": asdict(config)})
    else:
        say(f"queue {name}: " + ", ".join(f"{key} = {getattr(config, key)}" for key in changes))
    return DONE


@queue.verb("purge")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(settings: Settings, name: str, yes: bool) -> int:
    """Remove every job of a queue, in every state. The queue stays."""
    with settings.client() as client:
        held = total_of(client.count(name))
        confirm(f"Remove {jobs(held)} of queue {name} for good?", yes)
        removed = client.purge(name)
    if settings.as_json:
        print_json({"queue": name, "removed": removed})
    else:
        say(f"queue {name}: {jobs(removed)} removed")
    return DONE


@queue.verb("reset-lost")
@click.argument("name")
def reset_lost(settings: Settings, name: str) -> int:
    """Reset the count of lost records.

    The doctor reports lost records until then. Do it when their cause is fixed.
    """
    with settings.client() as client:
        lost = client.reset_lost(name)
    if settings.as_json:
        print_json({"queue": name, "lost": lost})
    else:
        say(f"queue {name}: count of lost records set from {lost:,} to 0")
    return DONE


@queue.verb("rm")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(settings: Settings, name: str, yes: bool) -> int:
    """Delete a queue and all its jobs."""
    with settings.client() as client:
        held = total_of(client.count(name))
        confirm(f"Delete queue {name} and its {jobs(held)} for good?", yes)
        deleted = client.delete_queue(name)
    if settings.as_json:
        print_json({"queue": name, "deleted": deleted})
    else:
        say(f"queue {name} deleted" if deleted else f"queue {name} was deleted already")
    return DONE if deleted else NO


def counted(counts: CountsByState) -> tuple[str, ...]:
    """Counts as cells of a table, in the order of STATES."""
    return tuple(count(getattr(counts, state)) for state in STATES)


def total_of(counts: CountsByState) -> int:
    """Jobs in all states together."""
    return sum(getattr(counts, state) for state in STATES)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _flags(config: QueueConfig) -> str:
    flags = {"paused": config.paused, "enqueue refused": config.refuse_enqueue}
    return ", ".join(name for name, value in flags.items() if value)


def _settings_of(config: QueueConfig) -> list[tuple[str, str]]:
    kept = f"{jobs(config.keep_succeeded)} per shard and priority, {duration(config.succeeded_ttl_s * 1000)}"
    return [
        ("lease", duration(config.lease_ms)),
        ("priorities", str(config.priorities)),
        ("succeeded kept", kept if config.keep_succeeded else "none"),
        ("failed kept", duration(config.failed_ttl_s * 1000)),
        ("largest body", size(config.body_limit)),
        ("crash limit", _crash_limit(config)),
    ]


def _crash_limit(config: QueueConfig) -> str:
    if not config.crash_limit:
        return "none (a crash uses an attempt)"
    return f"{config.crash_limit}, then " + (
        f"to queue {config.quarantine_queue}" if config.quarantine_queue else "failed"
    )


def _shard_row(state: QueueShardState) -> tuple[str, ...]:
    if state.error:
        return state.shard, state.server, state.error, "-", "-"
    if state.config is None:
        return state.shard, state.server, "not created yet", "-", "-"
    active = f"active (until {moment(state.monitor_until_ms)})" if state.monitor_active else "none active"
    return state.shard, state.server, f"as of {moment(state.version >> _VERSION_SHIFT)}", active, count(state.lost)
