"""The commands of sorted sets, with the same promises as `commands.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pinlater.memory.store import SYNTAX, Arguments, CommandError, Store
from pinlater.memory.values import SortedSet, number_text


def _zadd(store: Store, arguments: Arguments) -> int:
    key, rest = arguments[0], arguments[1:]
    greater = rest[0].upper() == b"GT"
    rest = rest[greater:]
    if not rest or len(rest) % 2:
        raise CommandError(SYNTAX)
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
    if b"REV" in words:
        if b"BYSCORE" not in words:
            raise CommandError(SYNTAX)
        entries = found.by_score(last, first)[::-1]
    else:
        entries = found.by_score(first, last) if b"BYSCORE" in words else found.by_rank(int(first), int(last))
    if b"LIMIT" in words:
        at = words.index(b"LIMIT")
        offset, count = int(words[at + 1]), int(words[at + 2])
        entries = entries[offset : offset + count] if count >= 0 else entries[offset:]
        del words[at : at + 3]
    if set(words) - {b"BYSCORE", b"REV", b"WITHSCORES"}:
        raise CommandError(SYNTAX)
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
        popped = found.by_rank(-count, -1) if last else found.by_rank(0, count - 1)
        found.cut(popped)
        store.drop_empty(arguments[0])
        return _members(popped[::-1] if last else popped, True)

    return pop


def _zrem(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], SortedSet) or SortedSet()
    removed = sum(found.remove(member) for member in arguments[1:])
    store.drop_empty(arguments[0])
    return removed


def _zremrangebyrank(store: Store, arguments: Arguments) -> int:
    found = store.get(arguments[0], SortedSet) or SortedSet()
    removed = found.cut(found.by_rank(int(arguments[1]), int(arguments[2])))
    store.drop_empty(arguments[0])
    return removed


#: Name -> the function, and the minimum number of arguments.
SORTED_SETS: Final = {
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
}
