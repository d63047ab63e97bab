"""`pinlater job`: claims, ends, finds, counts, retries and removes jobs.

Promises to show the token of each claimed job, so that the user can ack or release the job. Risks: nothing renews a
claim of this command. When its lease ends, another worker gets the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import click

from pinlater._core import parse_descriptor
from pinlater.cli.command_base import DONE, NO, CommandFailed, Group, confirm, explain, usage
from pinlater.cli.job_filter import SCAN_PAGE, JobFilter, filter_options, matching, oldest, scanning
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
from pinlater.cli.progress import counting
from pinlater.cli.queue import STATES, counted
from pinlater.cli.queue_limits import none_due, why_empty
from pinlater.cli.settings import AnyClient, Settings
from pinlater.cli.times import MILLISECONDS, SECONDS
from pinlater.client.client import Client
from pinlater.model.errors import PinLaterError
from pinlater.model.jobs import Ack, CountsByState, Job, State
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
#: Where else jobs may be that a filter does not find among the pending ones.
_ELSEWHERE: Final = "; --future and --state failed look at others"
#: Heading of the column of bodies. The key says whether a job of a task is among the jobs; its arguments are shown.
BODIES: Final = {False: "body", True: "arguments"}


@click.group("job", cls=Group)
def job() -> None:
    """Jobs: enqueue, dequeue, ack, ls, lookup, retry, …"""


@job.verb("dequeue")
@click.argument("queue")
@click.option("--limit", type=click.IntRange(1), default=1, help="The most jobs to claim. [default: 1]")
@click.option("--wait", type=SECONDS, metavar="TIME", help="Wait this long for a job.")
@click.option("--dry-run", is_flag=True, help="Show the jobs, and claim none.")
def dequeue(settings: Settings, queue: str, limit: int, wait: float | None, dry_run: bool) -> int:
    """Claim due jobs, highest priority first. End each with `job ack CLAIM`, or release it with `job release CLAIM`."""
    with settings.either_client(*["--wait"] * bool(wait)) as client:
        found = client.dequeue(queue, limit, wait=wait, dry_run=dry_run)
        if settings.as_json:
            for each in found:
                print_json(job_document(each))
            return DONE
        if not found:
            say(_why_empty(client, queue))
            return DONE
        _print_claimed(found)
        if not dry_run:
            named = " ".join(claim_of(each) or each.descriptor for each in found)
            remark(f"{_how_long(client, queue)}next: pinlater job ack {named}")
    return DONE


def _why_empty(client: AnyClient, queue: str) -> str:
    if isinstance(client, Client):
        return why_empty(client, queue)
    counts = client.count(queue)
    if counts.pending:  # the answer of Thrift servers does not say what keeps them
        due = f"queue {queue}: a dequeue gives none of its due jobs now ({counts.pending:,})"
        return f"{due}; the queue may be paused or at its max_running: pinlater queue info on its Redis servers says"
    return f"queue {queue} {none_due(counts)}"


def _how_long(client: AnyClient, queue: str) -> str:
    """How long the jobs are held, if the servers say so."""
    return f"held for {duration(client.queue_config(queue).lease_ms)}; " if isinstance(client, Client) else ""


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
@click.option(
    "--delay",
    "delay_ms",
    type=MILLISECONDS,
    default=0,
    metavar="TIME",
    help="With --failed: pause before the next attempt.",
)
def ack(settings: Settings, claims: tuple[str, ...], failed: bool, status: str, delay_ms: int) -> int:
    """End claimed jobs, as done or --failed. CLAIM is what `job dequeue` printed."""
    if delay_ms and not failed:
        usage("--delay: expected together with --failed")
    held = _descriptors(claims) if settings.on_thrift else map(read_claim, claims)
    items = [Ack(each, status, delay_ms) for each in held]
    with settings.either_client() as client:
        refused = client.ack(failed=items) if failed else client.ack(succeeded=items)
    verb = "failed" if failed else "succeeded"
    if settings.on_thrift:
        return _report_sent(settings, claims, verb)
    named = {f"{descriptor}@{token.hex()}" for descriptor, token in (item.job for item in refused)}
    return _report(settings, claims, named, verb)


def _report_sent(settings: Settings, descriptors: tuple[str, ...], verb: str) -> int:
    """Prints which jobs the servers were asked to end."""
    if settings.as_json:
        print_json({verb: descriptors, "refused": None})
    else:
        for descriptor in descriptors:
            say(f"{descriptor} sent as {verb}")
    remark("the Thrift interface does not say which acks were refused: pinlater job lookup shows the jobs")
    return DONE


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
    with settings.either_client() as client:
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
@filter_options
@click.option("--body", is_flag=True, help="Show the bodies too.")
def ls(
    settings: Settings,
    queue: str,
    state: str,
    priority: int | None,
    future: bool,
    limit: int,
    body: bool,
    wanted: JobFilter,
) -> int:
    """List the jobs of one state, latest first."""
    if future and state != State.PENDING.value:
        usage(f"--future: expected with --state pending, got {state}")
    with settings.either_client() as client, scanning(settings, queue) as seen:
        page = SCAN_PAGE if wanted else min(limit + 1, PAGE)
        scanned = client.scan(queue, state, priority=priority, future=future, with_body=True, page_size=page)
        scan = (task_info(info, body=body, arguments=body) for info in matching(scanned, wanted, seen))
        shown = islice(scan, limit)
        if settings.as_json:
            for info in shown:
                print_json(info_document(info))
            return DONE
        found = list(shown)
        more = next(scan, None) is not None
        scheduled = client.count(queue, priority=priority).scheduled if not found else 0
    if not found and wanted:
        elsewhere = _ELSEWHERE if state == "pending" else ""
        say(f"queue {queue}: no {state} jobs{' due later' * future} {wanted.in_words}{elsewhere}")
    elif not found:
        later = f"; {jobs(scheduled)} due later: --future" if scheduled and state == "pending" and not future else ""
        say(f"queue {queue}: no {state} jobs{' due later' if future else later}")
    else:
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
    with settings.either_client() as client:
        counts = client.count(queue, priority=priority)
    if settings.as_json:
        print_json({"queue": queue, "priority": priority, **asdict(counts)})
    else:
        print_table([f"#{state.replace('_', ' ')}" for state in STATES], [counted(counts)])
    return DONE


@job.verb("retry")
@click.argument("targets", nargs=-1, required=True, metavar="QUEUE | DESCRIPTOR...")
@click.option("--priority", type=int, help="With QUEUE: only this priority.")
@filter_options
@click.option("--limit", type=click.IntRange(0), help=f"With QUEUE: the most jobs, oldest first. [default: {MOST}]")
@click.option("--attempts", type=int, default=1, help="How often they may be tried again. [default: 1]")
@click.option("--delay", "delay_ms", type=MILLISECONDS, metavar="TIME", help="Pause before they run.")
@click.option("--dry-run", is_flag=True, help="With QUEUE: show the jobs, and change none.")
def retry(
    settings: Settings,
    targets: tuple[str, ...],
    priority: int | None,
    limit: int | None,
    wanted: JobFilter,
    dry_run: bool,
    **options: Any,
) -> int:
    """Enqueue failed jobs again: those of a queue, or the named ones.

    Exit code 1 if a named job is not a failed one.
    """
    if ":" in targets[0]:
        _expect_no_queue_options("a queue", priority, limit, wanted, dry_run)
        return _retry_named(settings, targets, options)
    if len(targets) > 1:
        usage(f"expected one queue, or descriptors, got {', '.join(targets)}")
    most = MOST if limit is None else limit
    with settings.either_client(*wanted.options * (not dry_run)) as client:
        if wanted or dry_run:
            chosen, more = oldest(settings, client, targets[0], State.FAILED, wanted, priority=priority, limit=most)
            if dry_run or not chosen:
                return _show_chosen(settings, targets[0], State.FAILED, wanted, chosen, more, "enqueued again")
            done = _in_parts(chosen, "enqueued again", partial(client.retry_jobs, **options))
            return _report_chosen(settings, targets[0], "retried", "enqueued again", done, more)
        retried = client.retry_failed(targets[0], priority=priority, limit=most, **options)
        left = client.count(targets[0], priority=priority).failed
    if settings.as_json:
        print_json({"retried": retried, "failed": left})
    else:
        say(f"queue {targets[0]}: {jobs(retried)} enqueued again, {_remain(left, 'failed')}")
    return DONE


def _retry_named(settings: Settings, named: tuple[str, ...], options: dict[str, Any]) -> int:
    with settings.either_client("DESCRIPTOR") as client:
        retried = client.retry_jobs(_descriptors(named), **options)
    if settings.as_json:
        print_json({"retried": retried})
    else:
        say(f"{jobs(retried)} of {len(set(named))} enqueued again")
    return DONE if retried == len(set(named)) else NO


@job.verb("rm")
@click.argument("descriptors", nargs=-1, metavar="[DESCRIPTOR]...")
@click.option("--queue", metavar="NAME", help="Remove jobs of this queue, with --state.")
@click.option("--state", type=_STATE, help="With --queue: jobs of this state.")
@click.option("--priority", type=int, help="With --queue: only this priority.")
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"With --queue: the most jobs, oldest first (running ones in no order). [default: {MOST}]",
)
@click.option("--dry-run", is_flag=True, help="With --queue: show the jobs, and remove none.")
@click.option("--yes", is_flag=True, help="With --queue: do not ask.")
def rm(
    settings: Settings,
    descriptors: tuple[str, ...],
    queue: str | None,
    state: str | None,
    priority: int | None,
    limit: int | None,
    wanted: JobFilter,
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove jobs: the named ones in any state, or those of a queue and state.

    Exit code 1 if a named job does not exist.
    """
    if bool(descriptors) == bool(queue) or bool(queue) != bool(state):
        usage("expected descriptors, or --queue and --state")
    if queue is None or state is None:
        _expect_no_queue_options("--queue", priority, limit, wanted, dry_run)
        return _rm_named(settings, descriptors)
    most = MOST if limit is None else limit
    with settings.either_client(*wanted.options * (not dry_run)) as client:
        if not wanted and not dry_run:
            return _rm_of_state(settings, client, queue, State(state), priority, most, yes)
        chosen, more = oldest(settings, client, queue, State(state), wanted, priority=priority, limit=most)
        if dry_run or not chosen:
            return _show_chosen(settings, queue, State(state), wanted, chosen, more, "removed")
        confirm(f"Remove {_of_state(len(chosen), State(state))} of queue {queue} for good?", yes)
        done = _in_parts(chosen, "removed", partial(_remove_unchanged, client, State(state), wanted))
    return _report_chosen(settings, queue, "removed", "removed", done, more)


