"""`pinlater job`: claims, ends, finds, counts, retries and removes jobs.

Promises to show the token of each claimed job, so that the user can ack or release the job. Risks: nothing renews a
claim of this command. When its lease ends, another worker gets the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, TypeVar

import click

from pinlater._core import parse_descriptor
from pinlater.cli.command_base import DONE, NO, Group, usage
from pinlater.cli.output import (
    MOST_ARGUMENTS,
    body_text,
    claim_of,
    claimed_text,
    duration,
    info_document,
    job_document,
    jobs,
    moment,
    preview,
    print_facts,
    print_json,
    print_table,
    printable,
    remark,
    say,
    task_info,
)
from pinlater.cli.queue import STATES, counted
from pinlater.cli.settings import Settings
from pinlater.model.jobs import Ack, Job, State
from pinlater.tasks.handles import TaskInfo

F = TypeVar("F", bound=Callable[..., Any])


class _State(click.Choice[str]):
    """A state. Scheduled jobs are pending ones, which people look for under their own name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See click.Choice."""
        if value == "scheduled":
            lists = ctx is not None and ctx.info_name == "ls"
            self.fail(f"scheduled jobs are pending: --state pending{' --future' if lists else ''}", param, ctx)
        return super().convert(value, param, ctx)


_STATE: Final = _State([state.value for state in State])
TOKEN_BYTES: Final = 8
#: Default of --limit for a command on a whole queue.
MOST: Final = 1000
#: Jobs that `job ls` reads at once: a body may be as large as its queue allows.
PAGE: Final = 100
#: Heading of the column of bodies. The key says whether a job of a task is among the jobs; its arguments are shown.
BODIES: Final = {False: "body", True: "arguments"}


@click.group("job", cls=Group)
def job() -> None:
    """Jobs: enqueue, dequeue, ack, ls, lookup, retry, …"""


@job.verb("dequeue")
@click.argument("queue")
@click.option("--limit", type=click.IntRange(1), default=1, help="The most jobs to claim. [default: 1]")
@click.option("--wait", type=float, metavar="SECONDS", help="Wait this long for a job.")
@click.option("--dry-run", is_flag=True, help="Show the jobs, and claim none.")
def dequeue(settings: Settings, queue: str, limit: int, wait: float | None, dry_run: bool) -> int:
    """Claim due jobs, highest priority first. End each with `job ack CLAIM`, or release it with `job release CLAIM`."""
    with settings.client() as client:
        found = client.dequeue(queue, limit, wait=wait, dry_run=dry_run)
        if settings.as_json:
            for each in found:
                print_json(job_document(each))
            return DONE
        if not found:
            _explain_empty(queue, client.queue_config(queue).paused, client.count(queue).scheduled)
            return DONE
        _print_claimed(found)
        if not dry_run:
            held = duration(client.queue_config(queue).lease_ms)
            remark(f"held for {held}; next: pinlater job ack {' '.join(map(claim_of, found))}")
    return DONE


def _explain_empty(queue: str, paused: bool, scheduled: int) -> None:
    later = f"; {jobs(scheduled)} due later" if scheduled else ""
    why = f"is paused (pinlater queue set {queue} --no-paused)" if paused else f"has no due jobs{later}"
    say(f"queue {queue} {why}")


def _print_claimed(found: list[Job]) -> None:
    name = "claim" if claim_of(found[0]) else "descriptor"
    if len(found) == 1:
        each = found[0]
        attempt = f"{each.attempt} of {each.attempts_allowed}"
        named = (name, claim_of(each) or each.descriptor)
        facts = [named, ("attempt", attempt), ("created", moment(each.created_ms))]
        print_facts([*facts, ("body", claimed_text(each.body))])
        return
    rows = []
    for each in found:
        attempt = f"{each.attempt} of {each.attempts_allowed}"
        rows.append((claim_of(each) or each.descriptor, attempt, preview(claimed_text(each.body))))
    print_table((name, "attempt", "body"), rows)


@job.verb("ack")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
@click.option(
    "--failed", is_flag=True, help="The jobs failed: they are tried again, or fail for good after the last attempt."
)
@click.option("--status", default="", metavar="TEXT", help="Append this to their custom status.")
@click.option("--delay-ms", type=int, default=0, metavar="MS", help="With --failed: pause before the next attempt.")
def ack(settings: Settings, claims: tuple[str, ...], failed: bool, status: str, delay_ms: int) -> int:
    """End claimed jobs, as done or --failed. CLAIM is what `job dequeue` printed."""
    if delay_ms and not failed:
        usage("--delay-ms: expected together with --failed")
    items = [Ack(held, status, delay_ms) for held in map(read_claim, claims)]
    with settings.client() as client:
        refused = client.ack(failed=items) if failed else client.ack(succeeded=items)
    named = {f"{descriptor}@{token.hex()}" for descriptor, token in (item.job for item in refused)}
    return _report(settings, claims, named, "failed" if failed else "succeeded")


@job.verb("release")
@click.argument("claims", nargs=-1, required=True, metavar="CLAIM...")
def release(settings: Settings, claims: tuple[str, ...]) -> int:
    """Release claimed jobs. They keep their attempts and their position in the queue."""
    with settings.client() as client:
        refused = client.release([read_claim(claim) for claim in claims])
    named = {f"{descriptor}@{token.hex()}" for descriptor, token in refused}
    return _report(settings, claims, named, "released")


def read_claim(claim: str) -> tuple[str, bytes]:
    """(descriptor, token) of `descriptor@token in hex`, or a usage error."""
    descriptor, _, token = claim.partition("@")
    try:
        packed = bytes.fromhex(token)
    except ValueError:
        packed = b""
    if len(packed) != TOKEN_BYTES:
        usage(f"CLAIM: expected descriptor@token as `pinlater job dequeue` prints it, got {claim!r}")
    return descriptor, packed


def _report(settings: Settings, claims: tuple[str, ...], refused: set[str], verb: str) -> int:
    """Prints which claims were accepted and which refused. Returns 1 if any was refused."""
    refused = {claim for claim in claims if claim.lower() in refused}
    done = [claim for claim in claims if claim not in refused]
    if settings.as_json:
        print_json({verb: done, "refused": sorted(refused)})
    else:
        for claim in done:
            say(f"{claim.partition('@')[0]} {verb}")
    for claim in sorted(refused):
        remark(f"error: {claim.partition('@')[0]}: refused: its lease has expired, or it was ended already")
    return NO if refused else DONE


@job.verb("lookup")
@click.argument("descriptors", nargs=-1, required=True, metavar="DESCRIPTOR...")
@click.option("--body", is_flag=True, help="Show the bodies too.")
def lookup(settings: Settings, descriptors: tuple[str, ...], body: bool) -> int:
    """Show jobs. Exit code 1 if one of them does not exist."""
    named = _descriptors(descriptors)
    with settings.client() as client:
        looked_up = client.lookup(named, with_body=True)
    found = {descriptor: task_info(info, body=body) for descriptor, info in looked_up.items()}
    for descriptor in named:
        if descriptor in found and settings.as_json:
            print_json(info_document(found[descriptor]))
        elif descriptor in found:
            print_facts(_facts(found[descriptor]))
            say("")
        else:
            remark(f"error: {descriptor}: not found; succeeded jobs are kept only if the queue has keep_succeeded")
    return DONE if len(found) == len(named) else NO


def _facts(info: TaskInfo) -> Iterator[tuple[str, str]]:
    yield "descriptor", info.descriptor
    if info.task is not None:
        yield "task", printable(info.task)
    if info.args is not None:
        arguments = body_text(info)
        yield "arguments", arguments if info.body is not None else preview(arguments, MOST_ARGUMENTS)
    yield "state", info.state.value
    if info.progress is not None:
        yield "progress", printable(str(info.progress))
    yield "priority", str(info.priority)
    yield "attempts", attempts_text(info)
    yield "created", moment(info.created_ms)
    if info.run_after_ms is not None:
        yield "claimed" if info.state is State.IN_PROGRESS else "run after", moment(info.run_after_ms)
    yield "updated", moment(info.updated_ms)
    if info.crashes:
        yield "crashes", f"{info.crashes} (its worker died, or its lease expired)"
    if info.claim:
        yield "claimed by", info.claim
    if info.status:
        yield "status", "\n".join(map(printable, info.status.splitlines()))
    if info.body is not None and info.task is None:
        yield "body", printable(info.body)


def attempts_text(info: TaskInfo) -> str:
    """`1 of 2 left`."""
    return f"{info.attempts_remaining} of {info.attempts_allowed} left"


@job.verb("ls")
@click.argument("queue")
@click.option("--state", type=_STATE, default="pending", help="[default: pending]")
@click.option("--priority", type=int, help="Only this priority.")
@click.option("--future", is_flag=True, help="Pending jobs that are due later.")
@click.option("--limit", type=click.IntRange(1), default=100, help="The most jobs to show. [default: 100]")
@click.option("--body", is_flag=True, help="Show the bodies too.")
def ls(settings: Settings, queue: str, state: str, priority: int | None, future: bool, limit: int, body: bool) -> int:
    """List the jobs of one state, latest first."""
    if future and state != State.PENDING.value:
        usage(f"--future: expected with --state pending, got {state}")
    with settings.client() as client:
        page = min(limit + 1, PAGE)
        scanned = client.scan(queue, state, priority=priority, future=future, with_body=True, page_size=page)
        scan = (task_info(info, body=body, arguments=body) for info in scanned)
        shown = islice(scan, limit)
        if settings.as_json:
            for info in shown:
                print_json(info_document(info))
            return DONE
        found = list(shown)
        more = next(scan, None) is not None
        scheduled = client.count(queue, priority=priority).scheduled if not found else 0
    if not found:
        later = f"; {jobs(scheduled)} due later: --future" if scheduled and state == "pending" and not future else ""
        say(f"queue {queue}: no {state} jobs{' due later' if future else later}")
        return DONE
    _print_jobs(found, body)
    if more:
        remark(f"there are more jobs; --limit {10 * limit} shows more of them")
    return DONE


def _print_jobs(found: list[TaskInfo], body: bool) -> None:
    running = found[0].state is State.IN_PROGRESS
    finished = found[0].state in (State.SUCCEEDED, State.FAILED)
    when = "claimed" if running else "finished" if finished else "run after"
    tasks = any(info.task is not None for info in found)
    progress = running and tasks
    last = (["claimed by"] if running else []) + (["task"] if tasks else []) + (["progress"] if progress else [])
    last += ["status"] + ([BODIES[tasks]] if body else [])
    rows = []
    for info in found:
        moment_ms = info.updated_ms if finished else info.run_after_ms
        cells = [info.descriptor, attempts_text(info), moment(moment_ms), *([_holder(info.claim)] if running else [])]
        cells += [preview(info.task or "")] if tasks else []
        cells += [preview(str(info.progress or ""))] if progress else []
        newest = preview(info.headline)
        rows.append([*cells, newest, *([preview(body_text(info))] if body else [])])
    print_table(("descriptor", "attempts", when, *last), rows)


def _holder(claim: str) -> str:
    """The source in `host:port:start:source:counter`, which is short enough for a table."""
    return ":".join(claim.split(":")[3:-1])


@job.verb("count")
@click.argument("queue")
@click.option("--priority", type=int, help="Only this priority.")
def count(settings: Settings, queue: str, priority: int | None) -> int:
    """Count the jobs of a queue by state."""
    with settings.client() as client:
        counts = client.count(queue, priority=priority)
    if settings.as_json:
        print_json({"queue": queue, "priority": priority, **asdict(counts)})
    else:
        print_table([f"#{state.replace('_', ' ')}" for state in STATES], [counted(counts)])
    return DONE


@job.verb("retry")
@click.argument("targets", nargs=-1, required=True, metavar="QUEUE | DESCRIPTOR...")
@click.option("--priority", type=int, help="With QUEUE: only this priority.")
@click.option("--limit", type=int, help=f"With QUEUE: the most jobs. [default: {MOST}]")
@click.option("--attempts", type=int, default=1, help="How often they may be tried again. [default: 1]")
@click.option("--delay-ms", type=int, metavar="MS", help="With QUEUE: pause before they run.")
def retry(
    settings: Settings,
    targets: tuple[str, ...],
    priority: int | None,
    limit: int | None,
    attempts: int,
    delay_ms: int | None,
) -> int:
    """Enqueue failed jobs again: those of a queue, or the named ones.

    Exit code 1 if a named job is not a failed one.
    """
    if ":" not in targets[0]:
        if len(targets) > 1:
            usage(f"expected one queue, or descriptors, got {', '.join(targets)}")
        options = {
            "priority": priority,
            "limit": MOST if limit is None else limit,
            "attempts": attempts,
            "delay_ms": delay_ms,
        }
        with settings.client() as client:
            retried = client.retry_failed(targets[0], **options)  # type: ignore[arg-type]
            left = client.count(targets[0], priority=priority).failed
        if settings.as_json:
            print_json({"retried": retried, "failed": left})
        else:
            say(f"queue {targets[0]}: {jobs(retried)} enqueued again, {_remain(left, 'failed')}")
        return DONE
    if (priority, limit, delay_ms) != (None, None, None):
        usage("--priority, --limit and --delay-ms: expected with a queue, got descriptors")
    with settings.client() as client:
        retried = client.retry_jobs(_descriptors(targets), attempts=attempts)
    if settings.as_json:
        print_json({"retried": retried})
    else:
        say(f"{jobs(retried)} of {len(set(targets))} enqueued again")
    return DONE if retried == len(set(targets)) else NO


@job.verb("rm")
@click.argument("descriptors", nargs=-1, metavar="[DESCRIPTOR]...")
@click.option("--queue", metavar="NAME", help="Remove jobs of this queue, with --state.")
@click.option("--state", type=_STATE, help="With --queue: jobs of this state.")
@click.option("--priority", type=int, help="With --queue: only this priority.")
@click.option(
    "--limit",
    type=int,
    help=f"With --queue: the most jobs, oldest first (running ones in no order). [default: {MOST}]",
)
def rm(
    settings: Settings,
    descriptors: tuple[str, ...],
    queue: str | None,
    state: str | None,
    priority: int | None,
    limit: int | None,
) -> int:
    """Remove jobs: the named ones in any state, or those of a queue and state.

    Exit code 1 if a named job does not exist.
    """
    if bool(descriptors) == bool(queue) or bool(queue) != bool(state):
        usage("expected descriptors, or --queue and --state")
    if descriptors and (priority, limit) != (None, None):
        usage("--priority and --limit: expected with --queue, got descriptors")
    with settings.client() as client:
        if queue is not None and state is not None:
            removed = client.delete_jobs(queue, state, priority=priority, limit=MOST if limit is None else limit)
            counts = client.count(queue, priority=priority)
            left = getattr(counts, state) + (counts.scheduled if state == "pending" else 0)
            document = {"removed": removed, state: left}
            text = f"queue {queue}: {jobs(removed)} removed, {_remain(left, state)}"
        else:
            removed = client.delete_jobs(descriptors=_descriptors(descriptors))
            document = {"removed": removed}
            text = f"{jobs(removed)} of {len(set(descriptors))} removed"
    if settings.as_json:
        print_json(document)
    else:
        say(text)
    return NO if descriptors and removed != len(set(descriptors)) else DONE


def _remain(left: int, state: str) -> str:
    """`1 failed job remains`."""
    number = f"{left:,}" if left else "no"
    return f"{number} {state} job{' remains' if left == 1 else 's remain'}"


def _descriptors(named: tuple[str, ...]) -> list[str]:
    """Each descriptor once, or a usage error."""
    for descriptor in named:
        try:
            parse_descriptor(descriptor)
        except ValueError as error:
            usage(str(error))
    return list(dict.fromkeys(named))
