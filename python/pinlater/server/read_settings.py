"""Composes the settings of a server: defaults, then TOML, then the original's properties file, then the command line.

Promises that the later one wins, and that an error names the file of the wrong value. The processes of a server get the
settings of their supervisor: they read no file, so that a file that is edited cannot keep one from its start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import orjson

from pinlater.client import settings_file
from pinlater.model.errors import InvalidArgument
from pinlater.running.worker_process import REPORT_VARIABLE
from pinlater.server.properties_file import read_properties
from pinlater.server.settings import ServerSettings

#: Environment variable with the settings of a server process, as JSON.
SETTINGS_VARIABLE: Final = "PINLATER_SERVER_SETTINGS"
#: The table of pinlater.toml.
TABLE: Final = "server"
#: Settings that name a file.
PATHS: Final = ("shards_file", "queue_config_file", "tls_cert", "tls_key")
_NAMES: Final = tuple(each.name for each in fields(ServerSettings))


def read_settings(flags: Mapping[str, Any], properties: Path | None = None) -> ServerSettings:
    """The settings of a server. Raises InvalidArgument.

    flags: those that the command line has, by the names of ServerSettings.
    properties: the original's properties file.
    """
    if REPORT_VARIABLE in os.environ:  # a supervisor started this process
        return ServerSettings(**orjson.loads(os.environ[SETTINGS_VARIABLE]))
    file, document = settings_file.found()
    values = _checked(f"{file}: [{TABLE}]: ", {}, _of_table(file, document))
    if properties is not None:
        values = _checked(f"{properties}: ", values, read_properties(properties))
    named = {name: str(Path(flags[name]).absolute()) for name in PATHS if flags.get(name)}
    settings = ServerSettings(**{**values, **flags, **named})
    settings.tls_context()
    return settings


def export_settings(settings: ServerSettings) -> None:
    """Makes these the settings of processes that are started from here on."""
    os.environ[SETTINGS_VARIABLE] = orjson.dumps(asdict(settings)).decode()


def _of_table(file: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the table of a TOML file. Its relative paths are relative to its directory."""
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        raise InvalidArgument(f"{file}: {TABLE}: expected a table, got {table!r:.60}")
    settings_file.check_keys(file, f" in [{TABLE}]", table, _NAMES)
    values = dict(table)
    if values.get("http") is False:
        values["http"] = ""
    for name in PATHS:
        if isinstance(path := values.get(name), str) and path:
            values[name] = str(Path(file).absolute().parent / path)
    return values


def _checked(where: str, before: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The settings with those of one more file. Raises InvalidArgument, with the name of the file."""
    try:
        ServerSettings(**before | more)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}{error}") from None
    return before | more
