"""From every state the world gets well, and a world that cannot is found (I12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from proofs.model.explore import explore
from proofs.model.healing import Healer
from proofs.model.scope import Scope
from proofs.model.state import Action
from proofs.model.world import World
from waltz.store.recovery import Recovery


def test_a_session_that_lost_its_majority_is_followed_by_another() -> None:
    world = World(Scope(starts_with=2, servers=1, sessions=1, cuts=1))
    state = world.after(world.initial(), Action("cut", 0, 0))
    Healer(world).heal(state)


def test_the_latest_owner_is_the_one_that_goes_on() -> None:
    world = World(Scope(starts_with=3, sessions=1))
    state = world.after(world.initial(), Action("start", 1))
    Healer(world).heal(state)


def test_a_replica_that_was_taken_away_is_put_back_where_another_has_lost_its_disk() -> None:
    """{A, B} -> {A, D} while A is blank: what is committed is on B alone."""
    scope = Scope(starts_with=2, servers=1, spares=1, replacements=1, blanks=1, cuts=0)
    world = World(scope)
    state = world.initial()
    for action in (
        Action("submit", 0, number=1),
        Action("arrive", 0, 0),
        Action("arrive", 0, 1),
        Action("blank", replica=0),
        Action("replace_replica", replica=3, number=1),
    ):
        state = world.after(state, action)
    Healer(world).heal(state)


def test_every_state_of_a_world_with_faults_heals() -> None:
    found = explore(
        World(Scope(starts_with=2, servers=1, sessions=2, appends=1, cuts=0, blanks=1)),
        heal_every=1,
    )
    assert (found.violation, found.is_complete) == (None, True)
    assert found.healed == found.states > 2_000


def never_admitting(propose: Callable[..., None]) -> Callable[..., None]:
    def proposed(self: Any) -> None:
        if not self.admitted:
            propose(self)

    return proposed


def test_a_replica_that_is_never_admitted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_propose", never_admitting(Recovery._propose))
    found = explore(World(Scope(servers=1, cuts=0, appends=1)), heal_every=1)
    assert found.violation is not None
    assert found.violation.text == "I12: a replica never takes part again"


def test_a_recovery_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_resolve", lambda _: None)
    found = explore(World(Scope(servers=1, cuts=0, appends=1)), heal_every=1)
    assert found.violation is not None
    assert found.violation.text == "I12: nothing can happen, and no session is open"
