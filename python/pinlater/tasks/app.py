"""The app: the tasks of a program, and the servers of their queues.

Promises that no two tasks have the same name, and that a raw task is alone in its queue. Risks: a worker knows only the
tasks of the app's module, of the modules that this one imports, and of those in `include`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, cast, overload

from pinlater._core import MAX_ATTEMPTS, MAX_PRIORITY, parse_descriptor
from pinlater.model.errors import InvalidArgument, checked
from pinlater.model.queue_config import check_integer
from pinlater.model.queue_options import Queue
from pinlater.model.registry import registered
from pinlater.model.times import Seconds
from pinlater.store.shards import NamedShards
from pinlater.tasks.app_parts import AppParts
from pinlater.tasks.arguments import UNKNOWN, Arguments
from pinlater.tasks.context import Context, SyncContext
from pinlater.tasks.decorators import Async, BatchDecorator, TaskDecorator
from pinlater.tasks.envelope import CODEC_BYTES, Codec
from pinlater.tasks.functions import checked_modules, task_name
from pinlater.tasks.handles import Handle
from pinlater.tasks.lifespan import Lifespan
from pinlater.tasks.middleware import Middleware, check_middleware, enqueue_hook
from pinlater.tasks.producer import Producer, SendOptions
from pinlater.tasks.reports import Failure
from pinlater.tasks.retry_policies import Backoff, Exponential
from pinlater.tasks.task import AsyncTask, PlainTask, Task, make_task
from pinlater.tasks.task_options import Kind, checked_options

P = ParamSpec("P")
R = TypeVar("R")
LifespanFunction = TypeVar("LifespanFunction", bound=Lifespan)

DEFAULT_QUEUE: Final = "default"
#: With the default backoff, five attempts take a quarter of a minute: enough for a restart of what a task calls.
DEFAULT_ATTEMPTS: Final = 5


class PinLater:
    """The tasks of a program, and the servers of their queues.

        app = PinLater("redis://localhost")

        @app.task
        async def add(a: int, b: int) -> int:
            return a + b

        add.enqueue(1, 2)

    url: see Client. By default PINLATER_URL, else what the TOML file says (docs/tasks.md), else the embedded server.
    shards: URLs by the names of shards, instead of a URL.
    timeout_s: the longest time of one call of a producer or a handle, in seconds.
    middleware: the first one is the outermost.
    immediate: jobs run at once in this process when they are enqueued, without a server; see immediate().
    include: the names of more modules that have tasks, such as "shop.emails". Workers import them, producers do not.

    Close it, or use it in a `with` or `async with` block, if the program goes on without it. Workers close it.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: NamedShards | None = None,
        timeout_s: float = 10.0,
        middleware: Iterable[Middleware] = (),
        immediate: bool = False,
        include: Iterable[str] = (),
    ) -> None:
        self._parts = AppParts(url, shards, timeout_s)
        #: The tasks by their names.
        self.tasks = self._parts.tasks
        #: The middleware, the outermost first.
        self.middleware: list[Middleware] = []
        #: The names of the modules that workers import too.
        self.include = checked_modules(include)
        if immediate:
            self._parts.clients.provider = registered("immediate mode").Immediate(self)
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
        """Closes the client of sync code. It may be called twice. The next use connects again."""
        self._parts.clients.close()

    async def aclose(self) -> None:
        """Closes the client of the running loop. It may be called twice. The next use connects again."""
        await self._parts.clients.aclose()

    def immediate(self) -> AbstractContextManager[None]:
        """Immediate mode for a block: each job has run when the call that enqueues it returns.

            with app.immediate():
                assert add.enqueue(1, 2).result() == 3   # for a task with result_ttl

        Jobs run in this process, on a store in memory, as a worker runs them, retries included. Delays and backoffs
        pass at once. The call raises the error of a job that failed for good. Jobs that a task enqueues have run when
        the outermost call returns. Needs the package lupa (`pinlater[testing]`).
        """
        switched_on: AbstractContextManager[None] = registered("immediate mode").Immediate(self).switched_on()
        return switched_on

    # tasks

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Async[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[Concatenate[SyncContext, P], R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, Async[R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str | Queue = DEFAULT_QUEUE,
        priority: int = 1,
        attempts: int = DEFAULT_ATTEMPTS,
        backoff: Backoff | Seconds = ...,
        give_up_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        result_ttl: Seconds | None = None,
        expires: Seconds | None = None,
        codec: Codec = "msgpack",
        on_failure: Callable[[Failure], Any] | None = None,
        runs_in: Kind | None = None,
    ) -> TaskDecorator: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        batch: int,
        batch_wait: Seconds = ...,
        name: str | None = None,
        queue: str | Queue = DEFAULT_QUEUE,
        priority: int = 1,
        attempts: int = DEFAULT_ATTEMPTS,
        backoff: Backoff | Seconds = ...,
        give_up_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        expires: Seconds | None = None,
        codec: Codec = "msgpack",
        on_failure: Callable[[Failure], Any] | None = None,
        runs_in: Kind | None = None,
    ) -> BatchDecorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | Queue = DEFAULT_QUEUE,
        priority: int = 1,
        attempts: int = DEFAULT_ATTEMPTS,
        backoff: Backoff | Seconds = Exponential(),  # noqa: B008  (it is frozen)
        give_up_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        result_ttl: Seconds | None = None,
        expires: Seconds | None = None,
        codec: Codec = "msgpack",
        on_failure: Callable[[Failure], Any] | None = None,
        runs_in: Kind | None = None,
        batch: int | None = None,
        batch_wait: Seconds | None = None,
    ) -> Task[..., Any] | Callable[[Callable[..., Any]], Task[..., Any]]:
        """Makes a function a task: `@app.task`, or `@app.task(queue="mail", attempts=3)`. Times: seconds or timedelta.

        name: the task's name in bodies; by default module.function.
        queue: the queue of its jobs, by its name, or as a Queue with settings. A missing queue is created at the first
            enqueue, with the settings that any task of it names.
        priority: 1 (first) to 100.
        attempts: how many times a job may be tried.
        backoff: the pause before the next attempt: a time, or a function of the attempt and the error, such as
            Constant, Linear or Exponential. The function may return None for the default pause.
        give_up_on: errors after which the job is failed for good, whatever attempts it has left.
        timeout: the longest run. After it an async task is cancelled, a process is killed, and a thread is left behind:
            its job fails with TimedOut.
        lease: the lease of the queue, if this task's enqueue creates the queue.
        result_ttl: how long the return value is kept for `handle.result()`. Without it nothing is kept.
        expires: a job that comes this much later than it was due is not run.
        codec: how arguments are packed: "msgpack", "json", or "raw" (the body is the one argument, bytes).
        on_failure: called with a Failure when a job is failed for good; an async function on the loop, a plain one in a
            thread.
        runs_in: "process" for plain functions that need a core of their own; by default "loop" for async functions and
            "thread" for plain ones.
        batch: the most jobs for one call of the function, which then gets a list of Items.
        batch_wait: how long the first job of a batch waits for others.

        Raises InvalidArgument for wrong options, and for a function that can not be a task.
        """
        options = checked_options(
            backoff=backoff,
            give_up_on=give_up_on,
            timeout=timeout,
            lease=lease,
            result_ttl=result_ttl,
            expires=expires,
            on_failure=on_failure,
            runs_in=runs_in,
            batch=batch,
            batch_wait=batch_wait,
        )
        job_options = {
            "priority": check_integer("priority", priority, 1, MAX_PRIORITY),
            "attempts": check_integer("attempts", attempts, 1, MAX_ATTEMPTS),
        }
        if codec not in (*CODEC_BYTES, "raw"):
            raise InvalidArgument(f"codec: expected one of {', '.join(CODEC_BYTES)}, raw, got {codec!r}")
        asked = queue if isinstance(queue, Queue) else Queue(queue)

        def add(function: Callable[..., Any]) -> Task[..., Any]:
            send_options = SendOptions(
                name=task_name(function) if name is None else name,
                queue=asked.name,
                codec=codec,
                options=job_options,
                headers={},
                arguments=UNKNOWN,
                results=result_ttl is not None,
            )
            return self._parts.add(make_task(function, self._parts.clients, send_options, options), asked)

        return add if function is None else add(function)

    # what is around tasks

    def add_middleware(self, middleware: Middleware) -> None:
        """Adds middleware, inside of what was added before. Call it before a worker starts. Raises InvalidArgument."""
        self.middleware.append(check_middleware(middleware))
        hook = enqueue_hook(middleware)
        if hook is not None:
            self._parts.clients.enqueue_hooks.append(hook)

    def lifespan(self, function: LifespanFunction) -> LifespanFunction:
        """Sets the app's lifespan: what each worker process opens at its start and closes at its end.

            @app.lifespan
            async def lifespan() -> AsyncIterator[dict[type, Any]]:
                async with HttpClient() as http:
                    yield {HttpClient: http}

        function: an async generator function that yields once: the objects that tasks and providers get by
            `Shared(type)`, as a dict by type; or None. A task process enters it too, if one of its tasks needs it.

        Raises InvalidArgument, also if the app has a lifespan already.
        """
        if not inspect.isasyncgenfunction(function):
            raise InvalidArgument(f"lifespan: expected an async generator function, got {function!r:.60}")
        if self._parts.lifespan is not None:
            raise InvalidArgument(f"lifespan: the app has one, {self._parts.lifespan!r:.60}")
        self._parts.lifespan = function
        return cast(LifespanFunction, function)

    # by name

    def by_name(self, name: str) -> Producer[..., Any]:
        """A producer for a task whose function is in another program. For a task of this app, the task.

        app.by_name("mail.send").using(queue="mail").enqueue("a@b.c")
        """
        known = self.tasks.get(name)
        if known is not None:
            return known
        options = {"priority": 1, "attempts": DEFAULT_ATTEMPTS}
        send_options = SendOptions(
            name=name,
            queue=DEFAULT_QUEUE,
            codec="msgpack",
            options=options,
            headers={},
            arguments=Arguments(f"task {name!r}", None, "msgpack"),
        )
        return Producer(self._parts.clients, send_options)

    def send(self, name: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Enqueues one call of the task of that name; see by_name() for calls with options."""
        return self.by_name(name).enqueue(*args, **kwargs)

    async def asend(self, name: str, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """See send."""
        return await self.by_name(name).aenqueue(*args, **kwargs)

    def handle(self, descriptor: str) -> Handle[Any]:
        """The handle of a job that was enqueued elsewhere or earlier. Raises InvalidArgument."""
        checked(parse_descriptor, descriptor)
        return Handle(self._parts.clients, descriptor)


def parts_of(app: PinLater) -> AppParts:
    """The parts of an app, for the modules of this package. Programs use the app."""
    return app._parts
