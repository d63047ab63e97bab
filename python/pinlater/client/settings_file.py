"""The settings file: pinlater.toml, else the table tool.pinlater of pyproject.toml.

It is searched in the current directory, then upward to the root of the repository, which is the directory that has
`.git`. Without a repository only the current directory counts.

Promises that producers and all commands read the same file. Risks: a running program does not see later changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_options import QUEUE_KEYS, Queue
from pinlater.model.text import did_you_mean
from pinlater.model.urls import hide_urls, shown_url
from pinlater.store.archive_url import ArchiveUrl, parse_archive_url, resolve_archive
from pinlater.store.shards import ChosenShards, NamedShards, read_shards, resolve_shards, split_url

#: The files, in the order of the search in each directory.
FILES: Final = ("pinlater.toml", "pyproject.toml")
#: What the table of a queue may have for workers. Its settings are for all who create the queue.
WORKER_KEYS: Final = ("weight", "concurrency", "processes", "memory_mb")


def found() -> tuple[str, dict[str, Any]]:
    """The path of the file and its settings; ("", {}) if there is none. In the current directory the path is a name."""
    for directory in _directories():
        for name in FILES:
            if (path := directory / name).exists() and (table := table_of(path)):
                return str(path), table
    return "", {}


def _directories() -> list[Path]:
    """The directories of the search: the current one, and those above it in the same repository."""
    here = Path()
    try:
        above = here.absolute().parents
    except FileNotFoundError:  # it was removed
        return [here]
    if (here / ".git").exists():
        return [here]
    for count, directory in enumerate(above, 1):
        if (directory / ".git").exists():
            return [here, *above[:count]]
    return [here]


def table_of(path: Path) -> dict[str, Any]:
    """The settings in a file. Raises InvalidArgument for a file that cannot be read."""
    import tomllib  # most programs have no settings file

    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"config: {path} can not be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"config: {path} is not TOML: {error}") from None
    if path.name == "pyproject.toml":
        for name in ("tool", "pinlater"):
            document = document.get(name, {})
            if not isinstance(document, dict):
                raise InvalidArgument(f"{path}: {name}: expected a table, got {document!r:.60}")
    return document


def servers(url: str | None = None, shards: NamedShards | None = None) -> ChosenShards:
    """The shards to connect to: those given, else those of PINLATER_URL, else those of the file, else the default."""
    return resolve_shards(url, shards, _of_found)


def _of_found() -> ChosenShards | None:
    return servers_of(*found())


def servers_of(name: str, table: Mapping[str, Any]) -> ChosenShards | None:
    """The servers that a file names; None if it names none. Its relative paths are relative to its directory.

    name: the path of the file. table: its settings.
    """
    url, shards = table.get("url"), table.get("shards")
    check_servers(url, {} if shards is None else shards, f"{name}: ")
    if url is None and not shards:
        return None
    if url is not None and shards:
        raise InvalidArgument(f"{name}: expected url or shards, got both")
    file = Path(name).absolute()
    if shards:
        return read_shards(shards, f"from {file}", where=f"{name}: ", directory=file.parent)
    return split_url(url, f"from {file}", file.parent)


def archive(url: str | None = None) -> ArchiveUrl | None:
    """The archive: that of `url`, else of PINLATER_ARCHIVE_URL, else of the file, else none."""
    return resolve_archive(url, lambda: archive_of(*found()))


def archive_of(name: str, table: Mapping[str, Any]) -> ArchiveUrl | None:
    """The archive that a file names. Raises InvalidArgument. name: the path of the file. table: its settings."""
    url = table.get("archive")
    return None if url is None else parse_archive_url(url, f"from {Path(name).absolute()}")


def queues() -> dict[str, Queue]:
    """The queues to which the file gives settings, by their names. Raises InvalidArgument for a wrong table."""
    return queues_of(*found())


def queues_of(name: str, table: Mapping[str, Any]) -> dict[str, Queue]:
    """See queues(). name: the path of the file. table: its settings."""
    settings = {
        queue: {key: value for key, value in own.items() if key in QUEUE_KEYS}
        for queue, own in queue_tables(name, table).items()
    }
    return {queue: _with_settings(name, queue, own) for queue, own in settings.items() if own}


def _with_settings(name: str, queue: str, settings: dict[str, Any]) -> Queue:
    try:
        return Queue(queue, **settings)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: queues.{queue}: {error}") from None


def queue_tables(name: str, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of queues in a file. Raises InvalidArgument for anything else there, and for unknown keys."""
    tables = table.get("queues", {})
    if not isinstance(tables, dict):
        raise InvalidArgument(f"{name}: queues: expected a table, got {hide_urls(repr(tables)):.60}")
    for queue, own in tables.items():
        if not isinstance(own, dict):
            raise InvalidArgument(f"{name}: queues.{queue}: expected a table, got {hide_urls(repr(own)):.60}")
        check_keys(name, f" in [queues.{queue}]", own, (*WORKER_KEYS, *QUEUE_KEYS))
    return tables


def check_keys(name: str, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises InvalidArgument for a key that is not known. name: the path of the file. where: the part of it."""
    if unknown := [key for key in table if key not in known]:
        near = did_you_mean(unknown[0], known)
        raise InvalidArgument(
            f"{name}: unknown key {unknown[0]!r}{where}; {near + ' ' if near else ''}expected one of {', '.join(known)}"
        )


def check_servers(url: Any, shards: Any, where: str = "") -> None:
    """Raises InvalidArgument for a URL or shards of a wrong type. where: the start of the message."""
    if not isinstance(url, str | None):
        raise InvalidArgument(f"{where}url: expected a URL, got {shown_url(url)}")
    read_shards(shards, "", where=where)
