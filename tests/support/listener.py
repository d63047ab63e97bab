"""A channel that a real connection listens on.

Promises that each message of the channel is counted, also one that is published to nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import redis


@dataclass
class Listener:
    """A channel that a real connection listens on."""

    client: redis.Redis
    channel: bytes
    pubsub: Any = field(init=False)

    def __post_init__(self) -> None:
        self.pubsub = self.client.pubsub()  # type: ignore[no-untyped-call]
        self.pubsub.subscribe(self.channel)
        assert self._next()["type"] == "subscribe"

    def notifications(self) -> int:
        """The number of messages up to now: those before a marker that is sent now."""
        self.client.publish(self.channel, b"marker")
        count = 0
        while self._next()["data"] != b"marker":
            count += 1
        return count

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] | None = self.pubsub.get_message(timeout=30)
        assert message is not None, "expected a message within 30 s"
        return message
