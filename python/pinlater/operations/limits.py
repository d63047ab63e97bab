"""Limits of a queue over all its clients: tokens for claims, pauses, and what is known of them. Flows only, no I/O.

Promises that the jobs which all clients claimed at any moment are at most what the rate gave since its beginning, plus
the burst: the home shard counts, and it gives each token once.
Risks: tokens that a process did not use before it died are lost. Without the home shard claims rest.
"""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pinlater.model.errors import OutcomeUnknown, PartialOutcome, PinLaterError, ServerError
from pinlater.model.limits import MAX_BURST, Limit, Rate, Rest
from pinlater.model.queue_config import MAX_U32, QueueConfig
from pinlater.model.times import Seconds, milliseconds
from pinlater.operations.queue_shards import ASK_AGAIN_S, known_queue_shards
from pinlater.store.allowance import Allowance, now_ms
from pinlater.store.effects import Argument, Flow, Sleep, all_of, complete
from pinlater.store.requests import read, write
from pinlater.store.shards import QueueShard, Session

#: A grant is awaited for so long: its tokens are valid for a second.
GRANT_PATIENCE_S: Final = 1.0
#: While one call of a client asks for tokens, the others look so often whether it got some.
LOOK_AGAIN_S: Final = 0.002
_GRANT: Final = struct.Struct(">I6s6sI")
_NO_TIME: Final = b"\xff" * 6
_STATE: Final = struct.Struct(">B6sIII6s6s6s")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """The limits of a queue, as its shards know them now.

    tokens: claims that may come at once. None: the queue has no rate, or its home shard is not known here.
    granted: tokens that processes hold, at most.
    processes: clients that asked for tokens in the last minute.
    running: jobs in progress, of max_running if the queue has that limit.
    paused_ms: how long a pause still lasts; 0: there is none that ends by itself.
    paused_by: who asked for it. paused_since_ms: since when, in ms since 1970.
    """

    tokens: int | None
    granted: int
    processes: int
    running: int
    paused_ms: int
    paused_since_ms: int
    paused_by: str


# tokens


def rest_of(session: Session, queue: str) -> Rest | None:
    """Why and until when this client claims nothing from a queue; None: it may claim."""
    config = session.known_config(queue)
    if config is None or config.rate is None or config.home not in session.shards:
        return None
    allowance = session.queue_shard(queue, config.home).allowance
    return allowance.rest if allowance.rests else None


def end_rest(session: Session, queue: str) -> None:
    """Lets this client ask again at once: the limits changed, or may have."""
    for queue_shard in session.queue_shards(queue):
        if queue_shard.allowance.waits:
            queue_shard.allowance.rest = None


def take_tokens(
    session: Session, home: QueueShard, config: QueueConfig, want: int, sighted: int, deadline_s: float
) -> Flow[int]:
    """Up to `want` tokens for claims. With none the allowance of the home shard has a rest.

    sighted: how many jobs are due, as far as is known.
    """
    allowance = home.allowance
    while allowance.asks and allowance.bucket.held < want and time.monotonic() < deadline_s:
        yield Sleep(LOOK_AGAIN_S)
    is_away = home.silent_until_s > time.monotonic()
    if not is_away:
        allowance.end_flow()
    tokens = allowance.bucket.take(want, now_ms())
    if tokens == want or allowance.waits:
        return tokens
    if is_away:
        return tokens or _without_home(home, config, want)
    return tokens + (yield from _more_tokens(session, home, config, want - tokens, sighted - tokens, deadline_s))


def _more_tokens(
    session: Session, home: QueueShard, config: QueueConfig, want: int, sighted: int, deadline_s: float
) -> Flow[int]:
    """Tokens of a new grant."""
    allowance = home.allowance
    asked, asked_ms = allowance.next_grant(want, sighted), now_ms()
    by_s = min(deadline_s, time.monotonic() + GRANT_PATIENCE_S)
    allowance.asks = True
    try:
        reply = yield from write(home, "grant", _ask(session, asked, place=allowance.has_place), by_s, patient=False)
    except (ServerError, OutcomeUnknown):
        home.silent_until_s = time.monotonic() + ASK_AGAIN_S
        return _without_home(home, config, want)
    finally:
        allowance.asks = False
    tokens, valid, wait, processes = _GRANT.unpack(reply[2])
    allowance.processes = processes
    allowance.granted(tokens, asked_ms + int.from_bytes(valid, "big"))
    if any(wait) and wait != _NO_TIME:
        allowance.rest = Rest(Limit.RATE, time.monotonic() + int.from_bytes(wait, "big") / 1000)
    return allowance.bucket.take(want, now_ms())


def _ask(session: Session, want: int, *, unused: int = 0, place: bool = False) -> list[Argument]:
    return [session.id, want, unused, int(place)]


