"""Server URLs as messages and logs show them: without user, password and options.

Promises that nothing between `://` and the last `@` is shown, no option behind `?`, and no URL that cannot be read.
"""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = "***"
#: Scheme, user and password, address, options. No `@` stands in the last two.
_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*@)?([^@?#]*)([?#][^@]*)?", re.DOTALL)
#: Host and port, and a path. A password without its host is no port.
_ADDRESS: Final = re.compile(r"(\[[^\]/]*\]|[^/:,\[\]]*)(:\d*)?(/.*)?", re.DOTALL)
#: These end a user and a password, unless they are escaped: what follows them may be anything.
_ENDS: Final = re.compile(r"[/?#\[\]]|://")
_OF_A_LINE: Final = re.compile(r"//.*@")
#: Without the punctuation of the sentence around it.
_IN_TEXT: Final = re.compile(r"\w[\w+.-]*://\S*[^\s'\"`:;,.()]")


def shown_url(url: object) -> str:
    """The URL for messages and logs; of one that cannot be read, its scheme at most."""
    if not isinstance(url, str):
        return repr(url) if isinstance(url, int | float | None) else f"a {type(url).__name__}"
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return "(a malformed URL)"
    scheme, secret, address, options = parts[1], parts[2] or "", parts[3], parts[4] or ""
    if _ENDS.search(secret) or "://" in address or not _ADDRESS.fullmatch(address):
        return f"{scheme}://{_HIDDEN}"
    return f"{scheme}://{_HIDDEN + '@' if secret else ''}{address}{options[:1] + _HIDDEN if options else ''}"


def hide_urls(text: str) -> str:
    """The text, with each URL in it as shown_url() shows it."""
    text = _IN_TEXT.sub(lambda found: shown_url(found[0]), text)
    return "".join(_OF_A_LINE.sub(f"//{_HIDDEN}@", line) for line in text.splitlines(keepends=True))
