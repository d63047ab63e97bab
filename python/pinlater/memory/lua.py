"""Runs Lua scripts in this process, on a memory store, as Redis runs them.

Promises:
- Replies of commands and results of scripts are converted as Redis documents.
- Numbers keep all their digits.
- A read-only script cannot write.

Risks: scripts have only `redis.call`, `redis.error_reply` and `struct`. `struct` packs only big-endian unsigned numbers
and strings of a fixed size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from pinlater.memory.commands import WRITING, run
from pinlater.memory.store import CommandError, Status, Store
from pinlater.memory.values import number_text
from pinlater.model.errors import InvalidArgument

_SETUP: Final = rb"""
local execute = ...
local sub, byte, char, floor, concat, unpack = string.sub, string.byte, string.char, math.floor, table.concat, unpack

redis = { call = execute }
function redis.error_reply(text) return { err = text } end
function redis.acl_check_cmd() return true end

local formats = {}

-- Kind and size of each value of a format.
local function parse(format)
  local items, at = {}, sub(format, 1, 1) == '>' and 2 or 1
  while at <= #format do
    local kind, digits = string.match(format, '^([BIc])(%d*)', at)
    local size = kind == 'B' and 1 or tonumber(digits)
    if not size or kind == 'I' and (size > 6 or sub(format, 1, 1) ~= '>') then
      error('struct: not in the memory store: ' .. format)
    end
    items[#items + 1] = { text = kind == 'c', size = size }
    at = at + 1 + #digits
  end
  formats[format] = items
  return items
end

struct = {}

function struct.unpack(format, data, at)
  local items, values = formats[format] or parse(format), {}
  at = at or 1
  for i = 1, #items do
    local after = at + items[i].size
    if after - 1 > #data then error("bad argument #2 to 'unpack' (data string too short)") end
    if items[i].text then
      values[i] = sub(data, at, after - 1)
    else
      local value = 0
      for k = at, after - 1 do value = value * 256 + byte(data, k) end
      values[i] = value
    end
    at = after
  end
  values[#items + 1] = at
  return unpack(values, 1, #items + 1)
end

function struct.pack(format, ...)
  local items, parts = formats[format] or parse(format), {}
  for i = 1, #items do
    local value, size = select(i, ...), items[i].size
    if items[i].text then
      if #value < size then error("bad argument #" .. i + 1 .. " to 'pack' (string too short)") end
      parts[i] = sub(value, 1, size)
    else
      local bytes = {}
      value = floor(value)
      for k = size, 1, -1 do bytes[k], value = char(value % 256), floor(value / 256) end
      parts[i] = concat(bytes)
    end
  end
  return concat(parts)
end

function struct.size(format)
  local size = 0
  for _, item in ipairs(formats[format] or parse(format)) do size = size + item.size end
  return size
end
"""


def require_lupa() -> Any:
    """The module of Lua 5.1, which Redis uses. Raises InvalidArgument if lupa is not installed."""
    try:
        from lupa import lua51
    except ImportError:
        raise InvalidArgument(
            "the memory store: expected the package lupa, it is not installed: pip install lupa"
        ) from None
    return lua51


class Scripts:
    """The scripts that are loaded into a store."""

    def __init__(self, store: Store) -> None:
        lua51 = require_lupa()
        self._store = store
        self._lua = lua51.LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
        self._error: type[Exception] = lua51.LuaError
        self._type_of: Any = lua51.lua_type
        self._loaded: dict[bytes, tuple[Any, bool]] = {}
        self._reads = False
        setup: Any = self._lua.compile(_SETUP)
        setup(self._call)

    def load(self, source: bytes) -> bytes:
        """SCRIPT LOAD. Returns the digest. Raises CommandError for a script that does not compile."""
        digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        if digest not in self._loaded:
            first, _, rest = source.partition(b"\n") if source.startswith(b"#!") else (b"", b"", source)
            try:
                # replaces the first line (the shebang), so line numbers in errors are those of the source
                function = self._lua.compile(b"local KEYS, ARGV = ... " + (b"\n" if first else b"") + rest)
            except self._error as error:
                raise CommandError(f"ERR Error compiling script (new function): {error}") from None
            self._loaded[digest] = function, b"no-writes" in first
        return digest

    def flush(self) -> None:
        """SCRIPT FLUSH."""
        self._loaded.clear()

    def knows(self, digest: bytes) -> bool:
        """SCRIPT EXISTS."""
        return digest.lower() in self._loaded

    def run(self, digest: bytes, arguments: Sequence[bytes]) -> Any:
        """EVALSHA. arguments: the number of keys, the keys, then ARGV. Raises CommandError."""
        digest = digest.lower()
        if digest not in self._loaded:
            raise CommandError("NOSCRIPT No matching script. Please use EVAL.")
        function, self._reads = self._loaded[digest]
        count = int(arguments[0])
        keys, values = arguments[1 : 1 + count], arguments[1 + count :]
        table = self._lua.table_from
        try:
            return self._reply(function(table(keys), table(values)))
        except _Refusal:
            raise
        except CommandError as error:
            raise CommandError(f"{error} script: {digest.decode()}, on @user_script.") from None
        except self._error as error:
            raise CommandError(f"ERR {error} script: {digest.decode()}, on @user_script.") from None

    def _call(self, name: bytes, *arguments: Any) -> Any:
        """redis.call."""
        if self._reads and name in WRITING:
            raise CommandError("ERR Write commands are not allowed from read-only scripts.")
        texts = [value if type(value) is bytes else _text(value) for value in arguments]
        return self._to_lua(run(self._store, name, texts))

    def _to_lua(self, reply: Any) -> Any:
        if reply is None:
            return False
        if isinstance(reply, Status):
            return self._lua.table_from({b"ok": bytes(reply)})
        if isinstance(reply, list):
            return self._lua.table_from([self._to_lua(each) if type(each) is not bytes else each for each in reply])
        return reply

    def _reply(self, value: Any) -> Any:
        """Converts a script's result to a reply."""
        if isinstance(value, bytes) or value is None:
            return value
        if isinstance(value, bool):
            return 1 if value else None
        if isinstance(value, int | float):
            return int(value)
        if self._type_of(value) != "table":
            return None
        if value[b"err"] is not None:
            raise _Refusal(value[b"err"].decode("utf-8", "replace"))
        if value[b"ok"] is not None:
            return Status(value[b"ok"])
        found = []
        for i in range(1, len(value) + 1):
            if value[i] is None:
                break
            found.append(self._reply(value[i]))
        return found


class _Refusal(CommandError):
    """An error reply that a script returned."""


def _text(value: Any) -> bytes:
    """Converts an argument that is not a string."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number_text(value)
    raise CommandError("ERR Lua redis lib command arguments must be strings or integers")
