"""Tasks: functions whose calls are jobs.

Promises that a task that could never work raises InvalidArgument where it is defined.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, cast

from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import Job
from pinlater.tasks import envelope
from pinlater.tasks.app_clients import AppClients
from pinlater.tasks.arguments import Arguments
from pinlater.tasks.batch_tasks import Item
from pinlater.tasks.context import BaseContext
from pinlater.tasks.dependencies import Needs
from pinlater.tasks.functions import check_function, context_of, never_fits
from pinlater.tasks.producer import Producer, SendOptions
from pinlater.tasks.task_options import Kind, TaskOptions
from pinlater.worker.executor import NotAHandler, is_async

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

#: The shard in the descriptor of a direct call, whose job is in no queue.
INLINE: Final = "inline"


class TaskParts(NamedTuple):
    """The inside of a task: what a worker needs to call its function.

    arguments: what the function takes and returns.
    needs: what the worker adds to the arguments.
    context: the class of its context, if it takes one.
    """

    arguments: Arguments
    needs: Needs
    context: type[BaseContext] | None


class Task(Producer[P, R_co], NotAHandler):
    """A function with `@app.task`: an AsyncTask or a PlainTask.

    A direct call, `task(…)`, runs the function here and now, without a queue. It gets a context of its own if it takes
    one. The caller passes what a worker would pass (`Depends`, `Shared`).

    name, queue, codec, priority: see PinLater.task.
    function: the function.
    options: how a worker runs it.
    kind: where a worker runs it.
    """

    def __init__(
        self, function: Callable[..., Any], clients: AppClients, send_options: SendOptions, options: TaskOptions
    ) -> None:
        what = f"task {send_options.name!r}"
        check_function(what, function)
        needs, context = Needs(what, function), context_of(what, function, isinstance(self, AsyncTask))
        arguments = Arguments(
            what,
            function,
            send_options.codec,
            context=context is not None,
            injected=needs.parameters,
            batch=options.batch is not None,
        )
        self._parts = TaskParts(arguments, needs, context)
        super().__init__(clients, dataclasses.replace(send_options, arguments=arguments))
        # not updated=("__dict__",): in Python 3.11 attributes of an object whose __dict__ was read are slow
        functools.update_wrapper(self, function, updated=())
        for name, value in getattr(function, "__dict__", {}).items():
            setattr(self, name, value)
        self.name, self.queue = send_options.name, send_options.queue
        self.codec, self.priority = send_options.codec, send_options.options["priority"]
        self.function = function
        self.options = options
        self.kind: Kind = options.kind or ("loop" if isinstance(self, AsyncTask) else "thread")
        self._check()

    def __repr__(self) -> str:
        return f"<task {self.name!r} of queue {self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co | Coroutine[Any, Any, R_co]:
        return cast(R_co, self._call(args, kwargs))

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function directly."""
        context = self._parts.context
        if missing := self._parts.needs.parameters.keys() - kwargs.keys():
            names = ", ".join(sorted(missing))
            raise InvalidArgument(f"task {self.name!r}: expected {names} from the caller of a direct call, got none")
        if context is None and self.options.batch is None:
            return self.function(*args, **kwargs)
        job = Job(self.queue, INLINE, self.priority, 1, b"", bytes(8), 1, 1)
        if context is not None:
            return self.function(context(job, self.name, _keep_nothing), *args, **kwargs)
        item: Item[Any] = Item(job, *args)
        return self._batch_of_one(item, self.function([item], **kwargs))

    def _batch_of_one(self, item: Item[Any], value: Any) -> Any:
        """What a direct call of a batch task returns or raises. value: what the function returned."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raises InvalidArgument for options that do not go together."""
        name, kind = self.name, self.kind
        if isinstance(self, AsyncTask) is not (kind == "loop"):
            wanted, got = ("async def", "a plain function") if kind == "loop" else ("a plain function", "async def")
            raise InvalidArgument(f"task {name!r}: expected {wanted} for runs_in={kind!r}, got {got}")
        if self.options.batch is not None and kind == "process":
            raise InvalidArgument(f"task {name!r}: expected a batch task in the loop or in a thread, got {kind!r}")
        if self.options.batch is not None and self.options.result_ttl_ms is not None:
            raise InvalidArgument(f"task {name!r}: expected no result_ttl for a batch, as its function returns nothing")
        if self.options.batch is not None and self._parts.context is not None:
            raise InvalidArgument(f"task {name!r}: expected no context for a batch, as each item has its job")


class PlainTask(Task[P, R_co]):
    """The task of a plain function: a direct call returns what the function returns."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return cast(R_co, self._call(args, kwargs))

    def _batch_of_one(self, item: Item[Any], value: Any) -> None:
        if item.error is not None:
            raise item.error


class AsyncTask(Task[P, R_co]):
    """The task of an `async def`: a direct call is awaited."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        return cast(Coroutine[Any, Any, R_co], self._call(args, kwargs))

    async def _batch_of_one(self, item: Item[Any], value: Any) -> None:
        await value
        if item.error is not None:
            raise item.error


def make_task(
    function: Callable[..., Any], clients: AppClients, send_options: SendOptions, options: TaskOptions
) -> Task[..., Any]:
    """The function as an AsyncTask or a PlainTask."""
    kind: type[Task[..., Any]] = AsyncTask if is_async(function) else PlainTask
    return kind(function, clients, send_options, options)


def task_parts(task: Task[..., Any]) -> TaskParts:
    """The parts of a task, for the modules of this package. Programs use the task."""
    return task._parts


def call_never_fits(task: Task[..., Any], job: Job, error: BaseException) -> bool:
    """Whether the error says that the call does not fit the task's function, so that no attempt can succeed."""
    if type(error) is not TypeError:
        return False
    args, kwargs = ([job.body], {}) if task.codec == "raw" else envelope.read(job.body)[1:3]
    if task.options.batch is not None:
        return len(args) != 1 or bool(kwargs)
    _, needs, context = task_parts(task)
    return never_fits(task.function, args, kwargs, error, injected=needs.parameters, context=context is not None)


async def _keep_nothing(job: Job, headers: Mapping[str, Any]) -> None:
    """The checkpoint of a direct call."""
