"""The password of deleteQueue.

Promises:
- A password is compared in constant time. Without a configured hash every password is wrong.
- Tries are slowed: a process carries out one at a time, and after wrong ones it waits before the next.
- Tries that wait are few, and a stop does not wait for them. So wrong passwords cannot fill the server with calls.
Risks: while others send wrong passwords, a right one may be refused and has to be sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from contextlib import suppress
from typing import Final

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError

from pinlater.model.errors import InvalidArgument, PinLaterError

log: Final = logging.getLogger("pinlater.server")

#: The original appends this salt to every password. It is public, so these hashes protect little.
_ORIGINAL_SALT: Final = "VHzMjY2Kb9BYlyrbtpyFvnHVPZAvB5Rm"
_ORIGINAL_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
#: Memory (KiB), passes and threads of argon2id.
_HASHER: Final = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
#: The pause behind a wrong password: twice as long after each, up to the most; a right one ends it.
FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 12.0
#: So many tries wait at once. One more is refused.
MOST_TRIES: Final = 8


class TooManyTries(PinLaterError):
    """A password was not compared, because as many others wait as may."""


def hash_password(password: str) -> str:
    """The hash to configure: argon2id, with a salt of its own."""
    return _HASHER.hash(password)


def check_hash(hashed: str) -> None:
    """Raises InvalidArgument for what is no hash of a password. "" is: no password is right."""
    if not hashed or _ORIGINAL_HASH.fullmatch(hashed):
        return
    try:
        extract_parameters(hashed)
        is_known = hashed.startswith("$argon2id$")
    except InvalidHashError:
        is_known = False
    if not is_known:
        raise InvalidArgument(
            "password_hash: expected what `pinlater server --hash-password` prints, or 64 hexadecimal digits, got "
            f"{len(hashed)} other characters"
        )


class Password:
    """The password of a server.

    hashed: what `pinlater server --hash-password` printed, or a hash of the original; "": no password is right.
    """

    def __init__(self, hashed: str) -> None:
        check_hash(hashed)
        self._hashed = hashed
        self._turn, self._closing = asyncio.Lock(), asyncio.Event()
        #: Those that wait, and the one that is carried out.
        self._tries = 0
        #: Wrong passwords since the last right one, and since the start.
        self.wrong_in_a_row = self.wrong = 0

    async def matches(self, password: str | None, queue: str, source: str) -> bool:
        """Whether this is the password. Raises TooManyTries. queue, source: what the log names if it is wrong."""
        if self._tries >= MOST_TRIES:
            raise TooManyTries(f"expected up to {MOST_TRIES} passwords at once, got more; try again in some seconds")
        self._tries += 1
        try:
            return await self._try(password, queue, source)
        finally:
            self._tries -= 1

    def close(self) -> None:
        """Ends the pauses, as the server stops."""
        self._closing.set()

    async def _try(self, password: str | None, queue: str, source: str) -> bool:
        async with self._turn:
            right = password is not None and await asyncio.to_thread(self._is_right, password)
            if right:
                self.wrong_in_a_row = 0
                return True
            self.wrong_in_a_row += 1
            self.wrong += 1
            count = f"{self.wrong_in_a_row} in a row in this process"
            log.warning("deleteQueue of %.80r by source %r: wrong password, %s", queue, source, count)
            await self.pause(min(FIRST_PAUSE_S * 2 ** (self.wrong_in_a_row - 1), MOST_PAUSE_S))
            return False

    async def pause(self, seconds: float) -> None:
        """Waits for so long, or until close()."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _is_right(self, password: str) -> bool:
        if _ORIGINAL_HASH.fullmatch(self._hashed):
            digest = hashlib.sha256((password + _ORIGINAL_SALT).encode()).hexdigest()
            return hmac.compare_digest(digest, self._hashed.lower())
        try:
            return bool(self._hashed) and _HASHER.verify(self._hashed, password)
        except (VerificationError, InvalidHashError):
            return False
