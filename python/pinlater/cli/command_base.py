"""The base of all commands: their class, their exit codes, and the table that turns errors into exit codes.

Promises one line `error: …` on stderr for every failure, with advice. A traceback is shown only for the user's own
code, or with PINLATER_DEBUG=1. Risks: an unknown queue costs one more call, to find a similar name.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import click

from pinlater.cli import output
from pinlater.cli.settings import Settings, common_options, json_option, settings_of
from pinlater.model.errors import (
    AppFailed,
    InvalidArgument,
    NotOnThrift,
    OutcomeUnknown,
    PartialDelete,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
    QueueError,
    QueueNotFound,
    ServerError,
    ServerFull,
    ServerUnavailable,
)
from pinlater.model.text import did_you_mean
from pinlater.model.tracebacks import of_user
from pinlater.model.urls import hide_urls
from pinlater.server.thrift_url import NO_ANSWER, SCHEMES

DONE: Final = 0
NO: Final = 1
USAGE: Final = 2
SERVER: Final = 3
UNKNOWN: Final = 4
BUG: Final = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE

#: How similar an option must be to be proposed. --url is none for --burst (0.67).
NEAR_OPTION: Final = 0.75

#: The first matching entry counts.
EXIT_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (InvalidArgument, USAGE),
    (NotOnThrift, USAGE),
    (QueueError, NO),
    (AppFailed, NO),
    (OutcomeUnknown, UNKNOWN),
    (ServerError, SERVER),
    (PartialDelete, SERVER),
    (PinLaterError, SERVER),
)

ADVICE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (OutcomeUnknown, "check before you repeat it: pinlater job ls, pinlater job lookup"),
    (ServerFull, "make room (pinlater job dequeue, purge) or raise maxmemory"),
    (ServerUnavailable, "start it, or name another one with --url; pinlater doctor shows more"),
)
#: In place of that advice, if no Thrift server has answered.
THRIFT_ADVICE: Final = (
    "start `pinlater server` there, or name another one with --url; if it runs, its log and /readyz of its admin pages "
    "show more"
)
#: Likewise, if one has answered that it cannot reach its Redis servers.
SHARD_ADVICE: Final = (
    "`pinlater server` runs there: look at the Redis that it names; /readyz of its admin pages names all shards that "
    "do not answer"
)
#: Errors with such a text say what to do, and the server is there.
ADVISED: Final = ("the URL", "CERTIFICATE_VERIFY_FAILED", "took all its time")


class CommandFailed(click.ClickException):
    """An error with its message and exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Command(click.Command):
    """A command. If a queue is unknown, its error proposes the most similar name."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except QueueNotFound as error:
            raise CommandFailed(_queue_not_found(str(error), settings_of(ctx)), NO) from error


class Group(click.Group):
    """A noun of the command line, such as `queue`. Its commands are verbs."""

    command_class = Command
    group_class = type

    def verb(self, name: str, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
        """Decorates a function as a command of this noun, and adds the options that all commands have."""

        def decorate(function: Callable[..., Any]) -> click.Command:
            function = common_options(hidden=True)(json_option(click.pass_obj(function)))
            return self.command(name, **options)(function)

        return decorate


def confirm(question: str, yes: bool) -> None:
    """Asks the user, unless --yes was given. Raises if the user declines, or if stdin is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask on: confirm with --yes")
    if not click.confirm(question, err=True):
        raise CommandFailed("nothing was changed", NO)


