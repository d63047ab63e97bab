"""`pinlater queue pause`, `resume` and `drain`: stops the claims of a queue, or its new jobs.

Promises that an interrupted drain says who opens the queue, and how to do it by hand.
"""

from __future__ import annotations

import getpass
import math
import socket
import time
from dataclasses import asdict
from typing import Final

import click

from pinlater.cli.command_base import DONE, NO, Command, CommandFailed, usage
from pinlater.cli.doctor.queue_states import queue_states
from pinlater.cli.output import count, duration, jobs, print_json, remark, say
from pinlater.cli.progress import counting
from pinlater.cli.settings import Settings, common_options, json_option
from pinlater.cli.times import SECONDS
from pinlater.client.client import Client
from pinlater.model.jobs import CountsByState
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.opening import drains, open_if_empty, unfinished

#: Seconds between two looks at a queue that is drained.
LOOK_S: Final = 0.5


@click.command("pause", cls=Command)
@click.argument("name")
@click.option("--for", "seconds", type=SECONDS, metavar="TIME", help="End by itself after this. [default: at resume]")
@common_options(hidden=True)
@json_option
@click.pass_obj
def pause(settings: Settings, name: str, seconds: float | None) -> int:
    """Stop giving jobs to workers. Running jobs go on."""
    if seconds is not None and seconds <= 0:
        usage("--for: expected a time above 0, such as 10m")
    with settings.client() as client:
        paused_ms = client.pause_queue(name, seconds, by=_operator())
    if settings.as_json:
        print_json({"queue": name, "paused": paused_ms is None, "paused_ms": paused_ms})
    elif paused_ms is None:
        say(f"queue {name} is paused; pinlater queue resume {name} ends it")
    else:
        later = seconds is not None and paused_ms > math.ceil(seconds * 1000)
        say(f"queue {name} is paused for {duration(paused_ms)}" + (": an earlier pause ends later" if later else ""))
    return DONE


def _operator() -> str:
    """Who pauses a queue. The id of this process would say nothing: it ends at once."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


@click.command("resume", cls=Command)
@click.argument("name")
@common_options(hidden=True)
@json_option
@click.pass_obj
def resume(settings: Settings, name: str) -> int:
    """End the pauses of a queue."""
    with settings.client() as client:
        client.resume_queue(name)
        rate = client.queue_config(name).exact_rate
    if settings.as_json:
        print_json({"queue": name, "paused": False, "paused_ms": 0})
    else:
        say(f"queue {name} is not paused")
    if rate is not None and not rate.count:
        remark(f"it gives no jobs, as its rate is 0: pinlater queue set {name} --rate RATE")
    return DONE


@click.command("drain", cls=Command)
@click.argument("name")
@click.option("--stay-closed", is_flag=True, help="Go on refusing new jobs when it is empty.")
@click.option(
    "--wait",
    "wait_s",
    type=SECONDS,
    default=math.inf,
    metavar="TIME",
    help="Wait this long. [default: until it is empty]",
)
@common_options(hidden=True)
@json_option
@click.pass_obj
def drain(settings: Settings, name: str, stay_closed: bool, wait_s: float) -> int:
    """Refuse new jobs until no job is pending or in progress; then accept them again.

    Exit code 1 if jobs are left after --wait. The queue then refuses new jobs until it is empty.
    """
    with settings.client() as client:
        try:
            client.drain_queue(name, stay_closed=stay_closed)
            if client.queue_config(name).paused:
                remark(f"queue {name} is paused, so its jobs do not run: pinlater queue resume {name}")
            config, left = _wait_until_empty(settings, client, name, time.monotonic() + wait_s)
        except KeyboardInterrupt:
            _explain_stop(settings, name, stay_closed)
            raise
    if settings.as_json:
        print_json({"queue": name, "open": not config.refuse_enqueue, **asdict(left)})
    if config.refuse_enqueue and (unfinished(left) or drains(config)):
        opens = _who_opens(settings, name, stay_closed)
        raise CommandFailed(f"queue {name}: {_in_words(left)}; it refuses new jobs; {opens}", NO)
    if stay_closed and not config.refuse_enqueue:
        raise CommandFailed(f"queue {name}: somebody opened it meanwhile", NO)
    if not settings.as_json:
        say(f"queue {name} {_how_it_ended(config, left)}")
    return DONE


def _how_it_ended(config: QueueConfig, left: CountsByState) -> str:
    if config.refuse_enqueue:
        return "is empty and refuses new jobs"
    if unfinished(left):  # new ones, or somebody did not wait
        return f"is open again, with {jobs(unfinished(left))}"
    return "was empty and is open"


def _wait_until_empty(
    settings: Settings, client: Client, name: str, until_s: float
) -> tuple[QueueConfig, CountsByState]:
    """Waits until the queue is open again, or closed and empty, or the time is over. Returns what it saw last."""
    with counting(f"queue {name}, jobs left", hidden=settings.as_json) as show:
        while True:
            config, left = client.queue_config(name), client.count(name)
            show(unfinished(left))
            if not unfinished(left) and drains(config):
                client.run(lambda deadline_s: open_if_empty(client.session, name, deadline_s))
                config = client.queue_config(name)
            over = time.monotonic() >= until_s or not (unfinished(left) or drains(config))
            if over or not config.refuse_enqueue:
                return config, left
            time.sleep(max(0.0, min(LOOK_S, until_s - time.monotonic())))


def _explain_stop(settings: Settings, name: str, stay_closed: bool) -> None:
    """Says what an interrupted drain leaves behind."""
    with settings.client() as client:  # a call of the other one may have been cut short
        closed = client.queue_config(name).refuse_enqueue
    opens = f"queue {name} refuses new jobs; {_who_opens(settings, name, stay_closed)}"
    remark(opens if closed else f"queue {name} accepts new jobs")


def _in_words(left: CountsByState) -> str:
    if not unfinished(left):
        return "empty, but not opened yet"
    parts = [
        (left.pending, "pending"),
        (left.scheduled, "due later"),
        (left.in_progress, "in progress"),
    ]
    return f"{jobs(unfinished(left))} left ({', '.join(f'{count(number)} {what}' for number, what in parts if number)})"


def _who_opens(settings: Settings, name: str, stay_closed: bool) -> str:
    """Who opens a queue that was not empty yet, and how to do it by hand."""
    by_hand = f"pinlater queue set {name} --no-refuse-enqueue"
    if stay_closed:
        return f"{by_hand} opens it"
    first = queue_states(settings.client_settings(), name)[0]
    opens = "its monitor" if first.monitor_active else "a monitor (a worker runs one, and none is active now)"
    return f"{opens} opens it once it is empty; by hand: {by_hand}"
