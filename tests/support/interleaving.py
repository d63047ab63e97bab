"""Runs flows of several clients on one memory store, in every order of their steps.

Promises: a step is one script call, or the commands behind it in its pipeline. Of orders that differ only in steps that
touch different keys, or that only read, one is run. A request may be carried out later than its client believes, and
its answer may be lost.
Risks: one shard. A client that was refused twice dies, so that the orders are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, NamedTuple

from pinlater._core import pack_commands
from pinlater.memory.commands import run
from pinlater.memory.lua import Scripts
from pinlater.memory.store import Clock, CommandError, Store
from pinlater.model.errors import PinLaterError, ServerUnavailable
from pinlater.store.effects import Command, Flow, NoAnswer, ReplyError
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import Session
from tests.support.resp import parse_command

VERBS: Final = {script.sha: script.verb for script in load_scripts().values()}
#: Where a command works (m: keys of the queue shard, r: remnants, n: names), and whether it writes.
FOOTPRINTS: Final = {
    "config": ("m", False),
    "HGET": ("r", False),
    "permit": ("m", True),
    "create": ("m", True),
    "delete_queue": ("m", True),
    "keep_remnant": ("r", True),
    "forget_queue": ("m", True),
    "SADD": ("n", True),
    "SREM": ("n", True),
    "configure": ("m", True),
    "grant": ("m", True),
    "claim": ("m", True),
    "enqueue": ("m", True),
    "peek": ("m", False),
}
MOST_REFUSALS: Final = 1

#: A command as the server reads it.
Words = list[bytes]
#: A client's calls, one after the other: each makes a flow.
Calls = Sequence[Callable[[Session], Flow[Any]]]
#: What happens to a client's n-th request: its answer is lost, or it is carried out later than the client gave it up.
Fate = Literal["answer lost", "late"]


class StepClock(Clock):
    """Moves by so many microseconds a look; back if negative."""

    def __init__(self, step_us: int) -> None:
        super().__init__()
        self.us, self.step_us = 1_900_000_000_000_000, step_us

    def now_us(self) -> int:
        self.us += self.step_us
        return self.us


class World:
    """A store without a network."""

    def __init__(self, step_us: int) -> None:
        self._step_us = step_us
        self.store = Store(StepClock(step_us), lambda _, __: 0, lambda _: 0)
        self._scripts = Scripts(self.store)
        for script in load_scripts().values():
            self._scripts.load(script.source)

    def clear(self) -> None:
        self.store.clear()
        self.store.clock = StepClock(self._step_us)

    def answer(self, words: Words) -> Any:
        name, *arguments = words
        try:
            if name == b"EVALSHA":
                return self._scripts.run(arguments[0], arguments[1:])
            return run(self.store, name, arguments)
        except CommandError as error:
            return ReplyError(str(error))


class Step(NamedTuple):
    """Commands that are carried out at once. places: where they read or write."""

    commands: list[Words]
    places: frozenset[tuple[str, bool]]

    def is_independent(self, other: Step) -> bool:
        return not any(
            place == there and (writes or changes) for place, writes in self.places for there, changes in other.places
        )


def steps_of(commands: Sequence[Command]) -> list[Step]:
    """A pipeline as steps: each script, and what is behind it."""
    groups: list[list[Words]] = []
    was_script = True
    for words in map(_words, commands):
        is_script = words[0] == b"EVALSHA"
        if is_script or was_script or not groups:
            groups.append([])
        groups[-1].append(words)
        was_script = is_script
    return [Step(group, frozenset(FOOTPRINTS[verb_of(words)] for words in group)) for group in groups]


def _words(command: Command) -> Words:
    return parse_command(pack_commands([command]))


def verb_of(words: Words) -> str:
    """The verb of a script, or the name of a command."""
    return VERBS[words[1]] if words[0] == b"EVALSHA" else words[0].decode()


@dataclass
class Runner:
    """One client in one order of steps. fates: by the number of its request. dies_after: so many steps."""

    calls: Calls
    fates: dict[int, Fate] = field(default_factory=dict)
    dies_after: int = 10**9
    results: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = Session({"1": "redis://nowhere:1"})
        for server in self.session.servers:
            server.contacted = True
        self.late: list[list[Step]] = []
        self.died = False
        self._left = list(self.calls)
        self._flow: Flow[Any] | None = None
        self._steps: list[Step] = []
        self._answers: list[Any] = []
        self._requests = self._refusals = self._done = 0
        self._next_call()

    @property
    def next_step(self) -> Step | None:
        return self._steps[0] if self._steps else None

    def step(self, world: World) -> None:
        step = self._steps.pop(0)
        answers = [world.answer(words) for words in step.commands]
        self._answers += answers
        self._refusals += any(isinstance(one, ReplyError) and one.text.startswith("CONFIG_CHANGED") for one in answers)
        self._done += 1
        if self._refusals > MOST_REFUSALS or self._done >= self.dies_after:
            self.died = True
            self._steps, self._left = [], []
        elif not self._steps:
            lost = self.fates.get(self._requests) == "answer lost"
            self._advance([_lost()] * len(self._answers) if lost else self._answers)

    def _next_call(self) -> None:
        if self._left:
            self._flow = self._left.pop(0)(self.session)
            self._advance(None)

    def _advance(self, answers: Any) -> None:
        assert self._flow is not None
        try:
            effect = self._flow.send(answers if answers is None else [answers])
            while not isinstance(effect, list):
                effect = self._flow.send(None)  # a pause takes no time
        except StopIteration as stop:
            self.results.append(stop.value)
            self._next_call()
        except PinLaterError as error:
            self.results.append(error)
            self._next_call()
        else:
            (only,) = effect
            self._requests += 1
            self._steps, self._answers = steps_of(only.commands), []
            if self.fates.get(self._requests) == "late":
                self.late.append(self._steps)
                self._advance([_lost()] * len(only.commands))


def _lost() -> NoAnswer:
    return NoAnswer(True, ServerUnavailable("the answer was lost"))


#: What chooses the next client: the number of steps before, and the clients that may be next.
Choose = Callable[[int, list[int]], int]


def every_order(
    world: World,
    before: Calls,
    make: Callable[[], list[Runner]],
    witness: Callable[[], Callable[[World], None]],
    sample: int | None = None,
) -> Iterator[list[Runner]]:
    """Runs the clients in every order; yields them at the end of each.

    before: what another client has done. witness: makes what looks at the world at first and after each step.
    sample: so many orders at random instead, the same ones each time.
    """
    for choose in _all_choices() if sample is None else _some_choices(sample):
        world.clear()
        run_alone(world, before)
        runners = make()
        if _one_order(world, runners, witness(), choose):
            yield runners


def _all_choices() -> Iterator[Choose]:
    made: list[tuple[int, list[int]]] = []  # what was chosen at each step, and what is left to choose

    def choose(depth: int, open_: list[int]) -> int:
        if depth == len(made):
            made.append((open_[0], open_[1:]))
        return made[depth][0]

    while True:
        yield choose
        while made and not made[-1][1]:
            made.pop()
        if not made:
            return
        _, left = made.pop()
        made.append((left[0], left[1:]))


def _some_choices(count: int) -> Iterator[Choose]:
    chance = Random(0)
    for _ in range(count):
        yield lambda _, open_: chance.choice(open_)


def run_alone(world: World, calls: Calls) -> list[Any]:
    """The results of these calls of one client."""
    runner = Runner(calls)
    while runner.next_step:
        runner.step(world)
    return runner.results


def _one_order(world: World, runners: list[Runner], check: Callable[[World], None], choose: Choose) -> bool:
    """Runs one order. Returns False if another one is the same."""
    late: list[list[Step]] = []  # each goes on as one more client
    last: tuple[int, Step] | None = None
    depth = 0
    check(world)
    while True:
        late += [steps for runner in runners for steps in runner.late]
        for runner in runners:
            runner.late.clear()
        steps = [runner.next_step for runner in runners] + [left[0] if left else None for left in late]
        # of two neighbours that are independent the first client's comes first
        open_ = [
            number
            for number, step in enumerate(steps)
            if step and not (last and number < last[0] and step.is_independent(last[1]))
        ]
        if not open_:
            return not any(steps)
        number = choose(depth, open_)
        step = steps[number]
        assert step is not None
        if number < len(runners):
            runners[number].step(world)
        else:
            for words in late[number - len(runners)].pop(0).commands:
                world.answer(words)
        last, depth = (number, step), depth + 1
        check(world)
