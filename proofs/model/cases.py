"""What is explored: a scope, how its replicas behave, and the product, as it is or changed.

`CHECKS` are the worlds of the product as it is. Together they have what the fault model allows, a
few of each kind at a time; each is explored to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from proofs.model.explore import Exploration, explore
from proofs.model.replica import CORRECT, ReplicaRules
from proofs.model.scope import INVARIANTS, LOST_HELPER_INVARIANTS, Scope
from proofs.model.world import World
from proofs.patches import Patch, patched

HARM: Final = ("I1", "I3", "I4", "I5")
"""What users would see. Other invariants are broken earlier, often by the change itself."""

KEPT: Final = tuple(each for each in HARM if each != "I5")
"""The part of `HARM` that is kept if the coordinator is set back into the opening of a session in
which nothing was written: what that session decided against may come back (decision 0030)."""


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

    def applied(self) -> AbstractContextManager[None]:
        return patched(self.patches)

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
        "a connection is cut",
        Scope(starts_with=3, sessions=3, transaction_ids=3, appends=2, cuts=1),
        heal_every=100,
    ),
    Case(
        "a replica crashes",
        Scope(starts_with=3, sessions=2, transaction_ids=2, appends=2, batch=2, cuts=0, crashes=1),
        heal_every=100,
    ),
    Case(
        "three appends in three sessions",
        Scope(starts_with=3, sessions=3, transaction_ids=3, appends=3, cuts=0),
        heal_every=100,
    ),
    Case(
        "a disk is blank",
        Scope(starts_with=3, sessions=3, transaction_ids=2, appends=1, cuts=0, blanks=1),
        heal_every=100,
    ),
    Case(
        "a disk is rolled back",
        Scope(starts_with=3, sessions=2, transaction_ids=2, appends=1, cuts=0, rollbacks=1),
        heal_every=100,
    ),
    Case(
        "an answer of the coordinator is lost",
        Scope(starts_with=3, sessions=3, transaction_ids=2, appends=1, cuts=0, lost_writes=1),
        heal_every=100,
    ),
    Case(
        "a slow replica takes another one's place",
        Scope(
            starts_with=2,
            servers=1,
            sessions=2,
            appends=1,
            cuts=0,
            spares=1,
            replacements=1,
            is_reduced=False,
        ),
    ),
    Case(
        "all replicas replaced",
        Scope(
            starts_with=2,
            replicas=2,
            spares=2,
            servers=1,
            transaction_ids=1,
            appends=1,
            cuts=0,
            replacements=2,
        ),
        heal_every=20,
    ),
    Case(
        "a disk is blank and a replica crashes",
        Scope(
            starts_with=3,
            sessions=2,
            transaction_ids=2,
            appends=1,
            cuts=0,
            blanks=1,
            crashes=1,
        ),
        heal_every=100,
    ),
    Case(
        "a replica of three is replaced while servers change",
        Scope(
            starts_with=3,
            spares=1,
            sessions=2,
            transaction_ids=1,
            appends=1,
            cuts=0,
            replacements=1,
        ),
        heal_every=100,
    ),
    Case(
        "a slow replica takes another one's place while servers change",
        Scope(
            starts_with=2,
            replicas=2,
            spares=1,
            sessions=2,
            transaction_ids=1,
            appends=1,
            cuts=0,
            replacements=1,
            is_reduced=False,
        ),
    ),
    Case(
        "the metadata become what they were",
        Scope(starts_with=2, sessions=5, transaction_ids=2, appends=1, cuts=0, set_backs=1),
        invariants=HARM,
    ),
    Case(
        "the metadata become what they were, a replica is away",
        Scope(starts_with=2, sessions=5, transaction_ids=2, appends=1, cuts=1, set_backs=1),
        invariants=KEPT,
    ),
    Case(
        "a replica that made a majority in a failed recovery loses its disk",
        Scope(starts_with=2, servers=1, sessions=3, transaction_ids=1, appends=1, cuts=2, blanks=1),
        invariants=LOST_HELPER_INVARIANTS,
        heal_every=100,
    ),
)
