"""What one session may claim from a limited queue, kept at the queue's home shard. No I/O.

Promises that tokens and rests of one configuration end with it.
"""

from __future__ import annotations

import time
from typing import Final

from pinlater._core import TokenBucket
from pinlater.model.clocks import boot_s
from pinlater.model.limits import Limit, Rest

#: A session asks for more tokens than it needs now if it used up its last grant within this time.
FAST_S: Final = 0.1
#: The most tokens of one grant.
MAX_GRANT: Final = 10_000


class Allowance:
    """The tokens of the last grant, and until when claims rest.

    bucket: the tokens. Its clock: `now_ms`.
    rest: why and until when the session claims nothing, once its tokens are used; None: it may claim.
    asks: whether a call asks for tokens just now. Others wait for it: each would get a place of its own in the line,
        and the session would rest until the last one.
    has_place: the time of the last rest came, so that this session is expected to ask.
    processes: how many processes asked lately, as the home shard said; 0: it has said nothing yet.
    flows: whether the tokens are a share of the rate, taken while the home shard was away. It knows nothing of them.
    """

    __slots__ = ("_asked_s", "_size", "_version", "asks", "bucket", "flows", "has_place", "processes", "rest")

    def __init__(self) -> None:
        self._version = b""
        self.begin(b"")

    def begin(self, version: bytes) -> None:
        """Forgets what belongs to another version of the configuration."""
        if version != self._version or not version:
            self._version = version
            self.bucket = TokenBucket()
            self.rest: Rest | None = None
            self.asks = self.has_place = self.flows = False
            self.processes = self._size = 0
            self._asked_s = float("-inf")

    @property
    def waits(self) -> bool:
        """Whether it is not yet time to ask for tokens."""
        if self.rest is not None and self.rest.until_s <= time.monotonic():
            self.has_place, self.rest = self.rest.limit is Limit.RATE, None
        return self.rest is not None

    @property
    def rests(self) -> bool:
        """Whether it is not yet time to ask for tokens, and there are none."""
        return self.waits and self.bucket.wait_ms(1, now_ms()) != 0

    def next_grant(self, want: int, most: int) -> int:
        """How many tokens to ask for: `want`, or more if the last grant was used up fast, but not more than `most`."""
        now_s = time.monotonic()
        self._size = 2 * self._size if now_s - self._asked_s < FAST_S else max(want, self._size // 2)
        self._size = max(want, min(self._size, most, MAX_GRANT))
        self._asked_s = now_s
        return self._size

    def flow(self, count: int, per_ms: int, burst: int) -> None:
        """From now on tokens flow in, without the home shard."""
        self.bucket.flow(count, per_ms, burst, now_ms())
        self.flows = True

    def end_flow(self) -> None:
        """Drops the tokens that flowed in: the home shard is back, and its account has them too."""
        if self.flows:
            self.bucket, self.flows = TokenBucket(), False

    def granted(self, tokens: int, until_ms: int) -> None:
        """Keeps the tokens of a grant. A smaller one than asked for leaves nothing to ask more of."""
        self.bucket.grant(tokens, until_ms)
        self.has_place = self.flows = False
        self._size = min(self._size, tokens)


def now_ms() -> int:
    """The clock of the buckets: ms since the machine started."""
    return int(boot_s() * 1000)
