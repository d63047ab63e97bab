"""Values of keys in the memory store: hashes and sorted sets, scans over them, and numbers as text.

Promises Redis's order (by score, then by bytes), and that a scan in pages returns every field that exists from its
start to its end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Final

Hash = dict[bytes, bytes]

#: A scan returns a smaller hash as one page, as Redis does with packed hashes.
ONE_PAGE: Final = 512


class SortedSet:
    """Members with scores, in order. A change costs time in proportion to the size, which tests do not notice."""

    __slots__ = ("_order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self._order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._order)

    def add(self, member: bytes, score: float) -> bool:
        """Sets the score of a member. Returns whether the member is new."""
        old = self.scores.get(member)
        if old == score:
            return False
        if old is not None:
            del self._order[bisect_left(self._order, (old, member))]
        self.scores[member] = score
        insort(self._order, (score, member))
        return old is None

    def remove(self, member: bytes) -> bool:
        """Removes a member. Returns whether it existed."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self._order[bisect_left(self._order, (score, member))]
        return True

    def by_rank(self, first: int, last: int) -> list[tuple[float, bytes]]:
        """Entries from rank to rank, both included. A negative rank counts from the end."""
        count = len(self._order)
        first = max(first + count, 0) if first < 0 else first
        last = last + count if last < 0 else last
        return self._order[first : last + 1] if last >= 0 else []

    def by_score(self, lowest: bytes, highest: bytes) -> list[tuple[float, bytes]]:
        """Entries from score to score, in Redis's notation: `(` excludes the score, `-inf` and `+inf`."""
        first = _edge(self._order, lowest, lower=True)
        return self._order[first : max(first, _edge(self._order, highest, lower=False))]

    def cut(self, entries: Iterable[tuple[float, bytes]]) -> int:
        """Removes consecutive entries. Returns their number."""
        row = list(entries)
        if row:
            first = bisect_left(self._order, row[0])
            del self._order[first : first + len(row)]
            for _, member in row:
                del self.scores[member]
        return len(row)


def _edge(order: list[tuple[float, bytes]], bound: bytes, *, lower: bool) -> int:
    excluded = bound[:1] == b"("
    score = float(bound[1:] if excluded else bound)
    bisect = bisect_left if excluded is not lower else bisect_right
    return bisect(order, score, key=lambda entry: entry[0])


def scan_page(fields: Iterable[bytes], cursor: int, count: int) -> tuple[int, list[bytes]]:
    """The next cursor (0: the end), and the fields of a page.

    Fields are ordered by a number of their own, so that changes between two pages do not move other fields.
    """
    numbered = sorted((_number(field), field) for field in fields)
    if len(numbered) <= ONE_PAGE and not cursor:
        return 0, [field for _, field in numbered]
    first = bisect_left(numbered, (cursor, b""))
    last = first + max(1, count)
    while first < last < len(numbered) and numbered[last][0] == numbered[last - 1][0]:
        last += 1
    return (numbered[last][0] if last < len(numbered) else 0), [field for _, field in numbered[first:last]]


def _number(field: bytes) -> int:
    return (hash(field) & (1 << 48) - 1) + 1


def number_text(value: float) -> bytes:
    """A number as Redis writes it, in a score or in a script's argument."""
    return b"%d" % value if abs(value) < 1e17 and value == int(value) else b"%.17g" % value
