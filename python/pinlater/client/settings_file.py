"""The settings file in the current directory: pinlater.toml, else the table tool.pinlater of pyproject.toml.

Promises that producers and all commands read the same file. Risks: a running program does not see later changes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pinlater.model.errors import InvalidArgument
from pinlater.model.urls import hide_urls, shown_url
from pinlater.store.shards import URL_VARIABLE

#: The files, in the order of the search.
FILES: Final = ("pinlater.toml", "pyproject.toml")


def found() -> tuple[str, dict[str, Any]]:
    """The name of the file and its settings; ("", {}) if there is no file."""
    for name in FILES:
        if (path := Path(name)).exists() and (table := table_of(path)):
            return name, table
    return "", {}


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


def servers(
    url: str | None = None, shards: Mapping[str, str] | None = None
) -> tuple[str | None, Mapping[str, str] | None]:
    """The URL or the shards to connect to: those given, else those of the file. Neither if PINLATER_URL is set."""
    if url is not None or shards is not None or os.environ.get(URL_VARIABLE):
        return url, shards
    name, table = found()
    url, shards = table.get("url"), table.get("shards")
    check_servers(url, {} if shards is None else shards, f"{name}: ")
    return url, shards or None


def check_servers(url: Any, shards: Any, where: str = "") -> None:
    """Raises InvalidArgument for a URL or shards of a wrong type. where: the start of the message."""
    if not isinstance(url, str | None):
        raise InvalidArgument(f"{where}url: expected a URL, got {shown_url(url)}")
    if not isinstance(shards, Mapping) or not all(isinstance(each, str) for each in shards.values()):
        raise InvalidArgument(f"{where}shards: expected names and URLs, got {_shown(shards)}")


def _shown(shards: Any) -> str:
    """What stands in the place of shards, without passwords."""
    if not isinstance(shards, Mapping):
        return shown_url(shards)
    wrong = [f"{name} = {shown_url(url)}" for name, url in shards.items() if not isinstance(url, str)]
    return hide_urls(", ".join(wrong))