def run_command_line(group: click.Group, arguments: list[str] | None) -> int:
    """Runs a command line and returns its exit code."""
    try:
        result = group.main(arguments, prog_name="pinlater", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else DONE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail again
        return PIPE_CLOSED
    except click.exceptions.Abort:
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("PINLATER_DEBUG") == "1":
            _hide_urls_in(error)
            raise
        if isinstance(error, AppFailed) and error.__cause__ is not None:
            sys.stderr.write(hide_urls(of_user(error.__cause__)))
        message, code = explain(error)
        sys.stderr.write(f"error: {one_line(hide_urls(message))}\n")
        return code


def _hide_urls_in(error: BaseException | None) -> None:
    """An error that repeats what it did not expect may have a URL, and so may its causes."""
    while error is not None:
        error.args = tuple(hide_urls(each) if isinstance(each, str) else each for each in error.args)
        if isinstance(error, click.ClickException):
            vars(error)["message"] = hide_urls(error.message)
        error = error.__cause__ or error.__context__


def explain(error: Exception) -> tuple[str, int]:
    """The message and the exit code of an error."""
    if isinstance(error, CommandFailed):
        return error.message, error.code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        group = cast(click.Group, error.ctx.command)
        return f"{error.ctx.command_path}: expected a verb: {', '.join(group.commands)}", error.exit_code
    if isinstance(error, click.NoSuchOption):
        return _no_such_option(error), error.exit_code
    if isinstance(error, click.ClickException):
        help_of = getattr(getattr(error, "ctx", None), "command_path", "")
        more = f" ({help_of} --help)" if isinstance(error, click.UsageError) and help_of else ""
        return error.format_message().rstrip(".") + more, error.exit_code
    if isinstance(error, PartialEnqueue):
        unknown = any(isinstance(result, OutcomeUnknown) for result in error.results)
        return str(error), UNKNOWN if unknown else SERVER
    if isinstance(error, PartialOutcome):
        return str(error), UNKNOWN if error.unknown else explain(error.failed[0][1])[1]
    code = next((code for kind, code in EXIT_CODES if isinstance(error, kind)), None)
    if code is None:
        return f"unexpected {type(error).__name__}: {error}; this is a bug; PINLATER_DEBUG=1 shows the traceback", BUG
    advice = _advice(error)
    return f"{error}; {advice}" if advice else str(error), code


def _advice(error: Exception) -> str:
    """What to do about an error; "" if it says so itself."""
    if isinstance(error, ServerUnavailable):
        text = str(error)
        if any(said in text for said in ADVISED):
            return ""
        if text.startswith(NO_ANSWER):
            return THRIFT_ADVICE
        if any(scheme in text for scheme in SCHEMES):
            return SHARD_ADVICE
    return next((advice for kind, advice in ADVICE if isinstance(error, kind)), "")


def _no_such_option(error: click.NoSuchOption) -> str:
    """Proposes a similar option, or else the command that has this one."""
    name, said = error.option_name, f"no such option: {error.option_name}"
    if error.ctx is not None:
        said += f" ({error.ctx.command_path} --help)"
    if near := difflib.get_close_matches(name, error.possibilities or (), n=1, cutoff=NEAR_OPTION):
        return f"{said}; did you mean {near[0]}?"
    root = None if error.ctx is None else error.ctx.find_root().command
    commands = root.commands if isinstance(root, click.Group) else {}
    others = [f"pinlater {each}" for each, found in commands.items() if any(name in one.opts for one in found.params)]
    return f"{said}; {' and '.join(others)} {'has' if len(others) == 1 else 'have'} it" if others else said


def one_line(message: str) -> str:
    """The message without line breaks and control characters."""
    return output.printable("; ".join(line.strip() for line in message.splitlines() if line.strip()))


def usage(message: str) -> NoReturn:
    """Raises a usage error of the running command."""
    raise click.UsageError(message, click.get_current_context(silent=True))


def _queue_not_found(message: str, settings: Settings) -> str:
    found = re.search(r"queue '(\w+)'", message)
    if found is None:
        return message
    name = found[1]
    try:
        with settings.either_client() as client:
            known = client.queue_names()
    except PinLaterError:
        known = []
    return queue_not_found(name, known)


def queue_not_found(name: str, known: list[str]) -> str:
    """The error of an unknown queue. known: the names of all queues."""
    advice = f"pinlater queue create {name} creates it, pinlater queue ls lists all queues"
    return f"queue {name!r}: not found; {did_you_mean(name, known) or advice}"
