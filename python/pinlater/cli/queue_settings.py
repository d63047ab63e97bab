"""The settings of a queue on the command line: the options of `queue create` and `queue set`, and how values are shown.

Promises an option for each field of QueueConfig, and that `none` takes a setting away which may be None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, Final, TypeVar

import click

from pinlater.cli.times import COUNT, MILLISECONDS, WHOLE_SECONDS
from pinlater.model.queue_config import QueueConfig
from pinlater.model.times import written

F = TypeVar("F", bound=Callable[..., Any])

#: The value of an option that was given as `none`. None: the option was not given.
_NONE: Final = object()
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
    "quarantine_queue": "Queue to which a monitor moves jobs that reached the crash limit. '': they stay, as failed.",
    "rate": "Most jobs that all clients may claim in a time: 100/s, 5/m, 3/10s. 0: none at all.",
    "burst": "Jobs that may be claimed at once after a time without claims. none: what the rate gives in a second.",
    "max_running": "Most jobs in progress at once.",
    "home": "Shard that counts for the limits. '': chosen when the queue gets its first limit.",
    "run_on_home_loss": "Go on with a share of the rate while the home shard does not answer.",
    "spill_above": "Most pending jobs in Redis, such as 5M; a monitor moves others to the archive.",
    "restore_below": "Bring archived jobs back while Redis has fewer pending ones.",
    "horizon_ms": "Jobs that are due later than this wait in the archive, such as 24h.",
    "refuse_above": "Refuse new jobs while a shard holds so many of the queue, in whatever state, such as 10M.",
    "open_when_empty": "With --refuse-enqueue: accept new jobs again once the queue is empty.",
}


class _OrNone(click.ParamType[Any]):
    """A value, or `none`."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self._kind = kind
        self.name = kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        return _NONE if value == "none" or value is _NONE else self._kind.convert(value, param, ctx)


def config_options(function: F) -> F:
    """An option for each field of QueueConfig. `given` reads their values."""
    for setting in reversed(fields(QueueConfig)):
        dashed = option_name(setting.name)
        text = f"{_HELP[setting.name]} [default: {_default(setting.name, setting.default)}]"
        if isinstance(setting.default, bool):
            option = click.option(f"--{dashed}/--no-{dashed}", default=None, help=text)
        else:
            kind, metavar = _type_of(setting.name, setting.default)
            option = click.option(f"--{dashed}", setting.name, type=kind, default=None, metavar=metavar, help=text)
        function = option(function)
    return function


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given."""
    return {name: None if value is _NONE else value for name, value in options.items() if value is not None}


def option_name(setting: str) -> str:
    """`lease` of lease_ms: a time on the command line has its own unit."""
    return setting.removesuffix("_ms").removesuffix("_s").replace("_", "-")


def _type_of(setting: str, default: object) -> tuple[Any, str]:
    """The type and the metavar of an option."""
    if setting == "horizon_ms":
        return _OrNone(MILLISECONDS), "TIME|none"
    if setting in ("spill_above", "restore_below", "refuse_above"):
        return _OrNone(COUNT), "N|none"
    if setting.endswith(("_ms", "_s")):
        return (MILLISECONDS if setting.endswith("_ms") else WHOLE_SECONDS), "TIME"
    if setting == "rate":
        return _OrNone(click.STRING), "RATE|none"
    if default is None:
        return _OrNone(click.INT), "N|none"
    return (str, "SHARD" if setting == "home" else "NAME") if isinstance(default, str) else (int, "N")


def _default(setting: str, default: Any) -> str:
    if default is not None and setting.endswith(("_ms", "_s")):
        return written(default if setting.endswith("_ms") else 1000 * default)
    return str(default).lower()


def shown(value: object) -> str:
    """The value of a setting, for people."""
    return "none" if value is None else str(value)


def config_document(config: QueueConfig) -> dict[str, Any]:
    """The fields of a QueueConfig for JSON, with the rate as text."""
    return {**asdict(config), "rate": None if config.rate is None else str(config.rate)}
