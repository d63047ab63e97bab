"""The Redis commands that the scripts, the clients and the tests of queues use, on values in memory.

Promises that each does what Redis documents for the forms it takes, and that an unknown command or form is refused, not
guessed. Risks: what no caller here needs is missing: expiry of keys, most types, memory limits.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from pinlater.memory.values import Hash, SortedSet, number_text, scan_page

V = TypeVar("V", Hash, SortedSet, set[bytes])


class CommandError(Exception):
    """An error reply: its text, code first."""


class Status(bytes):
    """A simple string reply, as +OK."""


OK: Final = Status(b"OK")
_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
_NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
_SYNTAX: Final = "ERR syntax error"
#: The Redis whose commands these are.
VERSION: Final = "7.2.0"

Arguments = Sequence[bytes]


class Clock:
    """The wall clock of a store: the machine's, and what a test moved it by."""

    def __init__(self) -> None:
        self._moved_us = 0

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000 + self._moved_us

    def move(self, seconds: float) -> None:
        """Later; earlier if negative."""
        self._moved_us += round(seconds * 1_000_000)


class Store:
    """Keys and values of one database. publish: hands a message to a channel and returns how many got it."""

    def __init__(self, clock: Clock, publish: Callable[[bytes, bytes], int]) -> None:
        self.clock = clock
        self.publish = publish
        self.values: dict[bytes, Hash | SortedSet | set[bytes]] = {}
        self.calls: Counter[str] = Counter()

    def run(self, name: bytes, arguments: Arguments) -> Any:
        """The reply of a command: bytes, int, None, a list, Status. Raises CommandError."""
        command = _COMMANDS.get(name.upper())
        if command is None:
            raise CommandError(f"ERR unknown command '{name.decode(errors='replace')}', with args beginning with: ")
        function, least = command
        if len(arguments) < least:
            raise CommandError(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        self.calls[name.decode().lower()] += 1
        try:
            return function(self, arguments)
        except ValueError:
            raise CommandError(_NOT_AN_INTEGER) from None
        except IndexError:
            raise CommandError(_SYNTAX) from None

    def get(self, key: bytes, kind: type[V]) -> V | None:
        """The value of a key, if it is there. Raises CommandError for one of another kind."""
        found = self.values.get(key)
        if found is not None and not isinstance(found, kind):
            raise CommandError(_WRONG_TYPE)
        return found

    def make(self, key: bytes, kind: type[V]) -> V:
        """The value of a key, made if it is not there."""
        found = self.get(key, kind)
        if found is None:
            found = kind()
            self.values[key] = found
        return found

    def drop_empty(self, key: bytes) -> None:
        """A key without elements is no key."""
        if not self.values.get(key, True):
            del self.values[key]


# keys, server


def _ping(_: Store, arguments: Arguments) -> bytes:
    return arguments[0] if arguments else Status(b"PONG")


def _time(store: Store, _: Arguments) -> list[bytes]:
    seconds, microseconds = divmod(store.clock.now_us(), 1_000_000)
    return [b"%d" % seconds, b"%d" % microseconds]


def _info(store: Store, arguments: Arguments) -> bytes:
    sections = {
        "server": [f"redis_version:{VERSION}", "arch_bits:64", f"process_id:{os.getpid()}", "run_id:pinlater-memory"],
        "commandstats": [f"cmdstat_{name}:calls={calls}" for name, calls in store.calls.items()],
    }
    wanted = {each.decode().lower() for each in arguments} or {"default"}
    chosen = sections if wanted & {"default", "all", "everything"} else wanted & set(sections)
    return "".join(f"# {name.capitalize()}\r\n" + "\r\n".join(sections[name]) + "\r\n" for name in chosen).encode()


def _config(store: Store, arguments: Arguments) -> Any:
    if arguments[0].upper() != b"RESETSTAT":
        raise CommandError(f"ERR CONFIG {arguments[0].decode()}: not of the memory store")
    store.calls.clear()
    return OK


def _exists(store: Store, keys: Arguments) -> int:
    return sum(key in store.values for key in keys)


def _delete(store: Store, keys: Arguments) -> int:
    return sum(store.values.pop(key, None) is not None for key in keys)


def _flush(store: Store, _: Arguments) -> Status:
    store.values.clear()
    return OK


def _keys(store: Store, arguments: Arguments) -> list[bytes]:
    pattern = arguments[0].decode("latin-1")
    return [key for key in store.values if fnmatch.fnmatchcase(key.decode("latin-1"), pattern)]


def _type(store: Store, arguments: Arguments) -> Status:
    found = store.values.get(arguments[0])
    names = {dict: b"hash", SortedSet: b"zset", set: b"set"}
    return Status(b"none" if found is None else names[type(found)])


def _publish(store: Store, arguments: Arguments) -> int:
    return store.publish(arguments[0], arguments[1])


# hashes


def _hset(store: Store, arguments: Arguments) -> int:
    if len(arguments) % 2 == 0:
        raise CommandError("ERR wrong number of arguments for 'hset' command")
    found = store.make(arguments[0], dict)
    before = len(found)
    found.update(zip(arguments[1::2], arguments[2::2], strict=True))
    return len(found) - before


def _hget(store: Store, arguments: Arguments) -> bytes | None:
    return (store.get(arguments[0], dict) or {}).get(arguments[1])


def _hmget(store: Store, arguments: Arguments) -> list[bytes | None]:
    found = store.get(arguments[0], dict) or {}
    return [found.get(field) for field in arguments[1:]]


def _hgetall(store: Store, arguments: Arguments) -> list[bytes]:
    return [part for pair in (store.get(arguments[0], dict) or {}).items() for part in pair]


def _hkeys(store: Store, arguments: Arguments) -> list[bytes]:
    return list(store.get(arguments[0], dict) or {})


def _hlen(store: Store, arguments: Arguments) -> int:
    return len(store.get(arguments[0], dict) or {})


def _hexists(store: Store, arguments: Arguments) -> int:
    return int(arguments[1] in (store.get(arguments[0], dict) or {}))


def _hdel(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], dict) or {}
    gone = sum(found.pop(field, None) is not None for field in arguments[1:])
    store.drop_empty(arguments[0])
    return gone


