"""Checks of the archive: its MySQL, the disk of each Redis that it waits for, and the queues that use it.

Promises to change nothing, and to need no more rights than a program that uses the archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from pinlater.archive.settle import NOT_DURABLE
from pinlater.cli.doctor.check_result import ERROR, NOTE, OK, WARNING, CheckResult
from pinlater.cli.doctor.reached_server import ReachedServer
from pinlater.cli.output import size
from pinlater.model.errors import ArchiveError
from pinlater.model.queue_config import QueueConfig
from pinlater.model.urls import hide_user, shown_url
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.archive_schema import schema_of

#: The first versions that run the archive's statements.
FIRST_VERSIONS: Final = {"MySQL": (8, 0), "MariaDB": (10, 6)}
#: Bytes of a statement beside its body, which is written in hexadecimal digits, as the status is.
PACKET_SLACK: Final = 8 * 1024
_SETTINGS: Final = (
    "SELECT @@version, @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@max_allowed_packet, @@read_only"
)
#: By innodb_flush_log_at_trx_commit: what a power cut can lose.
_FLUSHES: Final = {0: "a killed server or a power cut", 2: "a power cut"}


class MySQLSettings(NamedTuple):
    """What the server says of itself. max_allowed_packet: bytes. is_read_only: for most users."""

    version: str
    flush_log: int
    has_binary_log: bool
    sync_binlog: int
    max_allowed_packet: int
    is_read_only: bool


class ArchiveChecks:
    """The checks of one run.

    database: None: the command has no archive.
    """

    def __init__(self, database: ArchiveDatabase | None) -> None:
        self._database = database
        self._settings: MySQLSettings | None = None

    def of_database(self) -> Iterator[CheckResult]:
        """Checks MySQL, and closes the database. Comes before the checks of queues."""
        if (database := self._database) is None:
            return
        subject = f"archive {shown_url(database.url.url)}"
        yield CheckResult(OK, subject, "chosen", database.url.origin)
        try:
            self._settings = settings = database.transaction(_read)
            trouble = schema_of(database).trouble
        except ArchiveError as error:
            found, _, advice = str(error).removeprefix(f"archive {database.url}: ").partition("; ")
            yield CheckResult(ERROR, subject, "reachable", found, advice or "start it, or correct the URL")
            return
        finally:
            database.close()
        yield CheckResult(OK, subject, "reachable", "answers, login accepted")
        yield _check_version(subject, settings)
        found, _, advice = trouble.partition("; ")
        yield CheckResult(ERROR if trouble else OK, subject, "tables", found or "of this version", advice)
        if settings.is_read_only:
            advice = "SET GLOBAL read_only = 0, or name the primary in the URL"
            yield CheckResult(WARNING, subject, "role", "it is read-only, so most users cannot move jobs", advice)
        yield from _check_durability(subject, settings)

    def of_server(self, server: ReachedServer) -> Iterator[CheckResult]:
        """Checks whether the archive can wait for the disk of a Redis."""
        if self._database is not None:
            yield _check_disk(server)

    def of_queue(self, queue: str, config: QueueConfig) -> Iterator[CheckResult]:
        """Checks a queue that exists. config: the one of its first shard."""
        subject = f"queue {queue}"
        if config.is_archived and self._database is None:
            found = "jobs move by marks or a horizon, and this command knows no archive"
            advice = "name it: --archive, PINLATER_ARCHIVE_URL or TOML, for monitors too"
            yield CheckResult(NOTE, subject, "archive", found, advice)
        if self._settings is None:
            return
        needed, most = 2 * config.body_limit + PACKET_SLACK, self._settings.max_allowed_packet
        if needed > most:
            found = f"bodies may have {size(config.body_limit)}; max_allowed_packet is {size(most)}"
            advice = f"SET GLOBAL max_allowed_packet = {needed}, or more; a larger job ends each spill that meets it"
            yield CheckResult(WARNING, subject, "archive", found, advice)


def _read(sql: Statements) -> MySQLSettings:
    [(version, flush_log, log_bin, sync_binlog, packet, read_only)] = sql.run_text(_SETTINGS)
    return MySQLSettings(version, flush_log, bool(log_bin), sync_binlog, packet, read_only not in (0, "OFF"))


def _check_version(subject: str, settings: MySQLSettings) -> CheckResult:
    product = "MariaDB" if "MariaDB" in settings.version else "MySQL"
    number = re.match(r"(\d+)\.(\d+)[.\d]*", settings.version)
    found = f"{product} {number[0] if number else settings.version}"
    first = FIRST_VERSIONS[product]
    if number is not None and (int(number[1]), int(number[2])) >= first:
        return CheckResult(OK, subject, "version", found)
    return CheckResult(ERROR, subject, "version", found, f"the archive needs {product} {first[0]}.{first[1]} or later")


def _check_durability(subject: str, settings: MySQLSettings) -> Iterator[CheckResult]:
    if settings.flush_log == 1:
        yield CheckResult(OK, subject, "durability", "each COMMIT is on disk")
    else:
        lost_by = _FLUSHES.get(settings.flush_log, "a power cut")
        found = f"innodb_flush_log_at_trx_commit is {settings.flush_log}: {lost_by} can lose jobs of the last second"
        advice = "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and put it in the server's file"
        yield CheckResult(WARNING, subject, "durability", found, advice)
    if settings.has_binary_log and settings.sync_binlog != 1:
        found = f"sync_binlog is {settings.sync_binlog}: a power cut can lose the newest jobs"
        advice = "SET GLOBAL sync_binlog = 1, and put it in the server's file"
        yield CheckResult(WARNING, subject, "binary log", found, advice)


def _check_disk(server: ReachedServer) -> CheckResult:
    if not int(server.info.get("aof_enabled", 0)):
        return server.result(ERROR, "archive", "it keeps nothing on disk, so nothing moves", NOT_DURABLE)
    try:
        server.redis.waitaof(0, 0, 1)
    except NoPermissionError:
        return server.result(ERROR, "archive", "this user may not wait for the disk", "ACL SETUSER … +waitaof")
    except ResponseError:
        policy = server.config("appendfsync")
        if policy == "always":
            return server.result(OK, "archive", "each change is on disk when it is answered")
        if policy is None:
            return server.result(ERROR, "archive", "this user may not see appendfsync", "ACL SETUSER … +config|get")
        return server.result(ERROR, "archive", f"without WAITAOF, and appendfsync is {policy}", NOT_DURABLE)
    except (RedisError, OSError) as error:
        return server.result(WARNING, "archive", f"unknown: {hide_user(str(error))}", "check it by hand")
    return server.result(OK, "archive", "it can wait for the disk")
