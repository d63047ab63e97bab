"""A queue as a program or a settings file names it: its name, and the limits that it is created with.

Promises that a wrong limit raises an error that names it, where the queue is named. Risks: an existing queue keeps the
limits that it has.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from pinlater.model.limits import Rate
from pinlater.model.queue_config import QueueConfig, check_queue_name

LIMITS: Final = ("rate", "burst", "max_running")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with limits, for `@app.task(queue=Queue("mail", rate="100/s", burst=20, max_running=10))`.

    The queue has them from its creation. A queue that exists keeps its own; `pinlater queue set` changes them.

    name: 1 to 255 letters, digits or underscores.
    rate, burst, max_running: as for QueueConfig. None: no such limit.

    Raises InvalidArgument for a wrong value.
    """

    name: str
    _: KW_ONLY
    rate: Rate | str | float | None = None
    burst: int | None = None
    max_running: int | None = None

    def __post_init__(self) -> None:
        check_queue_name(self.name)
        config = QueueConfig(rate=self.rate, burst=self.burst, max_running=self.max_running)
        object.__setattr__(self, "rate", config.rate)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that it names, as settings of a QueueConfig."""
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}


def show_limits(limits: dict[str, Any]) -> str:
    """`rate 100/s, max_running 10`, of settings of a QueueConfig; `no rate` for None."""
    return ", ".join(f"no {name}" if value is None else f"{name} {value}" for name, value in limits.items())
