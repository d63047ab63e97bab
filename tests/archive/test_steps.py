"""Each step of the protocol and each fault at it: all jobs run once, unchanged, and both audits are clean.

An archiver spills, restores or recovers. At one of its steps a fault comes. Then a fresh archiver recovers and
restores, and workers run everything. PINLATER_CAMPAIGN=1 has all of it; each day has a part.

Risks: one archiver at a time, or a zombie and its rescuer. `test_archive_machine.py` has more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pinlater.archive.incarnations import incarnation_of
from pinlater.archive.restores import Wanted, begin
from tests.archive.stepper import Fault, Killed, Perform, Stepper
from tests.archive.world import (
    Act,
    World,
    nothing,
    recovery,
    restore,
    run,
    small_batches,
    spill,
    spilled,
    stopped,
    world,
)
from tests.support import cut_proxy, mysql_proxy

__all__ = ["small_batches", "world"]

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
#: A fault comes at every so many steps, from another first step in each test. A campaign has all steps.
STRIDE, DEAR_STRIDE = (1, 1) if CAMPAIGN else (24, 48)
#: A server that is away is away for longer.
TIMEOUT_S = 1.0
#: Every scenario has more steps than this.
LEAST_STEPS = 5

SCENARIOS: dict[str, tuple[Callable[[World], None], Act]] = {
    "spill": (nothing, spill),
    "restore": (spilled, restore),
    "abort": (stopped(spill, "read_batch"), recovery),
    "end of a committed batch": (stopped(spill, "finalize"), recovery),
    "end of a batch that Redis has not": (stopped(spill, "finalize", "mark_finalized"), recovery),
    "end of a restore": (stopped(restore, "restore", "_drop", before=spilled), recovery),
    "end of a restore without rows": (stopped(restore, "close", before=spilled), recovery),
}

# What happens at a step. Each returns what stands for it.

FaultOf = Callable[[World], Fault]


def killed_before(_world: World) -> Fault:
    def fault(_perform: Perform) -> Any:
        raise Killed

    return fault


def killed_after(_world: World) -> Fault:
    def fault(perform: Perform) -> Any:
        perform()
        raise Killed

    return fault


def cut(name: str, statement: bytes = b"", reply_bytes: int = 0) -> FaultOf:
    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            world.redis_proxy.arm(cut_proxy.Cut[name], match=lambda _: True, reply_bytes=reply_bytes)
            world.mysql_proxy.arm(statement, mysql_proxy.Cut[name])
            try:
                return perform()
            finally:
                world.redis_proxy.disarm()
                world.mysql_proxy.disarm()

        return fault

    return at


def restarted_before(which: str) -> FaultOf:
    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            getattr(world, which).restart(kill=True)
            return perform()

        return fault

    return at


def restarted_after(which: str) -> FaultOf:
    """Its answer is lost too."""

    def at(world: World) -> Fault:
        lose = cut("AFTER", b"COMMIT")(world)

        def fault(perform: Perform) -> Any:
            outcome = lose(perform)
            getattr(world, which).restart(kill=True)
            return outcome

        return fault

    return at


def away(which: str) -> FaultOf:
    """Until the archiver ends, or the step is over."""

    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            getattr(world, which).kill()
            try:
                return perform()
            finally:
                getattr(world, which).start()

        return fault

    return at


def went_back(*, killed: bool) -> FaultOf:
    """Redis forgets what nobody waited for, and so may the archiver be."""

    def at(world: World) -> Fault:
        world.watch_disk()

        def fault(perform: Perform) -> Any:
            world.go_back()
            if killed:
                raise Killed
            return perform()

        return fault

    return at


def zombie(rescue: Callable[[World], None]) -> FaultOf:
    """It is stopped, others do its work and more, then it goes on."""

    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            rescue(world)
            return perform()

        return fault

    return at


def recovered(world: World) -> None:
    world.rig.recover()


def half_ran(world: World) -> None:
    world.rig.recover()
    world.rig.restore()
    world.run_jobs(2)


def spilled_again(world: World) -> None:
    world.rig.recover()
    world.rig.restore()
    world.run_jobs(1)
    world.rig.spill()


def all_ran(world: World) -> None:
    world.rig.recover()
    world.rig.restore()
    world.run_jobs()


def restore_began(world: World) -> None:
    """It is open in MySQL, and Redis does not know it yet."""
    rig = world.rig
    rig.recover()
    incarnation = rig.client.run(lambda end: incarnation_of(rig.database, rig.queue_shard, end))
    rig.client.run(lambda _: begin(rig.database, incarnation, Wanted(1), 3))


def lost(world: World) -> None:
    """Redis knows no more what ended."""
    all_ran(world)
    world.server.call("FLUSHALL")
    world.rig.create()


def late(done: Callable[[World], None], *, twice: bool) -> FaultOf:
    """The archiver is killed. Its request reaches the store after all that others did. twice: and before it too."""

    def at(world: World) -> Fault:
        def fault(perform: Perform) -> Any:
            if twice:
                perform()

            def come_late() -> None:
                done(world)
                perform()

            world.held.append(come_late)
            raise Killed

        return fault

    return at


CHEAP: dict[str, FaultOf] = {
    "killed before": killed_before,
    "killed after": killed_after,
    "cut before": cut("BEFORE"),
    "cut after": cut("AFTER"),
    "cut in the reply": cut("REPLY", reply_bytes=3),
    "cut before COMMIT": cut("BEFORE", b"COMMIT"),
    "cut after COMMIT": cut("AFTER", b"COMMIT"),
    "cut in the answer to COMMIT": cut("REPLY", b"COMMIT"),
    "zombie of a recovery": zombie(recovered),
    "zombie of a worker": zombie(half_ran),
    "zombie of a spill": zombie(spilled_again),
    "zombie of all": zombie(all_ran),
    "zombie of a loss": zombie(lost),
    "zombie of a restore": zombie(restore_began),
    "late": late(recovered, twice=False),
    "late to a worker": late(half_ran, twice=False),
    "late to a spill": late(spilled_again, twice=False),
    "late to all": late(all_ran, twice=False),
    "late to a loss": late(lost, twice=False),
    "twice": late(recovered, twice=True),
    "twice with a worker": late(half_ran, twice=True),
    "twice with a spill": late(spilled_again, twice=True),
    "twice with all": late(all_ran, twice=True),
}
DEAR: dict[str, FaultOf] = {
    f"{name} {what}": of(which)
    for name, which in (("Redis", "server"), ("MariaDB", "mariadb"))
    for what, of in (("killed before", restarted_before), ("killed after", restarted_after), ("away", away))
}
DEAR |= {
    "Redis goes back in time": went_back(killed=False),
    "Redis goes back in time, the archiver is killed": went_back(killed=True),
}


def reaches(world: World, scenario: str, fault: FaultOf, number: int) -> bool:
    """One case. Returns whether the archiver reached that step."""
    prepare, act = SCENARIOS[scenario]
    world.begin()
    prepare(world)

    def is_there(at: int, name: str) -> bool:
        world.reach(name)
        return at == number

    stepper = Stepper(world.client(TIMEOUT_S), is_there, fault(world))
    try:
        run(act, stepper, world)
        world.look()
        world.late()
        world.look()
        world.rig.recover()
        world.rig.restore()
        world.look()
        world.run_jobs()
        world.rig.recover()
        assert world.rig.restore() == 0
        world.run_jobs()
        assert sorted(world.ran) == sorted(world.names)
        world.rig.check()
    except BaseException as error:
        error.add_note(f"{scenario}: step {number}: {stepper.faulty}")
        raise
    finally:
        world.end()
    return bool(stepper.faulty)


def all_steps(world: World, scenario: str, fault: FaultOf, first: int = 0, stride: int = 1) -> None:
    """One case each for so many steps. Every scenario has LEAST_STEPS steps or more."""
    number = first
    while reaches(world, scenario, fault, number):
        number += stride
    assert number > LEAST_STEPS


def daily(scenarios: Iterable[str]) -> list[Any]:
    """The scenarios that have most steps each day, the others in CI."""
    thorough = pytest.mark.thorough("archive-steps")
    return [pytest.param(each, marks=[] if each in ("spill", "restore") else [thorough]) for each in scenarios]


@pytest.mark.parametrize("scenario", daily(SCENARIOS))
def test_each_step_and_each_fault(scenario: str, world: World) -> None:
    """A sample: each step of a scenario meets some fault, and each fault some step of a spill and of a restore."""
    faults = list((CHEAP | DEAR).values())
    first = 5 * list(SCENARIOS).index(scenario)
    number = 0
    while reaches(world, scenario, faults[(first + number) % len(faults)], number):
        number += 1
    assert number > LEAST_STEPS
    others = range(number, len(faults)) if scenario in ("spill", "restore") else ()
    for at in others:
        assert reaches(world, scenario, faults[(first + at) % len(faults)], at % number)


def pairs(faults: dict[str, FaultOf]) -> list[Any]:
    """Each scenario with each fault; outside a campaign each fault with one of the scenarios."""
    left_out = pytest.mark.campaign("archive-steps")
    return [
        pytest.param(scenario, fault, marks=[left_out] if (at + number) % len(SCENARIOS) else [])
        for at, scenario in enumerate(SCENARIOS)
        for number, fault in enumerate(faults)
    ]


@pytest.mark.thorough("archive-steps")
@pytest.mark.parametrize(("scenario", "fault"), pairs(CHEAP))
def test_a_fault_at_each_step(scenario: str, fault: str, world: World) -> None:
    first = (list(SCENARIOS).index(scenario) + list(CHEAP).index(fault)) % STRIDE
    all_steps(world, scenario, CHEAP[fault], first, STRIDE)


@pytest.mark.thorough("archive-steps")
@pytest.mark.parametrize(("scenario", "fault"), pairs(DEAR))
def test_a_server_is_killed_at_each_step(scenario: str, fault: str, world: World) -> None:
    first = (list(SCENARIOS).index(scenario) + list(DEAR).index(fault)) % DEAR_STRIDE
    all_steps(world, scenario, DEAR[fault], first, DEAR_STRIDE)
