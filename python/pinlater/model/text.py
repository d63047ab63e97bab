"""Text of errors, short enough for a custom status or a log line."""

from __future__ import annotations


def describe(error: BaseException, limit_bytes: int) -> str:
    """An error's type and text, in so many bytes of UTF-8 at most; no zero bytes, further lines indented."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # an error that can not be printed must not keep its job
        text = f"{type(error).__name__}: (its text can not be had)"
    return clip("\n  ".join(clip(text, limit_bytes).splitlines()), limit_bytes)


def clip(text: str, limit_bytes: int) -> str:
    """The text as a custom status takes it: so many bytes of UTF-8 at most, no zero bytes."""
    return text.replace("\0", "").encode("utf-8", "replace")[:limit_bytes].decode("utf-8", "ignore")
