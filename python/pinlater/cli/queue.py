"""`pinlater queue`: creates, lists, shows, changes, empties and deletes queues.

Promises to empty or delete a queue only if the user agrees. Risks: counts of several shards are not from one moment.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import Any, Final, TextIO

import click

from pinlater.cli.command_base import DONE, NO, CommandFailed, Group, confirm, usage
from pinlater.cli.doctor.queue_states import QueueShardState, queue_states
from pinlater.cli.output import count, duration, jobs, moment, print_facts, print_json, print_table, remark, say, size
from pinlater.cli.queue_limits import limit_facts, modes
from pinlater.cli.queue_settings import config_document, config_options, given, option_name, shown
from pinlater.cli.queue_stops import drain, pause, resume
from pinlater.cli.settings import Settings
from pinlater.client.client import Client
from pinlater.model.jobs import CountsByState
from pinlater.model.queue_config import CONFIG_FIELDS, QueueConfig
from pinlater.operations.backlog import leaves_out
from pinlater.operations.limits import QueueLimits

#: A configuration's version is an id: milliseconds above 19 bits of sequence.
_VERSION_SHIFT: Final = 19
STATES: Final = ("pending", "scheduled", "in_progress", "succeeded", "failed")
_HEADINGS: Final = ("#pending", "#scheduled", "#in progress", "#succeeded", "#failed")
_NO_QUEUES: Final = "no queues yet; to create one: pinlater queue create mail"


@click.group("queue", cls=Group)
def queue() -> None:
    """Queues: create, ls, info, set, pause, resume, drain, purge, reset-lost, rm."""


@queue.verb("create")
@click.argument("name")
@config_options
def create(settings: Settings, name: str, **options: Any) -> int:
    """Create a queue. An existing one stays as it is; exit code 1 if its settings differ."""
    chosen = given(options)
    asked = QueueConfig(**chosen)
    with settings.either_client(*(f"--{option_name(key)}" for key in chosen)) as client:
        created = client.create_queue(name, asked if chosen else None)
        config = client.queue_config(name) if isinstance(client, Client) else None
    if settings.as_json:
        settled = {} if config is None else {"config": config_document(config)}
        print_json({"queue": name, "created": created, **settled})
    elif created:
        say(f"queue {name} created")
        remark(f"next: pinlater job enqueue {name} 'hello'")
    else:
        say(f"queue {name} exists already")
    other = [key for key in chosen if getattr(config, key) != getattr(asked, key)]
    if other and not created:
        found = ", ".join(f"{key} is {shown(getattr(config, key))}" for key in other)
        raise CommandFailed(f"queue {name!r}: not changed: {found}; pinlater queue set changes it", NO)
    return DONE


@queue.verb("ls")
def ls(settings: Settings) -> int:
    """List all queues, with their jobs by state."""
    if settings.on_thrift:
        return _ls_on_thrift(settings)
    with settings.client() as client:
        found = [
            (name, client.count(name), client.queue_config(name), client.queue_limits(name))
            for name in client.queue_names()
        ]
        _remark_archive(client, [name for name, *_ in found])
        if closed := [name for name, shard in client.session.shards.items() if shard.dequeue_only]:
            remark(f"dequeue-only, so without new jobs: shard {', '.join(closed)}")
    if settings.as_json:
        print_json([_in_list(*each) for each in found])
    elif not found:
        say(_NO_QUEUES)
    else:
        rows = [
            (name, *counted(counts), ", ".join(modes(config, limits)) or "open")
            for name, counts, config, limits in found
        ]
        print_table(("queue", *_HEADINGS, "mode"), rows)
    return DONE


def _ls_on_thrift(settings: Settings) -> int:
    """The Thrift interface knows no settings and limits of queues."""
    with settings.either_client() as client:
        found = [(name, client.count(name)) for name in client.queue_names()]
    if settings.as_json:
        print_json([{"queue": name, **asdict(counts)} for name, counts in found])
    elif not found:
        say(_NO_QUEUES)
    else:
        print_table(("queue", *_HEADINGS), [(name, *counted(counts)) for name, counts in found])
    return DONE


def _remark_archive(client: Client, names: list[str]) -> None:
    """Says which queues may have archived jobs that the numbers leave out."""
    left_out = [name for name in names if client.run(partial(leaves_out, client.session, name))]
    if left_out:
        remark(f"without their archived jobs: {', '.join(left_out)}; --archive URL counts them too")


def _in_list(name: str, counts: CountsByState, config: QueueConfig, limits: QueueLimits) -> dict[str, Any]:
    """A queue as `queue ls --json` shows it."""
    settings = ("paused", "refuse_enqueue", "open_when_empty", "rate", "burst", "max_running")
    chosen = {key: value for key, value in config_document(config).items() if key in settings}
    return {"queue": name, **asdict(counts), **chosen, "paused_ms": limits.paused_ms}


@queue.verb("info")
@click.argument("name")
def info(settings: Settings, name: str) -> int:
    """Show a queue: settings, limits, jobs by state and priority, shards."""
    with settings.client() as client:
        config = client.queue_config(name)
        by_priority = [client.count(name, priority=priority) for priority in range(1, config.priorities + 1)]
        limits = client.queue_limits(name)
        _remark_archive(client, [name])
    total = sum(by_priority, CountsByState())
    shards = queue_states(settings.client_settings(), name)
    if settings.as_json:
        priorities = [{"priority": priority, **asdict(counts)} for priority, counts in enumerate(by_priority, 1)]
        print_json(
            {
                "queue": name,
                "config": config_document(config),
                **asdict(total),
                "priorities": priorities,
                "limits": asdict(limits),
                "shards": [_shard_document(state) for state in shards],
            }
        )
        return DONE
    mode = ", ".join(modes(config, limits))
    say(f"queue {name}" + (f"  ({mode})" if mode else ""))
    say("")
    print_facts(_settings_of(config))
    say("")
    if facts := list(limit_facts(name, config, limits, total)):
        print_facts(facts)
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
    changes = given(options)
    if not changes:
        names = ", ".join("--" + option_name(name) for name in CONFIG_FIELDS)
        usage(f"expected a setting to change, one of {names}")
    with settings.client() as client:
        config = client.configure_queue(name, **changes)
        left_ms = client.queue_limits(name).paused_ms if changes.get("paused") is False else 0
    if settings.as_json:
        print_json({"queue": name, "config": config_document(config)})
    else:
        say(f"queue {name}: " + ", ".join(f"{key} = {shown(getattr(config, key))}" for key in changes))
    if left_ms:
        remark(f"a pause goes on for {duration(left_ms)}: pinlater queue resume {name} ends it")
    return DONE


for command in (pause, resume, drain):
    queue.add_command(command)


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
@click.option(
    "--password-file",
    type=click.File("r"),
    metavar="PATH",
    help="Thrift servers: read their password from this file; - is stdin. [default: ask]",
)
def rm(settings: Settings, name: str, yes: bool, password_file: TextIO | None) -> int:
    """Delete a queue and all its jobs. Thrift servers want their password."""
    secret = _password(settings, password_file)
    with settings.either_client() as client:
        held = total_of(client.count(name))
        confirm(f"Delete queue {name} and its {jobs(held)} for good?", yes)
        deleted = client.delete_queue(name, **secret)
    if settings.as_json:
        print_json({"queue": name, "deleted": deleted})
    else:
        say(f"queue {name} deleted" if deleted else f"queue {name} was deleted already")
    return DONE if deleted else NO


def _password(settings: Settings, file: TextIO | None) -> dict[str, str]:
    """The password of Thrift servers, as an argument: the first line of a file, or what the user types."""
    if not settings.on_thrift:
        if file is not None:
            usage("--password-file: expected with a thrift:// URL")
        return {}
    if file is not None:
        return {"password": file.readline().rstrip("\r\n")}
    if not sys.stdin.isatty():
        usage("There is no terminal to ask for the password on: expected --password-file")
    return {"password": click.prompt("Password of the server", hide_input=True, err=True)}


def counted(counts: CountsByState) -> tuple[str, ...]:
    """Counts as cells of a table, in the order of STATES."""
    return tuple(count(getattr(counts, state)) for state in STATES)


def total_of(counts: CountsByState) -> int:
    """Jobs in all states together."""
    return sum(getattr(counts, state) for state in STATES)


def _settings_of(config: QueueConfig) -> list[tuple[str, str]]:
    kept = f"{jobs(config.keep_succeeded)} per shard and priority, {duration(config.succeeded_ttl_s * 1000)}"
    return [
        ("lease", duration(config.lease_ms)),
        ("priorities", str(config.priorities)),
        ("succeeded kept", kept if config.keep_succeeded else "none"),
        ("failed kept", duration(config.failed_ttl_s * 1000)),
        ("largest body", size(config.body_limit)),
        ("crash limit", _crash_limit(config)),
        *([("archive", _marks(config))] if config.is_archived else []),
        *([] if config.refuse_above is None else [("refuse above", f"{jobs(config.refuse_above)} a shard")]),
    ]


def _marks(config: QueueConfig) -> str:
    """What monitors move by themselves."""
    marks = {
        "spill above": None if config.spill_above is None else count(config.spill_above),
        "restore below": None if config.restore_below is None else count(config.restore_below),
        "horizon": None if config.horizon_ms is None else duration(config.horizon_ms),
    }
    return ", ".join(f"{name} {value}" for name, value in marks.items() if value is not None)


def _crash_limit(config: QueueConfig) -> str:
    if not config.crash_limit:
        return "none (a crash uses an attempt)"
    return f"{config.crash_limit}, then " + (
        f"to queue {config.quarantine_queue}" if config.quarantine_queue else "failed"
    )


def _shard_document(state: QueueShardState) -> dict[str, Any]:
    return {**asdict(state), "config": None if state.config is None else config_document(state.config)}


def _shard_row(state: QueueShardState) -> tuple[str, ...]:
    shard = f"{state.shard} (dequeue-only)" if state.dequeue_only else state.shard
    if state.error:
        return shard, state.server, state.error, "-", "-"
    if state.config is None:
        return shard, state.server, "not created yet", "-", "-"
    active = f"active (until {moment(state.monitor_until_ms)})" if state.monitor_active else "none active"
    return shard, state.server, f"as of {moment(state.version >> _VERSION_SHIFT)}", active, count(state.lost)