def _rm_named(settings: Settings, named: tuple[str, ...]) -> int:
    with settings.either_client("DESCRIPTOR") as client:
        removed = client.delete_jobs(descriptors=_descriptors(named))
    if settings.as_json:
        print_json({"removed": removed})
    else:
        say(f"{jobs(removed)} of {len(set(named))} removed")
    return DONE if removed == len(set(named)) else NO


def _rm_of_state(
    settings: Settings, client: AnyClient, queue: str, state: State, priority: int | None, limit: int, yes: bool
) -> int:
    held = min(limit, _number_of(client.count(queue, priority=priority), state))
    if held:
        confirm(f"Remove {_of_state(held, state)} of queue {queue} for good?", yes)
    removed = client.delete_jobs(queue, state, priority=priority, limit=limit)
    left = _number_of(client.count(queue, priority=priority), state)
    if settings.as_json:
        print_json({"removed": removed, state.value: left})
    else:
        say(f"queue {queue}: {jobs(removed)} removed, {_remain(left, state.value)}")
    return DONE


def _number_of(counts: CountsByState, state: State) -> int:
    number: int = getattr(counts, state.value)
    return number + (counts.scheduled if state is State.PENDING else 0)


def _of_state(number: int, state: State) -> str:
    """`12 failed jobs`."""
    return f"{number:,} {_named(state)} job" + ("" if number == 1 else "s")


