"""What may happen in a small world, and what it does there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proofs.model.ledger import Ledger, ViolationError
from proofs.model.replica import ReplicaRules
from proofs.model.scene import ModelScene
from proofs.model.scope import Scope
from proofs.model.world import World
from tests.proofs.played import Play
from tests.shares import one_in
from waltz.types import NO_SESSION

OPEN = Scope(starts_with=3, sessions=2, cuts=1)


def test_it_begins_with_nothing_but_a_server_that_wants_a_session() -> None:
    play = Play(Scope(cuts=0))
    assert [action.verb for action in play.possible()] == ["write", "start"]
    assert play.logs() == [(), (), ()]


def test_it_may_begin_with_an_open_session() -> None:
    for count, late in ((3, False), (2, True)):
        play = Play(Scope(starts_with=count, cuts=0))
        assert play.server(0).is_open
        assert play.may("connect") == late
        assert play.server(1).keeper is None


def test_appends_and_ids_and_sessions_come_to_an_end() -> None:
    play = Play(Scope(starts_with=3, sessions=1, transaction_ids=2, appends=3, cuts=0))
    play.does("submit", 0, number=1).does("submit", 0, number=1)
    assert not play.may("submit")
    play = Play(Scope(starts_with=3, sessions=1, appends=1, cuts=0)).does("submit", 0, number=1)
    assert not play.may("submit")
    play.does("start", 1)
    assert not play.may("write"), "there would be a second session"


def test_a_blank_disk_is_empty_and_there_is_one_at_most() -> None:
    play = Play(Scope(starts_with=3, blanks=1, cuts=0)).does("submit", 0, number=1)
    play.arrive(0, 0, 1).does("blank", replica=1)
    assert play.logs() == [(1,), (), ()]
    assert not play.may("blank")


def test_a_disk_goes_back_to_before_the_last_session() -> None:
    play = Play(Scope(starts_with=2, rollbacks=1, cuts=0)).does("back_up", replica=0)
    assert not play.may("roll_back"), "the copy is of the last session"
    assert not play.may("back_up")
    within = Scope(starts_with=2, rollbacks=1, cuts=0, rolls_back_within_session=True)
    play = Play(within).does("back_up", replica=0).does("submit", 0, number=1).arrive(0, 0)
    assert play.does("roll_back", replica=0).logs() == [(), (), ()]


def test_the_assignment_changes_and_servers_see_it_later() -> None:
    play = Play(Scope(starts_with=3, spares=1, replacements=1, cuts=0))
    play.does("replace_replica", replica=3, number=0)
    assert not play.may("replace_replica")
    assert play.server(0).is_open
    play.does("show", 0)
    assert not play.server(0).is_open
    assert not play.may("show")
    play.does("write", 0)
    assert play.server(0).connecting == (0, 1, 2, 3), "who is taken away has a last word"


def test_an_answer_of_the_coordinator_may_be_lost() -> None:
    play = Play(Scope(lost_writes=1, cuts=0)).does("lose_written", 0)
    scene = play.scene()
    assert play.world.coordinators[scene.coordinator].session_id == 0
    assert play.server(0).session_id == NO_SESSION
    play.does("write", 0)
    assert play.server(0).session_id == 1, "it cannot know that the first one was its own"


def test_an_invariant_that_is_not_looked_at_is_no_violation() -> None:
    world = World(OPEN, ReplicaRules(fences_when_asked=False), invariants=("I3",))
    world.object("I9", "nobody looks")
    with pytest.raises(ViolationError):
        world.object("I3", "somebody looks")


def reached(scope: Scope) -> tuple[set[object], set[Ledger], int]:
    """Return all that replicas, metadata and servers' words can be in a world, and how many states
    it has."""
    world = World(scope)
    states, seen = [world.initial()], {world.initial()}
    for state in states:
        for _, successor in world.successors(state):
            if successor not in seen:
                seen.add(successor)
                states.append(successor)
    scenes = [ModelScene(world, state) for state in states]
    outside: set[object] = set()
    for scene in scenes:
        coordinator = world.coordinators[scene.coordinator]
        replicas = [
            world.replicas[number]._replace(answered=NO_SESSION) for number in scene.replicas
        ]
        outside.add((*replicas, coordinator.metadata, coordinator.assigned))
    return outside, {world.ledgers[scene.ledger] for scene in scenes}, len(states)


@pytest.mark.long
@pytest.mark.parametrize(
    "scope",
    one_in(
        3,
        [
            Scope(starts_with=2, servers=1, sessions=2, appends=1, cuts=1),
            Scope(starts_with=2, servers=1, sessions=2, appends=1, cuts=0, blanks=1),
            Scope(starts_with=2, servers=1, sessions=2, appends=1, cuts=0, crashes=1),
        ],
    ),
)
def test_what_happens_at_once_leaves_nothing_out(scope: Scope) -> None:
    """Answers delayed for any time lead to the same replicas, metadata, commits and marks."""
    outside, ledgers, count = reached(scope)
    all_outside, all_ledgers, all_count = reached(replace(scope, is_reduced=False))
    assert outside == all_outside
    assert ledgers == all_ledgers
    assert count * 5 < all_count


@pytest.mark.long
def test_with_replacements_what_happens_at_once_leaves_only_slow_newcomers_out() -> None:
    """A session is filling a new replica while that one has not answered anything yet."""
    scope = Scope(starts_with=2, servers=1, sessions=2, appends=1, cuts=0, spares=1, replacements=1)
    outside, ledgers, _ = reached(scope)
    all_outside, all_ledgers, _ = reached(replace(scope, is_reduced=False))
    assert outside < all_outside
    assert ledgers == all_ledgers
