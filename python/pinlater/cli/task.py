"""`pinlater task`: lists the tasks of an app, and enqueues one call.

Promises that a call is checked before anything is sent: its JSON, and with an app its name and its arguments. Only a
task's own queue is created. Risks: without an app nothing is known of the task, so any arguments are sent.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import click

from pinlater.cli.command_base import DONE, NO, CommandFailed, Group, queue_not_found, usage
from pinlater.cli.output import print_json, print_table, printable, say
from pinlater.cli.settings import Settings, check_servers_of_app
from pinlater.cli.times import FUTURE, SECONDS
from pinlater.model.errors import QueueNotFound
from pinlater.model.text import did_you_mean
from pinlater.model.times import written
from pinlater.tasks.app import DEFAULT_ATTEMPTS, PinLater, parts_of
from pinlater.tasks.loading import load_app
from pinlater.tasks.producer import CallArguments, Producer
from pinlater.tasks.retry_policies import Exponential
from pinlater.tasks.task import Task, task_parts
from pinlater.tasks.task_options import DEFAULT_BATCH_WAIT_S, TaskOptions

_DEFAULTS: Final = TaskOptions(
    backoff=Exponential(),
    give_up_on=(),
    timeout_s=None,
    expires_ms=None,
    lease_ms=None,
    result_ttl_ms=None,
    on_failure=None,
    batch_wait_s=DEFAULT_BATCH_WAIT_S,
)
_EXPECTED: Final = "expected [MODULE:APP] NAME [JSON], or --name NAME --queue QUEUE [JSON]"


@click.group("task", cls=Group)
def task() -> None:
    """Tasks: ls, send."""


@task.verb("ls")
@click.argument("app", metavar="MODULE:APP", required=False)
def ls(settings: Settings, app: str | None) -> int:
    """List the tasks of an app: queue, signature, and the options that are not the default.

    Without MODULE:APP it is the one that TOML names.
    """
    _, loaded = _load(app)
    parts_of(loaded).queue_names()  # an app without tasks is an error
    tasks = sorted(loaded.tasks.values(), key=lambda each: each.name)
    if settings.as_json:
        print_json([_document(each) for each in tasks])
    else:
        rows = [(each.name, each.queue, signature_text(each), _options_text(each)) for each in tasks]
        print_table(("task", "queue", "signature", "options"), [tuple(map(printable, row)) for row in rows])
    return DONE


def _document(each: Task[..., Any]) -> dict[str, Any]:
    options = {name: value if isinstance(value, int | float) else _text(value) for name, value in _changed(each)}
    return {"task": each.name, "queue": each.queue, "signature": signature_text(each), "options": options}


def _changed(each: Task[..., Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of the options that are not the default, in the units of their names."""
    others = {"priority": 1, "attempts": DEFAULT_ATTEMPTS, "codec": "msgpack"}
    given = {**each.send_options.options, "codec": each.codec}
    yield from ((name, given[name]) for name, default in others.items() if given[name] != default)
    for option in fields(TaskOptions):
        value = getattr(each.options, option.name)
        if value != getattr(_DEFAULTS, option.name):
            yield ("runs_in" if option.name == "kind" else option.name), value


def _options_text(each: Task[..., Any]) -> str:
    """`attempts=3, timeout=30s`."""
    return ", ".join(_option_text(name, value) for name, value in _changed(each))


def _option_text(name: str, value: Any) -> str:
    for unit, ms in (("_ms", 1), ("_s", 1000)):
        if name.endswith(unit):
            return f"{name.removesuffix(unit)}={written(round(value * ms))}"
    return f"{name}={_text(value)}"


def _text(value: Any) -> str:
    """A value as in code: functions and classes by their names."""
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    return getattr(value, "__qualname__", None) or str(value)


