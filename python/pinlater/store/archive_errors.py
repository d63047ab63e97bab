"""What MySQL's errors mean for the archive: one table.

Promises that a message names the archive without user and password, and the error by number and, if it has one, name.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pinlater.model.errors import (
    ArchiveDuplicate,
    ArchiveError,
    ArchiveNotReady,
    ArchiveRefused,
    ArchiveUnavailable,
)
from pinlater.store.archive_url import ArchiveUrl


class ArchiveConflict(ArchiveUnavailable):
    """Another transaction was in the way. The driver runs a transaction again that meets this."""


class ArchiveLost(ArchiveUnavailable):
    """The connection is lost, or leads to a server that is of no use. The driver drops it."""


#: What to do, behind the server's text.
_MIGRATE: Final = "run `pinlater archive migrate`"
_GRANTS: Final = "docs/archive.md lists the rights that the archive needs"
_PACKET: Final = "raise max_allowed_packet of the server"
#: Numbers of MySQL's and MariaDB's errors -> the error to raise, and advice. All others are an ArchiveError.
_TABLE: Final[dict[int, tuple[type[ArchiveError], str]]] = {
    1205: (ArchiveConflict, ""),  # lock wait timeout
    1213: (ArchiveConflict, ""),  # deadlock
    1062: (ArchiveDuplicate, ""),
    # read-only servers; after a failover the name may lead elsewhere
    1290: (ArchiveLost, ""),
    1792: (ArchiveLost, ""),
    1836: (ArchiveLost, ""),
    # the connection ended or never was
    0: (ArchiveLost, ""),  # PyMySQL: it was closed
    1053: (ArchiveLost, ""),  # shutdown
    1152: (ArchiveLost, ""),
    1158: (ArchiveLost, ""),
    1159: (ArchiveLost, ""),
    1160: (ArchiveLost, ""),
    1161: (ArchiveLost, ""),
    1927: (ArchiveLost, ""),  # MariaDB: connection killed
    2002: (ArchiveLost, ""),
    2003: (ArchiveLost, ""),
    2006: (ArchiveLost, ""),
    2013: (ArchiveLost, ""),
    3169: (ArchiveLost, ""),  # MySQL: session killed
    4031: (ArchiveLost, ""),  # MySQL: idle for too long
    # no room
    1021: (ArchiveUnavailable, "the disk of the server is full"),
    1040: (ArchiveUnavailable, "raise max_connections of the server"),
    1114: (ArchiveUnavailable, "the disk or a table space of the server is full"),
    1203: (ArchiveUnavailable, "raise max_user_connections of the server"),
    1226: (ArchiveUnavailable, "raise the limit of the user"),
    1317: (ArchiveUnavailable, ""),  # KILL QUERY
    1969: (ArchiveUnavailable, ""),  # MariaDB: max_statement_time
    3024: (ArchiveUnavailable, ""),  # MySQL: max_execution_time
    # logins and rights
    1044: (ArchiveRefused, _GRANTS),
    1045: (ArchiveRefused, "check user and password"),
    1130: (ArchiveRefused, ""),
    1142: (ArchiveRefused, _GRANTS),
    1143: (ArchiveRefused, _GRANTS),
    1227: (ArchiveRefused, _GRANTS),
    1698: (ArchiveRefused, "check user and password"),
    1820: (ArchiveRefused, ""),  # the password has expired
    2026: (ArchiveRefused, "expected a server with TLS"),
    # the schema
    1049: (ArchiveNotReady, f"create the database, then {_MIGRATE}"),
    1054: (ArchiveNotReady, _MIGRATE),
    1146: (ArchiveNotReady, _MIGRATE),
    1153: (ArchiveError, _PACKET),
}
#: How servers name the user of a connection.
_USER: Final = re.compile(r"'[^']*'@'[^']*'")


def from_mysql(error: Exception, url: ArchiveUrl) -> ArchiveError:
    """The ArchiveError for an error of PyMySQL."""
    number, text = _number_and_text(error)
    kind, advice = _TABLE.get(number, (ArchiveError, "") if number > 0 else _without_number(error))
    name = _name(number)
    shown = _USER.sub("'***'", text).rstrip(".")
    code = f" ({name} {number})" if name else f" (error {number})" if number > 0 else ""
    return kind(f"archive {url}: {shown}{code}{'; ' if advice else ''}{advice}")


def too_large(url: ArchiveUrl, size: int, limit: int) -> ArchiveError:
    """For a statement that the server would not take; it would end the connection."""
    return ArchiveError(f"archive {url}: a statement has {size} bytes, the server takes {limit}; {_PACKET}")


def _without_number(error: Exception) -> tuple[type[ArchiveError], str]:
    """An error that MySQL did not send: PyMySQL did not understand what came, or lacks a package for the login."""
    return (ArchiveRefused if type(error) is RuntimeError else ArchiveLost), ""


def _number_and_text(error: Exception) -> tuple[int, str]:
    """-1: it has no number."""
    first = error.args[0] if error.args else None
    if not isinstance(first, int) or isinstance(error, OSError):
        return -1, str(error) or type(error).__name__
    return first, str(error.args[1]) if len(error.args) > 1 and error.args[1] else "the connection is closed"


def _name(number: int) -> str:
    from pymysql.constants import CR, ER

    names: dict[int, str] = {
        value: name for part in (ER, CR) for name, value in vars(part).items() if _is_error(name, value)
    }
    return names.get(number, "")


def _is_error(name: str, value: Any) -> bool:
    return isinstance(value, int) and not name.startswith("_") and not name.endswith(("_FIRST", "_LAST"))
