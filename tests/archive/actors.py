"""Archivers that a test lets go on a step at a time, side by side.

Promises that steps happen only while `go_on` or `late` runs, in the order in which the archiver's tasks asked for them.
Risks: each step blocks the loop; two steps are never under way at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pinlater import Client
from pinlater.archive.archiver import Archiver
from pinlater.model.errors import PinLaterError
from pinlater.store.effects import Effect, Flow, Sleep, Transaction, resume
from tests.archive.stepper import Killed, carry_out, errors_of, name_of

T = TypeVar("T")
#: So many turns of the loop lead every task to its next step.
TURNS = 40


class Actor:
    """One archiver at work.

    act: what it does. waiting: the steps that its tasks want to take.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: Client, act: Callable[[Archiver], Awaitable[Any]]
    ) -> None:
        self._loop, self.client = loop, client
        assert client.settings.database is not None
        archiver = Archiver(self._run, client.session, client.settings.database)
        self.waiting: deque[tuple[Effect, asyncio.Future[None]]] = deque()
        self._task = loop.create_task(self._ended(act, archiver))
        self._turn()

    @property
    def is_done(self) -> bool:
        return self._task.done()

    def go_on(self, steps: int) -> None:
        """Takes up to so many steps."""
        while steps and self.waiting:
            steps -= 1
            self.waiting.popleft()[1].set_result(None)
            self._turn()
        if self.is_done:
            self._task.result()

    def kill(self) -> list[Effect]:
        """It takes no further step. Returns those that it was about to take."""
        about = [effect for effect, _ in self.waiting]
        self._task.cancel()
        self._turn()
        return about

    def _turn(self) -> None:
        async def turns() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self._loop.run_until_complete(turns())

    async def _ended(self, act: Callable[[Archiver], Awaitable[Any]], archiver: Archiver) -> None:
        """An archiver may end by an error of ours: others have ended its work."""
        try:
            await act(archiver)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if not all(isinstance(each, Killed | PinLaterError) for each in errors_of(error)):
                raise

    async def _run(self, make: Callable[[float], Flow[T]]) -> T:
        flow = make(self.client.settings.deadline_s())
        try:
            effect = flow.send(None)
            while True:
                if not isinstance(effect, Sleep):
                    await self._permit(effect)
                outcome = carry_out(self.client, effect)
                effect = resume(flow, outcome) if isinstance(effect, Transaction) else flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()

    async def _permit(self, effect: Effect) -> None:
        wanted = self._loop.create_future()
        self.waiting.append((effect, wanted))
        await wanted

    def __str__(self) -> str:
        return ", ".join(name_of(effect) for effect, _ in self.waiting) or "done"
