"""The locals that a piece of Lua reads and sets, from its text.

Promises: block scopes, parameters, `for` names, fields and table keys are not taken for locals of others.
Risks: it knows the Lua of this tree (a local is seen from its own line on), not the whole grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pinlater.store.scripts import LUA_DIRECTORY

_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|--.*|[A-Za-z_]\w*|\d+|\.\.\.?|[=~<>]=|\S")
_NAME = re.compile(r"[A-Za-z_]\w*$")
_OPENING, _CLOSING = ("(", "{", "["), (")", "}", "]")
_HERE = re.compile(r"^ *-- HERE (.+)$", re.MULTILINE)
_KEYWORDS = re.compile(
    "(?:and|break|do|else|elseif|end|false|for|function|if|in|local|nil|not|or|repeat|return|then|true|until|while)$"
)
#: What every script has: Lua's own, Redis's, the short names of lib/base.lua, the keys of its header, bytes by name.
_KNOWN = re.compile(
    r"(?:ipairs|pairs|unpack|tonumber|select|math|string|table|redis|struct|KEYS|ARGV|call|pack|unp|sub|byte|floor|concat"
    r"|key_\w+|(?:ready|scheduled|running|failed|succeeded|withdrawn)0|(?:CALL|CLAIMS|CONFIG|ENTRY|FLAG|GRANT|SETTINGS|CARRIED|REMNANT|HEAD)_[A-Z_]+|LONGEST_REST_MS|DATA_FORMAT|FORMAT_ONE_FLAGS)$"
)


def part(name: str) -> str:
    """The text of a part, with the parts that it asks for."""
    return whole((LUA_DIRECTORY / "lib" / f"{name}.lua").read_text("utf-8"))


def whole(code: str) -> str:
    """Replaces each line that asks for parts by those parts."""
    return _HERE.sub(lambda match: "\n".join(map(part, match[1].split())), code)


def names(code: str) -> tuple[set[str], set[str]]:
    """Locals of others that the code reads, and those that are new or have another value after it."""
    reader = _Reader([token for token in _TOKEN.findall(code) if not token.startswith("--")])
    reader.read()
    return {name for name in reader.reads if not _KNOWN.match(name)}, reader.scopes[0] | reader.writes


class _Reader:
    """Walks the tokens once, with a set of names a block."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0
        self.scopes: list[set[str]] = [set()]
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self._loop: list[str] = []  # names of a `for`, until its `do`
        self._open = [""]  # brackets
        self._words: dict[str, Callable[[], None]] = {
            "local": self._local,
            "function": self._function,
            "for": self._for,
            "do": self._begin,
            "then": self._begin,
            "repeat": self._begin,
            "else": self._else,
            "elseif": self._end,
            "end": self._end,
            "until": self._end,
        }

    def read(self) -> None:
        while self._at < len(self._tokens):
            word = self._next()
            if word in self._words:
                self._words[word]()
            elif word in _OPENING:
                self._open.append(word)
            elif word in _CLOSING:
                self._open.pop()
            elif _NAME.match(word) and not _KEYWORDS.match(word):
                self._name(word)

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _name_list(self) -> list[str]:
        found = [self._next()]
        while self._peek() == ",":
            self._next()
            found.append(self._next())
        return found

    def _local(self) -> None:
        if self._peek() == "function":
            self._next()
            self.scopes[-1].add(self._peek())
            self._function()
        else:
            self.scopes[-1].update(self._name_list())

    def _function(self) -> None:
        while self._next() != "(":
            pass
        self.scopes.append(set() if self._peek() == ")" else set(self._name_list()))
        self._next()

    def _for(self) -> None:
        self._loop = self._name_list()

    def _begin(self) -> None:
        self.scopes.append(set(self._loop))
        self._loop = []

    def _end(self) -> None:
        self.scopes.pop()

    def _else(self) -> None:
        self._end()
        self._begin()

    def _name(self, name: str) -> None:
        before = self._tokens[self._at - 2] if self._at > 1 else ""
        is_key = self._open[-1] == "{" and self._peek() == "="
        if before in (".", ":") or is_key or any(name in scope for scope in self.scopes):
            return
        (self.writes if self._is_assigned() else self.reads).add(name)

    def _is_assigned(self) -> bool:
        """`name =`, or `name, other =`."""
        ahead = 0
        while self._open[-1] == "" and self._peek(ahead) == "," and _NAME.match(self._peek(ahead + 1)):
            ahead += 2
        return self._open[-1] == "" and self._peek(ahead) == "="


def header(path: Path) -> tuple[set[str], set[str]]:
    """What a part's header says that it reads and sets."""
    lines = re.findall(r"^-- (reads|sets): +(.*)$", path.read_text("utf-8"), re.MULTILINE)
    reads, sets = (
        {name for kind, names in lines if kind == which for name in names.split()} for which in ("reads", "sets")
    )
    return reads, sets
