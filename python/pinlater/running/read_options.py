"""Reads the options of `pinlater run` from the command line and from TOML.

Promises that the command line wins, and that an unknown key is an error that names the known ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from pinlater.client import settings_file
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import check_queue_name
from pinlater.model.times import parse_duration
from pinlater.model.urls import shown_url
from pinlater.running.options import QueueOptions, RunOptions
from pinlater.running.worker_process import REPORT_VARIABLE
from pinlater.store.archive_url import ArchiveUrl, resolve_archive
from pinlater.store.shards import ChosenShards, resolve_shards

#: Options whose values may be written as `"30s"`.
_TIMES: Final = frozenset({"stop_timeout", "loop_timeout"})
#: What the file may have for clients, and for `pinlater server`.
_OF_OTHERS: Final = ("archive", "server")


def parse_queues(text: str) -> tuple[dict[str, QueueOptions], bool]:
    """Reads `a:3,b` (weights) or `a>b` (strict order). Returns the queues, and whether their order is strict."""
    strict = ">" in text
    if strict and "," in text:
        raise InvalidArgument(f"queues: expected A:3,B:1 or A>B, got {text!r}")
    queues: dict[str, QueueOptions] = {}
    for part in text.split(">" if strict else ","):
        name, colon, weight = part.strip().partition(":")
        if colon and not weight.isdecimal():
            raise InvalidArgument(f"queues: expected NAME or NAME:WEIGHT, got {part!r}")
        if check_queue_name(name) in queues:
            raise InvalidArgument(f"queues: {name!r} is named twice")
        queues[name] = QueueOptions(weight=int(weight) if colon else None)
    return queues, strict


def options_of(given: Mapping[str, Any], config: Path | None) -> RunOptions:
    """The options of a command.

    given: the options of the command line, with queues and modules as text. An absent option is None; http is "" for
        none.
    config: a TOML file. By default that of settings_file. A process of a supervisor reads no file, because its command
        line has all options.
    """
    values = {} if REPORT_VARIABLE in os.environ else read_config(config)
    options = {name: value for name, value in given.items() if value is not None}
    if "include" in options:
        options["include"] = [name.strip() for name in options["include"].split(",")]
    if "queues" in options:
        queues, strict = parse_queues(options["queues"])
        options["queues"] = _with_weights(queues, values.get("queues", {}))
        options["strict"] = options.get("strict") or strict or values.get("strict", False)
    values |= options | ({"http": None} if options.get("http") == "" else {})
    if "app" not in values:
        raise InvalidArgument("app: expected MODULE:APP, on the command line or as `app` in TOML, got none")
    return RunOptions(**values)


def _with_weights(named: Mapping[str, QueueOptions], of_file: Mapping[str, QueueOptions]) -> dict[str, QueueOptions]:
    """The options of the named queues: weights from the command line, everything else from the file."""
    return {
        name: of_file.get(name, own) if own.weight is None else replace(of_file.get(name, own), weight=own.weight)
        for name, own in named.items()
    }


def read_config(path: Path | None) -> dict[str, Any]:
    """The options in a file. Each of its queues is a QueueOptions. A table with settings of the queue alone names none.

    Raises InvalidArgument, also for such settings in another file than that of settings_file: producers create queues
    too, and read that one.
    """
    file, table = _file(path)
    values = _checked(file, table)
    if path is not None and (queues := settings_file.queues_of(file, table)) and not _is_found(path):
        raise InvalidArgument(
            f"{file}: queues.{next(iter(queues))}: expected its settings in {settings_file.FILES[0]}, which producers "
            "read too, got them in another file"
        )
    return values


def _is_found(path: Path) -> bool:
    """Whether settings_file finds this file."""
    found, _ = settings_file.found()
    return bool(found) and path.samefile(found)


def servers_of(path: Path | None) -> ChosenShards:
    """The servers of PINLATER_URL, else of the file that read_config() reads, else the default."""
    return resolve_shards(None, None, lambda: settings_file.servers_of(*_file(path)))


def archive_of(path: Path | None, url: str | None) -> ArchiveUrl | None:
    """The archive of `url`, else of PINLATER_ARCHIVE_URL, else of the file that read_config() reads, else none."""
    return resolve_archive(url, lambda: settings_file.archive_of(*_file(path)))


def _file(path: Path | None) -> tuple[str, dict[str, Any]]:
    return settings_file.found() if path is None else (str(path), settings_file.table_of(path))


def _checked(file: str, table: dict[str, Any]) -> dict[str, Any]:
    known = [option.name for option in fields(RunOptions) if option.name not in ("create", "burst", "watch")]
    settings_file.check_keys(file, "", table, [*known, *_OF_OTHERS])
    settings_file.archive_of(file, table)
    if not isinstance(table.get("shards", {}), dict):
        raise InvalidArgument(f"{file}: shards: expected a table, got {shown_url(table['shards']):.60}")
    settings_file.queues_of(file, table)
    queues = {
        queue: QueueOptions(**{key: value for key, value in own.items() if key in settings_file.WORKER_KEYS})
        for queue, own in settings_file.queue_tables(file, table).items()
        if not own or own.keys() & settings_file.WORKER_KEYS
    }
    own = {name: value for name, value in table.items() if name not in _OF_OTHERS}
    return _read_values(file, {**own, "queues": queues})


def _read_values(file: str, table: dict[str, Any]) -> dict[str, Any]:
    """The table with times as seconds (`"30s"`), and no http for `false`."""
    values = {name: value for name, value in table.items() if not (name == "http" and value is False)}
    for name in _TIMES & values.keys():
        try:
            values[name] = _seconds(values[name])
        except InvalidArgument as error:
            raise InvalidArgument(f"{file}: {name}: {error}") from None
    return values


def _seconds(value: object) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidArgument(f"expected a time such as 30s, 5m, 2h or 1d, or seconds, got {value!r:.60}")
    return value
