"""Large numbers as people write them: `5M`, `500k`. One way on the command line, in TOML and in programs."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

from pinlater.model.errors import InvalidArgument

_FACTORS: Final = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def parse_count(text: str) -> int:
    """The number that `5M`, `500k`, `1_000` or `1,000` is. Raises InvalidArgument."""
    number, factor = text.replace("_", "").replace(",", ""), 1
    if number[-1:] in _FACTORS:
        number, factor = number[:-1], _FACTORS[number[-1:]]
    try:
        return int(Decimal(number) * factor)
    except (InvalidOperation, ValueError, OverflowError):
        raise InvalidArgument(f"expected a number such as 5M, 500k or 1000, got {text!r:.60}") from None
