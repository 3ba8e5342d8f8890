"""Every state is visited, and the way to a violation is a shortest one."""

from __future__ import annotations

import gc

import pytest

from proofs.model.explore import PROGRESS_STATES, explore
from proofs.model.ledger import ViolationError
from proofs.model.replica import ReplicaRules
from proofs.model.scope import Scope
from proofs.model.world import World

TINY = Scope(servers=1, sessions=1, appends=1, cuts=0)


def test_a_world_without_faults_is_explored_to_its_end() -> None:
    world = World(TINY)
    found = explore(world, heal_every=1)
    assert (found.violation, found.is_complete) == (None, True)
    assert found.healed == found.states
    assert found.transitions >= found.states - 1
    again = explore(World(TINY))
    assert (again.states, again.transitions, again.depth) == (
        found.states,
        found.transitions,
        found.depth,
    )


def test_every_state_is_found_that_a_walk_finds() -> None:
    world = World(TINY)
    known = explore(world).states
    stack, seen = [world.initial()], {world.initial()}
    while stack:
        for _, state in world.successors(stack.pop()):
            if state not in seen:
                seen.add(state)
                stack.append(state)
    assert len(seen) == known


def test_it_stops_where_it_is_told_to() -> None:
    told: list[tuple[int, int]] = []
    found = explore(
        World(Scope(cuts=1)),
        states_max=2 * PROGRESS_STATES,
        watch=lambda states, depth: told.append((states, depth)),
    )
    assert not found.is_complete
    assert 2 * PROGRESS_STATES <= found.states < 2 * PROGRESS_STATES + 100
    assert [states // PROGRESS_STATES for states, _ in told] == [1, 2]


def test_the_actions_of_a_violation_lead_to_it_and_no_shorter_way_does() -> None:
    world = World(
        Scope(starts_with=3, sessions=2, appends=1, cuts=0),
        ReplicaRules(fences_when_asked=False),
    )
    found = explore(world)
    assert found.violation is not None
    assert (found.violation.invariant, found.is_complete) == ("I9", False)
    *way, last = found.violation.actions
    state = world.initial()
    for action in way:
        assert action in [*world.possible(state)]
        state = world.after(state, action)
    with pytest.raises(ViolationError, match="I9"):
        world.after(state, last)
    assert [action.verb for action in found.violation.actions] == [
        "submit", "start", "write", "connect", "arrive",
    ]  # fmt: skip


def test_the_collector_runs_again_afterwards() -> None:
    assert gc.isenabled()
    explore(World(TINY), states_max=10)
    assert gc.isenabled()
