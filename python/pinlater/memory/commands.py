"""The Redis commands that scripts, clients and tests of queues use, on values in memory.

Promises that each command does what Redis documents, and that unknown commands and options are refused. Risks: most
commands, options and types are missing, and so are memory limits, because no caller needs them.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable
from typing import Any, Final

from pinlater.memory.sorted_sets import SORTED_SETS
from pinlater.memory.store import OK, SYNTAX, Arguments, CommandError, Status, Store
from pinlater.memory.values import SortedSet, number_text, scan_page

_NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
#: The version of Redis that the commands follow, and that INFO reports.
VERSION: Final = "7.2.0"


def run(store: Store, name: bytes, arguments: Arguments) -> Any:
    """Runs a command. Returns its reply: bytes, int, None, a list or a Status. Raises CommandError."""
    command = _COMMANDS.get(name.upper())
    if command is None:
        raise CommandError(f"ERR unknown command '{name.decode(errors='replace')}', with args beginning with: ")
    function, least = command
    if len(arguments) < least:
        raise CommandError(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
    store.calls[name.decode().lower()] += 1
    try:
        return function(store, arguments)
    except ValueError:
        raise CommandError(_NOT_AN_INTEGER) from None
    except IndexError:
        raise CommandError(SYNTAX) from None


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


#: What CONFIG GET knows. Every write counts as on disk, as nothing outlives the store.
_SETTINGS: Final = {b"appendonly": b"yes", b"appendfsync": b"always"}


def _config(store: Store, arguments: Arguments) -> Any:
    if arguments[0].upper() == b"GET":
        return [part for name in arguments[1:] if name in _SETTINGS for part in (name, _SETTINGS[name])]
    if arguments[0].upper() != b"RESETSTAT":
        raise CommandError(f"ERR CONFIG {arguments[0].decode()}: not in the memory store")
    store.calls.clear()
    return OK


def _waitaof(_: Store, arguments: Arguments) -> list[int]:
    _local, _replicas, _timeout = map(int, arguments)
    return [1, 0]


def _exists(store: Store, keys: Arguments) -> int:
    return sum(key in store.values for key in keys)


def _delete(store: Store, keys: Arguments) -> int:
    for key in keys:
        store.expiries.pop(key, None)
    return sum(store.values.pop(key, None) is not None for key in keys)


def _flush(store: Store, _: Arguments) -> Status:
    store.clear()
    return OK


def _keys(store: Store, arguments: Arguments) -> list[bytes]:
    return [key for key in store.values if _matches(key, arguments[0])]


def _scan(store: Store, arguments: Arguments) -> list[Any]:
    options = dict(zip([name.upper() for name in arguments[1::2]], arguments[2::2], strict=True))
    if set(options) - {b"MATCH", b"COUNT"}:
        raise CommandError(SYNTAX)
    after, page = scan_page(store.values, int(arguments[0]), int(options.get(b"COUNT", b"10")))
    return [b"%d" % after, [key for key in page if _matches(key, options.get(b"MATCH", b"*"))]]


def _matches(key: bytes, pattern: bytes) -> bool:
    return fnmatch.fnmatchcase(key.decode("latin-1"), pattern.decode("latin-1"))


def _type(store: Store, arguments: Arguments) -> Status:
    found = store.values.get(arguments[0])
    names = {dict: b"hash", SortedSet: b"zset", set: b"set", list: b"list", bytes: b"string"}
    return Status(b"none" if found is None else names[type(found)])


def _publish(store: Store, arguments: Arguments) -> int:
    return store.publish(arguments[0], arguments[1])


def _pubsub(store: Store, arguments: Arguments) -> list[bytes | int]:
    if arguments[0].upper() != b"NUMSUB":
        raise CommandError(f"ERR PUBSUB {arguments[0].decode(errors='replace')}: not in the memory store")
    return [part for channel in arguments[1:] for part in (channel, store.listeners(channel))]


def _pexpire(store: Store, arguments: Arguments) -> int:
    if len(arguments) != 2:
        raise CommandError(SYNTAX)
    if arguments[0] not in store.values:
        return 0
    store.expiries[arguments[0]] = store.clock.now_us() + 1000 * int(arguments[1])
    return 1


def _pttl(store: Store, arguments: Arguments) -> int:
    end_us = store.expiries.get(arguments[0])
    if end_us is not None:
        return (end_us - store.clock.now_us()) // 1000
    return -1 if arguments[0] in store.values else -2


def _set(store: Store, arguments: Arguments) -> Status:
    if len(arguments) > 2:
        raise CommandError(SYNTAX)
    store.values[arguments[0]] = arguments[1]
    return OK


def _get(store: Store, arguments: Arguments) -> bytes | None:
    return store.get(arguments[0], bytes)


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


def _hstrlen(store: Store, arguments: Arguments) -> int:
    return len(_hget(store, arguments) or b"")


def _hdel(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], dict) or {}
    removed = sum(found.pop(field, None) is not None for field in arguments[1:])
    store.drop_empty(arguments[0])
    return removed


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
        raise CommandError(SYNTAX)
    return int(options[1])


# lists


def _rpush(store: Store, arguments: Arguments) -> int:
    found = store.make(arguments[0], list)
    found += arguments[1:]
    return len(found)


def _llen(store: Store, arguments: Arguments) -> int:
    return len(store.get(arguments[0], list) or ())


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
    removed = before - len(found)
    store.drop_empty(arguments[0])
    return removed


#: Name -> the function, and the minimum number of arguments.
_COMMANDS: Final[dict[bytes, tuple[Callable[[Store, Arguments], Any], int]]] = {
    b"PING": (_ping, 0),
    b"TIME": (_time, 0),
    b"INFO": (_info, 0),
    b"CONFIG": (_config, 1),
    b"WAITAOF": (_waitaof, 3),
    b"EXISTS": (_exists, 1),
    b"DEL": (_delete, 1),
    b"UNLINK": (_delete, 1),
    b"FLUSHALL": (_flush, 0),
    b"FLUSHDB": (_flush, 0),
    b"KEYS": (_keys, 1),
    b"SCAN": (_scan, 1),
    b"TYPE": (_type, 1),
    b"SET": (_set, 2),
    b"GET": (_get, 1),
    b"PUBLISH": (_publish, 2),
    b"PUBSUB": (_pubsub, 1),
    b"PEXPIRE": (_pexpire, 2),
    b"RPUSH": (_rpush, 2),
    b"LLEN": (_llen, 1),
    b"PTTL": (_pttl, 1),
    b"HSET": (_hset, 3),
    b"HGET": (_hget, 2),
    b"HMGET": (_hmget, 2),
    b"HGETALL": (_hgetall, 1),
    b"HKEYS": (_hkeys, 1),
    b"HLEN": (_hlen, 1),
    b"HEXISTS": (_hexists, 2),
    b"HDEL": (_hdel, 2),
    b"HSTRLEN": (_hstrlen, 2),
    b"HINCRBY": (_hincrby, 3),
    b"HSCAN": (_hscan, 2),
    b"ZSCAN": (_zscan, 2),
    b"SADD": (_sadd, 2),
    b"SMEMBERS": (_smembers, 1),
    b"SREM": (_srem, 2),
    **SORTED_SETS,
}

#: Commands that a read-only script may not call.
WRITING: Final = frozenset(
    {b"DEL", b"UNLINK", b"FLUSHALL", b"FLUSHDB", b"HSET", b"HDEL", b"HINCRBY", b"ZADD", b"ZPOPMIN", b"ZPOPMAX"}
    | {b"SET", b"RPUSH", b"PEXPIRE", b"SADD", b"SREM", b"ZREM", b"ZREMRANGEBYRANK"}
)
