"""Runs an archiver one step at a time, and does something else at one of its steps.

A step is one effect of a flow: requests to Redis in one pipeline, or one transaction of MySQL. Promises that the steps
come in the same order each time, as the tasks of a spill take turns and nothing is sent meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from pinlater import Client
from pinlater.archive.archiver import Archiver
from pinlater.model.errors import PinLaterError
from pinlater.store.effects import Effect, Flow, Send, Sleep, Transaction, Transactions, resume
from pinlater.store.scripts import load_scripts

T = TypeVar("T")


class Killed(BaseException):
    """The archiver is dead. It sends nothing any more."""


#: Carries out a step once. Returns the answers, or the value or PinLaterError of a transaction.
Perform: TypeAlias = Callable[[], Any]
#: Stands for a step. Returns what the archiver gets, or raises Killed.
Fault: TypeAlias = Callable[[Perform], Any]


def carry_out(client: Client, effect: Effect) -> Any:
    """Carries out one effect by the connections of a client."""
    if isinstance(effect, Transaction):
        return effect.outcome()

    def one() -> Flow[Any]:
        return (yield effect)

    return client.driver.drive(one())


class Stepper:
    """The Run of an archiver.

    at: whether `fault` stands for a step, by its number (from 0) and its name; it stands for the first such step.
    steps: the names of the steps that were reached. faulty: the name of the step that the fault stood for.
    """

    def __init__(
        self, client: Client, at: Callable[[int, str], bool] = lambda _number, _name: False, fault: Fault | None = None
    ) -> None:
        self.client, self.steps = client, list[str]()
        self._at, self._fault = at, fault
        self._dead = False
        self.faulty = ""

    @property
    def archiver(self) -> Archiver:
        """An archiver that is run by this."""
        database = self.client.settings.database
        assert database is not None
        return Archiver(self.run, self.client.session, database)

    async def run(self, make: Callable[[float], Flow[T]]) -> T:
        """As AsyncClient.run; each effect blocks."""
        flow = make(self.client.settings.deadline_s())
        try:
            effect = flow.send(None)
            while True:
                outcome = self._step(effect)
                effect = resume(flow, outcome) if isinstance(effect, Transaction) else flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    def _step(self, effect: Effect) -> Any:
        if self._dead:
            raise Killed
        if isinstance(effect, Sleep):
            return carry_out(self.client, effect)
        number, name = len(self.steps), name_of(effect)
        self.steps.append(name)
        if self.faulty or self._fault is None or not self._at(number, name):
            return carry_out(self.client, effect)
        self.faulty = name
        try:
            return self._fault(lambda: carry_out(self.client, effect))
        except Killed:
            self._dead = True
            raise


def name_of(effect: Effect) -> str:
    """Which step it is, for messages."""
    if isinstance(effect, Transaction):
        return f"transaction {getattr(effect.work, '__qualname__', '')}"
    if isinstance(effect, Transactions):
        return "; ".join(map(name_of, effect.each))
    assert isinstance(effect, list)
    return "; ".join(_sent(send) for send in effect)


def _sent(send: Send) -> str:
    verbs = {script.sha: verb for verb, script in load_scripts().items()}
    found = []
    for command in send.commands:
        words = command if isinstance(command, bytes) else b" ".join(str(word).encode() for word in command)
        found.append(next((verb for sha, verb in verbs.items() if sha in words), str(words[:20])))
    return ", ".join(found)


def errors_of(error: BaseException) -> list[BaseException]:
    """The errors that an archiver ended with."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in errors_of(each)]
    return [error]


def may_end(error: BaseException) -> bool:
    """Whether an archiver may end so when something fails."""
    return all(isinstance(leaf, Killed | PinLaterError) for leaf in errors_of(error))