def _hincrby(store: Store, arguments: Arguments) -> int:
    key, field, by = arguments
    found = store.make(key, dict)
    value = int(found.get(field, b"0")) + int(by)
    found[field] = b"%d" % value
    return value


def _hscan(store: Store, arguments: Arguments) -> list[Any]:
    found = store.get(arguments[0], dict) or {}
    after, page = scan_page(found, int(arguments[1]), _count(arguments[2:]))
    return [b"%d" % after, [part for field in page for part in (field, found[field])]]


def _zscan(store: Store, arguments: Arguments) -> list[Any]:
    found = store.get(arguments[0], SortedSet) or SortedSet()
    after, page = scan_page(found.scores, int(arguments[1]), _count(arguments[2:]))
    return [b"%d" % after, [part for member in page for part in (member, number_text(found.scores[member]))]]


def _count(options: Arguments) -> int:
    if not options:
        return 10
    if len(options) != 2 or options[0].upper() != b"COUNT":
        raise CommandError(_SYNTAX)
    return int(options[1])


# sets


def _sadd(store: Store, arguments: Arguments) -> int:
    found = store.make(arguments[0], set)
    before = len(found)
    found.update(arguments[1:])
    return len(found) - before


def _smembers(store: Store, arguments: Arguments) -> list[bytes]:
    return list(store.get(arguments[0], set) or ())


def _srem(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], set) or set()
    before = len(found)
    found.difference_update(arguments[1:])
    gone = before - len(found)
    store.drop_empty(arguments[0])
    return gone


# sorted sets


def _zadd(store: Store, arguments: Arguments) -> int:
    key, rest = arguments[0], arguments[1:]
    greater = rest[0].upper() == b"GT"
    rest = rest[greater:]
    if not rest or len(rest) % 2:
        raise CommandError(_SYNTAX)
    pairs = [(_score(score), member) for score, member in zip(rest[::2], rest[1::2], strict=True)]
    found, added = store.make(key, SortedSet), 0
    for score, member in pairs:
        if not greater or score > found.scores.get(member, float("-inf")):
            added += found.add(member, score)
    return added


def _score(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandError("ERR value is not a valid float") from None


def _zscore(store: Store, arguments: Arguments) -> bytes | None:
    return _zmscore(store, arguments)[0]


def _zmscore(store: Store, arguments: Arguments) -> list[bytes | None]:
    found = store.get(arguments[0], SortedSet)
    scores = [found.scores.get(member) for member in arguments[1:]] if found else [None] * (len(arguments) - 1)
    return [None if score is None else number_text(score) for score in scores]


def _zcard(store: Store, arguments: Arguments) -> int:
    return len(store.get(arguments[0], SortedSet) or ())


def _zcount(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], SortedSet)
    return len(found.by_score(arguments[1], arguments[2])) if found else 0