def _named(state: State) -> str:
    return state.value.replace("_", "-")


def _expect_no_queue_options(
    queue: str, priority: int | None, limit: int | None, wanted: JobFilter, dry_run: bool
) -> None:
    """Raises a usage error if an option was given that is for the jobs of a queue. queue: how the user names one."""
    if (priority, limit) != (None, None):
        usage(f"--priority and --limit: expected with {queue}, got descriptors")
    if wanted or dry_run:
        usage(f"--task, --error, --since, --until and --dry-run: expected with {queue}, got descriptors")


def _show_chosen(
    settings: Settings, queue: str, state: State, wanted: JobFilter, chosen: list[TaskInfo], more: bool, verb: str
) -> int:
    """Shows the jobs that a command is for, as `job ls` does."""
    if settings.as_json:
        for info in chosen:
            print_json(info_document(info))
    elif not chosen:
        say(f"queue {queue}: no {_named(state)} jobs {wanted.in_words}")
    else:
        _print_jobs(chosen, body=False)
        remark(f"dry run: {_of_state(len(chosen), state)} would be {verb}{', and more match (--limit)' * more}")
    return DONE


def _in_parts(chosen: list[TaskInfo], verb: str, change: Callable[[list[str]], int]) -> int:
    """Changes jobs, a call for each thousand. Returns how many were changed."""
    done = 0
    with counting(f"jobs {verb}") as changed:
        for first in range(0, len(chosen), MOST):
            try:
                done += change([info.descriptor for info in chosen[first : first + MOST]])
            except PinLaterError as error:
                message, code = explain(error)
                raise CommandFailed(f"{message}; {jobs(done)} {verb} before", code) from error
            changed(done)
    return done


def _remove_unchanged(client: AnyClient, state: State, wanted: JobFilter, descriptors: list[str]) -> int:
    """Removes those of the jobs that are still in this state and wanted."""
    infos = client.lookup(descriptors, with_body=True).values()
    left = [info.descriptor for info in infos if info.state is state and wanted.matches(task_info(info, body=False))]
    return client.delete_jobs(descriptors=left)


def _report_chosen(settings: Settings, queue: str, key: str, verb: str, done: int, more: bool) -> int:
    if settings.as_json:
        print_json({key: done, "more": more})
    else:
        say(f"queue {queue}: {jobs(done)} {verb}{'; more match: repeat the command' * more}")
    return DONE


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
