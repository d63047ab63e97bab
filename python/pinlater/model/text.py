"""Text of errors, short enough for a custom status or a log line."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'mail'?`, with the most similar one of the known names; "" if none is similar."""
    import difflib  # only errors need it

    similar = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {similar[0]!r}?" if similar else ""


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
