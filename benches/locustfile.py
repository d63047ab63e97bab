"""A load of producers, workers and operators, for locust. benches/README.md shows how to run it.

    locust -f benches/locustfile.py --headless --host thrift://127.0.0.1:9010 --users 200 --run-time 60
    locust -f benches/locustfile.py --headless --host redis://127.0.0.1:6379 --shape spike --processes 2

The scheme of the host chooses the users: `thrift` has a connection for each user, anything else is a URL of servers
that the users of a process reach by one asyncio client. After the time of the shape all users stop. Then workers alone
come back until the queue is empty, and the exit code is 1 unless each job ran once.

Rows of the type `jobs` count jobs, where the others count requests. The time of `enqueued` is that of its call; the
time of `ran` is that since the enqueue.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import gevent
from locust import LoadTestShape, User, between, events, task
from locust.runners import MasterRunner, WorkerRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches.load.calls import Calls, Direct, DirectCalls, Failed, Held, ThriftCalls
from benches.load.shapes import AT_ONCE, SHAPES, Patience, target
from benches.load.tally import Ledger, Tally, read_body

DEFAULT_HOST = "thrift://127.0.0.1:9010"
DEFAULT_S = 60
QUEUE = "load"
#: Jobs of a large enqueue, and of a dequeue at most.
MANY = 50
REPORT_S = 1.0
#: Users that stop finish their call first, so that no job is left with one.
STOP_S = 30
#: The end does not wait longer for a job that does not come.
LOST_S = 10.0
MESSAGE = "jobs"


def unbroken(work: Callable[[Any], None]) -> Callable[[Any], None]:
    """Makes a method that goes on to its end when locust stops the user.

    locust kills a user that waits. One whose wait has just ended may be in its next call by then, and the jobs of that
    call would be left running.
    """

    @wraps(work)
    def run(user: Any) -> None:
        running = gevent.spawn(work, user)
        try:
            running.get()
        except gevent.GreenletExit:
            running.join()
            raise

    return run


class LoadUser(User):
    """A user with its calls. role: the shapes choose by it."""

    abstract = True
    role = ""

    def on_start(self) -> None:
        self.environment.creating.join()
        self.tally: Tally = self.environment.tally
        self.calls = calls_of(self.environment)

    def on_stop(self) -> None:
        self.calls.close()

    def log_jobs(self, name: str, times_ms: list[float], size: int) -> None:
        """Counts jobs in the statistics, beside the requests and not in their sum."""
        entry = self.environment.stats.get(name, "jobs")
        for time_ms in times_ms:
            entry.log(time_ms, size)


class Producer(LoadUser):
    """Nine of ten calls enqueue one job, the others 50."""

    role = "producer"
    weight = 4
    wait_time = between(0.05, 0.15)

    @task(9)
    @unbroken
    def enqueue_one(self) -> None:
        self._enqueue(1)

    @task(1)
    @unbroken
    def enqueue_many(self) -> None:
        self._enqueue(MANY)

    def _enqueue(self, count: int) -> None:
        numbers, bodies = self.tally.issue(count)
        start_s = time.perf_counter()
        with suppress(Failed):
            self.calls.enqueue(QUEUE, bodies)
            self.tally.enqueued(numbers)
            self.log_jobs("enqueued", [(time.perf_counter() - start_s) * 1000] * count, len(bodies[0]))


class Worker(LoadUser):
    """Takes up to 50 jobs a call, and acks those of the call before."""

    role = "worker"
    weight = 5

    def on_start(self) -> None:
        super().on_start()
        self.ended: list[Held] = []

    def wait_time(self) -> float:
        """A worker with jobs goes on at once."""
        return 0.0 if self.ended else 0.1

    @task
    @unbroken
    def work(self) -> None:
        with suppress(Failed):
            jobs = self.calls.take(QUEUE, MANY, self.ended, self._acked)
            found = [read_body(held.body) for held in jobs]
            now_ms = time.time() * 1000
            self.tally.ran(key for key, _ in found)
            self.log_jobs("ran", [max(0.0, now_ms - enqueued_ms) for _, enqueued_ms in found], 0)
            self.ended = jobs

    def _acked(self, jobs: list[Held]) -> None:
        self.tally.acked(read_body(held.body)[0] for held in jobs)
        self.ended = []

    @unbroken
    def on_stop(self) -> None:
        if self.ended:
            with suppress(Failed):
                self.calls.ack(QUEUE, self.ended, self._acked)
        super().on_stop()


class Operator(LoadUser):
    """Looks at the queue."""

    role = "operator"
    weight = 1
    wait_time = between(0.5, 1.5)

    @task(3)
    @unbroken
    def count(self) -> None:
        with suppress(Failed):
            self.calls.count(QUEUE)

    @task(1)
    @unbroken
    def look(self) -> None:
        with suppress(Failed):
            descriptors = self.calls.scan(QUEUE)
            if descriptors:
                self.calls.lookup(descriptors[:MANY])


class Load(LoadTestShape):
    """The shape of --shape, and its end: all users stop, then workers empty the queue."""

    use_common_options = True

    def __init__(self) -> None:
        super().__init__()
        self._ending = self._emptying = False
        self._until_idle = Patience(STOP_S + LOST_S)
        self._until_empty = Patience(LOST_S)

    def tick(self) -> tuple[int, float, list[type[User]]] | None:
        options = self.runner.environment.parsed_options
        users, seconds = options.num_users or 1, float(options.run_time or DEFAULT_S)
        wanted = target(options.shape, users, seconds, self.get_run_time())
        if wanted is not None:
            return wanted.users, wanted.rate, self._classes(wanted.roles)
        ledger: Ledger = self.runner.environment.ledger
        if not self._ending:
            self._ending = True
            ledger.await_idle()
        return self._end(ledger, max(1, users // 2), time.monotonic())

    def _end(self, ledger: Ledger, workers: int, now_s: float) -> tuple[int, float, list[type[User]]] | None:
        if not self._emptying:
            self._emptying = ledger.is_idle(self.runner.worker_count) or self._until_idle.is_over(None, now_s)
            if not self._emptying:
                return 0, AT_ONCE, self._classes(frozenset())
        found, classes = ledger.outcome(), self._classes(frozenset({Worker.role}))
        counted: int = self.runner.stats.get("ran", "jobs").num_requests
        # the statistics of other processes come later than their reports
        is_done = found.enqueued and not found.lost and counted >= found.acked
        if is_done or not classes or self._until_empty.is_over((found.acked, found.foreign, counted), now_s):
            return None
        return workers, AT_ONCE, classes

    def _classes(self, roles: frozenset[str]) -> list[type[User]]:
        every = self.runner.user_classes
        return [each for each in every if not roles or getattr(each, "role", "") in roles]


def calls_of(environment: Any) -> Calls:
    """The calls of a user."""
    host, direct = environment.host or DEFAULT_HOST, environment.direct

    def log(method: str, start_s: float, failure: Exception | None) -> None:
        environment.events.request.fire(
            request_type="thrift" if direct is None else "direct",
            name=method,
            response_time=(time.perf_counter() - start_s) * 1000,
            response_length=0,
            exception=failure,
            context={},
        )

    @contextmanager
    def measure(method: str) -> Iterator[None]:
        start_s = time.perf_counter()
        try:
            yield
        except Exception as error:
            log(method, start_s, error)
            raise Failed from error
        log(method, start_s, None)

    return ThriftCalls(host, measure) if direct is None else DirectCalls(direct, measure)


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    parser.add_argument("--shape", choices=SHAPES, default="sustained", help="how the users come and go")


@events.init.add_listener
def prepare(environment: Any, runner: Any, **_: Any) -> None:
    environment.stop_timeout = environment.stop_timeout or STOP_S
    environment.ledger = Ledger()
    if isinstance(runner, MasterRunner):
        runner.register_message(MESSAGE, lambda environment, msg: environment.ledger.merge(msg.data))


@events.test_start.add_listener
def start(environment: Any, **_: Any) -> None:
    """Each process with users: its tally, its client and the queue."""
    if isinstance(environment.runner, MasterRunner):
        return
    is_thrift = (environment.host or DEFAULT_HOST).startswith("thrift:")
    environment.tally = Tally()
    environment.direct = None if is_thrift else Direct(environment.host)
    environment.creating = gevent.spawn(create_queue, environment)  # this greenlet reads the master's messages
    environment.reporting = gevent.spawn(report_often, environment)


def create_queue(environment: Any) -> None:
    calls = calls_of(environment)
    with suppress(Failed):
        calls.create_queue(QUEUE)
    calls.close()


def report_often(environment: Any) -> None:
    while True:
        gevent.sleep(REPORT_S)
        report(environment)


def report(environment: Any) -> None:
    runner = environment.runner
    found = environment.tally.report(runner.user_count)
    if isinstance(runner, WorkerRunner):
        runner.send_message(MESSAGE, found)
    else:
        environment.ledger.merge(found)


@events.test_stop.add_listener
def stop(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        return
    environment.reporting.kill()
    report(environment)
    if environment.direct is not None:
        environment.direct.close()


@events.quitting.add_listener
def check(environment: Any, **_: Any) -> None:
    """Sets the exit code. If it stays unset, locust's own is 1 for any failed request."""
    if isinstance(environment.runner, WorkerRunner):
        return
    found = environment.ledger.outcome()
    if not found.is_once:
        environment.process_exit_code = 1
    environment.events.quit.add_listener(lambda **_: print(found.sentence, flush=True))
