"""Splits what a call sends into parts, each of which is one script call. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pinlater._core import MAX_BATCH
from pinlater.store.call_batches import MAX_BYTES

T = TypeVar("T")


def in_parts(items: Iterable[T], size: Callable[[T], int]) -> list[list[T]]:
    """The items in parts of at most MAX_BATCH items and MAX_BYTES. A larger item is a part of its own.

    size: of an item, in bytes.
    """
    parts: list[list[T]] = []
    total = 0
    for item in items:
        total += (own := size(item))
        if not parts or len(parts[-1]) == MAX_BATCH or total > MAX_BYTES:
            parts.append([])
            total = own
        parts[-1].append(item)
    return parts
