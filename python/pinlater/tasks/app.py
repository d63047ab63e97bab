"""The app: the tasks of a program and the servers they are queued on.

Promises one task a name, and no raw task beside another in a queue. Risks: a task that is defined in a module no worker
imports is unknown to all of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeAlias, TypeVar, cast, get_args, overload

from pinlater._core import MAX_ATTEMPTS, MAX_PRIORITY, parse_descriptor
from pinlater.model.errors import InvalidArgument, checked
from pinlater.model.queue_config import QueueConfig, check_integer, check_queue_name
from pinlater.model.registry import registered
from pinlater.model.tracebacks import is_ours
from pinlater.tasks.app_clients import AppClients
from pinlater.tasks.batches import Item
from pinlater.tasks.context import Context, SyncContext
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.envelope import CODEC_BYTES, Codec
from pinlater.tasks.handles import Handle
from pinlater.tasks.lifespan import Lifespan, entered_lifespan
from pinlater.tasks.middleware import Middleware, check_middleware, enqueue_hook
from pinlater.tasks.reports import Failure
from pinlater.tasks.retry_policies import Backoff, Constant, Exponential, milliseconds
from pinlater.tasks.task import AsyncTask, Kind, PlainTask, Producer, Running, Sending, Task, task_of
from pinlater.worker.executor import check_function, load_object

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
#: What an async function of R gives.
_Async: TypeAlias = Coroutine[Any, Any, R]
LifespanFunction = TypeVar("LifespanFunction", bound=Lifespan)

DEFAULT_QUEUE: Final = "default"
#: A job whose worker died so often is failed: a bad deploy or machine is not its fault, three in a row are suspicious.
DEFAULT_CRASH_LIMIT: Final = 3
#: With the default backoff they take a quarter of a minute: enough for a restart of what a task calls.
DEFAULT_ATTEMPTS: Final = 5
#: So long the first job of a batch waits for others.
DEFAULT_BATCH_WAIT_S: Final = 0.05
#: As many as a worker may run at once.
MAX_BATCH: Final = 100_000


class _Decorator(Protocol):
    """`@app.task(…)` with options."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], _Async[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> PlainTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, _Async[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class _BatchDecorator(Protocol):
    """`@app.task(batch=…)`: producers give the value of one item, and no job of it has a result."""

    @overload
    def __call__(self, function: Callable[[list[Item[T]]], _Async[None]], /) -> AsyncTask[[T], None]: ...
    @overload
    def __call__(self, function: Callable[[list[Item[T]]], None], /) -> PlainTask[[T], None]: ...


