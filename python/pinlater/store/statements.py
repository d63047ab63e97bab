"""The SQL of the archive: named statements and migrations, read from `mysql_archive/` once. No I/O with servers.

Promises that each statement has a name of its own and a line that says what it takes and gives.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

SQL_DIRECTORY: Final = Path(__file__).parents[1] / "mysql_archive"
_NAME: Final = re.compile(r"^-- name: (.*)$", re.MULTILINE)
_WORD: Final = re.compile(r"[a-z]+(_[a-z]+)*")
_VALUES: Final = re.compile(r"\bVALUES \(([%s, ]+)\)$")
_WORKS_FROM: Final = re.compile(r"-- works with programs from: (\d+)\n")


class Statement(NamedTuple):
    """One statement. about: what it takes and gives. row: of an INSERT, its values as `(%s, %s)`, else ""."""

    name: str
    about: str
    sql: str
    row: str

    @property
    def writes(self) -> bool:
        """Whether it changes data."""
        return not self.sql.startswith("SELECT")


class Migration(NamedTuple):
    """One step of the schema. works_from: the first program that works on it, by the number of its last migration."""

    number: int
    works_from: int
    statements: list[str]


@cache
def load_statements() -> dict[str, Statement]:
    """Every statement by name. Raises ValueError for a file of another form."""
    _, *parts = _NAME.split((SQL_DIRECTORY / "statements.sql").read_text("utf-8"))
    found: dict[str, Statement] = {}
    for name, text in zip(parts[0::2], parts[1::2], strict=True):
        lines = text.strip().splitlines()
        about = " ".join(line.removeprefix("-- ") for line in lines if line.startswith("-- "))
        sql = "\n".join(line for line in lines if not line.startswith("-- "))
        if not _WORD.fullmatch(name) or name in found or not about:
            raise ValueError(f"statements.sql: {name}: expected a name of its own, and a line that says what it gives")
        row = _VALUES.search(sql)
        found[name] = Statement(name, about, sql, f"({row[1]})" if row else "")
    return found


@cache
def load_migrations() -> list[Migration]:
    """The migrations in order. Raises ValueError for a gap in their numbers, or a file of another form."""
    migrations = [_migration(path) for path in sorted(SQL_DIRECTORY.glob("[0-9]*_*.sql"))]
    if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise ValueError("mysql_archive: expected migrations 1, 2, 3 …")
    return migrations


def _migration(path: Path) -> Migration:
    text = path.read_text("utf-8")
    works_from = _WORKS_FROM.match(text)
    if works_from is None:
        raise ValueError(f"{path.name}: expected `-- works with programs from: N` as its first line")
    statements = [part.strip() for part in text[works_from.end() :].split(";\n")]
    return Migration(int(path.name.partition("_")[0]), int(works_from[1]), [part for part in statements if part])
