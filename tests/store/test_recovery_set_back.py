"""Recovery from metadata that was set back to an older copy."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.store.fake_replica import FakeReplica
from tests.store.recovery_bench import A, B, Bench, C, closed, diverged, node, open_state, same_logs
from waltz.cluster.partition_metadata import SESSION_CLIMB, SESSION_CLIMB_MAX
from waltz.store.recovery import EndRecovery
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


# Metadata that names a session as written and not as open, though it was open


@pytest.mark.parametrize("order", list(permutations((A, B, C), 2)))
def test_records_beyond_the_mark_of_the_session_before_prove_that_it_was_open(
    order: tuple[ReplicaId, ...],
) -> None:
    """The coordinator was set back to the moment before session 5 was open. A and C were in it; B
    holds what nobody else has, and would be one of a majority with either of them."""
    states = {each: open_state(4) for each in (A, B, C)}
    nodes = [node(A, 5, 100, 120), diverged(B, 4, 70, 103, 3), node(C, 5, 100, 120)]
    bench = Bench(6, states, nodes).reach(*order)
    assert isinstance(bench.newest(), EndRecovery)
    assert bench.recovery.is_disproved
    assert bench.mark() is None
    assert (bench.lasts[A], bench.lasts[C]) == (120, 120)
    following = Bench(7 + SESSION_CLIMB, states, nodes).reach(A, B, C)
    assert following.mark() == 120
    assert same_logs(following)


def test_a_replica_that_was_written_off_is_not_cut_if_it_was_in_the_session_before() -> None:
    states = {A: open_state(4), B: open_state(4), C: closed(3, 80)}
    nodes = [node(A, 5, 100, 120), diverged(B, 4, 70, 103, 3), node(C, 5, 100, 120)]
    bench = Bench(6, states, nodes).reach(B, C)
    assert bench.recovery.is_disproved
    assert bench.lasts[C] == 120


@pytest.mark.parametrize(
    ("session", "nodes"),
    [
        (6, [node(A, 5, 120, 120), node(B, 4, 70, 120)]),  # may have begun and never opened
        (7, [node(A, 5, 100, 120), node(B, 4, 70, 120)]),  # session 6 may have copied to A
        (SESSION_CLIMB_MAX, [node(A, SESSION_CLIMB_MAX - 1, 100, 120), node(B, 4, 70, 120)]),
    ],
)
def test_what_may_come_of_failed_recoveries_proves_nothing(
    session: int, nodes: list[FakeReplica]
) -> None:
    states = {A: open_state(4), B: open_state(4)}
    if session == SESSION_CLIMB_MAX:  # no number is left for a climb
        states = {each: open_state(session - 2) for each in (A, B)}
    bench = Bench(session, states, nodes).reach(A, B)
    assert not bench.recovery.is_disproved
    assert bench.mark() == 120


def test_one_that_is_late_disproves_nothing_that_a_majority_has_resolved() -> None:
    """What C has written in session 5 nobody else has: no client was told that it is committed."""
    states = {each: open_state(4) for each in (A, B, C)}
    nodes = [node(A, 5, 100, 100), node(B, 4, 70, 100), node(C, 5, 100, 103)]
    bench = Bench(6, states, nodes).reach(A, B)
    assert bench.mark() == 100
    bench.reach(C)
    assert not bench.recovery.is_disproved
    assert set(bench.lasts.values()) == {100}


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
