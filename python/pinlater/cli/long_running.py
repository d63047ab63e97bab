"""What commands share that run until a signal: their servers, their log, and how they end.

Risks: a supervisor hands the servers on to its processes in PINLATER_URL, where other users of the machine can not read
a password.
"""

from __future__ import annotations

import logging
import os

from pinlater.cli.output import print_json
from pinlater.cli.settings import Settings
from pinlater.store.shards import URL_VARIABLE, resolve_shards


def shards_of(settings: Settings) -> dict[str, str]:
    """URLs of the servers by the names of their shards."""
    return resolve_shards(*settings.servers())


def hand_on(shards: dict[str, str]) -> None:
    """Names the servers for the app, and for processes that this one starts."""
    os.environ[URL_VARIABLE] = ",".join(f"{name}={url}" for name, url in shards.items())


def log_at_least_info(settings: Settings) -> None:
    """Logs what the command does, also without -v."""
    if not settings.verbosity:
        logging.getLogger().setLevel(logging.INFO)


def finish(settings: Settings, role: str, code: int) -> int:
    """Prints the end as JSON, if asked for. Returns the exit code."""
    if settings.as_json:
        print_json({"role": role, "exit_code": code})
    return code
