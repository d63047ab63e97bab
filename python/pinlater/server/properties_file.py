"""The original PinLater's properties file: KEY=VALUE lines that become settings of a server.

Promises that a wrong value raises InvalidArgument, which names the file, the line, the key, what was expected and what
came. Keys that are unknown or not needed here change nothing, and the log names them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import MAX_U32
from pinlater.model.text import did_you_mean
from pinlater.server.passwords import check_hash
from pinlater.server.settings import RANGES

log: Final = logging.getLogger("pinlater.server")

_LINE: Final = re.compile(r"([^\s=:]+)\s*[=:]\s*(.*)")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,15}", re.ASCII)
_HOUR_S: Final = 3600
_MINUTE_S: Final = 60


class _Property(NamedTuple):
    """A line of the file."""

    file: Path
    line: int
    key: str
    value: str

    def wrong(self, expected: str, *, shown: bool = True) -> InvalidArgument:
        """The error for a wrong value."""
        found = f", got {self.value!r:.60}" if shown else ""
        return InvalidArgument(f"{self.file}, line {self.line}: {self.key}: expected {expected}{found}")

    def integer(self, least: int, most: int) -> int:
        """Its value as a number. Raises InvalidArgument."""
        number = int(self.value) if _INTEGER.fullmatch(self.value) else None
        if number is None or not least <= number <= most:
            raise self.wrong(f"an integer from {least:,} to {most:,}")
        return number


#: What a key sets. Raises InvalidArgument.
_Read = Callable[[_Property], dict[str, Any]]


def _number(name: str, unit: int = 1, *, least: int = 1, most: int = MAX_U32) -> _Read:
    """Reads a whole number. name: of the setting. unit: what a 1 in the file is in the setting."""
    lowest, highest = RANGES.get(name, (least, most))
    return lambda line: {name: unit * line.integer(-(-lowest // unit), highest // unit)}


def _path(name: str) -> _Read:
    """Reads a path. A relative one is relative to the directory of the file."""
    return lambda line: {name: str(line.file.absolute().parent / line.value) if line.value else ""}


def _http(line: _Property) -> dict[str, Any]:
    return {"http": f"127.0.0.1:{line.integer(0, 65535)}"}


def _password_hash(line: _Property) -> dict[str, Any]:
    try:
        check_hash(line.value)
    except InvalidArgument:
        raise line.wrong("64 hexadecimal digits, or a hash of argon2id", shown=False) from None
    return {"password_hash": line.value}


def _backend(line: _Property) -> dict[str, Any]:
    if line.value.lower() != "redis":
        raise line.wrong("redis")
    return {}


_KEYS: Final[dict[str, _Read]] = {
    "THRIFT_PORT": _number("port"),
    "OSTRICH_PORT": _http,
    "NUM_PRIORITY_LEVELS": _number("priorities", most=_core.MAX_PRIORITY),
    "BACKEND_MONITOR_JOB_CLAIMED_TIMEOUT_SECONDS": _number("lease_s"),
    "BACKEND_MONITOR_JOB_SUCCEEDED_GC_TTL_HOURS": _number("succeeded_ttl_s", _HOUR_S, least=0),
    "BACKEND_MONITOR_JOB_FAILED_GC_TTL_HOURS": _number("failed_ttl_s", _HOUR_S, least=0),
    "QUEUE_CONFIG_FILE_PATH": _path("queue_config_file"),
    "SHARD_CONFIG_FILE_PATH": _path("shards_file"),
    "ADMIN_PASSWORD_HASH": _password_hash,
    "REDIS_HEALTH_CHECK_CONSECUTIVE_FAILURES": _number("health_failures"),
    "REDIS_HEALTH_CHECK_CONSECUTIVE_SUCCESSES": _number("health_successes"),
    "REDIS_HEALTH_CHECK_PING_INTERVAL_SECONDS": _number("health_interval_s"),
    "MAX_CONCURRENT_REQUESTS": _number("max_requests"),
    "SERVER_CONN_MAX_IDLE_TIME_MINUTES": _number("idle_s", _MINUTE_S),
    "PINLATER_BACKEND": _backend,
}
#: Rates are divided by what the servers claim, not by their number.
_SERVER_SET: Final = ("SERVER_SET_ENABLED", "SERVER_SET_PATH")
#: The original needs these for how it works.
_WITHOUT_MEANING: Final = (
    "BACKEND_CONNECTIONS_PER_SHARD",
    "BACKEND_CONNECTION_MAX_WAIT_MILLIS",
    "BACKEND_DEQUEUE_CONCURRENCY_PER_QUEUE_PER_SHARD",
    "BACKEND_MONITOR_THREAD_DELAY_SECONDS",
    "BACKEND_MONITOR_UPDATE_MAX_SIZE",
    "BACKEND_NUM_AUTO_RETRIES",
    "BACKEND_QUERY_PARALLELISM",
    "BACKEND_SOCKET_TIMEOUT_SECONDS",
)
KNOWN: Final = (*_KEYS, *_SERVER_SET, *_WITHOUT_MEANING)


def read_properties(path: Path) -> dict[str, Any]:
    """The settings in a file, by the names of ServerSettings. Raises InvalidArgument."""
    lines = _lines(path)
    found: dict[str, Any] = {}
    for line in lines.values():
        if line.key in _KEYS:
            found |= _KEYS[line.key](line)
        elif line.key not in KNOWN:
            near = did_you_mean(line.key, KNOWN)
            log.warning("%s, line %d: unknown key %r%s", path, line.line, line.key, f"; {near}" if near else "")
    if unneeded := [key for key in _SERVER_SET if key in lines]:
        log.info("%s: ignored, servers share a rate without them: %s", path, ", ".join(unneeded))
    if left_out := [key for key in _WITHOUT_MEANING if key in lines]:
        log.info("%s: ignored, this server does not need them: %s", path, ", ".join(left_out))
    return found


def _lines(path: Path) -> dict[str, _Property]:
    """The lines with a value, by their keys."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InvalidArgument(f"config: {path} can not be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"config: {path}: expected UTF-8, got {error.reason} at byte {error.start:,}") from None
    found: dict[str, _Property] = {}
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise InvalidArgument(f"{path}, line {number}: expected KEY=VALUE or a comment, got {stripped!r:.60}")
        key, value = match.groups()
        if key in found:
            raise InvalidArgument(f"{path}, line {number}: {key} stands in line {found[key].line} too")
        found[key] = _Property(path, number, key, value)
    return found
