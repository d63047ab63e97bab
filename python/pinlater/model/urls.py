"""Server URLs as messages and logs show them: without user, password and options.

Promises that nothing between `://` and the last `@` is shown, no option behind `?`, and of a URL that cannot be read
its scheme at most. hide_user() is for a server's text, which names the user too.
"""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = "***"
#: Scheme, user and password, address, options. No `@` stands in the last two.
_PARTS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*@)?([^@?#]*)([?#][^@]*)?", re.DOTALL)
#: Host, port and database. A password without its host is no port, and no database.
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]*(?:%\w+)?\]|[\w.-]*)(:\d*)?(/*\d*/*)")
#: A path on this machine, without the characters that divide options. No user and password stand before it.
_PATH: Final = re.compile(r"[\w .~+%,-]*(/[\w ./~+%,:=-]*)?")
_OF_PATHS: Final = ("unix", "embedded")
#: Host, port and the name of a database.
_NAMED: Final = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[\w.-]*)(:\d*)?(/[\w$-]*)?")
#: These end a user and a password, unless they are escaped: what follows them may be anything.
_ENDS: Final = re.compile(r"[/?#\[\]]|://")
_OF_A_LINE: Final = re.compile(r"//.*@")
#: Without the punctuation of the sentence around it.
_IN_TEXT: Final = re.compile(r"\w[\w+.-]*://\S*[^\s'\"`:;,.()]")
#: How servers name the user of a connection. Each one has the user `default`.
_USER: Final = re.compile(r"\b(User) (?!default )\S+(?= has no permissions)")
#: A user and a password with line breaks, and no other space.
_OVER_LINES: Final = re.compile(r"(\w[\w+.-]*://)\S*(?:[\n-\r\x1c-\x1e\x85\u2028\u2029]+\S*)+@")


def shown_url(url: object) -> str:
    """The URL for messages and logs; of one that cannot be read, its scheme at most."""
    if not isinstance(url, str):
        return repr(url) if isinstance(url, int | float | None) else f"a {type(url).__name__}"
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return "(a malformed URL)"
    scheme, secret, address, options = parts[1], parts[2] or "", parts[3], parts[4] or ""
    expected = _PATH if scheme.lower() in _OF_PATHS else _HOST
    if scheme.lower() == "mysql" and (secret or ":" not in address):  # else `:1/name` may be of a password
        expected = _NAMED
    if _ENDS.search(secret) or not expected.fullmatch(address):
        return f"{scheme}://{_HIDDEN}"
    return f"{scheme}://{_HIDDEN + '@' if secret else ''}{address}{options[:1] + _HIDDEN if options else ''}"


def hide_urls(text: str) -> str:
    """The text, with each URL in it as shown_url() shows it."""
    text = _OVER_LINES.sub(rf"\1{_HIDDEN}@", text)
    text = _IN_TEXT.sub(lambda found: shown_url(found[0]), text)
    return "".join(_OF_A_LINE.sub(f"//{_HIDDEN}@", line) for line in text.splitlines(keepends=True))


def hide_user(text: str) -> str:
    """The text of a server's refusal, without the name of the connection's user, which its URL has."""
    return _USER.sub(rf"\1 {_HIDDEN}", text)
