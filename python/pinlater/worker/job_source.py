"""Where a worker's jobs come from and go back to: the protocol that the worker's parts use.

`queue_shard_source.py` meets it with the queue shards of a client. A broker can stand here later, once leases are
renewed by more than queue shards (`lease_renewal.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from pinlater._core import Claim
from pinlater.model.errors import PinLaterError
from pinlater.model.jobs import Ack, Checkpoint, Job
from pinlater.model.limits import Rest


class JobEvents(Protocol):
    """What a source reports while it is open."""

    def on_notification(self, queue: str) -> None:
        """The queue may have jobs."""

    def on_blocking_claim(self, queue: str, answer: Claim | PinLaterError, sent_s: float, after_s: float) -> None:
        """A claim that waited at the server was answered, with one job at most.

        sent_s: when it was sent. after_s: its answer arrived after that (both boot_s). Its lease is unconfirmed.
        """

    def on_limits_changed(self, queue: str) -> None:
        """The limits of the queue may allow more now."""

    def on_pause(self, queue: str) -> None:
        """The claims of the queue pause for a time: what was claimed and has not started goes back."""

    def on_removed(self, channel: bytes, ids: bytes) -> None:
        """Somebody says that running jobs were removed; look them up.

        channel: see store.keys.cancel_channel. ids: joined, 8 bytes each.
        """

    def on_subscribed(self, is_from: Callable[[Job], bool]) -> None:
        """A server is heard again, so events may have been missed. is_from: whether a job came from that server."""


class JobSource(Protocol):
    """What the worker does with it: wait, claim, ack, release, renew, and ask which jobs were cancelled.

    Methods that return refused jobs return those that the worker does not hold any more.
    """

    # wait

    @property
    def ready(self) -> bool:
        """Whether every server is heard."""

    def open(self, events: JobEvents, *, blocking: bool) -> None:
        """Reports events from now on. blocking: claims wait at the servers, too."""

    def stop(self) -> None:
        """Does not subscribe again where a subscription is lost."""

    async def end_waits(self, take: Callable[[str, Claim], None]) -> None:
        """Waits no more, and asks for claims whose answers were lost. take: gets the queue and the claim."""

    async def close(self) -> None:
        """Reports nothing any more."""

    def notify_others(self, queue: str) -> list[Coroutine[Any, Any, None]]:
        """Notifies other workers, a coroutine a shard."""

    # claim

    async def claim(self, queue: str, limit: int, *, wait: bool) -> list[Claim] | None:
        """Claims due jobs. wait: where there are none, waits for events; None: no server of the queue is heard yet. A
        queue whose limits allow nothing now gives no answers.
        """

    def rest(self, queue: str, claims: Sequence[Claim]) -> Rest | None:
        """What kept the last claim, which these are the answers of, from jobs. None: nothing but that none was due."""

    def end_rest(self, queue: str) -> None:
        """Asks for tokens again at the next claim, although a rest has not ended."""

    def ask_again_s(self, queue: str) -> float:
        """When a claim whose answer was lost may be answered (monotonic s); inf: there is none."""

    async def ask_for_lost(self, queue: str) -> list[tuple[Claim, float]]:
        """Asks once for claims whose answers were lost, and claims nothing. Returns those that have jobs, and when each
        was sent (boot_s).
        """

    async def pause(self, queue: str, pause_ms: int, reason: str) -> None:
        """Pauses the claims of a queue for so long, on all shards that answer soon. Raises PinLaterError if not all do.

        reason: why, for those who look at the queue.
        """

    # ack, release, renew

    async def ack(self, succeeded: list[Job], failed: list[Ack]) -> list[Any]:
        """Returns refused ones."""

    async def checkpoint(self, checkpoints: list[Checkpoint]) -> list[Any]:
        """Returns refused ones."""

    async def store_results(self, kept: list[tuple[Job, bytes, int]]) -> list[Job]:
        """Keeps results of jobs, for so many ms. Returns refused jobs."""

    async def notify_failed(self, descriptors: list[str]) -> None:
        """Notifies those that wait for results of jobs that failed for good."""

    async def release(self, jobs: Sequence[Job]) -> list[Any]:
        """Returns refused jobs."""

    async def renew(self, jobs: Sequence[Job]) -> list[Job]:
        """Returns jobs whose lease is lost."""

    # cancelled

    async def existing(self, jobs: Sequence[Job]) -> set[str]:
        """Descriptors of those that were not removed."""
