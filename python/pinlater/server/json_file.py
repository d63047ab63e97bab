"""Reads a JSON file of the original. No I/O.

Promises that an error has the path of the wrong part, what was expected and what came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pinlater.model.errors import InvalidArgument
from pinlater.model.text import did_you_mean

T = TypeVar("T")


class JsonFile:
    """The document of a file. name: of the file, for messages. Raises InvalidArgument for what is no JSON."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        try:
            self.document: Any = json.loads(data)
        except ValueError as error:  # of UTF-8 too
            raise InvalidArgument(f"{name} is not JSON: {error}") from None
        except RecursionError:
            raise InvalidArgument(f"{name}: expected JSON of a few levels, got more than can be read") from None

    def table(self, path: str, value: Any, keys: Sequence[str]) -> Mapping[str, Any]:
        """An object that has no keys but these. Raises InvalidArgument."""
        if not isinstance(value, dict):
            raise self.wrong(path, f"an object with {', '.join(keys)}", value)
        if unknown := [key for key in value if key not in keys]:
            near = did_you_mean(unknown[0], keys)
            expected = f"{near + ' ' if near else ''}expected one of {', '.join(keys)}"
            raise InvalidArgument(f"{self.name}: {path or 'the document'}: unknown key {unknown[0]!r:.60}; {expected}")
        return value

    def checked(self, path: str, check: Callable[[Any], T], value: Any) -> T:
        """What `check` returns. Its InvalidArgument names the path."""
        try:
            return check(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.name}: {path}: {error}") from None

    def wrong(self, path: str, expected: str, value: Any) -> InvalidArgument:
        """The error of a wrong value."""
        found = "nothing" if value is None else f"{json.dumps(value):.60}"
        return InvalidArgument(f"{self.name}: {path or 'the document'}: expected {expected}, got {found}")
