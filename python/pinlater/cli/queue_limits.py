"""What the command line says of a queue's limits, pauses and drains.

Promises no control characters in what it shows of others. Risks: it names one reason why a queue gives nothing, and
there may be several.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from pinlater.cli.output import count, duration, jobs, moment, printable
from pinlater.client.client import Client
from pinlater.model.jobs import CountsByState
from pinlater.model.limits import Limit, Rest
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.limits import QueueLimits, rest_of
from pinlater.operations.opening import drains, unfinished


def modes(config: QueueConfig, limits: QueueLimits) -> Iterator[str]:
    """What is special about a queue, in a word or two each: `paused 29 s more`, `100/s`."""
    if config.paused:
        yield "paused"
    elif limits.paused_ms:
        yield f"paused {duration(limits.paused_ms)} more"
    if config.refuse_enqueue:
        yield "draining" if drains(config) else "enqueue refused"
    if (rate := config.exact_rate) is not None:
        yield str(rate) if rate.count else "rate 0"
    if config.max_running is not None:
        yield f"max {config.max_running:,}"


def limit_facts(
    queue: str, config: QueueConfig, limits: QueueLimits, counts: CountsByState
) -> Iterator[tuple[str, str]]:
    """The names and values of `queue info`; nothing for a queue without limits that is open."""
    if (rate := config.exact_rate) is not None:
        yield "rate", f"{rate}, burst {config.burst or rate.default_burst:,}"
        yield "tokens", _tokens(limits)
    if config.max_running is not None:
        yield "in progress", f"{limits.running:,} of {config.max_running:,}"
    if config.is_limited:
        without = "claims go on with a share of the rate" if config.run_on_home_loss else "claims rest"
        yield "home shard", f"{config.home} (without it {without})"
    if config.paused:
        yield "paused", f"until pinlater queue resume {queue}"
    if limits.paused_ms:
        since = moment(limits.paused_since_ms)
        yield "paused", f"{duration(limits.paused_ms)} more, since {since}, by {printable(limits.paused_by)}"
    if drains(config):
        yield "draining", f"{jobs(unfinished(counts))} left, then it accepts new jobs again"


def _tokens(limits: QueueLimits) -> str:
    if limits.tokens is None:
        return "unknown: the home shard is not among the shards of this command"
    asked = "1 process" if limits.processes == 1 else f"{count(limits.processes)} processes"
    return f"{count(limits.tokens)} now, {count(limits.granted)} granted; {asked} asked in the last minute"


def why_empty(client: Client, queue: str) -> str:
    """Why a dequeue of this client returned nothing, as a sentence."""
    config, rest = client.queue_config(queue), rest_of(client.session, queue)
    if rest is not None and rest.limit is Limit.HOME:
        return f"queue {queue} gives no jobs: shard {config.home}, which counts for its limits, does not answer"
    limits, counts = client.queue_limits(queue), client.count(queue)
    return f"queue {queue} {_stopped(queue, config, limits) or _held_back(config, limits, counts, rest)}"


def _stopped(queue: str, config: QueueConfig, limits: QueueLimits) -> str:
    """Why the queue gives nothing at all; "" if it does."""
    if config.paused:
        return f"is paused (pinlater queue resume {queue})"
    if limits.paused_ms:
        by = printable(limits.paused_by)
        return f"is paused {duration(limits.paused_ms)} more, by {by} (pinlater queue resume {queue})"
    if config.exact_rate is not None and not config.exact_rate.count:
        return f"gives no jobs: its rate is 0 (pinlater queue set {queue} --rate RATE)"
    return ""


def _held_back(config: QueueConfig, limits: QueueLimits, counts: CountsByState, rest: Rest | None) -> str:
    """Which limit kept its jobs, or that none is due."""
    if counts.pending and config.max_running is not None and limits.running >= config.max_running:
        return f"has {jobs(limits.running)} in progress, and max_running is {config.max_running:,}"
    if counts.pending and rest is not None and rest.limit is Limit.RATE:
        wait_ms = max(0.0, rest.until_s - time.monotonic()) * 1000
        return f"gives no job now: its rate is {config.rate}, and the next token comes in {duration(wait_ms)}"
    return none_due(counts)


def none_due(counts: CountsByState) -> str:
    """What follows the name of a queue without due jobs."""
    return "has no due jobs" + (f"; {jobs(counts.scheduled)} due later" if counts.scheduled else "")
