"""Every state that can be reached, nearest first; and how to get to the first that must not be.

Breadth first, so the way to a violation is a shortest one.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Final

from proofs.model.healing import Healer
from proofs.model.ledger import ViolationError
from proofs.model.state import Action, State
from proofs.model.world import World

PROGRESS_STATES: Final = 10_000
"""Between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    text: str
    actions: tuple[Action, ...]
    """From the initial state on; the last one breaks the invariant, or leads to where nothing can
    heal."""


@dataclass(frozen=True, slots=True)
class Exploration:
    states: int
    transitions: int
    depth: int
    """Steps from the initial state to the farthest, or to the violation."""
    healed: int
    """States from which it was shown that the world gets well."""
    seconds: float
    is_complete: bool
    """Whether every state was visited, and everything that may happen there."""
    violation: Violation | None


def explore(
    world: World,
    *,
    states_max: int | None = None,
    heal_every: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Exploration:
    """Visit the states of `world` until there are no new ones, one violates an invariant, or
    `states_max` are known.

    heal_every  look whether the world gets well from every so many-th state; None: from none.
    watch       is told how many states are known and how deep they lie.
    """
    was_collecting = gc.isenabled()
    gc.disable()  # All of it is kept, and none of it is part of a cycle.
    try:
        return _Explorer(world, states_max, heal_every, watch).run()
    finally:
        if was_collecting:
            gc.enable()


class _Explorer:
    def __init__(
        self,
        world: World,
        states_max: int | None,
        heal_every: int | None,
        watch: Callable[[int, int], None] | None,
    ) -> None:
        self.world = world
        self.states_max = states_max
        self.heal_every = heal_every
        self.watch = watch
        self.healer = Healer(world)
        self.healed = self.transitions = self.depth = 0
        self.states = [world.initial()]
        self.seen = set(self.states)
        self.parents = array("L", [0])

    def run(self) -> Exploration:
        started = perf_counter()
        violation, at, level_end, reported = None, 0, 1, 0
        while at < len(self.states) and violation is None and not self.is_full():
            if at == level_end:
                self.depth, level_end = self.depth + 1, len(self.states)
            violation = self.expand(at)
            at += 1
            if self.watch is not None and len(self.states) // PROGRESS_STATES > reported:
                reported = len(self.states) // PROGRESS_STATES
                self.watch(len(self.states), self.depth)
        return Exploration(
            len(self.states),
            self.transitions,
            self.depth if violation is None else len(violation.actions),
            self.healed,
            perf_counter() - started,
            at == len(self.states) and violation is None,
            violation,
        )

    def is_full(self) -> bool:
        return self.states_max is not None and len(self.states) >= self.states_max

    def expand(self, at: int) -> Violation | None:
        """Find what may follow on a state; return the violation that is met."""
        try:
            if self.heal_every is not None and at % self.heal_every == 0:
                self.healer.heal(self.states[at])
                self.healed += 1
        except ViolationError as error:
            return Violation(error.invariant, str(error), tuple(self.way_to(at)))
        try:
            for _, successor in self.world.successors(self.states[at]):
                self.transitions += 1
                if successor not in self.seen:
                    self.seen.add(successor)
                    self.states.append(successor)
                    self.parents.append(at)
        except ViolationError as error:
            actions = (*self.way_to(at), self.action(self.states[at], None))
            return Violation(error.invariant, str(error), actions)
        return None

    def way_to(self, at: int) -> list[Action]:
        path = [at]
        while path[-1]:
            path.append(self.parents[path[-1]])
        path.reverse()
        return [
            self.action(self.states[before], self.states[after]) for before, after in pairwise(path)
        ]

    def action(self, before: State, after: State | None) -> Action:
        """Return what leads from one state to another; None: to a violation."""
        for action in self.world.possible(before):
            try:
                found = self.world.after(before, action)
            except ViolationError:
                if after is None:
                    return action
            else:
                if found == after:
                    return action
        raise AssertionError("the same state has other successors now")