def _without_home(home: QueueShard, config: QueueConfig, want: int) -> int:
    """Tokens while the home shard does not answer: none, or this client's part of the rate."""
    allowance, rate = home.allowance, config.exact_rate
    if not (config.run_on_home_loss and allowance.processes and rate is not None):
        allowance.rest = Rest(Limit.HOME, home.silent_until_s)
        return 0
    share = rate.count, min(MAX_U32, rate.per_ms * allowance.processes)
    burst = max(1, (config.burst or rate.default_burst) // allowance.processes)
    allowance.flow(*share, min(burst, MAX_BURST))
    tokens = allowance.bucket.take(want, now_ms())
    if not tokens:
        wait_ms = allowance.bucket.wait_ms(1, now_ms())
        until_s = home.silent_until_s if wait_ms is None else time.monotonic() + wait_ms / 1000
        allowance.rest = Rest(Limit.RATE, until_s)
    return tokens


def return_tokens(session: Session, queue: str, deadline_s: float) -> Flow[None]:
    """Gives the tokens that this client holds back to the home shard. If that fails, they are lost."""
    config = session.known_config(queue)
    if config is None or config.rate is None or config.home not in session.shards:
        return
    home = session.queue_shard(queue, config.home)
    home.allowance.end_flow()
    unused = home.allowance.bucket.empty(now_ms())
    if unused and home.silent_until_s <= time.monotonic():
        by_s = min(deadline_s, time.monotonic() + GRANT_PATIENCE_S)
        with suppress(PinLaterError):
            yield from write(home, "grant", _ask(session, 0, unused=unused), by_s, patient=False)


def allowance_of(home: QueueShard) -> Allowance:
    """The allowance of the configuration that is known of the home shard."""
    if home.stored is not None:
        home.allowance.begin(home.stored.version)
    return home.allowance


# pauses


def pause_for(session: Session, queue: str, pause: Seconds, by: str, deadline_s: float) -> Flow[int]:
    """Stops the claims of a queue for a time, on every shard. A pause that ends later stays. Returns the ms that it
    lasts from now.

    by: who asks for it, for `queue info`.
    """
    pause_ms = milliseconds("pause", pause, least=0.001)
    return (yield from _pause(session, queue, pause_ms, by, deadline_s))


def end_pause(session: Session, queue: str, deadline_s: float) -> Flow[None]:
    """Ends a pause that would end later by itself."""
    yield from _pause(session, queue, 0, "", deadline_s)


def _pause(session: Session, queue: str, pause_ms: int, by: str, deadline_s: float) -> Flow[int]:
    yield from known_queue_shards(session, queue, deadline_s)
    queue_shards = session.queue_shards(queue)  # also those that do not answer: the caller learns that they go on
    arguments: list[Argument] = [pause_ms, by.encode("utf-8", "replace")[:300]]
    flows = [
        complete(write(queue_shard, "pause", arguments, deadline_s), lambda reply: int.from_bytes(reply[2], "big"))
        for queue_shard in queue_shards
    ]
    try:
        return (yield from all_of(flows, max, lambda index: [queue_shards[index].shard.name]))
    except PartialOutcome as error:
        where = f"on shard {', '.join(error.done)} alone" if error.done else "on no shard yet"
        message = f"pause of queue {queue!r}: carried out {where}: {error.failed[0][1]}"
        raise PartialOutcome(message, error.result, error.done, error.failed, error.unknown) from None


# looking


def queue_limits(session: Session, queue: str, deadline_s: float) -> Flow[QueueLimits]:
    """What the shards of a queue know of its limits."""
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    replies = yield from all_of([read(queue_shard, "limits", [], deadline_s) for queue_shard in queue_shards], list)
    parts = [unpack_limits(reply[2]) for reply in replies]
    paused = max(parts, key=lambda part: part.paused_ms)
    rate: Rate | None = None
    if queue_shards[0].stored is not None:
        rate = queue_shards[0].stored.config.exact_rate
    counted = [part.tokens for part in parts if part.tokens is not None]
    return QueueLimits(
        tokens=None if rate is None or not counted else sum(counted),
        granted=sum(part.granted for part in parts),
        processes=sum(part.processes for part in parts),
        running=sum(part.running for part in parts),
        paused_ms=paused.paused_ms,
        paused_since_ms=paused.paused_since_ms,
        paused_by=paused.paused_by,
    )


def unpack_limits(packed: bytes) -> QueueLimits:
    """Reads the reply of the script `limits`: what one queue shard knows."""
    is_home, tokens, granted, processes, running, *times = _STATE.unpack_from(packed)
    begin_ms, end_ms, server_ms = (int.from_bytes(each, "big") for each in times)
    return QueueLimits(
        tokens=int.from_bytes(tokens, "big") if is_home else None,
        granted=granted,
        processes=processes,
        running=running,
        paused_ms=max(0, end_ms - server_ms),
        paused_since_ms=begin_ms,
        paused_by=packed[_STATE.size :].decode("utf-8", "replace"),
    )