class _Plain(str):
    """An annotation that is text already, as from `from __future__ import annotations`; shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def signature_text(each: Task[..., Any]) -> str:
    """What a caller passes: `(to: str, subject: str = 'hi')`."""
    signature = task_parts(each).arguments.signature
    parameters = [
        parameter.replace(annotation=_Plain(parameter.annotation))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters))


@task.verb("send")
@click.argument("arguments", nargs=-1, metavar="[MODULE:APP] NAME [JSON]")
@click.option("--name", metavar="NAME", help="A task whose app is not here; needs --queue, and no [MODULE:APP] NAME.")
@click.option("--queue", metavar="QUEUE", help="Another queue than the task's own. It must exist.")
@click.option("--priority", type=int, metavar="N", help="1 is first. [default: the task's]")
@click.option("--delay", type=SECONDS, metavar="TIME", help="Run not before this has passed: 30s, 5m, 2h, 1d.")
@click.option("--at", "at_ms", type=FUTURE, metavar="WHEN", help="Run not before then: '2026-11-23 08:00', or 08:00.")
def send(
    settings: Settings,
    arguments: tuple[str, ...],
    name: str | None,
    queue: str | None,
    priority: int | None,
    delay: float | None,
    at_ms: int | None,
) -> int:
    """Enqueue one call of a task, and print the descriptor of its job.

    JSON has the arguments: an object by name, '{"to": "ada"}', or a list by position, '["ada"]'. An argument of another
    type, such as a UUID or a date, is text, and its annotation says what it becomes. Without MODULE:APP it is the one
    that TOML names.
    """
    if delay is not None and at_ms is not None:
        usage("expected --delay or --at, got both")
    here = name is None
    named = here and _begins_with_app(arguments)
    app_name, call = (arguments[0], arguments[1:]) if named else (None, arguments)
    if not here <= len(call) <= here + 1:
        usage(f"{_EXPECTED}, got {' '.join(map(repr, arguments)) or 'neither'}")
    if name is not None and queue is None:
        usage("--name: expected --queue beside it, got none")
    args, kwargs = read_arguments(call[-1] if len(call) > here else "[]")
    with _app(settings, app_name) if here else _app_without_tasks(settings) as app:
        producer = app.by_name(name) if name is not None else _known(app, call[0])
        _check_call(producer, args, kwargs)
        at = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
        sender = producer.using(delay=delay, at=at, priority=priority, queue=queue)
        if queue is not None:
            _check_queue(app, queue)
        descriptor = sender.enqueue_many([CallArguments(tuple(args), kwargs)])[0].descriptor
    if settings.as_json:
        print_json({"descriptor": descriptor})
    else:
        say(descriptor)
    return DONE


def _begins_with_app(arguments: Sequence[str]) -> bool:
    """Whether the first argument is MODULE:APP, and not the name of a task, which JSON may follow."""
    first, second, *_ = *arguments, "", ""
    return len(arguments) > 2 or (":" in first and not second.strip().startswith(("{", "[")))


def read_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, by position and by name. Raises a usage error."""
    try:
        found = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        usage(f'JSON: expected the arguments, such as \'{{"to": "ada"}}\' or \'["ada"]\', got {text!r:.60}: {error}')
    if not isinstance(found, list | dict):
        usage(f"JSON: expected an object of named arguments or a list of positional ones, got {text!r:.60}")
    return ([], found) if isinstance(found, dict) else (found, {})


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _load(name: str | None) -> tuple[str, PinLater]:
    """The app of that name with what it includes, and its name. As in `pinlater run`, TOML has the default of both."""
    from pinlater.running.read_options import options_of

    options = options_of({"app": name}, None)
    return options.app, load_app(options.app, options.include)


def _app_without_tasks(settings: Settings) -> PinLater:
    return PinLater(shards=settings.servers(), timeout_s=settings.timeout_s)


def _app(settings: Settings, name: str | None) -> PinLater:
    """See _load. It takes its servers as the other commands do, unless it names its own."""
    name, app = _load(name)
    check_servers_of_app(settings, name, parts_of(app).clients.named)
    if settings.named:
        settings.servers().export()
    return app


def _known(app: PinLater, name: str) -> Task[..., Any]:
    """The task of that name. Raises a usage error that proposes the most similar name."""
    parts_of(app).queue_names()  # an app without tasks is an error
    if name not in app.tasks:
        ending = [each for each in app.tasks if each.endswith(f".{name}")]
        all_of_them = f"it has {', '.join(sorted(app.tasks)):.400}"
        advice = f"did you mean {ending[0]!r}?" if ending else did_you_mean(name, app.tasks) or all_of_them
        usage(f"task {name!r}: not in the app; {advice}")
    return app.tasks[name]


def _check_call(producer: Producer[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    options = producer.send_options
    if options.codec == "raw":
        usage(f"task {options.name!r}: it takes bytes; pinlater job enqueue {options.queue} BODY sends them")
    try:
        options.arguments.plain(tuple(args), kwargs)
    except TypeError as error:  # the call does not fit the function
        usage(str(error))


def _check_queue(app: PinLater, queue: str) -> None:
    """Raises CommandFailed for a queue that does not exist: a slip of the keyboard must not create one."""
    client = parts_of(app).clients.sync()
    try:
        client.queue_config(queue)
    except QueueNotFound as error:
        raise CommandFailed(queue_not_found(queue, client.queue_names()), NO) from error
