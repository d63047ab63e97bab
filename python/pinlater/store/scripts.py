"""The Lua scripts: read from `lua/` once, assembled from their parts, and ready to send. No I/O with servers.

Promises that a script's header is true. Its KEYS and ARGV lines define the names that the body uses, so an undeclared
key has no name there. A header that does not fit the body raises an error when the scripts are loaded.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pinlater.store.keys import script_keys

LUA_DIRECTORY: Final = Path(__file__).parents[1] / "lua"

#: A server at its maxmemory refuses scripts of kind "admit" (create, enqueue, prepare, load). All others must still
#: run, so that the queue drains.
_SHEBANGS: Final = {"write": "#!lua flags=allow-oom", "admit": "#!lua", "read": "#!lua flags=no-writes"}
_FIELD: Final = re.compile(r"^-- (KIND|NEEDS|KEYS|ARGV|REPLY)\s+(.*)$", re.MULTILINE)
_HERE: Final = re.compile(r"^ *-- HERE (.+)$", re.MULTILINE)
_NAME: Final = re.compile(r"^[a-zA-Z][a-z_]*$")
#: A line of lib/config_layout.lua, and a name that may stand there.
_BYTES: Final = re.compile(r"^local ([A-Z_, ]+) = ([0-9, ]+)$", re.MULTILINE)
_CONSTANT: Final = re.compile(r"\b[A-Z]+_[A-Z_]+\b")


@dataclass(frozen=True, slots=True)
class Script:
    """The script of one verb.

    `keys` are key names of `keys.py`; one that ends in `*`: a key a priority. The first `common` of them are all
    that most calls need. `arguments` are the names of ARGV; the last may end in `…` (any number). versioned: one of
    them is the configuration's version.
    """

    verb: str
    kind: str
    source: bytes
    sha: bytes
    keys: tuple[str, ...]
    common: int
    arguments: tuple[str, ...]
    versioned: bool

    def names(self, queue: str, shard: str, priorities: int, *, common: bool = False) -> tuple[bytes, ...]:
        """KEYS of a call. common: only the keys that most calls need."""
        first = script_keys(queue, shard, self.keys[: self.common], priorities)
        return first if common else first + script_keys(queue, shard, self.keys[self.common :], priorities)

    @property
    def writes(self) -> bool:
        """Whether the script changes data."""
        return self.kind != "read"

    @property
    def on_lane(self) -> bool:
        """Whether a call needs a lane. Any other script may be repeated."""
        return self.arguments[0] == "lane"


@cache
def load_scripts() -> dict[str, Script]:
    """Every script by verb. Raises ValueError for a header that is incomplete or does not fit its body."""
    return {path.stem: _load(path) for path in sorted(LUA_DIRECTORY.glob("*.lua"))}


def _load(path: Path) -> Script:
    body = path.read_text("utf-8")
    header: dict[str, str] = {}
    for name, text in _FIELD.findall(body):  # a long line may go on in another one of its name
        header[name] = f"{header.get(name, '')} {text}".strip()
    for name in ("KIND", "KEYS", "ARGV", "NEEDS", "REPLY"):
        if name not in header:
            raise ValueError(f"{path.name}: header line {name} is missing")
    if header["KIND"] not in _SHEBANGS:
        raise ValueError(f"{path.name}: KIND: expected one of {', '.join(_SHEBANGS)}, got {header['KIND']!r}")
    common, _, more = (tuple(part.split()) for part in header["KEYS"].partition("|"))
    simple, _, optional = (tuple(part.split()) for part in header["ARGV"].partition("|"))
    keys, arguments = common + more, simple + optional
    code = "\n".join([*map(_part, header["NEEDS"].split()), _strip(_whole(body))])
    _check(path.name, common, more, arguments, code)
    if len(_families(common)) != 1 and more and not optional:
        raise ValueError(f"{path.name}: ARGV: expected a bar, as KEYS has one behind several families")
    names = _common_names(common, more, simple) if more else _key_names(keys)
    lines = [_SHEBANGS[header["KIND"]], "local KEYS, ARGV = KEYS, ARGV", *names, *_argument_names(arguments), code]
    source = "\n".join(line for line in lines if line).encode()
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return Script(path.stem, header["KIND"], source, sha, keys, len(common), arguments, "version" in arguments)


def _part(name: str) -> str:
    return _strip(_whole((LUA_DIRECTORY / "lib" / f"{name}.lua").read_text("utf-8")))


def _whole(code: str) -> str:
    """Replaces each line `-- HERE name…` by those parts: a branch that needs their functions pays for them alone."""
    return _HERE.sub(lambda match: "\n".join(map(_part, match[1].split())), code)


def _strip(code: str) -> str:
    """Removes comment lines and indentation, and replaces names of bytes by their numbers."""
    lines = (line.strip() for line in code.splitlines())
    left = "\n".join(line for line in lines if line and not line.startswith("--"))
    return _CONSTANT.sub(lambda match: _config_layout().get(match[0], match[0]), left)


@cache
def _config_layout() -> dict[str, str]:
    """Names of bytes of the packed configuration, and their positions."""
    code = (LUA_DIRECTORY / "lib" / "config_layout.lua").read_text("utf-8")
    lines = [(names.split(", "), numbers.split(", ")) for names, numbers in _BYTES.findall(code)]
    return {name: number for names, numbers in lines for name, number in zip(names, numbers, strict=True)}


def _key_names(keys: tuple[str, ...]) -> list[str]:
    fixed = [key for key in keys if not key.endswith("*")]
    families = [key[:-1] for key in keys if key.endswith("*")]
    lines = []
    if fixed:
        names = ", ".join(f"key_{key}" for key in fixed)
        lines.append(f"local {names} = " + ", ".join(f"KEYS[{i + 1}]" for i in range(len(fixed))))
    for i, family in enumerate(families):
        lines.append(f"local {family}0 = {len(fixed)} + {i} * (#KEYS - {len(fixed)}) / {len(families)}")
    return lines


def _common_names(common: tuple[str, ...], more: tuple[str, ...], simple: tuple[str, ...]) -> list[str]:
    """As _key_names, where a call may have the common keys alone. Then the other names mean nothing.

    simple: the arguments before a bar; a call with these alone has the common keys alone. Without a bar among the
    arguments, `key_priorities` is the number of priorities only in a call with all keys.
    """
    own, other = _families(common), _families(more)
    fixed, rest = len(common) - len(own), [key for key in more if key not in other]
    priorities = f"(#KEYS - {fixed + len(rest)}) / {len(own) + len(other)}"
    if len(own) > 1:
        priorities = f"#ARGV == {len(simple)} and (#KEYS - {fixed}) / {len(own)} or {priorities}"
    lines = [*_key_names(common[:fixed]), f"local key_priorities = {priorities}"]
    lines += [f"local {key[:-1]}0 = {fixed}{f' + {i} * key_priorities' if i else ''}" for i, key in enumerate(own)]
    if rest:
        positions = ", ".join(f"KEYS[{fixed + 1 + i} + {len(own)} * key_priorities]" for i in range(len(rest)))
        lines.append(f"local {', '.join(f'key_{key}' for key in rest)} = {positions}")
    lines += [
        f"local {key[:-1]}0 = {fixed + len(rest)} + {len(own) + i} * key_priorities" for i, key in enumerate(other)
    ]
    return lines


def _families(keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if key.endswith("*")]


def _argument_names(arguments: tuple[str, ...]) -> list[str]:
    lines = []
    single = [name for name in arguments if not name.endswith("…")]
    if single:
        lines.append(f"local {', '.join(single)} = " + ", ".join(f"ARGV[{i + 1}]" for i in range(len(single))))
    if len(single) < len(arguments):
        lines.append(f"local {arguments[-1][:-1]}0 = {len(single)}")
    return lines


def _check(name: str, common: tuple[str, ...], more: tuple[str, ...], arguments: tuple[str, ...], code: str) -> None:
    """Raises ValueError if the code and the header do not name the same keys and arguments."""
    _check_families(name, common, more)
    _check_keys(name, common + more, code, has_common=bool(more))
    _check_arguments(name, arguments, code)


def _check_families(name: str, common: tuple[str, ...], more: tuple[str, ...]) -> None:
    for part in (common, more):
        families = [key.endswith("*") for key in part]
        if families != sorted(families) or (more and part is common and not any(families)):
            raise ValueError(
                f"{name}: KEYS: expected the key families (x*) last, before a bar at least one, got {' '.join(part)}"
            )


def _check_keys(name: str, keys: tuple[str, ...], code: str, *, has_common: bool) -> None:
    takes_all = "unpack(KEYS)" in code
    for key in keys:
        used = rf"\b{key[:-1]}0\b" if key.endswith("*") else rf"\bkey_{key}\b"
        if not takes_all and not re.search(used, code):
            raise ValueError(f"{name}: KEYS: {key} is never used")
    for key in set(re.findall(r"\bkey_(\w+)", code)):
        if key not in keys and not (has_common and key == "priorities"):
            raise ValueError(f"{name}: KEYS: the code uses {key}, which the header does not name")


def _check_arguments(name: str, arguments: tuple[str, ...], code: str) -> None:
    for argument in arguments:
        word = argument.rstrip("…")
        if not _NAME.match(word):
            raise ValueError(f"{name}: ARGV: expected names, got {argument!r}")
        used_name = word + "0" if argument.endswith("…") else word
        if not re.search(rf"\b{used_name}\b", code):
            raise ValueError(f"{name}: ARGV: {argument} is never used")
