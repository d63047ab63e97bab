"""The claim loop of a worker: one loop over all its queues, on all their shards.

Promises that an idle worker sends nothing but a safety claim, and that a full worker passes notifications and due
scheduled jobs on to others.
Risk: if this process dies between a notification and its claim, safety claims of other workers find the job 10 to 15 s
later.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from pinlater._core import Claim
from pinlater.model.clocks import boot_s
from pinlater.model.errors import PinLaterError
from pinlater.model.jobs import Job
from pinlater.model.limits import Limit
from pinlater.model.pauses import FIRST_RETRY_S
from pinlater.operations.dequeue import SAFETY_S
from pinlater.worker.cancellations import find_missed
from pinlater.worker.job_source import JobSource
from pinlater.worker.limit_rests import LimitRests
from pinlater.worker.queue_order import QueueOrder, QueueTurns
from pinlater.worker.queue_poll import NEVER_S, QueuePoll

log: Final = logging.getLogger("pinlater.worker")


class Fetcher:
    """Claims while there is room.

    room: how many jobs may be claimed now.
    take: gets a queue, its claims with jobs (none: it was empty), and when they were sent. For an unconfirmed claim it
        also gets a time after which the answer arrived (both boot_s).
    heard: gets what JobEvents.on_removed gets.
    removed: gets the channel and the ids of jobs that were looked up and are not there.
    held: the jobs that the worker holds.
    pause: gets what JobEvents.on_pause gets.
    max_jobs: it claims so many and no more.
    """

    def __init__(
        self,
        source: JobSource,
        queues: Sequence[str],
        room: Callable[[], int],
        take: Callable[[str, list[Claim], float, float | None], None],
        heard: Callable[[bytes, bytes], None],
        removed: Callable[[bytes, bytes], None],
        held: Callable[[], Iterable[Job]],
        pause: Callable[[str], None],
        order: QueueOrder | None = None,
        max_jobs: int | None = None,
    ) -> None:
        self._source = source
        #: How many more jobs may be claimed ever.
        self.left = sys.maxsize if max_jobs is None else max_jobs
        self._room = room if max_jobs is None else lambda: min(room(), self.left)
        self._take, self._held = take, held
        self.on_removed, self._removed, self.on_pause = heard, removed, pause
        self._polls = {queue: QueuePoll(queue) for queue in queues}
        self._turns = QueueTurns(queues, order or QueueOrder())
        self._pausing: asyncio.Future[None] | None = None
        self._stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        #: What blocking claims gave while another claim was under way, and lost answers that a full worker asked for:
        #: queue, claim, and times; see JobEvents.
        self._late: list[tuple[QueuePoll, Claim, float, float | None]] = []
        #: Claim calls answered.
        self.claims = 0
        #: How long limits kept this worker from claims.
        self.limit_rests = LimitRests()
        #: Whether there was one.
        self.answered = asyncio.Event()
        #: `: ` and the error of the last claim, if it failed.
        self.last_error = ""
        #: Cancellations of jobs claimed before that may have been missed (boot_s): see check().
        self.heard_since_s = 0.0

    def open(self, *, blocking: bool) -> None:
        """Hears notifications from now on; a first claim finds what came before. blocking: claims wait at servers."""
        self._stopping = False
        self._end_rests()
        self._expect_jobs()
        self._source.open(self, blocking=blocking)

    def stop(self) -> None:
        """Ends run() once it is known what every claim gave; notifications go to others from now on."""
        self._stopping = True
        self._source.stop()
        self.wake()

    async def close(self) -> None:
        """Passes unanswered notifications on. Cancels what has not ended a moment later."""
        self.stop()
        for poll in self._polls.values():
            self._pass_on(poll)
        await self._source.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FIRST_RETRY_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def wake(self) -> None:
        """There may be room again, or something else changed."""
        if self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)

    def look_again(self) -> None:
        """Claims from every queue, without a notification."""
        self._expect_jobs()
        self.wake()

    def hold_back(self, queue: str) -> None:
        """Claims nothing from the queue until go_on()."""
        self._polls[queue].held_back = True

    def go_on(self, queue: str) -> None:
        """Claims from the queue again. No error if it was not held back."""
        poll = self._polls[queue]
        poll.held_back, poll.due = False, True
        self.wake()

    def _end_rests(self) -> None:
        for poll in self._polls.values():
            self._end_rest(poll)

    def _end_rest(self, poll: QueuePoll) -> None:
        self._source.end_rest(poll.queue)
        poll.rests_until_s, poll.limits_changed = 0.0, True

    def _expect_jobs(self) -> None:
        for poll in self._polls.values():
            poll.due, poll.empty = True, False

    @property
    def ready(self) -> bool:
        """The worker hears from every server, its claims are answered, and no queue's last claim failed."""
        failing = any(poll.not_before_s for poll in self._polls.values()) or self.limit_rests.at_home()
        return self.claims > 0 and not failing and self._source.ready

    @property
    def empty(self) -> bool:
        """No queue had due jobs when it was last asked, and nothing notified since; or no more may be claimed."""
        return self.left <= 0 or all(poll.empty and not poll.due for poll in self._polls.values())

    @property
    def resting(self) -> bool:
        """Each queue that may have due jobs rests at a limit."""
        now_s = time.monotonic()
        rests = [poll.rests_until_s > now_s for poll in self._polls.values() if poll.due or not poll.empty]
        return bool(rests) and all(rests)

    def rank(self, job: Job) -> tuple[int, int]:
        """Of prefetched jobs: the lowest is the next to run."""
        return self._turns.rank(job.queue), job.priority

    # claiming

    async def run(self) -> None:
        """Claims until stop(); then asks for claims whose answers were lost, and leaves waiting to others."""
        while not self._stopping:
            if self._late:
                self._take_late()
            room = self._room()
            wanting = self._wanting(room)
            if room <= 0 or not wanting:
                if room > 0 or not await self._ask_for_lost():
                    await self._pause()
            else:
                queue, share = self._turns.next([poll.queue for poll in wanting], room)
                await self._try_claim(self._polls[queue], share)
        self._take_late()
        now_s = boot_s()
        await self._source.end_waits(lambda queue, claim: self._answered(self._polls[queue], [claim], now_s))

    async def claim_once(self, queue: str, limit: int) -> None:
        """Claims due jobs, without waiting for more."""
        await self._claim(self._polls[queue], limit, wait=False)

    def _wanting(self, room: int) -> list[QueuePoll]:
        now_s = time.monotonic()
        for poll in self._polls.values():
            if poll.timer_s <= now_s:
                poll.timer_s, poll.due, poll.notified = NEVER_S, True, True
            if room <= 0:
                self._pass_on(poll)
        return [poll for poll in self._polls.values() if poll.next_s() <= now_s]

    async def _pause(self) -> None:
        """Until something changed, or it is time for the next claim; a full worker still keeps its timers."""
        full, ask_again_s = self._room() <= 0, self._source.ask_again_s
        next_s = min(
            min(poll.timer_s, ask_again_s(poll.queue)) if full else poll.next_s() for poll in self._polls.values()
        )
        loop = asyncio.get_running_loop()
        pausing = self._pausing = loop.create_future()
        timer = None if next_s == NEVER_S else loop.call_at(_loop_time(next_s), self.wake)
        try:
            await pausing
        finally:
            self._pausing = None
            if timer is not None:
                timer.cancel()

    async def _ask_for_lost(self) -> bool:
        """Asks for claims whose answers were lost. A full worker makes no claim, which would. Returns if it asked."""
        now_s = time.monotonic()
        polls = [poll for poll in self._polls.values() if self._source.ask_again_s(poll.queue) <= now_s]
        for poll in polls:
            found = await self._source.ask_for_lost(poll.queue)
            self._late += [(poll, claim, sent_s, None) for claim, sent_s in found]
        return bool(polls)

    async def _try_claim(self, poll: QueuePoll, limit: int) -> None:
        try:
            heard = await self._claim(poll, limit, wait=True)
        except PinLaterError as error:
            self._put_off(poll, error)
        else:
            if heard and poll.worked():
                log.info("queue %s: claims work again", poll.queue)
                self.last_error = ""

    async def _claim(self, poll: QueuePoll, limit: int, *, wait: bool) -> bool:
        """False: no server is heard yet."""
        if poll.rests_until_s:
            self._source.end_rest(poll.queue)
        notified, poll.notified, poll.unregistered, poll.limits_changed = poll.notified, False, False, False
        sent_s, claims = boot_s(), None
        try:
            claims = await self._source.claim(poll.queue, limit, wait=wait)
        finally:
            if claims is None:  # another worker may have to claim
                poll.notified = poll.notified or notified
        if claims is None:
            poll.due, poll.safety_s = False, time.monotonic() + SAFETY_S[0]  # the subscription wakes us
            return False
        self._answered(poll, claims, sent_s)
        if not any(any(claim.left) for claim in claims):
            await asyncio.sleep(0)  # its jobs start before the next claim, which will find nothing
        return True

    def _answered(self, poll: QueuePoll, claims: list[Claim], sent_s: float, after_s: float | None = None) -> None:
        full = [claim for claim in claims if claim.jobs]
        count = sum([len(claim.jobs) for claim in full])
        self.left -= count
        self._turns.took(poll.queue, count)
        rest = None
        if full:
            self._take(poll.queue, full, sent_s, after_s)
            poll.gave_jobs()
        else:
            if poll.limits_changed:
                self._source.end_rest(poll.queue)
            rest = self._source.rest(poll.queue, claims)
            poll.gave_nothing(claims, self._source.ask_again_s(poll.queue))
            poll.due = poll.due or poll.limits_changed
            self._take(poll.queue, [], sent_s, after_s)
        poll.rests(rest)
        self.limit_rests.rests(poll.queue, rest)
        self.claims += len(claims) or (rest is not None and rest.limit is not Limit.HOME)
        if self.claims:
            self.answered.set()

    def _put_off(self, poll: QueuePoll, error: PinLaterError) -> None:
        self.last_error = f": {error}"
        if poll.failed():
            log.warning("queue %s: claim failed, trying again: %s", poll.queue, error)

    # events

    def on_notification(self, queue: str) -> None:
        """See JobEvents."""
        poll = self._polls.get(queue)
        if poll is None:
            return
        poll.due = poll.notified = True
        self.wake()
        if self._stopping:
            self._pass_on(poll)

    def on_limits_changed(self, queue: str) -> None:
        """See JobEvents."""
        if (poll := self._polls.get(queue)) is not None:
            self._end_rest(poll)
            poll.due = True
            self.wake()

    def on_blocking_claim(self, queue: str, answer: Claim | PinLaterError, sent_s: float, after_s: float) -> None:
        """See JobEvents."""
        poll = self._polls[queue]
        poll.unregistered = True
        if isinstance(answer, Claim) and answer.jobs:
            self._late.append((poll, answer, sent_s, after_s))
            if self._pausing is not None or self._stopping:
                self._take_late()
        poll.due = True
        self.wake()

    def _take_late(self) -> None:
        """Takes what blocking claims gave, and releases it where another claim took the room."""
        late, self._late = self._late, []
        for poll, claim, sent_s, after_s in late:
            if self._stopping or self._room() > 0:
                self._answered(poll, [claim], sent_s, after_s)
            else:
                self._background(self._release(claim.jobs))

    async def _release(self, jobs: Sequence[Job]) -> None:
        with suppress(PinLaterError):  # then they come back when their lease ends
            await self._source.release(jobs)

    def _pass_on(self, poll: QueuePoll) -> None:
        """Another worker may have room."""
        if poll.notified:
            poll.notified = False
            for notify in self._source.notify_others(poll.queue):
                self._background(notify)

    def on_subscribed(self, is_from: Callable[[Job], bool]) -> None:
        """See JobEvents: claims what came meanwhile, and looks for jobs that were removed meanwhile."""
        self._end_rests()
        for poll in self._polls.values():
            # notified: a claim under way may be answered for a moment before the subscription
            poll.due = poll.notified = True
        self.wake()
        self.heard_since_s = boot_s()
        self.check([job for job in self._held() if is_from(job)])

    def check(
        self,
        jobs: Sequence[Job],
        there: Callable[[set[str]], None] | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Looks jobs up, and reports those that were removed.

        there: gets the descriptors of the others. done: called at the end, however it comes.
        """
        if jobs:
            task = self._background(find_missed(self._source, jobs, self._removed, there))
            if done is not None:
                task.add_done_callback(lambda _: done())

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _loop_time(monotonic_s: float) -> float:
    """The same moment by the running loop's clock."""
    return asyncio.get_running_loop().time() + monotonic_s - time.monotonic()
