"""The base of both clients: their settings, their session, and errors that can be resolved through them.

Promises that a wrong setting raises InvalidArgument before any server is contacted.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Final, Self

from pinlater.model.errors import (
    InvalidArgument,
    OutcomeUnknown,
    PartialDelete,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
)
from pinlater.model.queue_config import check_source
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.archive_url import ArchiveUrl, resolve_archive
from pinlater.store.shards import ChosenShards, NamedShards, Session, resolve_shards

#: A client repeats a request for at most this long. The request slot keeps the answer for an hour.
MAX_TIMEOUT_S: Final = 600.0
#: A supervisor sets this variable to another value in each of its processes, so that no two have the same source.
MARK_VARIABLE: Final = "PINLATER_MARK"


class ClientSettings:
    """The settings of a client; see Client."""

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: NamedShards | None = None,
        source: str | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 5.0,
        archive: str | ArchiveUrl | None = None,
    ) -> None:
        self.session = Session(resolve_shards(url, shards))
        self.source = source if source is not None else source_of(os.getpid(), os.environ.get(MARK_VARIABLE, ""))
        check_source(self.source)
        self.timeout_s = check_seconds("timeout_s", timeout_s)
        self.timeouts = (
            check_seconds("connect_timeout_s", connect_timeout_s),
            check_seconds("read_timeout_s", read_timeout_s),
        )
        #: The archive's database; None: the client has no archive.
        self.database: ArchiveDatabase | None = None
        if (found := archive if isinstance(archive, ArchiveUrl) else resolve_archive(archive)) is not None:
            self._use(found)

    @property
    def chosen(self) -> ChosenShards:
        """The shards and their URLs, and where the choice came from."""
        return self.session.chosen

    def _use(self, archive: ArchiveUrl) -> None:
        from pinlater.archive.backlog import ArchiveBacklog  # most clients have no archive

        self.database = ArchiveDatabase(archive, connect_timeout_s=self.timeouts[0])
        self.session.backlog = ArchiveBacklog(self.database)

    def within(self, timeout_s: float) -> Self:
        """These settings with another timeout_s. They share the session."""
        other = copy(self)
        other.timeout_s = check_seconds("timeout_s", timeout_s)
        return other

    def deadline_s(self) -> float:
        """The deadline of a call that starts now (monotonic seconds)."""
        return time.monotonic() + self.timeout_s


class BaseClient:
    """The settings and the session of a client."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.session = settings.session

    def within(self, timeout_s: float) -> Self:
        """This client with another time limit of each call, in seconds. Both share their connections: close one.

        On an AsyncClient, what one of them sends does not join what the other sends.
        """
        other = copy(self)
        other.settings = self.settings.within(timeout_s)
        self._separate(other)
        return other

    def _separate(self, other: Self) -> None:
        """Gives a copy of this client what it may not share."""


def source_of(pid: int, mark: str) -> str:
    """The default source of a process on this host. mark: the process's value of MARK_VARIABLE, or ""."""
    return f"python:{socket.gethostname()}:{pid}" + (f":{mark}" if mark else "")


def make_resolvable(error: PinLaterError, drive: Callable[[Any], Any]) -> None:
    """Gives the client's `run` to each unknown outcome in an error. resolve() uses it to ask for the answer."""
    for part in _parts(error):
        if isinstance(part, OutcomeUnknown):
            part.drive = drive


def _parts(error: PinLaterError) -> Iterable[Any]:
    match error:
        case PartialEnqueue():
            return error.results
        case PartialDelete():
            return error.errors.values()
        case PartialOutcome():
            return [part for _, part in error.unknown]
    return [error]


def check_seconds(name: str, value: object, expected: str = "seconds") -> float:
    """The value, if it is a time that a call may take, in seconds. Raises InvalidArgument.

    expected: what the parameter takes, for the error.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 < value <= MAX_TIMEOUT_S
    ):
        raise InvalidArgument(
            f"{name}: expected {expected}, more than 0 and at most {MAX_TIMEOUT_S:.0f}, got {value!r}"
        )
    return float(value)