def _zrange(store: Store, arguments: Arguments) -> list[bytes]:
    key, first, last, *options = arguments
    words = [option.upper() for option in options]
    found = store.get(key, SortedSet) or SortedSet()
    entries = found.by_score(first, last) if b"BYSCORE" in words else found.by_rank(int(first), int(last))
    if b"LIMIT" in words:
        at = words.index(b"LIMIT")
        offset, count = int(words[at + 1]), int(words[at + 2])
        entries = entries[offset : offset + count] if count >= 0 else entries[offset:]
        del words[at : at + 3]
    if set(words) - {b"BYSCORE", b"WITHSCORES"}:
        raise CommandError(_SYNTAX)
    return _members(entries, b"WITHSCORES" in words)


def _members(entries: list[tuple[float, bytes]], with_scores: bool) -> list[bytes]:
    if not with_scores:
        return [member for _, member in entries]
    return [part for score, member in entries for part in (member, number_text(score))]


def _zpop(last: bool) -> Callable[[Store, Arguments], list[bytes]]:
    def pop(store: Store, arguments: Arguments) -> list[bytes]:
        found = store.get(arguments[0], SortedSet) or SortedSet()
        count = int(arguments[1]) if len(arguments) > 1 else 1
        if count <= 0:
            return []
        gone = found.by_rank(-count, -1) if last else found.by_rank(0, count - 1)
        found.cut(gone)
        store.drop_empty(arguments[0])
        return _members(gone[::-1] if last else gone, True)

    return pop


def _zrem(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], SortedSet) or SortedSet()
    gone = sum(found.remove(member) for member in arguments[1:])
    store.drop_empty(arguments[0])
    return gone


def _zremrangebyrank(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], SortedSet) or SortedSet()
    gone = found.cut(found.by_rank(int(arguments[1]), int(arguments[2])))
    store.drop_empty(arguments[0])
    return gone


def _zremrangebyscore(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], SortedSet) or SortedSet()
    gone = found.cut(found.by_score(arguments[1], arguments[2]))
    store.drop_empty(arguments[0])
    return gone


#: Name -> the function, and how many arguments it needs.
_COMMANDS: Final[dict[bytes, tuple[Callable[[Store, Arguments], Any], int]]] = {
    b"PING": (_ping, 0),
    b"TIME": (_time, 0),
    b"INFO": (_info, 0),
    b"CONFIG": (_config, 1),
    b"EXISTS": (_exists, 1),
    b"DEL": (_delete, 1),
    b"UNLINK": (_delete, 1),
    b"FLUSHALL": (_flush, 0),
    b"FLUSHDB": (_flush, 0),
    b"KEYS": (_keys, 1),
    b"TYPE": (_type, 1),
    b"PUBLISH": (_publish, 2),
    b"HSET": (_hset, 3),
    b"HGET": (_hget, 2),
    b"HMGET": (_hmget, 2),
    b"HGETALL": (_hgetall, 1),
    b"HKEYS": (_hkeys, 1),
    b"HLEN": (_hlen, 1),
    b"HEXISTS": (_hexists, 2),
    b"HDEL": (_hdel, 2),
    b"HINCRBY": (_hincrby, 3),
    b"HSCAN": (_hscan, 2),
    b"ZSCAN": (_zscan, 2),
    b"SADD": (_sadd, 2),
    b"SMEMBERS": (_smembers, 1),
    b"SREM": (_srem, 2),
    b"ZADD": (_zadd, 3),
    b"ZSCORE": (_zscore, 2),
    b"ZMSCORE": (_zmscore, 2),
    b"ZCARD": (_zcard, 1),
    b"ZCOUNT": (_zcount, 3),
    b"ZRANGE": (_zrange, 3),
    b"ZPOPMIN": (_zpop(False), 1),
    b"ZPOPMAX": (_zpop(True), 1),
    b"ZREM": (_zrem, 2),
    b"ZREMRANGEBYRANK": (_zremrangebyrank, 3),
    b"ZREMRANGEBYSCORE": (_zremrangebyscore, 3),
}

#: What a script that only reads may not call.
WRITING: Final = frozenset(
    {b"DEL", b"UNLINK", b"FLUSHALL", b"FLUSHDB", b"HSET", b"HDEL", b"HINCRBY", b"ZADD", b"ZPOPMIN", b"ZPOPMAX"}
    | {b"SADD", b"SREM", b"ZREM", b"ZREMRANGEBYRANK", b"ZREMRANGEBYSCORE"}
)
