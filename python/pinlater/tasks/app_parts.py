"""The inside of an app: what its producers and its workers use, and its users do not.

Promises that a raw task is alone in its queue, and that the tasks of a queue agree on its settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from traceback import walk_tb
from typing import Any, Final

from pinlater.client import settings_file
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import QueueConfig, check_queue_name
from pinlater.model.queue_options import Queue, show_settings
from pinlater.model.tracebacks import is_ours
from pinlater.store.shards import NamedShards
from pinlater.tasks.app_clients import AppClients
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.lifespan import Lifespan, entered_lifespan
from pinlater.tasks.task import Task, task_parts

#: After this many deaths of its worker a job is failed. One death may be a bad deploy or machine; three are suspicious.
DEFAULT_CRASH_LIMIT: Final = 3


class AppParts:
    """The parts of one app, see PinLater.

    tasks: the tasks by their names.
    clients: its clients.
    lifespan: its lifespan, if it has one.
    import_name: the name "module:app" by which workers import it; None until it is known.
    """

    def __init__(self, url: str | None, shards: NamedShards | None, timeout_s: float) -> None:
        self.tasks: dict[str, Task[..., Any]] = {}
        self.clients = AppClients(url, shards, timeout_s, self.queue_config)
        self.lifespan: Lifespan | None = None
        self.import_name: str | None = None
        self._settings: dict[str, dict[str, Any]] = {}

    def add(self, task: Task[..., Any], queue: Queue) -> Task[..., Any]:
        """Adds a task and returns it. queue: its queue, with the settings that it asks for. Raises InvalidArgument."""
        if task.name in self.tasks:
            raise InvalidArgument(f"task {task.name!r}: there is a task of that name; name= gives this one another")
        for other in self.tasks.values():
            if other.queue == task.queue and "raw" in (task.codec, other.codec):
                raise InvalidArgument(
                    f"task {task.name!r}: a raw task is alone in its queue, and {task.queue!r} has {other.name!r}"
                )
        wanted = queue.settings
        if wanted and (settings := self._settings.setdefault(queue.name, wanted)) != wanted:
            raise InvalidArgument(
                f"task {task.name!r}: queue {queue.name!r} is named with other settings: expected "
                f"{show_settings(settings)}, got {show_settings(wanted)}"
            )
        self.tasks[task.name] = task
        if task.codec == "raw":
            self.clients.raw_queues.add(task.queue)
        return task

    # the lifespan

    @contextmanager
    def with_lifespan(self, function: Lifespan) -> Iterator[None]:
        """Replaces the app's lifespan for a block."""
        before, self.lifespan = self.lifespan, function
        try:
            yield
        finally:
            self.lifespan = before

    def entered_lifespan(self, *, in_process: bool = False) -> AbstractAsyncContextManager[Resolved]:
        """Enters the lifespan for a block, which gets what it shares. For workers.

        in_process: for a task process, which enters the lifespan only if its tasks need it.
        """
        tasks = [task for task in self.tasks.values() if (task.kind == "process") is in_process]
        needs = {task.name: task_parts(task).needs for task in tasks}
        needed = not in_process or any(each.shared for each in needs.values())
        return entered_lifespan(self.lifespan if needed else None, needs)

    def raised_by_lifespan(self, error: BaseException) -> bool:
        """Whether the lifespan itself raised the error, and not the code that ran while it was entered."""
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        codes = [frame.f_code for frame in frames]
        code = getattr(self.lifespan, "__code__", None)
        return code in codes and not any(map(is_ours, frames[len(codes) - codes[::-1].index(code) :]))

    # queues

    def queue_config(self, queue: str, task: str = "", priority: int = 1) -> QueueConfig:
        """The configuration for a new queue: the longest lease and the most priorities that its tasks ask for.

        task, priority: of a job that is sent to it. That task may have another queue.
        """
        default = QueueConfig()
        lease_ms, priorities = self.lease_and_priorities(queue, task)
        return QueueConfig(
            lease_ms=lease_ms or default.lease_ms,
            priorities=max(default.priorities, priorities, priority),
            crash_limit=DEFAULT_CRASH_LIMIT,
            **self.settings(queue),
        )

    def settings(self, queue: str) -> dict[str, Any]:
        """The settings that the settings file names for a queue, else those that its tasks name; see Queue.settings."""
        if not self.clients.limited:
            return {}
        of_file = settings_file.queues().get(queue)
        return self._settings.get(queue, {}) if of_file is None else of_file.settings

    def lease_and_priorities(self, queue: str, task: str = "") -> tuple[int, int]:
        """The longest lease in ms, and the number of priorities, that the tasks of a queue ask for; 0: none asks.

        task: the name of one more task that counts.
        """
        tasks = [each for each in self.tasks.values() if each.queue == queue or each.name == task]
        leases_ms = [each.options.lease_ms or 0 for each in tasks]
        return max(leases_ms, default=0), max((each.priority for each in tasks), default=0)

    def queue_names(self, chosen: Iterable[str] | None = None) -> list[str]:
        """The queues to work on: the chosen ones, or those of the app's tasks. Raises InvalidArgument.

        chosen: may have queues that no task has, such as those of `using(queue=…)`.
        """
        return chosen_queues((task.queue for task in self.tasks.values()), chosen)


def chosen_queues(own: Iterable[str], chosen: Iterable[str] | None) -> list[str]:
    """See AppParts.queue_names. own: the queues of the app's tasks, in their order."""
    own = list(dict.fromkeys(own))
    if not own:
        raise InvalidArgument(
            "the app has no tasks: expected @app.task on at least one function; "
            "import the modules that have them in the module of the app, or name them in include="
        )
    return own if chosen is None else [check_queue_name(name) for name in dict.fromkeys(chosen)]
