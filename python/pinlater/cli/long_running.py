"""Helpers of the commands that run until a signal: run, worker and monitor.

Worker processes get the URLs of the servers in the environment variable PINLATER_URL. Other users of the machine cannot
read the environment of a process, so a password in a URL stays secret.
"""

from __future__ import annotations

import logging
import os

from pinlater.cli.output import print_json
from pinlater.cli.settings import Settings
from pinlater.store.shards import URL_VARIABLE, resolve_shards


def shards_of(settings: Settings) -> dict[str, str]:
    """The URL of each shard's server, by the shard's name."""
    return resolve_shards(*settings.servers())


def export_url(shards: dict[str, str]) -> None:
    """Sets PINLATER_URL for the app, and for the processes that this process starts."""
    os.environ[URL_VARIABLE] = ",".join(f"{name}={url}" for name, url in shards.items())


def log_at_least_info(settings: Settings) -> None:
    """Sets the log level to INFO if the user gave no -v."""
    if not settings.verbosity:
        logging.getLogger().setLevel(logging.INFO)


def finish(settings: Settings, role: str, code: int) -> int:
    """Prints the role and the exit code if the user asked for JSON. Returns the exit code."""
    if settings.as_json:
        print_json({"role": role, "exit_code": code})
    return code