class PinLater:
    """url: as of Client: by default PINLATER_URL, else what TOML says (docs/tasks.md), else the embedded server.
    shards: names and URLs, instead of a URL. timeout_s: for a call of a producer or a handle. middleware: the first is
    the outermost. immediate: what is put in line runs at once, in this process, and no server is used; see immediate().

    Close it, or use it in a `with` or `async with` block, where the program goes on without it; workers do.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        middleware: Iterable[Middleware] = (),
        immediate: bool = False,
    ) -> None:
        #: By name.
        self.tasks: dict[str, Task[..., Any]] = {}
        #: As they were added.
        self.middleware: list[Middleware] = []
        self.clients = AppClients(url, shards, timeout_s, self.queue_config)
        if immediate:
            self.clients.provider = registered("immediate mode").Immediate(self)
        self._lifespan: Lifespan | None = None
        self._imported_as: str | None = None
        for each in middleware:
            self.add_middleware(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Closes what sync code used. Twice is fine; the next use connects again."""
        self.clients.close()

    async def aclose(self) -> None:
        """Closes what the running loop's code used. Twice is fine; the next use connects again."""
        await self.clients.aclose()

    def immediate(self) -> AbstractContextManager[None]:
        """For the block whatever is put in line has run when the call returns, in this process, on a store in memory.

        It runs as a worker runs it, retries included; delays and backoffs pass at once. The call raises the error of a
        job that stays failed. What a task itself puts in line has run when the outermost call returns. Needs the
        package lupa (`pinlater[testing]`).
        """
        switched_on: AbstractContextManager[None] = registered("immediate mode").Immediate(self).switched_on()
        return switched_on

    # tasks

    @overload
    def task(self, function: Callable[Concatenate[Context, P], _Async[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[Concatenate[SyncContext, P], R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, _Async[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 1,
        attempts: int = DEFAULT_ATTEMPTS,
        backoff: Backoff | float = ...,
        give_up_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        timeout: float | None = None,
        lease: float | None = None,
        result_ttl: float | None = None,
        expires: float | None = None,
        codec: Codec = "msgpack",
        on_failure: Callable[[Failure], Any] | None = None,
        runs_in: Kind | None = None,
    ) -> _Decorator: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        batch: int,
        batch_wait: float = ...,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 1,
        attempts: int = DEFAULT_ATTEMPTS,
        backoff: Backoff | float = ...,
        give_up_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        timeout: float | None = None,
        lease: float | None = None,
        expires: float | None = None,
        codec: Codec = "msgpack",
        on_failure: Callable[[Failure], Any] | None = None,
        runs_in: Kind | None = None,
    ) -> _BatchDecorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = 1,
        attempts: int = DEFAULT_ATTEMPTS,
        backoff: Backoff | float = Exponential(),  # noqa: B008  (it is frozen)
        give_up_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        timeout: float | None = None,
        lease: float | None = None,
        result_ttl: float | None = None,
        expires: float | None = None,
        codec: Codec = "msgpack",
        on_failure: Callable[[Failure], Any] | None = None,
        runs_in: Kind | None = None,
        batch: int | None = None,
        batch_wait: float | None = None,
    ) -> Any:
        """Makes a function a task; bare or with options. Times are seconds.

        name: in the envelope; by default module.function. attempts: how often it may be tried. backoff: how long a
        failed job waits: seconds, or a function of the attempt and the error (Constant, Linear, Exponential).
        give_up_on: errors that no further attempt will mend. timeout: an async task is cancelled after it, one in a
        thread is reported and left behind, one in a process is killed. lease: of its queue, if that is not there yet.
        result_ttl: what it returns is kept so long for `handle.result()`; without it nothing is. expires: not run so
        long after it was due. codec: msgpack, json, or raw. on_failure: called with a Failure when a job stays failed:
        async on the loop, a plain function in a thread. runs_in: "process" for plain functions that need a core; else
        "loop" (async) or "thread" (plain). batch: the function gets a list of Items, so many at most; the first waits
        batch_wait at most for others.
        """
        running = Running(
            backoff=backoff if callable(backoff) else Constant(milliseconds("backoff", backoff) / 1000),
            give_up_on=_check_give_up_on(give_up_on),
            timeout_s=None if timeout is None else milliseconds("timeout", timeout, least=0.001) / 1000,
            expires_ms=None if expires is None else milliseconds("expires", expires),
            lease_ms=None if lease is None else milliseconds("lease", lease, least=0.001),
            result_ttl_ms=None if result_ttl is None else milliseconds("result_ttl", result_ttl, least=0.001),
            on_failure=None if on_failure is None else check_function("on_failure", on_failure, "the Failure"),
            kind=_check_kind(runs_in),
            batch=None if batch is None else check_integer("batch", batch, 1, MAX_BATCH),
            batch_wait_s=_batch_wait_s(batch, batch_wait),
        )
        options = {
            "priority": check_integer("priority", priority, 1, MAX_PRIORITY),
            "attempts": check_integer("attempts", attempts, 1, MAX_ATTEMPTS),
        }
        if codec not in (*CODEC_BYTES, "raw"):
            raise InvalidArgument(f"codec: expected one of {', '.join(CODEC_BYTES)}, raw, got {codec!r}")
        check_queue_name(queue)

        def add(function: Callable[..., Any]) -> Task[..., Any]:
            told = _name_of(function) if name is None else name
            sending = Sending(
                name=told, queue=queue, codec=codec, options=options, headers={}, results=result_ttl is not None
            )
            return self._add(task_of(function, self.clients, sending, running))

        return add if function is None else add(function)

    def _add(self, task: Task[..., Any]) -> Task[..., Any]:
        if task.name in self.tasks:
            raise InvalidArgument(f"task {task.name!r}: there is one of that name; name= gives this one another")
        for other in self.tasks.values():
            if other.queue == task.queue and "raw" in (task.codec, other.codec):
                raise InvalidArgument(
                    f"task {task.name!r}: a raw task is alone in its queue, and {task.queue!r} has {other.name!r}"
                )
        self.tasks[task.name] = task
        if task.codec == "raw":
            self.clients.raw_queues.add(task.queue)
        return task

    # what is around tasks

    def add_middleware(self, middleware: Middleware) -> None:
        """Puts code around every call of the tasks, inside of what was added before. Before a worker starts."""
        self.middleware.append(check_middleware(middleware))
        hook = enqueue_hook(middleware)
        if hook is not None:
            self.clients.enqueue_hooks.append(hook)

    def lifespan(self, function: LifespanFunction) -> LifespanFunction:
        """Makes an async generator function what is entered when a worker starts, and left when it ends.

        It yields once: a dict of objects by their type, for tasks and providers that ask for them by `Shared(type)`;
        or nothing. Of process tasks that do, each process enters it too.
        """
        if not inspect.isasyncgenfunction(function):
            raise InvalidArgument(f"lifespan: expected an async generator function, got {function!r:.60}")
        if self._lifespan is not None:
            raise InvalidArgument(f"lifespan: the app has one, {self._lifespan!r:.60}")
        self._lifespan = function
        return cast(LifespanFunction, function)

    @contextmanager
    def with_lifespan(self, function: Lifespan) -> Iterator[None]:
        """For the block this lifespan stands in the place of the app's own."""
        before, self._lifespan = self._lifespan, function
        try:
            yield
        finally:
            self._lifespan = before

    def entered_lifespan(self, *, in_process: bool = False) -> AbstractAsyncContextManager[Resolved]:
        """What the lifespan shares, in a block of a worker; in_process: of one of its task processes."""
        needs = {name: task.needs for name, task in self.tasks.items() if (task.kind == "process") is in_process}
        needed = not in_process or any(each.shared for each in needs.values())
        return entered_lifespan(self._lifespan if needed else None, needs)

    def raised_by_lifespan(self, error: BaseException) -> bool:
        """Whether the error comes from the lifespan itself, not from what ran while it was entered."""
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        codes = [frame.f_code for frame in frames]
        code = getattr(self._lifespan, "__code__", None)
        return code in codes and not any(map(is_ours, frames[len(codes) - codes[::-1].index(code) :]))

    def imported_as(self, name: str) -> None:
        """Notes the module:app by which it was found."""
        self._imported_as = name

    def import_name(self) -> str:
        """module:app, by which another process finds it. Or InvalidArgument."""
        for task in self.tasks.values() if self._imported_as is None else ():
            module = getattr(task.function, "__module__", None) or ""
            for name, value in vars(sys.modules.get(module, object)).items():
                if value is self:
                    self._imported_as = f"{_module_name(module)}:{name}"
        if self._imported_as is None:
            raise InvalidArgument('runs_in="process": expected the app as a variable of a module that has tasks of it')
        return self._imported_as

    # by name

    def by_name(self, name: str) -> Producer[..., Any]:
        """Puts calls of a task in line whose function is in another program; of a task that is here, that task."""
        known = self.tasks.get(name)
        if known is not None:
            return known
        options = {"priority": 1, "attempts": DEFAULT_ATTEMPTS}
        sending = Sending(name=name, queue=DEFAULT_QUEUE, codec="msgpack", options=options, headers={})
        return Producer(self.clients, sending)

    def send(self, name: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Puts one call of the task of that name in line; `app.by_name(name).using(queue=…)` says where else."""
        return self.by_name(name).enqueue(*args, **kwargs)

    async def asend(self, name: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """See send."""
        return await self.by_name(name).aenqueue(*args, **kwargs)

    def handle(self, descriptor: str) -> Handle[Any]:
        """The handle of a job that was enqueued elsewhere, or earlier."""
        checked(parse_descriptor, descriptor)
        return Handle(self.clients, descriptor)

    # queues

    def queue_config(self, queue: str, task: str = "", priority: int = 1) -> QueueConfig:
        """How a queue is made: the longest lease and the lowest priority that its tasks ask for, where they do.

        task, priority: of a job that is sent to it, whose task may be of another queue.
        """
        usual = QueueConfig()
        lease_ms, priorities = self.asked_of(queue, task)
        return QueueConfig(
            lease_ms=lease_ms or usual.lease_ms,
            priorities=max(usual.priorities, priorities, priority),
            crash_limit=DEFAULT_CRASH_LIMIT,
        )

    def asked_of(self, queue: str, task: str = "") -> tuple[int, int]:
        """The longest lease (ms) and the lowest priority that tasks of a queue, and one more, ask for; 0: none do."""
        asking = [each for each in self.tasks.values() if each.queue == queue or each.name == task]
        leases_ms = [each.running.lease_ms or 0 for each in asking]
        return max(leases_ms, default=0), max((each.priority for each in asking), default=0)

    def queue_names(self, chosen: Iterable[str] | None = None) -> list[str]:
        """The queues of its tasks, or the chosen ones: those that `using(queue=)` names included."""
        known = list(dict.fromkeys(task.queue for task in self.tasks.values()))
        if not known:
            raise InvalidArgument("the app has no tasks: expected @app.task on at least one function")
        if chosen is None:
            return known
        return [check_queue_name(name) for name in dict.fromkeys(chosen)]


def _batch_wait_s(batch: Any, wait: float | None) -> float:
    if wait is None:
        return DEFAULT_BATCH_WAIT_S
    if batch is None:
        raise InvalidArgument("batch_wait: expected batch= beside it, got none")
    return milliseconds("batch_wait", wait) / 1000


def _check_kind(kind: Any) -> Kind | None:
    if kind is not None and kind not in get_args(Kind):
        raise InvalidArgument(f"runs_in: expected one of {', '.join(get_args(Kind))}, got {kind!r:.60}")
    return cast("Kind | None", kind)


def _check_give_up_on(types: Any) -> tuple[type[BaseException], ...]:
    told = types if isinstance(types, tuple) else (types,)
    for each in told:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise InvalidArgument(f"give_up_on: expected exception types, got {each!r:.60}")
    return told


def _name_of(function: Callable[..., Any]) -> str:
    """module.function; of a program that is run, by its file's name, as a worker will import it."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        raise InvalidArgument(f"task: expected a function, or name=, got {function!r:.60}")
    return f"{_module_name(getattr(function, '__module__', None) or '')}.{name}"


def _module_name(module: str) -> str:
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        return spec.name if spec is not None else Path(file).stem if file else module
    return module


def load_app(name: str) -> PinLater:
    """The app that `module:app` names, the current directory on the path. Raises InvalidArgument or AppFailed."""
    found = load_object(name, "app")
    if not isinstance(found, PinLater):
        raise InvalidArgument(f"app {name!r}: expected a PinLater, got {found!r:.60}")
    found.imported_as(name)
    return found
