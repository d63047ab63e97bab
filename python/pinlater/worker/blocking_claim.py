"""Claims of an idle worker that wait at the server, so that a new job reaches it in one trip.

Each is sent behind a BLPOP of a list of this worker and queue shard. The server carries it out once something pushes to
that list.

Promises that no more than MAX_QUEUE_SHARDS connections wait, that each such claim takes one job at most, and that its
answer is reported, also at the end. Such a claim has an unconfirmed lease (lua/lib/lease_end.lua), and it is known how
long its answer may have lain unread.
Risk: a stalled worker may receive one job per queue shard, if the job comes within 16 s of its last claim. The job
comes back when its unconfirmed lease ends, which costs it nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from pinlater._core import Claim
from pinlater.client.async_client import AsyncClient
from pinlater.model.clocks import boot_s
from pinlater.model.errors import PinLaterError
from pinlater.operations.claim import claim_at
from pinlater.operations.shard_quotas import PATIENCE_S
from pinlater.store.effects import Flow, NoAnswer, Send
from pinlater.store.keys import LIST_MARK, blocking_list_key
from pinlater.store.requests import write
from pinlater.store.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")

#: A worker with more queue shards waits for messages on its channel alone, and claims then.
MAX_QUEUE_SHARDS: Final = 8
#: A list that no claim waits at is removed after so long; as in the script that notifies.
_LEFT_MS: Final = 60_000
#: An answer to a blocking claim is on its way for so long at most.
_ANSWER_S: Final = 1.0
_NEVER_S: Final = float("inf")
#: The loop notes at this interval that it turns.
_TURN_S: Final = 0.5

#: Gets the queue, the claim or why there is no answer, when it was sent, and a time after which its answer arrived
#: (boot_s).
Answered: TypeAlias = Callable[[str, Claim | PinLaterError, float, float], None]


class BlockingClaims:
    """Those of one worker."""

    def __init__(self, client: AsyncClient, queues: Sequence[str]) -> None:
        self._client = client
        self._few = len(queues) * len(client.session.shards) <= MAX_QUEUE_SHARDS
        self._answered: Answered = _ignore
        self._wanted = False
        self._registered: set[QueueShard] = set()
        self._waiting: dict[QueueShard, asyncio.Task[None]] = {}
        #: The last two times when the loop noted that it turns. What is read now came after the first of them: the loop
        #: has looked at its sockets between the two.
        self._turned_s = (0.0, 0.0)
        self._turn_timer: asyncio.TimerHandle | None = None

    def open(self, answered: Answered, wanted: bool) -> None:
        """wanted: claims may wait, if there are few enough queue shards."""
        self._answered = answered
        self._set_wanted(wanted and self._few)
        if self._wanted:
            self._turn()

    def _turn(self) -> None:
        self._turned_s = self._turned_s[1], boot_s()
        self._turn_timer = asyncio.get_running_loop().call_later(_TURN_S, self._turn)

    def _set_wanted(self, wanted: bool) -> None:
        self._wanted = wanted
        for queue_shard in self._registered:
            queue_shard.blocking_list = b""
        self._registered.clear()

    def register(self, queue_shards: Iterable[QueueShard]) -> None:
        """Claims that find nothing there register this worker by its list from now on."""
        for queue_shard in queue_shards if self._wanted else ():
            if queue_shard not in self._registered:
                queue_shard.blocking_list = self._list(queue_shard)
                self._registered.add(queue_shard)

    def start(self, queue_shards: Iterable[QueueShard]) -> None:
        """At each where this worker is registered by its list a claim waits from now on."""
        for queue_shard in queue_shards if self._wanted else ():
            if queue_shard.blocking_list and queue_shard not in self._waiting:
                self._waiting[queue_shard] = asyncio.get_running_loop().create_task(
                    self._claim(queue_shard, queue_shard.blocking_list)
                )

    async def end(self) -> None:
        """Notifies every claim, until its answer is known; a missing answer is asked for. A server that does not answer
        is given up: a job claimed there comes back when its lease ends.
        """
        self._wanted = False
        while queue_shards := list(self._waiting):
            reached = await asyncio.gather(*map(self._notify, queue_shards))
            for queue_shard, there in zip(queue_shards, reached, strict=True):
                if not there and queue_shard in self._waiting:
                    self._waiting.pop(queue_shard).cancel()
            if tasks := list(self._waiting.values()):
                await asyncio.wait(tasks, timeout=_ANSWER_S)
            self._client.driver.stop_blocking()

    async def close(self) -> None:
        """Cancels claims without asking for answers: a job claimed now comes back when its lease ends."""
        if self._turn_timer is not None:
            self._turn_timer.cancel()
        tasks = list(self._waiting.values())
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._set_wanted(False)

    async def _claim(self, queue_shard: QueueShard, blocking_list: bytes) -> None:
        client = self._client
        session, claimer, sent_s = client.session, client.settings.source, boot_s()
        answer: Claim | PinLaterError
        after_s = sent_s
        try:
            # no deadline: after an outage the server is asked what it gave
            answer = await client.run(
                lambda _: claim_at(session, queue_shard, 1, None, False, claimer, _NEVER_S, blocking_list=blocking_list)
            )
            after_s = max(sent_s, self._turned_s[0])
        except PinLaterError as error:
            log.debug("%s: no answer to a blocking claim: %s", queue_shard, error)
            answer = error
        finally:
            self._waiting.pop(queue_shard, None)
        if not queue_shard.blocking_list:
            await self._do_without(queue_shard)
        self._answered(queue_shard.queue, answer, sent_s, after_s)

    async def _do_without(self, queue_shard: QueueShard) -> None:
        """Blocking is refused: the worker is notified by messages from now on."""
        if self._wanted:
            log.info("%s: BLPOP is refused, the worker waits for messages instead (docs/acl.md)", queue_shard.shard)
        self._set_wanted(False)
        leaving = queue_shard.waiter + LIST_MARK
        with suppress(PinLaterError):
            await self._client.run(lambda end: write(queue_shard, "pass_on", [leaving], end, patient=False))

    async def _notify(self, queue_shard: QueueShard) -> bool:
        """Whether the server answered."""
        blocking_list = self._list(queue_shard)
        commands = ("RPUSH", blocking_list, b""), ("PEXPIRE", blocking_list, _LEFT_MS)

        def push(end_s: float) -> Flow[bool]:
            answers = (yield [Send(queue_shard.shard.server, commands, min(end_s, boot_s() + PATIENCE_S))])[0]
            return not any(isinstance(answer, NoAnswer) for answer in answers)

        return await self._client.run(push)

    def _list(self, queue_shard: QueueShard) -> bytes:
        return blocking_list_key(queue_shard.queue, queue_shard.shard.name, self._client.session.id)


def _ignore(*_: object) -> None:
    """Before open()."""
