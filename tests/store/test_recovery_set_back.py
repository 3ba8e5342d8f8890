"""Recovery from metadata that was set back to an older copy."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.store.fake_replica import FakeReplica
from tests.store.recovery_bench import A, B, Bench, C, closed, diverged, node, open_state, same_logs
from waltz.cluster.partition_metadata import SESSION_CLIMB
from waltz.types import ReplicaId

# Metadata that were set back


def test_one_that_has_joined_since_the_metadata_were_copied_votes() -> None:
    """C joined session 4 late and has committed 8 to 13 with A. Written off at 3 by the metadata of
    before, it would be cut, and A alone would hold what was acknowledged."""
    states = {A: open_state(4), B: open_state(4), C: closed(3, 3)}
    for first, second in ((B, C), (C, B), (A, C), (C, A), (A, B), (B, A)):
        nodes = [node(A, 4, 8, 13), node(B, 4, 8, 8), node(C, 4, 8, 13)]
        bench = Bench(5, states, nodes).reach(first, second)
        assert bench.mark() == 13
        bench.reach(*({A, B, C} - {first, second}))
        assert bench.lasts == {A: 13, B: 13, C: 13}
        assert same_logs(bench)


def test_a_mark_of_the_last_session_alone_makes_no_voter_of_a_closed_replica() -> None:
    """Nor does a mark of a session of the same number that was given before the set-back."""
    states = {A: open_state(4), B: open_state(4), C: closed(3, 3)}
    nodes = [node(A, 4, 8, 13), node(B, 4, 8, 13), diverged(C, 4, 10, 10, 3)]
    bench = Bench(5, states, nodes).reach(C)
    assert bench.lasts[C] == 3
    bench.reach(A, B)
    assert bench.mark() == 13
    assert same_logs(bench)


CLIMBED = 9 + SESSION_CLIMB


@pytest.mark.parametrize("order", list(permutations((A, B, C))))
def test_set_back_metadata_do_not_let_a_stale_replica_vote(
    order: tuple[ReplicaId, ...],
) -> None:
    """By the metadata all three are of session 5; since then A and B alone were in session 9."""
    states = {each: open_state(5) for each in (A, B, C)}
    nodes = [node(A, 9, 100, 120), node(B, 9, 100, 118), diverged(C, 5, 70, 103, 20)]
    bench = Bench(CLIMBED, states, nodes).reach(*order)
    assert bench.mark() in (118, 120)
    assert bench.recovery.admitted
    assert same_logs(bench)
    assert set(bench.lasts.values()) == {bench.mark()}


def test_a_replica_that_was_away_is_cut_to_what_it_knows_in_the_session_after_too() -> None:
    states = {each: open_state(5) for each in (A, B, C)}
    nodes = [node(A, 9, 100, 120), node(B, 9, 100, 120), diverged(C, 5, 70, 103, 20)]
    bench = Bench(CLIMBED, states, nodes).reach(A, B)
    assert bench.mark() == 120
    assert bench.stored.replica_states[C] == closed(9, 120)
    following = bench.next_session().reach(A, B, C)
    assert not following.recovery.is_set_back
    assert same_logs(following)


@pytest.mark.parametrize(
    "nodes",
    [
        [node(A, 9, 100, 120), node(C, 5, 70, 103)],
        [node(A, 12, 110, 110), node(B, 9, 100, 110)],
        [node(A, 9, 100, 120), node(B, -1, -1, -1), node(C, 5, 70, 103)],
        [node(A, 9, 100, 120)],
    ],
)
def test_without_a_majority_that_knows_nothing_is_decided_and_nothing_is_cut(
    nodes: list[FakeReplica],
) -> None:
    states = {each: open_state(5) for each in (A, B, C)}
    lasts = [each.last for each in nodes]
    bench = Bench(CLIMBED, states, nodes).reach(*(each.replica_id for each in nodes))
    assert bench.mark() is None
    assert [each.last for each in nodes] == lasts


def test_a_climb_that_went_no_further_is_gone_on_with_by_the_next_server() -> None:
    """A has begun the session that outran the others, and no metadata say so."""
    states = {each: open_state(5) for each in (A, B, C)}
    nodes = [node(A, CLIMBED, 120, 120), node(B, 9, 100, 120), node(C, 9, 100, 125)]
    bench = Bench(CLIMBED + 1, states, nodes).reach(A, B, C)
    assert bench.mark() == 120
    assert set(bench.lasts.values()) == {120}


def test_a_blank_replica_of_set_back_metadata_is_filled_and_does_not_vote() -> None:
    states = {each: open_state(5) for each in (A, B, C)}
    nodes = [node(A, 9, 100, 120), node(B, -1, -1, -1), node(C, 9, 100, 120)]
    bench = Bench(CLIMBED, states, nodes).reach(B, A, C)
    assert bench.mark() == 120
    assert same_logs(bench)
