"""What is explored: a scope, how its replicas behave, and the product, as it is or changed.

`CHECKS` are the worlds of the product as it is. Together they have what the fault model allows, a
few of each kind at a time; each is explored to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from waltz.sim.model.explore import Exploration, explore
from waltz.sim.model.replica import CORRECT, ReplicaRules
from waltz.sim.model.scope import INVARIANTS, Scope
from waltz.sim.model.world import World

HARM: Final = ("I1", "I3", "I4", "I5")
"""What users would see. Other invariants are broken earlier, often by the change itself."""


@dataclass(frozen=True, slots=True)
class Patch:
    """`owner`'s attribute `name` becomes what `change` makes of it."""

    owner: Any
    name: str
    change: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    scope: Scope
    rules: ReplicaRules = CORRECT
    patches: tuple[Patch, ...] = ()
    invariants: tuple[str, ...] = INVARIANTS
    """What is looked at, besides the product's own assertions."""
    heal_every: int | None = None

    def world(self) -> World:
        return World(self.scope, self.rules, self.invariants)

    @contextmanager
    def applied(self) -> Iterator[None]:
        originals = [getattr(patch.owner, patch.name) for patch in self.patches]
        try:
            for patch, original in zip(self.patches, originals, strict=True):
                setattr(patch.owner, patch.name, patch.change(original))
            yield
        finally:
            for patch, original in zip(self.patches, originals, strict=True):
                setattr(patch.owner, patch.name, original)

    def explore(
        self,
        *,
        states_max: int | None = None,
        watch: Callable[[int, int], None] | None = None,
    ) -> tuple[World, Exploration]:
        with self.applied():
            world = self.world()
            return world, explore(
                world, states_max=states_max, heal_every=self.heal_every, watch=watch
            )


CHECKS: Final = (
    Case(
        "from nothing",
        Scope(sessions=2, transaction_ids=1, appends=1, cuts=1),
        heal_every=10,
    ),
    Case(
        "all replicas exchanged",
        Scope(
            starts_with=2,
            replicas=2,
            spares=2,
            servers=1,
            transaction_ids=1,
            appends=1,
            cuts=0,
            exchanges=2,
        ),
        heal_every=20,
    ),
)
