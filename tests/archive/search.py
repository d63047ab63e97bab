"""Visits all worlds of the protocol's model, the nearest first.

Promises that a violation comes with one of the shortest traces that lead to it, and that a world from which nobody can
end the work, without luck and without faults, is a violation too.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.archive.protocol_model import Model, ended, violation
from tests.archive.protocol_worlds import Setting, World


class Result(NamedTuple):
    """problem: '' if all is well. trace: the steps that lead to it. complete: all worlds were visited."""

    problem: str
    trace: list[str]
    worlds: int
    complete: bool

    def __str__(self) -> str:
        head = f"{self.problem or 'no violation'} ({self.worlds} worlds{'' if self.complete else ', not all'})"
        return "\n  ".join([head, *self.trace])


def explore(setting: Setting, limit: int = 3_000_000) -> Result:
    """Visits the worlds of a setting, nearest first, until one is wrong."""
    model = Model(setting)
    worlds = [model.first()]
    index, parents, before = {worlds[0]: 0}, [0], [[]]  # type: tuple[dict[World, int], list[int], list[list[int]]]
    at = 0
    while at < len(worlds) < limit:
        world = worlds[at]
        if wrong := violation(world):
            return Result(wrong, _trace(model, worlds, parents, at), len(worlds), False)
        for move in model.moves(world):
            to = index.setdefault(move.world, len(worlds))
            if to == len(worlds):
                worlds.append(move.world)
                parents.append(at)
                before.append([])
            if not move.fault:
                before[to].append(at)
        at += 1
    if at < len(worlds):
        return Result("", [], len(worlds), False)
    stuck = _never_ends(worlds, before)
    if stuck is not None:
        return Result("it never ends", _trace(model, worlds, parents, stuck), len(worlds), True)
    return Result("", [], len(worlds), True)


def _never_ends(worlds: list[World], before: list[list[int]]) -> int | None:
    """The first world from which no path without faults leads to an end."""
    to_visit = [at for at, world in enumerate(worlds) if ended(world)]
    ends = bytearray(len(worlds))
    for at in to_visit:
        ends[at] = 1
    while to_visit:
        for earlier in before[to_visit.pop()]:
            if not ends[earlier]:
                ends[earlier] = 1
                to_visit.append(earlier)
    at = ends.find(0)
    return None if at < 0 else at


def _trace(model: Model, worlds: list[World], parents: list[int], at: int) -> list[str]:
    texts: list[str] = []
    while at:
        texts.append(next(move.text for move in model.moves(worlds[parents[at]]) if move.world == worlds[at]))
        at = parents[at]
    return texts[::-1]
