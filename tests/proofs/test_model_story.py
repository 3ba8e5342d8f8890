"""A way through a world, told in sentences."""

from __future__ import annotations

from proofs.model.replica import ReplicaRules
from proofs.model.scope import Scope
from proofs.model.state import Action
from proofs.model.story import SENTENCES, tell
from proofs.model.world import World


def test_it_says_who_does_what_and_what_that_changes() -> None:
    world = World(Scope(starts_with=2, sessions=2))
    story = tell(
        world,
        [
            Action("submit", 0, number=1),
            Action("arrive", 0, 0),
            Action("arrive", 0, 1),
            Action("cut", 0, 0),
            Action("write", 0),
            Action("connect", 0, 0),
        ],
    )
    held = "holds [r1], session 0 at -1"
    assert [*story] == [
        "server 1 (session 0) takes 1 append",
        f"append of r1 as 0 from server 1 (session 0) arrives at A -> A {held}",
        f"append of r1 as 0 from server 1 (session 0) arrives at B -> B {held}; committed: [r1]",
        "server 1 (session 0) loses A -> server 1 closes session 0",
        "server 1 (session 0) writes metadata: session 1; A 0, B 0, C -1 closed at -1",
        f"server 1 (session 1) connects to A, which says what it knows -> A {held}",
    ]


def test_it_ends_with_what_is_broken() -> None:
    world = World(Scope(starts_with=3, sessions=2), ReplicaRules(fences_when_asked=False), ("I9",))
    *_, last = tell(
        world,
        [
            Action("submit", 0, number=1),
            Action("cut", 0, 0),
            Action("start", 1),
            Action("write", 1),
            Action("connect", 1, 0),
            Action("haunt"),
        ],
    )
    assert last == (
        "append of r1 as 0 of session 0 arrives late at A"
        " -> I9: session 0 changes a replica that has answered session 1"
    )


def test_metadata_written_in_vain_are_told_apart() -> None:
    world = World(Scope(starts_with=2, sessions=2, lost_writes=1))
    late = [Action("connect", 0, 2), Action("arrive", 0, 2)]
    taken = [Action("start", 1), Action("lose_written", 1), Action("write", 0)]
    lines = [*tell(world, [*late, *taken])]
    assert lines[-2] == (
        "server 2 writes metadata: session 1; A 0, B 0, C -1 closed at -1, which it does not learn"
    )
    assert lines[-1].startswith(
        "server 1 (session 0) writes metadata: session 0; A 0, B 0, C 0, in vain: they have changed"
    )


def test_faults_have_sentences() -> None:
    scope = Scope(starts_with=3, spares=1, replacements=1, crashes=2, blanks=1, batch=2)
    actions = [
        Action("submit", 0, number=2),
        Action("tear", 0, 0, 1),
        Action("crash", replica=1),
        Action("blank", replica=1),
        Action("replace_replica", replica=3, number=2),
    ]
    assert [line.partition(" -> ")[0] for line in tell(World(scope), actions)] == [
        "server 1 (session 0) takes 2 append",
        "A crashes in an append, of which 1 records are kept",
        "B crashes",
        "B gets an empty disk",
        "replica 3 of the assignment becomes D",
    ]
    of_coordinator = {"copy_metadata", "set_back"}
    assert {verb for verb, sentence in SENTENCES.items() if "{" not in sentence} == of_coordinator
